"""The contribution of a block of rows to the sums of a `Calibration`."""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import numpy as np
from scipy import special

from kalprox._arrays import Array, certainly, namespace
from kalprox.calibration.sequence import Sequence, prolonged
from kalprox.calibration.uniforms import uniforms
from kalprox.calibration.verdict import BINS, LEVELS
from kalprox.predictive import Classes, Counts, standard_score

__all__ = ["CLASSES", "COUNTS", "NUMBERS", "Family", "Given", "Judged", "block_sums"]


class Family(NamedTuple):
    """A family of predictive distributions, of which each row has one.

    Attributes
    ----------
    scores : callable
        (mean, std, y, dof, numbers) -> the normal scores, the log densities or log probabilities, and the log of the
        std if that is still to be subtracted from the log densities. `numbers` returns those of the rows in the stream.
    possible : callable or None
        y -> whether it is one of the observations that the family is about; None if every number is.
    harmless : tuple of float
        The y, mean and std put in place of those of rows that are not judged.
    """

    scores: Callable[..., tuple[Array, Array, Array | None]]
    possible: Callable[[Array], Array] | None
    harmless: tuple[float, float, float]


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
    family: Family,
    before: Sequence,
    mean: Array,
    std: Array,
    y: Array,
    dof: Array,
    weights: Array | None,
    together: Array | None,
    given: Given | None = None,
) -> tuple[dict[str, Array], Sequence, Judged]:
    """Return a block's contribution to each sum of `Calibration`, the sequence continued by the block, and its rows."""
    judged = xp.isfinite(mean) & xp.isfinite(std) & xp.isfinite(y) & (dof > 0)
    judged = judged if weights is None else judged & (weights > 0)
    judged = judged if family.possible is None else judged & family.possible(y)
    complete = certainly(judged)
    undetermined, w = xp.zeros((), y.dtype), xp.ones_like(y) if weights is None else xp.broadcast_to(weights, y.shape)
    if not complete:  # rows that are not judged may hold anything: they are replaced by harmless numbers with weight 0
        undetermined = xp.where(judged, 0, w).sum()
        replaced = zip((w, y, mean, std), (0, *family.harmless), strict=True)
        w, y, mean, std = (xp.where(judged, a, b) for a, b in replaced)
        dof = xp.where(dof > 0, dof, xp.inf)
        weights = w
        given = None if given is None else Given(*(None if a is None else xp.where(judged, a, 0) for a in given))
    e = y - mean

    def numbers() -> Array:
        seen = xp.asarray(before.segments)[:, 0, 0].sum()
        return seen + (xp.arange(len(y)) if complete else xp.cumsum(judged) - 1).astype(y.dtype)

    if given is None or given.scores is None:
        u, log_density, log_std = family.scores(mean, std, y, dof, numbers)
    else:
        u, log_density, log_std = given.scores, given.log_prob, None
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
    log_score = total(log_density if given is None else given.log_prob)
    if log_std is not None and given is None:
        log_score = log_score - (total(log_std) if log_std.ndim else rows * log_std)
    sums = {
        "rows": rows,
        "undetermined": undetermined,
        "covered": below[BINS + len(LEVELS) : -1] - below[BINS : BINS + len(LEVELS)],
        "squares": total(u, u),
        "pit": xp.diff(xp.concatenate([below[:BINS], below[-1:]])),
        "log_score": log_score,
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


def _of_numbers(
    mean: Array, std: Array, y: Array, dof: Array, numbers: Callable[[], Array]
) -> tuple[Array, Array, Array]:
    xp = namespace(mean, std, y, dof)
    std = xp.maximum(std, xp.finfo(y.dtype).tiny)
    limit = xp.finfo(y.dtype).max ** 0.25  # z^4 stays finite, so that no row can turn a sum into NaN
    z = xp.minimum(xp.maximum((y - mean) / std, -limit), limit)
    return (*standard_score(z, dof), xp.log(std))


def _of_counts(
    mean: Array, std: Array, y: Array, dof: Array, numbers: Callable[[], Array]
) -> tuple[Array, Array, None]:
    v = uniforms(namespace(mean, y), numbers(), mean if mean.ndim else mean + 0 * y)
    return (*Counts(mean, std).scores(y, v), None)


def _of_classes(
    mean: Array, std: Array, y: Array, dof: Array, numbers: Callable[[], Array]
) -> tuple[Array, Array, None]:
    v = uniforms(namespace(mean, y), numbers(), mean if mean.ndim else mean + 0 * y)
    return (*Classes(mean).scores(y, v), None)


NUMBERS = Family(_of_numbers, None, (0.0, 0.0, 1.0))
COUNTS = Family(_of_counts, lambda y: (y >= 0) & (y == namespace(y).floor(y)), (0.0, 1.0, 1.0))
CLASSES = Family(_of_classes, lambda y: (y == 0) | (y == 1), (0.0, 0.5, 0.5))

_LARGEST = 30.0  # the bound of the scores whose powers are summed
_REACH = special.ndtri((1 + np.array(LEVELS)) / 2)
# The ends of the bins of the PIT, and of the central intervals, whose upper ends belong to them.
_ENDS = np.concatenate([special.ndtri(np.arange(1, BINS) / BINS), -_REACH, np.nextafter(_REACH, np.inf)])
