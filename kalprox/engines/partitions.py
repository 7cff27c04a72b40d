"""Partitions of arrays, frames and files, and of Dask and Spark, whose collections an estimator takes as X and y."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.base.checks import LARGEST, all_usable, row_sizes, usable
from kalprox.sources.base import Block
from kalprox.sources.files import STDIN, SourceError, Unreadable, find, format_of
from kalprox.sources.labels import labels_of, missing_labels, plain_labels
from kalprox.sources.quarantine import BadRow, Reason

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


@dataclass(frozen=True)
class DaskPartition:
    """A chunk of Dask arrays, or a partition of a Dask dataframe, which is computed where it is folded.

    Parameters
    ----------
    delayed : tuple
        The delayed values of X and y, and of the weights, the groups, the offset and the exposure if there are any; or
        the data frame.
    template : ArrayPartition or FramePartition
        The partition in memory that is filled with the computed values.
    skip_unreadable : bool
        Whether a partition that cannot be computed becomes a bad row instead of an error.
    names : tuple of str
        The field of the template that each value fills.
    """

    delayed: tuple[Any, ...]
    template: ArrayPartition | FramePartition
    skip_unreadable: bool = False
    names: tuple[str, ...] = ("tables",)

    @property
    def name(self) -> str:
        """The name of the partition in error messages and bad rows."""
        return self.template.name

    def blocks(self) -> Iterator[Block]:
        """The blocks, computed in this thread: for engines other than Dask's."""
        from dask.base import compute

        try:
            values = compute(*self.delayed, scheduler="synchronous")
        except Exception as error:
            if not self.skip_unreadable:
                raise unreadable(self.name, error) from error
            bad = BadRow(self.name, 0, "", Reason.UNREADABLE, str(error)[:80])
            yield Block(np.empty((0, 0)), np.empty(0), None, 0, [bad])
            return
        yield from self.loaded(*values).blocks()

    def loaded(self, *values: Any) -> ArrayPartition | FramePartition:
        """The partition in memory that has these values."""
        return replace(self.template, **dict(zip(self.names, values, strict=True)))


def unreadable(name: str, error: BaseException) -> Unreadable:
    """The error of a partition that cannot be computed, with the name of the partition."""
    return Unreadable(f"{name}: {error}")


def partitions_of(
    source: Any, columns: Any = None, *, n: int | None = None, labels: bool = False, **options: Any
) -> list[Any]:
    """Divide a source into partitions, in the order of its rows.

    Parameters
    ----------
    source : str, path, sequence of paths, tuple of arrays, or data frame
        A file, folder or glob; a list of files; arrays of NumPy or Dask, X, y, and optionally the weights, groups,
        offset and exposure, each of which may be None; a Dask or Spark DataFrame.
    columns : kalprox.sources.columns.Columns, optional
        The target, weight, clusters and features. Needed for files and data frames.
    n : int, optional
        The number of partitions. The default is one per file, one per chunk or partition of a Dask collection, and
        one for arrays in memory. Where `n` is larger than the number of files, Parquet files are divided between row
        groups.
    labels : bool
        For arrays, whether y has the labels of classes, numbers or text, which are left as they are.
    **options
        For files, keyword arguments of `kalprox.sources.table.Table`. For files and Dask collections,
        `skip_unreadable=True` turns a partition that cannot be read into a bad row instead of an error.

    Returns
    -------
    list of Partition

    Examples
    --------
    >>> import numpy as np
    >>> [partition.name for partition in partitions_of((np.ones((5, 2)), np.ones(5)), n=2)]
    ['rows 1 to 2', 'rows 3 to 5']
    """
    if comes_from(source, "pyspark"):
        return [SparkFrame(source if n is None else source.repartition(n), _checked(columns, source))]
    if comes_from(source, "dask") or (isinstance(source, tuple | list) and comes_from(source[0], "dask")):
        if not isinstance(source, tuple | list):
            columns = _checked(columns, source)
        return list(_dask_partitions(source, columns, n, labels, **options))
    if isinstance(source, str | Path):
        return list(_file_partitions(find(str(source)), _checked(columns, source), n, options))
    if isinstance(source, Sequence) and all(isinstance(file, str | Path) for file in source):
        return list(_file_partitions([Path(file) for file in source], _checked(columns, source), n, options))
    arrays = {name: a for name, a in zip(ARRAYS, source, strict=False) if a is not None}
    cuts = [len(arrays["y"]) * i // (n or 1) for i in range((n or 1) + 1)]
    return [
        ArrayPartition(
            **{name: array[a:b] for name, array in arrays.items()}, name=f"rows {a + 1} to {b}", labels=labels
        )
        for a, b in pairwise(cuts)
    ]


def comes_from(value: Any, package: str) -> bool:
    """Whether the class of `value`, or one of its bases, is from this package; nothing is imported to find out."""
    names = {package, "dask_expr"} if package == "dask" else {package}
    return any(kind.__module__.split(".")[0] in names for kind in type(value).__mro__)


def _checked(columns: Any, source: Any) -> Any:
    if columns is None or columns.target is None:
        kind = type(source).__name__
        raise ValueError(f"columns must name the target and the features of the source, a {kind}; got {columns!r}.")
    return columns


def _file_partitions(files: list[Path], columns: Any, n: int | None, options: dict[str, Any]) -> list[FilePartition]:
    """Files as partitions: one per file by default, else `n` groups of files or of row groups of Parquet files."""
    if STDIN in files:
        raise SourceError(
            "Standard input can only be read by this process: write it to a file that the workers can open."
        )
    if options.get("shuffle") is not None:
        raise SourceError("shuffle cannot be used with an engine: sums over rows do not depend on their order.")
    paths, shown = tuple(str(file.resolve()) for file in files), tuple(map(str, files))
    cuts = [len(files) * i // n for i in range(n + 1)] if n is not None and n < len(files) else range(len(files) + 1)
    partitions = [FilePartition(paths[a:b], columns, options, shown=shown[a:b]) for a, b in pairwise(cuts)]
    if n is None or n <= len(files):
        return partitions
    return [share for partition in partitions for share in _by_row_groups(partition, -(-n // len(files)))]


def _by_row_groups(partition: FilePartition, n: int) -> list[FilePartition]:
    """Up to `n` shares of the row groups of a Parquet file; a file of another format is not divided."""
    from kalprox.sources.arrow import load

    path = Path(partition.files[0])
    if format_of(path, partition.options.get("format")) != "parquet":
        return [partition]
    try:
        metadata = load("pyarrow.parquet").read_metadata(path)
    except (OSError, ValueError):  # the worker that reads the file raises the error
        return [partition]
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    ends = np.cumsum([0, *rows])
    cuts = sorted({int(ends[len(rows) * i // n]) for i in range(n + 1)})
    if len(cuts) <= 2:
        return [partition]
    return [replace(partition, start=a, stop=b) for a, b in pairwise(cuts)]


def _dask_partitions(
    source: Any, columns: Any, n: int | None, labels: bool, *, skip_unreadable: bool = False, **options: Any
) -> list[DaskPartition]:
    """One partition for each chunk of rows of arrays (see `partitions_of`), or for each partition of a dataframe."""
    if options:
        raise TypeError(f"{', '.join(options)} cannot be used with Dask collections.")
    if not isinstance(source, tuple | list):
        frame = source[list(columns.wanted.names)]
        frames = (frame if n is None else frame.repartition(npartitions=n)).to_delayed()
        return [
            DaskPartition((delayed,), FramePartition(None, columns, f"partition {i}"), skip_unreadable)
            for i, delayed in enumerate(frames)
        ]
    given = {name: a for name, a in zip(ARRAYS, source, strict=False) if a is not None}
    chunks = _read_together(list(given.values())) if n is None else []
    chunks = chunks or list(zip(*_aligned_chunks(list(given.values()), n), strict=True))
    return [
        DaskPartition(own, ArrayPartition(None, None, None, f"chunk {i}", labels=labels), skip_unreadable, tuple(given))
        for i, own in enumerate(chunks)
    ]


def _read_together(frames: list[Any]) -> list[tuple[Any, ...]]:
    """The delayed values of each partition of Dask dataframes and series; empty if they are divided differently.

    Dask reads a few columns of small Parquet files in larger partitions than many columns, so that X and y of the same
    frame may be divided differently. Therefore they are computed together, in the partitions of X.
    """
    if not all(hasattr(a, "to_dask_array") for a in frames) or len({a.npartitions for a in frames}) > 1:
        return []
    X, *others = frames
    options = {"align_dataframes": False, "enforce_metadata": False, "meta": X._meta}
    try:
        parts = X.map_partitions(_values, *others, **options).to_delayed()
    except ValueError:  # they were read separately
        return []
    return [tuple(part[i] for i in range(len(frames))) for part in parts]


def _values(*frames: Any) -> list[np.ndarray]:
    return [frame.to_numpy() for frame in frames]


def _aligned_chunks(source: list[Any], n: int | None) -> list[list[Any]]:
    """The delayed chunks of each array, divided at the same rows."""
    import dask.array as da

    with warnings.catch_warnings():  # objects are what the labels of classes and clusters are to become
        warnings.filterwarnings("ignore", "Dask currently has limited support for converting pandas extension dtypes")
        arrays = [a.to_dask_array() if hasattr(a, "to_dask_array") else a for a in source]
    X, *others = (a if isinstance(a, da.Array) else da.from_array(a) for a in arrays)
    if n is not None:
        X = X.rechunk({0: max(1, -(-X.shape[0] // n))})
    X = X.rechunk({1: -1}) if X.ndim == 2 else X
    aligned = [X]
    for a in others:
        if _has_known_length(a) and _has_known_length(X):
            if len(a) != len(X):
                lengths = f"{len(X)} and {len(a)}"
                raise SourceError(f"X, y and the other arrays must have the same number of rows; got {lengths}.")
            a = a.rechunk({0: X.chunks[0]})
        a = a.rechunk({1: -1}) if a.ndim == 2 else a
        if a.numblocks[0] != X.numblocks[0]:
            raise SourceError(
                f"X, y and the other arrays must have the same number of chunks; got {X.numblocks[0]} and "
                f"{a.numblocks[0]}. Take them from one frame, or persist each of them first."
            )
        aligned.append(a)
    return [list(a.to_delayed().ravel()) for a in aligned]


def _has_known_length(a: Any) -> bool:
    return not np.isnan(a.shape[0])


def is_collection(X: Any) -> bool:
    """Whether X is a collection of Dask or a DataFrame of Spark."""
    return comes_from(X, "dask") or comes_from(X, "pyspark")


def partition_collection(
    X: Any,
    y: Any,
    weights: Any = None,
    groups: Any = None,
    offset: Any = None,
    exposure: Any = None,
    *,
    labels: bool = False,
) -> tuple[list[Any], list[str] | None, int]:
    """Divide the rows that an estimator is fitted to into partitions.

    Parameters
    ----------
    X : array of NumPy or Dask, Dask dataframe, or Spark DataFrame
    y, weights : array, Dask series, or str
        The target and, optionally, the weights; for a Spark DataFrame the names of its columns.
    groups, offset, exposure : array, Dask series, or str, optional
        The cluster of each row, what is added to its linear predictor, and that of which the log is added.
    labels : bool
        Whether y has the labels of classes, numbers or text, which the blocks of the partitions have as they are.

    Returns
    -------
    partitions : list of Partition
    names : list of str, or None
        The names of the features, where X has any.
    d : int
        The number of features.
    """
    if comes_from(X, "pyspark"):
        from kalprox.sources.columns import Columns

        own = (y, weights, groups, offset, exposure)
        if not isinstance(y, str) or not all(name is None or isinstance(name, str) for name in own):
            raise ValueError(
                "With a Spark DataFrame, y, sample_weight, groups, offset and exposure must be names of its columns."
            )
        features = [name for name in X.columns if name not in own]
        target = None if labels else y
        columns = Columns(target, weights, tuple(features), cluster=groups, offset=offset, exposure=exposure)
        return [SparkFrame(X, columns, y if labels else None)], features, len(features)
    if scipy.sparse.issparse(X):
        raise TypeError("X must be dense on an engine; got a sparse matrix. Use engine=None, or X.toarray().")
    names = list(map(str, X.columns)) if hasattr(X, "columns") else None
    given = (X, y, weights, groups, offset, exposure)
    kinds = (float, None if labels else float, float, None, float, float)  # groups may be of any type
    arrays = [a if a is None or is_collection(a) else np.asarray(a, kind) for a, kind in zip(given, kinds, strict=True)]
    if arrays[0].ndim != 2 or arrays[1].ndim not in ((1,) if labels else (1, 2)):
        raise ValueError(
            f"X must have shape (n, d), and y (n,){'' if labels else ' or (n, k)'}; got {arrays[0].ndim} and "
            f"{arrays[1].ndim} dimensions."
        )
    return partitions_of(tuple(arrays), labels=labels), names, int(arrays[0].shape[1])


def predict_collection(
    predict: Callable[..., Array], model: Any, X: Any, results: dict[str, Any], by_row: dict[str, Any]
) -> Any:
    """The predictions of a fitted estimator for a collection, as a lazy collection.

    Parameters
    ----------
    predict : callable
        Returns the results of the rows of an array, shape (n, m), given the model, the array, and as keyword arguments
        what `by_row` has of them. It is sent to where the rows are.
    model : object
        The fitted estimator.
    X : Dask array, Dask dataframe, or Spark DataFrame
    results : dict
        The name of each of the m results, and its type, one that NumPy knows.
    by_row : dict
        Other values of each row: arrays or series of Dask, or the names of columns of a Spark DataFrame. Those that are
        None are left out.

    Returns
    -------
    Dask array of shape (n, m)
        For a Dask array.
    Dask dataframe
        For a Dask dataframe.
    Spark DataFrame
        For a Spark DataFrame: the same frame with the results as additional columns.
    """
    given = {name: a for name, a in by_row.items() if a is not None}
    if comes_from(X, "pyspark"):
        return _spark(predict, model, X, results, given)
    for name, a in given.items():
        if not is_collection(a):
            raise ValueError(f"{name} of a Dask collection must be one, too; got {type(a).__name__}.")
    if hasattr(X, "map_partitions") and hasattr(X, "columns"):
        import pandas as pd

        meta = pd.DataFrame({name: np.empty(0, kind) for name, kind in results.items()})
        return X.map_partitions(_frame, predict, model, list(results), list(given), *given.values(), meta=meta)
    X = X.rechunk({1: -1})
    others = [_array_like(a, X)[:, None] for a in given.values()]
    kind = np.result_type(*results.values())
    options = {"chunks": (X.chunks[0], (len(results),)), "dtype": kind, "meta": np.empty((0, 0), kind)}
    return X.map_blocks(_block, *others, predict=predict, model=model, names=list(given), m=len(results), **options)


def _array_like(a: Any, X: Any) -> Any:
    """Return a Dask array or series as an array in the chunks of X."""
    a = a.to_dask_array() if hasattr(a, "to_dask_array") else a
    known = not (np.isnan(a.shape[0]) or np.isnan(X.shape[0]))
    return a.rechunk({0: X.chunks[0]}) if known else a


def _block(X: Array, *others: Array, predict: Callable[..., Array], model: Any, names: list[str], m: int) -> Array:
    if len(X) == 0:
        return np.empty((0, m))
    return predict(model, X, **{name: np.ravel(a) for name, a in zip(names, others, strict=True)})


def _frame(
    X: Any, predict: Callable[..., Array], model: Any, results: list[str], names: list[str], *others: Any
) -> Any:
    import pandas as pd

    values = (other.to_numpy() for other in others)
    found = _block(X, *values, predict=predict, model=model, names=names, m=len(results))
    return pd.DataFrame(found, columns=results, index=X.index)


def _spark(predict: Callable[..., Array], model: Any, X: Any, results: dict[str, Any], by_row: dict[str, Any]) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    from kalprox.sources.arrow import pa

    names, added = list(map(str, model.feature_names_in_)), list(results)
    kinds = [pa.string() if np.dtype(kind).kind in "OU" else pa.from_numpy_dtype(kind) for kind in results.values()]
    fields = (StructField(name, from_arrow_type(kind)) for name, kind in zip(added, kinds, strict=True))
    schema = StructType([*X.schema.fields, *fields])
    nameless = copy(model)
    del nameless.feature_names_in_  # the columns are selected by name below

    def values(batch: Any, name: str) -> Array:
        return np.asarray(batch.column(name).to_numpy(zero_copy_only=False), float)

    def run(batches: Any) -> Any:
        for batch in batches:
            rows = np.column_stack([values(batch, name) for name in names])
            others = [values(batch, column) for column in by_row.values()]
            found = _block(rows, *others, predict=predict, model=nameless, names=list(by_row), m=len(added))
            columns = (pa.array(column.tolist(), kind) for column, kind in zip(found.T, kinds, strict=True))
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], names=[*batch.schema.names, *added])

    return X.mapInArrow(run, schema)
