"""The rows of short batches since the last fold of a model with another likelihood, learned one by one."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable_rows
from kalprox.learning.innovations import Innovations, in_stds
from kalprox.learning.linearised import Linearised, filter_has_moved, filter_origin
from kalprox.learning.matched import ClassFilter, MatchingFilter, filter_after, followed, matched_innovations
from kalprox.learning.row_buffer import LiveRows, RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.state import State
from kalprox.learning.tracking import Tracking
from kalprox.sources import Block

_FEW, _MANY, _SHARE = 16, 1024, 4  # the fewest and the most rows that are folded together, and a share of those before
_SHORT = 64  # rows of a batch up to which they are learned faster one by one than together


class MatchedRows(LiveRows):
    """The rows of short batches since the last fold, and a filter that learned them one by one by moment matching.

    Each row is linearised at the state before it. The linearised rows are folded together, into the same information
    as if they had been folded one by one. In a warm-up the filter starts from the prior, and learns all rows that are
    held; its rows are handed over whenever there are twice as many as before, and for each check. It has the same bits
    whenever it is made, also after saving and restoring, and reading does not change the state.
    """

    filter: MatchingFilter | ClassFilter | None

    def __init__(
        self, settings: Settings, state: State, tracking: Tracking, rows: int, buffer: RowBuffer | None = None
    ) -> None:
        assert isinstance(state.core, Linearised)
        self.core = state.core
        center, held = self.core.fixed.center, self.core.proximal.held
        assert center is not None
        buffer = RowBuffer(len(center), self.core.fixed.outputs) if buffer is None else buffer
        super().__init__(settings, state, tracking, rows, buffer)
        self.has_offsets = self.core.fixed.row_offsets
        self._matched: list[Array] = []  # what the filter returned for each row
        self._issued: dict[int, Array] = {}  # by the first row of a batch, the errors of what was issued before it
        self._most = max(_FEW, min(_MANY, rows // _SHARE))
        if held is not None:
            room = max(held.next_look - held.rows, 1)
            self._most = min(room, max(held.rows, 1)) if self.core.proximal.is_fresh else room

    @cached_property
    def _origin(self) -> tuple[Array, Array] | None:
        """Where the rows that are held were linearised, if the filter must not move far from there."""
        return filter_origin(self.core)

    # ---- learning --------------------------------------------------------------------------------------

    def takes(self, block: Block) -> bool:
        """Whether the filter can learn the rows of a batch: one row, or a few of positive weight."""
        low, high = self.settings.likelihood.support
        y, weights = block.y, block.weights
        if len(y) > _SHORT or not self.buffer.fits(block.X, y) or (weights is not None and not (weights > 0).all()):
            return False
        return all(low <= value <= high for value in y.ravel().tolist()) and self._live() is not None

    def append(self, rows: Block, *, predict: bool = False) -> Sequence[Any]:
        """Learn the rows of a batch that `takes` allows; for one row, return the mean and the std if `predict`."""
        check_usable_rows(rows.X, rows.y, rows.weights)
        live = self._live()
        assert live is not None
        predicted = live.predict(rows.X, rows.offset) if predict else None
        self._learn(live, rows)
        start = self._origin
        if start is not None and filter_has_moved(start, rows, np.array(self._matched[-len(rows.y) :])):
            self._most = self.buffer.n + 1  # so that the rows of the warm-up are checked
        self.buffer.append(rows, len(rows.y))
        self._scored = None
        return () if predicted is None else (predicted.mean, predicted.std)

    def _learn(self, live: MatchingFilter | ClassFilter, rows: Block) -> None:
        """Let the filter learn the rows of a batch one by one; if one is rejected, none is learned."""
        if len(rows.y) > 1 and self.tracking.scores[0].has_intervals:  # which were issued for all of them together
            before = live.predict(rows.X, rows.offset)
            self._issued[len(self._matched)] = in_stds(rows.y - before.mean, before.std)
        found = followed(live, rows)
        if len(found) < len(rows.y):
            self.filter = None  # which has learned some of the rows
            raise ValueError(
                f"The model has no finite value or derivative at the current estimate in row(s) {len(found)} of the "
                "block, which is rejected. Remove these rows first."
            )
        self._matched += found

    # ---- the filter ------------------------------------------------------------------------------------

    def _live(self) -> MatchingFilter | ClassFilter | None:
        """Return the filter that includes the rows; None if a coefficient is undetermined."""
        if self.filter is None:
            self.filter, self._matched, self._issued = filter_after(self.core.proximal, self.core.fixed), [], {}
            if self.filter is not None:
                for batch in self.buffer.in_batches():
                    self._learn(self.filter, batch)
        return self.filter

    def following(self) -> MatchingFilter | ClassFilter | None:
        """Return the filter that includes the rows, to predict one row in O(d^2)."""
        return self._live()

    def followed(self) -> MatchingFilter | ClassFilter | None:
        """Return the filter if it is what predicts batches: if it has learned rows, or before the check of a warm-up.

        The rows held would have to be refined for each prediction otherwise.
        """
        return self._live() if self.buffer.n or self.core.proximal.is_fresh else None

    # ---- reading ---------------------------------------------------------------------------------------

    def scored(self) -> tuple[State, Innovations | None]:
        """Return the state after the rows, and their innovations if they are needed."""
        if self._scored is None:
            self._live()
            matched, found = np.array(self._matched), None
            block = self.rows
            after = self.state.learn_matched(block, matched)
            if self.settings.needs_innovations:
                likelihood, outputs = self.settings.likelihood, self.core.fixed.outputs
                found = matched_innovations(likelihood, outputs, block.y, matched, all_rows=True)
                for first, errors in self._issued.items():
                    found.issued[first : first + len(errors)] = errors
            self._scored = after, found
        return self._scored

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in super().__getstate__().items() if name != "_origin"}
        return kept | {"_matched": [], "_issued": {}}
