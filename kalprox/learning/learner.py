"""The learner: the mutable object behind estimators and jobs, which rows update."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import check_usable
from kalprox.base.tree import Saved, expect, grown, is_count, released
from kalprox.calibration import Calibration, Verdict
from kalprox.calibration.classes import Probabilities
from kalprox.learning.bank_rows import BankFilter
from kalprox.learning.belief import FEWEST_ROWS, ApproximateMerge, Belief, about_merge, check_any_row
from kalprox.learning.beliefs import belief_of, belief_type, recent_rows, under
from kalprox.learning.completing import Batch, GapReader, complete, in_pieces, moments_of, refuse_sparse
from kalprox.learning.diagonal_filter import DiagonalFilter
from kalprox.learning.exact import ExactBelief
from kalprox.learning.fingerprint import SIZE, overlap
from kalprox.learning.gaps import FeatureMoments, Gaps
from kalprox.learning.innovations import Innovations, SquareRootFilter
from kalprox.learning.live_rows import LiveRows
from kalprox.learning.matching_filter import ClassFilter, MatchingFilter
from kalprox.learning.moment_filter import MomentFilter
from kalprox.learning.path import Path
from kalprox.learning.pending import PendingRows
from kalprox.learning.prequential import NOT_ASKED, TRACKED_TOGETHER, Watch, learned
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.recent_rows import RecentRows
from kalprox.learning.row_buffer import RowBuffer
from kalprox.learning.rules import check
from kalprox.learning.sandwich import NEEDS_GROUPS
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import Tracking
from kalprox.noise import Noise
from kalprox.predictive import Predictive
from kalprox.sources import ArraySource, Block, Counts, Source
from kalprox.sources.times import in_order

__all__ = ["Learner", "LiveFilter"]

# What is updated in place by single rows.
LiveFilter = SquareRootFilter | MomentFilter | MatchingFilter | ClassFilter | BankFilter | DiagonalFilter

_NO_ORDER = (
    "the rows were learned in no order, so that none was predicted from those before it: learn them as a stream, with "
    "partial_fit or without an engine"
)
_SEVERAL_PASSES = (
    "the model was fitted in several passes over the same rows, so that no row was predicted before it was "
    "learned: learn the rows as a stream, with partial_fit or in one pass"
)
_FIRST_CLASSES = (
    "the score started when the third class came: that of two classes is another one. To judge all rows, name the "
    "classes beforehand"
)


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
    gaps : Gaps
        The account of missing features and targets.
    pending : PendingRows or None
        The rows that wait for their target, if there were any.

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
        self.gaps = Gaps()
        self.pending: PendingRows | None = None
        self._belief: Belief | None = None  # excludes the recent rows
        self._tracking = Tracking.none(likelihood=settings.likelihood)  # excludes the recent rows
        self._rows: RecentRows | LiveRows | None = None  # made when it is first needed
        self._buffer: RowBuffer | None = None  # of the recent rows; its memory is kept for later ones
        self._merged = np.empty((0, SIZE))  # the fingerprints of the models that were merged into this one

    # ---- learning --------------------------------------------------------------------------------------

    def fit(self, source: Source, *, refine: bool = False) -> Counts:
        """Learn the rows of a source, discarding everything learned before.

        Rows in memory whose model is fitted in one pass are scored in their order, each before it is learned. With
        `refine`, a model that is fitted in several passes begins at its current estimate, and keeps its score.
        """
        gaps = Gaps()
        if self.settings.missing != "raise":
            source, gaps = self._completed_source(source)
        kind, in_order = belief_type(self.settings), getattr(source, "blocks_in_order", None)
        start = {"start": self.belief} if refine else {}
        if refine:
            check(self.settings, way="refine")
        if getattr(source, "groups", None) is not None:
            self.settings = self.settings.clustered()
        elif self.settings.coef_cov == "clustered" and isinstance(source, ArraySource):
            raise ValueError(NEEDS_GROUPS)
        if kind.in_one_pass and in_order is not None:
            belief = kind.start(self.settings, in_order())
            blocks = in_order(whole=kind.whole_batches)
            belief, tracking, counts = learned(self.settings, belief, None, blocks, 0)
            check_any_row(counts)
            unequal = self.settings.noise_depends_on_inputs or getattr(source, "noise", None) is not None
            if isinstance(belief, ExactBelief) and not self.settings.forgets and not unequal:
                belief = belief.with_scores_of(source)  # residuals say more than the innovations of the first rows
        else:
            settings = self.settings.with_alpha("auto") if self.settings.chooses_alpha else self.settings
            belief, counts = kind.fit(settings, source, **start)
            reason = _NO_ORDER if kind.in_one_pass else _SEVERAL_PASSES
            tracking = self.tracking if refine else Tracking.none(belief.targets, reason, self.settings.likelihood)
        self._keep(belief, tracking)
        if self.settings.chooses_alpha:
            self.settings = belief.settings
        self._buffer, self.gaps, self.pending = None, gaps, None
        self.n_rows, self.n_rejected, self._merged = counts.good, counts.bad, np.empty((0, SIZE))
        return counts

    def learn(self, batch: Block | ArraySource, settings: Settings | None = None) -> None:
        """Learn a batch of rows in addition to those learned before; `settings`, if given, replace the current ones."""
        settings = self._known(settings, batch.groups)
        if settings.missing == "raise":
            self._learn_batch(batch, settings)
        else:
            self._with_gaps(batch, settings, lambda learner, piece: learner._learn_batch(piece, settings))

    def _learn_batch(self, batch: Block | ArraySource, settings: Settings) -> None:
        if settings is self.settings and isinstance(batch, Block) and self._is_short(batch):
            self._learn_recent(batch)
        else:
            self._learn(batch, settings)

    # ---- missing features ------------------------------------------------------------------------------

    def _with_gaps(
        self,
        batch: Block | ArraySource,
        settings: Settings,
        learn: Callable[["Learner", Any], Any],
        *,
        first: int | None = None,
    ) -> list[Any]:
        """Complete a batch with missing features piece by piece, and return what `learn` returns for each piece.

        `first` is the number of rows of the first piece of a stream; the whole batch by default.
        """
        refuse_sparse(settings, batch.X)
        if not self._keeps_moments(settings) and not np.isnan(batch.X).any():
            return [learn(self, batch)]
        pieces = list(in_pieces(batch, self.n_rows, len(batch.y) if first is None else first))
        learner, found = self, []
        for piece in pieces:
            filled, gaps, moved = learner._completed(piece, settings)
            if learner is self and (len(pieces) > 1 or moved is not None):
                learner = self.copy()  # takes this one's place when all rows have been learned
            if moved is not None:
                learner._keep(moved, learner.tracking)
            start = learner._belief is None
            found.append(learn(learner, filled))
            learner.gaps = gaps
            if settings.missing == "marginalize":
                learner._hold(piece, start=start)
                if np.isnan(piece.X).any():
                    relearned = isinstance(learner._belief, ExactBelief)
                    learner.gaps = learner.gaps.counted(learner.n_rows, relearned=relearned)
        self.__dict__ = learner.__dict__
        return found

    def _hold(self, piece: Block | ArraySource, *, start: bool) -> None:
        """Hold a piece that was learned, and learn all rows again by better moments, if it is time.

        Models whose rows cannot be learned again at once have better moments from then on.
        """
        if not isinstance(piece, Block) or not (start or self.gaps.held is not None):
            return
        self.gaps = self.gaps.holding(piece, start=start)
        if not self.gaps.is_due:
            return
        moments = self.gaps.moments
        held, settings = self.gaps.held_rows, self.settings
        if self.gaps.rows and isinstance(self._belief, ExactBelief):
            rows, gaps, _ = Learner(settings)._completed(held, settings)
            assert isinstance(rows, Block)
            again, tracking = Learner(settings), self.tracking
            by_batch = settings.coef_cov == "clustered" and held.groups is None  # a batch is a cluster
            ends = np.cumsum([len(one) for one in self.gaps.held or ()]).tolist() if by_batch else [len(rows)]
            for begin, stop in zip([0, *ends[:-1]], ends, strict=True):
                again._learn(rows.part(begin, stop), settings)
            self._keep(again.belief, tracking)
            moments = gaps.moments
        elif self.gaps.rows:
            counts = settings.counts(held.weights)
            moments = FeatureMoments.of_batch(held.X, np.ones(len(held)) if counts is None else counts, with_cov=True)
        self.gaps = self.gaps.relearned(moments)

    def _keeps_moments(self, settings: Settings) -> bool:
        """Whether the moments of the features are kept: unless the information of rows without gaps has them."""
        if self._belief is None:
            return belief_type(settings) is not ExactBelief or settings.missing == "marginalize"
        gaps = self.gaps
        return gaps.moments is not None or gaps.held is not None or not isinstance(self._belief, ExactBelief)

    def _completed(self, batch: Batch, settings: Settings) -> tuple[Batch, Gaps, Belief | None]:
        """Return what `complete` returns for a batch after the rows learned so far."""
        belief = None if self._belief is None else (lambda: self.belief)
        return complete(batch, self.gaps, settings, belief, lambda block: belief_of(settings, block))

    def _completed_source(self, source: Source) -> tuple[Source, Gaps]:
        """Return a source in memory without gaps, completed by the moments of all its rows, and their account."""
        if not isinstance(source, ArraySource):
            check(self.settings, way="not in memory")
        assert isinstance(source, ArraySource)
        refuse_sparse(self.settings, source.X)
        completed, gaps, _ = Learner(self.settings)._completed(source, self.settings)
        assert isinstance(completed, ArraySource)
        return completed, gaps

    def learn_row(self, X: Array, y: Array, weights: Array | None = None) -> bool:
        """Learn a single row, if that needs no more than to buffer it; return whether it was learned.

        X has the shape (1, d), and y and the weights (1,). This is `learn` without the checks that no such row needs.
        """
        recent, settings = self._recent if self._rows is None else self._rows, self.settings
        if recent is None or not settings.buffers_rows:
            return False
        if settings.missing != "raise" and self._keeps_moments(settings):
            return False
        if not isinstance(recent, RecentRows):
            row = Block(X, y, weights)
            return recent.takes(row) and self._learn_recent(row) is not None
        weight = None if weights is None else float(weights[0])
        if not recent.takes_row(weight):
            return False
        if recent.are_full:
            self._keep(*self._folded())
            recent = self._recent
            assert isinstance(recent, RecentRows)
        recent.append_row(X, y, weight)
        self.n_rows += 1
        return True

    def learn_in_turn(self, block: Block, watch: Watch | None = None) -> None:
        """Learn rows that come one after the other, as those of a file, and are read in blocks of any size.

        Conformal intervals are tracked in short pieces, since none was issued for the block as a whole. The buffer is
        not used: a learner that was saved and restored continues bit for bit, its score included. `watch` is called
        with every piece, in the order of the rows, the beliefs before and after it, and its predictions, if scored.
        """
        settings = self.settings
        how: dict[str, Any] = {"in_turn": True, "watch": watch}
        if settings.missing == "raise":
            self._learn(block, settings, **how)
        else:
            self._with_gaps(block, settings, lambda learner, piece: learner._learn(piece, settings, **how))

    def learn_late(self, block: Block, issued: Innovations, settings: Settings | None = None) -> None:
        """Learn rows whose targets have come later than the rows, and score them by the predictions issued then."""
        settings, done = self._known(settings), 0

        def learn(learner: Learner, piece: Block) -> None:
            nonlocal done
            start, done = done, done + len(piece)
            learner._learn(piece, settings, in_turn=True, issued=issued.part(start, done))

        if settings.missing == "raise":
            learn(self, block)
        else:
            self._with_gaps(block, settings, learn)

    def prequential(
        self, batch: Block, settings: Settings | None = None, known: Array | None = None
    ) -> tuple[Array, Array]:
        """Learn a batch, and return the mean and the std of each row as they are predicted from all rows before it.

        A row that cannot be predicted, such as the first of all, has an infinite std. The targets `known` are a mask:
        rows without their target are predicted and not learned.
        """
        settings = self._known(settings)
        if known is not None:
            return self._prequential_where(known, batch, settings)
        if settings.missing == "raise":
            return self._prequential(batch, settings)
        return self._prequential_with_gaps(batch, settings)

    def _prequential_with_gaps(self, batch: Block, settings: Settings, *, copied: bool = False) -> tuple[Array, Array]:
        """Learn and predict a batch whose features may be missing; see `_prequential` for `copied`."""

        def learn(learner: Learner, piece: Block) -> tuple[Array, Array]:
            return learner._prequential(piece, settings, copied=copied)

        found = self._with_gaps(batch, settings, learn, first=max(FEWEST_ROWS, 2 * (batch.X.shape[1] + 1)))
        return np.concatenate([mean for mean, _ in found]), np.concatenate([std for _, std in found])

    def _prequential_where(self, known: Array, batch: Block, settings: Settings) -> tuple[Array, Array]:
        """Learn the rows whose targets are known, and predict all of them, one run of rows after the other."""
        learner = self.copy()
        mean, std = np.full(batch.y.shape, np.nan), np.full(batch.y.shape, np.inf)
        ends = [*(np.flatnonzero(np.diff(known)) + 1).tolist(), len(batch)]
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            part = batch.part(start, stop)
            if known[start]:
                gaps = settings.missing != "raise"
                how = learner._prequential_with_gaps if gaps else learner._prequential
                mean[start:stop], std[start:stop] = how(part, settings, copied=True)
            elif learner.is_fitted:
                step = len(part) if learner.belief.predicts else 1  # a filter of single rows predicts in a warm-up, too
                for i in range(start, stop, step):
                    some = batch.part(i, i + step)
                    live = learner._live_for(some.X, offsets=some.offset is not None)
                    if step > 1 or learner.belief.predicts or live is not None:
                        found = learner.predict(some.X, offset=some.offset)
                        mean[i : i + step], std[i : i + step] = found.mean, found.std
        self.__dict__ = learner.__dict__
        return mean, std

    def _prequential(self, batch: Block, settings: Settings, *, copied: bool = False) -> tuple[Array, Array]:
        """Learn and predict a batch without gaps; `copied` if the learner may be left half-way by an error."""
        if settings is self.settings and len(batch) <= TRACKED_TOGETHER and self._follows(batch):
            mean, std = self._learn_recent(batch, predict=True)[:2]
            return np.broadcast_to(mean, batch.y.shape), np.broadcast_to(std, batch.y.shape)
        if settings.by_time:
            batch = replace(batch, times=in_order(batch.times, self._time, batch.weights))
        made: list[tuple[Array, Array]] = []
        learner = self if copied else self.copy()  # takes this one's place when all rows have been learned
        for piece in learner._pieces(batch, settings):
            if len(piece) == 1 and learner._follows(piece):
                mean, std = learner._learn_recent(piece, predict=True)[:2]
                made.append((np.reshape(mean, piece.y.shape), np.reshape(std, piece.y.shape)))
            else:
                found: list[Innovations] = []
                learner._learn(piece, settings, found, in_turn=True)
                made += [(one.mean, one.std) for one in found]
        self.__dict__ = learner.__dict__
        return np.concatenate([mean for mean, _ in made]), np.concatenate([std for _, std in made])

    def _follows(self, batch: Block) -> bool:
        """Whether a filter predicts and learns a batch. Rows that fill the buffer are folded: none may follow them."""
        if self._recent is not None and self._recent.are_full:
            self._keep(*self._folded())
        return self._is_short(batch) and self._predicts_row

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
            fixed = belief.has_fixed_penalty and not settings.forgets
            single = not fixed and settings.forgetting.fades  # no filter follows a window, or a drift
        if not single or self.settings is not settings or not settings.buffers_rows:
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
        issued: Innovations | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Learn a batch without the buffer; see `learned` for `made`, `in_turn`, `issued` and `watch`."""
        if made is None and batch.weights is not None and not batch.weights.any():
            self.configure(settings)  # rows of weight 0 are no rows
            return
        blocks: Iterable[Block] = [batch] if isinstance(batch, Block) else batch
        if self._belief is None:
            check(settings, way="one pass")
            belief, tracking = belief_type(settings).start(settings, blocks), None
        else:
            belief, tracking = self._folded()
            belief = belief if settings is self.settings else under(belief, settings)
        if not isinstance(batch, Block) and belief.whole_batches:
            blocks = batch.blocks_in_order(whole=True)
        how: dict[str, Any] = {"in_turn": in_turn, "issued": issued, "watch": watch}
        belief, tracking, counts = learned(settings, belief, tracking, blocks, self.n_rows, made, **how)
        self.settings = settings
        self._keep(belief, tracking)
        self.n_rows += counts.good

    # ---- recent rows -----------------------------------------------------------------------------------

    @property
    def _recent(self) -> "RecentRows | LiveRows | None":
        """The rows since the last fold; None if the belief is not one of rows that are folded together."""
        if self._rows is None and self._belief is not None:
            self._rows = recent_rows(self.settings, self._belief, self._tracking, self.n_rows, self._buffer)
            self._buffer = self._buffer if self._rows is None else self._rows.buffer
        return self._rows

    def _known(self, settings: Settings | None, groups: Array | None = None) -> Settings:
        """Return the settings for a batch with these clusters, or None.

        They are the current ones if they are equal to them: an unpickled model has other objects for the same.
        """
        known = settings is None or settings is self.settings or not settings.changed(self.settings)
        if settings is None or known:
            found = self.settings
        elif settings.awaits_alpha and self._belief is not None and self.settings.chooses_alpha:
            found = settings.with_alpha(self.settings.penalty.alpha)
        else:
            found = settings
            if self._belief is not None:
                check(settings, way="one pass")
        if groups is None and (
            known or self.settings.coef_cov != "clustered" or found.parameters["coef_cov"] != "auto"
        ):
            return found
        if self.is_fitted and self.settings.coef_cov != found.clustered().coef_cov:
            raise ValueError(
                "Clusters are given, and the rows learned so far had none: give the clusters (groups) of all rows, "
                "from the first batch on, or leave them out."
            )
        return found.clustered()

    def _is_short(self, batch: Block) -> bool:
        """Whether a batch is folded together with later ones."""
        return (
            self.settings.buffers_rows
            and batch.groups is None
            and batch.noise is None
            and batch.missing is None
            and len(batch) <= RecentRows.capacity(batch.X.shape[1]) // 4
            and (recent := self._recent) is not None
            and (batch.offset is None or recent.takes_offsets)
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
        settings = self._known(settings)
        if self._belief is not None and settings is not self.settings and settings.changed(self.settings):
            belief, tracking = self._folded()
            self._keep(under(belief, settings), tracking)
        self.settings = settings

    def add_features(self, more: int) -> None:
        """Go on with more features, which were 0 in all rows so far and come after the others. O(d^3).

        Change points are looked for anew from here on, if they are.
        """
        if self._belief is not None:
            belief, tracking = self._folded()
            after = belief.with_features(more)
            self._keep(after, tracking.with_features(self.settings, after.coef.shape[-1]))
            self._buffer, self.gaps = None, grown(self.gaps, more)
            self.pending = None if self.pending is None else self.pending.with_features(more)

    def add_class(self, settings: Settings) -> None:
        """Go on with one more class, which no row had so far, under the settings of several classes.

        For what the rows say about it see `kalprox.learning.new_class`. The score of two classes is not that of
        several, and starts again.
        """
        from kalprox.learning.filtered import FilteredBelief
        from kalprox.learning.new_class import with_class

        belief, tracking = self._folded()
        assert isinstance(belief, FilteredBelief)
        after = with_class(belief, settings)
        if settings.changed(self.settings):
            tracking = Tracking.none(None, _FIRST_CLASSES if settings.diagnose else NOT_ASKED, settings.likelihood)
        self.settings = settings
        self._keep(after, tracking)
        self._buffer = None

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
        if self.settings.coef_cov != other.settings.coef_cov:
            raise ValueError(
                "merge needs the clusters of all rows, or of none: one of these models was given clusters."
            )
        if self.settings.penalty.alpha != other.settings.penalty.alpha:
            raise ValueError(
                "merge needs two models with the same alpha; alpha='auto' has chosen "
                f"{self.settings.penalty.alpha:.4g} and {other.settings.penalty.alpha:.4g}. Give one number to both."
            )
        check(self.settings, way="merge")
        belief = self.belief.merge(other.belief)
        mine, theirs = self._fingerprints, other._fingerprints
        if not allow_overlap and overlap(mine, theirs):
            raise ValueError(
                "The models have rows in common: both have learned the same rows, or one of them was merged from a "
                "model of rows that the other has, too. Merge models of different rows, or set allow_overlap=True "
                "(--allow-overlap on the command line) if these rows are to count twice."
            )
        merged = np.concatenate([one if len(one) == 1 else one[1:] for one in (mine, theirs)])
        gaps, pending = self._merged_gaps(other), PendingRows.merged(self.pending, other.pending)
        if belief.merge_distance:
            warnings.warn(about_merge(belief), ApproximateMerge, stacklevel=3)
        self._keep(belief, self.tracking.merge(other.tracking))
        self.gaps, self.pending = gaps, pending
        self.n_rows, self.n_rejected = self.n_rows + other.n_rows, self.n_rejected + other.n_rejected
        self._merged = merged[np.lexsort(merged.T)]  # the same whichever was merged into the other

    @property
    def _fingerprints(self) -> Array:
        """The fingerprint of all rows, and those of the models that were merged."""
        return np.concatenate([self.belief.fingerprint[None], self._merged])

    @property
    def _time(self) -> float | None:
        """The time of the last row, if rows are forgotten by time."""
        if self._rows and self._rows.buffer.time is not None:
            return self._rows.buffer.time
        return None if self._belief is None else self._belief.time

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
    def std_doubt(self) -> str:
        """Why standard errors of coefficients may be too small, in a sentence; empty if nothing is known of it."""
        return self.settings.std_doubt or self.belief.std_doubt or self.gaps.std_doubt(self.n_rows)

    @property
    def structure_doubt(self) -> str:
        """What a structure drops, as of the last fold, in a sentence; empty if that is nothing."""
        return "" if self._belief is None or self.settings.structure is None else self._belief.std_doubt

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
        score = self.tracking.score
        if not isinstance(score, Probabilities) or self.settings.forgets or not float(score.rows) > 0:
            return score
        return replace(score, pull=self.belief.penalty_pull)

    def verdict(self) -> Verdict:
        """Return the verdict on the score; the rows of a model that forgets or looks for changes are in time order."""
        in_time = self.settings.forgets or self.settings.change_points is not None
        return self.score.verdict()._replace(in_time=in_time)

    @property
    def quantiles(self) -> Quantiles:
        """The tracked quantiles of conformal intervals after all rows."""
        return self._rows.quantiles() if self._rows else self._tracking.quantiles

    def conformal_ends(self, level: float) -> tuple[Array, Array]:
        """Return how many stds a conformal interval extends below and above the mean."""
        quantiles = self.quantiles
        check(self.settings, way="conformal")
        if quantiles.rows == 0:
            raise ValueError(
                "Conformal intervals need rows that were predicted before they were learned, and there are none: use "
                "diagnose=True, and partial_fit, or fit of a linear model without an engine."
            )
        return quantiles.of(level)

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        """Return the solution for each alpha; see `Belief.path`. The source has all rows learned, if it is needed."""
        if source is not None and self.settings.missing != "raise":
            source, _ = self._completed_source(source)
        check(self.settings, way="path")
        check(self.settings, way="path without rows" if source is None else "path of rows")
        return self.belief.path(alphas, source)

    def mean(self, X: Any) -> Array:
        """Return the predictive means for rows of X."""
        if self.settings.missing != "raise" and self._has_gaps(X):
            return self._gap_reader().mean(X)
        live = self._live_for(X)
        return self.belief.mean(X) if live is None else live.mean(X)

    def predict(self, X: Array, sigma: Any = None, offset: Array | None = None, *, alone: bool = True) -> Predictive:
        """Return the predictive distribution for rows of X, including the noise of relative std `sigma` (default 1).

        The offsets must be given if the rows that were learned had them. `alone` is False if these are some of the rows
        to predict.
        """
        if self._has_gaps(X):
            return self._gap_reader().predict(X, sigma, offset)
        live = self._live_for(X, alone=alone, offsets=offset is not None) if sigma is None else None
        if live is None:
            return self.belief.predict(X, sigma, offset)
        return live.predict(X) if offset is None else live.predict(X, offset)  # type: ignore[call-arg]

    def reader(
        self,
        X: Any,
        sigma: Any = None,
        *,
        alone: bool = True,
        live: bool = True,
        offsets: bool = False,
        time: float | None = None,
    ) -> Any:
        """Return what predicts rows of X, as they are known now: rows that are learned later do not change it.

        With a `time`, not before that of the last row, it is what is known then. It is a belief, or what predicts as
        one does; with `live` also a filter. For the other parameters see `predict`.
        """
        if self._has_gaps(X):
            return self._gap_reader(time)
        live = live and sigma is None and time is None and isinstance(X, np.ndarray)
        found = self._live_for(X, alone=alone, offsets=offsets) if live else None
        return self._at(time) if found is None else found.copy()

    def _at(self, time: float | None) -> Belief:
        """Return the belief, or what is left of it at a later time."""
        return self.belief if time is None else self.belief.ahead(time)

    def _has_gaps(self, X: Any) -> bool:
        """Whether features are missing in some rows of X, and may be."""
        return self.settings.missing != "raise" and isinstance(X, np.ndarray) and bool(np.isnan(X).any())

    def _gap_reader(self, time: float | None = None) -> GapReader:
        """Return what predicts rows of which features are missing."""
        belief = self._at(time)
        return GapReader(belief, moments_of(belief, self.gaps, self.settings))

    def _merged_gaps(self, other: "Learner") -> Gaps:
        """Return the account of gaps of both, with the moments of all rows unless the information has them."""
        both = self, other
        if all(one.gaps.moments is None for one in both):
            return self.gaps.merge(other.gaps)
        accounts = [replace(one.gaps, moments=moments_of(one.belief, one.gaps, one.settings)) for one in both]
        return accounts[0].merge(accounts[1])

    def _live_for(self, X: Any, *, alone: bool = True, offsets: bool = False) -> LiveFilter | None:
        """Return the row-by-row filter, if there is one; a prediction of one row then costs O(d^2).

        It predicts batches of any size, so that all predictions between two folds come from the same estimate. The
        argument `offsets` is whether the rows have them. If that is wrong there is no filter, and the belief says so.
        """
        if isinstance(X, np.ndarray) is (self.settings.structure is not None):
            return None  # a filter of a structure is one of sparse rows, and the others are of dense ones
        if X.shape[0] == 1 and alone:
            found: LiveFilter | None = self._following() if self._rows is None else self._rows.following()
        else:
            recent = self._rows if isinstance(self._belief, ExactBelief) else self._recent
            found = None if recent is None else recent.followed()
        expected = isinstance(found, MatchingFilter) and found.offsets
        return found if offsets is expected else None

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
        recent += self.gaps.n_held + (0 if self.pending is None else len(self.pending))
        detector = self._tracking.detector
        recent += 0 if detector is None else len(detector.held)
        return recent + (0 if self._belief is None else self._belief.n_held)

    def release_rows(self) -> None:
        """Fold the rows that are held, so that no value of a row is left in the state, unless there is but one row.

        Raise a ValueError during a warm-up, which cannot do without its rows, and if rows wait for their target.
        """
        if self.pending:
            raise ValueError(
                f"{len(self.pending)} row(s) wait for their target and are held as they came. Give their targets "
                "first, or allow the file to have rows (samples=True)."
            )
        belief, tracking = self._folded()
        self._keep(belief.without_rows(), released(tracking))
        self._buffer, self.gaps = None, replace(self.gaps, held=None)

    def saved(self) -> dict[str, Any]:
        """Return the state of the learner as values that can be saved; see `kalprox.base.tree`."""
        assert self._belief is not None
        if self._rows and not self._rows.buffer:  # a filter is all that is left of these rows
            self._keep(*self._folded())
        found: dict[str, Any] = {"sizes": self._belief.sizes, "belief": self._belief, "tracking": self._tracking}
        if len(self._merged):
            found["merged"] = self._merged
        if self._rows:
            found["waiting"] = self._rows.buffer.saved()
        if self.settings.missing != "raise" or self.gaps.unlabelled:
            found["gaps"] = self.gaps
        if self.pending is not None:
            found["pending"] = self.pending.saved()
        if self.settings.chooses_alpha and not self.settings.is_exact:
            found["alpha"] = np.array(self.settings.penalty.alpha)
        if self.settings.coef_cov == "clustered":
            found["clustered"] = True
        return found

    @classmethod
    def restored(cls, settings: Settings, d: int, saved: Saved) -> "Learner":
        """Return the learner of d features whose method `saved` returned these values."""
        settings = settings.clustered() if "clustered" in saved.header else settings
        if settings.awaits_alpha:
            expect(saved["alpha"].shape == () and 0 < saved["alpha"] < np.inf)
            settings = settings.with_alpha(float(saved["alpha"]))
        learner = cls(settings)
        sizes: dict[str, int | None] = {name: saved.header[f"sizes.{name}"] for name in ("k", "p")}
        expect(saved.count("sizes.d") == d and is_count(sizes["p"]) and (sizes["k"] is None or is_count(sizes["k"])))
        sizes["d"] = d
        learner._belief = belief = belief_type(settings).restored(settings, saved, "belief", sizes)
        learner._tracking = Tracking.restored(settings, saved, "tracking", sizes)
        if "merged" in saved:
            learner._merged = saved["merged"]
            expect(learner._merged.ndim == 2 and learner._merged.shape[1] == SIZE and len(learner._merged))
            expect(np.isfinite(learner._merged).all())
        if "gaps" in saved:
            learner.gaps = saved.tree(Gaps, "gaps", sizes)
        if "pending" in saved:
            learner.pending = PendingRows.restored(d, saved)
        learner.n_rows, learner.n_rejected = saved.count("n_rows"), saved.count("n_rejected")
        if "waiting" in saved:
            columns = belief.targets if isinstance(belief, ExactBelief) else belief.design.outputs
            learner._buffer = RowBuffer.restored(d, columns, saved)
            before = learner.n_rows - learner._buffer.n
            learner._rows = recent_rows(settings, belief, learner._tracking, before, learner._buffer)
            expect(learner._rows is not None)
        return learner

    def copy(self) -> "Learner":
        """Return an independent copy."""
        new = object.__new__(Learner)
        new.__dict__ |= self.__dict__
        new._rows = None if self._rows is None else self._rows.copy()
        new._buffer = None if new._rows is None else new._rows.buffer
        new.pending = None if self.pending is None else self.pending.copy()
        return new
