"""Fit a model to a table. With a checkpoint, the fit can be interrupted at any moment and resumed."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from kalprox.base.files import check_distinct
from kalprox.base.text import worded
from kalprox.jobs.checkpoint import Checkpoint
from kalprox.jobs.memory import check_memory
from kalprox.jobs.model import TableModel
from kalprox.jobs.passes import PassesRun
from kalprox.jobs.run import FitRun, Progress, StreamingRun, check_columns
from kalprox.learning.rules import check
from kalprox.learning.saving import plain_setting
from kalprox.learning.settings import Settings
from kalprox.sources.files import STDIN, SourceError
from kalprox.sources.table import Table

__all__ = ["FitJob", "Progress"]

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
        input and a model with a structure take one pass; another model takes passes until it converges.
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
        refines = not settings.is_exact and settings.structure is None and not settings.forgets
        return refines and not once and (self.passes != 1 or self.start is not None)

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
