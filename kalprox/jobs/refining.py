"""A fit in several passes over a table, each linearised at the last estimate, until convergence."""

import warnings
from dataclasses import replace

from kalprox.jobs.base import FitRun
from kalprox.jobs.model import TableModel
from kalprox.jobs.resumable import ResumableSource
from kalprox.jobs.totals import rebuilt_totals
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.sources import Block
from kalprox.sources.files import check_rows

__all__ = ["RefiningRun", "fit_learner"]


class RefiningRun(FitRun):
    """A fit by refinement, whose passes over all rows are resumable."""

    def run(self) -> TableModel:
        job, start = self.job, None if self.job.start is None else self.job.start.learner
        self.source = ResumableSource(job.table, job.every, self._seen, None if self.checkpoint is None else self._keep)
        try:
            if (saved := self.load()) is not None:
                header, arrays = saved
                with self.resuming():
                    self.source.resume(header["passes"], arrays)
            with self.replaying(saved):
                learner = fit_learner(self.settings, job.passes, self.source, start)
                passes = self.source.number
        finally:
            del self.source  # it refers to this run: without the circle, its totals are freed at once
        if (
            log := self.outlier_log()
        ) is not None:  # in one more pass, since the estimate of all rows is known only now
            for block in job.table.blocks_ahead(None):
                self.take(block, passes)
                if len(block):
                    log.judge(learner, block)
                self.report(block.place.cursor)
            check_rows(self.record.quality.read, self.read)
        return self.finished(learner)

    def _seen(self, block: Block, number: int) -> None:
        self.take(block, number)
        self.at = block.place.cursor
        self.report(self.at)

    def _keep(self) -> None:
        header, arrays = self.source.state()
        self.save({"passes": header}, arrays, rebuilt_totals)
        self.report(self.at, saved=True)


def fit_learner(settings: Settings, passes: int | None, source: object, start: Learner | None = None) -> Learner:
    """Fit a learner to a source in at most `passes` passes, from `start` if given; warn if it has not converged."""
    if passes is not None:
        settings = replace(settings, max_passes=passes, parameters={**settings.parameters, "max_passes": passes})
    learner = Learner(settings) if start is None else start.copy()
    learner.configure(settings)
    learner.fit(source, refine=start is not None)  # type: ignore[arg-type]
    learner.n_rejected = 0  # bad rows of files are counted in the record of the fit
    if not learner.belief.converged and learner.belief.message:
        warnings.warn(learner.belief.message, RuntimeWarning, stacklevel=2)
    return learner
