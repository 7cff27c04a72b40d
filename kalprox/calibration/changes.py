"""Change points of a stream: where the past stopped applying, as the score of a model reports them."""

from typing import NamedTuple

from kalprox.base.text import count

__all__ = ["ChangePoint", "Changes"]

_SHOWN = 5  # change points that a text names


class ChangePoint(NamedTuple):
    """A change of the stream: rows before `start` no longer say what comes next.

    Attributes
    ----------
    row : int
        The number of rows learned when it was found.
    start : int
        The number of the first row, counted from 1, that most probably follows the change.
    probability : float
        The probability, at that time, that there was a change since the last one.
    time, start_time : float or None
        The times of these two rows, if rows have times.
    """

    row: int
    start: int
    probability: float
    time: float | None = None
    start_time: float | None = None


class Changes(NamedTuple):
    """The change points that were found in a stream; `str(changes)` names the last of them.

    Attributes
    ----------
    points : tuple of ChangePoint
        In the order in which they were found. Of a long stream the last ones.
    found : int
        How many were found in all.
    probability : float
        The probability that there was a change since the last one, or since the first rows, that is not reported yet.
    kind : {"coefficients", "residuals", ""}
        What was watched: a regression for each run, which finds a change of any coefficient and of the noise; or the
        residuals of an earlier estimate, which show a change of their level or spread. Empty if nothing was yet.

    Examples
    --------
    >>> changes = Changes((ChangePoint(1004, 1001, 0.998),), 1, 0.001, "coefficients")
    >>> print(changes)
    1 change point was found: from row 1,001 on (found after row 1,004).
    >>> print(Changes((), 0, 0.02, "residuals"))
    No change point was found.
    """

    points: tuple[ChangePoint, ...]
    found: int
    probability: float
    kind: str

    def __str__(self) -> str:
        if not self.found:
            return "No change point was found." if self.kind else "Too few rows were learned to look for change points."
        shown = self.points[-_SHOWN:]
        where = ", ".join(f"from row {point.start:,} on (found after row {point.row:,})" for point in shown)
        last = f", the last {len(shown):,} of them" if self.found > len(shown) else ""
        return f"{count(self.found, 'change point')} {'was' if self.found == 1 else 'were'} found{last}: {where}."
