"""Parsing a chunk of CSV records with pyarrow."""

import re
from typing import Any

import numpy as np

from kalprox.base.memory import check_address_space
from kalprox.sources.arrow import from_bytes, load, pa
from kalprox.sources.cell_parsing import MISSING, certainly_exact
from kalprox.sources.quarantine import Cell, Reason
from kalprox.sources.readers.base import RawBlock, Wanted
from kalprox.sources.readers.notation import PLAIN, Notation
from kalprox.sources.readers.text import BOM, Chunk

__all__ = ["CsvParser"]

_arrow_csv = load("pyarrow.csv")
_EMPTY = [""]  # the missing cells of most files: the fewer there are to look for, the faster pyarrow is
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
        self._missing = _EMPTY

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
            table = self._read_numbers(chunk.data)
            exact = [name for name in self.numbers if certainly_exact(table.column(name))]
            if len(exact) < len(self.numbers):  # the others as text, which has all digits
                if not self.notation.is_plain:
                    return self._parse_as_text(chunk)
                table = self._read(chunk.data, dict.fromkeys(exact, pa.float64()))
        except pa.ArrowInvalid:
            return self._parse_as_text(chunk)
        table = table.rename_columns(self.names)
        return RawBlock(table, table.num_rows, chunk.offset, sha256=chunk.sha256)

    def _read_numbers(self, data: bytes) -> Any:
        """Read the columns of numbers as such; cells such as NA are looked for from the first chunk on that has one."""
        numbers, missing = dict.fromkeys(self.numbers, pa.float64()), self._missing
        try:
            return self._read(data, numbers, missing=missing)
        except pa.ArrowInvalid:
            if missing is MISSING:
                raise
            self._missing = MISSING
            return self._read(data, numbers)

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

    def _read(self, data: bytes, types: dict[str, Any], refuse: Any = None, missing: list[str] = MISSING) -> Any:
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
                null_values=missing,
                strings_can_be_null=False,
                decimal_point=self.notation.decimal,
            ),
        )

    def _empty(self) -> Any:
        return pa.table([from_bytes([])] * len(self.names), names=list(self.names))


def _from_latin_1(value: str) -> str:
    """The bytes that were decoded as Latin-1, as a bad row shows them."""
    return value.encode("latin-1").decode("utf-8", "backslashreplace")[:80]
