"""The reader of JSON lines: chunks parsed by pyarrow with known types, or line by line where pyarrow refuses."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from kalprox.sources.arrow import from_bytes, from_numpy, load, pa
from kalprox.sources.cells import certainly_exact, parse_numbers
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Cell, Reason
from kalprox.sources.readers.base import RawBlock, Wanted
from kalprox.sources.readers.text import BOM, Chunk, Lines, TextReader

_arrow_json = load("pyarrow.json")
_PIECE = 1 << 17  # bytes of lines that are parsed one by one where pyarrow refuses them
_MINUS_ZERO = re.compile(rb"[:\s]-0[,}\s]")


class WrittenNumber(str):
    """A number as it is written in the file."""


_DECODER = json.JSONDecoder(parse_int=WrittenNumber, parse_float=WrittenNumber, parse_constant=WrittenNumber)


class JsonReader(TextReader):
    """A file with one JSON object per line. A key that an object does not have is a missing cell."""

    kind = "JSON lines"
    text_may_be_number = False

    @cached_property
    def empty(self) -> bool:
        """Whether the file has no bytes."""
        self.text.open(again=True)
        found = not self.text.read(1)
        self.text.close()
        return found

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        """The first rows. A key is numeric where at least half of its values are numbers, else it is text."""
        lines: list[bytes] = []
        for chunk in self._lines(again=True):
            if chunk.fault is None:
                lines += lines_of(chunk.data)
            elif chunk.fault is Reason.TOO_LONG and not lines:
                raise SourceError.worded(
                    "{}: the first line does not end within {} bytes, the value of {max_record}. Check that the "
                    "file has one JSON object per line, or raise {max_record}.",
                    self.name,
                    f"{self.reading.max_record:,}",
                )
            if len(lines) >= rows:
                break
        del lines[rows:]
        data = b"\n".join(lines)
        types = _types(data)
        table = _read(data, types, unexpected="error") if types else None
        if table is None:  # some lines have keys or types that the first one does not have
            objects = [found for line in lines if (found := json_object(line)) is not None]
            keys = dict.fromkeys(key for one in objects for key in one)
            table = pa.table({key: _column([one.get(key) for one in objects]) for key in keys}) if objects else None
        if table is None or names is None:
            return table
        return table.select([key for key in names if key in table.column_names])

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        """The rows from the byte `start` on; see `Reader`."""
        yield from self._parsed(self._lines(start, sha256), partial(parse_lines, wanted=wanted))

    def _lines(self, start: int = 0, sha256: str | None = None, *, again: bool = False) -> Iterator[Chunk]:
        for i, chunk in enumerate(self._chunks(start, sha256, Lines(), again=again)):
            yield chunk._replace(data=chunk.data.removeprefix(BOM)) if start == i == 0 else chunk


def parse_lines(chunk: Chunk, wanted: Wanted) -> RawBlock:
    """The rows of a chunk of lines, each with a JSON object, or of a chunk with a fault."""
    if chunk.fault:
        bad = [Cell(0, "", chunk.fault, chunk.data.decode("utf-8", "backslashreplace")[:80])]
        table = pa.table({name: from_bytes([]) for name in wanted.names})
        return RawBlock(table, 1, chunk.offset, np.empty(0, np.int64), bad, chunk.sha256)
    table, rows, bad = _parse(chunk.data, wanted)
    read = len(rows) + sum(cell.column == "" for cell in bad)
    return RawBlock(table, read, chunk.offset, rows, bad, chunk.sha256)


def _parse(data: bytes, wanted: Wanted) -> tuple[Any, np.ndarray, list[Cell]]:
    """The rows of some lines as a table, their positions among the lines, and what is bad.

    Of lines that pyarrow refuses, those in the first half and those in the second are parsed by themselves, and so on.
    """
    if (table := _by_pyarrow(data, wanted)) is not None:
        return table, np.arange(table.num_rows), []
    half = data.find(b"\n", len(data) // 2) + 1
    if len(data) <= _PIECE or half in (0, len(data)):
        return _line_by_line(data, wanted)
    (one, rows, bad), (other, more, worse) = _parse(data[:half], wanted), _parse(data[half:], wanted)
    first = len(rows) + sum(cell.column == "" for cell in bad)
    if one.schema != other.schema:
        text = pa.schema(dict.fromkeys(wanted.names, pa.binary()))
        one, other = (
            half.cast(pa.schema(dict.fromkeys(wanted.names, pa.string()))).cast(text) for half in (one, other)
        )
    bad = [*bad, *(cell._replace(at=first + cell.at) for cell in worse)]
    return pa.concat_tables([one, other]), np.concatenate([rows, first + more]), bad


def _by_pyarrow(data: bytes, wanted: Wanted) -> Any:
    """Lines parsed by pyarrow with the types of the first object; None where this cannot keep all digits."""
    texts = [name for name in wanted.names if name not in wanted.numbers]
    first, is_bool, text, number = _types(data) or {}, pa.bool_(), pa.string(), pa.float64()
    types = {name: is_bool if first.get(name) == is_bool else number for name in wanted.numbers}
    types |= {name: text if first.get(name, number) == number else first[name] for name in texts}
    if pa.int64() in types.values() and _MINUS_ZERO.search(data):  # which would lose its sign
        return None
    table = _read(data, types, unexpected="ignore")
    long = [] if table is None else [name for name in wanted.numbers if not certainly_exact(table.column(name))]
    if long:  # integers have all their digits as such
        types |= dict.fromkeys(long, pa.int64())
        table = _read(data, types, unexpected="ignore")
    if table is None:
        return None
    kinds = dict.fromkeys(wanted.numbers, number) | dict.fromkeys(long, pa.int64()) | dict.fromkeys(texts, text)
    return table.cast(pa.schema(kinds))


def _read(data: bytes, types: dict[str, Any], *, unexpected: str) -> Any:
    """The objects in some lines as a table; None where pyarrow refuses, or a line may hold no object or more than one.

    `unexpected` is what becomes of other keys: "ignore" or "error".
    """
    end = len(data)
    while end and data[end - 1] in b"\r\n":  # without a copy
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
    types: dict[str, Any] = {}
    first = json_object(data[: data.find(b"\n") + 1 or None])
    for name, value in (first or {}).items():
        if isinstance(value, WrittenNumber):
            types[name] = pa.int64() if value.lstrip("-").isdigit() else pa.float64()
        elif isinstance(value, str | bool):
            types[name] = pa.string() if isinstance(value, str) else pa.bool_()
    return None if first is None else types


def _line_by_line(data: bytes, wanted: Wanted) -> tuple[Any, np.ndarray, list[Cell]]:
    lines = lines_of(data)
    objects = [json_object(line) for line in lines]
    rows = np.flatnonzero([found is not None for found in objects])
    table, cells = table_of([found for found in objects if found is not None], wanted)
    bad = [cell._replace(at=int(rows[cell.at])) for cell in cells]
    for at, found in enumerate(objects):
        if found is None:
            bad.append(Cell(at, "", Reason.NOT_JSON, lines[at][:80].decode("utf-8", "backslashreplace")))
    return table, rows, bad


def table_of(objects: Sequence[dict[str, Any]], wanted: Wanted) -> tuple[Any, list[Cell]]:
    """Objects as a table of text, with numbers as they are written, and the cells that cannot be text."""
    values: dict[str, list[bytes | None]] = {name: [] for name in wanted.names}
    bad: list[Cell] = []
    for at, found in enumerate(objects):
        for name, cells in values.items():
            value = found.get(name)
            if isinstance(value, bool) and name in wanted.numbers:
                value = str(int(value))
            elif isinstance(value, list | dict) and name not in wanted.numbers:
                bad.append(Cell(at, name, Reason.NOT_TEXT, json.dumps(value)[:80]))
                value = None
            cells.append(_text(value))
    return pa.table({name: from_bytes(cells) for name, cells in values.items()}), bad


def lines_of(data: bytes) -> list[bytes]:
    """The lines that are not blank."""
    return [line for line in data.split(b"\n") if line.strip()]


def json_object(line: bytes) -> dict[str, Any] | None:
    """The object in a line, with numbers as they are written; None if there is none. Bytes that are not UTF-8 stay."""
    try:
        found = _DECODER.decode(line.strip().decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(value: Any) -> bytes | None:
    """A value as text. That the bytes of a text are UTF-8 is checked when cells are parsed."""
    if value is None or isinstance(value, str):
        return None if value is None else _encoded(value)
    return json.dumps(value).encode("utf-8", "backslashreplace")


def _encoded(value: str) -> bytes:
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair that an escape said
        return value.encode("utf-8", "surrogatepass")


def _column(values: list[Any]) -> Any:
    """The values of a key as a column of numbers or text, or of lists where some values are lists or objects."""
    filled = [value for value in values if value is not None]
    numbers = sum(isinstance(value, bool | WrittenNumber) for value in filled)
    if filled and all(isinstance(value, bool) for value in filled):
        null = np.array([value is None for value in values])
        return from_numpy(np.array(values, bool), null)
    if 2 * numbers >= len(filled):
        return from_numpy(parse_numbers(from_bytes([_text(value) for value in values]))[0])
    if any(isinstance(value, list | dict) for value in filled):
        return pa.nulls(len(values), pa.list_(pa.null()))
    return from_bytes([_text(value) for value in values])
