"""Frames as they come: text, dates and levels, encoded as the files were that a model was fitted to.

Single rows are encoded cell by cell, others as tables of pyarrow.
"""

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.engines.partitions import is_collection
from kalprox.sources import Block
from kalprox.sources.quarantine import BadRow

if TYPE_CHECKING:
    from kalprox.sources.columns import TableColumns
    from kalprox.sources.row_parser import PlainRows


_FRAMES = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "Table"}  # which are read without a copy
NO_FRAMES = (np.ndarray, list, tuple)
_SHOWN = 5  # bad rows that a message shows
_PLAIN = frozenset((float, int, str))  # types of cells that need no closer look


def frame_kind(X: Any) -> str | None:
    """Return "pandas", "polars" or "pyarrow" for a frame of theirs, else None."""
    library, name = class_of(X)
    return library if name == _FRAMES.get(library) else None


def as_frame(X: Any) -> Any:
    """Return a frame of any other library as a table of pyarrow, and everything else as it is.

    A frame is what can be read by Arrow's protocol for streams: a relation of DuckDB, a record batch, a frame of
    narwhals. One that is lazy is collected first.
    """
    if type(X) in NO_FRAMES or frame_kind(X) is not None or is_collection(X):
        return X
    if hasattr(X, "collect_schema") and not hasattr(X, "__arrow_c_stream__"):  # lazy
        X = X.collect()
    if frame_kind(X) is not None or not hasattr(X, "__arrow_c_stream__"):
        return X
    import pyarrow as pa

    try:
        return pa.table(X)
    except (TypeError, ValueError):  # a single column
        return X


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
        if not scipy.sparse.issparse(X) and np.asarray(X).dtype.kind not in "fiub":
            raise TypeError(
                f"X must be a frame of pandas, polars or pyarrow with the columns {', '.join(columns.features)}, or an "
                f"array of the {len(columns.names)} numbers that are made of them; got {type(X).__name__}."
            )
        return False
    return kind == "pyarrow" or column_names(X) != columns.names or set(columns.names) == set(columns.features)


def encode(columns: "TableColumns", X: Any) -> Block:
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


def check_encoded(encoded: Block, *, drop: bool) -> tuple[list[BadRow], Array]:
    """Warn of unknown levels and rounded numbers; raise a ValueError for bad rows, or with `drop` warn of them.

    Returns the bad rows, and which rows are good.
    """
    n, good = len(encoded), np.ones(len(encoded), bool)
    for text in replace(encoded.notes, missing={}, unlabelled={}).texts():  # what may be missing is counted elsewhere
        warnings.warn(text, UserWarning, stacklevel=5)
    if not encoded.bad:
        return [], good
    good[[cell.at for cell in encoded.bad]] = False
    shown = "; ".join(
        f"row {cell.at}, column {cell.column!r}: {cell.reason}" + (f" ({cell.value!r})" if cell.value else "")
        for cell in encoded.bad[:_SHOWN]
    )
    more = "; ..." if len(encoded.bad) > _SHOWN else ""
    what = "They were skipped." if drop else "Correct them, or skip them with missing='drop'."
    message = f"{len(encoded.bad):,} of {n:,} rows cannot be used: {shown}{more}. {what}"
    if not drop:
        raise ValueError(message)
    warnings.warn(message, UserWarning, stacklevel=5)
    return [BadRow("frame", cell.at + 1, cell.column, cell.reason, cell.value) for cell in encoded.bad], good


class FrameEncoder:
    """Encodes frames by the description of a table, and keeps what it makes of that and of the names of columns.

    Parameters
    ----------
    columns : Columns or FormulaColumns
        Without the target, the weight or the clusters if the frames need not have them.
    """

    def __init__(self, columns: "TableColumns") -> None:
        from kalprox.sources.row_parser import PlainRows

        self.columns = columns
        self._names = [name for name in (*columns.features, columns.target, columns.weight) if name is not None]
        plain = PlainRows(columns, None, always_weighted=True)
        self._plain = plain if plain.possible and not columns.classes else None
        self._last: tuple[Any, list[int]] = None, []  # the columns of a frame, and the places of the names in them

    def encode(self, X: Any) -> Block:
        """Encode the rows of a frame of pandas, polars or pyarrow; its other columns are ignored."""
        found = None if self._plain is None or len(X) != 1 else self._encode_row(self._plain, X)
        return encode(self.columns, X) if found is None else found

    def _encode_row(self, plain: "PlainRows", X: Any) -> Block | None:
        """Encode a frame of one row, in a tenth of the time that a table takes; None if a cell takes a closer look."""
        kind = frame_kind(X)
        places = None if kind == "pyarrow" else self._places(X)
        if places is None:
            return None
        cells = X.row(0) if kind == "polars" else X.to_numpy()[0].tolist()
        row = {name: cells[at] for name, at in zip(self._names, places, strict=True)}
        found = plain.parse([row]) if _PLAIN.issuperset(map(type, row.values())) else None
        rows = None if found is None else found.asked if self.columns.target is None else found.taught
        if found is None or rows is None:
            return None
        return Block(rows.X, rows.y, rows.weights, notes=found.notes)

    def _places(self, X: Any) -> list[int] | None:
        """Return the places of the columns in a frame that has each of them once; None for others."""
        columns, (last, places) = X.columns, self._last
        if same_columns(columns, last):
            return places
        names = column_names(X)
        if any(names.count(name) != 1 for name in self._names):
            return None
        places = [names.index(name) for name in self._names]
        self._last = columns, places  # at once, since several threads may predict
        return places
