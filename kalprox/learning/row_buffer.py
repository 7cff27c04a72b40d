"""Single rows and short batches that are folded together: a buffer of them, and a filter that learns them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, expect
from kalprox.learning.innovations import Innovations
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.settings import Settings
from kalprox.learning.state import State
from kalprox.learning.tracking import Tracking
from kalprox.sources import Block

__all__ = ["LiveRows", "RowBuffer"]

_OF_BLOCK = ("X", "y", "weights", "times", "offset")
_OPTIONAL = frozenset(("weights", "times", "offset"))
_PREDICTED = Innovations._fields[:6]
_NOT_PREDICTED = (np.nan, np.inf, np.inf, np.inf, np.nan, 1.0)
_ABSENT = {"weights": 1.0, "times": 0.0, "offset": 0.0} | dict(zip(_PREDICTED, _NOT_PREDICTED, strict=True))


class RowBuffer:
    """A buffer of the rows of short batches and their innovations, until the rows are folded together.

    Attributes
    ----------
    n : int
        The number of rows.
    columns : dict of str to array
        X of shape (capacity, d), y of shape (capacity,) or (capacity, k), and, of shape (capacity,), `batch`, the
        length of the batch that each row came in, or 0 if no interval was issued for it. As soon as any row has come
        with one, also `weights`, `times`, `offset`, and the fields of `Innovations`, shaped like y but for `together`.
    """

    def __init__(self, d: int, targets: int | None) -> None:
        of_y = (0,) if targets is None else (0, targets)
        self.n = 0
        self.columns: dict[str, Array] = {"X": np.empty((0, d)), "y": np.empty(of_y), "batch": np.empty(0)}

    @classmethod
    def restored(cls, d: int, targets: int | None, saved: Saved) -> "RowBuffer":
        """Return the buffer of the rows saved as "waiting"; raise a ValueError if the shapes do not fit."""
        buffer = cls(d, targets)
        names = [*buffer.columns, *(name for name in _ABSENT if f"waiting.{name}" in saved)]
        found = {name: saved[f"waiting.{name}"] for name in names}
        n = buffer.n = len(found["y"])
        for name, column in found.items():
            expect(column.shape == (n, *buffer._shape(name)))
            expect(name in ("std", "dof", "scale", "issued", "together") or np.isfinite(column).all())
        expect(np.isin(found["batch"], np.arange(n + 1)).all() and (found.get("weights", np.ones(1)) > 0).all())
        expect((np.diff(found.get("times", np.zeros(1))) >= 0).all())
        if "mean" in found:
            expect(all(name in found for name in _PREDICTED) and (found["together"] >= 0).all())
        buffer.columns = found
        return buffer

    def saved(self) -> dict[str, Array]:
        """Return the buffered rows, and their innovations if there are any, as values that can be saved."""
        names = ("X", "y", "batch", *_ABSENT)
        return {name: self.columns[name][: self.n].copy() for name in names if name in self.columns}

    def __len__(self) -> int:
        return self.n

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an entry of a column."""
        like = "y" if name in _PREDICTED[:5] else name if name in self.columns else "batch"
        shape: tuple[int, ...] = self.columns[like].shape[1:]
        return shape

    def fits(self, X: Array, y: Array) -> bool:
        """Whether these rows have the shapes of the buffered rows."""
        columns = self.columns
        return bool(X.shape[1:] == columns["X"].shape[1:] and y.shape[1:] == columns["y"].shape[1:])

    def append(self, rows: Block, batch: int, predicted: Sequence[Any] = ()) -> None:
        """Append the rows of a batch, and the fields of their innovations, if there are any. Amortised O(rows)."""
        begin, columns = self.n, self.columns
        end = begin + len(rows.y)
        single = end == begin + 1
        at: Any = begin if single else slice(begin, end)
        if end > len(columns["X"]):
            for name, a in columns.items():
                columns[name] = np.concatenate([a[:begin], np.empty((end, *a.shape[1:]))])
        X, y = (rows.X[0], rows.y[0]) if single else (rows.X, rows.y)  # numbers are copied faster than slices
        columns["X"][at], columns["y"][at], columns["batch"][at] = X, y, batch
        has_more = rows.weights is not None or rows.times is not None or rows.offset is not None
        if has_more or not _OPTIONAL.isdisjoint(columns):
            for name, values in (("weights", rows.weights), ("times", rows.times), ("offset", rows.offset)):
                if values is not None and name not in columns:
                    self._use(name)
                if name in columns:
                    columns[name][at] = _ABSENT[name] if values is None else values[0] if single else values
        if predicted and "mean" not in columns:
            self._use(*_PREDICTED)
        if "mean" in columns:
            for name, values in zip(_PREDICTED, predicted or _NOT_PREDICTED, strict=True):
                columns[name][at] = values
        self.n = end

    def _use(self, *names: str) -> None:
        """Make columns with which no row has come so far."""
        for name in names:
            self.columns[name] = np.full((len(self.columns["X"]), *self._shape(name)), _ABSENT[name])

    def clear(self) -> None:
        """Remove the rows, and keep the memory for later ones."""
        self.n, self.columns = 0, {name: self.columns[name] for name in ("X", "y", "batch")}

    def _column(self, name: str) -> Array | None:
        """Return a column of the buffered rows; None if no row came with it."""
        return self.columns[name][: self.n] if name in self.columns else None

    @property
    def block(self) -> Block:
        """The buffered rows."""
        about: dict[str, Any] = {name: self._column(name) for name in _OF_BLOCK}
        return Block(**about)

    @property
    def time(self) -> float | None:
        """The time of the last row; None if there is none."""
        return float(self.columns["times"][self.n - 1]) if "times" in self.columns else None

    def in_batches(self) -> Iterator[Block]:
        """The buffered rows in the batches in which they came; rows that were not predicted are one batch."""
        block, batches, start = self.block, self.batches, 0
        while start < self.n:
            predicted = np.flatnonzero(batches[start:])
            length = int(batches[start]) or (int(predicted[0]) if len(predicted) else self.n - start)
            yield block.part(start, start + length)
            start += length

    @property
    def predicted(self) -> bool:
        """Whether any row came with its innovation."""
        return "mean" in self.columns

    @property
    def innovations(self) -> Innovations:
        """The innovations of the buffered rows; unknown for rows that were not predicted."""
        if not self.predicted:
            return Innovations.unknown(self.columns["y"][: self.n])
        return Innovations(*(self.columns[name][: self.n] for name in _PREDICTED))

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
        return {"n": self.n, "columns": {name: a[: self.n].copy() for name, a in self.columns.items()}}


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

    @abstractmethod
    def takes(self, block: Block) -> bool:
        """Whether a batch, of one row or a few, can be learned with these rows."""

    @abstractmethod
    def append(self, rows: Block, *, predict: bool = False) -> Sequence[Any]:
        """Learn rows that `takes` allows; if `predict`, the first of what is returned are their means and stds."""

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
        n, watched = self._watched
        if n < len(rows):  # each is looked at once, however often it is asked for, and with the same bits
            watched = watched.watched(rows.part(n, len(rows)), self.state.belief, self._before, first=n == 0)
            self._watched = len(rows), watched
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
