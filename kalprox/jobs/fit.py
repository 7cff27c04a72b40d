"""Fit a model to a table, in one pass or several, here or on an engine. An interrupted fit can be resumed."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kalprox.base.files import check_distinct
from kalprox.base.text import worded
from kalprox.base.tree import Saved, expect, flatten
from kalprox.information import Information
from kalprox.information.implicit import Gradient
from kalprox.information.linearized import Linearized
from kalprox.jobs.checkpoint import Checkpoint
from kalprox.jobs.model import TableModel, check_memory
from kalprox.jobs.record import from_json
from kalprox.jobs.run import FitRun, Progress, StreamingRun, check_columns
from kalprox.learning.learner import Learner
from kalprox.learning.rules import check
from kalprox.learning.sandwich import Sandwich
from kalprox.learning.saving import plain_setting
from kalprox.learning.settings import Settings
from kalprox.learning.targets import Seen
from kalprox.model_file import Parts
from kalprox.sources import Block, Counts, Folded
from kalprox.sources.base import Passes
from kalprox.sources.files import STDIN, SourceError, check_rows
from kalprox.sources.table import Cursor, Table

T = TypeVar("T")
# Of the totals of passes, besides arrays.
_KINDS = {kind.__name__: kind for kind in (Seen, Information, Linearized, Gradient, Sandwich)}
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
                one = self.summaries[index]
                columns = one.columns if self.job.table.samples else replace(one.columns, low=(), high=())
                quality = quality.after_rows(one.bad, one.read, one.notes, columns)
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


EVERY = 1_000_000  # rows between two checkpoints


@dataclass(frozen=True)
class FitJob:
    """A fit of a model to the rows of a table.

    A model file contains values of rows: refused cells, examples of unknown levels, rows that are still held, and the
    smallest and largest value of each column. With a table whose `samples` is False it contains none of them, but the
    levels of categorical columns and the labels of clusters; a fit whose warm-up has not ended, which cannot do without
    rows, is then an error.

    Parameters
    ----------
    table : Table
        The files, and how their rows become rows of X and y.
    settings : dict
        Parameters of `kalprox.learning.settings.Settings`, which are those of `KalproxRegressor`.
    sources : tuple of str
        The files as the user named them, for the report.
    passes : int, optional
        The maximum number of passes over the rows. By default a linear model, for which one pass is exact, standard
        input and a model with a structure take one pass; another model takes passes until it converges. With a
        structure every product of conjugate gradients is one more reading of the rows.
    quarantine, max_bad
        See `kalprox.sources.quarantine.Quarantine`.
    quarantine_outliers : bool
        Whether rows that a robust likelihood flags as outliers are written to the quarantine file too, each with its
        error in standard deviations and its weight. They are learned, and are no bad rows. A fit of one pass flags each
        row before it is learned, and those of its warm-up at the end of that; a fit of several passes flags them by its
        estimate, in a pass of its own.
    checkpoint : path, optional
        The checkpoint file. If it exists, the job resumes from it.
    every : int
        Rows between two checkpoints.
    engine, workers, partitions, timeout
        By default the files are read in this process, block by block, and each row is predicted and scored before it is
        learned (with a nonlinear link, in a fit of one pass). For engines see `kalprox.engines.open` and
        `kalprox.engines.partitions_of`.
    watch : callable
        Called with a `Progress` after every block.
    start : TableModel, optional
        A model with the same settings, from whose estimate a fit of several passes begins, as `refine` of an estimator.
    """

    table: Table
    settings: dict[str, Any]
    sources: tuple[str, ...] = ()
    passes: int | None = None
    quarantine: str | PathLike[str] | None = None
    max_bad: int | str | None = None
    checkpoint: str | PathLike[str] | None = None
    every: int = EVERY
    engine: Any = None
    workers: int | None = None
    partitions: int | None = None
    timeout: float | None = None
    watch: Callable[[Progress], None] = field(default=lambda progress: None)
    quarantine_outliers: bool = False
    start: TableModel | None = None

    def run(self, out: str | PathLike[str] | None = None) -> TableModel:
        """Fit the model and save it; then remove the checkpoint.

        Parameters
        ----------
        out : path, optional
            The model file to write.

        Returns
        -------
        TableModel

        Raises
        ------
        ValueError
            If two of the files that are read and written are the same file, under whatever names; nothing is opened.
        """
        self._check_paths(out)
        if out is not None and not (folder := Path(os.path.realpath(out)).parent).is_dir():
            raise NotADirectoryError(f"There is no folder {folder} for the model.")  # before reading any row
        classes = len(self.table.columns.classes)
        columns, structure = len(self.table.columns.names), Settings.of(**self.settings).structure
        check_memory(columns * (classes if classes > 2 else 1), self.table.memory, structure)
        with Checkpoint(self.checkpoint) as checkpoint:
            run = self._run(checkpoint)
            try:
                fitted = run.run()
            except SourceError:
                self.table.check_unchanged()  # rows, or files that workers opened, may be bad because they changed
                raise
            finally:
                run.quarantine.close()
            if out is not None:
                fitted.save(out)
            checkpoint.remove()
            return fitted

    def _check_paths(self, out: str | PathLike[str] | None) -> None:
        lock = None if self.checkpoint is None else Checkpoint(self.checkpoint).lock_file
        check_distinct(
            [("table", file) for file in self.table.files],
            [
                ("out", out),
                ("checkpoint", self.checkpoint),
                ("the lock of checkpoint", lock),
                ("quarantine", self.quarantine),
            ],
        )

    def _run(self, checkpoint: Checkpoint) -> FitRun:
        """Return the kind of run that the settings need."""
        settings, columns = Settings.of(**self.settings), self.table.columns
        settings = settings if columns.cluster is None else settings.clustered()
        check_columns(settings, columns)
        in_passes = self._refines(settings) or self.engine is not None
        if in_passes or self.table.shuffle is not None:
            check(settings, way="out of order")
        if self.quarantine_outliers:
            self._check_outliers(settings)
        kind = PassesRun if in_passes else StreamingRun
        return kind(self, settings, checkpoint)

    def _check_outliers(self, settings: Settings) -> None:
        """Raise a ValueError if outliers cannot be written to the quarantine file."""
        if self.quarantine is None:
            raise ValueError(worded("{quarantine_outliers} needs a quarantine file to write to: set {quarantine}."))
        if self.engine is not None:
            needs = (
                "{quarantine_outliers} needs {engine=None|no --engine}: workers do not flag rows. Leave the engine out."
            )
            raise ValueError(worded(needs))
        check(settings, way="outliers")

    def _refines(self, settings: Settings) -> bool:
        """Whether the fit makes several passes, each linearised at the last estimate."""
        if self.passes is not None and self.passes < 1:
            raise ValueError(f"passes must be at least 1; got {self.passes}.")
        several, once = (self.passes or 1) > 1, STDIN in self.table.files
        if several or self.start is not None:
            check(settings, way="passes")
            if once:
                raise ValueError(worded("Standard input is read once: give files, or set {passes=1}."))
        if settings.is_exact or settings.forgets or once:
            return False
        asked = several or self.start is not None
        return asked or (self.passes is None and settings.structure is None)

    def identity(self) -> dict[str, Any]:
        """Return the identity of the job in JSON types; only the same job resumes from its checkpoint."""
        table = self.table
        return {
            "settings": {name: plain_setting(name, value) for name, value in self.settings.items()},
            "columns": table.columns.to_json(),
            "source": table.fingerprint(),
            "reading": table.identity(),
            "passes": self.passes,
            "partitions": self.partitions if self.engine is not None else "one",
            "quarantine": None if self.quarantine is None else str(self.quarantine),
            "quarantine_outliers": self.quarantine_outliers,
            "start": None if self.start is None else np.asarray(self.start.belief.posterior.mean).tolist(),
        }
