"""A streaming fit: each block of a table is learned as it is read."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kalprox.calibration import LEVELS
from kalprox.jobs.base import FitRun
from kalprox.jobs.model import TableModel
from kalprox.jobs.restoring import checked_cursor, checked_places
from kalprox.learning.learner import Learner
from kalprox.sources import Block
from kalprox.sources.files import SourceError, check_rows
from kalprox.sources.times import TimeGoesBack

if TYPE_CHECKING:
    from kalprox.jobs.outliers import OutlierLog

__all__ = ["StreamingRun"]


class StreamingRun(FitRun):
    """A fit that reads, predicts and learns block after block, and writes checkpoints in between."""

    def run(self) -> TableModel:
        job, cursor, since = self.job, None, 0
        learner, places = Learner(job.settings.in_stream), []
        if (saved := self.load()) is not None:
            header, arrays = saved
            learner = TableModel.from_parts(self.checkpoint.file, header, arrays).learner  # type: ignore[union-attr]
            with self.resuming():
                cursor = checked_cursor(header["cursor"])
                places = checked_places(header.get("held_places", []))
        log = self.outlier_log(places)
        for number in range(self.number, job.passes or 1):
            for block in job.table.blocks_ahead(cursor):
                self.take(block, number)
                if _learn(learner, block, log) and number == 0:
                    history = self.record.history.after(learner.n_rows, learner.score)
                    self.record = replace(self.record, history=history)
                since += block.read
                save = self.checkpoint is not None and since >= job.every and learner.is_fitted
                if save:
                    if not job.table.samples and learner.belief.predicts:
                        learner.release_rows()
                    header, arrays = TableModel(learner, job.table.columns, self.record, job.sources).parts()
                    rebuilt = partial(TableModel.rebuilt, self.checkpoint.file)  # type: ignore[union-attr]
                    held = {} if log is None else {"held_places": log.places}
                    self.save({**header, **held, "cursor": block.place.cursor.to_json()}, arrays, rebuilt)
                    since = 0
                self.report(block.place.cursor, saved=save, **_score(learner))
            check_rows(self.record.quality.read, self.read)
            cursor = None
        if not learner.is_fitted:
            raise SourceError("There is no good row to learn from: every row is bad or has weight 0.")
        if log is not None:
            log.finish(learner)
        return self.finished(learner)


def _learn(learner: Learner, block: Block, log: "OutlierLog | None") -> bool:
    """Learn a block, and return whether it had any good row. Its outliers go to the log, if there is one."""
    if block.count == 0:
        return False
    try:
        if log is None:
            learner.learn_in_turn(block)
        else:
            log.learn(learner, block)
    except TimeGoesBack as error:
        row = block.place.rows[block.place.good][error.row]
        raise SourceError(f"{block.place.file}, row {row}: {error.why}") from error
    except ValueError as error:
        rows = f"rows {block.place.rows.min()} to {block.place.rows.max()}"
        raise SourceError(f"{block.place.file}, {rows} could not be learned: {error}") from error
    return True


def _score(learner: Learner) -> dict[str, Any]:
    if not learner.is_fitted:
        return {}
    score = learner.score
    coverage = float(score.coverage[LEVELS.index(0.95)]) if score.has_intervals else float("nan")
    return {"rmse": float(score.rmse), "coverage": coverage, "changes": score.changes}
