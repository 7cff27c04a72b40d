"""The times of rows: as numbers, and in order."""

from datetime import UTC, datetime
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_finite
from kalprox.base.text import worded
from kalprox.forgetting import Forgetting

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
        try:
            values = values.astype("datetime64[us]") if values.dtype.kind == "U" else values.astype(float)
        except (TypeError, ValueError):
            raise ValueError(f"times must be numbers, or dates as in ISO 8601; got {times!r}.") from None
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
