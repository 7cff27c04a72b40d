"""Fit a model to a table, block by block, so that it can be stopped at any instant and gone on with."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from kalprox.calibration import LEVELS
from kalprox.estimators import KalproxRegressor
from kalprox.estimators.checks import check_settings, is_linear
from kalprox.jobs.base import Progress, Run
from kalprox.jobs.checkpoint import Checkpoint
from kalprox.jobs.model import TableModel
from kalprox.sources.files import STDIN, SourceError
from kalprox.sources.prefetch import ahead
from kalprox.sources.table import Block, Cursor, Table

__all__ = ["FitJob", "Progress"]

EVERY = 1_000_000  # rows between two checkpoints


@dataclass(frozen=True)
class FitJob:
    """What to fit to what. settings: of `KalproxRegressor`. passes: over the rows, at most; None is one pass for a
    linear model, which is exact then, and for standard input, and as many as it takes for a nonlinear one.

    quarantine, max_bad: see `Quarantine`. checkpoint: a file; what was saved there by the same job is gone on with.
    engine: None goes through the files here, block by block, and scores itself on the way; any other is one that
    `kalprox.engines.open` takes, with as many `workers` of its own and `partitions` of the files.
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
        """The fitted model, saved to `out`. The checkpoint is removed once that is done."""
        if out is not None and not (folder := Path(out).absolute().parent).is_dir():
            raise NotADirectoryError(f"There is no folder {folder} for the model.")  # now, not after the last row
        with nullcontext() if self.checkpoint is None else Checkpoint(self.checkpoint) as checkpoint:
            run = self._run(checkpoint)
            try:
                found = run.run()
            finally:
                if run.quarantine is not None:
                    run.quarantine.close()
            if out is not None:
                found.save(out)
            if checkpoint is not None:
                checkpoint.remove()
            return found

    def _run(self, checkpoint: Checkpoint | None) -> Run:
        refines = self._refines
        if self.engine is None:
            return _Refining(self, checkpoint) if refines else _Streaming(self, checkpoint)
        from kalprox.jobs.engine_run import OnEngine

        return OnEngine(self, checkpoint)

    @property
    def _refines(self) -> bool:
        """Whether more than one pass is made, relinearising at each. Settings that mean nothing are refused."""
        model = KalproxRegressor(**self.settings)
        check_settings(model)
        if self.passes is not None and self.passes < 1:
            raise ValueError(f"passes must be at least 1; got {self.passes}.")
        if is_linear(model) and (self.passes or 1) > 1:
            raise ValueError("One pass over the rows is exact for a linear model: leave passes at 1.")
        streams = STDIN in self.table.files or model.forget != 1
        if streams and (self.passes or 1) > 1:
            raise ValueError("Standard input, or a model that forgets, goes once over its rows: leave passes at 1.")
        return not is_linear(model) and model.method == "exact" and not streams and self.passes != 1

    def identity(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be gone on with, in JSON's types."""
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


class _Streaming(Run):
    """Each block learned as it comes."""

    def run(self) -> TableModel:
        job, cursor, since = self.job, None, 0
        model = KalproxRegressor(**job.settings)
        if (saved := self.load()) is not None:
            header, arrays = saved
            found = TableModel.from_parts(self.checkpoint.file, header, arrays)  # type: ignore[union-attr]
            model, cursor = found.model, Cursor.from_json(header["cursor"])
        for number in range(self.number, job.passes or 1):
            for block in ahead(job.table.blocks(cursor)):
                self.take(block, number)
                if _learn(model, block) and number == 0:
                    history = self.record.history.after(model.n_rows_seen_, model.diagnostics_)
                    self.record = replace(self.record, history=history)
                since += len(block.rows)
                save = self.checkpoint is not None and since >= job.every and hasattr(model, "_belief")
                if save:
                    header, arrays = TableModel(model, job.table.columns, self.record, job.sources).parts()
                    self.save({**header, "cursor": block.cursor.to_json()}, arrays)
                    since = 0
                self.tell(block.cursor, saved=save, **_score(model))
            cursor = None
        if not hasattr(model, "_belief"):
            raise SourceError("There is no good row to learn from.")
        return self.finished(model)


class _Refining(Run):
    """Passes over all rows, each linearised at the last answer, until it stops moving."""

    def run(self) -> TableModel:
        from kalprox.jobs.resumable import Passes  # and with it JAX, which a linear model does without

        job = self.job
        every = job.every if self.checkpoint is not None else 1 << 62
        passes = Passes(job.table, every, self._seen, self._kept if self.checkpoint is not None else lambda: None)
        self.passes, self.good = passes, 0
        if (saved := self.load()) is not None:
            header, arrays = saved
            self.good = int(header["good"])
            passes.resume(header["passes"], arrays)
        model = KalproxRegressor(**job.settings)
        if job.passes is not None:
            model.set_params(max_passes=job.passes)
        model.fit_source(passes, len(job.table.columns.names), lambda: self.good)
        return self.finished(model)

    def _seen(self, block: Block, number: int) -> None:
        self.take(block, number)
        if number == 0:
            self.good += len(block.X) if block.weights is None else int((block.weights > 0).sum())
        self.at = block.cursor
        self.tell(self.at)

    def _kept(self) -> None:
        header, arrays = self.passes.parts()
        self.save({"passes": header, "good": self.good}, arrays)
        self.tell(self.at, saved=True)


def _learn(model: KalproxRegressor, block: Block) -> bool:
    """Whether there was anything to learn."""
    if len(block.X) == 0 or (block.weights is not None and not block.weights.any()):
        return False
    try:
        model.partial_fit(block.X, block.y, block.weights)
    except ValueError as error:
        rows = f"rows {block.rows.min()} to {block.rows.max()}"
        raise SourceError(f"{block.file}, {rows} could not be learned, and were not: {error}") from error
    return True


def _score(model: KalproxRegressor) -> dict[str, float]:
    if not hasattr(model, "_belief"):
        return {}
    found = model.diagnostics_
    return {"rmse": float(found.rmse), "coverage": float(found.coverage[LEVELS.index(0.95)])}
