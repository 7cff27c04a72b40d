"""Second-order expansion of the loss of a block at theta, and the information of the linearised rows."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np

from kalprox.base.arrays import Array, masked, namespace
from kalprox.information.triangular import Information
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.base import normal_quadrature
from kalprox.linalg.factor import Factor
from kalprox.linalg.row_space import WideFactor
from kalprox.linalg.triangle import sum_of_squares
from kalprox.models import Model, Predictor, predictor
from kalprox.sources import Block


class Expansion(NamedTuple):
    """The loss of a block as a least-squares function of a step p of theta; b rows with m outputs become b m rows.

    With f = h(theta, x), and the slope and curvature of the likelihood at f, the loss at theta + p is, to second order,
    1/2 sum weights (targets - D p)^2 plus a constant.
    """

    f: Array  # (b m,)
    D: Array  # (b m, d), the Jacobian of h
    targets: Array  # (b m,), -slope / curvature
    weights: Array | None  # (b m,), the rows' weights times the curvature; None where all are 1
    loss: Array  # (), the loss at theta
    counts: Array | None  # (b m,), what the rows add to `rows` of the information; None where all add 1
    squares: Array | None  # (b m,), what they add to `squares`; None where it is the same


class Spread(NamedTuple):
    """The covariance of many parameters, by what it says about outputs: no matrix of it is made."""

    factor: Any  # of a structure, which is read as a `kalprox.linalg.factor.Factor` is
    variance: Array  # of the noise, of which the factor is in units


def expand(
    model: Model, likelihood: Likelihood, theta: Array, block: Block, covariance: Any = None, *, descent: bool = False
) -> Expansion:
    """Expand the loss of a block at theta.

    If the `covariance` of theta, shape (d, d), or its `Spread` is given, a link of bounded slope is averaged over
    N(theta, covariance) instead of evaluated at theta, and a loss of a linear predictor that is not quadratic is fitted
    to its moments under that belief. With `descent` the expansion is one to descend with, which for a robust loss is
    not what its rows add to the information. The caller checks the result for values that are not finite.
    """
    X, y = block.X, block.y
    xp, w = namespace(X, y), block.weights
    likelihood.check(y, w)
    with np.errstate(all="ignore"):  # the caller rejects a trial that overflows; no warning is needed
        theta = xp.asarray(theta, y.dtype)
        if covariance is not None and model.bounded_slope:
            f, D = _averaged(model, theta, covariance, X)
        else:
            f, D = model.linearize_rows(theta, X)
        if f.shape != y.shape:
            number = " A function must return one number for one row x: index x, as in x[0]." if f.ndim > y.ndim else ""
            raise ValueError(
                f"y must have the shape of the model's output, {f.shape} for this block; got {y.shape}.{number}"
            )
        averaged = covariance is not None and model.linear and not likelihood.quadratic
        if averaged and likelihood.interacts:
            targets, D = likelihood.matched_rows(y, f, D, _covariances(D, covariance))
            curvature = None
        elif averaged or (likelihood.majorizes and not descent):
            targets, curvature = likelihood.matched(y, f, output_variances(D, covariance))
        else:
            targets, curvature = likelihood.least_squares(y, f)
            D = likelihood.contrasts(f, D)
        D = masked(w, D)
        return expansion(likelihood, f, D.reshape(-1, theta.size), targets, curvature, block)


def expansion(
    likelihood: Likelihood, f: Array, D: Any, targets: Array, curvature: Array | None, block: Block
) -> Expansion:
    """Return the expansion of the loss of a block, given its outputs f, shape (b,) or (b, m), and their Jacobian.

    The targets and curvatures are those of the least-squares problem for the step of f.
    """
    xp, w = namespace(block.X, block.y), block.weights
    f, targets, losses = (masked(w, a) for a in (f, targets, likelihood.loss(block.y, f)))
    counts, squares = (None if a is None else xp.repeat(a, f[0].size) for a in (block.counts, block.squares))
    if w is not None:
        w = xp.repeat(w, f[0].size)
        losses = w * losses.ravel()
        counts = w if counts is None else counts
    if curvature is not None:
        curvature = masked(block.weights, curvature).ravel()
        counts = xp.ones_like(curvature) if counts is None else counts  # a row of any curvature is one row
        w = curvature if w is None else w * curvature
    return Expansion(f.ravel(), D, targets.ravel(), w, losses.sum(), counts, squares)


def output_variances(D: Array, covariance: "Array | Spread | None") -> Array:
    """Return the variance of each output, given its Jacobian and the covariance of theta; zeros without one."""
    if covariance is None:
        return 0 * D[..., 0]
    if isinstance(covariance, Spread):
        rows = D.reshape(-1, D.shape[-1])
        return covariance.variance * covariance.factor.leverage(rows).reshape(D.shape[:-1])
    return (D @ covariance * D).sum(axis=-1)


def _covariances(D: Array, covariance: "Array | Spread") -> Array:
    """Return the covariances of the outputs of each row, shape (b, m, m), given their Jacobians, shape (b, m, d)."""
    xp = namespace(D)
    if isinstance(covariance, Spread):
        root = covariance.factor.whitened(D.reshape(-1, D.shape[-1])).reshape((*D.shape[:-1], -1))
        return covariance.variance * (root @ xp.swapaxes(root, -1, -2))
    return D @ covariance @ xp.swapaxes(D, -1, -2)


def skewness(model: Model, likelihood: Likelihood, theta: Array, covariance: Array, block: Block) -> Array:
    """Return how the mean of the gradient of a block's log-likelihood over N(theta, V) differs from that at theta.

    That is to third order, for a linear model; shape (d,). The mean of the gradient of the log posterior is zero over
    the posterior, and so is the gradient at its mode: the skewness of all rows moves the mean from the mode.
    """
    f, D = model.linearize_rows(theta, block.X)
    variance = _covariances(D, covariance) if likelihood.interacts else output_variances(D, covariance)
    found, D = (masked(block.weights, a) for a in (likelihood.skew(block.y, f, variance), D))
    found = found if block.weights is None else (found.T * block.weights).T
    return np.asarray(found.ravel() @ D.reshape(-1, D.shape[-1]))


def sums_of(likelihood: Likelihood, at: Expansion, block: Block, covariance: "Array | Spread | None" = None) -> Array:
    """Return the sums over the rows of a block that a likelihood with a parameter learns from; see `expand`."""
    y = masked(block.weights, block.y).ravel()
    counts = namespace(y).ones_like(y) if at.counts is None else at.counts
    with np.errstate(all="ignore"):
        variance = 0 * at.f if covariance is None else output_variances(at.D, covariance)
        return likelihood.sums(y, at.f, variance, counts)


def _averaged(model: Any, theta: Array, covariance: "Array | Spread", X: Array) -> tuple[Array, Array]:
    """Return E[h] and the Jacobian E[h'] x under N(theta, covariance): the best linear approximation of h there.

    Both depend on the linear predictor u ~ N(x'theta, x'Vx) alone, so a Gauss-Hermite rule with nine nodes is enough.
    """
    u = X @ theta
    spread = namespace(X).sqrt(namespace(X).maximum(output_variances(X, covariance), 0))
    f = slope = 0 * u
    for node, share in zip(_NODES, _SHARES, strict=True):
        value, derivative = model.link(u + float(node) * spread)
        f, slope = f + float(share) * value, slope + float(share) * derivative
    return f, slope[:, None] * X


def output_leverage(model: Predictor, theta: Array, X: Array, leverage: Array, noise_var: float) -> tuple[Array, Array]:
    """Return the variance of h for each row in units of the noise variance, and the share that is not linear.

    `leverage` is the variance of the linear predictor in the same units. Where its standard deviation is below 1%, the
    variance of h is h'^2 times as large. Where it is larger, the variance of h also shows what a linearisation does
    not: on a plateau of the link, where h' is zero, an uncertain predictor still means that h is not known. The share
    that is not linear is that of the residuals of a regression of h on the predictor, under the belief. The variance is
    infinite where h overflows.
    """
    u, spread = X @ theta, (leverage * noise_var) ** 0.5
    narrow = spread < _NARROW
    with np.errstate(all="ignore"):
        f, slope = model.link(u)
        changes = np.stack([model.link(u + node * spread)[0] for node in _NODES]) - f
        variance = _SHARES @ (changes - _SHARES @ changes) ** 2
        share = np.where(narrow, 0.0, 1 - (_SHARES * _NODES @ changes) ** 2 / variance)
        found = np.where(narrow, slope**2 * leverage, variance / noise_var)
    return np.where(np.isfinite(found), found, np.inf), np.where(np.isfinite(share), share, 1.0)


def curved_variance(model: Model, theta: Array, X: Array, factor: Factor | WideFactor, noise_var: float) -> Array:
    """Return the variance of h that is not linear in theta, for each output, in units of the noise variance.

    It is the mean square of the distance of h from its tangent at theta, at points to both sides of theta along
    orthogonal directions of the belief: all of them, or 8. Their distance from theta has the fourth moment of the
    belief, on which the square of a curvature depends. Infinite where h is not finite.
    """
    d = factor.normals
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(d, min(d, _DIRECTIONS))))[0].T
    steps = noise_var**0.5 * factor.draws((d * (d + 2)) ** 0.25 * directions)
    f, D = model.linearize_rows(theta, X)
    with np.errstate(all="ignore"):
        away = [(model.linearize_rows(theta + step, X)[0] - f - D @ step) ** 2 for step in (*steps, *-steps)]
        found = np.mean(away, axis=0).ravel() / noise_var
    return np.where(np.isfinite(found), found, np.inf)


_DIRECTIONS = 8
_NARROW = 0.01  # the links change on the scale of 1; quadrature over less would lose digits to cancellation
_NODES, _SHARES = normal_quadrature(9)


@dataclass(frozen=True)
class Sums:
    """Sums over rows, which add over blocks; what is None for some of the rows is None for all of them."""

    def __add__(self, other: Self) -> Self:
        pairs = [(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)]
        kind: Any = type(self)
        total: Self = kind(*(None if a is None or b is None else a + b for a, b in pairs))
        return total


@dataclass(frozen=True)
class Linearized(Sums):
    """The sums over linearised rows that one pass of refinement returns."""

    loss: float  # at theta
    rss: float  # sum of weights * targets^2
    size: float  # sum of weights * f^2; the rounding error of the targets is about eps |f|
    information: Information | None  # of rows D with the targets, so of the step t - theta; None if not finite
    sums: Array | None = None  # what the likelihood learns from; None if it has no parameter


def linearize(model: Model, likelihood: Likelihood, theta: Array, block: Block, *, descent: bool = True) -> Linearized:
    """Linearise a block at theta, to descend or, without `descent`, for the information of the rows."""
    at = expand(model, likelihood, theta, block, descent=descent)
    f, D, targets, w, loss, counts, squared = at
    with np.errstate(all="ignore"):
        rss, size, squares = sum_of_squares(targets, w), sum_of_squares(f, w), sum_of_squares(D)
        finite = np.isfinite(float(loss) + rss + size + squares)  # False also where a square overflows
    if not finite:
        return Linearized(float(loss), rss, size, None)
    sums = None if likelihood.parameter is None else np.asarray(sums_of(likelihood, at, block))
    return Linearized(float(loss), rss, size, Information.from_rows(D, targets, w, counts, squared), sums)


def errors_of(model: Model, likelihood: Likelihood, theta: Array, block: Block) -> Array:
    """Return the sums over a block from which the first value of the parameter of a likelihood is found."""
    f, _ = model.linearize_rows(namespace(block.X).asarray(theta, block.y.dtype), block.X)
    y, f, w = (masked(block.weights, block.y).ravel(), masked(block.weights, f).ravel(), block.weights)
    counts = np.ones(len(y)) if w is None else np.repeat(w if block.counts is None else block.counts, len(y) // len(w))
    return np.asarray(likelihood.sums(y, f, 0 * f, counts))


def curvature_along(model: Model, likelihood: Likelihood, theta: Array, p: Array, block: Block) -> Array:
    """Return J'W h_pp, with h_pp the second derivative of h along p: (D(theta + s p) - D(theta)) p / s.

    The difference of the two Jacobians keeps half of the digits, relative to J p. That is enough, because the curvature
    only corrects a trial step and does not enter the result.
    """
    s = float(np.finfo(np.dtype(block.y.dtype)).eps) ** 0.5
    here, ahead = (expand(model, likelihood, at, block, descent=True) for at in (theta, theta + s * p))
    step = namespace(here.D).asarray(p / s, here.D.dtype)
    with np.errstate(all="ignore"):
        bend = (ahead.D - here.D) @ step
        return np.asarray(here.D.T @ (bend if here.weights is None else here.weights * bend))


def curvature_left_out(model: Predictor, likelihood: Likelihood, theta: Array, block: Block) -> Array:
    """Return what the linearisation of a block leaves out of the Hessian of its loss, shape (d, d), for h(x'theta).

    Along the linear predictor u the loss has the second derivative (loss')'h'^2 + loss' h'', of which the expansion has
    the first term, or a substitute for it. The difference quotient keeps ten digits or so: it speeds up the last steps,
    and does not enter the result.
    """
    X, y, s = block.X, block.y, float(np.finfo(np.dtype(block.y.dtype)).eps) ** (1 / 3)
    xp = namespace(X, y)

    def slope(u: Array) -> tuple[Array, Array]:
        f, bend = model.link(u)
        first, second = likelihood.expand(y, f)
        return first * bend, second * bend**2

    with np.errstate(all="ignore"):
        u = predictor(xp.asarray(theta, y.dtype), X)
        q = masked(block.weights, (slope(u + s)[0] - slope(u - s)[0]) / (2 * s) - slope(u)[1])
        q = q if block.weights is None else block.weights * q
        X = masked(block.weights, X)
        return np.asarray(X.T @ (q[:, None] * X))


def rows_not_finite(model: Model, likelihood: Likelihood, theta: Array, block: Block) -> list[Array]:
    """Return which rows of a block have no finite value or derivative, as a list of one mask, since lists add."""
    at = expand(model, likelihood, theta, block, descent=True)
    with np.errstate(all="ignore"):
        bad = ~np.isfinite(np.asarray(at.targets) ** 2 + (np.asarray(at.D) ** 2).sum(axis=1))
    return [bad.reshape(len(block), -1).any(axis=1)]
