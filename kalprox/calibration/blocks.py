"""The contribution of a block of rows to the sums of a `Calibration`."""

import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, certainly
from kalprox.base.checks import check_finite, check_positive, concrete
from kalprox.calibration.sequence import Sequence, prolonged
from kalprox.calibration.verdict import BINS, LEVELS
from kalprox.kernel.scores import ROW_VALUES, add_scores
from kalprox.predictive import is_discrete, normal_scores

__all__ = ["Given", "Rows", "added_by_kernel", "block_sums", "uniforms"]


class Given(NamedTuple):
    """What cannot be computed from a row's mean and std: its log probability, its squared error, and its score."""

    log_prob: Array
    squared_error: Array
    scores: Array | None = None  # None if the family computes them from the mean and the std

    def of_target(self, j: int) -> "Given":
        """Return what was given of one target, where the arrays have a column for each."""
        return Given(*(None if a is None else (a if a.ndim == 1 else a[:, j]) for a in self))


class Rows(NamedTuple):
    """The rows of a block as they were predicted, and what came; see `Calibration.update`."""

    mean: Array
    std: Array
    y: Array
    dof: Any
    weights: Any = None  # an array, or None for rows of weight 1
    together: Array | None = None
    given: Given | None = None

    def checked(self, xp: ModuleType) -> "Rows":
        """Return the rows in the dtype of y; raise a ValueError if they cannot be rows."""
        y = np.asarray(self.y, float) if xp is np else xp.asarray(self.y) * 1.0
        if y.ndim > 1:
            raise ValueError(f"y must be a number or a vector of shape (b,); got shape {y.shape}.")
        y = xp.atleast_1d(y)
        mean, std, dof = (_like(xp, name, getattr(self, name), y) for name in ("mean", "std", "dof"))
        weights, counted, claims = self.weights, y, std
        if weights is not None:
            weights = _like(xp, "weights", weights, y)
            check_positive("weights", weights, strict=False)
            counted, claims = (xp.where(weights > 0, a, 0) for a in (y, std))
        check_finite("y", counted)
        negative = concrete(claims < 0)
        if negative is not None and negative.any():
            raise ValueError(f"std must be >= 0; got a negative one in {negative.sum()} row(s). Infinity says unknown.")
        return Rows(mean, std, y, dof, weights, self.together, self.given)


def _like(xp: ModuleType, name: str, value: Any, y: Array) -> Array:
    """`value` in the dtype of y: a number, or an array of y's shape."""
    value = xp.asarray(value, y.dtype)
    if value.ndim and value.shape != y.shape:
        raise ValueError(f"{name} must be a number or have y's shape, {y.shape}; got shape {value.shape}.")
    return value


def block_sums(
    xp: ModuleType, predictive: Any, before: Sequence, rows: Rows
) -> tuple[dict[str, Array], Sequence, Rows, Array]:
    """Return a block's contribution to each sum of `Calibration`, the sequence continued by it, its rows and scores.

    `predictive` is the kind of distribution that the means, the scales and the degrees of freedom are those of. Rows
    that are not judged are returned with weight 0, and with harmless numbers in place of theirs.
    """
    mean, std, y, dof, weights, together, given = rows
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
    if given is None or given.scores is None:
        found = predictive.of_moments(mean, std, dof)
        if is_discrete(found):
            number = xp.arange(len(y)) if complete else xp.cumsum(judged) - 1
            number = xp.asarray(before.segments)[:, 0, 0].sum() + number.astype(y.dtype)
            u, log_density = found.scores(y, uniforms(xp, number, mean + 0 * y))
        else:
            u, log_density = normal_scores(found, y)
        u, log_density = (a if complete else xp.where(judged, a, 0) for a in (u, log_density))
    else:
        u, log_density = given.scores, given.log_prob
    h = xp.minimum(xp.maximum(u, -_LARGEST), _LARGEST)
    count = w.sum()
    pairs = xp.maximum((count if together is None else together) - 1, 0) / dof
    one_each, pairs = (a if a.ndim else xp.full(y.shape, a) for a in (mean, pairs))

    def total(a: Array, b: Array | None = None) -> Array:
        """The weighted sum of a, or of a b."""
        if xp is not np:  # JAX may multiply matrices in lower precision
            return (a * w if b is None else a * b * w).sum()
        return a @ w if b is None else a @ (b if weights is None else b * w)

    below = _weight_below(xp, u, weights, count)
    h2, vector = h * h, np.array if xp is np else xp.stack
    sums = {
        "rows": count,
        "undetermined": undetermined,
        "covered": below[BINS + len(LEVELS) : -1] - below[BINS : BINS + len(LEVELS)],
        "squares": total(u, u),
        "pit": xp.diff(xp.concatenate([below[:BINS], below[-1:]])),
        "log_score": total(log_density if given is None else given.log_prob),
        "errors": total(e),
        "squared_errors": total(e, e) if given is None else total(given.squared_error),
        "shared": total(pairs),
        "powers": vector([count, total(h), total(h, h), total(h2, h), total(h2, h2)]),
    }
    sequence = prolonged(xp, before, u, one_each, pairs, None if complete else judged)
    return sums, sequence, rows._replace(mean=mean, std=std, y=y, weights=w), u


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


class Added(NamedTuple):
    """What else is read from a block of rows that the kernel added: 0 for those that are not judged."""

    mean: Array
    weights: Array
    scores: Array


def added_by_kernel(sums: Array, rows: Rows) -> Added | None:
    """Add rows of NumPy to the sums of a `Calibration`, one vector, in place, as `block_sums` does.

    Return None, with nothing added, if these can be no rows.
    """
    mean, std, y, dof, weights, together, _ = rows
    y = np.asarray(y, float)
    block = np.empty((ROW_VALUES, y.size))
    weights = 1.0 if weights is None else weights
    together = math.nan if together is None else together
    for i, value in enumerate((mean, std, y, dof, weights, together)):
        if type(value) is not float and np.asarray(value).shape not in ((), (y.size,)):
            return None
        block[i] = value
    if not add_scores(sums, block, _KERNEL_ENDS):
        return None
    return Added(block[0], block[4], block[6])


_LARGEST = 30.0  # the bound of the scores whose powers are summed
_REACH = special.ndtri((1 + np.array(LEVELS)) / 2)
# The ends of the bins of the PIT, and of the central intervals, whose upper ends belong to them.
_ENDS = np.concatenate([special.ndtri(np.arange(1, BINS) / BINS), -_REACH, np.nextafter(_REACH, np.inf)])
_KERNEL_ENDS = np.concatenate([_ENDS[: BINS - 1], _REACH])


_WORD = 32
_DROPPED = np.uint32(7)  # bits of a prediction in single precision, which leaves it 16 after the point


def uniforms(xp: ModuleType, numbers: Array, mean: Array) -> Array:
    """Return a number strictly between 0 and 1 for each row.

    The scores of classes and counts are randomised by it. A generator with a state would give other scores for other
    blocks, or after saving; a seed alone would give the same numbers to the streams of two machines, whose scores would
    not be independent when they are merged. So each number is a hash of the number of a row in its stream and of its
    prediction. Of the prediction it takes about five digits: the last ones depend on the processor, and the scores
    should not.

    The 32-bit words of the number of the row and one of its prediction, rounded, go through the finaliser of
    MurmurHash3, which changes every bit of the result with probability 1/2 if one bit of the word changes.

    Parameters
    ----------
    xp : module
        numpy or jax.numpy.
    numbers : array of shape (b,)
        Whole numbers: those of the rows in their stream.
    mean : array of shape (b,)
        What was predicted.

    Returns
    -------
    array of shape (b,)

    Examples
    --------
    >>> v = uniforms(np, np.arange(1000.0), np.full(1000, 0.3))
    >>> bool(v.min() > 0), bool(v.max() < 1), round(float(v.mean()), 1)
    (True, True, 0.5)
    """
    with np.errstate(over="ignore"):
        single = (mean + 0.0).astype(np.float32)  # a sum with 0 turns -0 into 0, which is the same prediction
    if xp is np:
        whole = numbers.astype(np.uint64)
        words = [(whole & 0xFFFFFFFF).astype(np.uint32), (whole >> _WORD).astype(np.uint32)]
        predicted = single.view(np.uint32)
    else:
        from jax import lax

        high = xp.floor(numbers / 2.0**_WORD)
        words = [(numbers - high * 2.0**_WORD).astype(np.uint32), high.astype(np.uint32)]
        predicted = lax.bitcast_convert_type(single, np.uint32)
    mixed = xp.full(len(mean), np.uint32(0x9E3779B9))
    for word in (*words, predicted >> _DROPPED):
        mixed = _mixed(mixed ^ word)
    bits = min(_WORD, np.finfo(mean.dtype).nmant + 1)
    return ((mixed >> np.uint32(_WORD - bits)).astype(mean.dtype) + 0.5) * mean.dtype.type(2.0**-bits)


def _mixed(word: Array) -> Array:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
    return word ^ (word >> np.uint32(16))
