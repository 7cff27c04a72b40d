"""pyarrow, or what to install where it is missing; the types of its columns; its arrays as NumPy arrays and back."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kalprox.base import extras


def load(name: str) -> Any:
    """Import the module `name` of pyarrow."""
    return extras.load(name, "files", "Reading files needs")


pa: Any = load("pyarrow")
pc: Any = load("pyarrow.compute")
_FLOAT, _BYTES = pa.float64(), pa.binary()


def is_text(kind: Any) -> bool:
    """Whether cells of this type are text."""
    t = pa.types
    kinds = (t.is_string, t.is_large_string, t.is_string_view, t.is_binary, t.is_large_binary, t.is_binary_view)
    return any(test(kind) for test in kinds)


def is_number(kind: Any) -> bool:
    """Whether cells of this type are numbers or booleans, or all of them are missing."""
    t = pa.types
    return any(test(kind) for test in (t.is_integer, t.is_floating, t.is_decimal, t.is_boolean, t.is_null))


def is_date(kind: Any) -> bool:
    """Whether cells of this type are dates or timestamps."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def is_label(kind: Any) -> bool:
    """Whether a cell of this type can be the label of a cluster: any single value."""
    return is_number(kind) or is_date(kind) or pa.types.is_time(kind)


def plain(column: Any) -> Any:
    """A column as one array without chunks or dictionary; text as bytes."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if column.type == _FLOAT:  # the most common type needs no further step
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(_BYTES) if is_text(column.type) else column


def to_numpy(column: Any) -> np.ndarray:
    """An array of numbers or booleans without a copy where possible; a null is NaN among floats, otherwise 0 or False.

    >>> to_numpy(pa.array([1.5, None])), to_numpy(pa.array([7, 8, 9])[1:]), to_numpy(pa.array([True, None]))
    (array([1.5, nan]), array([8, 9]), array([ True, False]))
    """
    validity, data = column.buffers()
    if pa.types.is_boolean(column.type):
        values = _bits(data, column)
    else:
        kind = np.dtype(column.type.to_pandas_dtype())
        values = np.frombuffer(data, kind, len(column), column.offset * kind.itemsize) if data else np.empty(0, kind)
    if column.null_count == 0:
        return values
    return np.where(_bits(validity, column), values, np.nan if values.dtype.kind == "f" else values.dtype.type(0))


def from_numpy(values: np.ndarray, null: np.ndarray | None = None) -> Any:
    """Numbers as an Arrow array without a copy; booleans, packed. Cells where `null` is True are null.

    >>> from_numpy(np.array([1, 2]), np.array([False, True])).to_pylist(), from_numpy(np.array([True])).to_pylist()
    ([1, None], [True])
    """
    packed = values.dtype == bool
    kind = pa.bool_() if packed else pa.from_numpy_dtype(values.dtype)
    data = np.packbits(values, bitorder="little") if packed else np.ascontiguousarray(values)
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(data)])


def from_bytes(cells: Sequence[bytes | None]) -> Any:
    """Cells of text as an Arrow array of bytes.

    >>> from_bytes([b"a", None, b""]).to_pylist()
    [b'a', None, b'']
    """
    null = np.array([cell is None for cell in cells], bool)
    ends = np.cumsum([0, *(0 if cell is None else len(cell) for cell in cells)], dtype=np.int32)
    text = b"".join(cell for cell in cells if cell is not None)
    validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(cells), [validity, pa.py_buffer(ends), pa.py_buffer(text)])


def aligned(table: Any, places: np.ndarray, n: int) -> Any:
    """The rows of a pyarrow table at their places among n rows; the other rows are null.

    >>> aligned(pa.table({"a": [5, 6]}), np.array([0, 2]), 3).column("a").to_pylist()
    [5, None, 6]
    """
    if len(places) == n:
        return table
    at = np.full(n, -1)
    at[places] = np.arange(len(places))
    return table.take(from_numpy(at, at < 0))


def _bits(buffer: Any, column: Any) -> np.ndarray:
    """The bits of a buffer that belong to the cells of a column, as booleans."""
    first, start = column.offset // 8, column.offset % 8
    packed = np.frombuffer(buffer, np.uint8, (start + len(column) + 7) // 8, first) if buffer else np.empty(0, np.uint8)
    return np.unpackbits(packed, count=start + len(column), bitorder="little")[start:].astype(bool)
