"""The rows of a linear model since its last fold: a buffer of them, a filter that follows them, and what they give."""

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable_rows
from kalprox.kernel.library import kernel
from kalprox.learning.exact import Exact, next_cut
from kalprox.learning.innovations import Innovations
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.row_buffer import LiveRows, Made, RowBuffer
from kalprox.learning.scorer import MANY_ROWS, Scorer
from kalprox.learning.settings import Settings
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.state import State
from kalprox.learning.tracking import Tracking
from kalprox.sources import Block
from kalprox.sources.times import in_order

__all__ = ["RecentRows"]

# Rows are folded when there are 2,048 of them, or as many (but at least 16) as were folded before. Batches of up to
# 2,048 rows, or fewer (but at least 256) if they take 2 MiB, wait for later ones: folding and scoring rows together
# takes a small part of the time that they take one by one. Reading folds all that wait.
_FEW, _MANY = 16, 2048
_LONGEST, _LONGEST_BYTES = (256, 2048), 1 << 21
_MANY_COLUMNS = 512


class RecentRows(LiveRows):
    """The rows since the last fold, which are folded together.

    Reading folds them into a copy, so that it does not change the state: a stream gives the same bits whether or not it
    is read, or saved and resumed, on the way.
    """

    state: State
    filter: SquareRootFilter | None

    def __init__(
        self, settings: Settings, state: State, tracking: Tracking, rows: int, buffer: RowBuffer | None = None
    ) -> None:
        assert isinstance(state.core, Exact)
        self.core, information = state.core, state.core.information
        buffer = RowBuffer(information.d, information.targets) if buffer is None else buffer
        super().__init__(settings, state, tracking, rows, buffer)
        least, most = _LONGEST
        self._most = max(_FEW, min(_MANY, rows))
        self._longest = max(least, min(most, _LONGEST_BYTES // (8 * max(information.d, 1))))
        self._has_kernel = kernel() is not None
        self._precise = settings.weight_kind == "precision"
        self._by_block = self.core.predicts_every_row  # whether the filter, if rows are exact, takes blocks at once
        self._count = self._counted(self.buffer.block) if self.buffer else 0.0  # of rows, each as often as it counts
        self._base: tuple[int, Exact] = 0, self.core  # after as many of the rows: what the filter is made from
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

    @cached_property
    def _is_wide(self) -> bool:
        """Whether columns outnumber rows so far that a root of the covariance as one matrix costs more than a fold."""
        m, p = self.core.information.T.shape
        return bool(p > _MANY_COLUMNS and 4 * m <= 3 * p)

    @cached_property
    def _room(self) -> float:
        """The number of rows, each as often as it counts, after which predictions change."""
        state = self.core
        return next_cut(state) - float(state.information.rows) if self.settings.needs_innovations else math.inf

    def _counted(self, rows: Block) -> float:
        """Return the number of these rows, each as often as it counts."""
        counts = self.settings.counts(rows.weights)
        return float(len(rows.y)) if counts is None else float(counts.sum())

    # ---- which rows are taken --------------------------------------------------------------------------

    def takes(self, block: Block) -> bool:
        """Whether the rows of a short batch can be buffered: they need no prediction, or an exact one, or are few."""
        length, weights = len(block.y), block.weights
        if (block.times is not None) is not self.settings.by_time or not self.buffer.fits(block.X, block.y):
            return False
        if weights is not None and not (weights > 0).all():
            return False
        if length > 1:
            filtered = weights is None and self._by_block
            if length > self._longest or self._is_wide or (self.exact and not filtered):
                return False
            if float(self.core.information.rows) + self._count < MANY_ROWS and self.crosses_cut(block):
                return False
        if not self.exact:
            return True
        if self._by_block:
            return self.buffer.n > 0 or self.filter is not None or self.core.belief.posterior.proper
        self.filter = self.filter or self._new_filter()
        return self.filter is not None and self.filter.keeps_digits

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

    def append(self, rows: Block, *, predict: bool = False) -> Made | None:
        """Append the rows of a batch, all of positive weight; for what is returned see `LiveRows`."""
        buffer, exact, length = self.buffer, self.exact, len(rows.y)
        at_once = self._takes_at_once(rows, predict=predict)
        if not at_once:
            check_usable_rows(rows.X, rows.y, rows.weights)
            if rows.times is not None:
                in_order(rows.times, buffer.time if buffer else self.core.time)
            if self.filter is None and (predict or exact):
                self.filter = self._new_filter()
        live, begin = self.filter, buffer.n
        known = live is not None or (not exact and (self.scorer is not None or length > 1))
        keeps = live is not None or exact
        buffer.write(rows, length if known else 0, predicted=keeps)
        if at_once:
            follower = None if live is None or live.compiled is None else live.compiled.struct.address
            if not buffer.compiled(precise=self._precise).take(begin, follower):
                check_usable_rows(rows.X, rows.y, rows.weights)
        elif keeps:
            predicted = live and _moved(live, rows, self.settings, predict=predict or exact, apart=predict)
            buffer.columns["predicted"][begin : begin + length] = np.nan if predicted is None else predicted
        buffer.n += length  # so that an exception before it loses nothing
        self._count += length if rows.weights is None else self._counted(rows)
        self._scored = None
        if length > 1 and not exact:
            self.filter = None  # the next predictions are those of the state, which takes rows together
        start, base = self._base
        if buffer.n - start >= base.filter_serves:
            self.filter = None  # the next one starts from a new estimate
        return buffer.made(begin) if predict else None

    def _takes_at_once(self, rows: Block, *, predict: bool) -> bool:
        """Whether the compiled kernel takes a row in one call, filter included: nothing is to be prepared before it."""
        live, columns = self.filter, self.buffer.columns
        if len(rows.y) > 1 or rows.times is not None or (rows.weights is not None and "weights" not in columns):
            return False
        if live is None:
            return self._has_kernel and not (predict or self.exact)
        return live.compiled is not None

    # ---- the filter ------------------------------------------------------------------------------------

    def _new_filter(self) -> SquareRootFilter | None:
        """Return a filter that continues row by row from all rows so far; None if there is no exact one.

        It takes the buffered batches one after the other, as they came, so that it has the same bits whenever it is
        made, also after saving and restoring. There is none if rows that were not predicted by a filter came in longer
        batches: the state, which takes them together, is then the faster one.
        """
        buffer = self.buffer
        if buffer and not buffer.single and not self.exact:
            return None
        state, batches = self._filter_start()
        if not state.belief.determines:
            state, batches = self.scored()[0].core, []  # type: ignore[assignment]
        made = state.row_filter()
        if made is None:
            return None
        for block in batches:
            _moved(made, block, self.settings, predict=False)
        return made if made.keeps_digits else None

    def _filter_start(self) -> tuple[Exact, list[Block]]:
        """Return the state from which the filter starts, and the batches since then, fewer rows than it serves for."""
        (start, state), since, rows = self._base, [], 0
        for block in self.buffer.in_batches(start, apart=state.filter_serves < math.inf):
            since.append(block)
            rows += len(block)
            if rows >= state.filter_serves:
                state = state.learn(self.buffer.block.part(start, start + rows))
                start, since, rows = start + rows, [], 0
        if start > self._base[0]:
            state = replace(state, begin=self.core.belief.posterior.mean)  # not one that depends on what was read
            self._base = start, state
        return state, since

    def followed(self) -> SquareRootFilter | None:
        """Return the filter that has predicted the rows; None if they were not predicted, or if it is not exact."""
        if self.core.filter_serves < math.inf:
            return None
        if self.filter is None and self.buffer and self.buffer.batches.any():
            self.filter = self._new_filter()
        return None if self.filter is None or not self.filter.keeps_digits else self.filter

    def following(self) -> SquareRootFilter | None:
        """Return a filter that includes the rows, made now if it is worth it, to predict one row in O(d^2)."""
        found = self.filter
        if found is not None and found.keeps_digits:
            return found
        found = self.followed()
        if found is None and not self._is_wide:
            found = self.filter = self._new_filter()
        return found

    # ---- reading ---------------------------------------------------------------------------------------

    def scored(self) -> tuple[State, Innovations | None]:
        """Return the state after the rows, and their innovations if they are needed.

        The rows of a long stream are predicted now, by its scorer, since that served for all of them.
        """
        if self._scored is None:
            state, block = self.state, self.buffer.block
            if not self.buffer:
                self._scored = state, None
            elif self.settings.needs_innovations:
                self._scored = state.step(block, self.buffer.innovations if self.exact else None)
            else:
                self._scored = state.learn(block), None
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

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__() | {"_tracked": None, "_base": (0, self.core)}
        return {name: value for name, value in state.items() if name not in ("scorer", "exact", "_room", "_is_wide")}


def _moved(
    live: SquareRootFilter, rows: Block, settings: Settings, *, predict: bool, apart: bool = False
) -> Array | None:
    """Update the filter by a few rows, and return what it predicted, see `RowBuffer`; None if it is not needed.

    With `apart` a prediction was issued for each row, otherwise one for the whole batch.
    """
    own, n = None if rows.weights is None else settings.own_variance(rows), len(rows.y)
    counts = None if rows.weights is None else settings.counts(rows.weights)
    if n > 1 and live.takes_blocks:
        found = live.take(rows, own=own, counts=counts)
        issued = found.standardised(rows.y) if apart else found.issued
        parts = [one.reshape(n, -1) for one in (found.mean, found.std, issued, found.dof, found.scale)]
        return np.hstack([*parts[:3], parts[3][:, :1], parts[4][:, :1]])
    made: list[Any] = []
    for i in range(n):
        if rows.times is not None and live.time is not None:
            live.advance(float(rows.times[i]))
        y: Any = rows.y[i] if rows.y.ndim > 1 else float(rows.y[i])
        weight = () if rows.weights is None else (float(rows.weights[i]), 1.0 if counts is None else float(counts[i]))
        made.append(live.follow(rows.X[i], y, *weight, own=1.0 if own is None else float(own[i]), predict=predict))
    if not predict:
        return None
    fields = [(mean, std, issued, dof, scale) for mean, std, dof, scale, issued, _ in made]
    return np.array(fields if rows.y.ndim == 1 else [np.hstack(one) for one in fields])
