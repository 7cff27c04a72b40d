"""Partitions of arrays in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.sources.base import Block
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import BadRow, Reason

__all__ = ["BLOCK_ROWS", "ArrayPartition"]

BLOCK_ROWS = 1 << 13  # rows per block of a partition in memory


@dataclass(frozen=True)
class ArrayPartition:
    """Arrays in memory. A row with a value that is not finite, or with a negative weight, is a bad row.

    Parameters
    ----------
    X : array of shape (n, d), or (n,) for a function of one number
    y : array of shape (n,) or (n, k)
    weights : array of shape (n,), optional
    name : str
        The name of the partition in error messages and bad rows.
    """

    X: Array
    y: Array
    weights: Array | None = None
    name: str = "arrays"

    def blocks(self) -> Iterator[Block]:
        """The rows in blocks of at most `BLOCK_ROWS` rows."""
        X, y, w = self.X, self.y, self.weights
        if len(X) != len(y) or (w is not None and len(w) != len(y)):
            lengths = ", ".join(str(len(a)) for a in (X, y, w) if a is not None)
            raise SourceError(f"{self.name}: X, y and the weights must have the same number of rows; got {lengths}.")
        for first in range(0, len(y), BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            yield self._block(first, *(None if a is None else np.asarray(a[rows], np.float64) for a in (X, y, w)))

    def _block(self, first: int, X: Any, y: Any, w: Any) -> Block:
        n = len(y)
        bad: dict[int, BadRow] = {}
        for name, a in (("weight", w), ("y", y), ("X", X)):
            if a is None or np.isfinite(a.sum()):  # the common case, in one step
                continue
            for at, *column in np.argwhere(~np.isfinite(a)).tolist():
                row = BadRow(self.name, first + at + 1, name + str(column or ""), Reason.NOT_FINITE, "")
                bad.setdefault(at, row)
        for at in np.flatnonzero(w < 0).tolist() if w is not None else ():
            bad.setdefault(at, BadRow(self.name, first + at + 1, "weight", Reason.NEGATIVE_WEIGHT, f"{w[at]:g}"))
        if bad:
            good = np.ones(n, bool)
            good[list(bad)] = False
            X, y, w = X[good], y[good], None if w is None else w[good]
        return Block(X, y, w, n, [bad[at] for at in sorted(bad)])
