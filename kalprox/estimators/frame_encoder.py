"""Encoding of the frames that a model of a table is given: single rows cell by cell, others as tables of pyarrow."""

from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.estimators.frames import column_names, encode, frame_kind, same_columns

if TYPE_CHECKING:
    from kalprox.sources.columns import Columns
    from kalprox.sources.encoding import Encoded
    from kalprox.sources.table_columns import TableColumns

__all__ = ["FrameEncoder"]

_NUMBERS = (float, int, np.float64, np.int64)
_WHOLE = 2.0**53  # float64 holds all whole numbers below it


class FrameEncoder:
    """Encodes frames by the description of a table, and keeps what it makes of that and of the names of columns.

    Parameters
    ----------
    columns : Columns or FormulaColumns
        Without the target, the weight or the clusters if the frames need not have them.
    """

    def __init__(self, columns: "TableColumns") -> None:
        from kalprox.sources.columns import Columns

        self.columns = columns
        self._rows: _RowEncoder | None = None
        if isinstance(columns, Columns):
            other = [columns.weight, columns.cluster, columns.hashed, columns.shared, columns.dates, columns.booleans]
            other += [columns.offset, columns.exposure, columns.time, columns.target and columns.classes]
            self._rows = None if any(other) else _RowEncoder(columns)

    def encode(self, X: Any) -> "Encoded":
        """Encode the rows of a frame of pandas, polars or pyarrow; its other columns are ignored."""
        found = None if self._rows is None or len(X) != 1 else self._rows.encode(X)
        return encode(self.columns, X) if found is None else found


class _RowEncoder:
    """Encodes one row of numbers and known levels, in a tenth of the time that a table takes."""

    def __init__(self, columns: "Columns") -> None:
        from kalprox.sources.notes import ColumnNote, Notes

        self._names = [*columns.features, *([] if columns.target is None else [columns.target])]
        self._levels: list[dict[str, int] | None] = []  # for each of these the number of each level; -1 for a reference
        self._firsts, self._d = [], 0  # the first column of X for each of these; the number of columns
        for name in self._names:
            self._firsts.append(self._d)
            self._levels.append(None)
            if name in columns.categorical:
                start = -int(name in columns.references)
                self._levels[-1] = {level: i for i, level in enumerate(columns.categorical[name], start) if level}
            self._d += 1 if self._levels[-1] is None else len(columns.categorical[name]) + start
        self._has_target = columns.target is not None
        known = columns.categorical if columns.unseen == "zero" else ()
        self._notes: Notes = Notes({name: ColumnNote(0, 1) for name in known})
        self._last: tuple[Any, list[int]] = None, []  # the columns of a frame, and the places of the names in them

    def encode(self, X: Any) -> "Encoded | None":
        """Encode a frame of one row; None if a cell takes a closer look."""
        from kalprox.sources.encoding import Encoded

        kind = frame_kind(X)
        places = None if kind == "pyarrow" else self._places(X)
        if places is None:
            return None
        cells, row = X.row(0) if kind == "polars" else X.to_numpy()[0], np.zeros(self._d)
        for at, first, levels in zip(places, self._firsts, self._levels, strict=True):
            cell = cells[at]
            if levels is None:
                if type(cell) not in _NUMBERS or not -_WHOLE < cell < _WHOLE:
                    return None
                row[first] = cell
            else:
                level = levels.get(cell) if type(cell) is str else None
                if level is None:
                    return None
                if level >= 0:
                    row[first + level] = 1.0
        d = self._d - self._has_target
        return Encoded(row[None, :d], row[d:] if self._has_target else None, None, None, [], self._notes)

    def _places(self, X: Any) -> list[int] | None:
        """Return the places of the columns in a frame that has each of them once; None for others."""
        columns, (last, places) = X.columns, self._last
        if same_columns(columns, last):
            return places
        names = column_names(X)
        if any(names.count(name) != 1 for name in self._names):
            return None
        places = [names.index(name) for name in self._names]
        self._last = columns, places  # at once, since several threads may predict
        return places
