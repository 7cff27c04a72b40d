"""A fit on an engine, whose workers fold the partitions. An interrupted run resumes after its last finished pass."""

from dataclasses import replace
from typing import Any

from kalprox import engines
from kalprox.engines import EngineSource, PartitionSummary, partitions_of
from kalprox.jobs.base import FitRun, Progress
from kalprox.jobs.model import TableModel
from kalprox.jobs.refining import fit_learner
from kalprox.jobs.totals import load_totals, rebuilt_totals, save_totals
from kalprox.sources import Folded

__all__ = ["EngineRun"]


class EngineRun(FitRun):
    """A fit in which each pass folds all partitions. Rows are not predicted before they are learned, nor scored.

    The pass that sums the scores of robust or clustered standard errors is the last, and is resumed like the others.
    """

    def run(self) -> TableModel:
        job, table = self.job, self.job.table
        partitions = partitions_of(table.files, table.columns, n=job.partitions, **table.options)
        self.done: list[Folded[Any]] = []
        self.ready = 0  # partitions folded in this pass
        if (saved := self.load()) is not None:
            header, arrays = saved
            with self.resuming():
                self.done = load_totals(header["passes"], arrays)
        with engines.open(job.engine, workers=job.workers, timeout=job.timeout) as engine:
            self.source = EngineSource(
                engine, partitions, quarantine=self.quarantine, watch=self._watch, done=self.done, keep=self._keep
            )
            try:
                with self.replaying(saved):
                    learner = fit_learner(self.settings, job.passes, self.source)
            finally:
                del self.source  # it refers to this run: without the circle, its totals are freed at once
        return self.finished(learner)

    def _watch(self, number: int, index: int, summary: PartitionSummary) -> None:
        if number != self.number:
            self.number, self.read, self.ready = number, 0, 0
        self.read, self.ready = self.read + summary.read, self.ready + 1
        share = self.ready / len(self.source.partitions)
        bad = 0 if self.quarantine is None else self.quarantine.bad
        self.job.watch(Progress(self.read, bad, share, number))

    def _keep(self, number: int, folded: Folded[Any]) -> None:
        self.job.table.check_unchanged()
        if number == 0:
            quality = self.record.quality
            for index in sorted(self.source.summaries):
                quality = quality.after_partition(self.source.summaries[index], ranges=self.job.table.samples)
            self.record = replace(self.record, quality=quality)
            self.check_classes()
        if self.checkpoint is None:
            return
        self.done = [*self.done, folded]
        header, arrays = save_totals(self.done)
        self.save({"passes": header}, arrays, rebuilt_totals)
