"""Parsing the cells of a column as numbers, dates, levels or labels, with a reason for each cell that cannot be parsed.

Each parser returns (values, faults): faults is None where every cell is good. The value of a bad cell is 0 or NaN.
"""

from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.checks import LARGEST
from kalprox.sources._arrow import pa, pc
from kalprox.sources.arrow_arrays import from_bytes, from_numpy, to_numpy
from kalprox.sources.cell_types import is_number, plain
from kalprox.sources.labels import label_of
from kalprox.sources.levels import LevelIndex, level_hash
from kalprox.sources.quarantine import Reason

__all__ = [
    "MISSING",
    "Faults",
    "cell_labels",
    "certainly_exact",
    "hash_levels",
    "parse_booleans",
    "parse_days",
    "parse_labels",
    "parse_levels",
    "parse_numbers",
    "rounded",
    "shown",
    "why_bad",
    "why_invalid",
]

MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "-", "--", "?"]
MISSING_CELLS = from_bytes([text.encode() for text in MISSING])
EMPTY_CELL = MISSING_CELLS[0]
NUMBER = r"(?i)^[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?[ \t]*$|^[ \t]*[+-]?(nan|inf|infinity)[ \t]*$"
_FLOAT, _BYTES = pa.float64(), pa.binary()
_DAY = 86_400e6  # microseconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BLANKS = r"^[ \t]+|[ \t]+$"
_WHOLE = 2.0**53  # all smaller integers are numbers of float64, and no other integer is rounded to one of them
_BELOW_WHOLE = _WHOLE - 1
_MANY_DIGITS = r"[0-9.]{16}"
_DIGITS = Context(prec=400)  # more than a float64 of at most LARGEST has
_BOOLEANS = {"true": b"1", "false": b"0"}


class Faults(NamedTuple):
    """The positions of the bad cells in their column, and the reason of each."""

    at: np.ndarray
    why: list[Reason]


def shown(column: Any, at: int) -> str:
    """The first 80 characters of a cell, for a bad row; "" for a missing cell."""
    value = column[at].as_py()
    if value is None:
        return ""
    return (value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value))[:80]


def parse_numbers(column: Any) -> tuple[np.ndarray, Faults | None]:
    """A column as float64; every cell that is not a finite number, or larger than `LARGEST` in size, is bad."""
    column = plain(column)
    if column.type == _BYTES:
        return _from_text(column)
    values = _float(column)
    if _within(values, LARGEST):
        return values, None
    at = np.flatnonzero(~(np.abs(values) <= LARGEST))
    null = to_numpy(column.is_null())[at]
    reasons = [Reason.MISSING if missing else why_bad(values[i]) for i, missing in zip(at, null, strict=True)]
    return values, Faults(at, reasons)


def certainly_exact(column: Any) -> bool:
    """Whether each cell of a float64 column is null or below 2^53 in size: no integer that was rounded, and not NaN."""
    column = plain(column)
    return _within(to_numpy(column.drop_null() if column.null_count else column), _BELOW_WHOLE)


def _within(values: np.ndarray, limit: float) -> bool:
    """Whether no value is NaN or larger than `limit` in size, without a temporary array."""
    return not len(values) or bool(-limit <= values.min() and values.max() <= limit)


def rounded(column: Any, values: np.ndarray) -> np.ndarray:
    """The positions of the cells of a column that have more digits than their float64 values.

    A value has all digits of a cell where, rounded to as many places as the cell has, it is the cell. In text, only
    numbers of at least 2^53 in size are looked at.
    """
    column = plain(column)
    kind = column.type
    if kind == _BYTES:
        at = np.flatnonzero((np.abs(values) >= _WHOLE) & (np.abs(values) <= LARGEST))
        if len(at):
            at = at[to_numpy(pc.match_substring_regex(column.take(from_numpy(at)), _MANY_DIGITS))]
        return at[[_loses_digits(Decimal(column[i].as_py().strip().decode()), values[i]) for i in at.tolist()]]
    if pa.types.is_decimal(kind):
        # An integer up to 2^52, in units of the last place, has all its digits.
        at = np.flatnonzero(np.abs(values) > 0.5 * _WHOLE * 10.0**-kind.scale)
        return at[[_loses_digits(column[i].as_py(), values[i]) for i in at.tolist()]]
    if kind not in (pa.int64(), pa.uint64()) or not (np.abs(values) >= _WHOLE).any():
        return np.empty(0, np.int64)
    whole = to_numpy(column)
    end = 2.0 ** (63 if kind == pa.int64() else 64)  # values that are rounded up to it are no integers of this type
    inside = np.where(np.nan_to_num(values) < end, np.nan_to_num(values), 0.0)
    return np.flatnonzero(inside.astype(whole.dtype) != whole)


def _loses_digits(cell: Decimal, value: float) -> bool:
    return Decimal(float(value)).quantize(cell, context=_DIGITS) != cell


def parse_booleans(column: Any) -> tuple[np.ndarray, Faults | None]:
    """A column as float64, where text may also be true or false, in the spellings of `label_of`."""
    column = plain(column)
    if column.type != _BYTES:
        return parse_numbers(column)
    coded = column.dictionary_encode(null_encoding="encode")
    cells = [_BOOLEANS.get(str(_label(cell)), cell) for cell in coded.dictionary.to_pylist()]
    values, faults = parse_numbers(from_bytes(cells))
    codes = to_numpy(coded.indices)
    why = {} if faults is None else dict(zip(faults.at.tolist(), faults.why, strict=True))
    at = np.flatnonzero(np.isin(codes, list(why)))
    return values[codes], (Faults(at, [why[codes[i]] for i in at]) if len(at) else None)


def why_bad(value: float) -> Reason:
    """Why a number that is not at most `LARGEST` in size cannot be used."""
    return Reason.TOO_LARGE if np.isfinite(value) else Reason.NOT_FINITE


def parse_days(column: Any) -> tuple[np.ndarray, Faults | None]:
    """Dates, timestamps or ISO 8601 text as days since 1970-01-01, in UTC where a time zone is given."""
    column = plain(column)
    if column.type != _BYTES:
        null = to_numpy(column.is_null())
        values = np.where(null, np.nan, _in_days(column))
        at = np.flatnonzero(null)
        return values, (Faults(at, [Reason.MISSING] * len(at)) if len(at) else None)
    parsed, codes = _parse_distinct(column, _day)
    return _separate(parsed, codes, np.nan)


def parse_levels(column: Any, known: LevelIndex) -> tuple[np.ndarray, Faults | None]:
    """The number of each cell's level in `known`; -1 for a bad cell, also one with another level (Reason.UNSEEN)."""
    column = plain(column)
    coded = column.dictionary_encode(null_encoding="encode")
    texts: list[bytes | None] = [None] * len(coded.dictionary)
    if column.type == _BYTES:
        texts = coded.dictionary.to_pylist()
    elif is_number(column.type):
        texts = coded.dictionary.cast(pa.string()).cast(_BYTES).to_pylist()
    parsed: list[Any] = [known.find(text or None) for text in texts]
    if None in parsed:
        labels = cell_labels(coded.dictionary)
        parsed = [_level(label, known) if found is None else found for found, label in zip(parsed, labels, strict=True)]
    values, faults = _separate(parsed, to_numpy(coded.indices), -1)
    return values.astype(np.int64), faults


def _level(label: str | Reason, known: LevelIndex) -> int | Reason:
    """The number of the level with this label, or the reason why there is none."""
    if isinstance(label, Reason):
        return label
    found = known.find(None, label)
    return Reason.UNSEEN if found is None else found


def parse_labels(column: Any) -> tuple[np.ndarray, Faults | None]:
    """The label of each cell, see `label_of`; "" for a bad cell, one that is missing or not text."""
    coded = plain(column).dictionary_encode(null_encoding="encode")
    found = cell_labels(coded.dictionary)
    codes = to_numpy(coded.indices)
    labels = np.array(["" if isinstance(label, Reason) else label for label in found], str)
    bad = np.array([isinstance(label, Reason) for label in found], bool)
    at = np.flatnonzero(bad[codes])
    return labels[codes], (Faults(at, [found[codes[i]] for i in at]) if len(at) else None)


def hash_levels(column: Any) -> tuple[np.ndarray, np.ndarray, Faults | None]:
    """The distinct hashes of the levels of a column, the index of each cell's among them, and the bad cells.

    The index of a bad cell is -1.
    """
    coded = plain(column).dictionary_encode(null_encoding="encode")
    labels = cell_labels(coded.dictionary)
    indices: dict[int, int] = {}
    parsed = [x if isinstance(x, Reason) else indices.setdefault(level_hash(x), len(indices)) for x in labels]
    codes, faults = _separate(parsed, to_numpy(coded.indices), -1)
    return np.array(list(indices), np.uint64), codes.astype(np.int64), faults


def cell_labels(cells: Any) -> list[str | Reason]:
    """The label of each cell of an array, or the reason why it has none."""
    if pa.types.is_timestamp(cells.type):
        cells = cells.cast(pa.timestamp("us", cells.type.tz), safe=False)
    elif pa.types.is_time64(cells.type):
        cells = cells.cast(pa.time64("us"), safe=False)
    elif cells.type in (pa.float16(), pa.float32()):
        cells = cells.cast(pa.string()).cast(_FLOAT)  # float32's 0.1 is 0.1
    return [_label(cell) for cell in cells.to_pylist()]


def _label(cell: Any) -> str | Reason:
    if isinstance(cell, bytes):
        why = why_invalid(cell)
        if why != Reason.NOT_NUMBER:
            return why
        cell = cell.decode()
    label = label_of(cell)
    return Reason.MISSING if label is None else label


def _float(column: Any) -> np.ndarray:
    """Numbers as float64, without a copy where possible; NaN where null."""
    if column.type != _FLOAT:
        column = column.cast(pa.float64(), safe=False)
    return to_numpy(column)


def _in_days(column: Any) -> np.ndarray:
    """Dates and timestamps as days: the same floats as their ISO 8601 text gives."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if pa.types.is_date32(kind):
        return to_numpy(column.cast(pa.int32())).astype(float)
    ticks = to_numpy(column.cast(pa.int64()))
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    if unit == "ns":  # more than 2^53 nanoseconds since 1970: rounded to microseconds, as text is
        ticks, unit = ticks // 1000, "us"
    return ticks / (86_400 * {"s": 1, "ms": 1_000, "us": 1_000_000}[unit])


def _from_text(column: Any) -> tuple[np.ndarray, Faults | None]:
    try:
        values = _float(column)
        if _within(values, LARGEST):
            return values, None
    except pa.ArrowInvalid:
        pass
    cells = column.fill_null(EMPTY_CELL)
    good = pc.match_substring_regex(cells, NUMBER)
    mask = to_numpy(good)
    values = np.full(len(cells), np.nan)
    values[mask] = _float(pc.replace_substring_regex(cells.filter(good), _BLANKS, ""))
    at = np.flatnonzero(~(np.abs(values) <= LARGEST))
    if not len(at):
        return values, None
    missing = to_numpy(pc.is_in(cells, MISSING_CELLS))
    why = [
        why_bad(values[i]) if mask[i] else Reason.MISSING if missing[i] else why_invalid(cells[i].as_py()) for i in at
    ]
    return values, Faults(at, why)


def why_invalid(cell: bytes, otherwise: Reason = Reason.NOT_NUMBER) -> Reason:
    """Why the bytes of a cell cannot be parsed: NUL bytes, not UTF-8, or `otherwise`."""
    if b"\0" in cell:
        return Reason.NUL
    try:
        cell.decode()
    except UnicodeDecodeError:
        return Reason.NOT_UTF8
    return otherwise


def _day(cell: bytes) -> float | Reason:
    try:
        moment = datetime.fromisoformat(cell.strip().decode())
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        apart = moment - _EPOCH
        return (apart.days * 86_400_000_000 + apart.seconds * 1_000_000 + apart.microseconds) / _DAY
    except (ValueError, OverflowError):
        return Reason.NOT_DATE


def _parse_distinct(column: Any, parse: Any) -> tuple[list[Any], np.ndarray]:
    """The value (or the reason why there is none) of every distinct cell, and the index of each cell among them."""
    coded = column.dictionary_encode(null_encoding="encode")
    parsed = []
    for cell in coded.dictionary.to_pylist():
        value = parse(cell) if cell else Reason.MISSING
        parsed.append(why_invalid(cell, value) if isinstance(value, Reason) and cell else value)
    return parsed, to_numpy(coded.indices)


def _separate(parsed: list[Any], codes: np.ndarray, nothing: float) -> tuple[np.ndarray, Faults | None]:
    """Separate the values from the reasons; a bad cell has the value `nothing`."""
    values = np.array([nothing if isinstance(value, Reason) else value for value in parsed], dtype=float)
    bad = np.array([isinstance(value, Reason) for value in parsed], dtype=bool)
    at = np.flatnonzero(bad[codes]) if bad.any() else np.empty(0, dtype=np.int64)
    return values[codes], (Faults(at, [parsed[codes[i]] for i in at]) if len(at) else None)
