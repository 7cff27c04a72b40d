"""A fit on an engine: partitions folded where they are. A lost run goes on after its last whole pass."""

from dataclasses import replace
from typing import Any

from kalprox import engines
from kalprox.engines import EngineRows, Report, partitions_of
from kalprox.estimators import KalproxRegressor
from kalprox.jobs.base import Progress, Run
from kalprox.jobs.model import TableModel
from kalprox.jobs.resumable import kept_passes, read_passes

__all__ = ["OnEngine"]


class OnEngine(Run):
    """All rows of every partition in each pass. Nothing is predicted on the way: there is no score of it."""

    def run(self) -> TableModel:
        job, table = self.job, self.job.table
        model = KalproxRegressor(**job.settings)
        if job.passes is not None:
            model.set_params(max_passes=job.passes)
        partitions = partitions_of(table.files, table.columns, n=job.partitions, **table.options)
        self.done: list[Any] = []
        self.ready = 0  # partitions, in this pass
        before = {"read": 0, "good": 0}
        if (saved := self.load()) is not None:
            header, arrays = saved
            self.done, before = read_passes(header["kinds"], arrays), header["rows"]
        with engines.open(job.engine, workers=job.workers) as engine:
            self.rows = EngineRows(
                engine, partitions, quarantine=self.quarantine, watch=self._watch, done=self.done, keep=self._keep
            )
            self.rows.read, self.rows.good = before["read"], before["good"]
            model.fit_source(self.rows, len(table.columns.names), lambda: self.rows.good)
        return self.finished(model)

    def _watch(self, number: int, index: int, report: Report) -> None:
        if number != self.number:
            self.number, self.read, self.ready = number, 0, 0
        self.read, self.ready = self.read + report.read, self.ready + 1
        share = self.ready / len(self.rows.partitions)
        self.job.watch(Progress(self.read, self.rows.bad, share, number))

    def _keep(self, number: int, total: Any) -> None:
        if number == 0:
            quality = self.record.quality
            for index in sorted(self.rows.reports):
                quality = quality.after_report(self.rows.reports[index])
            self.record = replace(self.record, quality=quality)
        if self.checkpoint is None:
            return
        self.done = [*self.done, total]
        kinds, arrays = kept_passes(self.done)
        self.save({"kinds": kinds, "rows": {"read": self.rows.read, "good": self.rows.good}}, arrays)
