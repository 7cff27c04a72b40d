"""Partitions of arrays and of data frames in memory, of files, and of a Spark DataFrame."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import LARGEST, all_usable, row_sizes, usable
from kalprox.sources.base import Block
from kalprox.sources.files import SourceError
from kalprox.sources.labels import labels_of, missing_labels, plain_labels
from kalprox.sources.quarantine import BadRow, Reason

__all__ = ["ARRAYS", "ArrayPartition", "FilePartition", "FramePartition", "SparkFrame"]

_BLOCK_ROWS = 1 << 13  # rows per block of a partition in memory
ARRAYS = ("X", "y", "weights", "groups", "offset", "exposure")  # that an `ArrayPartition` may have


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
    offset, exposure : arrays of shape (n,), optional
        What is added to the linear predictor, and that of which the log is added. A row whose exposure is not positive
        is bad.
    """

    X: Array
    y: Array
    weights: Array | None = None
    name: str = "arrays"
    groups: Any = None
    labels: bool = False
    offset: Array | None = None
    exposure: Array | None = None

    def blocks(self) -> Iterator[Block]:
        """The rows in blocks of at most `_BLOCK_ROWS` rows."""
        arrays = [getattr(self, name) for name in ARRAYS]
        lengths = [len(a) for a in arrays if a is not None]
        if len(set(lengths)) > 1:
            raise SourceError(
                f"{self.name}: X, y and the other arrays must have the same number of rows; got "
                f"{', '.join(map(str, lengths))}."
            )
        for first in range(0, len(self.y), _BLOCK_ROWS):
            rows = slice(first, first + _BLOCK_ROWS)
            yield self._block(first, *(None if a is None else a[rows] for a in arrays))

    def _block(self, first: int, X: Any, y: Any, w: Any, groups: Any, offset: Any, exposure: Any) -> Block:
        X, w, offset, exposure = (None if a is None else np.asarray(a, np.float64) for a in (X, w, offset, exposure))
        y = plain_labels(y) if self.labels else np.asarray(y, np.float64)
        n, labels = len(y), None
        bad: dict[int, BadRow] = {}

        def note(at: Array, column: str, why: Reason, values: Array | None = None) -> None:
            for i in np.flatnonzero(at).tolist():
                shown = "" if values is None else f"{values[i]:g}"
                bad.setdefault(i, BadRow(self.name, first + i + 1, column, why, shown))

        numbers = np.zeros(n) if self.labels else y
        if not all_usable(w, X.ravel("K"), numbers.ravel("K")):
            bad = self._unusable(first, X, numbers, w)
        if self.labels:
            note(missing_labels(y), "y", Reason.MISSING)
        if w is not None:
            note(w < 0, "weight", Reason.NEGATIVE_WEIGHT, w)
        if groups is not None:
            labels, missing = labels_of(np.asarray(groups))
            note(missing, "groups", Reason.MISSING)
        for name, values in (("offset", offset), ("exposure", exposure)):
            if values is not None:
                note(~np.isfinite(values), name, Reason.NOT_FINITE)
        if exposure is not None:
            note(~(exposure > 0), "exposure", Reason.NO_EXPOSURE, exposure)
            logs = np.log(np.where(exposure > 0, exposure, 1.0))
            offset = logs if offset is None else offset + logs
        if bad:
            good = np.ones(n, bool)
            good[list(bad)] = False
            X, y, w, labels, offset = (None if a is None else a[good] for a in (X, y, w, labels, offset))
        return Block(X, y, w, n, [bad[at] for at in sorted(bad)], groups=labels, offset=offset)

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


@dataclass(frozen=True)
class FramePartition:
    """A table in memory.

    Parameters
    ----------
    tables : pandas DataFrame, pyarrow Table or RecordBatch, or an iterator of them
    columns : kalprox.sources.columns.Columns
        The target, weight, clusters and features, and how the features are encoded.
    name : str
        The name of the partition in error messages and bad rows.
    labels : str, optional
        The column with the labels of classes, which are left as they are, if `columns` has no target. A row without one
        is bad.
    """

    tables: Any
    columns: Any
    name: str = "table"
    labels: str | None = None

    def blocks(self) -> Iterator[Block]:
        """The rows in blocks of at most `_BLOCK_ROWS` rows."""
        from kalprox.sources.arrow import pa

        rows_before = 0
        for table in self.tables if isinstance(self.tables, Iterator) else [self.tables]:
            if not isinstance(table, pa.Table | pa.RecordBatch):
                table = pa.Table.from_pandas(table[list(self.columns.wanted.names)], preserve_index=False)
            for first in range(0, table.num_rows, _BLOCK_ROWS):
                yield self._block(table.slice(first, _BLOCK_ROWS), rows_before + first)
            rows_before += table.num_rows

    def _block(self, table: Any, first: int) -> Block:
        encoded = self.columns.encode(table)
        bad = {
            cell.at: BadRow(self.name, first + cell.at + 1, cell.column, cell.reason, cell.value)
            for cell in encoded.bad
        }
        labels = None
        if self.labels is not None:
            labels = plain_labels(table.column(self.labels).to_pylist())
            for at in np.flatnonzero(missing_labels(labels)).tolist():
                bad.setdefault(at, BadRow(self.name, first + at + 1, self.labels, Reason.MISSING, ""))
        rows: Block = encoded
        if bad:
            good = np.ones(table.num_rows, bool)
            good[list(bad)] = False
            rows, labels = encoded.at(good), None if labels is None else labels[good]
        y, refused = rows.y if labels is None else labels, [bad[at] for at in sorted(bad)]
        return replace(rows, y=y, read=table.num_rows, bad=refused, notes=encoded.notes)


@dataclass(frozen=True)
class FilePartition:
    """One or several files, or some row groups of one Parquet file.

    Parameters
    ----------
    files : tuple of str
        Paths under which the workers can open the files.
    columns : kalprox.sources.columns.Columns
        The target, weight, clusters and features, and how the features are encoded.
    options : dict
        Keyword arguments of `kalprox.sources.table.Table`.
    start, stop : int
        The rows of a Parquet file from `start` up to, not including, `stop`; both are boundaries of row groups. The
        default is the whole file.
    shown : tuple of str
        The names of the files in error messages and bad rows. The default is `files`.
    """

    files: tuple[str, ...]
    columns: Any
    options: dict[str, Any] = field(default_factory=dict)
    start: int = 0
    stop: int | None = None
    shown: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The first file, the number of other files, and the range of rows where it is not the whole file."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        rows = f", rows {self.start + 1} to {self.stop}" if self.stop is not None else ""
        return f"{(self.shown or self.files)[0]}{more}{rows}"

    def blocks(self) -> Iterator[Block]:
        """The blocks of `Table.blocks` for these files."""
        from kalprox.sources.table import Cursor, Table

        table = Table([Path(file) for file in self.files], self.columns, **self.options)
        shown = dict(zip(self.files, self.shown or self.files, strict=True))
        for block in table.blocks(Cursor(offset=self.start, row=self.start)):
            yield replace(block, bad=[replace(row, file=shown[row.file]) for row in block.bad])
            if self.stop is not None and block.place.cursor.row >= self.stop:
                table.check_unchanged()
                return


@dataclass(frozen=True)
class SparkFrame:
    """All partitions of a Spark DataFrame, which only `SparkEngine` can fold.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
    columns : kalprox.sources.columns.Columns
        The target, weight, clusters and features, and how the features are encoded.
    labels : str, optional
        The column with the labels of classes, if `columns` has no target.
    """

    frame: Any
    columns: Any
    labels: str | None = None

    @property
    def name(self) -> str:
        """The name in error messages."""
        return "the Spark DataFrame"

    def blocks(self) -> Iterator[Block]:
        """Raise SourceError: the rows of a Spark DataFrame stay on its executors."""
        raise SourceError("A Spark DataFrame needs its own engine: use engine='spark' or the session of the DataFrame.")
