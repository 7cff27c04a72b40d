"""Arrow arrays as NumPy arrays and back, by their buffers.

pyarrow's own conversions import pandas where it is installed, which takes longer than reading a small file.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kalprox.sources._arrow import pa

__all__ = ["aligned", "from_bytes", "from_numpy", "to_numpy"]


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
