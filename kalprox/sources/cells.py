"""The cells of a table's columns as numbers, dates, levels or labels, with a reason for each cell that is bad.

Each parser returns (values, faults): faults is empty where every cell is good. The value of a bad cell is 0 or NaN.
`Cells` collects the bad cells of all columns, and what must be said about the others.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np

from kalprox.base.checks import LARGEST, all_usable, row_sizes, usable
from kalprox.sources.arrow import from_bytes, from_numpy, is_number, pa, pc, plain, to_numpy
from kalprox.sources.labels import LevelIndex, label_of, level_hash
from kalprox.sources.quarantine import MAX_EXAMPLES, Cell, ColumnNote, HashNote, Notes, Reason

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
UNITS = b"kalprox.units"  # in the metadata of a schema
_BOOLEANS = {"true": b"1", "false": b"0"}


Faults = dict[int, Reason]  # the bad cells of a column, by their positions


def shown(column: Any, at: int) -> str:
    """The first 80 characters of a cell, for a bad row; "" for a missing cell."""
    value = column[at].as_py()
    if value is None:
        return ""
    return (value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value))[:80]


def parse_numbers(column: Any) -> tuple[np.ndarray, Faults]:
    """A column as float64; every cell that is not a finite number, or larger than `LARGEST` in size, is bad."""
    column = plain(column)
    try:
        values = _float(column)
    except pa.ArrowInvalid:  # some of its text is no number, or has blanks around it
        values = np.full(len(column), np.nan)
    if _within(values, LARGEST):
        return values, {}
    spelled, missing = np.ones(len(column), bool), to_numpy(column.is_null())
    if column.type == _BYTES:
        column = column.fill_null(EMPTY_CELL)
        good = pc.match_substring_regex(column, NUMBER)
        spelled, missing = to_numpy(good), to_numpy(pc.is_in(column, MISSING_CELLS))
        values = np.full(len(column), np.nan)
        values[spelled] = _float(pc.replace_substring_regex(column.filter(good), _BLANKS, ""))

    def why(i: int) -> Reason:
        if missing[i]:
            return Reason.MISSING
        return why_bad(values[i]) if spelled[i] else why_invalid(column[i].as_py())

    return values, {i: why(i) for i in np.flatnonzero(~(np.abs(values) <= LARGEST)).tolist()}


def certainly_exact(column: Any) -> bool:
    """Whether each cell of a column of float64 or booleans is null or below 2^53 in size: not NaN, and not rounded."""
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


def parse_booleans(column: Any) -> tuple[np.ndarray, Faults]:
    """A column as float64, where text may also be true or false, in the spellings of `label_of`."""
    column = plain(column)
    if column.type != _BYTES:
        return parse_numbers(column)
    cells, codes = distinct_cells(column)
    values, faults = parse_numbers(from_bytes([_BOOLEANS.get(str(_label(cell)), cell) for cell in cells.to_pylist()]))
    return values[codes], faults_of(faults, codes)


def why_bad(value: float) -> Reason:
    """Why a number that is not at most `LARGEST` in size cannot be used."""
    return Reason.TOO_LARGE if np.isfinite(value) else Reason.NOT_FINITE


def parse_days(column: Any) -> tuple[np.ndarray, Faults]:
    """Dates, timestamps or ISO 8601 text as days since 1970-01-01, in UTC where a time zone is given."""
    column = plain(column)
    if column.type != _BYTES:
        null = to_numpy(column.is_null())
        values = np.where(null, np.nan, _in_days(column))
        return values, dict.fromkeys(np.flatnonzero(null).tolist(), Reason.MISSING)
    cells, codes = distinct_cells(column)
    return separated([_day(cell) for cell in cells.to_pylist()], codes, np.nan)


def parse_levels(column: Any, known: LevelIndex) -> tuple[np.ndarray, Faults]:
    """The number of each cell's level in `known`; -1 for a bad cell, also one with another level (Reason.UNSEEN)."""
    cells, codes = distinct_cells(column)
    texts: list[bytes | None] = [None] * len(cells)
    if cells.type == _BYTES:
        texts = cells.to_pylist()
    elif is_number(cells.type):
        texts = cells.cast(pa.string()).cast(_BYTES).to_pylist()
    parsed: list[int | Reason] = []
    for text, label in zip(texts, cell_labels(cells), strict=True):
        bad = isinstance(label, Reason)
        found = known.find(text or None, None if bad else label)
        parsed.append(found if found is not None else label if bad else Reason.UNSEEN)  # type: ignore[arg-type]
    return separated(parsed, codes, -1)


def parse_labels(column: Any) -> tuple[np.ndarray, Faults]:
    """The label of each cell, see `label_of`; "" for a bad cell, one that is missing or not text."""
    return parsed_labels(column, lambda label: label, "")


def parsed_labels(column: Any, value_of: Callable[[str], Any], nothing: float | str) -> tuple[np.ndarray, Faults]:
    """What a function makes of the label of each cell, or the `Reason` that it returns; `nothing` for a bad cell."""
    cells, codes = distinct_cells(column)
    return separated([x if isinstance(x, Reason) else value_of(x) for x in cell_labels(cells)], codes, nothing)


def parse_bins(column: Any, bins: int) -> tuple[np.ndarray, Faults, np.ndarray]:
    """The bin of each cell's level, -1 for a bad cell, the bad cells, and the distinct hashes of the levels."""
    hashes: dict[str, int] = {}
    codes, faults = parsed_labels(column, lambda label: hashes.setdefault(label, level_hash(label)) % bins, -1)
    return codes, faults, np.unique(np.array(list(hashes.values()), np.uint64))


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


def why_invalid(cell: bytes, otherwise: Reason = Reason.NOT_NUMBER) -> Reason:
    """Why the bytes of a cell cannot be parsed: NUL bytes, not UTF-8, or `otherwise`."""
    if b"\0" in cell:
        return Reason.NUL
    try:
        cell.decode()
    except UnicodeDecodeError:
        return Reason.NOT_UTF8
    return otherwise


def _day(cell: bytes | None) -> float | Reason:
    if not cell:
        return Reason.MISSING
    try:
        moment = datetime.fromisoformat(cell.strip().decode())
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        apart = moment - _EPOCH
        return (apart.days * 86_400_000_000 + apart.seconds * 1_000_000 + apart.microseconds) / _DAY
    except (ValueError, OverflowError):
        return why_invalid(cell, Reason.NOT_DATE)


def distinct_cells(column: Any) -> tuple[Any, np.ndarray]:
    """The distinct cells of a column as an array, null among them, and the index of each cell among these."""
    coded = plain(column).dictionary_encode(null_encoding="encode")
    return coded.dictionary, to_numpy(coded.indices)


def separated(parsed: Sequence[Any], codes: np.ndarray, nothing: float | str) -> tuple[np.ndarray, Faults]:
    """The value of each cell of a column, and the bad cells, given the value of every distinct cell, or its reason.

    A bad cell has the value `nothing`, of whose type the values are.
    """
    values = np.array([nothing if isinstance(value, Reason) else value for value in parsed], type(nothing))
    why = {i: value for i, value in enumerate(parsed) if isinstance(value, Reason)}
    return values[codes], faults_of(why, codes)


def faults_of(why: Mapping[int, Reason], codes: np.ndarray) -> Faults:
    """The bad cells of a column, given the reasons of the distinct cells that are bad."""
    if not why:
        return {}
    return {i: why[codes[i]] for i in np.flatnonzero(np.isin(codes, list(why))).tolist()}


_TILE = 1 << 11  # rows that are put into their columns at a time
_MAX_LOOKED_AT = 1000  # cells among which examples are looked for


class Cells:
    """The cells of a table, parsed column by column. Collects the first bad cell of each row, and notes.

    Parameters
    ----------
    table : pyarrow.Table or RecordBatch
    """

    def __init__(self, table: Any) -> None:
        self.table = table
        self._bad: dict[int, Cell] = {}
        self._notes: dict[str, dict[str, Any]] = {}

    # ---- columns ---------------------------------------------------------------------------------------

    def parsed(self, name: str, parse: Callable[[Any], tuple[np.ndarray, Faults]]) -> np.ndarray:
        """The column `name` as a function of `kalprox.sources.cells` parses it; its bad cells are refused."""
        values, faults = parse(self.table.column(name))
        self.refuse(name, faults)
        return values

    def numbers(self, name: str, *, booleans: bool = False) -> np.ndarray:
        """The numbers of the column `name`, which with `booleans` may also be true or false."""
        values = self.parsed(name, parse_booleans if booleans else parse_numbers)
        self.note_rounded(name, values)
        return values

    # ---- bad cells -------------------------------------------------------------------------------------

    def refuse(self, name: str, faults: Faults) -> None:
        """Add the bad cells of the column `name`."""
        if not faults:
            return
        column = plain(self.table.column(name))
        for at, why in faults.items():
            if at not in self._bad:
                value = "" if why == Reason.MISSING else shown(column, at)
                self._bad[at] = Cell(at, name, why, value)

    def refuse_where(self, name: str, bad: np.ndarray, reason: Reason) -> None:
        """Add the cells of the column `name` that a mask says are bad."""
        self.refuse(name, dict.fromkeys(np.flatnonzero(bad).tolist(), reason))

    def refuse_value(self, cell: Cell) -> None:
        """Add a bad value that was computed from several cells of a row."""
        self._bad.setdefault(cell.at, cell)

    def bad(self) -> list[Cell]:
        """The first bad cell of each bad row, in the order of the rows."""
        return [self._bad[at] for at in sorted(self._bad)]

    # ---- notes -----------------------------------------------------------------------------------------

    def without_unknown(self, name: str, faults: Faults) -> Faults:
        """The bad cells of a column of levels without those whose level is not known, which are noted."""
        at = [i for i, why in faults.items() if why == Reason.UNSEEN]
        filled = self.table.num_rows - (len(faults) - len(at))
        if filled:
            self._note("unknown", name, self._column_note(name, np.array(at, np.int64), filled))
        return {i: why for i, why in faults.items() if why != Reason.UNSEEN}

    def note_rounded(self, name: str, values: np.ndarray) -> None:
        """Note the numbers of the column `name` that their float64 `values` do not hold."""
        at = rounded(self.table.column(name), values)
        if len(at):
            self._note("rounded", name, self._column_note(name, at, int(np.isfinite(values).sum())))

    def note_hashed(self, name: str, bins: int, hashes: np.ndarray) -> None:
        """Note the distinct hashes of the levels of the column `name`."""
        self._note("hashed", name, HashNote.of(bins, hashes))

    def without_missing(
        self, name: str, faults: Faults, values: np.ndarray | None, *, target: bool = False
    ) -> tuple[Faults, np.ndarray]:
        """The bad cells of a column that may be missing, without the missing ones, which are noted, and the latter.

        `values` are those of numbers, which are missing where they are NaN, too; None for another column.
        """
        nan = None if values is None or values.ndim > 1 else np.isnan(values)
        kept: Faults = {
            i: why
            for i, why in faults.items()
            if why != Reason.MISSING and not (why == Reason.NOT_FINITE and nan is not None and nan[i])
        }
        missing = np.array([i for i in faults if i not in kept], np.int64)
        self._note("unlabelled" if target else "missing", name, ColumnNote(len(missing), self.table.num_rows))
        return kept, missing

    def notes(self) -> Notes:
        """All notes so far."""
        return Notes(**self._notes, units=units_of(self.table))

    def _note(self, kind: str, name: str, note: ColumnNote | HashNote) -> None:
        self._notes.setdefault(kind, {})[name] = note

    def _column_note(self, name: str, at: np.ndarray, filled: int) -> ColumnNote:
        column = plain(self.table.column(name))
        examples = dict.fromkeys(shown(column, i) for i in at[:_MAX_LOOKED_AT].tolist())
        return ColumnNote(len(at), filled, tuple(examples)[:MAX_EXAMPLES])


def units_of(table: Any) -> dict[str, tuple[str, ...]]:
    """The units that stood with the numbers of the columns of a table, by column."""
    found = json.loads((table.schema.metadata or {}).get(UNITS, "{}"))
    return {name: tuple(units) for name, units in found.items()}


def impossible(y: np.ndarray, low: float | None, high: float | None) -> np.ndarray:
    """Return which targets are below the least or above the largest that is possible; None is no bound."""
    found: np.ndarray = (y < (-np.inf if low is None else low)) | (y > (np.inf if high is None else high))
    return found


def too_heavy(weights: np.ndarray, *values: Any) -> np.ndarray:
    """Which weights are too large for the values of their rows, or belong to rows that have a bad value.

    The values may be a sparse matrix.
    """
    values = tuple(abs(a).max(axis=1).toarray().ravel() if hasattr(a, "toarray") else a for a in values)
    if all_usable(weights, *values):
        return np.zeros(len(weights), bool)
    values = tuple(np.where(np.isnan(a), 0.0, a) for a in values)  # which are missing, or bad for that reason
    found: np.ndarray = ~usable(weights, row_sizes(*values))
    return found


def put_columns(columns: Mapping[int, np.ndarray], X: np.ndarray) -> None:
    """Put arrays of shape (n,) into their columns of X, some rows at a time: these rows of X stay in the cache."""
    for i in range(0, len(X), _TILE):
        for j, values in columns.items():
            X[i : i + _TILE, j] = values[i : i + _TILE]


def one_hot(codes: np.ndarray, out: np.ndarray) -> None:
    """One-hot encode a column.

    Parameters
    ----------
    codes : array of int of shape (n,)
        The position of each cell's level among the columns of `out`. A negative one makes a row of zeros: a level
        without a column, or a bad cell.
    out : array of shape (n, number of columns)
        Where the encoding is written.
    """
    out[:] = 0.0
    known = np.flatnonzero(codes >= 0)
    out[known, codes[known]] = 1.0
