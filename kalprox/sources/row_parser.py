"""Records of a stream as rows of X and y: a target that is missing makes a row to predict, and no bad row."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from kalprox.sources.base import Block
from kalprox.sources.cell_parsing import MISSING
from kalprox.sources.classes import class_index
from kalprox.sources.columns import Columns
from kalprox.sources.files import STDIN
from kalprox.sources.labels import label_of
from kalprox.sources.notes import NO_NOTES, Notes
from kalprox.sources.places import Cursor
from kalprox.sources.plain_rows import ParsedRows, PlainRows, json_object
from kalprox.sources.quarantine import BadRow, Reason
from kalprox.sources.readers.base import RawBlock, Wanted, check_names
from kalprox.sources.readers.csv_parsing import CsvParser
from kalprox.sources.readers.jsonl import parse_lines
from kalprox.sources.readers.notation import PLAIN, Notation
from kalprox.sources.readers.text import BOM, Chunk
from kalprox.sources.records import Record
from kalprox.sources.table import Table
from kalprox.sources.table_columns import TableColumns

__all__ = ["OpenedRow", "RowParser", "Style"]


class Style(NamedTuple):
    """How the records of a stream are written.

    Parameters
    ----------
    header : list of str or None
        The names of the columns of CSV records; None for lines of JSON.
    delimiter : str
    notation : Notation
        The marks in numbers.
    """

    header: list[str] | None = None
    delimiter: str = ","
    notation: Notation = PLAIN

    @property
    def format(self) -> str:
        """The name of the format, csv or jsonl."""
        return "jsonl" if self.header is None else "csv"


class OpenedRow(NamedTuple):
    """A record and its cells: a JSON object, the cells of a CSV record, or None if there are none."""

    record: Record
    cells: Any


class RowParser:
    """Parses and encodes records of a stream, by the rules of `kalprox.sources.table.Table`.

    Parameters
    ----------
    columns : Columns or FormulaColumns
    style : Style
    keyed : bool
        Whether rows without a target wait for it, so that they must have a weight and a cluster, if these are columns.
    samples : bool
        Whether bad rows may contain values of cells.
    name : str
        The name of the stream in bad rows.

    Examples
    --------
    >>> parser = RowParser(Columns("y", numeric=("x",)), Style())
    >>> lines = [b'{"x": 1, "y": 2}', b'{"x": 3}', b'{"y": 1}']
    >>> rows = parser.parse([parser.open(Record(line, 0, 0, 0.0)) for line in lines], [1, 2, 3])
    >>> rows.asked.X.tolist(), rows.at, rows.taught.y.tolist(), str(rows.bad[2])
    ([[1.0], [3.0]], [0, 1], [2.0], "-, row 3, column 'x': missing")
    """

    def __init__(
        self, columns: TableColumns, style: Style, *, keyed: bool = False, samples: bool = True, name: str = "-"
    ) -> None:
        self.columns, self.style, self.keyed, self.name, self.samples = columns, style, keyed, name, samples
        if style.header is not None:
            check_names(name, style.header, columns.wanted.names)
        # rows without a target are found as bad cells, also where the columns allow them
        strict: Any = columns
        strict = replace(strict, unlabelled=False) if columns.unlabelled else strict
        asked = strict.without(("target",) if keyed else ("target", "weight", "cluster"))
        self._full, self._asked = self._table(strict), self._table(asked)
        self._targets: Table | None = None
        if isinstance(columns, Columns) and columns.target is not None:
            self._targets = self._table(
                Columns(columns.target, classes=columns.classes, low=columns.low, high=columns.high)
            )
        index = class_index(columns.classes) if columns.classes else None
        self._plain = PlainRows(columns, style.header, index, always_weighted=keyed)
        self._is_plain = self._plain.possible and style.notation.is_plain
        self._places = {name: i for i, name in enumerate(style.header or ())}
        self._parsers: dict[Wanted, CsvParser] = {}

    def _table(self, columns: TableColumns) -> Table:
        marks = asdict(self.style.notation)
        return Table([STDIN], columns, format=self.style.format, samples=self.samples, **marks)

    # ---- cells -----------------------------------------------------------------------------------------

    def open(self, record: Record) -> OpenedRow:
        """Split a record into cells."""
        if record.fault is not None:
            return OpenedRow(record, None)
        if self.style.header is None:
            return OpenedRow(record, json_object(record.data))
        data = record.data.rstrip(b"\r\n")
        if b'"' not in data:
            cells = data.split(self.style.delimiter.encode())
            return OpenedRow(record, cells if len(cells) == len(self.style.header) else None)
        text = io.StringIO(data.decode("utf-8", "surrogateescape"), newline="")
        try:
            found = next(csv.reader(text, delimiter=self.style.delimiter, strict=True), [])
        except csv.Error:
            found = []
        cells = [cell.encode("utf-8", "surrogateescape") for cell in found]
        return OpenedRow(record, cells if len(cells) == len(self.style.header) else None)

    def cell(self, row: OpenedRow, name: str) -> Any:
        """A cell as JSON holds it, or as text; None if it is missing."""
        if row.cells is None:
            return None
        if self.style.header is None:
            return row.cells.get(name)
        place = self._places.get(name)
        return None if place is None else row.cells[place].decode("utf-8", "backslashreplace") or None

    def key(self, row: OpenedRow, name: str) -> str | None:
        """The key of a row as a label, the same for the same value in any spelling; None if there is none."""
        found = self.cell(row, name)
        return None if isinstance(found, (dict, list)) else label_of(found)

    def has_target(self, row: OpenedRow) -> bool:
        """Whether the cell of the target holds anything."""
        found = self.cell(row, str(self.columns.target))
        text = found.strip() if isinstance(found, str) else found
        return text is not None and text != "" and (text not in MISSING or text in self.columns.classes)

    # ---- rows ------------------------------------------------------------------------------------------

    def parse(self, rows: Sequence[OpenedRow], numbers: Sequence[int]) -> ParsedRows:
        """Encode rows, which have these numbers in the stream."""
        if self._is_plain and (found := self._plain_rows(rows)) is not None:
            return found
        faulty = {i: self._faulty(row.record, n) for i, (row, n) in enumerate(zip(rows, numbers, strict=True))}
        bad = {i: row for i, row in faulty.items() if row is not None}
        whole = [i for i in range(len(rows)) if i not in bad]
        taught, taught_at, refused, notes = self._encode(self._full, rows, whole, numbers)
        no_target = [i for i, row in refused.items() if self._lacks_target(row)]
        others, others_at, refused_, _ = self._encode(self._asked, rows, no_target, numbers)
        bad |= {i: row for i, row in refused.items() if i not in no_target} | refused_
        asked = replace(taught, y=None) if self.keyed else replace(taught, y=None, weights=None, groups=None)
        if others_at:
            order = np.argsort([*taught_at, *others_at], kind="stable")
            asked = (Block.joined([asked, others]) if taught_at else others).at(order)
        at = sorted([*taught_at, *others_at])
        return ParsedRows(asked, at, taught if taught_at else None, taught_at, bad, notes)

    def targets(self, rows: Sequence[OpenedRow], numbers: Sequence[int]) -> tuple[Block, list[int], dict[int, BadRow]]:
        """The targets of rows whose other cells do not matter: a block without inputs, positions, and the bad rows."""
        assert self._targets is not None, "formulas have no late targets"
        found, at, bad, _ = self._encode(self._targets, rows, range(len(rows)), numbers)
        return found, at, bad

    def _plain_rows(self, rows: Sequence[OpenedRow]) -> ParsedRows | None:
        if any(row.cells is None for row in rows):
            return None
        return self._plain.parse([row.cells for row in rows])

    def _encode(
        self, table: Table, rows: Sequence[OpenedRow], which: Sequence[int], numbers: Sequence[int]
    ) -> tuple[Block, list[int], dict[int, BadRow], Notes]:
        """Encode some of the rows by a table: the good ones, their positions, the bad ones, and notes."""
        raws = self._raw_blocks(table.columns.wanted, [rows[i].record for i in which])
        blocks, good, bad, notes, begin = [], [], {}, NO_NOTES, 0
        for raw in raws:
            block = table.block(raw, 0, raw.read, Cursor())
            blocks.append(block)
            good += [which[begin + i] for i in np.flatnonzero(block.place.good).tolist()]
            for one in block.bad:
                i = which[begin + one.row - 1]
                bad[i] = replace(one, file=self.name, row=numbers[i])
            notes, begin = notes + block.notes, begin + raw.read
        if not blocks:
            return Block(np.empty((0, len(table.columns.names))), None), [], {}, notes
        return blocks[0] if len(blocks) == 1 else Block.joined(blocks), good, bad, notes

    def _raw_blocks(self, wanted: Wanted, records: Sequence[Record]) -> list[RawBlock]:
        """The cells of records: of all together or, if they are not as many rows as records, of one after the other."""
        if not records:
            return []
        data = b"".join(r.data if r.data.endswith(b"\n") else r.data + b"\n" for r in records)
        raw = self._raw(wanted, data)
        if raw.read == len(records):
            return [raw]
        if len(records) > 1:
            return [one for record in records for one in self._raw_blocks(wanted, [record])]
        empty = self._raw(wanted, data, Reason.NOT_JSON if self.style.header is None else Reason.TOO_MANY)
        return [empty]

    def _raw(self, wanted: Wanted, data: bytes, fault: Reason | None = None) -> RawBlock:
        chunk = Chunk(data, 0, None, fault)
        if self.style.header is None:
            return parse_lines(chunk._replace(data=data.removeprefix(BOM)), wanted)
        if wanted not in self._parsers:
            self._parsers[wanted] = CsvParser(self.style.header, wanted, self.style.delimiter, self.style.notation)
        return self._parsers[wanted].parse(chunk)

    def _faulty(self, record: Record, number: int) -> BadRow | None:
        if record.fault is None:
            return None
        value = record.data.decode("utf-8", "backslashreplace")[:80] if self.samples else ""
        return BadRow(self.name, number, "", record.fault, value)

    def _lacks_target(self, row: BadRow) -> bool:
        """Whether a row is bad because it has no target; in JSON, an empty text is none."""
        is_target = row.column in (self.columns.target, *self.columns.left)
        return is_target and (row.reason == Reason.MISSING or (self.samples and not row.value.strip()))
