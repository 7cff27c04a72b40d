"""Filters of single rows for other likelihoods than the Gaussian: of one output, or of one for each of several classes.

Each row is learned by moment matching: as the least-squares problem that has, on average over the belief before it, the
slope and the curvature of the loss. What a filter of rows that are never forgotten returns for a row is that problem,
from which `kalprox.algorithms.proximal_filter.take_matched` folds the row later.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kalprox.algorithms.state import ProximalState
from kalprox.base.arrays import Array
from kalprox.learning.design import Design
from kalprox.learning.innovations import Innovations
from kalprox.learning.square_root import SquareRootFilter
from kalprox.likelihoods import Likelihood
from kalprox.noise import Noise
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Predictive
from kalprox.sources import Block

__all__ = ["ClassFilter", "LikelihoodFilter", "MatchingFilter", "filter_after", "followed", "matched_innovations"]

_NOISE = Noise.known(1.0)
_CHUNK = 1024  # rows predicted at a time
_WIDE = 0.1  # the variance of the difference of two outputs above which a row is learned at the mode
_UNSURE = 1.0  # the variance of an output above which its prediction is not judged
_STEPS, _TOL = 50, 1e-8  # of Newton's method for the mode; a few steps are usual
_LEAST = 1e-12  # curvature, which keeps matrices invertible


class LikelihoodFilter:
    """What predicts rows with a likelihood whose noise is that of its outputs."""

    def predict(self, X: Array) -> Predictive:
        """Return the predictive distribution for rows of X."""
        raise NotImplementedError

    def mean(self, X: Array) -> Array:
        """Return the predictive means for rows of X: of classes their probabilities."""
        return self.predict(X).mean

    def noise(self) -> tuple[float, float]:
        """Return the noise variance, which is 1, and its degrees of freedom."""
        return 1.0, math.inf


@dataclass
class MatchingFilter(LikelihoodFilter):
    """A filter of single rows that learns each by moment matching, and predicts with the likelihood.

    Attributes
    ----------
    root : SquareRootFilter
        In units of the loss, which are those of a noise variance of 1.
    likelihood : Likelihood
    """

    root: SquareRootFilter
    likelihood: Likelihood

    def copy(self) -> "MatchingFilter":
        """Return a filter that later rows of this one do not change. O(d^2)."""
        return replace(self, root=self.root.copy())

    def learn(self, x: Array, y: Array, weight: float, offset: float = 0.0) -> Array | None:
        """Learn a row x of shape (d,) in place, by the least-squares problem for the step of f = x'theta + offset.

        Returns f before the row, its variance, and the target and the row of that problem, apart from the weight: an
        array of four numbers. None, and no update, if one of these is not finite.
        """
        root, kernel = self.root, self.root.kernel
        root.design.put_row(x, kernel.row)
        error, leverage = kernel.learn_row(0.0, 0.0)
        before = -float(error[0])
        f = before + offset
        step, curvature = self.likelihood.matched_row(float(y), f, leverage)
        total = curvature * weight
        if not (total > 0 and math.isfinite(f + leverage + step + 1 / total)):
            return None
        kernel.learn_row(before + step, total)
        root.counts.rows += weight
        size = math.sqrt(curvature)
        return np.array([f, leverage, size * step, size])

    def predict(self, X: Array, offset: Array | None = None) -> Predictive:
        """Return the predictive distribution for rows of X."""
        f, variance = self.root.output(X)
        return self.likelihood.predict(f if offset is None else f + offset, variance, _NOISE)


@dataclass
class ClassFilter(MatchingFilter):
    """A filter of single rows of several classes, each of which has an output.

    Attributes
    ----------
    root : SquareRootFilter
        Of the coefficients of all classes, those of one input next to each other, with a design of m outputs.
    likelihood : Likelihood
        One whose outputs interact, such as `Categorical`.
    """

    def learn(self, x: Array, y: Array, weight: float, offset: float = 0.0) -> Array | None:
        """Learn a row x of shape (d,) with targets y of shape (m,) in place. O(m (d m)^2). It has no offset.

        The least-squares problem of `Categorical.matched_rows` has one row less than there are classes. They are
        learned one after the other. It averages the curvature of the loss over the belief, and a step from a wide
        belief would go too far: such a row is learned by the problem that has the slope and the curvature at the mode
        of what the row and the belief say together.

        Returns the outputs f before the row, shape (m,), their covariances, and the targets and the rows of that
        problem, shapes (m,) and (m, m), as one array. None, and no update, if one of these is not finite.
        """
        root, m = self.root, len(y)
        x = root.design.rows(x[None])[0]
        f, V = self._output(x)
        S = V @ V.T
        if spread(S) > _WIDE:
            targets, rows = (a[None] for a in _at_mode(y, f, S))
        else:
            targets, rows = self.likelihood.matched_rows(y[None], f[None], np.eye(m)[None], S[None])
        found = np.concatenate([f, S.ravel(), targets[0], rows[0].ravel()])
        if not np.isfinite(found).all():
            return None
        kernel = root.kernel
        for a, target in zip(rows[0, :-1], targets[0, :-1], strict=True):
            kernel.row[:] = np.multiply.outer(x, a).ravel()
            kernel.learn_row(target + a @ f, weight)
        root.counts.rows += weight
        return found

    def _output(self, x: Array) -> tuple[Array, Array]:
        """Return the outputs of an input x of shape (p,), and a root of their covariance, shape (m, r)."""
        L, p = self.root.L, len(x)
        return x @ self.root.theta.reshape(p, -1), (x @ L.T.reshape(L.shape[1], p, -1)).T

    def _outputs(self, X: Array) -> Iterator[tuple[Array, Array]]:
        """Yield the outputs of some rows of X at a time, shape (n, m), and their covariances, shape (n, m, m)."""
        L = self.root.L
        for start in range(0, len(X), _CHUNK):
            inputs = self.root.design.rows(X[start : start + _CHUNK])
            p = inputs.shape[1]
            roots = np.tensordot(inputs, L.reshape(p, -1, L.shape[1]), axes=1)
            yield inputs @ self.root.theta.reshape(p, -1), roots @ roots.swapaxes(-1, -2)

    def predict(self, X: Array, offset: Array | None = None) -> Predictive:
        """Return the predictive distribution for rows of X, which have no offset."""
        if len(X) == 1:
            f, V = self._output(self.root.design.rows(X)[0])
            return self.likelihood.predict(f[None], (V @ V.T)[None], _NOISE)
        f, S = map(np.concatenate, zip(*self._outputs(X), strict=True))
        return self.likelihood.predict(f, S, _NOISE)


def followed(live: MatchingFilter, rows: Block) -> list[Array]:
    """Let a filter learn rows in place, and return what `learn` returns for each, up to the first that is rejected.

    A row of weight 0 is predicted, and not learned.
    """
    n, found = len(rows.y), []
    weights = [1.0] * n if rows.weights is None else rows.weights.tolist()
    offset = [0.0] * n if rows.offset is None else rows.offset.tolist()
    for x, y, weight, added in zip(rows.X, rows.y, weights, offset, strict=True):
        matched = live.learn(x, y, weight, added) if weight > 0 else live.copy().learn(x, y, 1.0, added)
        if matched is None:
            break
        found.append(matched)
    return found


def spread(S: Array) -> Array:
    """Return the largest variance of the difference of two outputs with covariances S of shape (..., m, m)."""
    own = np.diagonal(S, axis1=-2, axis2=-1)
    largest: Array = (own[..., :, None] + own[..., None, :] - 2 * S).max(axis=(-2, -1))
    return largest


def _at_mode(y: Array, f: Array, S: Array) -> tuple[Array, Array]:
    """Return the least-squares problem of a row at the mode of exp(-loss) N(f, S), as `Categorical.matched_rows` does.

    Newton's method, with steps that are halved until the objective falls: it is convex.

    Parameters
    ----------
    y, f : arrays of shape (m,)
    S : array of shape (m, m)

    Returns
    -------
    targets : array of shape (m,)
    rows : array of shape (m, m)
        The last row is zero.
    """
    m = len(y)
    root = np.linalg.cholesky(S + (_LEAST + np.finfo(float).eps ** 0.5 * np.trace(S) / m) * np.eye(m))

    def at(u: Array) -> tuple[float, Array]:
        """Return the objective and the probabilities; without SciPy's `logsumexp`, which takes 0.3 ms."""
        g = f + root @ u
        top = g.max()
        parts = np.exp(g - top)
        total = parts.sum()
        return float(math.log(total) + top - y @ g + u @ u / 2), parts / total

    u = np.zeros(m)
    now, p = at(u)
    for _ in range(_STEPS):
        mean = root.T @ p
        bent = root.T @ (p[:, None] * root) - np.multiply.outer(mean, mean) + np.eye(m)
        step = -np.linalg.solve(bent, root.T @ (p - y) + u)
        size, last = 1.0, now
        then, there = at(u + step)
        while then > now and size > _TOL:
            size /= 2
            then, there = at(u + size * step)
        u, now, p = u + size * step, min(then, now), there
        if last - now <= _TOL * (1 + abs(now)):
            break
    W = (np.diag(p) - np.multiply.outer(p, p))[:-1, :-1]
    L = np.linalg.cholesky(W + _LEAST * np.eye(m - 1))
    rows, targets = np.zeros((m, m)), np.zeros(m)
    rows[:-1] = L.T @ (np.eye(m)[:-1] - np.eye(m)[-1])
    targets[:-1] = rows[:-1] @ (root @ u) - np.linalg.solve(L, (p - y)[:-1])
    return targets, rows


def filter_after(state: ProximalState, design: Design) -> MatchingFilter | None:
    """Return a filter of single rows that continues from a state; None if a coefficient is undetermined.

    In a warm-up that has had no check, it learns the rows held, which need not be refined then.
    """
    p, held, posterior = state.problem, state.held if state.is_fresh else None, state.posterior
    if held is not None:  # what the prior and the penalty say without any rows
        about: dict[str, Any] = {"prior": state.prior, "start": state.estimate, "likelihood": p.likelihood}
        posterior = InformationPosterior(state.data, p.regularizer, gamma=p.gamma, **about)
    if not posterior.proper or posterior.metric_factors[0].free is not None or posterior.noise.variance != 1:
        return None
    offsets, design = design.row_offsets, replace(design, row_offsets=False)
    assert design.center is not None
    at_zero = replace(design, center=np.zeros(len(design.center)), intercept=False)
    root = SquareRootFilter.of(posterior, at_zero, 1.0)
    root.kernel.theta[:, 0] += posterior.expected - posterior.mean
    made = ClassFilter(root, p.likelihood) if p.likelihood.interacts else MatchingFilter(root, p.likelihood)
    if held is not None and held.rows:
        rows = Block.joined(held.blocks)
        rows = replace(rows, X=rows.X[:, :-1], offset=rows.X[:, -1]) if offsets else rows
        if len(followed(made, rows)) < len(rows):
            return None
    root.design = design
    return made


def matched_innovations(
    likelihood: Likelihood, outputs: int | None, y: Array, matched: Array, *, all_rows: bool = False
) -> Innovations:
    """Return the innovations of rows that a filter of single rows has predicted and learned.

    Unless `all_rows` are wanted, those of rows whose output, or a difference of two, had a std above 1 are unknown:
    odds or rates that are uncertain by a factor of e depend on the penalty more than on the rows so far.
    """
    m = outputs or 1
    f, variance = matched[:, :m], matched[:, m : m + m * m].reshape(-1, m, m)
    if outputs is None:
        f, variance = f[:, 0], variance[:, 0, 0]
    widest = variance if outputs is None else spread(variance)
    predicted = likelihood.predict(f, variance, Noise.known(1.0))
    found = Innovations.of(y, predicted, predicted.std)._replace(together=1)
    wide = (widest > _UNSURE).reshape(-1, *[1] * (y.ndim - 1))
    if all_rows or not wide.any():
        return found
    unknown = Innovations.unknown(y)
    names = ("mean", "std", "dof", "scale", "issued")
    return found._replace(**{name: np.where(wide, getattr(unknown, name), getattr(found, name)) for name in names})
