"""The buffer of single rows and short batches, which are folded together."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.learning.innovations import Innovations, in_stds
from kalprox.learning.saved import Saved, expect
from kalprox.sources import Block

__all__ = ["RowBuffer"]


class RowBuffer:
    """A buffer of the rows of short batches and their innovations, until the rows are folded together.

    Attributes
    ----------
    n : int
        The number of rows.
    columns : list of arrays
        X of shape (capacity, d); y and the fields of `Innovations`, of shape (capacity,) or (capacity, k), but for
        `together` of shape (capacity,); and `batch` of shape (capacity,), the length of the batch that each row came
        in, or 0 if it was not predicted.
    """

    NAMES = ("X", "y", "mean", "std", "dof", "scale", "issued", "together", "batch")

    def __init__(self, d: int, targets: int | None) -> None:
        of_y = (0,) if targets is None else (0, targets)
        self.n = 0
        self.columns = [np.empty(shape) for shape in ((0, d), *[of_y] * 6, (0,), (0,))]

    @classmethod
    def restored(cls, d: int, targets: int | None, saved: Saved) -> "RowBuffer":
        """Return the buffer of the rows saved as "waiting"; raise a ValueError if the shapes do not fit.

        Files of version 0.1 have no scales: their rows were learned without a sandwich.
        """
        found = {name: saved[f"waiting.{name}"] for name in cls.NAMES[:5]}
        old = "waiting.batch" not in saved
        found["scale"] = np.ones_like(found["y"]) if old else saved["waiting.scale"]
        errors = found["y"] - found["mean"]
        found["issued"] = in_stds(errors, found["std"]) if old else saved["waiting.issued"]
        found["together"] = saved["waiting.together"]
        found["batch"] = saved["waiting.together" if old else "waiting.batch"]
        buffer, n = cls(d, targets), len(found["y"])
        for column, empty in zip(found.values(), buffer.columns, strict=True):
            expect(column.shape == (n, *empty.shape[1:]))
        expect(np.isin(found["batch"], np.arange(n + 1)).all() and (found["together"] >= 0).all())
        buffer.n, buffer.columns = n, list(found.values())
        return buffer

    def __len__(self) -> int:
        return self.n

    def fits(self, X: Array, y: Array) -> bool:
        """Whether these rows have the shapes of the buffered rows."""
        return X.shape[1:] == self.columns[0].shape[1:] and y.shape[1:] == self.columns[1].shape[1:]

    def append(self, *rows: Any) -> None:
        """Append rows, given as the columns of `NAMES`. Amortised O(rows)."""
        begin, end = self.n, self.n + len(rows[0])
        if end > len(self.columns[0]):
            self.columns = [np.concatenate([a[:begin], np.empty((end, *a.shape[1:]))]) for a in self.columns]
        for a, new in zip(self.columns, rows, strict=True):
            a[begin:end] = new
        self.n = end

    @property
    def rows(self) -> tuple[Array, ...]:
        """The columns of the buffered rows."""
        return tuple(a[: self.n] for a in self.columns)

    @property
    def block(self) -> Block:
        """The buffered rows."""
        return Block(*self.rows[:2])

    def in_batches(self) -> Iterator[Block]:
        """The buffered rows in the batches in which they came; rows that were not predicted are one batch."""
        (X, y), batches, start = self.rows[:2], self.batches, 0
        while start < self.n:
            predicted = np.flatnonzero(batches[start:])
            length = int(batches[start]) or (int(predicted[0]) if len(predicted) else self.n - start)
            yield Block(X[start : start + length], y[start : start + length])
            start += length

    @property
    def innovations(self) -> Innovations:
        """The innovations of the buffered rows; unknown for rows that were not predicted."""
        mean, std, dof, scale, issued, together, batch = self.rows[2:]
        predicted = (batch > 0).reshape(-1, *[1] * (std.ndim - 1))
        return Innovations(mean, np.where(predicted, std, np.inf), dof, scale, issued, together)

    @property
    def batches(self) -> Array:
        """The length of the batch that each row came in, 0 if the row was not predicted."""
        return self.rows[-1]

    def copy(self) -> "RowBuffer":
        new = object.__new__(RowBuffer)
        new.n, new.columns = self.n, [a[: self.n].copy() for a in self.columns]
        return new
