"""The learner: the mutable object behind estimators and jobs, which rows update."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.calibration import Calibration
from kalprox.learning.belief import Belief
from kalprox.learning.exact import ExactBelief
from kalprox.learning.row_updates import PotterUpdate, RowBuffer
from kalprox.learning.saved import Saved, expect
from kalprox.learning.scoring import is_due, scored, update
from kalprox.learning.settings import Settings
from kalprox.noise import Noise
from kalprox.predictive import Predictive, Student
from kalprox.sources import ArraySource, Block, Counts, Source

__all__ = ["HUGE", "Learner", "belief_type"]

# Blocks of 16 rows or fewer are buffered. The buffer is folded at 1,024 rows, which takes a tenth of the time of
# folding the rows one by one, or as soon as it holds as many rows (but at least 16) as were folded before.
_SHORT, _LONG = 16, 1024
HUGE = 1e200  # rows with a larger sum of squares may overflow: they are not buffered but folded, or rejected, at once


def belief_type(settings: Settings) -> type[Belief]:
    """Return the class of belief for these settings. JAX is imported only if that class needs it."""
    if settings.is_exact:
        return ExactBelief
    if settings.method == "paper":
        from kalprox.learning.paper import PaperBelief

        return PaperBelief
    from kalprox.learning.filtered import FilteredBelief

    return FilteredBelief


class Learner:
    """Settings, a belief, the prequential score of its predictions, and counts of rows.

    An exception leaves the learner unchanged: attributes are assigned only after everything has been computed.

    Parameters
    ----------
    settings : Settings

    Attributes
    ----------
    settings : Settings
        The current settings.
    n_rows, n_rejected : int
        The numbers of rows learned (of positive weight) and rejected.

    Examples
    --------
    >>> learner = Learner(Settings.of(penalty=None))
    >>> learner.learn(Block(np.array([[1.0], [2.0], [3.0]]), np.array([3.0, 5.0, 7.0])))
    >>> learner.belief.coef.round(6), learner.n_rows
    (array([2.]), 3)
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.n_rows = self.n_rejected = 0
        self._belief: Belief | None = None  # excludes the buffered rows
        self._score = Calibration()
        self._buffer: RowBuffer | None = None
        self._moved: PotterUpdate | None = None  # includes the buffered rows, by an O(d^2) update for each
        self._read: Belief | None = None  # includes the buffered rows, folded for reading

    # ---- learning --------------------------------------------------------------------------------------

    def fit(self, source: Source) -> Counts:
        """Learn the rows of a source, discarding everything learned before."""
        belief, counts = belief_type(self.settings).fit(self.settings, source)
        self._keep(belief, Calibration())
        self.n_rows, self.n_rejected = counts.good, counts.bad
        return counts

    def learn(self, batch: Block | ArraySource, settings: Settings | None = None) -> None:
        """Learn a batch of rows in addition to those learned before; `settings`, if given, replace the current ones."""
        settings = self.settings if settings is None else settings
        blocks: Iterable[Block] = [batch] if isinstance(batch, Block) else batch
        if self._belief is None:
            belief = belief_type(settings).start(settings, blocks)
        else:
            belief = self._belief if settings is self.settings else self._belief.with_settings(settings)
            if isinstance(batch, Block) and self._is_short(batch, settings):
                self.configure(settings)
                self.learn_rows(batch.X, batch.y)
                return
            belief = belief if not self._buffer else _folded(belief, self._buffer)
        if not isinstance(batch, Block) and belief.whole_batches:
            blocks = batch.blocks_in_order(whole=True)
        score = self._score if not self._buffer else self._score_of_buffer(self._buffer)
        before, count, d = belief, 0, 0
        for block in blocks:
            count, d = count + block.count, block.X.shape[1]
            belief = belief.learn(block)
            judge = self._belief is not None and settings.diagnose and before.predicts
            if judge and is_due(score, self.n_rows, self.n_rows + count, d):
                score = scored(score, before, block)
        self.settings = settings
        self._keep(belief, score)
        self.n_rows += count

    def learn_rows(self, X: Array, y: Array) -> None:
        """Learn a few rows of weight 1 through the buffer; the sum of their squares must be below `HUGE`."""
        belief = self._belief
        assert isinstance(belief, ExactBelief)
        if self._buffer is None:
            self._buffer = RowBuffer(belief.information.d, belief.information.targets)
        buffer = self._buffer
        if not buffer.fits(X, y):
            belief.information.fold(X, y)  # raises an error that names the problem
        if buffer.n >= _SHORT and buffer.n >= min(_LONG, float(belief.information.rows)):
            self._keep(_folded(belief, buffer), self._score_of_buffer(buffer))
            buffer = self._buffer = RowBuffer(belief.information.d, belief.information.targets)
        predicted = self._move(X, y)
        buffer.append(X, y, *predicted)
        self._read = None
        self.n_rows += len(y)

    def _move(self, X: Array, y: Array) -> tuple[Any, Any, Any, int]:
        """Update the estimate by a few rows, after predicting them jointly.

        Returns the predicted mean, std and degrees of freedom, and the number of rows predicted jointly (0 if the rows
        were not predicted).
        """
        judge, moved = self.settings.diagnose, self._moved
        if moved is None and judge:
            moved = self._moved = self._update()
        if moved is None:
            if not judge or not self.belief.predicts:
                return y, y, y, 0
            predicted = self.belief.predict(X)
            return predicted.mean, predicted.std, getattr(predicted, "dof", np.inf), len(y)
        if len(y) == 1:
            variance, dof = moved.noise() if judge else (np.nan, np.nan)
            mean, s = moved.move(X[0], float(y[0]))
            return mean, (variance * s) ** 0.5, dof, int(judge)
        before = moved.predict(X) if judge else Student(y, y, np.nan)
        for x, t in zip(X, y, strict=True):
            moved.move(x, float(t))
        return before.mean, before.std, before.dof, len(y) * judge

    def _update(self) -> PotterUpdate | None:
        belief = self.belief
        return PotterUpdate.of(belief) if isinstance(belief, ExactBelief) else None

    def _is_short(self, block: Block, settings: Settings) -> bool:
        return (
            isinstance(self._belief, ExactBelief)
            and block.weights is None
            and settings.forget == 1
            and len(block) <= _SHORT
            and float(np.vdot(block.X, block.X)) < HUGE
            and float(np.vdot(block.y, block.y)) < HUGE
        )

    def configure(self, settings: Settings) -> None:
        """Replace the settings, under which the rows learned so far are also interpreted from now on."""
        if self._belief is not None and settings is not self.settings:
            self._belief, self._read, self._moved = self._belief.with_settings(settings), None, None
        self.settings = settings

    def merge(self, other: "Learner") -> None:
        """Add the rows that another learner has learned. Exact; O(d^3)."""
        belief = self.belief.merge(other.belief)
        if different := self.settings.changed(other.settings):
            mine, theirs = self.settings.parameters, other.settings.parameters
            raise ValueError(
                "merge needs two models with the same settings; these differ in "
                + ", ".join(f"{name} ({mine[name]!r} and {theirs[name]!r})" for name in different)
                + "."
            )
        self._keep(belief, self.score.merge(other.score))
        self.n_rows, self.n_rejected = self.n_rows + other.n_rows, self.n_rejected + other.n_rejected

    def _keep(self, belief: Belief, score: Calibration) -> None:
        """Assign a new belief and score, and empty the buffer."""
        self._belief, self._score = belief, score
        self._buffer = self._moved = self._read = None

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Whether any row has been learned."""
        return self._belief is not None

    @property
    def takes_rows(self) -> bool:
        """Whether `learn_rows`, the fast path for single rows, may be called."""
        return type(self._belief) is ExactBelief and self.settings.forget == 1

    @property
    def noise(self) -> Noise:
        """The noise variance used in predictions, and its degrees of freedom."""
        return self.belief.noise if self._moved is None else Noise(*map(np.asarray, self._moved.noise()))

    @property
    def belief(self) -> Belief:
        """The belief after all rows, including the buffered ones.

        The buffered rows are folded into a copy, so that reading does not change the state: a stream gives the same
        bits whether or not it is read, or saved and resumed, on the way.
        """
        assert self._belief is not None, "nothing has been learned yet"
        if not self._buffer:
            return self._belief
        if self._read is None:
            self._read = _folded(self._belief, self._buffer)
        return self._read

    @property
    def score(self) -> Calibration:
        """The prequential score: that of the rows that were predicted before they were learned."""
        return self._score_of_buffer(self._buffer) if self._buffer else self._score

    def mean(self, X: Any) -> Array:
        """Return the predictive means for rows of X."""
        moved = self._moved_for(X)
        return self.belief.mean(X) if moved is None else moved.mean(X)

    def predict(self, X: Array, sigma: Any = None) -> Predictive:
        """Return the predictive distribution for rows of X, including the noise of relative std `sigma` (default 1)."""
        moved = self._moved_for(X) if sigma is None else None
        return self.belief.predict(X, sigma) if moved is None else moved.predict(X)

    def _moved_for(self, X: Any) -> PotterUpdate | None:
        """Return the row-by-row update, if there is one; a prediction of one row then costs O(d^2).

        It predicts batches of any size, so that all predictions between two folds come from the same estimate.
        """
        if self._moved is None and X.shape[0] == 1:
            self._moved = self._update()
        return self._moved if isinstance(X, np.ndarray) else None

    def _score_of_buffer(self, buffer: RowBuffer) -> Calibration:
        """Return the score including the buffered rows, as they were predicted when they arrived."""
        _, y, mean, std, dof, together = buffer.rows
        return update(self._score, Student(mean, std, dof), y, np.where(together > 0, 1.0, 0.0), together)

    # ---- saving ----------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """Return the state of the learner as values that can be saved; see `kalprox.learning.saved`."""
        assert self._belief is not None
        rows = {} if not self._buffer else {"waiting": dict(zip(RowBuffer.NAMES, self._buffer.rows, strict=True))}
        return {"diagnostics": self._score, **self._belief.saved(), **rows}

    @classmethod
    def restored(cls, settings: Settings, d: int, saved: Saved) -> "Learner":
        """Return the learner of d features whose method `saved` returned these values."""
        learner = cls(settings)
        learner._score = saved.value(Calibration, "diagnostics")
        for field in fields(Calibration):
            expect(np.shape(getattr(learner._score, field.name)) == np.shape(getattr(Calibration(), field.name)))
        learner._belief = belief = belief_type(settings).restored(settings, d, saved)
        if "waiting" in saved:
            assert isinstance(belief, ExactBelief)
            rows = [saved[f"waiting.{name}"] for name in RowBuffer.NAMES]
            learner._buffer = RowBuffer.of(d, belief.information.targets, rows)
        learner.n_rows, learner.n_rejected = int(saved["n_rows"]), int(saved["n_rejected"])
        return learner

    def copy(self) -> "Learner":
        """Return an independent copy."""
        new = object.__new__(Learner)
        new.__dict__ |= self.__dict__
        new._buffer, new._moved = self._buffer and self._buffer.copy(), None
        return new


def _folded(belief: Belief, buffer: RowBuffer) -> Belief:
    X, y, *_ = buffer.rows
    return belief.learn(Block(X, y))
