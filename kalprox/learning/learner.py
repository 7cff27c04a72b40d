"""The learner: the mutable object behind estimators and jobs, which rows update."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import check_usable
from kalprox.calibration import Calibration
from kalprox.learning.belief import Belief, check_any_row
from kalprox.learning.exact import ExactBelief
from kalprox.learning.fingerprint import SIZE, fingerprint, overlap
from kalprox.learning.innovations import Innovations, SquareRootFilter, innovation
from kalprox.learning.input_noise import InputNoise
from kalprox.learning.moment_filter import MomentFilter
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.row_buffer import RowBuffer
from kalprox.learning.sandwich import NEEDS_GROUPS, Sandwich
from kalprox.learning.saved import Saved, expect
from kalprox.learning.scorer import MANY_ROWS, Scorer
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import Tracking
from kalprox.noise import Noise
from kalprox.predictive import Predictive
from kalprox.sources import ArraySource, Block, Counts, Source

__all__ = ["Learner", "belief_type"]

# The buffer is folded at 8,192 rows, or fewer (but at least 1,024) if they take 8 MiB, or as soon as it holds as many
# rows (but at least 16) as were folded before. Batches of up to a quarter of it go through the buffer: folding and
# scoring rows together takes a small part of the time that they take one by one.
_BUFFER_ROWS, _BUFFER_BYTES, _FEW = (1024, 8192), 1 << 23, 16
_READ_ROWS = 1024  # buffered rows that are folded at a time for reading, so that each is folded only a few times
_NOT_ASKED = "the score was not asked for: set diagnose=True"
_NO_ORDER = (
    "the rows were learned in no order, so that none was predicted from those before it: learn them as a stream, with "
    "partial_fit or without an engine"
)
_SEVERAL_PASSES = (
    "a nonlinear model was fitted in several passes over the same rows, so that no row was predicted before it was "
    "learned: learn the rows as a stream, with partial_fit or in one pass"
)
_PIECE = 64  # rows whose intervals are tracked together, if none was issued for a whole batch


def _capacity(d: int) -> int:
    """Return the number of rows of d features at which the buffer is folded."""
    least, most = _BUFFER_ROWS
    return max(least, min(most, _BUFFER_BYTES // (8 * d)))


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
        self._tracking = Tracking.none()
        self._buffer: RowBuffer | None = None
        self._live: SquareRootFilter | MomentFilter | None = None  # includes the buffered rows
        self._scored: tuple[Belief, Innovations | None] | None = None  # includes the buffered rows, which were scored
        self._part: tuple[int, Belief] | None = None  # includes as many of the buffered rows, folded for reading
        self._read: Belief | None = None  # includes the buffered rows, folded for reading
        self._tracked: tuple[int, Quantiles] | None = None  # includes as many of the buffered rows
        self._merged = np.empty((0, SIZE))  # the fingerprints of the models that were merged into this one

    # ---- learning --------------------------------------------------------------------------------------

    def fit(self, source: Source) -> Counts:
        """Learn the rows of a source, discarding everything learned before.

        Rows in memory whose model is fitted in one pass are scored in their order, each before it is learned.
        """
        kind, in_order = belief_type(self.settings), getattr(source, "blocks_in_order", None)
        if self.settings.coef_cov == "clustered" and isinstance(source, ArraySource) and source.groups is None:
            raise ValueError(NEEDS_GROUPS)
        if kind.in_one_pass and in_order is not None:
            belief = kind.start(self.settings, in_order())
            blocks = in_order(whole=kind.whole_batches)
            belief, tracking, counts = _learned(self.settings, belief, None, blocks, 0)
            check_any_row(counts)
        else:
            belief, counts = kind.fit(self.settings, source)
            targets = belief.information.targets if isinstance(belief, ExactBelief) else None
            tracking = Tracking.none(targets, _NO_ORDER if kind.in_one_pass else _SEVERAL_PASSES)
        self._keep(belief, tracking)
        self._buffer = None
        self.n_rows, self.n_rejected, self._merged = counts.good, counts.bad, np.empty((0, SIZE))
        return counts

    def learn(self, batch: Block | ArraySource, settings: Settings | None = None) -> None:
        """Learn a batch of rows in addition to those learned before; `settings`, if given, replace the current ones."""
        settings = self.settings if settings is None else settings
        if isinstance(batch, Block) and self._is_short(batch, settings):
            self.configure(settings)
            self.learn_rows(batch)
        else:
            self._learn(batch, settings)

    def learn_in_turn(self, block: Block) -> None:
        """Learn rows that come one after the other, as those of a file, and are read in blocks of any size.

        Conformal intervals are tracked in short pieces, since none was issued for the block as a whole. The buffer is
        not used: a learner that was saved and restored continues bit for bit, its score included.
        """
        self._learn(block, self.settings, in_turn=True)

    def prequential(self, batch: Block, settings: Settings | None = None) -> tuple[Array, Array]:
        """Learn a batch, and return the mean and the std of each row as they are predicted from all rows before it.

        A row that cannot be predicted, such as the first of all, has an infinite std.
        """
        settings = self.settings if settings is None else settings
        if self._is_short(batch, settings):
            self.configure(settings)
            self._live = self._live or self._filter()
            if self._live is not None:
                mean, std = self.learn_rows(batch, predict=True)[:2]
                return np.broadcast_to(mean, batch.y.shape), np.broadcast_to(std, batch.y.shape)
        made: list[Innovations] = []
        self._learn(batch, settings, made)
        return np.concatenate([one.mean for one in made]), np.concatenate([one.std for one in made])

    def _learn(
        self,
        batch: Block | ArraySource,
        settings: Settings,
        made: list[Innovations] | None = None,
        *,
        in_turn: bool = False,
    ) -> None:
        """Learn a batch without the buffer; see `_learned` for `made` and `in_turn`."""
        if made is None and batch.weights is not None and not batch.weights.any():
            self.configure(settings)  # rows of weight 0 are no rows
            return
        blocks: Iterable[Block] = [batch] if isinstance(batch, Block) else batch
        if self._belief is None:
            belief, tracking = belief_type(settings).start(settings, blocks), None
        else:
            belief, tracking = self._with_buffer()
            belief = belief if settings is self.settings else belief.with_settings(settings)
        if not isinstance(batch, Block) and belief.whole_batches:
            blocks = batch.blocks_in_order(whole=True)
        belief, tracking, counts = _learned(settings, belief, tracking, blocks, self.n_rows, made, in_turn=in_turn)
        self.settings = settings
        self._keep(belief, tracking)
        self.n_rows += counts.good

    def learn_rows(self, rows: Block, *, predict: bool = False) -> Sequence[Any]:
        """Learn a few rows of positive weight through the buffer.

        Returns the mean, std, dof, scale and standardised error of each row, predicted from all rows before it, if they
        are needed or `predict` is True.
        """
        belief, length = self._belief, len(rows)
        assert isinstance(belief, ExactBelief)
        if self._buffer is None:
            self._buffer = RowBuffer(belief.information.d, belief.information.targets)
        buffer = self._buffer
        if not buffer.fits(rows.X, rows.y):
            belief.information.fold(rows.X, rows.y)  # raises an error that names the problem
        check_usable(rows.X, rows.y, rows.weights)
        full = buffer.n >= _FEW and buffer.n >= min(_capacity(belief.information.d), self.n_rows - buffer.n)
        ends = self.settings.needs_innovations and self._weight >= belief.next_cut
        crosses = length > 1 and self._crosses_cut(rows, self.settings)
        if buffer.n and (full or ends or crosses):
            self._keep(*self._with_buffer())
        if crosses:
            assert isinstance(self._belief, ExactBelief)
            self._belief = self._belief.with_new_scorer()
        scored_later = self.settings.needs_innovations and self._scorer is not None
        exact = self.settings.needs_innovations and not scored_later
        if self._live is None and (predict or exact):
            self._live = self._filter()
        moved = None if self._live is None else _moved(self._live, rows, self.settings, predict=predict or exact)
        known = moved is not None or (not exact and (scored_later or length > 1))
        buffer.append(rows, length if known else 0, moved if exact else None)
        if length > 1 and not exact:
            self._live = None  # the next predictions are those of the belief, which takes rows together
        self._read = self._scored = None
        self.n_rows += length
        return (rows.y, rows.y) if moved is None else moved

    @property
    def _scorer(self) -> Scorer | None:
        """What predicts the buffered rows of a long stream; None if their innovations are exact."""
        belief = self._belief
        return belief.current_scorer if isinstance(belief, ExactBelief) and belief.predicts else None

    @property
    def _weight(self) -> float:
        """The number of rows of a linear model, each as often as it counts, including the buffered ones."""
        assert isinstance(self._belief, ExactBelief)
        rows, buffer = float(self._belief.information.rows), self._buffer
        if buffer is None or not buffer.weighted:
            return rows if buffer is None else rows + buffer.n
        return rows + self._count(buffer.block)

    def _count(self, rows: Block) -> float:
        """Return the number of these rows, each as often as it counts."""
        counts = self.settings.counts(rows.weights)
        return float(len(rows)) if counts is None else float(counts.sum())

    def _filter(self) -> SquareRootFilter | MomentFilter | None:
        """Return a filter that continues row by row from all rows so far; None if there is no exact one.

        It takes the buffered batches one after the other, as they came, so that it has the same bits whenever it is
        made, also after saving and restoring. There is none if rows that were not predicted by a filter came in longer
        batches: the belief, which takes them together, is then the faster one.
        """
        belief, buffer = self._belief, self._buffer
        if not isinstance(belief, ExactBelief):
            return None
        if buffer and not buffer.single and not buffer.predicted:
            return None
        if not (belief.predicts and belief.posterior.proper):
            belief, buffer = self.belief, None
            assert isinstance(belief, ExactBelief)
            if not (belief.predicts and belief.posterior.proper):
                return None
        fixed = belief.has_fixed_penalty and self.settings.forget == 1
        live = belief.filter if fixed else belief.moment_filter
        if live is None:
            return None
        for block in buffer.in_batches() if buffer else ():
            _moved(live, block, self.settings, predict=False)
        return None if isinstance(live, MomentFilter) and live.estimate() is None else live

    def _followed(self) -> SquareRootFilter | MomentFilter | None:
        """Return the filter that has predicted the buffered rows; None if they were not predicted."""
        if self._live is None and self._buffer and self._buffer.batches.any():
            self._live = self._filter()
        if isinstance(self._live, MomentFilter) and self._live.estimate() is None:
            return None
        return self._live

    def _is_short(self, block: Block, settings: Settings) -> bool:
        """Whether a batch goes through the buffer."""
        if settings is not self.settings and not settings.changed(self.settings):
            settings = self.settings  # an unpickled model has other objects for the same settings
        return (
            isinstance(self._belief, ExactBelief)
            and settings.is_exact
            and block.groups is None
            and (block.weights is None or bool((block.weights > 0).all()))
            and settings.coef_cov != "clustered"
            and not settings.noise_depends_on_inputs
            and len(block) <= _capacity(block.X.shape[1]) // 4
            and (len(block) == 1 or not self._belief.is_wide)
            and self._takes_short(settings, len(block), weighted=block.weights is not None)
            and not (len(block) > 1 and self._weight < MANY_ROWS and self._crosses_cut(block, settings))
        )

    def _crosses_cut(self, rows: Block, settings: Settings) -> bool:
        """Whether what predicts the rows of a batch changes before it or on the way.

        Among the first rows of a stream the batch is then cut there. Later it is predicted by a new estimate.
        """
        belief = self._belief
        if not settings.needs_innovations or not isinstance(belief, ExactBelief):
            return False
        return belief.next_cut < self._weight + self._count(rows)

    def _takes_short(self, settings: Settings, length: int = 1, *, weighted: bool = False) -> bool:
        """Whether rows can be buffered: they need no prediction, are predicted later, or by an exact filter."""
        if not settings.needs_innovations:
            return True
        if isinstance(self._live, SquareRootFilter) and settings is self.settings and not weighted:
            return True
        belief = self._belief
        assert isinstance(belief, ExactBelief)
        if settings is not self.settings:
            belief = belief.with_settings(settings)
        elif self._scorer is not None:
            return True
        if weighted and length > 1:
            return False
        if belief.has_fixed_penalty and settings.forget == 1:
            return self._live is not None or bool(self._buffer) or belief.posterior.proper
        if length > 1 or settings is not self.settings:
            return False
        self._live = self._live or self._filter()
        return self._followed() is not None

    def configure(self, settings: Settings) -> None:
        """Replace the settings, under which the rows learned so far are also interpreted from now on."""
        if self._belief is not None and settings is not self.settings and settings.changed(self.settings):
            belief, tracking = self._with_buffer()
            self._keep(belief.with_settings(settings), tracking)
        self.settings = settings

    def merge(self, other: "Learner", *, allow_overlap: bool = False) -> None:
        """Add the rows that another learner has learned. Exact; O(d^3).

        Raise a ValueError if both have learned the same rows, or one was merged from a model of the rows of the other;
        with `allow_overlap` these rows count twice.
        """
        belief = self.belief.merge(other.belief)
        if different := self.settings.changed(other.settings):
            mine, theirs = self.settings.parameters, other.settings.parameters
            raise ValueError(
                "merge needs two models with the same settings; these differ in "
                + ", ".join(f"{name} ({mine[name]!r} and {theirs[name]!r})" for name in different)
                + "."
            )
        mine, theirs = self._fingerprints, other._fingerprints
        if not allow_overlap and overlap(mine, theirs):
            raise ValueError(
                "The models have rows in common: both have learned the same rows, or one of them was merged from a "
                "model of rows that the other has, too. Merge models of different rows, or set allow_overlap=True "
                "(--allow-overlap on the command line) if these rows are to count twice."
            )
        merged = np.concatenate([one if len(one) == 1 else one[1:] for one in (mine, theirs)])
        self._keep(belief, self.tracking.merge(other.tracking))
        self.n_rows, self.n_rejected = self.n_rows + other.n_rows, self.n_rejected + other.n_rejected
        self._merged = merged[np.lexsort(merged.T)]  # the same whichever was merged into the other

    @property
    def _fingerprints(self) -> Array:
        """The fingerprint of all rows, and those of the models that were merged; exact beliefs only."""
        assert isinstance(self.belief, ExactBelief)
        return np.concatenate([fingerprint(self.belief.information)[None], self._merged])

    def _with_buffer(self) -> tuple[Belief, Tracking]:
        """Return the belief and the tracking after the buffered rows have been folded."""
        assert self._belief is not None
        if not self._buffer:
            return self._belief, self._tracking
        return self._folded()[0], self.tracking

    def _folded(self) -> tuple[Belief, Innovations | None]:
        """Return the belief after the buffered rows, and their innovations if they are needed.

        The rows of a long stream are predicted now, by its scorer, since that served for all of them.
        """
        if self._scored is None:
            belief, buffer = self._belief, self._buffer
            assert belief is not None and buffer is not None
            block, found = buffer.block, None
            if not self.settings.needs_innovations:
                after = belief.learn(block)
            else:
                predicted = self._scorer is None
                after, found = (belief.learn(block), buffer.innovations) if predicted else belief.scored(block)
                after = after.observing(block, found, belief)
            self._scored = after, found
        return self._scored

    def _keep(self, belief: Belief, tracking: Tracking) -> None:
        """Assign a new belief and tracking, and empty the buffer."""
        self._belief, self._tracking = belief, tracking
        self._live = self._scored = self._part = self._read = self._tracked = None
        if self._buffer is not None:
            self._buffer.clear()

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Whether any row has been learned."""
        return self._belief is not None

    @property
    def takes_rows(self) -> bool:
        """Whether `learn_rows`, the fast path for single rows, may be called."""
        settings = self.settings
        plain = type(self._belief) is ExactBelief and settings.coef_cov != "clustered"
        return plain and not settings.noise_depends_on_inputs and self._takes_short(settings)

    @property
    def noise(self) -> Noise:
        """The noise variance used in predictions, and its degrees of freedom."""
        live = self._followed()
        return self.belief.noise if live is None else Noise(*map(np.asarray, live.noise()))

    @property
    def belief(self) -> Belief:
        """The belief after all rows, including the buffered ones.

        The buffered rows are folded into a copy, so that reading does not change the state: a stream gives the same
        bits whether or not it is read, or saved and resumed, on the way. A reading after each batch folds each row a
        few times at most.
        """
        assert self._belief is not None, "nothing has been learned yet"
        if not self._buffer:
            return self._belief
        if self._belief.sandwich is not None or self._belief.input_noise is not None:
            return self._folded()[0]
        if self._read is None:
            rows, (start, belief) = self._buffer.block, self._part or (0, self._belief)
            while len(rows) - start >= _READ_ROWS:
                start, belief = start + _READ_ROWS, belief.learn(rows.part(start, start + _READ_ROWS))
                self._part = start, belief
            self._read = belief.learn(rows.part(start, len(rows))) if start < len(rows) else belief
        return self._read

    @property
    def tracking(self) -> Tracking:
        """The score and the quantiles after all rows, including the buffered ones."""
        buffer, before = self._buffer, self._tracking
        if not buffer or not self.settings.diagnose:
            return before
        found = self._folded()[1]
        assert found is not None
        rows = buffer.block
        counts = self.settings.counts(rows.weights)
        quantiles = before.quantiles.after_rows(found.issued, buffer.batches, counts)
        return replace(before.scored(rows.y, found, counts), quantiles=quantiles)

    @property
    def score(self) -> Calibration:
        """The prequential score: that of the rows that were predicted before they were learned."""
        return self.tracking.score

    @property
    def quantiles(self) -> Quantiles:
        """The tracked quantiles of conformal intervals after all rows, including the buffered ones."""
        buffer = self._buffer
        if not buffer or not self.settings.diagnose:
            return self._tracking.quantiles
        n, quantiles = self._tracked or (0, self._tracking.quantiles)
        if n < buffer.n:
            rows, scorer, belief = buffer.block.part(n, buffer.n), self._scorer, self._belief
            assert belief is not None
            issued = buffer.innovations.issued[n:] if scorer is None else scorer.issued(rows, belief.own_variance(rows))
            quantiles = quantiles.after_rows(issued, buffer.batches[n:], self.settings.counts(rows.weights))
            self._tracked = buffer.n, quantiles
        return quantiles

    def conformal_ends(self, level: float) -> tuple[Array, Array]:
        """Return how many stds a conformal interval extends below and above the mean."""
        quantiles = self.quantiles
        if quantiles.rows == 0:
            raise ValueError(
                "Conformal intervals need rows that were predicted before they were learned, and there are none: use "
                "diagnose=True, and partial_fit, or fit of a linear model without an engine."
            )
        return quantiles.of(level)

    def mean(self, X: Any) -> Array:
        """Return the predictive means for rows of X."""
        live = self._live_for(X)
        return self.belief.mean(X) if live is None else live.mean(X)

    def predict(self, X: Array, sigma: Any = None, *, alone: bool = True) -> Predictive:
        """Return the predictive distribution for rows of X, including the noise of relative std `sigma` (default 1).

        `alone` is False if these are some of the rows to predict.
        """
        live = self._live_for(X, alone=alone) if sigma is None else None
        return self.belief.predict(X, sigma) if live is None else live.predict(X)

    def reader(self, X: Any, sigma: Any = None, *, alone: bool = True) -> Belief | SquareRootFilter | MomentFilter:
        """Return what predicts rows of X, as they are known now: rows that are learned later do not change it.

        For the parameters see `predict`.
        """
        live = self._live_for(X, alone=alone) if sigma is None else None
        return self.belief if live is None else live.copy()

    def _live_for(self, X: Any, *, alone: bool = True) -> SquareRootFilter | MomentFilter | None:
        """Return the row-by-row filter, if there is one; a prediction of one row then costs O(d^2).

        It predicts batches of any size, so that all predictions between two folds come from the same estimate.
        """
        live = self._followed()
        if live is None and X.shape[0] == 1 and alone:
            wide = isinstance(self._belief, ExactBelief) and self._belief.is_wide
            live = self._live = None if wide else self._filter()
        return live if isinstance(X, np.ndarray) else None

    # ---- saving ----------------------------------------------------------------------------------------

    @property
    def n_held(self) -> int:
        """The number of rows that are held as they came, and that a model file would hold too."""
        buffered = 0 if self._buffer is None else self._buffer.n
        return buffered + (0 if self._belief is None else self._belief.n_held)

    def release_rows(self) -> None:
        """Fold the rows that are held, so that no value of a row is left in the state, unless there is but one row.

        Raise a ValueError during a warm-up, which cannot do without its rows.
        """
        belief, tracking = self._with_buffer()
        self._keep(belief.without_rows(), tracking)
        self._buffer = None

    def saved(self) -> dict[str, Any]:
        """Return the state of the learner as values that can be saved; see `kalprox.learning.saved`."""
        assert self._belief is not None
        rows = {"waiting": self._buffer.saved()} if self._buffer else {}
        belief = self._belief
        sandwich = {} if belief.sandwich is None else {"sandwich": belief.sandwich.saved()}
        noise = {} if belief.input_noise is None else {"input_noise": belief.input_noise}
        merged = {"merged": self._merged} if len(self._merged) else {}
        return {**self._tracking.saved(), **belief.saved(), **sandwich, **noise, **merged, **rows}

    @classmethod
    def restored(cls, settings: Settings, d: int, saved: Saved) -> "Learner":
        """Return the learner of d features whose method `saved` returned these values."""
        learner = cls(settings)
        belief = belief_type(settings).restored(settings, d, saved)
        targets = belief.information.targets if isinstance(belief, ExactBelief) else None
        if "sandwich" in saved:
            sandwich, is_exact = Sandwich.restored(saved), isinstance(belief, ExactBelief)
            p = d + (1 if is_exact else belief.design.first)
            expect(sandwich.M.shape == (targets or 1, p, p) and is_exact is (sandwich.center is not None))
            belief = replace(belief, sandwich=sandwich)
        if "input_noise" in saved:
            belief = replace(belief, input_noise=InputNoise.restored(d, saved))
        learner._belief = belief
        learner._tracking = Tracking.restored(targets, saved)
        if "waiting" in saved:
            assert isinstance(belief, ExactBelief)
            learner._buffer = RowBuffer.restored(d, targets, saved)
        if "merged" in saved:  # no model of version 0.1 has it
            learner._merged = saved["merged"]
            expect(learner._merged.ndim == 2 and learner._merged.shape[1] == SIZE and len(learner._merged))
        learner.n_rows, learner.n_rejected = saved.count("n_rows"), saved.count("n_rejected")
        return learner

    def copy(self) -> "Learner":
        """Return an independent copy."""
        new = object.__new__(Learner)
        new.__dict__ |= self.__dict__
        new._buffer, new._live = self._buffer and self._buffer.copy(), None
        return new


def _learned(
    settings: Settings,
    belief: Belief,
    tracking: Tracking | None,
    blocks: Iterable[Block],
    rows: int,
    made: list[Innovations] | None = None,
    *,
    in_turn: bool = False,
) -> tuple[Belief, Tracking, Counts]:
    """Return the belief and the tracking after the blocks of a batch, and their counts. Every row is predicted first.

    `rows` is the number of rows learned before. If `made` is a list, every row is predicted from all rows before it,
    and the innovations are appended to the list. With `in_turn`, or if there were no rows before, no intervals were
    issued for the batch as a whole: it is tracked in short pieces, as if they had come one by one.
    """
    exact, at_once, counts = made is not None, rows > 0 and not in_turn, Counts()
    issued: list[Array] = []
    times: list[Array | None] = []
    for block in blocks:
        if tracking is None:
            targets = block.y.shape[1] if block.y.ndim == 2 else None
            tracking = Tracking.none(targets, "" if settings.diagnose else _NOT_ASKED)
        counts, start = counts + Counts.of(block), 0
        while start < len(block):
            if not (exact or settings.needs_innovations):
                belief, start = belief.learn(block), len(block)
                continue
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # rows that are too large are refused as they are learned
                stop = belief.next_piece(block, start, rows, exact=exact)
            piece = block.part(start, stop)
            after, found = belief.scored(piece, known=rows > 0, exact=exact)
            after = after.observing(piece, found, belief)
            if settings.diagnose:
                times.append(settings.counts(piece.weights))
                tracking = tracking.scored(piece.y, found, times[-1])
                issued.append(found.issued if at_once else found.standardised(piece.y))
            if made is not None:
                made.append(found)
            belief, start, rows = after, stop, rows + piece.count
    assert tracking is not None
    if belief.sandwich is not None:
        belief = replace(belief, sandwich=belief.sandwich.closed())
    if issued:
        z, length = np.concatenate(issued), sum(map(len, issued)) if at_once else _PIECE
        known = [one for one in times if one is not None]  # all of them, or none
        all_times = np.concatenate(known) if known else None
        for start in range(0, len(z), length):
            some = slice(start, start + length)
            tracking = tracking.issued(z[some], None if all_times is None else all_times[some])
    return belief, tracking, counts


def _moved(
    live: SquareRootFilter | MomentFilter, rows: Block, settings: Settings, *, predict: bool = True
) -> Sequence[Any] | None:
    """Update the filter by a few rows, and return the fields of their innovations; None if they are not needed."""
    own = counts = None
    if rows.weights is not None:
        own, counts = settings.own_variance(rows), settings.counts(rows.weights)
    if isinstance(live, SquareRootFilter) and len(rows) > 1:
        return live.take(rows, own=own, counts=counts)
    found = []
    for i in range(len(rows)):
        noise, x, y = live.noise() if predict else None, rows.X[i], rows.y[i]
        weight = () if rows.weights is None else (float(rows.weights[i]), 1.0 if counts is None else float(counts[i]))
        if isinstance(live, SquareRootFilter):
            y = y if live.theta.ndim > 1 else float(y)
            mean, leverage = live.move(x, y, *weight)
        else:
            mean, leverage = live.at(x) if predict else (math.nan, math.nan)
            live.learn(x, float(y), *weight)
        if noise is not None:
            s = leverage + (1.0 if own is None else float(own[i]))
            found.append(innovation(y, mean, noise[0], noise[1], s))
    if not predict:
        return None
    return found[0] if len(found) == 1 else [np.array(column) for column in zip(*found, strict=True)]
