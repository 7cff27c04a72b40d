"""The rows of a linear model since its last fold: a buffer of them, a filter that follows them, and what they give."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable_rows
from kalprox.learning.exact import Exact, next_cut
from kalprox.learning.innovations import Innovations, in_stds
from kalprox.learning.moment_filter import MomentFilter
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.row_buffer import LiveRows, RowBuffer
from kalprox.learning.scorer import MANY_ROWS, Scorer
from kalprox.learning.settings import Settings
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.state import State
from kalprox.learning.tracking import Tracking
from kalprox.sources import Block
from kalprox.sources.times import in_order

__all__ = ["RecentRows"]

# The buffer is folded at 8,192 rows, or fewer (but at least 1,024) if they take 8 MiB, or as soon as it holds as many
# rows (but at least 16) as were folded before. Batches of up to a quarter of it go through the buffer: folding and
# scoring rows together takes a small part of the time that they take one by one.
_BUFFER_ROWS, _BUFFER_BYTES, _FEW = (1024, 8192), 1 << 23, 16
_MANY_COLUMNS = 512
_READ_ROWS = 1024  # buffered rows that are folded at a time for reading, so that each is folded only a few times


class RecentRows(LiveRows):
    """The rows since the last fold, which are folded together.

    Reading folds them into a copy, so that it does not change the state: a stream gives the same bits whether or not it
    is read, or saved and resumed, on the way.
    """

    state: State
    filter: SquareRootFilter | MomentFilter | None

    def __init__(
        self, settings: Settings, state: State, tracking: Tracking, rows: int, buffer: RowBuffer | None = None
    ) -> None:
        assert isinstance(state.core, Exact)
        self.core, information = state.core, state.core.information
        buffer = RowBuffer(information.d, information.targets) if buffer is None else buffer
        super().__init__(settings, state, tracking, rows, buffer)
        capacity = self.capacity(information.d)
        self._most, self._longest = max(_FEW, min(capacity, rows)), capacity // 4
        self._count = self._counted(self.buffer.block) if self.buffer else 0.0  # of rows, each as often as it counts
        self._part: tuple[int, State] | None = None  # after as many of the rows, folded for reading
        self._read: State | None = None  # after the rows, folded for reading
        self._tracked: tuple[int, Quantiles] | None = None  # after as many of the rows

    @cached_property
    def scorer(self) -> Scorer | None:
        """What predicts the rows of a long stream together; None if they are not scored, or exactly as they come."""
        scored = self.settings.needs_innovations and self.core.predicts
        return self.core.current_scorer if scored else None

    @cached_property
    def exact(self) -> bool:
        """Whether each row is predicted as it comes, from all rows before it."""
        return self.settings.needs_innovations and self.scorer is None

    @property
    def _is_wide(self) -> bool:
        """Whether columns outnumber rows so far that a root of the covariance as one matrix costs more than a fold."""
        m, p = self.core.information.T.shape
        return bool(p > _MANY_COLUMNS and 4 * m <= 3 * p)

    @cached_property
    def _room(self) -> float:
        """The number of rows, each as often as it counts, after which predictions change."""
        state = self.core
        return next_cut(state) - float(state.information.rows) if self.settings.needs_innovations else math.inf

    @staticmethod
    def capacity(d: int) -> int:
        """Return the number of rows of d features at which the buffer is folded."""
        least, most = _BUFFER_ROWS
        return max(least, min(most, _BUFFER_BYTES // (8 * max(d, 1))))

    def _counted(self, rows: Block) -> float:
        """Return the number of these rows, each as often as it counts."""
        counts = self.settings.counts(rows.weights)
        return float(len(rows)) if counts is None else float(counts.sum())

    # ---- which rows are taken --------------------------------------------------------------------------

    def takes(self, block: Block) -> bool:
        """Whether the rows of a short batch can be buffered: they need no prediction, or an exact one, or are few."""
        length, weights = len(block.y), block.weights
        if weights is not None and not (weights > 0).all():
            return False
        if length == 1:
            return not self.exact or self._predicts(1, weighted=weights is not None)
        if length > self._longest or self._is_wide or not self._predicts(length, weighted=weights is not None):
            return False
        few = float(self.core.information.rows) + self._count < MANY_ROWS
        return not (few and self.crosses_cut(block))

    def _predicts(self, length: int, *, weighted: bool) -> bool:
        """Whether rows can be predicted as they must be: not at all, later together, or by an exact filter."""
        if not self.exact:
            return True
        if weighted and length > 1:
            return False
        if self.core.predicts_every_row:
            return self.filter is not None or self.buffer.n > 0 or self.core.belief.posterior.proper
        if length > 1:
            return False
        self.filter = self.filter or self._new_filter()
        return self.followed() is not None

    def crosses_cut(self, block: Block) -> bool:
        """Whether what predicts the rows of a batch changes before it or on the way.

        Among the first rows of a stream the batch is then cut there. Later it is predicted by a new estimate.
        """
        return self._room < self._count + self._counted(block)

    @property
    def are_full(self) -> bool:
        """Whether the rows are to be folded before the next one."""
        return self.buffer.n >= self._most or (self._count >= self._room and self.buffer.n > 0)

    # ---- learning --------------------------------------------------------------------------------------

    def append(self, rows: Block, *, predict: bool = False) -> Sequence[Any]:
        """Append the rows of a batch, all of positive weight.

        Returns the fields of the innovations of the rows if they are exact or `predict` is True, else an empty list.
        """
        buffer, settings, exact, length = self.buffer, self.settings, self.exact, len(rows.y)
        if not buffer.fits(rows.X, rows.y):
            self.core.information.fold(rows.X, rows.y)  # raises an error that names the problem
        check_usable_rows(rows.X, rows.y, rows.weights)
        if settings.by_time:
            rows = replace(rows, times=in_order(rows.times, buffer.time if buffer else self.core.time))
        elif rows.times is not None:
            self.state.learn(rows)  # raises an error that names the problem
        asked, predict = predict and length > 1, predict or exact  # each row was predicted from those before it
        if self.filter is None and predict:
            self.filter = self._new_filter()
        counts = None if rows.weights is None else settings.counts(rows.weights)
        moved: Sequence[Any] = ()
        if self.filter is not None:
            moved = _moved(self.filter, rows, settings, counts, predict=predict)
        if asked:
            mean, std, dof, scale, _, together = moved
            moved = [mean, std, dof, scale, in_stds(rows.y - mean, std), together]
        known = self.filter is not None or (not exact and (self.scorer is not None or length > 1))
        buffer.append(rows, length if known else 0, moved if exact else ())
        if length > 1 and not exact:
            self.filter = None  # the next predictions are those of the state, which takes rows together
        self._count += length if counts is None else float(counts.sum())
        self._read = self._scored = None
        return moved

    # ---- the filter ------------------------------------------------------------------------------------

    def _new_filter(self) -> SquareRootFilter | MomentFilter | None:
        """Return a filter that continues row by row from all rows so far; None if there is no exact one.

        It takes the buffered batches one after the other, as they came, so that it has the same bits whenever it is
        made, also after saving and restoring. There is none if rows that were not predicted by a filter came in longer
        batches: the state, which takes them together, is then the faster one.
        """
        state, buffer = self.core, self.buffer
        if buffer and not buffer.single and not buffer.predicted:
            return None
        batches = buffer.in_batches()
        if not state.belief.determines:
            state, batches = self.read().core, iter(())  # type: ignore[assignment]
        made = state.row_filter()
        if made is None:
            return None
        every = self.exact and isinstance(made, MomentFilter) and made.search is not None  # was estimated at every row
        for block in batches:
            _moved(made, block, self.settings, self.settings.counts(block.weights), predict=every)
        return made if made.keeps_digits else None

    def followed(self) -> SquareRootFilter | MomentFilter | None:
        """Return the filter that has predicted the rows; None if they were not predicted."""
        if self.filter is None and self.buffer and self.buffer.batches.any():
            self.filter = self._new_filter()
        return None if self.filter is None or not self.filter.keeps_digits else self.filter

    def following(self) -> SquareRootFilter | MomentFilter | None:
        """Return a filter that includes the rows, made now if it is worth it, to predict one row in O(d^2)."""
        live = self.filter
        if isinstance(live, SquareRootFilter) and live.keeps_digits:
            return live
        found = self.followed()
        if found is None and not self._is_wide:
            found = self.filter = self._new_filter()
        return found

    # ---- reading ---------------------------------------------------------------------------------------

    def read(self) -> State:
        """Return the state after the rows. A reading after each batch folds each row a few times at most."""
        if not self.buffer:
            return self.state
        if self.state is not self.core:
            return self.scored()[0]
        if self._read is None:
            rows, (start, state) = self.buffer.block, self._part or (0, self.state)
            while len(rows) - start >= _READ_ROWS:
                start, state = start + _READ_ROWS, state.learn(rows.part(start, start + _READ_ROWS))
                self._part = start, state
            self._read = state.learn(rows.part(start, len(rows))) if start < len(rows) else state
        return self._read

    def scored(self) -> tuple[State, Innovations | None]:
        """Return the state after the rows, and their innovations if they are needed.

        The rows of a long stream are predicted now, by its scorer, since that served for all of them.
        """
        if self._scored is None:
            state, block, found = self.state, self.buffer.block, None
            if not self.settings.needs_innovations:
                after = state.learn(block)
            else:
                after, found = state.step(block, self.buffer.innovations if self.exact else None)
            self._scored = after, found
        return self._scored

    def quantiles(self) -> Quantiles:
        """Return the quantiles after the rows; a reading after each batch tracks each row once."""
        buffer = self.buffer
        if not buffer or not self.settings.diagnose:
            return self.tracking.quantiles
        n, quantiles = self._tracked or (0, self.tracking.quantiles)
        if n < buffer.n:
            rows, scorer = buffer.block.part(n, buffer.n), self.scorer
            own = self.settings.own_variance(rows)
            issued = buffer.innovations.issued[n:] if scorer is None else scorer.issued(rows, own)
            quantiles = quantiles.after_rows(issued, buffer.batches[n:], self.settings.counts(rows.weights))
            self._tracked = buffer.n, quantiles
        return quantiles

    def copy(self) -> "RecentRows":
        """Return an independent copy. Its filter is made again when it is needed."""
        new = object.__new__(RecentRows)
        new.__dict__ |= self.__dict__
        new.buffer, new.filter = self.buffer.copy(), None
        return new

    def __getstate__(self) -> dict[str, Any]:
        kept = {
            name: value for name, value in super().__getstate__().items() if name not in ("scorer", "exact", "_room")
        }
        return kept | dict.fromkeys(("_part", "_read", "_tracked"))


def _moved(
    live: SquareRootFilter | MomentFilter, rows: Block, settings: Settings, counts: Array | None, *, predict: bool
) -> Sequence[Any]:
    """Update the filter by a few rows, and return the fields of their innovations; empty if they are not needed."""
    own, n = None if rows.weights is None else settings.own_variance(rows), len(rows.y)
    if n == 1 and rows.weights is None and rows.times is None:
        return live.follow(rows.X[0], rows.y[0] if rows.y.ndim > 1 else float(rows.y[0]), predict=predict)
    if n > 1 and isinstance(live, SquareRootFilter) and live.takes_blocks:
        return live.take(rows, own=own, counts=counts)[:6]
    found: list[Sequence[Any]] = []
    for i in range(n):
        if rows.times is not None and live.time is not None:
            live.advance(float(rows.times[i]))
        y: Any = rows.y[i] if rows.y.ndim > 1 else float(rows.y[i])
        weight = () if rows.weights is None else (float(rows.weights[i]), 1.0 if counts is None else float(counts[i]))
        found.append(live.follow(rows.X[i], y, *weight, own=1.0 if own is None else float(own[i]), predict=predict))
    if not predict:
        return ()
    return found[0] if n == 1 else [np.array(column) for column in zip(*found, strict=True)]
