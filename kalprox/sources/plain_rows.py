"""A fast way to encode a few rows: where every cell is a plain number, or a level as it is spelled in the model.

A table is parsed and encoded column by column, which takes some milliseconds however few rows there are. Rows of plain
cells are encoded here in some microseconds, to the same bits; all others are left to the table.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.checks import all_usable
from kalprox.sources.base import Block
from kalprox.sources.columns import Columns
from kalprox.sources.encoding import impossible
from kalprox.sources.levels import LevelIndex
from kalprox.sources.notes import NO_NOTES, ColumnNote, Notes
from kalprox.sources.quarantine import BadRow
from kalprox.sources.table_columns import TableColumns

__all__ = ["ParsedRows", "PlainRows", "json_object"]

_EXACT = 2.0**53 - 1  # the largest number that no integer is rounded to
_ODD = re.compile(rb"[^ -^`-~]")  # _ and blanks, which Python allows in numbers, and bytes that are no ASCII
_BOOLEANS = {True: b"true", False: b"false"}


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
    header : list of str or None
        The names of the columns of CSV records; None for JSON objects.
    classes : LevelIndex or None
        What finds the classes of the target, if it has classes.
    always_weighted : bool
        Whether rows without a target have a weight, too.

    Attributes
    ----------
    possible : bool
        Whether there are only columns of numbers, levels, the target and the weight, none of which may be missing.
    """

    def __init__(
        self, columns: TableColumns, header: list[str] | None, classes: LevelIndex | None, *, always_weighted: bool
    ) -> None:
        self.columns, self.header, self.classes, self.always_weighted = columns, header, classes, always_weighted
        self.possible = False
        if not isinstance(columns, Columns):
            return
        others = [name for name in (columns.target, columns.weight) if name is not None]
        known = {*columns.numeric, *columns.categorical, *others}
        if not set(columns.wanted.names) <= known or columns.booleans or columns.gaps:
            return
        self.possible = True
        place: dict[str, Any] = {name: name for name in known}
        if header is not None:
            place = {name: i for i, name in enumerate(header) if name in known}
        self.numbers = [place[name] for name in columns.numeric]
        starts, at = {}, 0
        for feature in columns.features:
            starts[feature] = at
            at += len(columns._encoded_names(feature))
        self.levels = [
            (place[name], starts[name], index) for name, index in columns._level_indices.items()
        ]  # place of the cell, first column of X, and the column of each level from there
        self.at = [starts[name] for name in columns.numeric]
        self.target, self.weight = (None if name is None else place[name] for name in (columns.target, columns.weight))
        self.only_numbers = not self.levels and self.at == list(range(at))
        self.width = at
        self.of_target: Callable[[Any], Any] = self._number if classes is None else self._class
        filled = {name: ColumnNote(0, 1) for name in columns.categorical} if columns.unseen == "zero" else {}
        self.note = Notes(filled) if filled else NO_NOTES

    def parse(self, rows: Sequence[Any]) -> ParsedRows | None:
        """Encode rows, each a JSON object or the cells of a CSV record; None if a cell is not plain."""
        try:
            if self.header is None:
                numbers = np.array([[row[name] for name in self.numbers] for row in rows])
            else:
                cells = [row[i] for row in rows for i in self.numbers]
                numbers = np.array(list(map(float, cells))).reshape(len(rows), -1 if cells else 0)
                if _ODD.search(b"".join(cells)):
                    return None
            if numbers.ndim != 2 or (numbers.size and not _are_exact(numbers)):
                return None
            X = numbers.astype(np.float64, copy=False)
            if not self.only_numbers:
                X = np.zeros((len(rows), self.width))
                X[:, self.at] = numbers
                self._put_levels(rows, X)
            return self._with_targets(rows, X)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            return None

    def _with_targets(self, rows: Sequence[Any], X: np.ndarray) -> ParsedRows | None:
        found = [self._target(row) for row in rows]
        taught = [i for i, target in enumerate(found) if target is not None]
        y = np.array([found[i] for i in taught], np.float64) if taught else None
        if y is not None and self.classes is None and not np.abs(y).max() <= _EXACT:
            return None
        if y is not None and impossible(y, self.columns.low, self.columns.high).any():
            return None
        weights = None
        if self.weight is not None:
            needed = range(len(rows)) if self.always_weighted else taught
            weights = np.ones(len(rows))
            weights[list(needed)] = [self._number(rows[i][self.weight]) for i in needed]
            some = [] if y is None else [y]
            if not (weights.min() >= 0 and weights.max() <= _EXACT and all_usable(weights, X)):
                return None
            if not all_usable(weights[taught], *some):
                return None
        notes = self.note
        for _ in rows[1:] if notes is not NO_NOTES else ():
            notes = notes + self.note
        asked, at = Block(X, None, weights if self.always_weighted else None), list(range(len(rows)))
        if y is None:
            return ParsedRows(asked, at, None, [], {}, notes)
        if len(taught) < len(rows):
            X, weights = X[taught], None if weights is None else weights[taught]
        return ParsedRows(asked, at, Block(X, y, weights), taught, {}, notes)

    def _put_levels(self, rows: Sequence[Any], X: np.ndarray) -> None:
        for place, start, index in self.levels:
            for i, row in enumerate(rows):
                code = _known(index, row[place])
                if code >= 0:
                    X[i, start + code] = 1.0

    def _target(self, row: Any) -> Any:
        """The target of a row; None if it is missing."""
        if self.target is None:
            return None
        if self.header is None:
            cell = row.get(self.target)
            return None if cell is None or cell == "" else self.of_target(cell)
        cell = row[self.target]
        return None if not cell else self.of_target(cell)

    def _number(self, cell: Any) -> float:
        if self.header is not None:
            if _ODD.search(cell):
                raise ValueError
            return float(cell)
        if type(cell) not in (int, float):
            raise ValueError
        return float(cell)

    def _class(self, cell: Any) -> Any:
        assert self.classes is not None
        code, m = _known(self.classes, cell), len(self.columns.classes)
        return float(code) if m == 2 else np.eye(m)[code]


def _are_exact(numbers: np.ndarray) -> bool:
    """Whether these are numbers, and none of them may be an integer that was rounded."""
    return numbers.dtype.kind in "fi" and bool(np.abs(numbers).max() <= _EXACT)


def json_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None if there is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _known(index: LevelIndex, cell: Any) -> int:
    """The number of the level that a cell spells as the model does; raise ValueError if there is none."""
    if type(cell) is str:
        cell = cell.encode("utf-8", "surrogatepass")
    elif type(cell) is bool:
        cell = _BOOLEANS[cell]
    elif type(cell) is int and cell:  # not zero, which may have been -0
        cell = b"%d" % cell
    found = index.find(cell) if type(cell) is bytes and cell else None
    if found is None:
        raise ValueError
    return found
