"""Rows since the last fold that were learned one by one, by a filter that is updated in place."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from kalprox.learning.innovations import Innovations
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.row_buffer import RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.state import State
from kalprox.learning.tracking import Tracking, watched_on
from kalprox.sources import Block

__all__ = ["LiveRows"]


class LiveRows(ABC):
    """The single rows since the last fold, and a filter that learned them as they came.

    The filter has the same bits whenever it is made, also after saving and restoring, and reading does not change the
    state.

    Attributes
    ----------
    settings : Settings
    state : Belief
        The state before these rows.
    tracking : Tracking
        The score and the quantiles before these rows.
    buffer : RowBuffer
        The rows.
    """

    takes_offsets: ClassVar[bool] = False  # whether rows may have an offset

    settings: Settings
    state: Any
    tracking: Tracking
    buffer: RowBuffer
    _most: int  # the number of rows at which they are folded
    _scored: "tuple[Any, Innovations | None] | None"  # the state after the rows
    _before: int  # the number of rows learned before these
    _watched: tuple[int, Tracking]  # as many of the rows, looked at for change points

    def __len__(self) -> int:
        return self.buffer.n

    @abstractmethod
    def takes(self, block: Block) -> bool:
        """Whether a batch is one row that the filter can learn."""

    @abstractmethod
    def append(self, rows: Block, *, predict: bool = False) -> Sequence[Any]:
        """Learn one row that `takes` allows, and return the mean and the std of its prediction if `predict` is True."""

    @abstractmethod
    def following(self) -> Any:
        """Return the filter that includes the rows, to predict one row; None if there is none."""

    @abstractmethod
    def followed(self) -> Any:
        """Return the filter if it is what predicts batches; None if the state before the rows does."""

    @abstractmethod
    def scored(self) -> tuple[State, Innovations | None]:
        """Return the state after the rows, and their innovations if they are needed."""

    @abstractmethod
    def __getstate__(self) -> dict[str, Any]:
        """Return the rows and what was known before them: whatever is computed from these is not to be pickled."""

    def crosses_cut(self, block: Block) -> bool:
        """Whether what predicts a batch changes on the way: never, since it is one row."""
        return False

    @property
    def are_full(self) -> bool:
        """Whether the rows are to be folded."""
        return self.buffer.n >= self._most

    @property
    def predicts_row(self) -> bool:
        """Whether the next row can be predicted from all rows before it, as it is learned."""
        return self.following() is not None

    def read(self) -> State:
        """Return the state after the rows."""
        return self.scored()[0]

    def tracked(self) -> Tracking:
        """Return the score and the quantiles after the rows."""
        if not self.buffer.n or not self.settings.diagnose:
            return self.tracking
        found, rows = self.scored()[1], self.buffer.block
        assert found is not None
        counts, tracked = self.settings.counts(rows.weights), self.tracking
        if tracked.scores[0].has_intervals:
            quantiles = tracked.quantiles.after_rows(found.issued, self.buffer.batches, counts)
            tracked = replace(tracked, quantiles=quantiles)
        self._watched = watched_on(self._watched, rows, self.state.belief, self._before)
        return replace(tracked.scored(self.settings, rows, found, counts), detector=self._watched[1].detector)

    def quantiles(self) -> Quantiles:
        """Return the quantiles after the rows."""
        return self.tracked().quantiles

    def copy(self) -> "LiveRows":
        """Return an independent copy. Its filter is made again when it is needed."""
        new = object.__new__(type(self))
        new.__dict__ |= self.__getstate__()
        new.buffer = self.buffer.copy()
        return new
