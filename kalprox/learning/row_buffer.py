"""A buffer of single rows and short batches, until they are folded together."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, expect
from kalprox.kernel.filter import CompiledRows
from kalprox.learning.innovations import Innovations
from kalprox.sources import Block

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
