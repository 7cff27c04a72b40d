"""The learner: the mutable object behind estimators and jobs, which rows update."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.text import worded
from kalprox.base.tree import grown
from kalprox.calibration import Calibration, ClassCalibration
from kalprox.learning.belief import ApproximateMerge, Belief, doubt_of_merge, pull_of_penalty
from kalprox.learning.compose import fitted, kind_of, started
from kalprox.learning.gapped import GapReader, completed_source, learn_with_gaps
from kalprox.learning.gaps import Gaps
from kalprox.learning.merging import SIZE, check_alike, check_apart, settings_for
from kalprox.learning.path import Path
from kalprox.learning.pending import PendingRows
from kalprox.learning.rules import check
from kalprox.learning.sandwich import NEEDS_GROUPS
from kalprox.learning.settings import Settings
from kalprox.learning.state import State, check_any_row
from kalprox.learning.step import NOT_ASKED, PLAIN, Buffered, Call, Made, step
from kalprox.learning.tracking import Tracking
from kalprox.predictive import Predictive
from kalprox.sources import ArraySource, Block, Counts, Source

_NO_ORDER = (
    "the rows were learned in no order, so that none was predicted from those before it: learn them in their "
    "order, without an engine"
)
_SEVERAL_PASSES = (
    "the model was fitted in several passes over the same rows, so that no row was predicted before it was "
    "learned: learn the rows in one pass, as a stream"
)
_FIRST_CLASSES = (
    "the score started when the third class came: that of two classes is another one. To judge all rows, name the "
    "classes beforehand"
)


class Learner:
    """Settings, what has learned the rows, and counts of rows.

    An exception leaves the learner unchanged: attributes are assigned only after everything has been computed.

    Parameters
    ----------
    settings : Settings

    Attributes
    ----------
    settings : Settings
        The current settings.
    stream : Buffered
        The state of the rows, with the score and the quantiles of their predictions.
    gaps : Gaps
        The account of missing features and targets.
    pending : PendingRows or None
        The rows that wait for their target, if there were any.
    n_rejected : int
        The number of rows rejected.
    merged : array of shape (m, 7)
        The fingerprints of the models that were merged into this one.

    Examples
    --------
    >>> learner = Learner(Settings.of(penalty=None))
    >>> learner.learn(Block(np.array([[1.0], [2.0], [3.0]]), np.array([3.0, 5.0, 7.0])))
    >>> learner.belief.coef.round(6), learner.n_rows
    (array([2.]), 3)
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.n_rejected = settings, 0
        self.stream, self.gaps = Buffered(settings), Gaps()
        self.pending: PendingRows | None = None
        self.merged = np.empty((0, SIZE))

    # ---- learning --------------------------------------------------------------------------------------

    def fit(self, source: Source, *, refine: bool = False) -> Counts:
        """Learn the rows of a source, discarding everything learned before.

        Rows in memory whose model is fitted in one pass are scored in their order, each before it is learned. With
        `refine`, a model that is fitted in several passes begins at its current estimate, and keeps its score.
        """
        gaps = Gaps()
        if self.settings.fills_gaps:
            source, gaps = completed_source(source, self.settings)
        kind, in_order = kind_of(self.settings), getattr(source, "blocks_in_order", None)
        if refine:
            check(self.settings, way="refine")
        if getattr(source, "groups", None) is not None:
            self.settings = self.settings.clustered()
        elif self.settings.coef_cov == "clustered" and isinstance(source, ArraySource):
            raise ValueError(NEEDS_GROUPS)
        if kind.in_one_pass and in_order is not None:
            state = started(self.settings, in_order())
            blocks = in_order(whole=kind.whole_batches)
            state, tracking, counts, _ = step(self.settings, state, None, blocks, 0)
            check_any_row(counts)
            if not self.settings.forgets and getattr(source, "noise", None) is None:
                state = state.with_scores_of(source)  # residuals say more than the innovations of the first rows
        else:
            settings = self.settings.with_alpha("auto") if self.settings.chooses_alpha else self.settings
            state, counts = fitted(settings, source, self.state if refine else None)
            reason = _NO_ORDER if kind.in_one_pass else _SEVERAL_PASSES
            none = Tracking.none(state.core.targets, reason, self.settings.likelihood)
            tracking = self.stream.tracking if refine else none
        self.gaps, self.pending = gaps, None
        self.stream.keep(state, tracking, fresh=True)
        if self.settings.chooses_alpha:
            self.settings = state.settings
        self.stream.settings = self.settings
        self.stream.n_rows, self.n_rejected, self.merged = counts.good, counts.bad, np.empty((0, SIZE))
        return counts

    def learn(self, batch: Block | ArraySource, settings: Settings | None = None, call: Call = PLAIN) -> Made | None:
        """Learn a batch of rows in addition to those learned before; `settings`, if given, replace the current ones.

        Returns the mean and the std of each row as they are predicted from all rows before it, if the call asks for
        them. A row that cannot be predicted, such as the first of all, has an infinite std.
        """
        known = self.settings
        if settings is not None or batch.groups is not None:
            known = settings_for(known, settings, fitted=self.is_fitted, clusters=batch.groups is not None)
        if known.fills_gaps:
            self.stream, self.gaps, made = learn_with_gaps(self.stream, self.gaps, batch, known, call)
        else:
            made = self.stream.step(batch, known, call)
        self.settings = known
        return made

    def configure(self, settings: Settings) -> None:
        """Replace the settings, under which the rows learned so far are also interpreted from now on."""
        settings = settings_for(self.settings, settings, fitted=self.is_fitted)
        self.stream.configure(settings)
        self.settings = settings

    def add_features(self, more: int) -> None:
        """Go on with more features, which were 0 in all rows so far and come after the others. O(d^3).

        Change points are looked for anew from here on, if they are.
        """
        if self.is_fitted:
            state, tracking = self.stream.after_rows()
            after = state.with_features(more)
            self.stream.keep(after, tracking.with_features(self.settings, after.belief.coef.shape[-1]), fresh=True)
            self.gaps = grown(self.gaps, more)
            self.pending = None if self.pending is None else self.pending.with_features(more)

    def add_class(self, settings: Settings) -> None:
        """Go on with one more class, which no row had so far, under the settings of several classes.

        For what the rows say about it see `kalprox.learning.weak_prior`. The score of two classes is not that of
        several, and starts again.
        """
        state, tracking = self.stream.after_rows()
        after = state.with_class(settings)
        if settings.changed(self.settings):
            tracking = Tracking.none(None, _FIRST_CLASSES if settings.diagnose else NOT_ASKED, settings.likelihood)
        self.settings = self.stream.settings = settings
        self.stream.keep(after, tracking, fresh=True)

    def merge(self, other: "Learner", *, allow_overlap: bool = False) -> None:
        """Add the rows that another learner has learned. Exact for exact beliefs; O(d^3).

        Raise a ValueError if both have learned the same rows, or one was merged from a model of the rows of the other;
        with `allow_overlap` these rows count twice.
        """
        check_alike(self.settings, other.settings)
        state, both = self.state.merge(other.state), (self, other)
        own = [one.state.core.fingerprint[None] for one in both]
        if not allow_overlap:
            check_apart(*(np.concatenate([own[i], one.merged]) for i, one in enumerate(both)))
        merged = np.concatenate([one.merged if len(one.merged) else own[i] for i, one in enumerate(both)])
        gaps = [one.gaps for one in both]
        if any(one.moments is not None for one in gaps):  # else the information has those of all rows
            gaps = [replace(one.gaps, moments=GapReader.of(one.state, one.gaps, one.settings).moments) for one in both]
        account, pending = gaps[0].merge(gaps[1]), PendingRows.merged(self.pending, other.pending)
        if distance := state.belief.merge_distance:
            warnings.warn(doubt_of_merge(distance), ApproximateMerge, stacklevel=3)
        self.stream.keep(state, self.stream.tracking.merge(other.stream.tracking))
        self.gaps, self.pending = account, pending
        self.stream.n_rows += other.n_rows
        self.n_rejected += other.n_rejected
        self.merged = merged[np.lexsort(merged.T)]  # the same whichever was merged into the other

    def release_rows(self) -> None:
        """Fold the rows that are held, so that no value of a row is left in the state, unless there is but one row.

        Raise a ValueError during a warm-up, which cannot do without its rows, and if rows wait for their target.
        """
        if self.pending:
            raise ValueError(
                worded(
                    f"{len(self.pending)} row(s) wait for their target and are held as they came. Give their targets "
                    "first, or allow the file to have rows ({samples=True|leave --no-samples out})."
                )
            )
        self.stream.release_rows()
        self.gaps = replace(self.gaps, held=None)

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Whether any row has been learned."""
        return self.stream.folded is not None

    @property
    def n_rows(self) -> int:
        """The number of rows learned, of positive weight."""
        return self.stream.n_rows

    @property
    def state(self) -> State:
        """The state after all rows, which says what its `belief` is."""
        return self.stream.state

    @property
    def belief(self) -> Belief:
        """The belief after all rows."""
        return self.stream.state.belief

    @property
    def score(self) -> Calibration:
        """The prequential score: that of the rows that were predicted before they were learned."""
        score = self.stream.tracking.score
        if not isinstance(score, ClassCalibration) or self.settings.forgets or not float(score.rows) > 0:
            return score
        return replace(score, pull=pull_of_penalty(self.belief))

    def conformal_ends(self, level: float) -> tuple[Array, Array]:
        """Return how many stds a conformal interval extends below and above the mean."""
        check(self.settings, way="conformal")
        quantiles = self.stream.quantiles
        if quantiles.rows == 0:
            raise ValueError(
                "Conformal intervals need rows that were predicted before they were learned, and there are none: use "
                "diagnose=True, and partial_fit, or fit of a linear model without an engine."
            )
        return quantiles.of(level)

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        """Return the solution for each alpha; see `Belief.path`. The source has all rows learned, if it is needed."""
        if source is not None and self.settings.fills_gaps:
            source, _ = completed_source(source, self.settings)
        check(self.settings, way="path")
        check(self.settings, way="path without rows" if source is None else "path of rows")
        return self.state.core.path(alphas, source)

    def mean(self, X: Any) -> Array:
        """Return the predictive means for rows of X."""
        if self.settings.fills_gaps and _has_gaps(X):
            return GapReader.of(self.state, self.gaps, self.settings).mean(X)
        live = self.stream.live(X)
        return self.belief.mean(X) if live is None else live.mean(X)

    def predict(self, X: Array, sigma: Any = None, offset: Array | None = None, *, alone: bool = True) -> Predictive:
        """Return the predictive distribution for rows of X, including the noise of relative std `sigma` (default 1).

        The offsets must be given if the rows that were learned had them. `alone` is False if these are some of the rows
        to predict.
        """
        if self.settings.fills_gaps and _has_gaps(X):
            return GapReader.of(self.state, self.gaps, self.settings).predict(X, sigma, offset)
        live = self.stream.live(X, alone=alone, offsets=offset is not None) if sigma is None else None
        if live is None:
            return self.belief.predict(X, sigma, offset)
        found: Predictive = live.predict(X) if offset is None else live.predict(X, offset)
        return found

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
        has_gaps = self.settings.fills_gaps and _has_gaps(X)
        if live and not has_gaps and sigma is None and time is None and isinstance(X, np.ndarray):
            row_filter = self.stream.live(X, alone=alone, offsets=offsets)
            if row_filter is not None:
                return row_filter.copy()
        state = self.state if time is None else self.state.ahead(time)
        return GapReader.of(state, self.gaps, self.settings) if has_gaps else state.belief

    def copy(self) -> "Learner":
        """Return an independent copy."""
        new = object.__new__(Learner)
        new.__dict__ |= self.__dict__
        new.stream, new.pending = self.stream.copy(), None if self.pending is None else self.pending.copy()
        return new


def _has_gaps(X: Any) -> bool:
    """Whether features are missing in some rows of X."""
    return isinstance(X, np.ndarray) and bool(np.isnan(X).any())
