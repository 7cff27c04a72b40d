"""Dask collections and Spark DataFrames as the X and y of an estimator: divided into partitions, predicted lazily."""

import warnings
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from kalprox.engines.array_partitions import ArrayPartition
from kalprox.engines.cutting import comes_from, partitions_of
from kalprox.engines.spark_frame import SparkFrame

__all__ = ["is_collection", "partition_collection", "predict_collection"]


def is_collection(X: Any) -> bool:
    """Whether X is a collection of Dask or a DataFrame of Spark."""
    return comes_from(X, "dask") or comes_from(X, "pyspark")


def partition_collection(
    X: Any, y: Any, weights: Any = None, n: int | None = None, groups: Any = None, *, labels: bool = False
) -> tuple[list[Any], list[str] | None, int]:
    """Divide the rows that an estimator is fitted to into partitions.

    Parameters
    ----------
    X : array of NumPy or Dask, Dask dataframe, or Spark DataFrame
    y, weights : array, Dask series, or str
        The target and, optionally, the weights; for a Spark DataFrame the names of its columns.
    n : int, optional
        The number of partitions; see `partitions_of`.
    groups : array, Dask series, or str, optional
        The cluster of each row.
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

        if not isinstance(y, str) or not all(name is None or isinstance(name, str) for name in (weights, groups)):
            raise ValueError("With a Spark DataFrame, y, sample_weight and groups must be names of its columns.")
        features = [name for name in X.columns if name not in (y, weights, groups)]
        if labels:
            columns = Columns(None, weights, tuple(features), cluster=groups)
            return [SparkFrame(X if n is None else X.repartition(n), columns, y)], features, len(features)
        columns = Columns(y, weights, tuple(features), cluster=groups)
        return partitions_of(X, columns, n=n), features, len(features)
    names = list(map(str, X.columns)) if hasattr(X, "columns") else None
    arrays = _dask_arrays([X, y, weights, groups])
    kinds = (float, None if labels else float, float, None)  # groups may be of any type
    arrays = [
        a if a is None or is_collection(a) else np.asarray(a, kind) for a, kind in zip(arrays, kinds, strict=True)
    ]
    if arrays[0].ndim != 2 or arrays[1].ndim != 1:
        raise ValueError(f"X must have shape (n, d) and y (n,); got {arrays[0].ndim} and {arrays[1].ndim} dimensions.")
    partitions = partitions_of(tuple(arrays), n=n)
    if labels:
        partitions = [_with_labels(partition) for partition in partitions]
    return partitions, names, int(arrays[0].shape[1])


def _with_labels(partition: Any) -> Any:
    """Return a partition of arrays whose y has labels."""
    if isinstance(partition, ArrayPartition):
        return replace(partition, labels=True)
    return replace(partition, template=replace(partition.template, labels=True))


def _dask_arrays(given: list[Any]) -> list[Any]:
    """Return Dask dataframes and series as Dask arrays, and anything else as it is.

    Dask reads a few columns of small Parquet files in larger partitions than many columns, so that X and y of the same
    frame may be divided differently. Therefore dataframes and series are computed together, in the partitions of X.
    """
    with warnings.catch_warnings():  # objects are what the labels of classes and clusters are to become
        warnings.filterwarnings("ignore", "Dask currently has limited support for converting pandas extension dtypes")
        arrays = [a.to_dask_array() if hasattr(a, "to_dask_array") else a for a in given]
    frames = [a for a in given if a is not None]
    if not all(hasattr(a, "to_dask_array") for a in frames) or len({a.npartitions for a in frames}) > 1:
        return arrays
    X, *others = frames
    options = {"align_dataframes": False, "enforce_metadata": False, "meta": X._meta}
    try:
        parts = X.map_partitions(_values, *others, **options).to_delayed()
    except ValueError:  # they were read separately
        return arrays
    found = iter(range(len(frames)))
    return [None if a is None else _rows_of(parts, next(found), a) for a in arrays]


def _values(*frames: Any) -> list[np.ndarray]:
    return [frame.to_numpy() for frame in frames]


def _rows_of(parts: list[Any], index: int, like: Any) -> Any:
    """Return one array of each part as a Dask array with the columns and the type of another."""
    import dask.array as da

    shape = (np.nan, *like.shape[1:])
    chunks = [da.from_delayed(part[index], shape, dtype=like.dtype) for part in parts]
    return da.concatenate(chunks, allow_unknown_chunksizes=True)


def predict_collection(model: Any, X: Any, return_std: bool) -> Any:
    """The predictions of a fitted estimator for a collection, as a lazy collection.

    Parameters
    ----------
    model : object
        A fitted estimator with predict(X, return_std).
    X : Dask array, Dask dataframe, or Spark DataFrame
    return_std : bool
        Whether to return the standard deviations of the predictions too.

    Returns
    -------
    Dask array, or two of them
        For a Dask array.
    Dask series, or dataframe with the columns "mean" and "std"
        For a Dask dataframe.
    Spark DataFrame
        For a Spark DataFrame: the same frame with the additional column "mean" and, where asked for, "std".
    """
    if comes_from(X, "pyspark"):
        return _spark(model, X, return_std)
    if hasattr(X, "map_partitions") and hasattr(X, "columns"):
        import pandas as pd

        meta = pd.DataFrame({"mean": [0.0], "std": [0.0]}) if return_std else pd.Series([0.0], name="mean")
        return X.map_partitions(_frame, model, return_std, meta=meta)
    X = X.rechunk({1: -1})
    both = X.map_blocks(_block, model, return_std, chunks=(X.chunks[0], (1 + return_std,)), dtype=float)
    return (both[:, 0], both[:, 1]) if return_std else both[:, 0]


def _block(X: np.ndarray, model: Any, return_std: bool) -> np.ndarray:
    if len(X) == 0:
        return np.empty((0, 1 + return_std))
    return np.column_stack(model.predict(X, return_std=True)) if return_std else model.predict(X)[:, None]


def _frame(X: Any, model: Any, return_std: bool) -> Any:
    import pandas as pd

    found = _block(X, model, return_std)
    if return_std:
        return pd.DataFrame(found, columns=["mean", "std"], index=X.index)
    return pd.Series(found[:, 0], index=X.index, name="mean")


def _spark(model: Any, X: Any, return_std: bool) -> Any:
    from pyspark.sql.types import DoubleType, StructField, StructType

    added = ["mean", "std"][: 1 + return_std]
    names = list(map(str, model.feature_names_in_))
    schema = StructType([*X.schema.fields, *(StructField(name, DoubleType()) for name in added)])
    nameless = copy(model)
    del nameless.feature_names_in_  # the columns are selected by name below

    def run(batches: Any) -> Any:
        from kalprox.sources._arrow import pa

        for batch in batches:
            rows = [np.asarray(batch.column(name).to_numpy(zero_copy_only=False), float) for name in names]
            found = _block(np.column_stack(rows), nameless, return_std)
            columns = [*batch.columns, *(pa.array(column) for column in found.T)]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, *added])

    return X.mapInArrow(run, schema)
