"""Dask collections and Spark frames as an estimator's X and y: cut into partitions, and predicted lazily."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from kalprox.engines.partitions import partitions_of

__all__ = ["cut", "is_collection", "is_partitioned", "names_of", "predict"]


def is_collection(X: Any) -> bool:
    """Whether X lies in Dask or Spark; neither is imported to find out."""
    return any(kind.__module__.split(".")[0] in ("dask", "dask_expr", "pyspark") for kind in type(X).__mro__)


def is_partitioned(source: Sequence[Any]) -> bool:
    """Whether a source is a list of partitions, or lies in Dask."""
    return hasattr(source[0], "pieces") or is_collection(source[0])


def names_of(X: Any) -> list[str] | None:
    """The names of the columns, where X has any."""
    return list(map(str, X.columns)) if hasattr(X, "columns") else None


def cut(X: Any, y: Any, weights: Any, n: int | None = None) -> tuple[list[Any], list[str] | None, int]:
    """Partitions, names of the features, and how many there are.

    X and y (and weights): arrays of NumPy or Dask, or a Dask dataframe and series; or a Spark frame, and the name of
    its target (and weight).
    """
    if _of(X, "pyspark"):
        from kalprox.sources.columns import Columns

        if not isinstance(y, str) or not (weights is None or isinstance(weights, str)):
            raise ValueError("With a Spark frame, y and sample_weight are names of its columns.")
        features = [name for name in X.columns if name not in (y, weights)]
        columns = Columns(y, weights, tuple(features), {}, (), False, "zero", tuple(features))
        return partitions_of(X, columns, n=n), features, len(features)
    names = names_of(X)
    arrays = [a.to_dask_array() if hasattr(a, "to_dask_array") else a for a in (X, y, weights) if a is not None]
    arrays = [a if is_collection(a) else np.asarray(a, float) for a in arrays]
    if arrays[0].ndim != 2 or arrays[1].ndim != 1:
        raise ValueError(f"X must have shape (n, d) and y (n,); got {arrays[0].ndim} and {arrays[1].ndim} dimensions.")
    return partitions_of(tuple(arrays), n=n), names, int(arrays[0].shape[1])


def predict(model: Any, X: Any, return_std: bool) -> Any:
    """What `model` predicts of a collection, as one: nothing is computed before it is asked for.

    Of a Dask array, arrays; of a Dask dataframe, a series, or a frame of mean and std; of a Spark frame, the frame with
    columns mean and std besides.
    """
    if _of(X, "pyspark"):
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
    del nameless.feature_names_in_  # the columns are picked by name below

    def run(batches: Any) -> Any:
        from kalprox.sources._arrow import pa

        for batch in batches:
            rows = [np.asarray(batch.column(name).to_numpy(zero_copy_only=False), float) for name in names]
            found = _block(np.column_stack(rows), nameless, return_std)
            columns = [*batch.columns, *(pa.array(column) for column in found.T)]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, *added])

    return X.mapInArrow(run, schema)


def _of(X: Any, package: str) -> bool:
    return any(kind.__module__.split(".")[0] == package for kind in type(X).__mro__)
