"""The rows of short batches since the last fold of a model with another likelihood, learned one by one."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable, check_usable_row
from kalprox.learning.innovations import Innovations, in_stds
from kalprox.learning.linearised import Linearised, filter_has_moved, filter_origin
from kalprox.learning.live_rows import LiveRows
from kalprox.learning.matching_filter import ClassFilter, MatchingFilter, filter_after, matched_innovations
from kalprox.learning.row_buffer import RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.state import State
from kalprox.learning.tracking import Tracking
from kalprox.predictive import Predictive
from kalprox.sources import Block

__all__ = ["MatchedRows"]

_FEW, _MANY, _SHARE = 16, 1024, 4  # the fewest and the most rows that are folded together, and a share of those before
_SHORT = 64  # rows of a batch up to which they are learned faster one by one than together


class MatchedRows(LiveRows):
    """The rows of short batches since the last fold, and a filter that learned them one by one by moment matching.

    Each row is linearised at the state before it. The linearised rows are folded together, into the same information
    as if they had been folded one by one. In a warm-up the filter starts from the prior, and learns all rows that are
    held; its rows are handed over whenever there are twice as many as before, and for each check. It has the same bits
    whenever it is made, also after saving and restoring, and reading does not change the state.

    Parameters
    ----------
    settings : Settings
    state : State
        The state before these rows.
    tracking : Tracking
        The score and the quantiles before these rows.
    rows : int
        The number of rows learned before.
    buffer : RowBuffer, optional
        The rows, if there are any yet.
    """

    takes_offsets = True

    def __init__(
        self, settings: Settings, state: State, tracking: Tracking, rows: int, buffer: RowBuffer | None = None
    ) -> None:
        assert isinstance(state.core, Linearised)
        self.settings, self.state, self.tracking, self.core = settings, state, tracking, state.core
        center, held = self.core.fixed.center, self.core.proximal.held
        assert center is not None
        self.buffer = RowBuffer(len(center), self.core.fixed.outputs) if buffer is None else buffer
        self.filter: MatchingFilter | ClassFilter | None = None
        self._matched: list[Array] = []  # what the filter returned for each row
        self._issued: dict[int, Array] = {}  # by the first row of a batch, the errors of what was issued before it
        self._scored: tuple[State, Innovations | None] | None = None  # after the rows
        self._before, self._watched = rows, (0, tracking)  # as many of the rows, looked at for change points
        self._most = max(_FEW, min(_MANY, rows // _SHARE))
        if held is not None:
            room = max(held.next_look - held.rows, 1)
            self._most = min(room, max(held.rows, 1)) if self.core.proximal.is_fresh else room

    @cached_property
    def _origin(self) -> Array | None:
        """Where the rows that are held were linearised, if the filter must not move far from there."""
        return filter_origin(self.core)

    # ---- learning --------------------------------------------------------------------------------------

    def takes(self, block: Block) -> bool:
        """Whether the filter can learn the rows of a batch: one row, or a few of positive weight."""
        low, high = self.settings.likelihood.support
        y, weights = block.y, block.weights
        if (block.offset is None) is self.core.fixed.row_offsets:
            return False  # `learn` of the state raises an error that says what is wrong
        if len(y) > _SHORT or not self.buffer.fits(block.X, y) or (weights is not None and not (weights > 0).all()):
            return False
        if not (low <= y.min() and y.max() <= high):
            return False
        return self.predicts_row

    def append(self, rows: Block, *, predict: bool = False) -> Sequence[Any]:
        """Learn the rows of a batch that `takes` allows; for one row, return the mean and the std if `predict`."""
        n = len(rows.y)
        single = n == 1
        if single:
            check_usable_row(rows.X[0], rows.y[0], None if rows.weights is None else float(rows.weights[0]))
        else:
            check_usable(rows.X, rows.y, rows.weights)
        live = self._live()
        assert live is not None
        predicted = _predicted(live, rows) if predict else None
        self._learn(live, rows)
        start = self._origin
        if start is not None and filter_has_moved(self.core, start, rows, np.array(self._matched[-n:])):
            self._most = self.buffer.n + 1  # so that the rows of the warm-up are checked
        if single and rows.offset is None:
            self.buffer.append_row(rows.X, rows.y, 1, weight=None if rows.weights is None else float(rows.weights[0]))
        else:
            self.buffer.append(rows, n)
        self._scored = None
        return () if predicted is None else (predicted.mean, predicted.std)

    def _learn(self, live: MatchingFilter | ClassFilter, rows: Block) -> None:
        """Let the filter learn the rows of a batch one by one; if one is rejected, none is learned."""
        n = len(rows.y)
        if n > 1 and self.tracking.scores[0].has_intervals:  # which were issued for all of them together
            before = _predicted(live, rows)
            self._issued[len(self._matched)] = in_stds(rows.y - before.mean, before.std)
        weights = [1.0] * n if rows.weights is None else rows.weights.tolist()
        offset = [0.0] * n if rows.offset is None else rows.offset.tolist()
        for i, (weight, added) in enumerate(zip(weights, offset, strict=True)):
            found = live.learn(rows.X[i], rows.y[i], weight, added)
            if found is None:
                self.filter = None  # which has learned some of the rows
                raise ValueError(
                    f"The model has no finite value or derivative at the current estimate in row(s) {i} of the block, "
                    "which is rejected. Remove these rows first."
                )
            self._matched.append(found)

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
            block, matched, found = self.buffer.block, np.array(self._matched), None
            X, y, weights, offset = map(_copied, (block.X, block.y, block.weights, block.offset))
            after = self.state.learn_matched(Block(X, y, weights, offset=offset), matched)
            if self.settings.needs_innovations:
                likelihood, outputs = self.settings.likelihood, self.core.fixed.outputs
                found = matched_innovations(likelihood, outputs, block.y, matched, all_rows=True)
                for first, errors in self._issued.items():
                    found.issued[first : first + len(errors)] = errors
            self._scored = after, found
        return self._scored

    def __getstate__(self) -> dict[str, Any]:
        """Return the rows and what was known before them: whatever is computed from these is not to be pickled."""
        kept = {name: value for name, value in vars(self).items() if name != "_origin"}
        return kept | {"filter": None, "_matched": [], "_issued": {}, "_scored": None, "_watched": (0, self.tracking)}


def _predicted(live: MatchingFilter | ClassFilter, rows: Block) -> Predictive:
    return live.predict(rows.X, **({} if rows.offset is None else {"offset": rows.offset}))


def _copied(a: Array | None) -> Array | None:
    """Return an array that does not change as the buffer is used again: the state may hold it."""
    return None if a is None else a.copy()
