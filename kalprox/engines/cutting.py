"""Dividing a source into partitions."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kalprox.engines.dask_partitions import dask_partitions
from kalprox.engines.partitions import ARRAYS, ArrayPartition, FilePartition, SparkFrame
from kalprox.sources.files import STDIN, SourceError, find, format_of

__all__ = ["comes_from", "partitions_of"]


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
        return list(dask_partitions(source, columns, n, labels, **options))
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
