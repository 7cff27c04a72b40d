"""The learner: the mutable object behind estimators and jobs, which rows update."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import check_usable
from kalprox.calibration import Calibration
from kalprox.learning.belief import ApproximateMerge, Belief, about_merge, check_any_row
from kalprox.learning.exact import ExactBelief
from kalprox.learning.fingerprint import SIZE, overlap
from kalprox.learning.innovations import Innovations, SquareRootFilter
from kalprox.learning.input_noise import InputNoise
from kalprox.learning.matching_filter import MatchingFilter
from kalprox.learning.moment_filter import MomentFilter
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.recent_rows import RecentRows
from kalprox.learning.row_buffer import RowBuffer
from kalprox.learning.sandwich import NEEDS_GROUPS, Sandwich
from kalprox.learning.saved import Saved, expect
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import Tracking
from kalprox.noise import Noise
from kalprox.predictive import Predictive
from kalprox.sources import ArraySource, Block, Counts, Source

if TYPE_CHECKING:
    from kalprox.learning.matched_rows import MatchedRows

__all__ = ["Learner", "LiveFilter", "belief_type"]

LiveFilter = SquareRootFilter | MomentFilter | MatchingFilter  # what is updated in place by single rows

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
        self._belief: Belief | None = None  # excludes the recent rows
        self._tracking = Tracking.none(likelihood=settings.likelihood)  # excludes the recent rows
        self._rows: RecentRows | MatchedRows | None = None  # made when it is first needed
        self._buffer: RowBuffer | None = None  # of the recent rows; its memory is kept for later ones
        self._merged = np.empty((0, SIZE))  # the fingerprints of the models that were merged into this one

    # ---- learning --------------------------------------------------------------------------------------

    def fit(self, source: Source, *, refine: bool = False) -> Counts:
        """Learn the rows of a source, discarding everything learned before.

        Rows in memory whose model is fitted in one pass are scored in their order, each before it is learned. With
        `refine`, a model that is fitted in several passes begins at its current estimate, and keeps its score.
        """
        kind, in_order = belief_type(self.settings), getattr(source, "blocks_in_order", None)
        start = {"start": self.belief} if refine else {}
        if refine and kind.in_one_pass:
            raise ValueError("refine needs a model that is fitted in several passes; this one needs one only: use fit.")
        if self.settings.coef_cov == "clustered" and isinstance(source, ArraySource) and source.groups is None:
            raise ValueError(NEEDS_GROUPS)
        if kind.in_one_pass and in_order is not None:
            belief = kind.start(self.settings, in_order())
            blocks = in_order(whole=kind.whole_batches)
            belief, tracking, counts = _learned(self.settings, belief, None, blocks, 0)
            check_any_row(counts)
        else:
            belief, counts = kind.fit(self.settings, source, **start)
            targets = belief.information.targets if isinstance(belief, ExactBelief) else None
            reason = _NO_ORDER if kind.in_one_pass else _SEVERAL_PASSES
            tracking = self.tracking if refine else Tracking.none(targets, reason, self.settings.likelihood)
        self._keep(belief, tracking)
        self._buffer = None
        self.n_rows, self.n_rejected, self._merged = counts.good, counts.bad, np.empty((0, SIZE))
        return counts

    def learn(self, batch: Block | ArraySource, settings: Settings | None = None) -> None:
        """Learn a batch of rows in addition to those learned before; `settings`, if given, replace the current ones."""
        settings = self._known(settings)
        if settings is self.settings and isinstance(batch, Block) and self._is_short(batch):
            self._learn_recent(batch)
        else:
            self._learn(batch, settings)

    def learn_row(self, X: Array, y: Array) -> bool:
        """Learn a single row of weight 1, if that needs no more than to buffer it; return whether it was learned.

        X has the shape (1, d), and y (1,). This is `learn` without the checks that no such row needs.
        """
        row, recent = Block(X, y), self._recent
        if recent is None or not self._buffers_rows:
            return False
        if not (recent.takes_row if isinstance(recent, RecentRows) else recent.takes(row)):
            return False
        self._learn_recent(row)
        return True

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
        settings = self._known(settings)
        if settings is self.settings and self._is_short(batch) and self._predicts_row:
            mean, std = self._learn_recent(batch, predict=True)[:2]
            return np.broadcast_to(mean, batch.y.shape), np.broadcast_to(std, batch.y.shape)
        made: list[tuple[Array, Array]] = []
        learner = self.copy()  # takes this one's place when all rows have been learned
        for piece in learner._pieces(batch, settings):
            if len(piece) == 1 and learner._is_short(piece) and learner._predicts_row:
                mean, std = learner._learn_recent(piece, predict=True)[:2]
                made.append((np.reshape(mean, piece.y.shape), np.reshape(std, piece.y.shape)))
            else:
                found: list[Innovations] = []
                learner._learn(piece, settings, found)
                made += [(one.mean, one.std) for one in found]
        self.__dict__ = learner.__dict__
        return np.concatenate([mean for mean, _ in made]), np.concatenate([std for _, std in made])

    def _pieces(self, batch: Block, settings: Settings) -> Iterator[Block]:
        """Yield a batch whose rows are predicted one by one in the pieces in which it is learned the fastest.

        If only single rows can be predicted exactly, a filter of single rows takes a hundredth of the time of the
        belief. It needs a row to start from.
        """
        start = int(self._belief is None and len(batch) > 1 and batch.groups is None)
        if start:
            yield batch.part(0, start)
        belief = self._belief
        single = belief is not None and belief.matches_rows
        if isinstance(belief, ExactBelief):
            single = not (belief.has_fixed_penalty and settings.forget == 1)
        if not single or self.settings is not settings or not self._buffers_rows:
            yield batch.part(start, len(batch))
            return
        check_usable(batch.X, batch.y, batch.weights)
        yield from (batch.part(i, i + 1) for i in range(start, len(batch)))

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
            belief, tracking = self._folded()
            belief = belief if settings is self.settings else belief.with_settings(settings)
        if not isinstance(batch, Block) and belief.whole_batches:
            blocks = batch.blocks_in_order(whole=True)
        belief, tracking, counts = _learned(settings, belief, tracking, blocks, self.n_rows, made, in_turn=in_turn)
        self.settings = settings
        self._keep(belief, tracking)
        self.n_rows += counts.good

    # ---- recent rows -----------------------------------------------------------------------------------

    @property
    def _recent(self) -> "RecentRows | MatchedRows | None":
        """The rows since the last fold; None if the belief is not one of rows that are folded together."""
        if self._rows is None and self._belief is not None:
            self._rows = _recent_rows(self.settings, self._belief, self._tracking, self.n_rows, self._buffer)
            self._buffer = self._buffer if self._rows is None else self._rows.buffer
        return self._rows

    def _known(self, settings: Settings | None) -> Settings:
        """Return the current settings if these are equal to them: an unpickled model has other objects for the same."""
        if settings is None or settings is self.settings or not settings.changed(self.settings):
            return self.settings
        return settings

    @property
    def _buffers_rows(self) -> bool:
        """Whether these settings allow rows to be folded together with later ones."""
        settings = self.settings
        return settings.coef_cov != "clustered" and not settings.noise_depends_on_inputs

    def _is_short(self, batch: Block) -> bool:
        """Whether a batch is folded together with later ones."""
        return (
            self._buffers_rows
            and batch.groups is None
            and batch.offset is None
            and len(batch) <= RecentRows.capacity(batch.X.shape[1]) // 4
            and (recent := self._recent) is not None
            and recent.takes(batch)
        )

    def _learn_recent(self, batch: Block, *, predict: bool = False) -> Sequence[Any]:
        """Learn a batch that `_recent` takes; for what is returned see `RecentRows.append`."""
        recent = self._recent
        assert recent is not None
        crosses = len(batch) > 1 and recent.crosses_cut(batch)
        if recent.are_full or crosses:
            self._keep(*self._folded())
            if crosses:
                assert isinstance(self._belief, ExactBelief)
                self._belief = self._belief.with_new_scorer()
            recent = self._recent
            assert recent is not None
        found = recent.append(batch, predict=predict)
        self.n_rows += len(batch)
        if not isinstance(recent, RecentRows) and recent.are_full:  # so that a fold does not change a prediction issued
            self._keep(*self._folded())
        return found

    def configure(self, settings: Settings) -> None:
        """Replace the settings, under which the rows learned so far are also interpreted from now on."""
        if self._belief is not None and settings is not self.settings and settings.changed(self.settings):
            belief, tracking = self._folded()
            self._keep(belief.with_settings(settings), tracking)
        self.settings = settings

    def merge(self, other: "Learner", *, allow_overlap: bool = False) -> None:
        """Add the rows that another learner has learned. Exact for exact beliefs; O(d^3).

        Raise a ValueError if both have learned the same rows, or one was merged from a model of the rows of the other;
        with `allow_overlap` these rows count twice.
        """
        if different := self.settings.changed(other.settings):
            mine, theirs = self.settings.parameters, other.settings.parameters
            raise ValueError(
                "merge needs two models with the same settings; these differ in "
                + ", ".join(f"{name} ({mine[name]!r} and {theirs[name]!r})" for name in different)
                + "."
            )
        belief = self.belief.merge(other.belief)
        mine, theirs = self._fingerprints, other._fingerprints
        if not allow_overlap and overlap(mine, theirs):
            raise ValueError(
                "The models have rows in common: both have learned the same rows, or one of them was merged from a "
                "model of rows that the other has, too. Merge models of different rows, or set allow_overlap=True "
                "(--allow-overlap on the command line) if these rows are to count twice."
            )
        merged = np.concatenate([one if len(one) == 1 else one[1:] for one in (mine, theirs)])
        if belief.merge_distance:
            warnings.warn(about_merge(belief), ApproximateMerge, stacklevel=3)
        self._keep(belief, self.tracking.merge(other.tracking))
        self.n_rows, self.n_rejected = self.n_rows + other.n_rows, self.n_rejected + other.n_rejected
        self._merged = merged[np.lexsort(merged.T)]  # the same whichever was merged into the other

    @property
    def _fingerprints(self) -> Array:
        """The fingerprint of all rows, and those of the models that were merged."""
        return np.concatenate([self.belief.fingerprint[None], self._merged])

    def _folded(self) -> tuple[Belief, Tracking]:
        """Return the belief and the tracking after the recent rows have been folded."""
        assert self._belief is not None
        return (self._rows.scored()[0], self._rows.tracked()) if self._rows else (self._belief, self._tracking)

    def _keep(self, belief: Belief, tracking: Tracking) -> None:
        """Assign a new belief and tracking, which include the recent rows."""
        self._belief, self._tracking, self._rows = belief, tracking, None
        if self._buffer is not None:
            self._buffer.clear()

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Whether any row has been learned."""
        return self._belief is not None

    @property
    def noise(self) -> Noise:
        """The noise variance used in predictions, and its degrees of freedom."""
        live = None if self._rows is None else self._rows.followed()
        return self.belief.noise if live is None else Noise(*map(np.asarray, live.noise()))

    @property
    def belief(self) -> Belief:
        """The belief after all rows."""
        assert self._belief is not None, "nothing has been learned yet"
        return self._rows.read() if self._rows else self._belief

    @property
    def tracking(self) -> Tracking:
        """The score and the quantiles after all rows."""
        return self._rows.tracked() if self._rows else self._tracking

    @property
    def score(self) -> Calibration:
        """The prequential score: that of the rows that were predicted before they were learned."""
        return self.tracking.score

    @property
    def quantiles(self) -> Quantiles:
        """The tracked quantiles of conformal intervals after all rows."""
        return self._rows.quantiles() if self._rows else self._tracking.quantiles

    def conformal_ends(self, level: float) -> tuple[Array, Array]:
        """Return how many stds a conformal interval extends below and above the mean."""
        quantiles = self.quantiles
        if not self._tracking.scores[0].has_intervals:
            raise ValueError("Classes have probabilities and no intervals: leave method='conformal' out.")
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

    def predict(self, X: Array, sigma: Any = None, offset: Array | None = None, *, alone: bool = True) -> Predictive:
        """Return the predictive distribution for rows of X, including the noise of relative std `sigma` (default 1).

        The offsets must be given if the rows that were learned had them. `alone` is False if these are some of the rows
        to predict.
        """
        live = self._live_for(X, alone=alone) if sigma is None and offset is None else None
        return self.belief.predict(X, sigma, offset) if live is None else live.predict(X)

    def reader(self, X: Any, sigma: Any = None, *, alone: bool = True) -> Belief | LiveFilter:
        """Return what predicts rows of X, as they are known now: rows that are learned later do not change it.

        For the parameters see `predict`.
        """
        live = self._live_for(X, alone=alone) if sigma is None else None
        return self.belief if live is None else live.copy()

    def _live_for(self, X: Any, *, alone: bool = True) -> LiveFilter | None:
        """Return the row-by-row filter, if there is one; a prediction of one row then costs O(d^2).

        It predicts batches of any size, so that all predictions between two folds come from the same estimate.
        """
        if not isinstance(X, np.ndarray):
            return None
        if X.shape[0] == 1 and alone:
            return self._following()
        recent = self._rows if isinstance(self._belief, ExactBelief) else self._recent
        return None if recent is None else recent.followed()

    @property
    def _predicts_row(self) -> bool:
        recent = self._recent
        return recent is not None and recent.predicts_row

    def _following(self) -> LiveFilter | None:
        """Return a filter that includes all rows, made now if it is worth it."""
        recent = self._recent
        return None if recent is None else recent.following()

    # ---- saving ----------------------------------------------------------------------------------------

    @property
    def n_held(self) -> int:
        """The number of rows that are held as they came, and that a model file would hold too."""
        recent = 0 if self._rows is None else len(self._rows)
        return recent + (0 if self._belief is None else self._belief.n_held)

    def release_rows(self) -> None:
        """Fold the rows that are held, so that no value of a row is left in the state, unless there is but one row.

        Raise a ValueError during a warm-up, which cannot do without its rows.
        """
        belief, tracking = self._folded()
        self._keep(belief.without_rows(), tracking)
        self._buffer = None

    def saved(self) -> dict[str, Any]:
        """Return the state of the learner as values that can be saved; see `kalprox.learning.saved`."""
        assert self._belief is not None
        rows = {"waiting": self._rows.buffer.saved()} if self._rows else {}
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
        learner._tracking = Tracking.restored(targets, saved, settings.likelihood)
        if "merged" in saved:  # no model of version 0.1 has it
            learner._merged = saved["merged"]
            expect(learner._merged.ndim == 2 and learner._merged.shape[1] == SIZE and len(learner._merged))
        learner.n_rows, learner.n_rejected = saved.count("n_rows"), saved.count("n_rejected")
        if "waiting" in saved:
            learner._buffer = RowBuffer.restored(d, targets, saved)
            before = learner.n_rows - learner._buffer.n
            learner._rows = _recent_rows(settings, belief, learner._tracking, before, learner._buffer)
            expect(learner._rows is not None)
        return learner

    def copy(self) -> "Learner":
        """Return an independent copy."""
        new = object.__new__(Learner)
        new.__dict__ |= self.__dict__
        new._rows = None if self._rows is None else self._rows.copy()
        new._buffer = None if new._rows is None else new._rows.buffer
        return new


def _recent_rows(
    settings: Settings, belief: Belief, tracking: Tracking, rows: int, buffer: RowBuffer | None
) -> "RecentRows | MatchedRows | None":
    """Return the rows since a belief, none of them yet if there is no buffer; None if they are not folded together."""
    if isinstance(belief, ExactBelief):
        return RecentRows(settings, belief, tracking, rows, buffer)
    if not belief.matches_rows:
        return None
    from kalprox.learning.filtered import FilteredBelief
    from kalprox.learning.matched_rows import MatchedRows

    assert isinstance(belief, FilteredBelief)
    return MatchedRows(settings, belief, tracking, rows, buffer)


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
            tracking = Tracking.none(targets, "" if settings.diagnose else _NOT_ASKED, settings.likelihood)
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
