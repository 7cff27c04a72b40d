"""Passes over rows of which an interrupted run has made some: their results are returned again, and read no rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kalprox.sources.base import Block, Folded
from kalprox.sources.files import check_rows

__all__ = ["Passes"]

T = TypeVar("T")


class Passes(ABC):
    """A source that counts its passes, and replays those that an earlier run completed.

    Refinement depends on the results of its passes alone. If it is run again, and the results of the completed passes
    are replayed, it reaches the same point, bit for bit.

    Parameters
    ----------
    done : sequence of Folded
        The results of the completed passes. The first passes return them and read no rows.
    keep : callable, optional
        Called as keep(number, folded) after each pass that read a good row, with the result that `done` takes.

    Attributes
    ----------
    number : int
        The number of passes made or replayed.
    """

    def __init__(
        self, done: Sequence[Folded[Any]] = (), keep: Callable[[int, Folded[Any]], None] | None = None
    ) -> None:
        self.number, self._done, self._keep = 0, list(done), keep
        self._rows = self._done[0].counts.read if self._done else None  # of a pass

    @abstractmethod
    def read(self, part: Callable[[Block], T], number: int) -> Folded[T]:
        """Make one pass over all rows, that of this number."""

    def fold(self, part: Callable[[Block], T]) -> Folded[T]:
        """Make one pass, or replay a completed one; see `kalprox.sources.Source`."""
        number, self.number = self.number, self.number + 1
        if number < len(self._done):
            return self._done[number]
        folded = self.read(part, number)
        self._rows = folded.counts.read if self._rows is None else self._rows
        check_rows(self._rows, folded.counts.read)
        if self._keep is not None and folded.total is not None:
            self._keep(number, folded)
        return folded
