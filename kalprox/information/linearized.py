"""A block of rows expanded to second order at a point: the information of its linearisation there."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from kalprox._arrays import Array, namespace
from kalprox.information.triangular import Information, merge
from kalprox.likelihoods import Likelihood
from kalprox.models import GLM, Model
from kalprox.sources import Block, masked

__all__ = ["Expansion", "Linearized", "curvature_along", "expand", "linearize", "rows_not_finite"]


class Expansion(NamedTuple):
    """The loss of a block as least squares about a step of theta, outputs flattened: b rows of m outputs are b m rows.

    With f = h(theta, x), slope and curvature those of the likelihood at f, the loss at theta + p is, to second order,
    1/2 sum weights (targets - D p)^2 plus a constant.
    """

    f: Array  # (b m,)
    D: Array  # (b m, d), the Jacobian of h
    targets: Array  # (b m,), -slope / curvature
    weights: Array | None  # (b m,), the rows' weights times the curvature; None where all are 1
    loss: Array  # (), the loss at theta


def expand(
    model: Model, likelihood: Likelihood, theta: Array, block: Block, covariance: Array | None = None
) -> Expansion:
    """The expansion of a block at theta.

    Given the `covariance` of theta, shape (d, d), a link of bounded slope is averaged over it instead of taken at
    theta. What is not finite is found by the caller.
    """
    X, y = block.X, block.y
    xp, w = namespace(X, y), block.weights
    with np.errstate(all="ignore"):  # a trial that overflows is refused, not warned about
        theta = xp.asarray(theta, y.dtype)
        if covariance is not None and isinstance(model, GLM) and model.bounded_slope:
            f, D = _averaged(model, theta, covariance, X)
        else:
            f, D = model.linearize_rows(theta, X)
        if f.shape != y.shape:
            raise ValueError(f"y must have the shape of the model's output, {f.shape} for this block; got {y.shape}.")
        targets, curvature = likelihood.least_squares(y, f)
        f, D, targets, losses = (masked(w, a) for a in (f, D, targets, likelihood.loss(y, f)))
        if w is not None:
            w = xp.repeat(w, f[0].size)
            losses = w * losses.ravel()
        if curvature is not None:
            curvature = masked(block.weights, curvature).ravel()
            w = curvature if w is None else w * curvature
        return Expansion(f.ravel(), D.reshape(-1, theta.size), targets.ravel(), w, losses.sum())


def _averaged(model: GLM, theta: Array, covariance: Array, X: Array) -> tuple[Array, Array]:
    """E[h] and the Jacobian E[h'] x for theta ~ N(theta, covariance): the best line through h where theta may be.

    Only the predictor u ~ N(x'theta, x'Vx) matters: the Gauss-Hermite rule with nine nodes.
    """
    u = X @ theta
    spread = namespace(X).sqrt(namespace(X).maximum((X @ covariance * X).sum(axis=1), 0))
    f = slope = 0 * u
    for node, share in zip(_NODES, _SHARES, strict=True):
        value, derivative = model.link(u + float(node) * spread)
        f, slope = f + float(share) * value, slope + float(share) * derivative
    return f, slope[:, None] * X


_NODES, _SHARES = np.polynomial.hermite_e.hermegauss(9)
_SHARES = _SHARES / _SHARES.sum()


@dataclass(frozen=True)
class Linearized:
    """Rows linearised at theta, summed over blocks: what one pass of refinement brings back."""

    loss: float  # at theta
    rss: float  # sum of weights * targets^2
    size: float  # sum of weights * f^2: the targets are known to about eps |f|
    information: Information | None  # of D against the targets, so about the step t - theta; None: not finite

    def __add__(self, other: Self) -> Self:
        a, b = self.information, other.information
        information = None if a is None or b is None else merge(a, b)
        return type(self)(self.loss + other.loss, self.rss + other.rss, self.size + other.size, information)


def linearize(model: Model, likelihood: Likelihood, theta: Array, block: Block) -> Linearized:
    """A block linearised at theta: one part of a pass."""
    f, D, targets, w, loss = expand(model, likelihood, theta, block)
    with np.errstate(all="ignore"):
        rss, size, squares = _squares(targets, w), _squares(f, w), _squares(D)
        finite = np.isfinite(float(loss) + rss + size + squares)  # also refuses what overflows when squared
    if not finite:
        return Linearized(float(loss), rss, size, None)
    return Linearized(float(loss), rss, size, Information.from_rows(D, targets, w))


def _squares(a: Array, weights: Array | None = None) -> float:
    """The (weighted) sum of squares; on a device by sums, since a GPU's products round float32."""
    if namespace(a) is np:
        return float(np.vdot(a, a if weights is None else weights * a))
    return float((a**2 if weights is None else weights * a**2).sum())


def curvature_along(model: Model, likelihood: Likelihood, theta: Array, p: Array, block: Block) -> Array:
    """J'W h_pp with h_pp the second derivative of h along p: (D(theta + s p) - D(theta)) p / s.

    The difference of two Jacobians loses digits relative to J p only, and half of them are plenty:
    the curvature bends a trial step, it does not enter the answer.
    """
    s = float(np.finfo(np.dtype(block.y.dtype)).eps) ** 0.5
    here, ahead = (expand(model, likelihood, at, block) for at in (theta, theta + s * p))
    step = namespace(here.D).asarray(p / s, here.D.dtype)
    with np.errstate(all="ignore"):
        bend = (ahead.D - here.D) @ step
        return np.asarray(here.D.T @ (bend if here.weights is None else here.weights * bend))


def rows_not_finite(model: Model, likelihood: Likelihood, theta: Array, block: Block) -> list[Array]:
    """Which rows of a block have no finite value or derivative, as a list of one array: lists add."""
    at = expand(model, likelihood, theta, block)
    with np.errstate(all="ignore"):
        bad = ~np.isfinite(np.asarray(at.targets) ** 2 + (np.asarray(at.D) ** 2).sum(axis=1))
    return [bad.reshape(len(block), -1).any(axis=1)]
