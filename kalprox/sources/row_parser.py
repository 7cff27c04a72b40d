"""Records of a stream as rows of X and y: a target that is missing makes a row to predict, and no bad row.

A table is parsed and encoded column by column, which takes some 200 microseconds however few rows there are. Rows of
plain cells, each a plain number or a level as it is spelled in the model, are encoded by `PlainRows` in a tenth of
that, to the same bits; all others are left to the table.
"""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.checks import all_usable
from kalprox.sources.arrow import from_bytes, pa
from kalprox.sources.base import Block
from kalprox.sources.cells import MISSING, impossible
from kalprox.sources.columns import Columns, TableColumns
from kalprox.sources.files import STDIN
from kalprox.sources.inference import class_index
from kalprox.sources.labels import LevelIndex, label_of
from kalprox.sources.quarantine import NO_NOTES, BadRow, Cell, ColumnNote, Notes, Reason
from kalprox.sources.readers.base import RawBlock, Wanted, check_names
from kalprox.sources.readers.jsonl import WrittenNumber, json_object, table_of
from kalprox.sources.readers.notation import PLAIN, Notation
from kalprox.sources.readers.text import BOM
from kalprox.sources.records import Record
from kalprox.sources.table import Cursor, Table


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
    """A record and its cells: a JSON object, the cells of a CSV record, or None for the reason that is given."""

    record: Record
    cells: Any
    fault: Reason


_EXACT = 2.0**53 - 1  # the largest number that no integer is rounded to
_ODD = re.compile(rb"[^ -^`-~]")  # _ and blanks, which Python allows in numbers, and bytes that are no ASCII
_NUMBERS = (bytes, WrittenNumber, float, int)


class ParsedRows(NamedTuple):
    """Some rows of a stream, encoded.

    Attributes
    ----------
    asked : Block
        The good rows, without targets.
    at : list of int
        The positions of the good rows among all.
    taught : Block or None
        Those of them that have a target.
    taught_at : list of int
        The positions of these.
    bad : dict of int to BadRow
        The bad rows, by their positions.
    notes : Notes
    """

    asked: Block
    at: list[int]
    taught: Block | None
    taught_at: list[int]
    bad: dict[int, BadRow]
    notes: Notes = NO_NOTES


class PlainRows:
    """Encodes rows of plain cells.

    Parameters
    ----------
    columns : Columns or FormulaColumns
    places : dict of str to int, optional
        Where the cells of each column are in a row of CSV. By default rows are dictionaries.
    always_weighted : bool
        Whether rows without a target have a weight, too.

    Attributes
    ----------
    possible : bool
        Whether there are only columns of numbers, levels, the target and the weight, none of which may be missing.
    """

    possible = False

    def __init__(self, columns: TableColumns, places: dict[str, int] | None, *, always_weighted: bool) -> None:
        if not isinstance(columns, Columns) or columns.booleans or columns.gaps:
            return
        known = {*columns.numeric, *columns.categorical, columns.target, columns.weight}
        if not set(columns.wanted.names) <= known:
            return
        self.possible, self.columns, self.always_weighted = True, columns, always_weighted
        place: dict[Any, Any] = {name: name if places is None else places.get(str(name)) for name in known}
        starts, self.width = {}, 0
        for feature in columns.features:
            starts[feature] = self.width
            self.width += len(columns.encoded_names(feature))
        self.numbers, self.at = ([of[name] for name in columns.numeric] for of in (place, starts))
        self.levels = [(place[name], starts[name], index) for name, index in columns.level_indices.items()]
        self.target, self.weight = place.get(columns.target), place.get(columns.weight)
        self.classes = class_index(columns.classes) if columns.classes else None

    def parse(self, rows: Sequence[Any]) -> ParsedRows | None:
        """Encode rows, each a dictionary or the cells of a CSV record; None if a cell is not plain."""
        try:
            return self._parse(rows)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            return None

    def _parse(self, rows: Sequence[Any]) -> ParsedRows | None:
        n, at, weights = len(rows), list(range(len(rows))), None
        X = np.zeros((n, self.width))
        X[:, self.at] = np.array([[_number(row[place]) for place in self.numbers] for row in rows])
        for place, start, index in self.levels:
            for i, row in enumerate(rows):
                if (code := _level(index, row[place])) >= 0:
                    X[i, start + code] = 1.0
        targets = [self._target(row) for row in rows]
        taught = [i for i in at if targets[i] is not None]
        y = np.array([targets[i] for i in taught], np.float64) if taught else None
        if y is not None and impossible(y, self.columns.low, self.columns.high).any():
            return None
        if self.weight is not None:
            needed = at if self.always_weighted else taught
            weights = np.ones(n)
            weights[needed] = [_number(rows[i][self.weight]) for i in needed]
            some = [] if y is None else [y]
            if weights.min() < 0 or not (all_usable(weights, X) and all_usable(weights[taught], *some)):
                return None
        filled = self.columns.categorical if self.columns.unseen == "zero" else ()
        notes = Notes({name: ColumnNote(0, n) for name in filled}) if filled else NO_NOTES
        asked = Block(X, None, weights if self.always_weighted else None)
        if len(taught) < n:
            X, weights = X[taught], None if weights is None else weights[taught]
        return ParsedRows(asked, at, None if y is None else Block(X, y, weights), taught, {}, notes)

    def _target(self, row: Any) -> Any:
        """The target of a row; None if it is missing."""
        cell = None
        if self.target is not None:
            cell = row.get(self.target) if isinstance(row, dict) else row[self.target]
        if cell is None or cell in ("", b""):
            return None
        if self.classes is None:
            return _number(cell)
        code, m = _level(self.classes, cell), len(self.columns.classes)
        return float(code) if m == 2 else np.eye(m)[code]


def _number(cell: Any) -> float:
    """The number in a cell; raise ValueError if there is none, or it may be an integer that was rounded."""
    if type(cell) not in _NUMBERS or (type(cell) is bytes and _ODD.search(cell)):
        raise ValueError
    number = float(cell)
    if not abs(number) <= _EXACT:
        raise ValueError
    return number


def _level(index: LevelIndex, cell: Any) -> int:
    """The number of the level that a cell spells as the model does; raise ValueError if there is none."""
    if type(cell) is bool:
        cell = "true" if cell else "false"
    elif type(cell) is int and cell:  # not zero, which may have been -0
        cell = str(cell)
    if isinstance(cell, str):
        cell = cell.encode("utf-8", "surrogatepass")
    found = index.find(cell) if type(cell) is bytes and cell else None
    if found is None:
        raise ValueError
    return found


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
        self._places = None if style.header is None else {name: i for i, name in enumerate(style.header)}
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
        self._plain = PlainRows(columns, self._places, always_weighted=keyed)
        self._is_plain = self._plain.possible and style.notation.is_plain

    def _table(self, columns: TableColumns) -> Table:
        marks = asdict(self.style.notation)
        return Table([STDIN], columns, format=self.style.format, samples=self.samples, **marks)

    # ---- cells -----------------------------------------------------------------------------------------

    def open(self, record: Record) -> OpenedRow:
        """Split a record into cells."""
        if record.fault is not None:
            return OpenedRow(record, None, record.fault)
        if self.style.header is None:
            found = json_object(record.data.removeprefix(BOM) if record.start == 0 else record.data)
            return OpenedRow(record, found, Reason.NOT_JSON)
        data = record.data.rstrip(b"\r\n")
        if b'"' in data:
            text = io.StringIO(data.decode("utf-8", "surrogateescape"), newline="")
            limit = csv.field_size_limit(len(data) + 1)
            try:
                first = next(csv.reader(text, delimiter=self.style.delimiter), [])
            except csv.Error:
                return OpenedRow(record, None, Reason.TOO_MANY)
            finally:
                csv.field_size_limit(limit)
            cells = [cell.encode("utf-8", "surrogateescape") for cell in first]
        else:
            cells = data.split(self.style.delimiter.encode())
        less = len(cells) - len(self.style.header)
        return OpenedRow(record, None if less else cells, Reason.TOO_FEW if less < 0 else Reason.TOO_MANY)

    def cell(self, row: OpenedRow, name: str) -> Any:
        """A cell as JSON holds it, or as text; None if it is missing."""
        if row.cells is None:
            return None
        if self._places is None:
            return _read(row.cells.get(name))
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
        if self._is_plain and all(row.cells is not None for row in rows):
            plain = self._plain.parse([row.cells for row in rows])
            if plain is not None:
                return plain
        taught, taught_at, refused = self._encode(self._full, rows, range(len(rows)), numbers)
        no_target = [i for i, row in refused.items() if self._lacks_target(row)]
        others, others_at, bad = self._encode(self._asked, rows, no_target, numbers)
        bad |= {i: row for i, row in refused.items() if i not in no_target}
        asked = replace(taught, y=None) if self.keyed else replace(taught, y=None, weights=None, groups=None)
        if others_at:
            order = np.argsort([*taught_at, *others_at], kind="stable")
            asked = (Block.joined([asked, others]) if taught_at else others).at(order)
        at = sorted([*taught_at, *others_at])
        return ParsedRows(asked, at, taught if taught_at else None, taught_at, bad, taught.notes)

    def targets(self, rows: Sequence[OpenedRow], numbers: Sequence[int]) -> tuple[Block, list[int], dict[int, BadRow]]:
        """The targets of rows whose other cells do not matter: a block without inputs, positions, and the bad rows."""
        assert self._targets is not None, "formulas have no late targets"
        return self._encode(self._targets, rows, range(len(rows)), numbers)

    def _encode(
        self, table: Table, rows: Sequence[OpenedRow], which: Sequence[int], numbers: Sequence[int]
    ) -> tuple[Block, list[int], dict[int, BadRow]]:
        """Encode some of the rows by a table: the good ones, their positions, and the bad ones."""
        block = table.block(self._raw(table.columns.wanted, [rows[i] for i in which]), 0, len(which), Cursor())
        bad = {which[one.row - 1]: one for one in block.bad}
        bad = {i: replace(one, file=self.name, row=numbers[i]) for i, one in bad.items()}
        return block, [which[i] for i in np.flatnonzero(block.place.good).tolist()], bad

    def _raw(self, wanted: Wanted, rows: Sequence[OpenedRow]) -> RawBlock:
        """The cells of rows as text."""
        whole = [i for i, row in enumerate(rows) if row.cells is not None]
        cells = [rows[i].cells for i in whole]
        bad = [Cell(i, "", row.fault, _shown(row.record)) for i, row in enumerate(rows) if row.cells is None]
        if self._places is None:
            table, more = table_of(cells, wanted)
        else:
            table = pa.table({name: from_bytes([row[self._places[name]] for row in cells]) for name in wanted.names})
            table, more = self.style.notation.plain_table(table, wanted.numbers)
        bad += [cell._replace(at=whole[cell.at]) for cell in more]
        return RawBlock(table, len(rows), 0, np.array(whole, np.int64), bad)

    def _lacks_target(self, row: BadRow) -> bool:
        """Whether a row is bad because it has no target; in JSON, an empty text is none."""
        is_target = row.column in (self.columns.target, *self.columns.left)
        return is_target and (row.reason == Reason.MISSING or (self.samples and not row.value.strip()))


def _read(value: Any) -> Any:
    """A value of JSON with numbers in the place of those that are as they are written."""
    if isinstance(value, list):
        return [_read(one) for one in value]
    if isinstance(value, dict):
        return {name: _read(one) for name, one in value.items()}
    return json.loads(value) if isinstance(value, WrittenNumber) else value


def _shown(record: Record) -> str:
    return record.data.rstrip(b"\r\n").decode("utf-8", "backslashreplace")[:80]
