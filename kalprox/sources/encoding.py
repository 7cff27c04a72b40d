"""Encoding the cells of a table's columns as numbers, and collecting the bad cells."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kalprox.base.checks import all_usable, row_sizes, usable
from kalprox.sources.arrow import plain
from kalprox.sources.cell_parsing import Faults, parse_booleans, parse_numbers, rounded, shown
from kalprox.sources.notes import MAX_EXAMPLES, ColumnNote, HashNote, Notes
from kalprox.sources.quarantine import Cell, Reason
from kalprox.sources.readers.notation import units_of

__all__ = ["Cells", "impossible", "one_hot", "put_columns", "too_heavy"]

_TILE = 1 << 11  # rows that are put into their columns at a time
_MAX_LOOKED_AT = 1000  # cells among which examples are looked for


class Cells:
    """The cells of a table, parsed column by column. Collects the first bad cell of each row, and notes.

    Parameters
    ----------
    table : pyarrow.Table or RecordBatch
    """

    def __init__(self, table: Any) -> None:
        self.table = table
        self._bad: dict[int, Cell] = {}
        self._notes: dict[str, dict[str, Any]] = {}

    # ---- columns ---------------------------------------------------------------------------------------

    def parsed(self, name: str, parse: Callable[[Any], tuple[np.ndarray, Faults]]) -> np.ndarray:
        """The column `name` as a function of `kalprox.sources.cell_parsing` parses it; its bad cells are refused."""
        values, faults = parse(self.table.column(name))
        self.refuse(name, faults)
        return values

    def numbers(self, name: str, *, booleans: bool = False) -> np.ndarray:
        """The numbers of the column `name`, which with `booleans` may also be true or false."""
        values = self.parsed(name, parse_booleans if booleans else parse_numbers)
        self.note_rounded(name, values)
        return values

    # ---- bad cells -------------------------------------------------------------------------------------

    def refuse(self, name: str, faults: Faults) -> None:
        """Add the bad cells of the column `name`."""
        if not faults:
            return
        column = plain(self.table.column(name))
        for at, why in faults.items():
            if at not in self._bad:
                value = "" if why == Reason.MISSING else shown(column, at)
                self._bad[at] = Cell(at, name, why, value)

    def refuse_where(self, name: str, bad: np.ndarray, reason: Reason) -> None:
        """Add the cells of the column `name` that a mask says are bad."""
        self.refuse(name, dict.fromkeys(np.flatnonzero(bad).tolist(), reason))

    def refuse_value(self, cell: Cell) -> None:
        """Add a bad value that was computed from several cells of a row."""
        self._bad.setdefault(cell.at, cell)

    def bad(self) -> list[Cell]:
        """The first bad cell of each bad row, in the order of the rows."""
        return [self._bad[at] for at in sorted(self._bad)]

    # ---- notes -----------------------------------------------------------------------------------------

    def without_unknown(self, name: str, faults: Faults) -> Faults:
        """The bad cells of a column of levels without those whose level is not known, which are noted."""
        at = [i for i, why in faults.items() if why == Reason.UNSEEN]
        filled = self.table.num_rows - (len(faults) - len(at))
        if filled:
            self._note("unknown", name, self._column_note(name, np.array(at, np.int64), filled))
        return {i: why for i, why in faults.items() if why != Reason.UNSEEN}

    def note_rounded(self, name: str, values: np.ndarray) -> None:
        """Note the numbers of the column `name` that their float64 `values` do not hold."""
        at = rounded(self.table.column(name), values)
        if len(at):
            self._note("rounded", name, self._column_note(name, at, int(np.isfinite(values).sum())))

    def note_hashed(self, name: str, bins: int, hashes: np.ndarray) -> None:
        """Note the distinct hashes of the levels of the column `name`."""
        self._note("hashed", name, HashNote.of(bins, hashes))

    def without_missing(
        self, name: str, faults: Faults, values: np.ndarray | None, *, target: bool = False
    ) -> tuple[Faults, np.ndarray]:
        """The bad cells of a column that may be missing, without the missing ones, which are noted, and the latter.

        `values` are those of numbers, which are missing where they are NaN, too; None for another column.
        """
        nan = None if values is None or values.ndim > 1 else np.isnan(values)
        kept: Faults = {
            i: why
            for i, why in faults.items()
            if why != Reason.MISSING and not (why == Reason.NOT_FINITE and nan is not None and nan[i])
        }
        missing = np.array([i for i in faults if i not in kept], np.int64)
        self._note("unlabelled" if target else "missing", name, ColumnNote(len(missing), self.table.num_rows))
        return kept, missing

    def notes(self) -> Notes:
        """All notes so far."""
        return Notes(**self._notes, units=units_of(self.table))

    def _note(self, kind: str, name: str, note: ColumnNote | HashNote) -> None:
        self._notes.setdefault(kind, {})[name] = note

    def _column_note(self, name: str, at: np.ndarray, filled: int) -> ColumnNote:
        column = plain(self.table.column(name))
        examples = dict.fromkeys(shown(column, i) for i in at[:_MAX_LOOKED_AT].tolist())
        return ColumnNote(len(at), filled, tuple(examples)[:MAX_EXAMPLES])


def impossible(y: np.ndarray, low: float | None, high: float | None) -> np.ndarray:
    """Return which targets are below the least or above the largest that is possible; None is no bound."""
    found: np.ndarray = (y < (-np.inf if low is None else low)) | (y > (np.inf if high is None else high))
    return found


def too_heavy(weights: np.ndarray, *values: Any) -> np.ndarray:
    """Which weights are too large for the values of their rows, or belong to rows that have a bad value.

    The values may be a sparse matrix.
    """
    values = tuple(abs(a).max(axis=1).toarray().ravel() if hasattr(a, "toarray") else a for a in values)
    if all_usable(weights, *values):
        return np.zeros(len(weights), bool)
    values = tuple(np.where(np.isnan(a), 0.0, a) for a in values)  # which are missing, or bad for that reason
    found: np.ndarray = ~usable(weights, row_sizes(*values))
    return found


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
