"""The types of pyarrow columns."""

from typing import Any

from kalprox.sources._arrow import pa

__all__ = ["is_date", "is_label", "is_number", "is_text", "plain"]


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


_FLOAT, _BYTES = pa.float64(), pa.binary()
