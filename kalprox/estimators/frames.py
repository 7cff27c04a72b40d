"""Frames as they come: text, dates and levels, encoded as the files were that a model was fitted to."""

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from kalprox.sources.quarantine import BadRow

if TYPE_CHECKING:
    from kalprox.sources.encoding import Encoded
    from kalprox.sources.table_columns import TableColumns

__all__ = ["as_arrow", "check_encoded", "class_of", "column_names", "encode", "frame_kind", "is_raw", "same_columns"]

_FRAMES = {"pandas": ("DataFrame",), "polars": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}
_SHOWN = 5  # bad rows that a message shows


def frame_kind(X: Any) -> str | None:
    """Return "pandas", "polars" or "pyarrow" for a frame of theirs, else None."""
    library, name = class_of(X)
    return library if name in _FRAMES.get(library, ()) else None


def class_of(value: Any) -> tuple[str, str]:
    """Return the library that the class of a value comes from, and the name of the class."""
    return type(value).__module__.partition(".")[0], type(value).__name__


def column_names(X: Any) -> list[Any]:
    """Return the names of the columns of a frame."""
    match frame_kind(X):
        case "pyarrow":
            return list(X.schema.names)
        case "pandas":
            names: list[Any] = X.columns.tolist()  # in half the time of `list`
            return names
    return list(X.columns)


def same_columns(columns: Any, last: Any) -> bool:
    """Whether the columns of two frames are the same, found in a fraction of the time that their names take.

    False, too, if only their names are the same.
    """
    if type(columns) is not type(last):
        return False
    return columns.is_(last) if hasattr(columns, "is_") else bool(columns == last)  # an index of pandas has `is_`


def is_raw(columns: "TableColumns", X: Any) -> bool:
    """Whether X is a frame with the columns of a table, rather than with the columns of X that are made of them.

    Raise a TypeError for what is neither a frame nor an array of numbers.
    """
    kind = frame_kind(X)
    if kind is None:
        if type(X).__name__ == "LazyFrame":
            raise TypeError("X is a LazyFrame of polars: call collect() first.")
        if not scipy.sparse.issparse(X) and np.asarray(X).dtype.kind not in "fiub":
            raise TypeError(
                f"X must be a frame of pandas, polars or pyarrow with the columns {', '.join(columns.features)}, or an "
                f"array of the {len(columns.names)} numbers that are made of them; got {type(X).__name__}."
            )
        return False
    return kind == "pyarrow" or column_names(X) != columns.names or set(columns.names) == set(columns.features)


def encode(columns: "TableColumns", X: Any) -> "Encoded":
    """Encode the rows of a frame of pandas, polars or pyarrow by the description of a table.

    Parameters
    ----------
    columns : Columns or FormulaColumns
        Without the target, the weight or the clusters if the frame need not have them.
    X : frame
        Its other columns are ignored.
    """
    from kalprox.sources.readers.base import check_types

    wanted = columns.wanted
    table = as_arrow(X, list(wanted.names))
    check_types("X", table.schema, wanted)
    return columns.encode(table)


def as_arrow(X: Any, names: list[str]) -> Any:
    """Return some columns of a frame as a pyarrow table; raise a ValueError if one of them is not there."""
    import pyarrow as pa

    from kalprox.sources.readers.base import check_names

    check_names("X", column_names(X), names)

    kind = frame_kind(X)
    if kind == "polars":
        return X.select(names).to_arrow()
    if kind == "pyarrow":
        return X.select(names)
    return pa.table({name: _pandas_column(X[name]) for name in names})


def _pandas_column(column: Any) -> Any:
    """Return a column of pandas as a pyarrow array; one of mixed objects as text."""
    import pyarrow as pa

    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiu":
        return pa.array(column.to_numpy(), from_pandas=True)  # in half the time
    try:
        return pa.Array.from_pandas(column)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        missing = column.isna().tolist()
        cells = [None if gone else str(cell) for cell, gone in zip(column.tolist(), missing, strict=True)]
        return pa.array(cells, pa.string())


def _about_bad(bad: list[BadRow], n: int, *, drop: bool) -> str:
    """Return what must be said about the bad rows among n rows."""
    shown = "; ".join(
        f"row {row.row - 1}, column {row.column!r}: {row.reason}" + (f" ({row.value!r})" if row.value else "")
        for row in bad[:_SHOWN]
    )
    more = "; ..." if len(bad) > _SHOWN else ""
    what = "They were skipped." if drop else "Correct them, or skip them with missing='drop'."
    return f"{len(bad):,} of {n:,} rows cannot be used: {shown}{more}. {what}"


def check_encoded(encoded: "Encoded", *, drop: bool) -> list[BadRow]:
    """Warn of unknown levels and rounded numbers; raise a ValueError for bad rows, or warn of them and return them."""
    bad = [BadRow("frame", cell.at + 1, cell.column, cell.reason, cell.value) for cell in encoded.bad]
    for text in replace(encoded.notes, missing={}, unlabelled={}).texts():  # what may be missing is counted elsewhere
        warnings.warn(text, UserWarning, stacklevel=5)
    if bad:
        message = _about_bad(bad, len(encoded.X), drop=drop)
        if not drop:
            raise ValueError(message)
        warnings.warn(message, UserWarning, stacklevel=5)
    return bad
