"""CSV: chunks of whole records, parsed by pyarrow with types given; cell by cell only where it refuses a chunk."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kalprox.sources._arrow import load, pa
from kalprox.sources.cell_parsing import MISSING, all_finite
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.base import Cell, RawBlock, Wanted, check_names, guarded
from kalprox.sources.readers.text import MAX_RECORD, Chunk, Text, chunks

__all__ = ["CsvReader"]

_arrow_csv = load("pyarrow.csv")
_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"[\r\n]*")


class CsvReader:
    """A CSV file with a header. A quote opens only at the start of a field; empty lines are no rows."""

    typeless = True

    def __init__(self, text: Text, *, delimiter: str, chunk_bytes: int, max_record: int = MAX_RECORD) -> None:
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise SourceError(f"delimiter must be one character other than a quote or a newline; got {delimiter!r}.")
        self.text, self.delimiter = text, delimiter
        self.chunk_bytes, self.max_record = chunk_bytes, max_record
        mark = re.escape(delimiter).encode()
        self._quoted = re.compile(rb"(?:\A|(?<=[" + mark + rb'\r\n]))"[^"]*+(?:""[^"]*+)*+(?:"|\Z)')
        self._header: tuple[list[str] | None, int] | None = None

    def rows(self) -> None:
        return None

    @property
    def empty(self) -> bool:
        return self.header()[0] is None

    def names(self) -> list[str] | None:
        return self.header()[0]

    def close(self) -> None:
        self.text.close()

    def header(self) -> tuple[list[str] | None, int]:
        """The columns' names (None: a file without one character but newlines), and where the first row begins."""
        if self._header is None:
            self.text.open(again=True)
            self._header = self._read_header()
            self.text.close()
        return self._header

    def _read_header(self) -> tuple[list[str] | None, int]:
        held, at = b"", 0
        while True:
            more = self.text.read(1 << 16)
            held += more
            at = len(held) - len(held.removeprefix(_BOM).lstrip(b"\r\n"))
            end = self._first_record(held, at)
            if end or not more:
                break
            if len(held) > self.max_record:
                raise SourceError(f"{self.text.name}: the header does not end within {self.max_record:,} bytes.")
        end = end or len(held)
        if at == len(held):
            return None, len(held)
        line = held[at:end].decode("utf-8", "replace")
        try:
            names = next(csv.reader(io.StringIO(line, newline=""), delimiter=self.delimiter))
        except csv.Error as error:
            raise SourceError(f"{self.text.name}: the header cannot be read ({error}).") from error
        if "\0" in line:
            raise SourceError(f"{self.text.name}: the header has NUL bytes; is it UTF-16? Say which encoding it has.")
        return names, end

    def _first_record(self, data: bytes, at: int) -> int:
        """The end of the first record from `at` on; 0 if it does not end."""
        here = at
        for quoted in self._quoted.finditer(data[at:]):
            if found := re.search(rb"[\r\n]", data[here : at + quoted.start()]):
                return here + found.end()
            here = at + quoted.end()
        found = re.search(rb"[\r\n]", data[here:])
        return 0 if found is None else here + found.end()

    def cut(self, data: bytes) -> tuple[int, bool]:
        """The end of the last whole record, and whether a quote is open after it; as pyarrow's parser sees it."""
        if b'"' not in data:
            return (data.rfind(b"\n") + 1 or data.rfind(b"\r") + 1), False
        raw = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(raw == ord('"'))
        before = raw[quotes[::2] - 1]
        if quotes[0] == 0:
            before[0] = ord("\n")
        if not np.isin(before, list(f'{self.delimiter}\r\n"'.encode())).all():
            return self.cut_by_fields(data)
        for mark in b"\n\r":  # where every second quote opens a field or follows a quote, they open and close in turn
            marks = np.flatnonzero(raw == mark)
            outside = marks[np.searchsorted(quotes, marks) % 2 == 0]
            if len(outside):
                return int(outside[-1]) + 1, len(quotes) % 2 == 1
        return 0, len(quotes) % 2 == 1

    def cut_by_fields(self, data: bytes) -> tuple[int, bool]:
        """`cut`, quoted field by quoted field: for text with quotes where none can open."""
        line = feed = here = 0
        is_open = False
        for quoted in self._quoted.finditer(data):
            start, end = quoted.span()
            line = data.rfind(b"\n", here, start) + 1 or line
            feed = data.rfind(b"\r", here, start) + 1 or feed
            here = end
            is_open = end == len(data) and data.count(b'"', start, end) % 2 == 1
        line = data.rfind(b"\n", here) + 1 or line
        feed = data.rfind(b"\r", here) + 1 or feed
        return line or feed, is_open

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        there = self.names() or []
        wanted = Wanted(texts=tuple(there if names is None else names))
        tables, count = [], 0
        for piece in self._blocks(wanted, 0, None, again=True):
            tables.append(piece.table)
            count += piece.table.num_rows
            if count >= rows:
                break
        return pa.concat_tables(tables).slice(0, rows) if tables else None

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        return self._blocks(wanted, start, sha256, again=False)

    def _blocks(self, wanted: Wanted, start: int, sha256: str | None, *, again: bool) -> Iterator[RawBlock]:
        there, begin = self.header()
        if there is None:
            return
        check_names(self.text.name, there, wanted.names)
        parse = _Parser(there, wanted, self.delimiter)
        start = max(start, begin)
        self.text.open(again=again)
        self.text.seek(start, sha256)
        for chunk in chunks(self.text, start, self.chunk_bytes, self.cut, newline=b"\r\n", max_record=self.max_record):
            with guarded(self.text.name, "CSV"):
                piece = parse(chunk)
            yield piece
        self.text.close()


class _Parser:
    """A chunk of records as a piece. Columns go by their position, so that the others may be named as they like."""

    def __init__(self, there: list[str], wanted: Wanted, delimiter: str) -> None:
        self.ids = [str(i) for i in range(len(there))]
        self.names = wanted.names
        self.kept = [str(there.index(name)) for name in self.names]
        self.numbers = [str(there.index(name)) for name in wanted.numbers]
        self.delimiter = delimiter

    def __call__(self, chunk: Chunk) -> RawBlock:
        if chunk.fault:
            bad = [Cell(0, "", chunk.fault, chunk.data[:80].decode("utf-8", "backslashreplace"))]
            return RawBlock(self._empty(), 1, chunk.offset, np.empty(0, np.int64), bad, chunk.sha256)
        if _BLANK.fullmatch(chunk.data):
            return RawBlock(self._empty(), 0, chunk.offset, sha256=chunk.sha256)
        try:
            table = self._read(chunk.data, dict.fromkeys(self.numbers, pa.float64()))
            if all(all_finite(table.column(name)) for name in self.numbers):
                table = table.rename_columns(self.names)
                return RawBlock(table, table.num_rows, chunk.offset, sha256=chunk.sha256)
        except pa.ArrowInvalid:
            pass
        return self._cell_by_cell(chunk)

    def _cell_by_cell(self, chunk: Chunk) -> RawBlock:
        """All cells as text, so that no cell can stop its neighbours; short and long rows apart."""
        bad: list[Cell] = []

        def refuse(row: Any) -> str:
            reason = Reason.TOO_FEW if row.actual_columns < row.expected_columns else Reason.TOO_MANY
            bad.append(Cell(row.number - 1, "", reason, row.text[:320]))
            return "skip"

        data, foreign = chunk.data, False
        try:
            data.decode()
        except UnicodeDecodeError:  # pyarrow can hand over only valid text: every byte as a character, and back
            data, foreign = data.decode("latin-1").encode(), True
        table = self._read(data, {}, refuse).rename_columns(self.names)
        if foreign:
            bad = [cell._replace(value=_foreign(cell.value)) for cell in bad]
            back = [[cell.decode().encode("latin-1") for cell in column.to_pylist()] for column in table.columns]
            table = pa.table([pa.array(column, pa.binary()) for column in back], names=list(self.names))
        bad = [cell._replace(value=cell.value[:80]) for cell in bad]
        read = table.num_rows + len(bad)
        rows = np.setdiff1d(np.arange(read), [cell.at for cell in bad]) if bad else None
        return RawBlock(table, read, chunk.offset, rows, bad, chunk.sha256)

    def _read(self, data: bytes, types: dict[str, Any], refuse: Any = None) -> Any:
        if data.startswith(_BOM):  # of a row: pyarrow takes it away from whatever it begins with, but for an empty line
            data = b"\n" + data
        return _arrow_csv.read_csv(
            pa.BufferReader(data),
            _arrow_csv.ReadOptions(column_names=self.ids, use_threads=False, block_size=len(data) + 1),
            _arrow_csv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=b'"' in data, invalid_row_handler=refuse
            ),
            _arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(self.kept, pa.binary()) | types,
                include_columns=self.kept,
                null_values=MISSING,
                strings_can_be_null=False,
            ),
        )

    def _empty(self) -> Any:
        return pa.table([pa.array([], pa.binary())] * len(self.names), names=list(self.names))


def _foreign(value: str) -> str:
    """Bytes that were taken for characters, as a bad row shows them."""
    return value.encode("latin-1").decode("utf-8", "backslashreplace")[:80]
