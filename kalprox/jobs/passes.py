"""A fit in several passes over all rows, in this process or on an engine. An interrupted run resumes in its last pass.

The checkpoint has the totals of the passes that are complete, which a run that resumes replays, and what a pass over
files had summed up so far.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from kalprox.base.tree import Saved, expect, flatten
from kalprox.information import Information
from kalprox.information.linearized import Linearized
from kalprox.jobs.model import TableModel
from kalprox.jobs.record import from_json
from kalprox.jobs.run import FitRun
from kalprox.learning.learner import Learner
from kalprox.learning.sandwich import Sandwich
from kalprox.learning.settings import Settings
from kalprox.learning.targets import Seen
from kalprox.model_file import Parts
from kalprox.sources import Block, Counts, Folded
from kalprox.sources.base import Passes
from kalprox.sources.files import check_rows
from kalprox.sources.table import Cursor

T = TypeVar("T")
_KINDS = {kind.__name__: kind for kind in (Seen, Information, Linearized, Sandwich)}  # of totals, besides arrays
_NOTHING: Folded[Any] = Folded(None, Counts())


class PassesRun(FitRun):
    """A fit in which each pass folds all rows, linearised at the last estimate, until it converges.

    On an engine, workers fold the partitions; rows are not predicted before they are learned, nor scored. The pass that
    sums the scores of robust or clustered standard errors is the last, and is resumed like the others.
    """

    def run(self) -> TableModel:
        job = self.job
        start = None if job.start is None else job.start.learner
        self.done: list[Folded[Any]] = []
        self.cursor: Cursor | None = None  # in the files, if a pass over them had begun in the run to resume
        self.begun: Folded[Any] = _NOTHING  # of a pass over files
        damaged: AbstractContextManager[None] = nullcontext()
        if self.saved is not None:
            with self.checkpoint.resuming():
                self._resume(self.saved[0]["passes"], self.saved[1])
            damaged = self.checkpoint.resuming(AttributeError, TypeError)  # by totals of other passes
        with self._source() as source, damaged:
            learner = fit_learner(self.settings, job.passes, source, start)
        log = self.outlier_log()
        if log is not None:  # in one more pass, since the estimate of all rows is known only now
            for block in self.blocks(None, source.number):
                if len(block):
                    log.judge(learner, block)
            check_rows(self.record.quality.read, self.read)
        return self.finished(learner)

    @contextmanager
    def _source(self) -> Iterator[Passes]:
        """Yield the source of the passes: the table, or its partitions on an engine."""
        job, table = self.job, self.job.table
        self.summaries: dict[int, Any] = {}  # of the partitions, in the first pass
        self.partitions = self.folded = 0  # all of them, and those that have been folded in this pass
        if job.engine is None:
            self.quarantine.open()
            yield _TablePasses(self)
            return
        from kalprox import engines

        partitions = engines.partitions_of(table.files, table.columns, n=job.partitions, **table.options)
        self.quarantine.open()
        bad, done = self.quarantine, self.done
        with engines.open(job.engine, workers=job.workers, timeout=job.timeout) as engine:
            source = engines.EngineSource(
                engine, partitions, quarantine=bad, watch=self._watch, done=done, keep=self.keep
            )
            self.summaries, self.partitions = source.summaries, len(partitions)
            yield source

    def _watch(self, number: int, index: int, summary: Any) -> None:
        """Count a partition that has been folded."""
        self.folded = 1 if number != self.number else self.folded + 1
        self.count(summary.read, number)
        self.share = self.folded / self.partitions
        self.report()

    def keep(self, number: int, folded: Folded[Any]) -> None:
        """Check what is known at the end of a pass, and write a checkpoint that has its total."""
        self.job.table.check_unchanged()
        if number == 0:
            quality = self.record.quality
            for index in sorted(self.summaries):
                quality = quality.after_partition(self.summaries[index], ranges=self.job.table.samples)
            self.record = replace(self.record, quality=quality)
        self.check_classes()
        if self._can_be_saved(number, folded.total):
            self.done.append(folded)
            self._save_passes(None)
            self.report(saved=True)

    def keep_begun(self, number: int, cursor: Cursor) -> bool:
        """Write a checkpoint that has the total of a pass up to a cursor, if it can be saved; return whether it can."""
        can_be = self._can_be_saved(number, self.begun.total)
        if can_be:
            self._save_passes(cursor)
        return can_be

    def _can_be_saved(self, number: int, total: Any) -> bool:
        """Whether there is a checkpoint, with all passes before this one, and the total of this one can be saved."""
        return self.checkpoint.file is not None and len(self.done) == number and can_be_saved(total)

    def _save_passes(self, cursor: Cursor | None) -> None:
        header, arrays = save_totals(self.done if cursor is None else [*self.done, self.begun])
        header["cursor"] = None if cursor is None else asdict(cursor)
        self.save({"passes": header}, arrays, rebuilt_totals)

    def _resume(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.done = load_totals(header, arrays)
        if header.get("cursor") is not None:
            self.cursor, self.begun = from_json(Cursor, header["cursor"]), self.done.pop()


class _TablePasses(Passes):
    """A table that is read in this process as the source of a run."""

    def __init__(self, run: PassesRun) -> None:
        super().__init__(run.done, run.keep)
        self.run = run

    def read(self, part: Callable[[Block], T], number: int) -> Folded[T]:
        run = self.run
        cursor, run.cursor = run.cursor, None
        for block in run.blocks(cursor, number, partial(run.keep_begun, number)):
            total = run.begun.total
            if len(block):
                value = part(block)
                total = value if total is None else total + value
            run.begun = Folded(total, run.begun.counts + Counts.of(block))
        folded, run.begun = run.begun, _NOTHING
        return folded


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


def can_be_saved(total: Any) -> bool:
    """Whether the total of a pass can be saved: a float64 array, or one of the types that fits sum up."""
    return type(total).__name__ in _KINDS or (isinstance(total, np.ndarray) and total.dtype == np.float64)


def save_totals(passes: Sequence[Folded[Any]]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the totals and counts of passes as a header and arrays."""
    header: dict[str, Any] = {"kinds": [type(one.total).__name__ for one in passes]}
    arrays: dict[str, np.ndarray] = {}
    for i, one in enumerate(passes):
        flatten(f"pass.{i}", one.total, header, arrays)
        flatten(f"counts.{i}", one.counts, header, arrays)
    return header, arrays


def load_totals(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Folded[Any]]:
    """Return the totals and counts that `save_totals` was given; raise a ValueError for others."""
    saved = Saved(header, arrays)
    found = []
    for i, kind in enumerate(header["kinds"]):
        found.append(Folded(_total(saved, kind, f"pass.{i}"), saved.tree(Counts, f"counts.{i}", {})))
    return found


def rebuilt_totals(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Parts:
    """Return the parts of a checkpoint with the totals that were loaded from it; see `kalprox.model_file.write`."""
    passes, own = save_totals(load_totals(header["passes"], arrays))
    return {**header, "passes": {**header["passes"], **passes}}, own


def _total(saved: Saved, kind: str, name: str) -> Any:
    if kind in _KINDS:
        return saved.tree(_KINDS[kind], name, {})
    expect(kind == np.ndarray.__name__ and isinstance(saved[name], np.ndarray))
    return saved[name]
