"""The buffer of single rows and short batches, which are folded together."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, expect
from kalprox.learning.innovations import Innovations
from kalprox.sources import Block

__all__ = ["RowBuffer"]


class RowBuffer:
    """A buffer of the rows of short batches and their innovations, until the rows are folded together.

    Attributes
    ----------
    n : int
        The number of rows.
    columns : list of arrays
        X of shape (capacity, d), y of shape (capacity,) or (capacity, k), and, of shape (capacity,), `batch`, the
        length of the batch that each row came in, or 0 if no interval was issued for it, `weights`, `times` and
        `offset`.
    weighted, timed, shifted : bool
        Whether any row has come with a weight, with a time, and with an offset.
    predicted : list of arrays
        The fields of `Innovations`, shaped like y but for `together` of shape (capacity,). Empty as long as no row has
        come with its innovation.
    """

    NAMES = ("X", "y", "batch", "weights", "times", "offset")

    def __init__(self, d: int, targets: int | None) -> None:
        of_y = (0,) if targets is None else (0, targets)
        self.n, self.weighted, self.timed, self.shifted = 0, False, False, False
        self.columns = [np.empty(shape) for shape in ((0, d), of_y, (0,), (0,), (0,), (0,))]
        self.predicted: list[Array] = []

    @classmethod
    def restored(cls, d: int, targets: int | None, saved: Saved) -> "RowBuffer":
        """Return the buffer of the rows saved as "waiting"; raise a ValueError if the shapes do not fit."""
        buffer, n, y = cls(d, targets), len(saved["waiting.y"]), saved["waiting.y"]
        buffer.weighted = "waiting.weights" in saved
        buffer.timed, buffer.shifted = "waiting.times" in saved, "waiting.offset" in saved
        columns = [saved["waiting.X"], y, saved["waiting.batch"]]
        columns.append(saved["waiting.weights"] if buffer.weighted else np.ones(n))
        columns.append(saved["waiting.times"] if buffer.timed else np.zeros(n))
        columns.append(saved["waiting.offset"] if buffer.shifted else np.zeros(n))
        for column, empty in zip(columns, buffer.columns, strict=True):
            expect(column.shape == (n, *empty.shape[1:]) and np.isfinite(column).all())
        expect(np.isin(columns[2], np.arange(n + 1)).all() and (columns[3] > 0).all())
        expect((np.diff(columns[4]) >= 0).all())
        if "waiting.mean" in saved:
            found = {name: saved[f"waiting.{name}"] for name in Innovations._fields if f"waiting.{name}" in saved}
            expect(all(found[name].shape == y.shape for name in found if name != "together"))
            expect(np.isfinite(found["mean"]).all() and found["together"].shape == (n,))
            expect((found["together"] >= 0).all())
            buffer.predicted = list(found.values())
        buffer.n, buffer.columns = n, columns
        return buffer

    def saved(self) -> dict[str, Array]:
        """Return the buffered rows, and their innovations if there are any, as values that can be saved."""
        rows = dict(zip(self.NAMES, self.columns, strict=True))
        for name, known in (("weights", self.weighted), ("times", self.timed), ("offset", self.shifted)):
            if not known:
                del rows[name]
        if self.predicted:
            rows |= dict(zip(Innovations._fields, self.predicted, strict=True))
        return {name: a[: self.n].copy() for name, a in rows.items()}

    def __len__(self) -> int:
        return self.n

    def fits(self, X: Array, y: Array) -> bool:
        """Whether these rows have the shapes of the buffered rows."""
        return bool(X.shape[1:] == self.columns[0].shape[1:] and y.shape[1:] == self.columns[1].shape[1:])

    def append(self, rows: Block, batch: int, predicted: Sequence[Any] = ()) -> None:
        """Append the rows of a batch, and the fields of their innovations, if there are any. Amortised O(rows)."""
        begin, end, weights = self.n, self.n + len(rows), rows.weights
        if predicted and not self.predicted:
            of_y = self.columns[1].shape
            self.predicted = [np.full(of_y, np.nan) for _ in Innovations._fields[:-1]] + [np.ones(of_y[:1])]
        if end > len(self.columns[0]):
            self.columns, self.predicted = (
                [np.concatenate([a[:begin], np.empty((end, *a.shape[1:]))]) for a in group]
                for group in (self.columns, self.predicted)
            )
        if weights is not None and not self.weighted:
            self.weighted, self.columns[3][:begin] = True, 1.0
        at = slice(begin, end)
        self.columns[0][at], self.columns[1][at], self.columns[2][at] = rows.X, rows.y, batch
        if self.weighted:
            self.columns[3][begin:end] = 1.0 if weights is None else weights
        if rows.times is not None:
            self.timed, self.columns[4][begin:end] = True, rows.times
        if rows.offset is not None:
            self.shifted, self.columns[5][begin:end] = True, rows.offset
        if self.predicted:
            for a, new in zip(self.predicted, predicted or _NOT_PREDICTED, strict=True):
                a[at] = new
        self.n = end

    def append_row(
        self, X: Array, y: Array, batch: int, predicted: Sequence[Any] = (), weight: float | None = None
    ) -> None:
        """Append a row without a time or an offset, X of shape (1, d), in less time than `append`."""
        at, (inputs, targets, batches, weights, *_) = self.n, self.columns
        if at == len(inputs) or (predicted and not self.predicted) or self.timed or self.shifted:
            return self.append(Block(X, y, None if weight is None else np.array([weight])), batch, predicted)
        inputs[at], targets[at], batches[at] = X[0], y[0], batch  # numbers are copied faster than slices
        if weight is not None and not self.weighted:
            self.weighted, weights[:at] = True, 1.0
        if self.weighted:
            weights[at] = 1.0 if weight is None else weight
        if self.predicted:
            for a, new in zip(self.predicted, predicted or _NOT_PREDICTED, strict=True):
                a[at] = new
        self.n = at + 1

    def clear(self) -> None:
        """Remove the rows, and keep the memory for later ones."""
        self.n, self.weighted, self.timed, self.shifted, self.predicted = 0, False, False, False, []

    @property
    def block(self) -> Block:
        """The buffered rows."""
        X, y, _, weights, times, offset = (a[: self.n] for a in self.columns)
        about: dict[str, Any] = {"times": times if self.timed else None, "offset": offset if self.shifted else None}
        return Block(X, y, weights if self.weighted else None, **about)

    @property
    def time(self) -> float | None:
        """The time of the last row; None if there is none."""
        return float(self.columns[4][self.n - 1]) if self.timed else None

    def in_batches(self) -> Iterator[Block]:
        """The buffered rows in the batches in which they came; rows that were not predicted are one batch."""
        block, batches, start = self.block, self.batches, 0
        while start < self.n:
            predicted = np.flatnonzero(batches[start:])
            length = int(batches[start]) or (int(predicted[0]) if len(predicted) else self.n - start)
            yield block.part(start, start + length)
            start += length

    @property
    def innovations(self) -> Innovations:
        """The innovations of the buffered rows; unknown for rows that were not predicted."""
        if not self.predicted:
            return Innovations.unknown(self.block.y)
        mean, std, dof, scale, issued, together = (a[: self.n] for a in self.predicted)
        predicted = (self.batches > 0).reshape(-1, *[1] * (std.ndim - 1))
        return Innovations(mean, np.where(predicted, std, np.inf), dof, scale, issued, together)

    @property
    def single(self) -> bool:
        """Whether every row came alone, as far as that is known."""
        return not (self.batches > 1).any()

    @property
    def batches(self) -> Array:
        """The length of the batch that each row came in, 0 if no interval was issued for the row."""
        return self.columns[2][: self.n]

    def copy(self) -> "RowBuffer":
        """Return an independent copy."""
        new = object.__new__(RowBuffer)
        new.__dict__ |= self.__getstate__()
        return new

    def __getstate__(self) -> dict[str, Any]:
        """Return the rows alone: what is left of earlier ones in the memory is not to be pickled."""
        columns, predicted = ([a[: self.n].copy() for a in group] for group in (self.columns, self.predicted))
        about = {"n": self.n, "weighted": self.weighted, "timed": self.timed, "shifted": self.shifted}
        return {**about, "columns": columns, "predicted": predicted}


_NOT_PREDICTED = (np.nan, np.inf, np.inf, np.inf, np.nan, 1)
