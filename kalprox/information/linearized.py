"""Rows linearised at a point: their residuals, Jacobian and information there."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from kalprox._arrays import Array, namespace
from kalprox.information import Information, merge
from kalprox.models import BOUNDED_SLOPE, GLM, Model
from kalprox.sources import masked

__all__ = ["Linearized", "curvature_along", "linearize", "not_finite", "residuals"]


@dataclass(frozen=True)
class Linearized:
    """All rows, or a block of them, linearised at theta: what one pass brings back."""

    rss: float  # sum w e^2, e = y - h(theta)
    size: float  # sum w h^2: e is known to about eps |h|
    information: Information | None  # of D against e, so about the step t - theta; None: not finite

    def __add__(self, other: Self) -> Self:
        a, b = self.information, other.information
        information = None if a is None or b is None else merge(a, b)
        return type(self)(self.rss + other.rss, self.size + other.size, information)


def residuals(
    model: Model, theta: Array, X: Array, y: Array, weights: Array, belief: Array | None = None
) -> tuple[Array, ...]:
    """(h, e, D, w) of a block, outputs flattened: shapes (b m,), (b m,), (b m, d), (b m,).

    Given a `belief`, the covariance of theta, shape (d, d), a link with bounded slope is averaged over it
    instead of taken at theta.
    """
    xp = namespace(X, y)
    with np.errstate(all="ignore"):  # a trial that overflows is refused, not warned about
        theta = xp.asarray(theta, y.dtype)
        if belief is not None and isinstance(model, GLM) and model.name in BOUNDED_SLOPE:
            h, D = _averaged(model, theta, belief, X)
        else:
            h, D = model.linearize_rows(theta, X)
        if h.shape != y.shape:
            raise ValueError(f"y must have the shape of the model's output, {h.shape} for this block; got {y.shape}.")
        e = y - h
    h, e, D = (masked(weights, a) for a in (h, e, D))
    w = xp.repeat(weights, h[0].size)
    return h.ravel(), e.ravel(), D.reshape(-1, theta.size), w


def _averaged(model: GLM, theta: Array, belief: Array, X: Array) -> tuple[Array, Array]:
    """E[h] and the Jacobian E[h'] x under theta ~ N(theta, belief): the best line through h where theta may be.

    Only the predictor matters, u ~ N(x'theta, x'Vx): Gauss and Hermite's rule with nine points.
    """
    u = X @ theta
    spread = namespace(X).sqrt(namespace(X).maximum((X @ belief * X).sum(axis=1), 0))
    h = slope = 0 * u
    for point, share in zip(_POINTS, _SHARES, strict=True):
        value, derivative = model.link(u + float(point) * spread)
        h, slope = h + float(share) * value, slope + float(share) * derivative
    return h, slope[:, None] * X


_POINTS, _SHARES = np.polynomial.hermite_e.hermegauss(9)
_SHARES = _SHARES / _SHARES.sum()


def linearize(model: Model, theta: Array, X: Array, y: Array, weights: Array) -> Linearized:
    """A block linearised at theta: one part of a pass."""
    h, e, D, w = residuals(model, theta, X, y, weights)
    on_host = namespace(D) is np
    with np.errstate(all="ignore"):
        rss, size = float((w * e**2).sum()), float((w * h**2).sum())  # sums: a GPU's products round float32
        squares = float(np.vdot(D, D) if on_host else (D * D).sum())
        finite = np.isfinite(rss + size + squares)  # also refuses what overflows when squared
    if not finite:
        return Linearized(rss, size, None)
    return Linearized(rss, size, Information.from_rows(D, e, None if on_host and (w == 1).all() else w))


def curvature_along(model: Model, theta: Array, p: Array, X: Array, y: Array, weights: Array) -> Array:
    """J'W h_pp with h_pp the second derivative of h along p: (D(theta + s p) - D(theta)) p / s.

    The difference of two Jacobians loses digits relative to J p only, and half of them are plenty:
    the curvature bends a trial step, it does not enter the answer.
    """
    s = float(np.finfo(np.dtype(y.dtype)).eps) ** 0.5
    _, _, D, w = residuals(model, theta, X, y, weights)
    _, _, ahead, _ = residuals(model, theta + s * p, X, y, weights)
    step = namespace(D).asarray(p / s, D.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(D.T @ (w * ((ahead - D) @ step)))


def not_finite(model: Model, theta: Array, X: Array, y: Array, weights: Array) -> list[Array]:
    """Which rows of a block have no finite value or derivative, as a list of one array."""
    _, e, D, _ = residuals(model, theta, X, y, weights)
    with np.errstate(all="ignore"):
        bad = ~np.isfinite(np.asarray(e) ** 2 + (np.asarray(D) ** 2).sum(axis=1))
    return [bad.reshape(len(y), -1).any(axis=1)]
