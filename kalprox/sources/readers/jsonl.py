"""JSON lines: parsed by pyarrow with types given; line by line only where it refuses a chunk."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kalprox.sources._arrow import load, pa
from kalprox.sources.cell_parsing import all_finite
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.base import Cell, RawBlock, Wanted, guarded
from kalprox.sources.readers.text import MAX_RECORD, Chunk, Text, chunks, last_line

__all__ = ["JsonReader"]

_arrow_json = load("pyarrow.json")
_BOM = b"\xef\xbb\xbf"


class _Number(str):
    """A number as it was written."""


class JsonReader:
    """One object a line; keys that are not asked for are ignored, a key that is not there is a missing cell."""

    typeless = False

    def __init__(self, text: Text, *, chunk_bytes: int, max_record: int = MAX_RECORD) -> None:
        self.text, self.chunk_bytes, self.max_record = text, chunk_bytes, max_record
        self._empty: bool | None = None

    def rows(self) -> None:
        return None

    def names(self) -> None:
        return None

    def close(self) -> None:
        self.text.close()

    @property
    def empty(self) -> bool:
        if self._empty is None:
            self.text.open(again=True)
            self._empty = not self.text.read(1)
            self.text.close()
        return self._empty

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        """As they are, but numbers where at least half of a key's values are: text and numbers do not mix."""
        objects: list[dict] = []
        for chunk in self._chunks(0, None, again=True):
            for line in _lines(chunk.data) if chunk.fault is None else []:
                if isinstance(read := _load(line), dict):
                    objects.append(read)
            if len(objects) >= rows:
                break
        there = dict.fromkeys(key for one in objects[:rows] for key in one)
        keys = there if names is None else [key for key in names if key in there]
        return pa.table({key: _as_one(key, objects[:rows]) for key in keys}) if objects else None

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        texts = [name for name in wanted.names if name not in wanted.numbers]
        for chunk in self._chunks(start, sha256, again=False):
            if chunk.fault:
                data = chunk.data.decode("utf-8", "backslashreplace")
                bad = [Cell(0, "", chunk.fault, data[:80])]
                table = _table(wanted.numbers, texts, {name: [] for name in wanted.names})
                yield RawBlock(table, 1, chunk.offset, np.empty(0, np.int64), bad, chunk.sha256)
            else:
                with guarded(self.text.name, "JSON lines"):
                    piece = _fast(chunk, wanted.numbers, texts) or _line_by_line(chunk, wanted.numbers, texts)
                yield piece
        self.text.close()

    def _chunks(self, start: int, sha256: str | None, *, again: bool) -> Iterator[Chunk]:
        self.text.open(again=again)
        self.text.seek(start, sha256)
        first = start == 0
        for chunk in chunks(self.text, start, self.chunk_bytes, last_line, max_record=self.max_record):
            yield chunk._replace(data=chunk.data.removeprefix(_BOM)) if first else chunk
            first = False


def _table(numbers: Sequence[str], texts: Sequence[str], values: dict[str, list]) -> Any:
    arrays = {name: pa.array(values[name], pa.float64()) for name in numbers}
    return pa.table(arrays | {name: pa.array(values[name], pa.binary()) for name in texts})


def _fast(chunk: Chunk, numbers: Sequence[str], texts: Sequence[str]) -> RawBlock | None:
    """The chunk as pyarrow reads it; None where it refuses, or where lines and objects are not one to one."""
    data = chunk.data.rstrip(b"\r\n")
    lines = data.count(b"\n")
    if not data.startswith(b"{") or data.count(b"}\n{") + data.count(b"}\r\n{") != lines:
        return None  # what begins with null would crash pyarrow
    schema = pa.schema([(name, pa.float64()) for name in numbers] + [(name, pa.string()) for name in texts])
    try:
        table = _arrow_json.read_json(
            pa.BufferReader(data),
            _arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            _arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != lines + 1 or not all(all_finite(table.column(name)) for name in numbers):
        return None
    return RawBlock(table, table.num_rows, chunk.offset, sha256=chunk.sha256)


def _line_by_line(chunk: Chunk, numbers: Sequence[str], texts: Sequence[str]) -> RawBlock:
    values: dict[str, list] = {name: [] for name in (*numbers, *texts)}
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
    """What a line says, numbers as written; None where it is not JSON. Bytes that are not UTF-8 are kept."""
    try:
        text = line.strip().decode("utf-8", "surrogateescape")
        return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except (ValueError, RecursionError):
        return None


def _number(value: Any, at: int, name: str, bad: list[Cell]) -> float | None:
    if value is None or isinstance(value, bool):
        return value if value is None else float(value)
    number = float(value) if isinstance(value, _Number) else None
    if number is not None and np.isfinite(number):
        return number
    reason = Reason.NOT_NUMBER if number is None else Reason.NOT_FINITE
    bad.append(Cell(at, name, reason, _shown(value)))
    return None


def _text(value: Any, at: int, name: str, bad: list[Cell]) -> bytes | None:
    """Text as bytes; a number or a truth value as it was written. Foreign bytes are for the cell's own check."""
    if value is None:
        return None
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape" if _escaped(value) else "surrogatepass")
    bad.append(Cell(at, name, Reason.NOT_TEXT, _shown(value)))
    return None


def _escaped(value: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" and not "\udc80" <= c <= "\udcff" for c in value)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "backslashreplace").decode()[:80]


def _as_one(key: str, objects: list[dict]) -> Any:
    """The values of a key as one column: numbers, text, or of no type that can be learnt from."""
    values = [value for one in objects if (value := one.get(key)) is not None]
    numbers = sum(isinstance(value, bool | _Number) for value in values)
    if 2 * numbers >= len(values):
        return pa.array([_number(one.get(key), 0, key, []) for one in objects], pa.float64())
    if any(isinstance(value, list | dict) for value in values):
        return pa.array([[] for _ in objects], pa.list_(pa.null()))
    return pa.array([_text(one.get(key), 0, key, []) for one in objects], pa.binary())
