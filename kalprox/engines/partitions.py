"""Partitions: pieces of a source that a worker opens by itself, and how sources are cut into them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kalprox._arrays import Array
from kalprox.engines.base import Folded, Part, Piece, fold
from kalprox.sources.files import STDIN, SourceError, Unreadable, find
from kalprox.sources.quarantine import BadRow, Reason

__all__ = ["ArrayPartition", "FilePartition", "FramePartition", "Partition", "partitions_of", "skipped"]

_BLOCK = 1 << 13  # rows of a block of arrays in memory


class Partition(Protocol):
    """A piece of a source that can be pickled and is opened where it is folded."""

    @property
    def name(self) -> str:
        """What bad rows and errors call it."""

    def pieces(self) -> Iterator[Piece]:
        """Its rows, in blocks, always the same ones in the same order."""


def folded(partition: Partition, index: int, part: Part) -> Folded:
    """What a partition comes to, on whichever machine this runs."""
    return fold(partition.name, index, partition.pieces(), part)


@dataclass(frozen=True)
class FilePartition:
    """Some files, or the rows from `start` to `stop` of one Parquet file, which are ends of row groups.

    files: by these names the workers must see them. options: of `kalprox.sources.table.Table`. shown: what bad rows and
    errors call the files, where that is something else.
    """

    files: tuple[str, ...]
    columns: Any
    options: dict[str, Any] = field(default_factory=dict)
    start: int = 0
    stop: int | None = None
    shown: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        rows = f", rows {self.start + 1} to {self.stop}" if self.stop is not None else ""
        return f"{(self.shown or self.files)[0]}{more}{rows}"

    def pieces(self) -> Iterator[Piece]:
        from kalprox.sources.table import Cursor, Table

        table = Table([Path(file) for file in self.files], self.columns, **self.options)
        shown = dict(zip(self.files, self.shown or self.files, strict=True))
        for block in table.blocks(Cursor(offset=self.start, row=self.start)):
            assert block.y is not None
            bad = [replace(row, file=shown[row.file]) for row in block.bad]
            yield Piece(block.X, block.y, block.weights, len(block.rows), bad)
            if self.stop is not None and block.cursor.row >= self.stop:
                return


@dataclass(frozen=True)
class ArrayPartition:
    """Arrays in memory: X (n, d), or (n,) for a function of a number, y (n,) or (n, k), weights (n,) or None.

    A row with a number that is not finite, or a negative weight, is a bad row.
    """

    X: Array
    y: Array
    weights: Array | None = None
    name: str = "arrays"

    def pieces(self) -> Iterator[Piece]:
        X, y, w = self.X, self.y, self.weights
        if len(X) != len(y) or (w is not None and len(w) != len(y)):
            raise SourceError(f"{self.name}: X, y and the weights must have as many rows; got {_lengths(X, y, w)}.")
        for begin in range(0, len(y), _BLOCK):
            rows = slice(begin, begin + _BLOCK)
            yield self._piece(begin, *(None if a is None else _float(a[rows]) for a in (X, y, w)))

    def _piece(self, begin: int, X: Any, y: Any, w: Any) -> Piece:
        n = len(y)
        bad: dict[int, BadRow] = {}
        for name, a in (("weight", w), ("y", y), ("X", X)):
            if a is None or np.isfinite(a.sum()):  # the common case, in one step
                continue
            for at, *column in np.argwhere(~np.isfinite(a)).tolist():
                cell = BadRow(self.name, begin + at + 1, name + str(column or ""), Reason.NOT_FINITE, "")
                bad.setdefault(at, cell)
        for at in np.flatnonzero(w < 0).tolist() if w is not None else ():
            bad.setdefault(at, BadRow(self.name, begin + at + 1, "weight", Reason.NEGATIVE_WEIGHT, f"{w[at]:g}"))
        if bad:
            good = np.ones(n, bool)
            good[list(bad)] = False
            X, y, w = X[good], y[good], None if w is None else w[good]
        return Piece(X, y, w, n, [bad[at] for at in sorted(bad)])


@dataclass(frozen=True)
class FramePartition:
    """A table in memory (pandas, or pyarrow in one or more batches), read as `columns` say."""

    tables: Any
    columns: Any
    name: str = "table"

    def pieces(self) -> Iterator[Piece]:
        from kalprox.sources._arrow import pa

        first = 0
        for table in self.tables if isinstance(self.tables, Iterator) else [self.tables]:
            if not isinstance(table, pa.Table | pa.RecordBatch):
                table = pa.Table.from_pandas(table[list(self.columns.wanted.names)], preserve_index=False)
            for begin in range(0, table.num_rows, _BLOCK):
                block = table.slice(begin, _BLOCK)
                yield self._piece(block, first + begin)
            first += table.num_rows

    def _piece(self, table: Any, first: int) -> Piece:
        X, y, w, cells = self.columns.encode(table)
        bad = [BadRow(self.name, first + cell.at + 1, cell.column, cell.reason, cell.value) for cell in cells]
        if cells:
            good = np.ones(len(X), bool)
            good[[cell.at for cell in cells]] = False
            X, y, w = X[good], y[good], None if w is None else w[good]
        return Piece(X, y, w, table.num_rows, bad)


def skipped(name: str, error: Exception) -> Piece:
    """In place of a partition that cannot be read: no row, but a bad one."""
    return Piece(np.empty((0, 0)), np.empty(0), None, 0, [BadRow(name, 0, "", Reason.UNREADABLE, str(error)[:80])])


def partitions_of(source: Any, columns: Any = None, *, n: int | None = None, **options: Any) -> list[Any]:
    """A source cut into partitions, in the order of its rows.

    source: a file, folder, glob or list of files, with `columns` (`kalprox.sources.columns.Columns`) and the options
    of `Table`; (X, y) or (X, y, weights), of NumPy or of Dask; a Dask or Spark DataFrame, with `columns`. n: how many
    partitions; by default one a file, one a chunk of Dask's, one in all for arrays in memory. For n larger than the
    number of files, Parquet files are cut between row groups. skip_unreadable (an option): a partition that cannot be
    read becomes a bad row instead of an error.
    """
    if _is(source, "pyspark"):
        from kalprox.engines.spark import SparkFrame

        return [SparkFrame(source if n is None else source.repartition(n), _needed(columns, source))]
    if _is(source, "dask") or (isinstance(source, tuple | list) and _is(source[0], "dask")):
        from kalprox.engines.dask import dask_partitions

        if not isinstance(source, tuple | list):
            columns = _needed(columns, source)
        return dask_partitions(source, columns, n, **options)
    if isinstance(source, str | Path):
        return _of_files(find(str(source)), _needed(columns, source), n, options)
    if isinstance(source, Sequence) and all(isinstance(file, str | Path) for file in source):
        return _of_files([Path(file) for file in source], _needed(columns, source), n, options)
    X, y, w = (*source, None)[:3]
    cuts = [len(y) * i // (n or 1) for i in range((n or 1) + 1)]
    return [
        ArrayPartition(X[a:b], y[a:b], None if w is None else w[a:b], f"rows {a + 1} to {b}") for a, b in pairwise(cuts)
    ]


def _of_files(files: list[Path], columns: Any, n: int | None, options: dict[str, Any]) -> list[Any]:
    if STDIN in files:
        raise SourceError("Standard input is read here, by one process: write it to a file that the workers can read.")
    if options.get("shuffle") is not None:
        raise SourceError("shuffle has no meaning for an engine: the sum over the rows does not depend on their order.")
    whole, shown = tuple(str(file.resolve()) for file in files), tuple(map(str, files))
    cuts = [len(files) * i // n for i in range(n + 1)] if n is not None and n < len(files) else range(len(files) + 1)
    parts = [FilePartition(whole[a:b], columns, options, shown=shown[a:b]) for a, b in pairwise(cuts)]
    if n is None or n <= len(files):
        return parts
    return [piece for file in parts for piece in _of_groups(file, -(-n // len(files)))]


def _of_groups(file: FilePartition, n: int) -> list[FilePartition]:
    """A Parquet file in up to n shares of its row groups; another one as it is."""
    from kalprox.sources._arrow import load
    from kalprox.sources.files import format_of

    path = Path(file.files[0])
    if format_of(path, file.options.get("format")) != "parquet":
        return [file]
    try:
        metadata = load("pyarrow.parquet").read_metadata(path)
    except (OSError, ValueError):  # said by the worker that reads it
        return [file]
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    ends = np.cumsum([0, *rows])
    cuts = sorted({int(ends[len(rows) * i // n]) for i in range(n + 1)})
    if len(cuts) <= 2:
        return [file]
    return [replace(file, start=a, stop=b) for a, b in pairwise(cuts)]


def _needed(columns: Any, source: Any) -> Any:
    if columns is None or columns.target is None:
        kind = type(source).__name__
        raise ValueError(f"columns must say which columns of the source, a {kind}, are the target and the features.")
    return columns


def _is(source: Any, package: str) -> bool:
    return any(kind.__module__.split(".")[0] in (package, f"{package}_expr") for kind in type(source).__mro__)


def _float(a: Any) -> np.ndarray:
    return np.asarray(a, np.float64)


def _lengths(*arrays: Any) -> str:
    return ", ".join(str(len(a)) for a in arrays if a is not None)


def unreadable(name: str, error: Exception) -> Unreadable:
    """The error with the partition's name."""
    return Unreadable(f"{name}: {error}")
