"""The rows since the last fold, and a filter that learned them as they came."""

import math
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable_rows
from kalprox.kernel.filter import CompiledFollower
from kalprox.learning.exact import Exact, beginning, continues, next_cut
from kalprox.learning.innovations import MANY_ROWS, Innovations, Scorer, in_stds
from kalprox.learning.row_buffer import RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.state import Following, State
from kalprox.learning.tracking import Quantiles, Tracking
from kalprox.sources import Block
from kalprox.sources.weighting import in_order

TRACKED_TOGETHER = 64  # rows whose intervals are tracked together at least, if none was issued for a whole batch


class LiveRows:
    """The single rows and rows of short batches since the last fold, and a filter that learned them as they came.

    What the filter has found for each row is handed to the state with the rows when they are folded together, so that
    the state is the same as if they had been folded one by one. The filter has the same bits whenever it is made, also
    after saving and restoring, and reading does not change the state.

    Parameters
    ----------
    settings : Settings
    state : State
        The state before these rows. Its core makes the filter.
    tracking : Tracking
        The score and the quantiles before these rows.
    rows : int
        The number of rows learned before.
    buffer : RowBuffer or None
        The rows, if there are any yet.
    how : Following
        How the rows are followed.
    """

    most_predicted: ClassVar[int] = 1  # rows of a batch, each of which is predicted from all rows before it
    folds_when_full: ClassVar[bool] = True  # at once, so that a fold does not change a prediction issued

    @property
    def are_alone(self) -> bool:
        """Whether rows that are predicted each from all before it are learned the fastest one by one."""
        return True

    def __init__(
        self,
        settings: Settings,
        state: State,
        tracking: Tracking,
        rows: int,
        buffer: RowBuffer | None,
        how: Following,
    ) -> None:
        self.settings, self.state, self.tracking, self.how = settings, state, tracking, how
        self.core: Any = state.core
        self.buffer = RowBuffer(self.how.d, self.how.columns) if buffer is None else buffer
        self.filter: Any = None  # includes the rows; made when it is first needed
        self._most = self.how.most  # the number of rows at which they are folded
        self._passed = 0  # rows that are not kept
        self._found: list[Array] = []  # what the filter returned for each row
        self._issued: dict[int, Array] = {}  # by the first row of a batch, the errors of what was issued before it
        self._before, self._watched = rows, (0, tracking)  # as many of the rows, looked at for change points
        self._scored: tuple[State, Innovations | None] | None = None  # after the rows

    def __len__(self) -> int:
        return self.buffer.n + self._passed

    # ---- which rows are taken --------------------------------------------------------------------------

    def waits(self, block: Block) -> bool:
        """Whether the rows of a batch wait here to be folded together with later ones; otherwise they are folded now.

        Wrong shapes, times or offsets do not wait: the state raises an error that says so.
        """
        if block.groups is not None or block.noise is not None or block.missing is not None:
            return False
        return self.settings.buffers_rows and (block.offset is not None) is self.how.offsets and self.takes(block)

    def takes(self, block: Block) -> bool:
        """Whether the rows of a plain batch, of one row or a few, can be learned with these rows."""
        low, high = self.settings.likelihood.support
        if not self._fits(block):
            return False
        return all(low <= value <= high for value in block.y.ravel().tolist()) and self.following() is not None

    def _fits(self, block: Block) -> bool:
        """Whether a batch is short enough, and its rows have the right shapes and positive weights."""
        if len(block.y) > self.how.longest or not self.buffer.fits(block.X, block.y):
            return False
        if self.how.sparse and not (scipy.sparse.issparse(block.X) and _is_plain(block)):
            return False
        return block.weights is None or bool((block.weights > 0).all())

    def crosses_cut(self, block: Block) -> bool:
        """Whether what predicts the rows of a batch changes before it or on the way."""
        return False

    @property
    def are_full(self) -> bool:
        """Whether the rows are to be folded."""
        return self.buffer.n + self._passed >= self._most or (self.filter is not None and self.filter.is_due)

    # ---- learning --------------------------------------------------------------------------------------

    def append(self, rows: Block, *, predict: bool = False) -> Any:
        """Learn rows that `takes` allows; if `predict`, return their means and stds, as they were before."""
        check_usable_rows(rows.X, rows.y, rows.weights)
        live = self.following()
        predicted = live.predict(rows.X, rows.offset) if predict else None
        self._learn(rows)
        if not self.how.sparse:
            self.buffer.append(rows, len(rows.y))
        else:
            self._passed += len(rows.y)
        self._scored = None
        return None if predicted is None else (predicted.mean, predicted.std)

    def _learn(self, rows: Block) -> None:
        """Let the filter learn the rows of a batch one by one; if one is rejected, none is learned."""
        if len(rows.y) > 1 and self.tracking.scores[0].has_intervals:  # which were issued for all of them together
            before = self.filter.predict(rows.X, rows.offset)
            self._issued[len(self._found)] = in_stds(rows.y - before.mean, before.std)
        try:
            self._found += self.filter.learn_rows(rows)
        except ValueError:
            self.filter = None  # which has learned some of the rows
            raise

    # ---- the filter ------------------------------------------------------------------------------------

    def following(self) -> Any:
        """Return the filter that includes the rows, to predict one row in O(d^2); None if there is none."""
        if self.filter is None:
            self.filter, self._found, self._issued = self.core.row_filter(), [], {}
            if self.filter is None:
                return None
            for batch in self.buffer.in_batches():
                self._learn(batch)
        return self.filter if self.filter.keeps_digits else None

    def followed(self) -> Any:
        """Return the filter if it is what predicts batches; None if the state before the rows does."""
        predicts = (len(self) or self.how.leads) and self.core.filter_serves == math.inf
        return self.following() if predicts else None

    # ---- reading ---------------------------------------------------------------------------------------

    def scored(self) -> tuple[State, Innovations | None]:
        """Return the state after the rows, and their innovations if they are needed."""
        if self._scored is None:
            self._scored = self._folded() if len(self) else (self.state, None)
        return self._scored

    def _folded(self) -> tuple[State, Innovations | None]:
        """Return the state after one row or more, and their innovations if they are needed."""
        self.following()
        after, found = self.state.after_filter(self.filter, self.rows, self._found)
        for first, errors in self._issued.items():
            if found is not None:
                found.issued[first : first + len(errors)] = errors
        return after, found

    @property
    def after(self) -> State:
        """The state after the rows, to be read."""
        return self.scored()[0]

    @property
    def rows(self) -> Block:
        """The rows, which stay as they are when the memory of the buffer is used again."""
        return replace(self.buffer.copy().block, times=None)

    def tracked(self) -> Tracking:
        """Return the score and the quantiles after the rows."""
        if not len(self) or not self.settings.diagnose:
            return self.tracking
        found, rows = self.scored()[1], self.buffer.block
        assert found is not None
        counts, tracked = self.settings.counts(rows.weights), self.tracking
        n, watched = self._watched
        if n < len(rows):  # each is looked at once, however often it is asked for, and with the same bits
            watched = watched.watched(rows.part(n, len(rows)), self.state.belief, self._before, first=n == 0)
            self._watched = len(rows), watched
        tracked = tracked.issued(found.issued, self.buffer.batches, counts)
        return replace(tracked.scored(self.settings, rows, found, counts), detector=watched.detector)

    def quantiles(self) -> Quantiles:
        """Return the quantiles after the rows."""
        return self.tracked().quantiles

    def __getstate__(self) -> dict[str, Any]:
        """Return the rows and what was known before them: whatever is computed from these is not to be pickled."""
        kept = vars(self) | {"_scored": None, "_watched": (0, self.tracking)}
        if not self.how.sparse:
            return kept | {"filter": None, "_found": [], "_issued": {}}
        return kept | {"filter": self.filter and self.filter.copy()}

    def copy(self) -> "LiveRows":
        """Return an independent copy. Its filter is made again when it is needed."""
        new = object.__new__(type(self))
        new.__dict__ |= self.__getstate__()
        new.buffer = self.buffer.copy()
        return new


# Rows are folded when there are 2,048 of them, or as many (but at least 16) as were folded before. Batches of up to
# 2,048 rows, or fewer (but at least 256) if they take 2 MiB, wait for later ones: folding and scoring rows together
# takes a small part of the time that they take one by one. Reading folds all that wait.
_FEW, _MANY = 16, 2048
_LONGEST, _LONGEST_BYTES = (256, 2048), 1 << 21
_MANY_COLUMNS = 512


def _is_plain(block: Block) -> bool:
    """Whether the rows of a sparse matrix have no times, and each has entries in different columns."""
    return block.times is None and block.X.format == "csr" and bool(block.X.has_canonical_format)


class RecentRows(LiveRows):
    """The rows since the last fold, which are folded together.

    Reading folds them into a copy, so that it does not change the state: a stream gives the same bits whether or not it
    is read, or saved and resumed, on the way.
    """

    most_predicted = TRACKED_TOGETHER
    folds_when_full = False

    def __init__(
        self, settings: Settings, state: State, tracking: Tracking, rows: int, buffer: RowBuffer | None
    ) -> None:
        self.core: Exact
        information = state.core.linear_information
        assert information is not None
        d, (least, most) = information.d, _LONGEST
        longest = max(least, min(most, _LONGEST_BYTES // (8 * max(d, 1))))
        how = Following(d, information.targets, max(_FEW, min(_MANY, rows)), longest)
        super().__init__(settings, state, tracking, rows, buffer, how)
        self.filter: SquareRootFilter | None
        self._precise = settings.weight_kind == "precision"
        self._by_block = self.core.predicts_every_row  # whether the filter, if rows are exact, takes blocks at once
        self._count = self._counted(self.buffer.block) if self.buffer else 0.0  # of rows, each as often as it counts
        self._base: tuple[int, Exact] = 0, self.core  # after as many of the rows: where the filter was looked at last
        self._tracked: tuple[int, Quantiles] | None = None  # after as many of the rows
        self._read: tuple[Any, State] | None = None  # what `scored` returned, and `after`

    @property
    def are_alone(self) -> bool:
        return self.settings.forgets and self.settings.forgetting.fades  # no filter follows a window, or a drift

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
        if (block.times is not None) is not self.settings.by_time or not self._fits(block):
            return False
        if len(block.y) > 1:
            filtered = block.weights is None and self._by_block
            if self._is_wide or (self.exact and not filtered):
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

    def append(self, rows: Block, *, predict: bool = False) -> Any:
        """Append the rows of a batch, all of positive weight; for what is returned see `LiveRows`."""
        buffer, exact, length = self.buffer, self.exact, len(rows.y)
        at_once = self._at_once(rows)
        if at_once is None:
            check_usable_rows(rows.X, rows.y, rows.weights)
            if rows.times is not None:
                in_order(rows.times, buffer.time if buffer else self.core.time)
            if self.filter is None and (predict or exact):
                self.filter = self._new_filter()
        live, begin = self.filter, buffer.n
        known = live is not None or (not exact and (self.scorer is not None or length > 1))
        keeps = live is not None or exact
        buffer.write(rows, length if known else 0, predicted=keeps)
        if at_once is not None:
            if not buffer.compiled(precise=self._precise).take(begin, at_once.struct.address):
                check_usable_rows(rows.X, rows.y, rows.weights)
        elif keeps:
            predicted = live and _moved(live, rows, self.settings, predict=predict or exact, apart=predict)
            buffer.columns["predicted"][begin : begin + length] = np.nan if predicted is None else predicted
        buffer.n += length  # so that an exception before it loses nothing
        self._count += length if rows.weights is None else self._counted(rows)
        self._scored = None
        if length > 1 and not exact:
            self.filter = None  # the next predictions are those of the state, which takes rows together
        if self.filter is not None:
            self.filter = self._renewed(self.filter, buffer.n)
        return buffer.made(begin) if predict else None

    def _at_once(self, rows: Block) -> CompiledFollower | None:
        """Return what takes a row in one call of the compiled kernel: the filter, if nothing is prepared before it."""
        return self.filter.compiled if self.filter and len(rows.y) == 1 and rows.times is None else None

    # ---- the filter ------------------------------------------------------------------------------------

    def _new_filter(self) -> SquareRootFilter | None:
        """Return a filter that continues row by row from all rows so far; None if there is no exact one.

        It takes the buffered batches one after the other, as they came, so that it has the same bits whenever it is
        made, also after saving and restoring. There is none if rows that were not predicted by a filter came in longer
        batches: the state, which takes them together, is then the faster one.
        """
        buffer, core, done = self.buffer, self.core, 0
        if buffer and not buffer.single and not self.exact:
            return None
        if not core.belief.determines:
            core, done = self.scored()[0].core, buffer.n  # type: ignore[assignment]
        self._base, made = (done, core), core.row_filter()
        for block in buffer.in_batches(done, apart=core.filter_serves < math.inf):
            if made is not None:
                done += len(block)
                _moved(made, block, self.settings, predict=False)
                made = self._renewed(made, done)
        return made if made is not None and made.keeps_digits else None

    def _renewed(self, live: SquareRootFilter, n: int) -> SquareRootFilter | None:
        """Return the filter after the first n rows, made afresh where it no longer holds; see `Exact.filter_serves`."""
        start, base = self._base
        if n - start < base.filter_serves:
            return live
        state = base.learn(self.buffer.block.part(start, n))
        self._base = n, state
        return live if continues(state, [live]) else beginning(state, live.kernel.theta).row_filter()

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

    def _folded(self) -> tuple[State, Innovations | None]:
        """What `LiveRows` says; the rows of a long stream are predicted now, by its scorer, which served for all."""
        if self.settings.needs_innovations:
            return self.state.step(self.buffer.block, self.buffer.innovations if self.exact else None)
        return self.state.learn(self.buffer.block), None

    @property
    def after(self) -> State:
        """The state after the rows, to be read: a search for its estimate begins at that before them."""
        found, core = self.scored(), self.core
        if core.filter_serves == math.inf or core.chooses_alpha or not core.predicts:
            return found[0]
        if self._read is None or self._read[0] is not found:
            begin = core.belief.posterior.mean
            theta = begin.reshape(len(begin), -1)
            self._read = found, found[0].with_core(lambda after: beginning(after, theta))  # type: ignore[type-var]
        return self._read[1]

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
        state = super().__getstate__() | {"_tracked": None, "_read": None, "_base": (0, self.core)}
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
