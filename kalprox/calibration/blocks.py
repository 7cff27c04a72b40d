"""The contribution of a block of rows to the sums of a `Calibration`."""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array
from kalprox.base.checks import check_finite, check_positive
from kalprox.calibration.sequence import prolong
from kalprox.calibration.verdict import BINS, LEVELS
from kalprox.kernel.scores import ROW_VALUES, add_scores
from kalprox.predictive import is_discrete, normal_scores

__all__ = ["Given", "Judged", "Rows", "added_by_kernel", "added_rows", "uniforms"]


class Given(NamedTuple):
    """What cannot be computed from a row's mean and std: its log probability, its squared error, and its score."""

    log_prob: Array
    squared_error: Array
    scores: Array | None = None  # None if the family computes them from the mean and the std

    def of_target(self, j: int) -> "Given":
        """Return what was given of one target, where the arrays have a column for each."""
        return Given(*(None if a is None else (a if a.ndim == 1 else a[:, j]) for a in self))

    def part(self, which: Array) -> "Given":
        """Return what was given of some rows, by a mask."""
        return Given(*(None if a is None else a[which] for a in self))


class Rows(NamedTuple):
    """The rows of a block as they were predicted, and what came; see `Calibration.update`."""

    mean: Array
    std: Array
    y: Array
    dof: Any
    weights: Any = None  # an array, or None for rows of weight 1
    together: Any = None
    given: Given | None = None

    def checked(self) -> "Rows":
        """Return the rows as arrays of float64 of one shape; raise a ValueError if they cannot be rows."""
        y = np.asarray(self.y, float)
        if y.ndim > 1:
            raise ValueError(f"y must be a number or a vector of shape (b,); got shape {y.shape}.")
        y = np.atleast_1d(y)
        values = {"mean": self.mean, "std": self.std, "dof": self.dof}
        values["weights"] = 1.0 if self.weights is None else self.weights
        for name, value in values.items():
            value = np.asarray(value, float)
            if value.ndim and value.shape != y.shape:
                raise ValueError(f"{name} must be a number or have y's shape, {y.shape}; got shape {value.shape}.")
            values[name] = np.broadcast_to(value, y.shape)
        weights = values["weights"]
        check_positive("weights", weights, strict=False)
        check_finite("y", np.where(weights > 0, y, 0))
        negative = (values["std"] < 0) & (weights > 0)
        if negative.any():
            raise ValueError(f"std must be >= 0; got a negative one in {negative.sum()} row(s). Infinity says unknown.")
        together = None if self.together is None else np.broadcast_to(self.together, y.shape)
        return self._replace(y=y, together=together, **values)

    def part(self, which: Array) -> "Rows":
        """Return some of the rows, by a mask."""
        arrays = (None if a is None else a[which] for a in self[:6])
        return Rows(*arrays, None if self.given is None else self.given.part(which))  # type: ignore[call-arg]


class Judged(NamedTuple):
    """What else is read from a block of rows that was added: weights and scores are 0 for those that are not judged."""

    mean: Array
    scores: Array
    weights: Array


def added_rows(sums: Any, predictive: Any, rows: Rows) -> tuple[Rows, Judged]:
    """Add rows to the sums of a `Calibration`, in place; return those that are judged, and what was found of all.

    Parameters
    ----------
    sums : structured number of NumPy
        The vector of sums, by name.
    predictive : type
        The kind of distribution that the means, the scales and the degrees of freedom are those of.
    rows : Rows
        Checked ones.
    """
    mean, std, y, dof, weights, _, _ = rows
    judged = np.isfinite(mean) & np.isfinite(std) & np.isfinite(y) & (dof > 0) & (weights > 0)
    judged = judged & predictive.possible(y) if hasattr(predictive, "possible") else judged
    sums["undetermined"] += weights[~judged].sum()
    found = Judged(mean, np.zeros(len(y)), np.where(judged, weights, 0.0))
    rows = rows if judged.all() else rows.part(judged)
    mean, std, y, dof, w, together, given = rows
    e, count = y - mean, w.sum()
    u, log_prob = _scores(predictive, sums["segments"][:, 0, 0].sum(), rows)
    found.scores[judged] = u
    h = np.clip(u, -_LARGEST, _LARGEST)
    pairs = np.maximum((count if together is None else together) - 1, 0) / dof
    below = _weight_below(u, w)
    sums["rows"] += count
    sums["covered"] += below[BINS + len(LEVELS) : -1] - below[BINS : BINS + len(LEVELS)]
    sums["squares"] += u @ (u * w)
    sums["pit"] += np.diff(np.append(below[:BINS], below[-1]))
    sums["log_score"] += log_prob @ w
    sums["errors"] += e @ w
    sums["squared_errors"] += (e * e if given is None else given.squared_error) @ w
    sums["shared"] += pairs @ w
    sums["powers"] += np.vander(h, 5, increasing=True).T @ w
    prolong(sums, u, mean, pairs)
    return rows, found


def _scores(predictive: Any, before: float, rows: Rows) -> tuple[Array, Array]:
    """Return the normal scores of rows that follow so many others, and their log probabilities."""
    mean, std, y, dof, _, _, given = rows
    if given is not None and given.scores is not None:
        return given.scores, given.log_prob
    found = predictive.of_moments(mean, std, dof)
    if is_discrete(found):
        scores, log_prob = found.scores(y, uniforms(before + np.arange(len(y)), mean))
    else:
        scores, log_prob = normal_scores(found, y)
    return scores, log_prob if given is None else given.log_prob


def _weight_below(u: Array, weights: Array) -> Array:
    """The weight of the scores below each of `_ENDS`, after 0 and before all of it."""
    order = np.argsort(u)
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    return np.concatenate([[0.0], sums[np.searchsorted(u[order], _ENDS)], sums[-1:]])


def added_by_kernel(sums: Array, rows: Rows) -> Judged | None:
    """Add rows to the sums of a `Calibration`, one vector, in place, as `added_rows` does.

    Return None, with nothing added, if these can be no rows, or if nothing is compiled.
    """
    y = np.asarray(rows.y, float)
    block = np.empty((ROW_VALUES, y.size))
    weights = 1.0 if rows.weights is None else rows.weights
    together = math.nan if rows.together is None else rows.together
    for i, value in enumerate((rows.mean, rows.std, y, rows.dof, weights, together)):
        if type(value) is not float and np.shape(value) not in ((), (y.size,)):
            return None
        block[i] = value
    return Judged(block[0], block[6], block[4]) if add_scores(sums, block, _KERNEL_ENDS) else None


_LARGEST = 30.0  # the bound of the scores whose powers are summed
_REACH = special.ndtri((1 + np.array(LEVELS)) / 2)
# The ends of the bins of the PIT, and of the central intervals, whose upper ends belong to them.
_ENDS = np.concatenate([special.ndtri(np.arange(1, BINS) / BINS), -_REACH, np.nextafter(_REACH, np.inf)])
_KERNEL_ENDS = np.concatenate([_ENDS[: BINS - 1], _REACH])


_WORD = 32
_DROPPED = np.uint32(7)  # bits of a prediction in single precision, which leaves it 16 after the point


def uniforms(numbers: Array, mean: Array) -> Array:
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
    numbers : array of shape (b,)
        Whole numbers: those of the rows in their stream.
    mean : array of shape (b,)
        What was predicted.

    Returns
    -------
    array of shape (b,)

    Examples
    --------
    >>> v = uniforms(np.arange(1000.0), np.full(1000, 0.3))
    >>> bool(v.min() > 0), bool(v.max() < 1), round(float(v.mean()), 1)
    (True, True, 0.5)
    """
    with np.errstate(over="ignore"):
        single = (mean + 0.0).astype(np.float32)  # a sum with 0 turns -0 into 0, which is the same prediction
    whole = numbers.astype(np.uint64)
    mixed = np.full(len(mean), np.uint32(0x9E3779B9))
    for word in (whole & 0xFFFFFFFF, whole >> _WORD, single.view(np.uint32) >> _DROPPED):
        mixed = mixed ^ word.astype(np.uint32)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
        mixed = mixed ^ (mixed >> np.uint32(16))
    return (mixed + 0.5) * 2.0**-_WORD
