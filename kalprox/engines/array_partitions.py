"""Partitions of arrays in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import LARGEST, all_usable, row_sizes, usable
from kalprox.sources.base import Block
from kalprox.sources.files import SourceError
from kalprox.sources.labels import labels_of, missing_labels, plain_labels
from kalprox.sources.quarantine import BadRow, Reason

__all__ = ["BLOCK_ROWS", "ArrayPartition"]

BLOCK_ROWS = 1 << 13  # rows per block of a partition in memory


@dataclass(frozen=True)
class ArrayPartition:
    """Arrays in memory. A row with a value that is not finite or too large, a bad weight or no cluster is a bad row.

    Parameters
    ----------
    X : array of shape (n, d), or (n,) for a function of one number
    y : array of shape (n,) or (n, k)
    weights : array of shape (n,), optional
    name : str
        The name of the partition in error messages and bad rows.
    groups : array of shape (n,), optional
        The cluster of each row: numbers, text or any other values.
    labels : bool
        Whether y has the labels of classes, numbers or text, which are left as they are. A row without one is bad.
    """

    X: Array
    y: Array
    weights: Array | None = None
    name: str = "arrays"
    groups: Any = None
    labels: bool = False

    def blocks(self) -> Iterator[Block]:
        """The rows in blocks of at most `BLOCK_ROWS` rows."""
        X, y, w, groups = self.X, self.y, self.weights, None if self.groups is None else np.asarray(self.groups)
        lengths = [len(a) for a in (X, y, w, groups) if a is not None]
        if len(set(lengths)) > 1:
            raise SourceError(
                f"{self.name}: X, y, the weights and the groups must have the same number of rows; got "
                f"{', '.join(map(str, lengths))}."
            )
        for first in range(0, len(y), BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            X_, w_ = (None if a is None else np.asarray(a[rows], np.float64) for a in (X, w))
            y_ = plain_labels(y[rows]) if self.labels else np.asarray(y[rows], np.float64)
            yield self._block(first, None if groups is None else groups[rows], X_, y_, w_)

    def _block(self, first: int, groups: Any, X: Any, y: Any, w: Any) -> Block:
        n, labels = len(y), None
        bad: dict[int, BadRow] = {}
        numbers = np.zeros(n) if self.labels else y
        if not all_usable(w, X.ravel("K"), numbers.ravel("K")):
            bad = self._unusable(first, X, numbers, w)
        for at in np.flatnonzero(missing_labels(y)).tolist() if self.labels else ():
            bad.setdefault(at, BadRow(self.name, first + at + 1, "y", Reason.MISSING, ""))
        for at in np.flatnonzero(w < 0).tolist() if w is not None else ():
            bad.setdefault(at, BadRow(self.name, first + at + 1, "weight", Reason.NEGATIVE_WEIGHT, f"{w[at]:g}"))
        if groups is not None:
            labels, missing = labels_of(groups)
            for at in np.flatnonzero(missing).tolist():
                bad.setdefault(at, BadRow(self.name, first + at + 1, "groups", Reason.MISSING, ""))
        if bad:
            good = np.ones(n, bool)
            good[list(bad)] = False
            X, y, w, labels = (None if a is None else a[good] for a in (X, y, w, labels))
        return Block(X, y, w, n, [bad[at] for at in sorted(bad)], groups=labels)

    def _unusable(self, first: int, X: Array, y: Array, w: Array | None) -> dict[int, BadRow]:
        """The rows that are not finite or too large, by their positions."""
        bad: dict[int, BadRow] = {}
        for name, a in (("y", y), ("X", X)) if w is None else (("weight", w), ("y", y), ("X", X)):
            for at, *column in np.argwhere(~(np.abs(a) <= LARGEST)).tolist():
                value = a[(at, *column)]
                why, shown = (Reason.TOO_LARGE, f"{value:g}") if np.isfinite(value) else (Reason.NOT_FINITE, "")
                bad.setdefault(at, BadRow(self.name, first + at + 1, name + str(column or ""), why, shown))
        if w is not None:
            for at in np.flatnonzero(~usable(w, row_sizes(X, y))).tolist():
                row = BadRow(self.name, first + at + 1, "weight", Reason.WEIGHT_TOO_LARGE, f"{w[at]:g}")
                bad.setdefault(at, row)
        return bad
