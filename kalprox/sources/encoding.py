"""Encoding the cells of a table's columns as numbers, and collecting the bad cells."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.checks import all_usable, row_sizes, usable
from kalprox.sources.base import concatenated
from kalprox.sources.cell_parsing import Faults, parse_days, parse_numbers, rounded, shown
from kalprox.sources.cell_types import plain
from kalprox.sources.notes import MAX_EXAMPLES, NO_NOTES, ColumnNote, HashNote, Notes
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.base import Cell
from kalprox.sources.readers.notation import units_of

__all__ = [
    "BadCells",
    "CellNotes",
    "Encoded",
    "also_bad",
    "encode_offset",
    "encode_times",
    "impossible",
    "one_hot",
    "parse_weights",
    "put_columns",
    "too_heavy",
    "without_gaps",
    "without_target",
    "without_unseen",
]

_TILE = 1 << 11  # rows that are put into their columns at a time
_MAX_LOOKED_AT = 1000  # cells among which examples are looked for


class Encoded(NamedTuple):
    """The rows of a table as arrays.

    Attributes
    ----------
    X : array of shape (n, d), float64, or a sparse matrix in CSR format
    y : array of shape (n,), or (n, m) for m > 2 classes, or None
    weights : array of shape (n,), or None
    groups : array of str of shape (n,), or None
        The label of the cluster of each row.
    bad : list of Cell
        The first bad cell of each bad row.
    notes : Notes
        What must be said about the cells of all rows, bad rows included.
    offset : array of shape (n,), or None
        What is added to the linear predictor of each row: the offset, and the log of the exposure.
    times : array of shape (n,), or None
        The time of each row; dates are days since 1970-01-01.
    """

    X: Any
    y: np.ndarray | None
    weights: np.ndarray | None
    groups: np.ndarray | None
    bad: list[Cell]
    notes: Notes
    offset: np.ndarray | None = None
    times: np.ndarray | None = None

    @classmethod
    def joined(cls, parts: "Sequence[Encoded]") -> "Encoded":
        """The rows of several tables as those of one."""
        if len(parts) == 1:
            return parts[0]
        first = np.cumsum([0, *(part.X.shape[0] for part in parts)]).tolist()
        bad = [cell._replace(at=at + cell.at) for at, part in zip(first, parts, strict=False) for cell in part.bad]
        arrays = zip(*((*part[:4], part.offset, part.times) for part in parts), strict=True)
        X, y, weights, groups, offset, times = (None if a[0] is None else concatenated(a) for a in arrays)
        notes = sum((part.notes for part in parts), NO_NOTES)
        return cls(X, y, weights, groups, bad, notes, offset, times)

    def rows(self, which: np.ndarray) -> "Encoded":
        """Return some rows, by a mask or by their positions."""
        found = (None if a is None else a[which] for a in (*self[:4], self.offset, self.times))
        X, y, weights, groups, offset, times = found
        return Encoded(X, y, weights, groups, self.bad, self.notes, offset, times)


class BadCells:
    """The first bad cell of each row of a table; `cells` has it by the position of the row."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.cells: dict[int, Cell] = {}

    def note(self, name: str, faults: Faults) -> None:
        """Add the bad cells of the column `name`."""
        if not faults:
            return
        column = plain(self.table.column(name))
        for at, why in faults.items():
            if at not in self.cells:
                value = "" if why == Reason.MISSING else shown(column, at)
                self.cells[at] = Cell(at, name, why, value)

    def in_order(self) -> list[Cell]:
        """The bad cells in the order of their rows."""
        return [self.cells[at] for at in sorted(self.cells)]


class CellNotes:
    """The `Notes` about the cells of a table."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self._unknown: dict[str, ColumnNote] = {}
        self._rounded: dict[str, ColumnNote] = {}
        self._hashed: dict[str, HashNote] = {}
        self._missing: dict[str, ColumnNote] = {}
        self._unlabelled: dict[str, ColumnNote] = {}

    def note_unknown(self, name: str, faults: Faults) -> None:
        """Add the levels of the column `name` that are not known: its cells that are bad for that reason."""
        at = [i for i, why in faults.items() if why == Reason.UNSEEN]
        filled = self.table.num_rows - (len(faults) - len(at))
        if filled:
            self._unknown[name] = self._note(name, np.array(at, np.int64), filled)

    def note_rounded(self, name: str, values: np.ndarray) -> None:
        """Add the numbers of the column `name` that their float64 `values` do not hold."""
        at = rounded(self.table.column(name), values)
        if len(at):
            self._rounded[name] = self._note(name, at, int(np.isfinite(values).sum()))

    def note_hashed(self, name: str, bins: int, hashes: np.ndarray) -> None:
        """Add the distinct hashes of the levels of the column `name`."""
        self._hashed[name] = HashNote.of(bins, hashes)

    def note_missing(self, name: str, count: int, *, target: bool = False) -> None:
        """Add the number of missing cells of a feature, or of the target, among all rows."""
        (self._unlabelled if target else self._missing)[name] = ColumnNote(count, self.table.num_rows)

    def notes(self) -> Notes:
        """All notes so far."""
        units = units_of(self.table)
        return Notes(self._unknown, self._rounded, self._hashed, self._missing, self._unlabelled, units)

    def _note(self, name: str, at: np.ndarray, filled: int) -> ColumnNote:
        column = plain(self.table.column(name))
        examples = dict.fromkeys(shown(column, i) for i in at[:_MAX_LOOKED_AT].tolist())
        return ColumnNote(len(at), filled, tuple(examples)[:MAX_EXAMPLES])


def parse_weights(column: Any) -> tuple[np.ndarray, Faults]:
    """A column of weights as float64; a negative weight is a bad cell."""
    values, faults = parse_numbers(column)
    return values, also_bad(faults, values < 0, Reason.NEGATIVE_WEIGHT)


def impossible(y: np.ndarray, low: float | None, high: float | None) -> np.ndarray:
    """Return which targets are below the least or above the largest that is possible; None is no bound."""
    found: np.ndarray = (y < (-np.inf if low is None else low)) | (y > (np.inf if high is None else high))
    return found


def also_bad(faults: Faults, bad: np.ndarray, reason: Reason) -> Faults:
    """The bad cells of a column, and those of a mask that are bad for another reason."""
    return dict.fromkeys(np.flatnonzero(bad).tolist(), reason) | faults


def encode_offset(
    table: Any, offset: str | None, exposure: str | None, bad: BadCells, notes: CellNotes
) -> np.ndarray | None:
    """What is added to the linear predictor of each row: a column, and the log of another one, which must be positive.

    Parameters
    ----------
    table : pyarrow.Table or RecordBatch
    offset, exposure : str or None
        The names of the two columns.
    bad, notes
        Where bad cells, and numbers that are rounded, are noted.
    """
    total = None
    for name in (offset, exposure):
        if name is None:
            continue
        values, faults = parse_numbers(table.column(name))
        notes.note_rounded(name, values)
        if name == exposure:
            faults = also_bad(faults, ~(values > 0), Reason.NO_EXPOSURE)
            values = np.log(np.where(values > 0, values, 1.0))
        bad.note(name, faults)
        total = values if total is None else total + values
    return total


def encode_times(table: Any, time: str | None, dates: bool, bad: BadCells) -> np.ndarray | None:
    """The times of the rows, from a column of numbers or of dates; bad cells are noted in `bad`."""
    if time is None:
        return None
    values, faults = (parse_days if dates else parse_numbers)(table.column(time))
    bad.note(time, faults)
    return values


def too_heavy(weights: np.ndarray, *values: Any) -> Faults:
    """The weights that are too large for the values of their rows, and those of rows that have a bad value.

    The values may be a sparse matrix.
    """
    values = tuple(abs(a).max(axis=1).toarray().ravel() if hasattr(a, "toarray") else a for a in values)
    if all_usable(weights, *values):
        return {}
    values = tuple(np.where(np.isnan(a), 0.0, a) for a in values)  # which are missing, or bad for that reason
    return dict.fromkeys(np.flatnonzero(~usable(weights, row_sizes(*values))).tolist(), Reason.WEIGHT_TOO_LARGE)


def put_columns(columns: Mapping[int, np.ndarray], X: np.ndarray) -> None:
    """Put arrays of shape (n,) into their columns of X, some rows at a time: these rows of X stay in the cache."""
    for i in range(0, len(X), _TILE):
        for j, values in columns.items():
            X[i : i + _TILE, j] = values[i : i + _TILE]


def one_hot(codes: np.ndarray, out: np.ndarray) -> None:
    """One-hot encode a column.

    Parameters
    ----------
    codes : array of int of shape (n,)
        The position of each cell's level among the columns of `out`. A negative one makes a row of zeros: a level
        without a column, or a bad cell.
    out : array of shape (n, number of columns)
        Where the encoding is written.
    """
    out[:] = 0.0
    known = np.flatnonzero(codes >= 0)
    out[known, codes[known]] = 1.0


def without_gaps(name: str, faults: Faults, notes: CellNotes, values: np.ndarray | None, out: np.ndarray) -> Faults:
    """The bad cells of a feature that may be missing, without the missing ones, which are noted.

    `values` are those of a number, which are NaN where it is missing. The columns `out` of other features become NaN.
    """
    faults, missing = _without_missing(faults, values)
    if values is None:
        out[missing] = np.nan
    notes.note_missing(name, len(missing))
    return faults


def without_target(name: str, y: np.ndarray, faults: Faults, notes: CellNotes) -> Faults:
    """The bad cells of a target that may be missing, without the missing ones, which are noted; y is NaN there."""
    faults, missing = _without_missing(faults, y)
    if not np.isnan(y[missing]).all():  # of classes
        y[missing] = np.nan
    notes.note_missing(name, len(missing), target=True)
    return faults


def _without_missing(faults: Faults, values: np.ndarray | None) -> tuple[Faults, np.ndarray]:
    """The bad cells of a column without the missing ones, and the positions of these; NaN is missing, too."""
    if not faults:
        return {}, np.empty(0, np.int64)
    nan = np.zeros(max(faults) + 1, bool) if values is None or values.ndim > 1 else np.isnan(values)
    kept: Faults = {i: w for i, w in faults.items() if w != Reason.MISSING and not (w == Reason.NOT_FINITE and nan[i])}
    return kept, np.array([i for i in faults if i not in kept], np.int64)


def without_unseen(faults: Faults) -> Faults:
    """The bad cells without those that have a level that is not known."""
    return {i: why for i, why in faults.items() if why != Reason.UNSEEN}
