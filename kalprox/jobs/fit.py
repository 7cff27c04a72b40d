"""Fit a model to a table, so that the fit can be stopped at any moment and resumed."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from kalprox.jobs.base import FitRun, Job, Progress
from kalprox.jobs.checkpoint import Checkpoint
from kalprox.jobs.model import TableModel
from kalprox.jobs.streaming import StreamingRun
from kalprox.learning.settings import Settings
from kalprox.sources.files import STDIN
from kalprox.sources.table import Table

__all__ = ["FitJob", "Progress"]

EVERY = 1_000_000  # rows between two checkpoints


@dataclass(frozen=True)
class FitJob:
    """What to fit to what.

    Parameters
    ----------
    table : Table
    settings : dict
        Of `kalprox.learning.settings.Settings`, which are those of `KalproxRegressor`.
    sources : tuple of str
        The files as the user named them, for the report.
    passes : int, optional
        The largest number of passes over the rows. The default is one pass for a linear model, which is then exact, and
        for standard input; a nonlinear model takes as many as it needs.
    quarantine, max_bad
        See `kalprox.sources.quarantine.Quarantine`.
    checkpoint : path, optional
        A file. The job resumes from what the same job saved there.
    every : int
        Rows between two checkpoints.
    engine, workers, partitions
        None reads the files here, block by block, and scores its predictions. Otherwise see `kalprox.engines.open`
        and `kalprox.engines.partitions_of`.
    watch : callable
        Called with a `Progress` after every block.
    """

    table: Table
    settings: dict[str, Any]
    sources: tuple[str, ...] = ()
    passes: int | None = None
    quarantine: str | PathLike | None = None
    max_bad: int | str | None = None
    checkpoint: str | PathLike | None = None
    every: int = EVERY
    engine: Any = None
    workers: int | None = None
    partitions: int | None = None
    watch: Callable[[Progress], None] = field(default=lambda progress: None)

    def run(self, out: str | PathLike | None = None) -> TableModel:
        """Fit the model, and save it to `out`. The checkpoint is removed once that is done."""
        if out is not None and not (folder := Path(out).absolute().parent).is_dir():
            raise NotADirectoryError(f"There is no folder {folder} for the model.")  # now, not after the last row
        with nullcontext() if self.checkpoint is None else Checkpoint(self.checkpoint) as checkpoint:
            run = self._run(checkpoint)
            try:
                fitted = run.run()
            finally:
                if run.quarantine is not None:
                    run.quarantine.close()
            if out is not None:
                fitted.save(out)
            if checkpoint is not None:
                checkpoint.remove()
            return fitted

    def _run(self, checkpoint: Checkpoint | None) -> FitRun:
        """The run that the settings ask for."""
        settings = Settings.of(**self.settings)
        refines = self._refines(settings)
        job = Job(
            self.table,
            settings,
            {} if checkpoint is None else self.identity(),
            self.sources,
            self.passes,
            self.quarantine,
            self.max_bad,
            self.every,
            self.engine,
            self.workers,
            self.partitions,
            self.watch,
        )
        if self.engine is not None:
            from kalprox.jobs.engine_run import EngineRun

            return EngineRun(job, checkpoint)
        if refines:
            from kalprox.jobs.refining import RefiningRun

            return RefiningRun(job, checkpoint)
        return StreamingRun(job, checkpoint)

    def _refines(self, settings: Settings) -> bool:
        """Whether more than one pass is made, relinearising at each."""
        if self.passes is not None and self.passes < 1:
            raise ValueError(f"passes must be at least 1; got {self.passes}.")
        if settings.is_exact and (self.passes or 1) > 1:
            raise ValueError("One pass over the rows is exact for a linear model: leave passes at 1.")
        streams = STDIN in self.table.files or settings.forget != 1
        if streams and (self.passes or 1) > 1:
            raise ValueError("Standard input, or a model that forgets, goes once over its rows: leave passes at 1.")
        return not settings.is_exact and settings.method == "exact" and not streams and self.passes != 1

    def identity(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be resumed, in JSON's types."""
        table = self.table
        return {
            "settings": self.settings,
            "columns": table.columns.to_json(),
            "source": table.fingerprint(),
            "reading": table.identity(),
            "passes": self.passes,
            "partitions": self.partitions if self.engine is not None else "one",
            "quarantine": None if self.quarantine is None else str(self.quarantine),
        }
