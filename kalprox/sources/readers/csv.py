"""The reader of CSV files: chunks of complete records, parsed by pyarrow with known types."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kalprox.base.memory import check_address_space
from kalprox.sources.arrow import from_bytes, load, pa
from kalprox.sources.cells import MISSING, certainly_exact
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Cell, Reason
from kalprox.sources.readers.base import RawBlock, Reading, Wanted, check_names, first_rows
from kalprox.sources.readers.notation import PLAIN, Notation
from kalprox.sources.readers.text import BOM, Chunk, CsvRecords, TextReader

_DELIMITERS = (",", ";", "\t", "|")  # that are found
_RECORDS = 25  # that are looked at
_LOOK = 1 << 16  # bytes in which the delimiter is looked for
_SEP = re.compile(rb'"?sep=([!-~\t])"?[\r\n]+')


def _first_records(text: str, delimiter: str, *, whole: bool) -> list[list[str]]:
    """The fields of the first records of a text; unless `whole`, the last record may be cut, and is left out."""
    found: list[list[str]] = []
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for row in rows:
            if row:
                found.append(row)
            if len(found) > _RECORDS:
                break
    except csv.Error:  # a field that is too long, or an odd character
        pass
    return found if whole or len(found) > _RECORDS else found[: max(1, len(found) - 1)]


def find_delimiter(text: str, default: str, *, whole: bool) -> str:
    """The delimiter of a CSV file: the one with which the first records have as many fields as the header.

    Parameters
    ----------
    text : str
        The beginning of the file.
    default : str
        The delimiter of a file with a single column, and where nothing tells two delimiters apart.
    whole : bool
        Whether `text` is the whole file.
    """
    header = re.split(r"[\r\n]", text, maxsplit=1)[0]
    there = [mark for mark in (default, *_DELIMITERS) if mark in header]
    if len(set(there)) <= 1:
        return there[0] if there else default

    def fit(mark: str) -> tuple[float, int, bool]:
        first, *others = _first_records(text, mark, whole=whole) or [[]]
        same = sum(len(row) == len(first) for row in others) / len(others) if others else 1.0
        return (same, len(first), mark == default) if len(first) > 1 else (0.0, 0, mark == default)

    return max(dict.fromkeys(there), key=fit)


class CsvReader(TextReader):
    """A CSV file with a header. A quote opens only at the start of a field, and empty lines are no rows.

    By default the delimiter is found: the line "sep=;" of spreadsheets says it, or else the first records.
    """

    kind = "CSV"

    def __init__(self, path: Path, reading: Reading, threads: int = 1) -> None:
        super().__init__(path, reading, threads)
        delimiter = reading.delimiter
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n'):
            raise SourceError.worded(
                "{delimiter} must be one ASCII character other than a quote or a newline; got {}.", repr(delimiter)
            )
        self.default = "\t" if self.format.startswith("tsv") else ","
        self.delimiter = delimiter or self.default  # until the header has been read

    @property
    def records(self) -> CsvRecords:
        """Finds the ends of records."""
        return CsvRecords(self.delimiter)

    @property
    def found(self) -> tuple[str, ...]:
        """The delimiter and the encoding, where they were found and are not the default; see `Reader`."""
        encoding = super().found  # which reads the header
        usual = self.delimiter == (self.reading.delimiter or self.default)
        return encoding if usual else (f"delimiter {self.delimiter!r}", *encoding)

    @property
    def empty(self) -> bool:
        """Whether the file has nothing but newlines."""
        return self.header[0] is None

    def names(self) -> list[str] | None:
        """The names in the header; None for an empty file."""
        return self.header[0]

    @cached_property
    def header(self) -> tuple[list[str] | None, int]:
        """The names of the columns (None for an empty file), and the offset of the first row."""
        self.text.open(again=True)
        found = self._read_header()
        self.text.close()
        return found

    def _read_header(self) -> tuple[list[str] | None, int]:
        held, start = b"", 0
        while True:
            more = self.text.read(max(len(held), 1 << 16))  # twice as much each time: a long header is scanned in O(n)
            held += more
            start = len(held) - len(held.removeprefix(BOM).lstrip(b"\r\n"))
            said = _SEP.match(held, start)  # a line for spreadsheets
            start = said.end() if said else start
            text = held[start : start + _LOOK].decode("utf-8", "replace")
            whole = not more and len(held) <= start + _LOOK
            if self.reading.delimiter is None:
                said_mark = said[1].decode() if said else None
                self.delimiter = said_mark or find_delimiter(text, self.default, whole=whole)
            end = self.records.end_of_first(held, start)
            if end or not more:
                break
            if len(held) > self.reading.max_record:
                raise SourceError.worded(
                    "{}: the header does not end within {} bytes, the value of {max_record}. Check that the file "
                    "is CSV and has newlines, or raise {max_record}.",
                    self.name,
                    f"{self.reading.max_record:,}",
                )
        end = end or len(held)
        if start == len(held):
            return None, len(held)
        names = self._names(held[start:end])
        rows = _first_records(text, self.delimiter, whole=whole)[1:]
        if rows and all(len(row) == len(names) + 1 and not row[-1] for row in rows):
            names.append("")  # each row ends with a delimiter
        return names, end

    def _names(self, line: bytes) -> list[str]:
        """The names in the record `line`, without blanks around them."""
        text = line.decode("utf-8", "backslashreplace")
        try:
            names = next(csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter))
        except csv.Error as error:
            raise SourceError(f"{self.name}: the header cannot be read ({error}).") from error
        if "\0" in text:
            raise SourceError.worded(
                "{}: the header has NUL bytes. If the file is UTF-16 without a byte order mark, give "
                "{encoding='utf-16-le'} (or {'utf-16-be'|utf-16-be}).",
                self.name,
            )
        try:
            line.decode()
        except UnicodeDecodeError as error:
            column = len(_first_records(line[: error.start + 1].decode("latin-1"), self.delimiter, whole=True)[0])
            raise SourceError.worded(
                "{}: the header is not UTF-8: the name of column {} is {}. Use {encoding='latin-1'} if the file is "
                "in Latin-1, as older programs write it.",
                self.name,
                column,
                repr(names[column - 1]),
            ) from None
        return [name.strip() for name in names]

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        """The first rows, all cells as text."""
        header = self.names() or []
        wanted = Wanted(texts=tuple(header if names is None else names))
        return first_rows((raw.table for raw in self._blocks(wanted, 0, None, again=True)), rows)

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        """The rows from the byte `start` on; see `Reader`."""
        return self._blocks(wanted, start, sha256, again=False)

    def _blocks(self, wanted: Wanted, start: int, sha256: str | None, *, again: bool) -> Iterator[RawBlock]:
        header, first_row = self.header
        if header is None:
            return
        check_names(self.name, header, wanted.names)
        parser = CsvParser(header, wanted, self.delimiter, self.reading.notation)
        yield from self._parsed(self._chunks(max(start, first_row), sha256, self.records, again=again), parser.parse)


_arrow_csv = load("pyarrow.csv")
_COLUMN = 1 << 17  # bytes of addresses that pyarrow takes for a column; measured
_BLANK = re.compile(rb"[\r\n]*")


class CsvParser:
    """Parses chunks of records. Columns are found by position, so other columns may have any names.

    Parameters
    ----------
    header : list of str
        The names of all columns of the file.
    wanted : Wanted
    delimiter : str
    notation : Notation
        The marks in numbers.
    """

    def __init__(self, header: list[str], wanted: Wanted, delimiter: str, notation: Notation = PLAIN) -> None:
        self.positions = [str(i) for i in range(len(header))]
        self.names = wanted.names
        position = dict(zip(header, self.positions, strict=True))  # the names that are wanted occur once
        self.kept = [position[name] for name in self.names]
        self.numbers = [position[name] for name in wanted.numbers]
        self.wanted, self.delimiter, self.notation = wanted, delimiter, notation

    def parse(self, chunk: Chunk) -> RawBlock:
        """The records of a chunk; parsed cell by cell where pyarrow refuses the chunk as a whole."""
        if chunk.fault:
            bad = [Cell(0, "", chunk.fault, chunk.data[:80].decode("utf-8", "backslashreplace"))]
            return RawBlock(self._empty(), 1, chunk.offset, np.empty(0, np.int64), bad, chunk.sha256)
        if _BLANK.fullmatch(chunk.data):
            return RawBlock(self._empty(), 0, chunk.offset, sha256=chunk.sha256)
        if self.notation.thousands is not None:  # pyarrow does not read them
            return self._parse_as_text(chunk)
        try:
            table = self._read(chunk.data, dict.fromkeys(self.numbers, pa.float64()))
            exact = [name for name in self.numbers if certainly_exact(table.column(name))]
            if len(exact) < len(self.numbers):  # the others as text, which has all digits
                if not self.notation.is_plain:
                    return self._parse_as_text(chunk)
                table = self._read(chunk.data, dict.fromkeys(exact, pa.float64()))
        except pa.ArrowInvalid:
            return self._parse_as_text(chunk)
        table = table.rename_columns(self.names)
        return RawBlock(table, table.num_rows, chunk.offset, sha256=chunk.sha256)

    def _parse_as_text(self, chunk: Chunk) -> RawBlock:
        """Read all cells as text, so that a bad cell affects no other cell; rows of the wrong length are bad rows."""
        bad: list[Cell] = []

        def refuse(row: Any) -> str:
            reason = Reason.TOO_FEW if row.actual_columns < row.expected_columns else Reason.TOO_MANY
            bad.append(Cell(row.number - 1, "", reason, row.text[:320]))
            return "skip"

        data, as_latin_1 = chunk.data, False
        try:
            data.decode()
        except UnicodeDecodeError:  # pyarrow's handler needs valid text: each byte as one character, and back
            data, as_latin_1 = data.decode("latin-1").encode(), True
        table = self._read(data, {}, refuse).rename_columns(self.names)
        if as_latin_1:
            bad = [cell._replace(value=_from_latin_1(cell.value)) for cell in bad]
            back = [[cell.decode().encode("latin-1") for cell in column.to_pylist()] for column in table.columns]
            table = pa.table([from_bytes(column) for column in back], names=list(self.names))
        bad = [cell._replace(value=cell.value[:80]) for cell in bad]
        read = table.num_rows + len(bad)
        rows = np.setdiff1d(np.arange(read), [cell.at for cell in bad]) if bad else None
        table, cells = self.notation.plain_table(table, self.wanted.numbers)
        bad += cells if rows is None else [cell._replace(at=int(rows[cell.at])) for cell in cells]
        return RawBlock(table, read, chunk.offset, rows, bad, chunk.sha256)

    def _read(self, data: bytes, types: dict[str, Any], refuse: Any = None) -> Any:
        if data.startswith(BOM):  # part of a cell; pyarrow would remove it, unless an empty line comes first
            data = b"\n" + data
        check_address_space(min(len(data), _COLUMN) * len(self.kept))
        quoted = b'"' in data
        return _arrow_csv.read_csv(
            pa.BufferReader(data),
            _arrow_csv.ReadOptions(column_names=self.positions, use_threads=False, block_size=len(data) + 1),
            _arrow_csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char='"' if quoted else False,
                newlines_in_values=quoted,
                invalid_row_handler=refuse,
            ),
            _arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(self.kept, pa.binary()) | types,
                include_columns=self.kept,
                null_values=MISSING,
                strings_can_be_null=False,
                decimal_point=self.notation.decimal,
            ),
        )

    def _empty(self) -> Any:
        return pa.table([from_bytes([])] * len(self.names), names=list(self.names))


def _from_latin_1(value: str) -> str:
    """The bytes that were decoded as Latin-1, as a bad row shows them."""
    return value.encode("latin-1").decode("utf-8", "backslashreplace")[:80]
