"""What is kept of the rows that a job has read: how well they were predicted, what they held, what was refused."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from kalprox.calibration import Calibration
from kalprox.engines import Report
from kalprox.sources.quarantine import BadRow
from kalprox.sources.table import Block

__all__ = ["Account", "History", "Quality"]

_POINTS = 256  # of a history: when it is full, every other one is dropped
_FIRST = 20  # bad rows kept by name


@dataclass(frozen=True)
class History:
    """The score of the predictions, as sums over the rows so far, at some hundred moments of a run."""

    rows: list[int] = field(default_factory=list)  # learned
    judged: list[float] = field(default_factory=list)  # of them, predicted before
    squares: list[float] = field(default_factory=list)  # sum of squared errors
    covered: list[float] = field(default_factory=list)  # how many lay within their 95% interval
    stride: int = 1  # blocks between two points
    blocks: int = 0

    def after(self, rows: int, score: Calibration) -> "History":
        """With one more block."""
        new = replace(self, blocks=self.blocks + 1)
        if new.blocks % self.stride:
            return new
        now = rows, float(score.rows), float(score.squared_errors), float(score.covered[-1])
        rows_, judged, squares, covered = ([*old, value] for old, value in zip(self._columns, now, strict=True))
        full = History(rows_, judged, squares, covered, self.stride, new.blocks)
        if len(rows_) < _POINTS:
            return full
        rows_, judged, squares, covered = (column[1::2] for column in full._columns)
        return History(rows_, judged, squares, covered, 2 * self.stride, new.blocks)

    @property
    def _columns(self) -> tuple[list, ...]:
        return self.rows, self.judged, self.squares, self.covered

    def running(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, and the root mean squared error and 95% coverage of the predictions since the point before."""
        rows, judged, squares, covered = (np.asarray(column, float) for column in self._columns)
        n = np.diff(judged, prepend=0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            rmse, coverage = np.sqrt(np.diff(squares, prepend=0.0) / n), np.diff(covered, prepend=0.0) / n
        return rows[n > 0], rmse[n > 0], coverage[n > 0]


@dataclass(frozen=True)
class Quality:
    """What the rows held: of each column of X its range and sum over the good rows, of the bad ones why."""

    read: int = 0
    bad: int = 0
    reasons: dict[str, dict[str, int]] = field(default_factory=dict)  # column -> reason -> rows
    first: list[dict[str, Any]] = field(default_factory=list)  # of the bad rows, as `BadRow`
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)

    def after(self, block: Block) -> "Quality":
        """With one more block."""
        new = self._refusing(block.bad, len(block.rows))
        if len(block.X) == 0:
            return new
        return new._spanning(block.X.min(axis=0), block.X.max(axis=0), np.ones(len(block.X)) @ block.X)

    def after_report(self, report: Report) -> "Quality":
        """With one more partition."""
        new = self._refusing(list(report.bad), report.read)
        return new._spanning(report.low, report.high, report.total) if report.low else new

    def _refusing(self, bad: list[BadRow], read: int) -> "Quality":
        if not bad:
            return replace(self, read=self.read + read)
        reasons = {column: dict(counts) for column, counts in self.reasons.items()}
        for row in bad:
            counts = reasons.setdefault(row.column, {})
            counts[str(row.reason)] = counts.get(str(row.reason), 0) + 1
        first = self.first + [asdict(row) for row in bad[: _FIRST - len(self.first)]]
        return replace(self, read=self.read + read, bad=self.bad + len(bad), reasons=reasons, first=first)

    def _spanning(self, low: Any, high: Any, total: Any) -> "Quality":
        if self.low:
            low, high = np.minimum(self.low, low), np.maximum(self.high, high)
            total = np.add(self.total, total)
        low, high, total = (np.asarray(a, float).tolist() for a in (low, high, total))
        return replace(self, low=low, high=high, total=total)

    def merge(self, other: "Quality") -> "Quality":
        """Of both."""
        reasons = {column: dict(counts) for column, counts in self.reasons.items()}
        for column, counts in other.reasons.items():
            mine = reasons.setdefault(column, {})
            for reason, n in counts.items():
                mine[reason] = mine.get(reason, 0) + n
        new = replace(
            self,
            read=self.read + other.read,
            bad=self.bad + other.bad,
            reasons=reasons,
            first=(self.first + other.first)[:_FIRST],
        )
        return new._spanning(other.low, other.high, other.total) if other.low else new


@dataclass(frozen=True)
class Account:
    history: History = field(default_factory=History)
    quality: Quality = field(default_factory=Quality)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Account":
        return cls(History(**data["history"]), Quality(**data["quality"]))
