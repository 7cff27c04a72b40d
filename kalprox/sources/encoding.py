"""Encoding the cells of a table's columns as numbers, and collecting the bad cells."""

from typing import Any

import numpy as np

from kalprox._checks import all_usable, row_sizes, usable
from kalprox.sources.cell_parsing import Faults, parse_levels, parse_numbers, shown
from kalprox.sources.cell_types import plain
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.base import Cell

__all__ = ["BadCells", "one_hot", "parse_weights", "too_heavy"]


class BadCells:
    """The first bad cell of each row of a table."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self._cells: dict[int, Cell] = {}

    def note(self, name: str, faults: Faults | None) -> None:
        """Add the bad cells of the column `name`."""
        if faults is None:
            return
        column = plain(self.table.column(name))
        for at, why in zip(faults.at.tolist(), faults.why, strict=True):
            if at not in self._cells:
                value = "" if why == Reason.MISSING else shown(column, at)
                self._cells[at] = Cell(at, name, why, value)

    def in_order(self) -> list[Cell]:
        """The bad cells in the order of their rows."""
        return [self._cells[at] for at in sorted(self._cells)]


def parse_weights(column: Any) -> tuple[np.ndarray, Faults | None]:
    """A column of weights as float64; a negative weight is a bad cell."""
    values, faults = parse_numbers(column)
    if not (values < 0).any():
        return values, faults
    why = dict(zip(faults.at.tolist(), faults.why, strict=True)) if faults else {}
    why |= dict.fromkeys((i for i in np.flatnonzero(values < 0).tolist() if i not in why), Reason.NEGATIVE_WEIGHT)
    return values, Faults(np.array(sorted(why)), [why[i] for i in sorted(why)])


def too_heavy(weights: np.ndarray, *values: np.ndarray) -> Faults | None:
    """The weights that are too large for the values of their rows, and those of rows that have a bad value."""
    if all_usable(weights, *values):
        return None
    at = np.flatnonzero(~usable(weights, row_sizes(*values)))
    return Faults(at, [Reason.WEIGHT_TOO_LARGE] * len(at)) if len(at) else None


def one_hot(column: Any, levels: dict[bytes, int], out: np.ndarray, *, reject_unseen: bool) -> Faults | None:
    """One-hot encode a column.

    Parameters
    ----------
    column : pyarrow array
    levels : dict of bytes to int
        The position of each level among the columns of `out`; -1 for a level that is dropped.
    out : array of shape (len(column), number of levels)
        Where the encoding is written.
    reject_unseen : bool
        Whether a level that is not in `levels` is a bad cell. Otherwise its row is all zeros.
    """
    codes, faults = parse_levels(column, levels)
    if faults is not None and not reject_unseen:
        keep = [i for i, why in enumerate(faults.why) if why != Reason.UNSEEN]
        faults = Faults(faults.at[keep], [faults.why[i] for i in keep]) if keep else None
    out[:] = 0.0
    known = np.flatnonzero(codes >= 0)
    out[known, codes[known]] = 1.0
    return faults
