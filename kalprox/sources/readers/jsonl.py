"""The reader of JSON lines: chunks parsed by pyarrow with known types, or line by line where pyarrow refuses."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from kalprox.base.checks import LARGEST
from kalprox.sources.arrow import from_bytes, from_numpy, load, pa
from kalprox.sources.cell_parsing import MISSING, NUMBER, certainly_exact, why_bad
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Cell, Reason
from kalprox.sources.readers.base import RawBlock, Wanted
from kalprox.sources.readers.text import BOM, Chunk, Lines, TextReader

__all__ = ["JsonReader", "parse_lines"]

_arrow_json = load("pyarrow.json")
_PIECE = 1 << 17  # bytes of a chunk that are parsed together where pyarrow refuses the chunk
_BOOLEAN, _INTEGER = pa.bool_(), pa.int64()
_NUMBER = re.compile(NUMBER)
_MINUS_ZERO = re.compile(rb"[:\s]-0[,}\s]")


class _Number(str):
    """A number as it is written in the file."""


class JsonReader(TextReader):
    """A file with one JSON object per line. A key that an object does not have is a missing cell."""

    kind = "JSON lines"
    text_may_be_number = False

    @property
    def empty(self) -> bool:
        """Whether the file has no bytes."""
        return self._empty

    @cached_property
    def _empty(self) -> bool:
        self.text.open(again=True)
        found = not self.text.read(1)
        self.text.close()
        return found

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        """The first rows. A key is numeric where at least half of its values are numbers, else it is text."""
        if (table := self._typed_head(rows)) is not None:
            return table if names is None else table.select([key for key in names if key in table.column_names])
        objects: list[dict[str, Any]] = []
        for chunk in self._lines(again=True):
            for line in _lines(chunk.data) if chunk.fault is None else []:
                if isinstance(read := _load(line), dict):
                    objects.append(read)
            if chunk.fault is Reason.TOO_LONG and not objects:
                raise SourceError(
                    f"{self.name}: the first line does not end within {self.reading.max_record:,} bytes, the value of "
                    "max_record. Check that the file has one JSON object per line, or raise max_record."
                )
            if len(objects) >= rows:
                break
        there = dict.fromkeys(key for one in objects[:rows] for key in one)
        keys = there if names is None else [key for key in names if key in there]
        return pa.table({key: _column(key, objects[:rows]) for key in keys}) if objects else None

    def _typed_head(self, rows: int) -> Any:
        """The first rows parsed by pyarrow; None where some have keys or types that the first one does not have."""
        tables: list[Any] = []
        types: dict[str, Any] | None = None
        for chunk in self._lines(again=True):
            types = types or _types(chunk.data)
            table = _read(chunk.data, types, unexpected="error") if types and chunk.fault is None else None
            if table is None or not all(map(_is_exact, table.columns)):
                return None
            tables.append(table)
            if sum(table.num_rows for table in tables) >= rows:
                break
        return pa.concat_tables(tables).slice(0, rows) if tables else None

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        """The rows from the byte `start` on; see `Reader`."""
        yield from self._parsed(self._lines(start, sha256), partial(parse_lines, wanted=wanted))

    def _lines(self, start: int = 0, sha256: str | None = None, *, again: bool = False) -> Iterator[Chunk]:
        for i, chunk in enumerate(self._chunks(start, sha256, Lines(), again=again)):
            yield chunk._replace(data=chunk.data.removeprefix(BOM)) if start == i == 0 else chunk


def parse_lines(chunk: Chunk, wanted: Wanted) -> RawBlock:
    """The rows of a chunk of lines, each with a JSON object, or of a chunk with a fault."""
    texts = [name for name in wanted.names if name not in wanted.numbers]
    if chunk.fault:
        data = chunk.data.decode("utf-8", "backslashreplace")
        bad = [Cell(0, "", chunk.fault, data[:80])]
        table = _table(wanted.numbers, texts, {name: [] for name in wanted.names})
        return RawBlock(table, 1, chunk.offset, np.empty(0, np.int64), bad, chunk.sha256)
    return _by_pyarrow(chunk, wanted.numbers, texts) or _in_pieces(chunk, wanted.numbers, texts)


def _table(numbers: Sequence[str], texts: Sequence[str], values: dict[str, list[Any]]) -> Any:
    arrays = {name: _numbers(values[name]) for name in numbers}
    return pa.table(arrays | {name: from_bytes(values[name]) for name in texts})


def _numbers(values: list[str | None]) -> Any:
    """Numbers, given as they are written, as float64; or as text, which has all digits, where some may be rounded."""
    column = _array(values, float, np.float64)
    return (
        column
        if certainly_exact(column)
        else from_bytes([None if value is None else value.encode() for value in values])
    )


def _by_pyarrow(chunk: Chunk, numbers: Sequence[str], texts: Sequence[str]) -> RawBlock | None:
    """The chunk parsed by pyarrow with the types of its first object; None where this cannot keep all digits."""
    first = _types(chunk.data) or {}
    types = {name: _BOOLEAN if first.get(name) == _BOOLEAN else pa.float64() for name in numbers}
    types |= {name: first.get(name, pa.null()) for name in texts}
    types |= {name: pa.string() for name in texts if types[name] in (pa.null(), pa.float64())}
    if _INTEGER in types.values() and _MINUS_ZERO.search(chunk.data):  # which would lose its sign
        return None
    kinds = dict.fromkeys(numbers, pa.float64()) | dict.fromkeys(texts, pa.string())
    table = _read(chunk.data, types, unexpected="ignore")
    if table is not None and (long := [name for name in numbers if not _is_exact(table.column(name))]):
        kinds |= dict.fromkeys(long, _INTEGER)  # integers have all their digits as such
        table = _read(chunk.data, types | dict.fromkeys(long, _INTEGER), unexpected="ignore")
    if table is None:
        return None
    return RawBlock(table.cast(pa.schema(kinds)), table.num_rows, chunk.offset, sha256=chunk.sha256)


def _is_exact(column: Any) -> bool:
    """Whether a column of booleans, integers, text or floats certainly has all digits of its cells."""
    return column.type != pa.float64() or certainly_exact(column)


def _read(data: bytes, types: dict[str, Any], *, unexpected: str) -> Any:
    """The objects in some lines as a table; None where pyarrow refuses, or a line may hold no object or more than one.

    `unexpected` is what becomes of other keys: "ignore" or "error".
    """
    end = len(data)
    while end and data[end - 1] in b"\r\n":
        end -= 1
    text = np.frombuffer(data, np.uint8, end)
    newlines = np.flatnonzero(text == ord("\n"))
    before = text[newlines - 1]
    before = np.where(before == ord("\r"), text[newlines - 2], before)
    if not data.startswith(b"{") or (before != ord("}")).any() or (text[newlines + 1] != ord("{")).any():
        return None  # pyarrow crashes on a chunk that begins with null
    try:
        table = _arrow_json.read_json(
            pa.BufferReader(pa.py_buffer(data).slice(0, end)),
            _arrow_json.ReadOptions(use_threads=False, block_size=end + 1),
            _arrow_json.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior=unexpected),
        )
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == len(newlines) + 1 else None


def _types(data: bytes) -> dict[str, Any] | None:
    """The pyarrow types of the values of the first object, without those that are null, lists or objects."""
    first = _load(data[: data.find(b"\n") + 1 or None])
    if not isinstance(first, dict):
        return None
    types = {str: pa.string(), bool: _BOOLEAN}
    found = {name: types.get(type(value)) for name, value in first.items()}
    found |= {
        name: _INTEGER if value.lstrip("-").isdigit() else pa.float64()
        for name, value in first.items()
        if isinstance(value, _Number)
    }
    return {name: kind for name, kind in found.items() if kind is not None}


def _in_pieces(chunk: Chunk, numbers: Sequence[str], texts: Sequence[str]) -> RawBlock:
    """The chunk cut into pieces, of which only those that pyarrow refuses are parsed line by line."""
    ends = [chunk.data.find(b"\n", at) + 1 or len(chunk.data) for at in range(_PIECE, len(chunk.data), _PIECE)]
    cuts = sorted({0, *ends, len(chunk.data)})
    pieces = [chunk._replace(data=chunk.data[a:b]) for a, b in pairwise(cuts)]
    parsed = [_by_pyarrow(piece, numbers, texts) or _line_by_line(piece, numbers, texts) for piece in pieces]
    kinds = [one.table.schema.field(name).type for one in parsed for name in numbers]
    if len(parsed) == 1:
        return parsed[0]
    if kinds != len(parsed) * kinds[: len(numbers)]:  # long integers, some of them among floats
        return _line_by_line(chunk, numbers, texts)
    schema = pa.schema(dict(zip(numbers, kinds, strict=False)) | dict.fromkeys(texts, pa.binary()))
    first = np.cumsum([0, *(one.read for one in parsed)])
    rows = [
        at + (np.arange(one.read) if one.rows is None else one.rows) for at, one in zip(first, parsed, strict=False)
    ]
    bad = [cell._replace(at=int(at) + cell.at) for at, one in zip(first, parsed, strict=False) for cell in one.bad]
    table = pa.concat_tables(one.table.cast(schema) for one in parsed)
    return RawBlock(table, int(first[-1]), chunk.offset, np.concatenate(rows), bad, chunk.sha256)


def _line_by_line(chunk: Chunk, numbers: Sequence[str], texts: Sequence[str]) -> RawBlock:
    values: dict[str, list[Any]] = {name: [] for name in (*numbers, *texts)}
    bad: list[Cell] = []
    rows: list[int] = []
    at = -1
    for at, line in enumerate(_lines(chunk.data)):
        read = _load(line)
        if not isinstance(read, dict):
            bad.append(Cell(at, "", Reason.NOT_JSON, line[:80].decode("utf-8", "backslashreplace")))
            continue
        rows.append(at)
        for name in numbers:
            values[name].append(_number(read.get(name), at, name, bad))
        for name in texts:
            values[name].append(_text(read.get(name), at, name, bad))
    return RawBlock(_table(numbers, texts, values), at + 1, chunk.offset, np.array(rows, np.int64), bad, chunk.sha256)


def _lines(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line.strip()]


def _load(line: bytes) -> Any:
    """The value of a line, numbers as written; None where the line is not JSON. Bytes that are not UTF-8 are kept."""
    try:
        text = line.strip().decode("utf-8", "surrogateescape")
        return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except (ValueError, RecursionError):
        return None


def _number(value: Any, at: int, name: str, bad: list[Cell]) -> str | None:
    """A number as it is written, also as text, as in CSV; booleans as 1 and 0."""
    if value is None or isinstance(value, bool):
        return value if value is None else str(int(value))
    if isinstance(value, str) and value in MISSING:
        return None
    if isinstance(value, str) and _NUMBER.match(value):
        value = _Number(value.strip())
    number = float(value) if isinstance(value, _Number) else None
    if isinstance(value, _Number) and number is not None and abs(number) <= LARGEST:
        return value
    reason = Reason.NOT_NUMBER if number is None else why_bad(number)
    bad.append(Cell(at, name, reason, _shown(value)))
    return None


def _text(value: Any, at: int, name: str, bad: list[Cell]) -> bytes | None:
    """Text as bytes, numbers and booleans as written. That the bytes are UTF-8 is checked when cells are parsed."""
    if value is None:
        return None
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape" if _has_only_escaped_bytes(value) else "surrogatepass")
    bad.append(Cell(at, name, Reason.NOT_TEXT, _shown(value)))
    return None


def _has_only_escaped_bytes(value: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" and not "\udc80" <= c <= "\udcff" for c in value)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "backslashreplace").decode()[:80]


def _column(key: str, objects: list[dict[str, Any]]) -> Any:
    """The values of a key as a column of numbers or text, or of lists where some values are lists or objects."""
    values = [value for one in objects if (value := one.get(key)) is not None]
    numbers = sum(isinstance(value, bool | _Number) for value in values)
    if values and all(isinstance(value, bool) for value in values):
        return _array([one.get(key) for one in objects], bool, np.bool_)
    if 2 * numbers >= len(values):
        return _typed_numbers([_number(one.get(key), 0, key, []) for one in objects])
    if any(isinstance(value, list | dict) for value in values):
        return pa.nulls(len(objects), pa.list_(pa.null()))
    return from_bytes([_text(one.get(key), 0, key, []) for one in objects])


def _typed_numbers(values: list[str | None]) -> Any:
    """Numbers as integers where all are, so that none of their digits is lost, else as float64."""
    for kind in (np.int64, np.uint64):
        with contextlib.suppress(ValueError, OverflowError):
            return _array(values, int, kind)
    return _array(values, float, np.float64)


def _array(values: Sequence[Any], convert: Callable[[Any], Any], kind: type) -> Any:
    """The converted values as an Arrow array of this type of NumPy's; None is null."""
    null = [value is None for value in values]
    cells = [convert(0 if value is None else value) for value in values]
    return from_numpy(np.array(cells, kind), np.array(null, bool))
