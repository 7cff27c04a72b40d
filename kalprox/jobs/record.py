"""The record of a fit: how well its rows were predicted, the range of each column, and the rows that were rejected.

The field names are also the keys in model files and checkpoints, so they cannot change. What the header of a model file
or checkpoint says about a table is checked before objects are made of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from kalprox.base.tree import expect
from kalprox.calibration import Calibration
from kalprox.sources import Block
from kalprox.sources.base import ColumnSums
from kalprox.sources.columns import Columns, TableColumns
from kalprox.sources.quarantine import BadRow, Notes, Reason

_MAX_POINTS = 64  # of an error history; when it is full, every other point is dropped
_FIRST_STRIDE = 8
_MAX_EXAMPLES = 20  # rejected rows that are kept as examples
_WHOLE_FILES = (Reason.EMPTY, Reason.UNREADABLE)  # reasons that concern a file, not a row


@dataclass(frozen=True)
class ErrorHistory:
    """The prequential error along a fit: cumulative sums over the rows, at 32 to 64 points.

    Attributes
    ----------
    rows : list of int
        Rows learned.
    judged : list of float
        Rows predicted before they were learned.
    squares : list of float
        Sum of their squared errors.
    covered : list of float
        Number of them within their 95% interval.
    stride : int
        Rows from one point to the next; the last point moves on until it is as far from the one before it.
    """

    rows: list[int] = field(default_factory=list)
    judged: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    covered: list[float] = field(default_factory=list)
    stride: int = _FIRST_STRIDE

    def until_next(self, rows: int, ahead: int) -> int:
        """Return how many rows after these the next point is, if so many rows are ahead."""
        stride = self.stride
        while rows + ahead > stride * _MAX_POINTS:  # as far apart as the points that will be left
            stride *= 2
        return stride - rows % stride

    def after(self, rows: int, sums: np.ndarray) -> "ErrorHistory":
        """The history after more rows, given the number of rows learned and the `history_sums` of all of them."""
        point = rows, *sums.tolist()
        *_, before, last = 0, 0, *self.rows
        kept = len(self.rows) - (0 < last - before < self.stride)
        columns, stride = [[*old[:kept], new] for old, new in zip(self._columns, point, strict=True)], self.stride
        if kept + 1 > _MAX_POINTS:
            columns, stride = [column[1::2] + column[-1:] for column in columns], 2 * max(stride, self.rows[0])
        all_rows, judged, squares, covered = columns
        return ErrorHistory(all_rows, judged, squares, covered, stride)

    @property
    def _columns(self) -> tuple[list[Any], ...]:
        return self.rows, self.judged, self.squares, self.covered

    def running(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the error between consecutive points.

        Returns
        -------
        rows : ndarray of shape (m,)
            Rows learned at each point; points without newly judged rows are left out.
        rmse, coverage : ndarray of shape (m,)
            Root mean squared error, and coverage of the 95% intervals, of the rows judged since the previous point.
        """
        rows, judged, squares, covered = (np.asarray(column, float) for column in self._columns)
        if len(rows) > 2 and rows[-1] - rows[-2] < self.stride / 2:  # too few rows to be a point of their own
            rows, judged, squares, covered = (np.delete(column, -2) for column in (rows, judged, squares, covered))
        n = np.diff(judged, prepend=0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            rmse, coverage = np.sqrt(np.diff(squares, prepend=0.0) / n), np.diff(covered, prepend=0.0) / n
        return rows[n > 0], rmse[n > 0], coverage[n > 0]


def history_sums(score: Calibration) -> np.ndarray:
    """The number of rows that a score has judged, the sum of their squared errors, and how many intervals covered."""
    return np.array([score.rows, score.squared_errors, score.covered[-1]], float)


@dataclass(frozen=True)
class DataQuality:
    """The range and sum of each column of X over the good rows, and the reasons why other rows were rejected.

    Attributes
    ----------
    read, bad : int
        Rows read, and rows rejected.
    reasons : dict
        Column -> reason -> number of rows.
    first : list of dict
        The first rejected rows, with the fields of `BadRow`.
    low, high, total : list of float
        Minimum, maximum and sum of each column; empty while there is no good row. The minima and maxima are values of
        rows: they are empty, too, in a fit without samples. All three are empty for sparse rows.
    notes : Notes
        Unknown levels, and numbers that were rounded.
    targets : list of float
        Sum of each column of y over the good rows; empty while there is none, and for rows without targets.
    outliers : int or None
        Rows that were flagged as outliers and written to the quarantine file; None if that was not asked for.
    """

    read: int = 0
    bad: int = 0
    reasons: dict[str, dict[str, int]] = field(default_factory=dict)
    first: list[dict[str, Any]] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)
    targets: list[float] = field(default_factory=list)
    outliers: int | None = None

    def after(self, block: Block, *, ranges: bool = True) -> "DataQuality":
        """Return the data quality after one more block; without `ranges`, which are values of rows, only with sums."""
        return self.after_rows(block.bad, block.read, block.notes, ColumnSums.of(block, ranges=ranges))

    def after_rows(self, bad: Sequence[BadRow], read: int, notes: Notes, columns: ColumnSums) -> "DataQuality":
        """Return the data quality after more rows, of which some are bad, with the sums of the others."""
        reasons: dict[str, dict[str, int]] = {}
        for row in bad:
            of_column = reasons.setdefault(row.column, {})
            of_column[str(row.reason)] = of_column.get(str(row.reason), 0) + 1
        first = [asdict(row) for row in bad[:_MAX_EXAMPLES]]
        return self._plus(DataQuality(read, len(bad), reasons, first, notes=notes), columns)

    def merge(self, other: "DataQuality") -> "DataQuality":
        """Return the data quality of the rows of both."""
        new = self._plus(other, other._columns)
        if not other.total and other.read > other.bad:  # of rows without a record, sums and ranges are not known
            new = replace(new, low=[], high=[], total=[], targets=[])
        flagged = None if self.outliers is None or other.outliers is None else self.outliers + other.outliers
        return replace(new, outliers=flagged)

    def _plus(self, other: "DataQuality", columns: ColumnSums) -> "DataQuality":
        """Return the data quality with the rows of another one, whose columns have these sums."""
        both = self._columns + columns
        return replace(
            self,
            read=self.read + other.read,
            bad=self.bad + other.bad,
            reasons=_added(self.reasons, other.reasons),
            first=(self.first + other.first)[:_MAX_EXAMPLES],
            notes=self.notes + other.notes,
            **{one.name: np.asarray(getattr(both, one.name), float).tolist() for one in fields(ColumnSums)},
        )

    @property
    def _columns(self) -> ColumnSums:
        return ColumnSums(self.low, self.high, self.total, self.targets)

    def class_rows(self, classes: Sequence[str]) -> dict[str, int]:
        """Return the number of good rows of each class of the target; none if it is not known."""
        if not classes or not self.targets:
            return {}
        if len(classes) > 2:
            return dict(zip(classes, map(round, self.targets), strict=True))
        return {classes[0]: self.good - round(self.targets[0]), classes[1]: round(self.targets[0])}

    @property
    def counted(self) -> list[tuple[str, str, int]]:
        """The column, the reason and the number of the rejected rows, the most frequent ones first."""
        found = [(column, reason, n) for column, counts in self.reasons.items() for reason, n in counts.items()]
        return sorted(found, key=lambda one: (-one[2], one[:2]))

    @property
    def good(self) -> int:
        """The number of good rows that have a target."""
        unlabelled = self.notes.n_unlabelled
        return (
            self.read - self.bad - unlabelled + sum(self.reasons.get("", {}).get(reason, 0) for reason in _WHOLE_FILES)
        )


def _added(one: dict[str, dict[str, int]], other: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the sum of two tables of counts by column and reason."""
    sums = {column: dict(counts) for column, counts in one.items()}
    for column, counts in other.items():
        of_column = sums.setdefault(column, {})
        for reason, n in counts.items():
            of_column[reason] = of_column.get(reason, 0) + n
    return sums


@dataclass(frozen=True)
class FitRecord:
    """The record of the rows of a fit: the error history and the data quality."""

    history: ErrorHistory = field(default_factory=ErrorHistory)
    quality: DataQuality = field(default_factory=DataQuality)


def from_json(hint: Any, value: Any) -> Any:
    """Return what a field with this type hint held from the JSON value that was written; raise a ValueError for others.

    A tuple is written as a list, and a dataclass or a named tuple as an object, of which fields with a default may be
    missing.
    """
    kind, args = get_origin(hint) or hint, get_args(hint)
    if hint is Any:
        return value
    if kind in (Union, UnionType):
        given = NoneType if value is None else next(arg for arg in args if arg is not NoneType)  # X | None
        return from_json(given, value)
    if kind in (list, tuple):
        expect(type(value) is list)
        return kind(from_json(args[0], item) for item in value)
    if kind in (dict, Mapping):
        expect(type(value) is dict)
        return {key: from_json(args[1], item) for key, item in value.items()}
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
        expect(type(value) is dict and value.keys() <= set(names))
        hints = get_type_hints(kind)
        return kind(**{name: from_json(hints[name], item) for name, item in value.items()})
    if kind is float:
        expect(type(value) in (int, float))
    else:
        expect(type(value) is kind and (kind is not int or value >= 0))  # all integers are counts
    return value


def checked_columns(data: Any) -> TableColumns:
    """Return the columns of a table or of a formula from JSON; raise a ValueError if they are invalid."""
    kind: Any = Columns
    if isinstance(data, dict) and "terms" in data:
        from kalprox.sources.formula import FormulaColumns

        kind = FormulaColumns
    columns: TableColumns = from_json(kind, data)
    return columns


def checked_record(data: Any, columns: TableColumns) -> FitRecord:
    """Return the record of a fit to these columns from JSON; raise a ValueError if it is invalid."""
    record: FitRecord = from_json(FitRecord, data)
    history, quality = record.history, record.quality
    expect(len({len(column) for column in history._columns}) == 1 and history.stride >= 1)
    expect(len(quality.low) == len(quality.high) and len(quality.low) in (0, len(quality.total)))  # 0: no samples
    expect(len(quality.total) in (0, len(columns.names)))
    expect(len(quality.targets) in (0, len(columns.classes) if len(columns.classes) > 2 else 1))
    from_json(list[BadRow], quality.first)
    expect(np.isfinite([*quality.total, *quality.targets, *history.squares]).all())
    expect(not np.isnan([*quality.low, *quality.high]).any())  # infinite for a column without values
    one_hot = {**columns.categorical, **columns.hashed}
    encoded = [i < len(columns.features) and columns.features[i] in one_hot for i in columns.groups]
    levels = [n for n, is_level in zip(quality.total, encoded, strict=False) if is_level]  # no totals before a good row
    expect(all(0 <= n <= quality.read for n in levels))
    return record


def checked_state(state: Any, columns: TableColumns) -> tuple[FitRecord, int, int, dict[str, Any]]:
    """Return the record, the rows read, the pass and the quarantine of a checkpoint of a fit to these columns."""
    record, quarantine = checked_record(state["account"], columns), state["quarantine"]
    counts = [quarantine[name] for name in ("bytes", "bad", "read")]
    from_json(list[int], [*counts, quarantine.get("noted", 0), state["read"], state["number"]])
    from_json(list[BadRow], quarantine["first"])
    return record, state["read"], state["number"], quarantine


def checked_places(data: Any) -> list[tuple[str, int]]:
    """Return the files and numbers of rows from JSON; raise a ValueError if they are invalid."""
    expect(type(data) is list and all(type(pair) is list and len(pair) == 2 for pair in data))
    return [(from_json(str, file), from_json(int, row)) for file, row in data]
