"""Dividing a source into partitions."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from kalprox.engines.dask_partitions import dask_partitions
from kalprox.engines.file_partitions import file_partitions
from kalprox.engines.partitions import ARRAYS, ArrayPartition, SparkFrame
from kalprox.sources.files import find

__all__ = ["comes_from", "partitions_of"]


def partitions_of(source: Any, columns: Any = None, *, n: int | None = None, **options: Any) -> list[Any]:
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
        return list(dask_partitions(source, columns, n, **options))
    if isinstance(source, str | Path):
        return list(file_partitions(find(str(source)), _checked(columns, source), n, options))
    if isinstance(source, Sequence) and all(isinstance(file, str | Path) for file in source):
        return list(file_partitions([Path(file) for file in source], _checked(columns, source), n, options))
    arrays = {name: a for name, a in zip(ARRAYS, source, strict=False) if a is not None}
    cuts = [len(arrays["y"]) * i // (n or 1) for i in range((n or 1) + 1)]
    return [
        ArrayPartition(**{name: array[a:b] for name, array in arrays.items()}, name=f"rows {a + 1} to {b}")
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
