"""A streaming fit: each block of a table is learned as it is read."""

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.calibration import LEVELS
from kalprox.jobs.base import FitRun
from kalprox.jobs.model import TableModel
from kalprox.jobs.record import ErrorHistory
from kalprox.jobs.restoring import checked_places, from_json
from kalprox.learning.innovations import Innovations
from kalprox.learning.learner import Learner
from kalprox.learning.rules import check
from kalprox.learning.state import State
from kalprox.learning.step import Call
from kalprox.learning.tracking import Tracking
from kalprox.sources import Block
from kalprox.sources.files import SourceError, check_rows
from kalprox.sources.places import Cursor
from kalprox.sources.times import TimeGoesBack

if TYPE_CHECKING:
    from kalprox.jobs.outliers import OutlierLog

__all__ = ["StreamingRun"]


class StreamingRun(FitRun):
    """A fit that reads, predicts and learns block after block, and writes checkpoints in between."""

    def run(self) -> TableModel:
        cursor, places = None, []
        check(self.settings, way="one pass")
        self.learner = Learner(self.settings)
        if (saved := self.load()) is not None and self.checkpoint is not None:
            header, arrays = saved
            self.learner = TableModel.from_parts(self.checkpoint.file, header, arrays).learner
            with self.checkpoint.resuming():
                cursor = from_json(Cursor, header["cursor"])
                places = checked_places(header.get("held_places", []))
        self.log = self.outlier_log(places)
        for block in self.blocks(cursor, 0, self._save):
            history = _History(self.record.history, self.learner)
            _learn(self.learner, block, self.log, history)
            self.record = replace(self.record, history=history.errors)
        check_rows(self.record.quality.read, self.read)
        if not self.learner.is_fitted:
            raise SourceError("There is no good row to learn from: every row is bad or has weight 0.")
        if self.log is not None:
            self.log.finish(self.learner)
        return self.finished(self.learner)

    def _save(self, cursor: Cursor) -> bool:
        """Write a checkpoint, if there is one and a row has been learned; return whether it was."""
        job, learner = self.job, self.learner
        if self.checkpoint is None or not learner.is_fitted:
            return False
        if not job.table.samples and learner.belief.predicts:
            learner.release_rows()
        header, arrays = TableModel(learner, job.table.columns, self.record, job.sources).parts()
        held = {} if self.log is None else {"held_places": self.log.places}
        rebuilt = partial(TableModel.rebuilt, self.checkpoint.file)
        self.save({**header, **held, "cursor": asdict(cursor)}, arrays, rebuilt)
        return True

    def score(self) -> dict[str, Any]:
        if not self.learner.is_fitted:
            return {}
        score = self.learner.score
        coverage = float(score.coverage[LEVELS.index(0.95)]) if score.has_intervals else float("nan")
        return {"rmse": float(score.rmse), "coverage": coverage, "changes": score.changes}


class _History:
    """Adds the errors of the rows of a block to those of the rows before, as they are learned."""

    def __init__(self, errors: ErrorHistory, learner: Learner) -> None:
        self.errors, self.rows = errors, learner.n_rows
        self.score = learner.score if learner.is_fitted else Tracking.none(likelihood=learner.settings.likelihood).score

    def watch(self, before: State, piece: Block, found: Innovations | None) -> None:
        if found is None:
            return
        start, settings, whole = 0, before.settings, found.given is not None  # innovations of a bank are not cut
        while start < len(piece):
            stop = len(piece) if whole else min(len(piece), start + self.errors.until_next(self.rows))
            part, some = piece.part(start, stop), found if whole else found.part(start, stop)
            tracked = Tracking.none(likelihood=settings.likelihood)
            self.score = self.score.merge(tracked.scored(settings, part, some, settings.counts(part.weights)).score)
            self.rows, start = self.rows + part.count, stop
            self.errors = self.errors.after(self.rows, self.score)


def _learn(learner: Learner, block: Block, log: "OutlierLog | None", history: _History) -> None:
    """Learn a block, if it has any good row. Its outliers go to the log, if given, and its errors to the history."""
    if block.count == 0:
        return

    def watch(before: State, piece: Block, after: State, found: Innovations | None) -> None:
        if log is not None:
            log.watch(before, piece, after)
        history.watch(before, piece, found)

    try:
        if log is not None:
            log.expect(block)
        learner.learn(block, call=Call(in_turn=True, watch=watch))
    except TimeGoesBack as error:
        file, row = block.place.names()[error.row]
        raise SourceError(f"{file}, row {row}: {error.why}") from error
    except ValueError as error:
        rows, files = block.place.rows, np.unique(block.place.file)
        where = f"{files[0]}, rows {rows.min()} to {rows.max()}" if len(files) == 1 else f"{len(rows):,} shuffled rows"
        raise SourceError(f"{where} could not be learned: {error}") from error
