"""Runs of a fit: the record of the rows, the quarantine, the checkpoint, and progress reports; a fit in one pass."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kalprox.algorithms.proximal_filter import prediction_errors
from kalprox.base.text import worded
from kalprox.calibration import LEVELS, Changes
from kalprox.jobs.checkpoint import Checkpoint
from kalprox.jobs.model import TableModel, rebuilt
from kalprox.jobs.record import FitRecord, checked_places, checked_state, from_json, history_sums
from kalprox.learning.innovations import Innovations
from kalprox.learning.learner import Learner
from kalprox.learning.linearised import Linearised
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import State
from kalprox.learning.step import Call
from kalprox.learning.targets import Seen
from kalprox.learning.tracking import Tracking
from kalprox.likelihoods.robust import Robust
from kalprox.model_file import Parts
from kalprox.sources import Block
from kalprox.sources.columns import TableColumns
from kalprox.sources.files import SourceError, check_rows
from kalprox.sources.quarantine import BadRow, Quarantine, Reason, check_known
from kalprox.sources.table import Cursor
from kalprox.sources.weighting import TimeGoesBack


class OutlierLog:
    """Writes the rows of a fit that a robust likelihood flags to a quarantine file.

    A row of a stream is flagged when it comes, before it is learned. The rows of a warm-up are held, and flagged at its
    end, or at that of the rows.

    Parameters
    ----------
    quarantine : Quarantine
    target : str
        The name of the target column.
    values : bool
        Whether the file has the values of targets.
    places : sequence of pairs
        The files and row numbers of rows that a run to resume holds in its warm-up; see `places`.

    Attributes
    ----------
    places : list of pairs
        The files and row numbers of rows that were learned, and have not been judged yet.
    """

    def __init__(self, quarantine: Quarantine, target: str, *, values: bool, places: Any = ()) -> None:
        self.quarantine, self.target, self.values = quarantine, target, values
        self.places: list[tuple[str, int]] = [(str(file), int(row)) for file, row in places]

    def expect(self, block: Block) -> None:
        """Get ready for a block of a stream, whose pieces are then given to `watch`."""
        self.places += block.place.names()

    def finish(self, learner: Learner) -> None:
        """Write the outliers of a warm-up that has not ended."""
        if (rows := learner.state.core.held_rows()) is not None:
            self._judge(learner.state, rows)

    def judge(self, learner: Learner, block: Block) -> None:
        """Write the outliers of a block that was learned in several passes, by the estimate of all rows."""
        self.places = block.place.names()
        self._judge(learner.state, block)

    def watch(self, before: State, piece: Block, after: State) -> None:
        """Write the outliers of a piece of a stream, and those of a warm-up that ends with it.

        A row is judged by the state before it was learned. The rows of a warm-up are held, and no state predicts them:
        they are judged all together by the estimate at its end, those of the piece included, and not before.
        """
        state = before.core
        assert isinstance(state, Linearised)
        if state.warms_up and not after.core.warms_up:
            held = state.held_rows()
            self._judge(after, piece if held is None else Block.joined([held, piece]))
        elif not state.warms_up:
            now = state if state.seen is None else state.with_seen(state.seen + Seen.of(state.settings, piece), piece)
            self._write(piece.y, state, prediction_errors(now.proximal, now.fixed.block(piece)))

    def _judge(self, after: State, block: Block) -> None:
        """Write the outliers of rows that a state has learned by its estimate, as a fit of several passes does."""
        state = after.core
        assert isinstance(state, Linearised)
        inputs, mean, likelihood = (
            state.fixed.block(block),
            state.proximal.linearization.mean,
            state.proximal.likelihood,
        )
        assert isinstance(likelihood, Robust)
        f = np.asarray(state.belief.model.linearize_rows(mean, inputs.X)[0])
        errors = likelihood.standardised(block.y, f, 0.0)
        self._write(block.y, state, errors if block.weights is None else np.where(block.weights > 0, errors, 0.0))

    def _write(self, y: np.ndarray, state: Linearised, errors: np.ndarray) -> None:
        """Write the outliers among rows with these errors, in standard deviations: the first of `places`.

        An error of an outlier is larger than that of all but one of 1,000 good rows. The weight is that of the row in
        the fit, from 1 for a row that is exactly as predicted to 0.
        """
        likelihood = state.proximal.likelihood
        assert isinstance(likelihood, Robust)
        weights, rows = np.asarray(likelihood.weight(errors) / likelihood.weight(0 * errors)), []
        for i in np.flatnonzero(np.asarray(likelihood.is_outlier(errors))).tolist():
            file, row = self.places[i]
            why = f"error {errors[i]:+.4g} standard deviations, weight {weights[i]:.4g}"
            value = f"{y[i]:.10g}" if self.values else ""
            rows.append(BadRow(file, row, self.target, f"{Reason.OUTLIER}: {why}", value))
        self.quarantine.note(rows)
        del self.places[: len(errors)]


@dataclass(frozen=True)
class Progress:
    """The progress of a job after a block.

    Attributes
    ----------
    rows : int
        Rows read in the current pass.
    bad : int
        Rows rejected.
    share : float or None
        The share of the source read in the current pass, between 0 and 1; None if its size is not known.
    number : int
        The number of the current pass, from 0.
    rmse, coverage : float
        The root mean squared error, and the coverage of the 95% intervals (NaN for classes, which have none), of the
        rows that were predicted before they were learned.
    checkpoint : bool
        Whether a checkpoint has just been written.
    changes : Changes or None
        The change points so far, if they are looked for.
    """

    rows: int
    bad: int
    share: float | None
    number: int
    rmse: float = float("nan")
    coverage: float = float("nan")
    checkpoint: bool = False
    changes: Changes | None = None


def check_columns(settings: Settings, columns: TableColumns) -> None:
    """Raise a ValueError if a model with these settings cannot learn rows of these columns."""
    if settings.coef_cov == "clustered" and columns.cluster is None:
        raise ValueError(
            worded(
                "{coef_cov='clustered'} needs the cluster of each row: name its column in {Columns.cluster|--clusters}."
            )
        )
    if columns.offset is not None or columns.exposure is not None:
        check(settings, way="offset")


class FitRun(ABC):
    """One run of a `kalprox.jobs.fit.FitJob` with the settings that it needs, from the start or from a checkpoint."""

    share: float | None = None  # of the rows of this pass that have been read, if it is known

    def __init__(self, job: Any, settings: Settings, checkpoint: Checkpoint) -> None:
        self.job, self.settings, self.checkpoint = job, settings, checkpoint
        self.identity = {} if checkpoint.file is None else job.identity()
        self.saved = checkpoint.load(self.identity)
        self.record, self.read, self.number, resume = FitRecord(), 0, 0, None
        if self.saved is not None:
            with checkpoint.resuming():
                state = checked_state(self.saved[0]["state"], job.table.columns)
            self.record, self.read, self.number, resume = state
        self.quarantine = Quarantine(job.quarantine, job.max_bad, resume=resume)

    @abstractmethod
    def run(self) -> TableModel:
        """Fit the model."""

    def save(
        self,
        header: dict[str, Any],
        arrays: dict[str, np.ndarray],
        restored: Callable[[dict[str, Any], dict[str, np.ndarray]], Parts],
    ) -> None:
        """Write a checkpoint, from which `restored` can restore the run; see `kalprox.model_file.write`.

        If a source has changed it raises instead: the rows before it would be those of another source.
        """
        self.job.table.check_unchanged()
        counts = {"read": self.read, "number": self.number}
        state = {"account": asdict(self.record), "quarantine": self.quarantine.state(), **counts}
        self.checkpoint.save(self.identity, {**header, "state": state}, arrays, restored)

    def count(self, read: int, number: int) -> None:
        """Count rows that pass `number` has read."""
        if number != self.number:
            self.number, self.read = number, 0
        self.read += read

    def take(self, block: Block, number: int) -> None:
        """Count a block of pass `number`. Its bad rows go to the quarantine in the first pass."""
        self.count(block.read, number)
        if number == 0:
            self.quarantine.take(block.bad, block.read)
            quality = self.record.quality.after(block, ranges=self.job.table.samples)
            self.record = replace(self.record, quality=quality)

    def outlier_log(self, places: Any = ()) -> OutlierLog | None:
        """Return what writes outliers to the quarantine file, if the job asks for it; see `OutlierLog` for `places`."""
        if not self.job.quarantine_outliers:
            return None
        table = self.job.table
        return OutlierLog(self.quarantine, table.columns.target or "", values=table.samples, places=places)

    def blocks(
        self, cursor: Cursor | None, number: int, save: Callable[[Cursor], bool] = lambda cursor: False
    ) -> Iterator[Block]:
        """Yield the blocks of pass `number` after a cursor, and report the progress as each has been used.

        After so many rows as there are between two checkpoints `save`, which says whether it did, is called with the
        cursor after them.
        """
        since = 0
        for block in self.job.table.blocks_ahead(cursor):
            self.take(block, number)
            self.share = self.job.table.done(block.place.cursor)
            yield block
            since += block.read
            saved = since >= self.job.every and save(block.place.cursor)
            since = 0 if saved else since
            self.report(saved=saved)

    def score(self) -> dict[str, Any]:
        """Return what is known of the predictions so far, as fields of `Progress`."""
        return {}

    def report(self, *, saved: bool = False) -> None:
        """Call the `watch` function of the job with the current progress."""
        bad = self.quarantine.bad
        self.job.watch(Progress(self.read, bad, self.share, self.number, checkpoint=saved, **self.score()))

    def finished(self, learner: Learner) -> TableModel:
        """Check the total number of bad rows and that levels are known, and return the fitted model."""
        self.quarantine.finish()
        if self.job.quarantine_outliers:
            self.record = replace(self.record, quality=replace(self.record.quality, outliers=self.quarantine.noted))
        learner.gaps = replace(learner.gaps, unlabelled=self.record.quality.notes.n_unlabelled)
        if not self.job.table.samples:
            learner.release_rows()
        check_known(self.record.quality.notes, self.job.table.columns.categorical)
        self.check_classes()
        return TableModel(learner, self.job.table.columns, self.record, self.job.sources)

    def check_classes(self) -> None:
        """Raise SourceError if a class of the target has no good row, once all rows have been read."""
        columns = self.job.table.columns
        if empty := [name for name, n in self.record.quality.class_rows(columns.classes).items() if n == 0]:
            raise SourceError.worded(
                "No good row has the class {} of column {}: nothing can be learned about it. Correct its rows, if "
                "they were refused, or list the other classes with {classes}.",
                *map(repr, (empty[0], columns.target)),
            )


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
        self.save({**header, **held, "cursor": asdict(cursor)}, arrays, partial(rebuilt, TableModel.from_parts, file))
        return True

    def score(self) -> dict[str, Any]:
        if not self.learner.is_fitted:
            return {}
        score = self.learner.score
        coverage = float(score.coverage[LEVELS.index(0.95)]) if score.has_intervals else float("nan")
        return {"rmse": float(score.rmse), "coverage": coverage, "changes": score.changes}

    def _learn(self, block: Block) -> None:
        """Learn a block. Its outliers go to the log, if there is one, and its errors to the history."""
        learner = self.learner
        self.learned, end = learner.n_rows, learner.n_rows + len(block)
        self.expected = int(end / self.share) if self.share else end
        self.sums = history_sums(learner.score) if learner.is_fitted else np.zeros(3)
        if self.log is not None:
            self.log.expect(block)
        try:
            learner.learn(block, call=Call(in_turn=True, watch=self._watch))
        except TimeGoesBack as error:
            file, row = block.place.names()[error.row]
            raise SourceError(f"{file}, row {row}: {error.why}") from error
        except ValueError as error:
            rows, files = block.place.rows, np.unique(block.place.file)
            where = f"{len(rows):,} shuffled rows"
            if len(files) == 1:
                where = f"{files[0]}, rows {rows.min()} to {rows.max()}"
            raise SourceError(f"{where} could not be learned: {error}") from error

    def _watch(self, before: State, piece: Block, after: State, found: Innovations | None, tracking: Tracking) -> None:
        """Note the outliers among the rows that have been learned, and their errors up to each point of the history."""
        if self.log is not None:
            self.log.watch(before, piece, after)
        if found is None:
            return
        history, start, settings, end = self.record.history, 0, before.settings, self.learned + piece.count
        while found.given is None:  # innovations of a bank are not cut
            stop = start + history.until_next(self.learned, self.expected - self.learned)
            if stop >= len(piece):
                break
            part, none = piece.part(start, stop), Tracking.none(likelihood=settings.likelihood)
            rows = part if settings.fills_gaps else replace(part, X=None)  # without which scores are faster
            scored = none.scored(settings, rows, found.part(start, stop), settings.counts(part.weights))
            self.sums = self.sums + history_sums(scored.score)
            self.learned, start = self.learned + part.count, stop
            history = history.after(self.learned, self.sums)
        self.learned, self.sums = end, history_sums(tracking.scores[0])
        self.record = replace(self.record, history=history.after(end, self.sums))
