"""A streaming fit: each block of a table is learned as it is read."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from kalprox.calibration import LEVELS
from kalprox.jobs.base import FitRun
from kalprox.jobs.model import TableModel
from kalprox.jobs.restoring import checked_places, from_json
from kalprox.learning.learner import Learner
from kalprox.learning.rules import check
from kalprox.learning.step import Call
from kalprox.sources import Block
from kalprox.sources.files import SourceError, check_rows
from kalprox.sources.places import Cursor
from kalprox.sources.times import TimeGoesBack

__all__ = ["StreamingRun"]


class StreamingRun(FitRun):
    """A fit that reads, predicts and learns block after block, and writes checkpoints in between."""

    def run(self) -> TableModel:
        cursor, places = None, []
        check(self.settings, way="one pass")
        self.learner = Learner(self.settings)
        self.quarantine.open()
        if self.saved is not None:
            header, arrays = self.saved
            self.learner = TableModel.from_parts(str(self.checkpoint.file), header, arrays).learner
            with self.checkpoint.resuming():
                cursor = from_json(Cursor, header["cursor"])
                places = checked_places(header.get("held_places", []))
        self.log = self.outlier_log(places)
        for block in self.blocks(cursor, 0, self._save):
            if block.count:
                self._learn(block)
        check_rows(self.record.quality.read, self.read)
        if not self.learner.is_fitted:
            raise SourceError("There is no good row to learn from: every row is bad or has weight 0.")
        if self.log is not None:
            self.log.finish(self.learner)
        return self.finished(self.learner)

    def _save(self, cursor: Cursor) -> bool:
        """Write a checkpoint, if there is one and a row has been learned; return whether it was."""
        job, learner, file = self.job, self.learner, self.checkpoint.file
        if file is None or not learner.is_fitted:
            return False
        if not job.table.samples and learner.belief.predicts:
            learner.release_rows()
        header, arrays = TableModel(learner, job.table.columns, self.record, job.sources).parts()
        held = {} if self.log is None else {"held_places": self.log.places}
        self.save({**header, **held, "cursor": asdict(cursor)}, arrays, partial(TableModel.rebuilt, file))
        return True

    def score(self) -> dict[str, Any]:
        if not self.learner.is_fitted:
            return {}
        score = self.learner.score
        coverage = float(score.coverage[LEVELS.index(0.95)]) if score.has_intervals else float("nan")
        return {"rmse": float(score.rmse), "coverage": coverage, "changes": score.changes}

    def _learn(self, block: Block) -> None:
        """Learn a block in pieces, up to each point of the error history. Outliers go to the log, if there is one."""
        learner, start = self.learner, 0
        call = Call(in_turn=True, watch=None if self.log is None else self.log.watch)
        if self.log is not None:
            self.log.expect(block)
        try:
            while start < len(block):
                history = self.record.history
                stop = start + history.until_next(learner.n_rows, len(block) - start)
                if (piece := block.part(start, min(stop, len(block)))).count:
                    learner.learn(piece, call=call)
                    history = history.after(learner.n_rows, learner.score)
                    self.record = replace(self.record, history=history)
                start = stop
        except TimeGoesBack as error:
            file, row = block.place.names()[start + error.row]
            raise SourceError(f"{file}, row {row}: {error.why}") from error
        except ValueError as error:
            rows, files = block.place.rows, np.unique(block.place.file)
            where = f"{len(rows):,} shuffled rows"
            if len(files) == 1:
                where = f"{files[0]}, rows {rows.min()} to {rows.max()}"
            raise SourceError(f"{where} could not be learned: {error}") from error
