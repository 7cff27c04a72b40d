"""A fast way to encode a few rows: where every cell is a plain number, or a level as it is spelled in the model.

A table is parsed and encoded column by column, which takes some 200 microseconds however few rows there are. Rows of
plain cells are encoded here in a tenth of that, to the same bits; all others are left to the table.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.checks import all_usable
from kalprox.sources.base import Block
from kalprox.sources.classes import class_index
from kalprox.sources.columns import Columns
from kalprox.sources.encoding import impossible
from kalprox.sources.levels import LevelIndex
from kalprox.sources.notes import NO_NOTES, ColumnNote, Notes
from kalprox.sources.quarantine import BadRow
from kalprox.sources.readers.jsonl import WrittenNumber
from kalprox.sources.table_columns import TableColumns

__all__ = ["ParsedRows", "PlainRows"]

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
