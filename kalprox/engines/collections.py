"""Dask collections and Spark DataFrames as the X and y of an estimator: divided into partitions, predicted lazily."""

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.engines.partitions import SparkFrame, comes_from, partitions_of

__all__ = ["is_collection", "partition_collection", "predict_collection"]


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
