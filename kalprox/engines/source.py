"""Partitions on an engine as a source for `refine` and `KalproxRegressor.fit_source`."""

from collections.abc import Callable, Sequence
from typing import Any

from kalprox.engines.base import Engine, Part, Report
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Quarantine

__all__ = ["EngineRows"]


class EngineRows:
    """The rows of all partitions. Counts them, and judges the bad ones, in the first pass.

    quarantine: where bad rows go, in the order of the partitions; by default the first one stops the pass.
    watch(number, index, report): told of every partition of pass `number` as it finishes. done: the totals of passes
    completed before, which are played back; keep(number, total): told of each new one. Playing back does not count:
    set `read` and `good` to what they were.
    """

    def __init__(
        self,
        engine: Engine,
        partitions: Sequence[Any],
        *,
        quarantine: Quarantine | None = None,
        watch: Callable[[int, int, Report], None] | None = None,
        done: Sequence[Any] = (),
        keep: Callable[[int, Any], None] | None = None,
    ) -> None:
        if not partitions:
            raise SourceError("There is no partition to read.")
        self.engine, self.partitions = engine, list(partitions)
        self.quarantine = Quarantine() if quarantine is None else quarantine
        self.number = 0  # of the pass to come
        self.read = self.good = 0
        self.reports: dict[int, Report] = {}  # of the first pass
        self._watch, self._keep, self._done = watch, keep, list(done)
        self._judged = 0

    @property
    def bad(self) -> int:
        return self.quarantine.bad

    def sum(self, part: Part) -> Any:
        """One pass: part(X, y, weights) of every block, added up as the engine does; or what it was."""
        number, self.number = self.number, self.number + 1
        if number < len(self._done):
            return self._done[number]
        total = self.engine.sum(self.partitions, part, lambda index, report: self._seen(number, index, report))
        if number == 0:
            self._judge(all_seen=True)
        if total is None:
            raise SourceError("There is no good row to learn from.")
        if self._keep is not None:
            self._keep(number, total)
        return total

    def _seen(self, number: int, index: int, report: Report) -> None:
        if number == 0:
            self.read, self.good = self.read + report.read, self.good + report.good
            self.reports[index] = report
            self._judge()
        if self._watch is not None:
            self._watch(number, index, report)

    def _judge(self, *, all_seen: bool = False) -> None:
        """Hand over bad rows as far as the partitions before have been seen; at the end, of all."""
        while (report := self.reports.get(self._judged)) is not None or (
            all_seen and self._judged <= max(self.reports, default=-1)
        ):
            self._judged += 1
            if report is not None:
                self.quarantine.take(report.bad, report.read)
