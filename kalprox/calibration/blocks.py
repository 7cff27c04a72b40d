"""The contribution of a block of rows to the sums of a `Calibration`."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, certainly, namespace
from kalprox.calibration.sequence import Sequence, prolonged
from kalprox.calibration.uniforms import uniforms
from kalprox.calibration.verdict import BINS, LEVELS
from kalprox.predictive import FromMoments, is_discrete, normal_scores

__all__ = ["Given", "Judged", "block_sums"]


class Given(NamedTuple):
    """What cannot be computed from a row's mean and std: its log probability, its squared error, and its score."""

    log_prob: Array
    squared_error: Array
    scores: Array | None = None  # None if the family computes them from the mean and the std

    def of_target(self, j: int) -> "Given":
        """Return what was given of one target, where the arrays have a column for each."""
        return Given(*(None if a is None else (a if a.ndim == 1 else a[:, j]) for a in self))


class Judged(NamedTuple):
    """The rows of a block, those that are not judged with weight 0 and replaced by harmless ones."""

    mean: Array
    std: Array
    y: Array
    weights: Array
    scores: Array


def block_sums(
    xp: ModuleType,
    predictive: Any,
    before: Sequence,
    mean: Array,
    std: Array,
    y: Array,
    dof: Array,
    weights: Array | None,
    together: Array | None,
    given: Given | None = None,
) -> tuple[dict[str, Array], Sequence, Judged]:
    """Return a block's contribution to each sum of `Calibration`, the sequence continued by the block, and its rows.

    `predictive` is the kind of distribution that the means, the scales and the degrees of freedom are those of.
    """
    judged = xp.isfinite(mean) & xp.isfinite(std) & xp.isfinite(y) & (dof > 0)
    judged = judged if weights is None else judged & (weights > 0)
    judged = judged & predictive.possible(y) if hasattr(predictive, "possible") else judged
    complete = certainly(judged)
    undetermined, w = xp.zeros((), y.dtype), xp.ones_like(y) if weights is None else xp.broadcast_to(weights, y.shape)
    if not complete:  # rows that are not judged may hold anything: they are replaced by harmless numbers with weight 0
        undetermined = xp.where(judged, 0, w).sum()
        w, y, mean, std = (xp.where(judged, a, b) for a, b in ((w, 0), (y, 1), (mean, 1), (std, 1)))
        dof = xp.where(dof > 0, dof, xp.inf)
        weights = w
        given = None if given is None else Given(*(None if a is None else xp.where(judged, a, 0) for a in given))
    e = y - mean

    def numbers() -> Array:
        seen = xp.asarray(before.segments)[:, 0, 0].sum()
        return seen + (xp.arange(len(y)) if complete else xp.cumsum(judged) - 1).astype(y.dtype)

    if given is None or given.scores is None:
        u, log_density = _scores(predictive.of_moments(mean, std, dof), mean, y, numbers)
        u, log_density = (a if complete else xp.where(judged, a, 0) for a in (u, log_density))
    else:
        u, log_density = given.scores, given.log_prob
    h = xp.minimum(xp.maximum(u, -_LARGEST), _LARGEST)
    rows = w.sum()
    pairs = xp.maximum((rows if together is None else together) - 1, 0) / dof
    one_each, pairs = (a if a.ndim else xp.full(y.shape, a) for a in (mean, pairs))

    def total(a: Array, b: Array | None = None) -> Array:
        """The weighted sum of a, or of a b."""
        if xp is not np:  # JAX may multiply matrices in lower precision
            return (a * w if b is None else a * b * w).sum()
        return a @ w if b is None else a @ (b if weights is None else b * w)

    below = _weight_below(xp, u, weights, rows)
    h2, vector = h * h, np.array if xp is np else xp.stack
    sums = {
        "rows": rows,
        "undetermined": undetermined,
        "covered": below[BINS + len(LEVELS) : -1] - below[BINS : BINS + len(LEVELS)],
        "squares": total(u, u),
        "pit": xp.diff(xp.concatenate([below[:BINS], below[-1:]])),
        "log_score": total(log_density if given is None else given.log_prob),
        "errors": total(e),
        "squared_errors": total(e, e) if given is None else total(given.squared_error),
        "shared": total(pairs),
        "powers": vector([rows, total(h), total(h, h), total(h2, h), total(h2, h2)]),
    }
    sequence = prolonged(xp, before, u, one_each, pairs, None if complete else judged)
    return sums, sequence, Judged(mean, std, y, w, u)


def _weight_below(xp: ModuleType, u: Array, weights: Array | None, rows: Array) -> Array:
    """The weight of the scores below each of `_ENDS`, after 0 and before all of it. `weights` are 1 if None."""
    if xp is not np:
        w = xp.ones_like(u) if weights is None else weights
        inner = xp.where(u[:, None] < xp.asarray(_ENDS, u.dtype)[None], w[:, None], 0).sum(axis=0)
        return xp.concatenate([xp.zeros_like(inner[:1]), inner, rows[None]])
    if weights is None:
        inner = np.searchsorted(np.sort(u), _ENDS).astype(float)
    else:
        order = np.argsort(u)
        sums = np.concatenate([[0.0], np.cumsum(weights[order])])
        inner = sums[np.searchsorted(u[order], _ENDS)]
    return np.concatenate([[0.0], inner, [rows]])


def _scores(predicted: FromMoments, mean: Array, y: Array, numbers: Callable[[], Array]) -> tuple[Array, Array]:
    """Return the normal scores and the log densities of observations; those of discrete ones are randomised."""
    if not is_discrete(predicted):
        return normal_scores(predicted, y)
    found: Any = predicted
    scores: tuple[Array, Array] = found.scores(y, uniforms(namespace(mean, y), numbers(), mean + 0 * y))
    return scores


_LARGEST = 30.0  # the bound of the scores whose powers are summed
_REACH = special.ndtri((1 + np.array(LEVELS)) / 2)
# The ends of the bins of the PIT, and of the central intervals, whose upper ends belong to them.
_ENDS = np.concatenate([special.ndtri(np.arange(1, BINS) / BINS), -_REACH, np.nextafter(_REACH, np.inf)])
