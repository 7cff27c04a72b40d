"""The weights of rows: what they mean, how they fade as later rows come, and the times of rows."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array, asarray_like, namespace
from kalprox.base.checks import check_finite, concrete
from kalprox.base.text import worded
from kalprox.forgetting import Forgetting
from kalprox.sources.base import Block, MappedSource, Source

NEEDS_BY_TIME = "times have no effect, and need forget=ByTime(half_life); got forget={!r}."
_DAY = np.timedelta64(1, "D")


def time_numbers(times: Any, n: int) -> Array:
    """Return the times of n rows as numbers: dates are days since 1970-01-01, in UTC; one time is that of all rows.

    Raise a ValueError if they are neither numbers nor dates, or not one or n of them.

    Examples
    --------
    >>> time_numbers("1970-01-02T12:00", 2)
    array([1.5, 1.5])
    """
    values = np.asarray(times)
    if values.dtype.kind == "O" and all(isinstance(one, datetime) for one in values.ravel()):
        values = np.array([_utc(one) for one in values.ravel()], "datetime64[us]").reshape(values.shape)
    if values.dtype.kind in "UO":
        with suppress(TypeError, ValueError):  # which says so below
            values = values.astype("datetime64[us]") if values.dtype.kind == "U" else values.astype(float)
    if values.dtype.kind == "M":
        values = (values - np.datetime64(0, "D")) / _DAY
    if values.dtype.kind not in "fiu":
        raise ValueError(f"times must be numbers, or dates as in ISO 8601; got {times!r}.")
    if values.shape not in ((), (n,)):
        raise ValueError(f"times must be one time, or have shape ({n},), one per row of X; got shape {values.shape}.")
    found = np.broadcast_to(values.astype(float), n)
    check_finite("times", found)
    return found


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


class TimeGoesBack(ValueError):
    """The time of a row is before that of an earlier row.

    Attributes
    ----------
    row : int
        The number of the row.
    why : str
        The message without it.
    """

    def __init__(self, row: int, time: float, latest: float) -> None:
        self.row = row
        self.why = (
            f"times must not go backwards; it has the time {time:.10g}, after {latest:.10g}. Sort the rows by time "
            "before they are learned."
        )
        super().__init__(f"row {row}: {self.why}")
        self.args = row, time, latest

    def __str__(self) -> str:
        return f"row {self.row}: {self.why}"


class TimeJumps(ValueError):
    """The time of a row is far after that of the row before it."""


def check_jumps(times: Array, since: float, kind: Forgetting, most: float, refused: float | None) -> None:
    """Raise `TimeJumps` if a row comes more than `most` half-lives after the row before it, the first after `since`.

    A time stamp that is wrong would make bad rows of all that follow it, whose times go back. So would a pause, if no
    row was taken after it: a row is taken that is not before the one that was `refused` just before.
    """
    jumps = kind.half_lives(np.append(since, times[:-1]), times)
    if jumps.max() > most and not (len(times) == 1 and refused is not None and times[0] >= refused):
        raise TimeJumps(f"{jumps.max():,.6g} half-lives after the row before it, more than --max-jump {most:g}")


def in_order(times: Array | None, since: float | None = None, weights: Array | None = None, *, first: int = 0) -> Array:
    """Return the times of rows, of which none may be before an earlier one, or before `since`.

    Rows of weight 0 are no rows: they take the time of the row before them. Raise `TimeGoesBack` for a row that goes
    back; `first` is the number of the first row.

    Examples
    --------
    >>> in_order(np.array([1.0, 3.0, 3.0]), since=0.5)
    array([1., 3., 3.])
    """
    if times is None:
        raise ValueError(
            worded(
                "{forget=ByTime(...)|--forget time} needs the time of every row: give {times=..., one per row or one "
                "for the batch|--time COLUMN}."
            )
        )
    if weights is not None:
        times = np.where(weights > 0, times, -np.inf)
    latest = np.maximum.accumulate(times if since is None else np.maximum(times, since))
    back = times < latest if weights is None else (times < latest) & (weights > 0)
    if back.any():
        row = int(np.argmax(back))
        raise TimeGoesBack(first + row, float(times[row]), float(latest[row]))
    return latest


def check_later(time: float, since: float) -> None:
    """Raise a ValueError if a time to predict at is before that of the last row."""
    if not time >= since:
        raise ValueError(
            f"The time to predict at must not be before that of the last row, {since:.10g}; got {time:.10g}."
        )


_FORGOTTEN = 1e-100  # no block fades earlier rows further, lest what is left of them underflow


class Faded(NamedTuple):
    """The rows of a block once the whole block has come, and the share that is left of everything before it."""

    weights: Array  # (b,)
    counts: Array  # (b,), the sum of the fading factors of the rows that a row stands for
    squares: Array  # (b,), the sum of the squares of these factors
    left: Array | None  # None where nothing is forgotten


def faded(
    weights: Array, forget: Any, counts: Array | None = None, times: Array | None = None, since: float | None = None
) -> Faded:
    """Multiply the weights of a block by what forgetting leaves of them. Any split into blocks gives the same.

    By row, a row that counts n times stands for n rows one after the other, so that it is worth 1 + forget + ... =
    (1 - forget^n) / (1 - forget), and fades by `forget` for every later row. By time, it stands for n rows at its time.

    Parameters
    ----------
    weights : array of shape (b,)
    forget : float, ByRow or ByTime
        A number, in (0, 1], is what a row's weight is multiplied by with every later row.
    counts : array of shape (b,), optional
        1 for each row, and 0 for a row of weight 0, if the weights are precisions. By default the weight of a row is
        the number of rows that it stands for.
    times : array of shape (b,), optional
        The times of the rows, in order, for `ByTime`.
    since : float, optional
        The time of the last row before the block; None if there was none.

    Returns
    -------
    Faded
        A share that underflows is the smallest positive number of full precision.
    """
    if times is not None:
        counts = weights if counts is None else counts
        share = forget.left(times, times[-1])
        left = forget.left(times[0] if since is None else since, times[-1])
        return Faded(weights * share, counts * share, counts * share**2, left)
    forget = forget.per_row if isinstance(forget, Forgetting) else forget
    number = concrete(forget)
    counts = weights if counts is None else counts
    if number is not None and number == 1:
        return Faded(weights, counts, counts, None)
    rho = asarray_like(forget, weights)
    seen = counts.cumsum()
    share = rho ** (seen[-1] - seen)
    left = share * (1 - rho**counts) / (1 - rho)
    squares = share**2 * (1 - rho ** (2 * counts)) / (1 - rho**2)
    before = namespace(rho).maximum(rho ** seen[-1], np.finfo(rho.dtype).tiny)
    return Faded(left if counts is weights else weights * share, left, squares, before)


def faded_block(block: Block, forget: Any, kind: str, since: float | None = None) -> tuple[Block, Array | None]:
    """Return a block with its weights, of this `kind`, after forgetting, and what that leaves of all rows before."""
    weights, counts, squares, left = faded(block.weights, forget, counts_of(block.weights, kind), block.times, since)
    return replace(block, weights=weights, counts=counts, squares=squares), left


class Course(NamedTuple):
    """How earlier rows fade on the way through a block, for each of its rows at the moment when it is predicted.

    Attributes
    ----------
    left : array of shape (b,)
        The share that is left of what was known at the first row of the block.
    elapsed : array of shape (b,)
        The part of this share that is due to the time since the row before.
    worth : array of shape (b,)
        The weight of the row per unit of its own, in units of the first row of the block.
    rows, squares : array of shape (b,)
        The sums over the rows of the block before it of what is left of each, and of its square.
    """

    left: Array
    elapsed: Array
    worth: Array
    rows: Array
    squares: Array


def course(forget: Forgetting, counts: Array, times: Array | None = None, since: float | None = None) -> Course:
    """Return how earlier rows fade on the way through a block whose rows count so often; see `faded`."""
    if times is not None:
        left = np.maximum(forget.left(times[0], times), _FORGOTTEN)
        before = np.append(times[0] if since is None else since, times[:-1])
        sums = (np.cumsum(counts / left**power) - counts / left**power for power in (1, 2))
        rows, squares = (left**power * total for power, total in zip((1, 2), sums, strict=True))
        return Course(left, forget.left(before, times), 1 / left, rows, squares)
    rho = forget.per_row
    seen, ones = np.cumsum(counts), np.ones(len(counts))
    at = seen - counts
    if rho == 1:
        return Course(ones, ones, ones, at, at)
    seen = np.minimum(seen, np.log(_FORGOTTEN) / np.log(rho))
    at = np.minimum(at, seen)
    each = np.where(counts > 0, (1 - rho**counts) / (1 - rho) / np.where(counts > 0, counts, 1), 0)
    return Course(rho**at, ones, each / rho**seen, (1 - rho**at) / (1 - rho), (1 - rho ** (2 * at)) / (1 - rho**2))


def shares(forget: Forgetting, counts: Array, times: Array | None = None) -> Array:
    """Return what the rows of a block, which count so often, have left of their weights after the last of them."""
    if times is not None:
        return np.asarray(forget.left(times, times[-1]))
    seen = np.cumsum(counts)
    return np.asarray(forget.per_row ** (seen[-1] - seen))


WEIGHT_KINDS = ("frequency", "precision")


def check_weight_kind(kind: str) -> None:
    """Raise a ValueError if `kind` is not one of `WEIGHT_KINDS`."""
    if kind not in WEIGHT_KINDS:
        raise ValueError(
            f"weight_kind must be 'frequency' (how often each row counts) or 'precision' (1 / sigma^2 up to a common "
            f"factor); got {kind!r}."
        )


def counts_of(weights: Array | None, kind: str) -> Array | None:
    """Return how many rows each row is: 1, or 0 if its weight is 0, for precisions; None if it is the weight itself."""
    return None if weights is None or kind == "frequency" else (weights > 0).astype(weights.dtype)


def relative_precision(block: Block, kind: str, class_weights: Sequence[float] | None) -> Array | None:
    """Return what multiplies the score of each row beside the number of times that it counts; None if that is 1.

    A row that counts twice has two equal scores. A precision, or the weight of a class, makes one score larger: an
    outer product of scores has its square.

    Parameters
    ----------
    block : Block
    kind : {"frequency", "precision"}
        What the weights of the rows mean.
    class_weights : sequence of numbers, optional
        The weight of each class, by which those of its rows have been multiplied.
    """
    if block.weights is None or (kind == "frequency" and class_weights is None):
        return None
    if kind == "precision":
        own = block.weights
    else:
        own = np.asarray(class_weights)[block.y.argmax(axis=1) if block.y.ndim == 2 else block.y.astype(int)]
    return np.where(own > 0, own, 1.0)


def counted(block: Block, kind: str) -> Block:
    """Return the block with the counts of its rows, unless it has them already."""
    counts = counts_of(block.weights, kind) if block.counts is None else None
    return block if counts is None else replace(block, counts=counts)


def counted_source(source: Source, kind: str) -> MappedSource:
    """Return the source with the counts of its rows."""
    return MappedSource(source, partial(counted, kind=kind))
