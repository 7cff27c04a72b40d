"""Single rows and short batches that are folded together: a buffer, and a filter that learns them as they come."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable_rows
from kalprox.base.tree import Saved, expect
from kalprox.kernel.filter import CompiledRows
from kalprox.kernel.library import kernel
from kalprox.learning.exact import Exact, next_cut
from kalprox.learning.innovations import MANY_ROWS, Innovations, Scorer
from kalprox.learning.settings import Settings
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.state import State
from kalprox.learning.tracking import Quantiles, Tracking
from kalprox.sources import Block
from kalprox.sources.weighting import in_order

Made = tuple[Array, Array]  # the mean and the std of each row, as they were predicted from all rows before it

_OF_BLOCK = ("X", "y", "weights", "times", "offset")
_ABSENT = {"weights": 1.0, "times": 0.0, "offset": 0.0}  # what stands for what a row came without


class RowBuffer:
    """A buffer of the rows of short batches and their predictions, until the rows are folded together.

    Rows are written behind the last one, and count as soon as `n` includes them: an exception on the way loses nothing.

    Attributes
    ----------
    n : int
        The number of rows.
    columns : dict of str to array
        X of shape (capacity, d), y of shape (capacity,) or (capacity, k), and, of shape (capacity,), `batch`, the
        length of the batch that each row came in, or 0 if no interval was issued for it. As soon as any row has come
        with one, also `weights`, `times`, `offset`, and `predicted`, of shape (capacity, 3 k + 2): the means, the stds
        and the errors in stds of the k targets, the degrees of freedom, and the std in units of that of the noise.
    """

    def __init__(self, d: int, targets: int | None) -> None:
        of_y = (0,) if targets is None else (0, targets)
        self.n, self._shapes = 0, ((d,), of_y[1:])
        self.columns: dict[str, Array] = {"X": np.empty((0, d)), "y": np.empty(of_y), "batch": np.empty(0)}
        self._compiled: CompiledRows | None = None  # made when it is first needed

    @classmethod
    def restored(cls, d: int, targets: int | None, saved: Saved) -> "RowBuffer":
        """Return the buffer of the rows saved as "waiting"; raise a ValueError if the shapes do not fit."""
        buffer = cls(d, targets)
        names = [*buffer.columns, *(name for name in (*_ABSENT, "predicted") if f"waiting.{name}" in saved)]
        columns = {name: np.ascontiguousarray(saved[f"waiting.{name}"]) for name in names}  # as the kernel reads them
        n = buffer.n = len(columns["y"])
        for name, column in columns.items():
            expect(column.shape == (n, *buffer._shape(name)))
            expect(name == "predicted" or np.isfinite(column).all())
        expect(np.isin(columns["batch"], np.arange(n + 1)).all() and (columns.get("weights", np.ones(1)) > 0).all())
        expect((np.diff(columns.get("times", np.zeros(1))) >= 0).all())
        buffer.columns = columns
        return buffer

    def saved(self) -> dict[str, Array]:
        """Return the buffered rows, and their predictions if there are any, as values that can be saved."""
        return {name: column[: self.n].copy() for name, column in self.columns.items()}

    def __len__(self) -> int:
        return self.n

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an entry of a column."""
        if name == "predicted":
            return (3 * self._targets + 2,)
        shape: tuple[int, ...] = self.columns[name if name in self.columns else "batch"].shape[1:]
        return shape

    @property
    def _targets(self) -> int:
        """The number of targets."""
        return int(np.prod(self.columns["y"].shape[1:]))

    def fits(self, X: Array, y: Array) -> bool:
        """Whether these rows have the shapes of the buffered rows."""
        return bool(X.shape[1:] == self._shapes[0] and y.shape[1:] == self._shapes[1])

    # ---- writing ---------------------------------------------------------------------------------------

    def write(self, rows: Block, batch: int, *, predicted: bool = False) -> None:
        """Write the rows of a batch behind the last one; with `predicted` there is memory for predictions of them.

        They count as soon as `n` includes them. Amortised O(rows).
        """
        begin, columns = self.n, self.columns
        end = begin + len(rows.y)
        if end > len(columns["batch"]):
            for name, column in columns.items():
                columns[name] = np.concatenate([column[:begin], np.empty((end, *column.shape[1:]))])
            self._compiled = None
        if end == begin + 1:  # numbers are copied faster than slices
            columns["X"][begin], columns["y"][begin], columns["batch"][begin] = rows.X, rows.y[0], batch
        else:
            columns["X"][begin:end], columns["y"][begin:end], columns["batch"][begin:end] = rows.X, rows.y, batch
        if predicted and "predicted" not in columns:
            self._use("predicted", np.nan)
        if (
            len(columns) > 3 + predicted
            or rows.weights is not None
            or rows.times is not None
            or rows.offset is not None
        ):
            for name, values in (("weights", rows.weights), ("times", rows.times), ("offset", rows.offset)):
                if values is not None and name not in columns:
                    self._use(name, _ABSENT[name])
                if name in columns:
                    columns[name][begin:end] = _ABSENT[name] if values is None else values

    def append(self, rows: Block, batch: int) -> None:
        """Append the rows of a batch."""
        self.write(rows, batch)
        self.n += len(rows.y)

    def _use(self, name: str, absent: float) -> None:
        """Make a column with which no row has come so far."""
        self.columns[name] = np.full((len(self.columns["batch"]), *self._shape(name)), absent)
        self._compiled = None

    def compiled(self, *, precise: bool) -> CompiledRows:
        """Return what the compiled kernel sees of the rows, whose weights may be precisions."""
        if self._compiled is None:
            columns = self.columns
            optional = columns.get("weights"), columns.get("predicted")
            self._compiled = CompiledRows(columns["X"], columns["y"], *optional, precise=precise)
        return self._compiled

    def clear(self) -> None:
        """Remove the rows, and keep the memory for later ones."""
        self.n, self.columns = 0, {name: self.columns[name] for name in ("X", "y", "batch")}
        self._compiled = None

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def block(self) -> Block:
        """The buffered rows."""
        columns: dict[str, Any] = {name: self.columns[name][: self.n] for name in _OF_BLOCK if name in self.columns}
        return Block(**columns)

    @property
    def time(self) -> float | None:
        """The time of the last row; None if there is none."""
        return float(self.columns["times"][self.n - 1]) if "times" in self.columns else None

    def in_batches(self, start: int = 0, *, apart: bool = False) -> Iterator[Block]:
        """The buffered rows in the batches in which they came; rows that were not predicted are one batch, or `apart`.

        The first batch begins at the row `start`.
        """
        block, batches = self.block, self.batches
        while start < self.n:
            predicted = np.flatnonzero(batches[start:])
            together = 1 if apart else int(predicted[0]) if len(predicted) else self.n - start
            length = int(batches[start]) or together
            yield block.part(start, start + length)
            start += length

    def made(self, begin: int) -> Made:
        """Return the means and the stds that were predicted of the rows from this one on."""
        y, k, values = self.columns["y"][begin : self.n], self._targets, self.columns["predicted"][begin : self.n]
        return values[:, :k].copy().reshape(y.shape), values[:, k : 2 * k].copy().reshape(y.shape)

    @property
    def innovations(self) -> Innovations:
        """The innovations of the buffered rows; unknown for rows that were not predicted."""
        y, k = self.columns["y"][: self.n], self._targets
        if "predicted" not in self.columns:
            return Innovations.unknown(y)
        values = self.columns["predicted"][: self.n]
        known = ~np.isnan(values[:, -1:])
        mean, std, issued = (values[:, i * k : (i + 1) * k] for i in range(3))
        std, dof, scale = (np.where(known, one, np.inf) for one in (std, values[:, -2:-1], values[:, -1:]))
        return Innovations.one_by_one(y, mean, std, dof, scale, issued)

    @property
    def single(self) -> bool:
        """Whether every row came alone, as far as that is known."""
        return not (self.batches > 1).any()

    @property
    def batches(self) -> Array:
        """The length of the batch that each row came in, 0 if no interval was issued for the row."""
        return self.columns["batch"][: self.n]

    def copy(self) -> "RowBuffer":
        """Return an independent copy."""
        new = object.__new__(RowBuffer)
        new.__dict__ |= self.__getstate__()
        return new

    def __getstate__(self) -> dict[str, Any]:
        """Return the rows alone: what is left of earlier ones in the memory is not to be pickled."""
        return vars(self) | {"columns": self.saved(), "_compiled": None}


class LiveRows(ABC):
    """The single rows and rows of short batches since the last fold, and a filter that learned them as they came.

    The filter has the same bits whenever it is made, also after saving and restoring, and reading does not change the
    state.

    Parameters
    ----------
    settings : Settings
    state : State
        The state before these rows.
    tracking : Tracking
        The score and the quantiles before these rows.
    rows : int
        The number of rows learned before.
    buffer : RowBuffer
        The rows, if there are any yet.
    """

    _most: int  # the number of rows at which they are folded

    def __init__(self, settings: Settings, state: Any, tracking: Tracking, rows: int, buffer: RowBuffer) -> None:
        self.settings, self.state, self.tracking, self.buffer = settings, state, tracking, buffer
        self.filter: Any = None  # includes the rows; made when it is first needed
        self.has_offsets = False  # whether all rows have an offset; otherwise none has
        self._before, self._watched = rows, (0, tracking)  # as many of the rows, looked at for change points
        self._scored: tuple[Any, Innovations | None] | None = None  # after the rows

    def __len__(self) -> int:
        return self.buffer.n

    def waits(self, block: Block) -> bool:
        """Whether the rows of a batch wait here to be folded together with later ones; otherwise they are folded now.

        Wrong shapes, times or offsets do not wait: the state raises an error that says so.
        """
        if block.groups is not None or block.noise is not None or block.missing is not None:
            return False
        return self.settings.buffers_rows and (block.offset is not None) is self.has_offsets and self.takes(block)

    @abstractmethod
    def takes(self, block: Block) -> bool:
        """Whether the rows of a plain batch, of one row or a few, can be learned with these rows."""

    @abstractmethod
    def append(self, rows: Block, *, predict: bool = False) -> Any:
        """Learn rows that `takes` allows; if `predict`, return their means and stds, as they were before."""

    @abstractmethod
    def following(self) -> Any:
        """Return the filter that includes the rows, to predict one row; None if there is none."""

    @abstractmethod
    def followed(self) -> Any:
        """Return the filter if it is what predicts batches; None if the state before the rows does."""

    @abstractmethod
    def scored(self) -> tuple[State, Innovations | None]:
        """Return the state after the rows, and their innovations if they are needed."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the rows and what was known before them: whatever is computed from these is not to be pickled."""
        return vars(self) | {"filter": None, "_scored": None, "_watched": (0, self.tracking)}

    def crosses_cut(self, block: Block) -> bool:
        """Whether what predicts the rows of a batch changes before it or on the way."""
        return False

    @property
    def rows(self) -> Block:
        """The rows, which stay as they are when the memory of the buffer is used again."""
        return replace(self.buffer.copy().block, times=None)

    @property
    def are_full(self) -> bool:
        """Whether the rows are to be folded."""
        return self.buffer.n >= self._most

    def tracked(self) -> Tracking:
        """Return the score and the quantiles after the rows."""
        if not self.buffer.n or not self.settings.diagnose:
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
        self._base: tuple[int, Exact] = 0, self.core  # after as many of the rows: where the filter was looked at last
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
        if self.filter is not None:
            self.filter = self._renewed(self.filter, buffer.n)
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
        return live if state.continues([live]) else state.beginning(live.kernel.theta).row_filter()

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
