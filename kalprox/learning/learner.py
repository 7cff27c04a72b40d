"""The learner: the mutable object behind estimators and jobs, which rows update."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, expect, grown, is_count
from kalprox.calibration import Calibration, Verdict
from kalprox.calibration.classes import Probabilities
from kalprox.learning.belief import Belief
from kalprox.learning.buffered import Buffered, Made
from kalprox.learning.compose import fitted, kind_of, started
from kalprox.learning.doubts import ApproximateMerge, doubt_of_merge, pull_of_penalty
from kalprox.learning.fingerprint import SIZE, overlap
from kalprox.learning.gapped import Gapped, completed_source
from kalprox.learning.gaps import Gaps
from kalprox.learning.path import Path
from kalprox.learning.pending import PendingRows
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.rules import check
from kalprox.learning.sandwich import NEEDS_GROUPS
from kalprox.learning.settings import Settings
from kalprox.learning.state import State, check_any_row
from kalprox.learning.step import NOT_ASKED, PLAIN, Call, step
from kalprox.learning.tracking import Tracking
from kalprox.noise import Noise
from kalprox.predictive import Predictive
from kalprox.sources import ArraySource, Block, Counts, Source

__all__ = ["Learner"]

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
    n_rejected : int
        The number of rows rejected.
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
        self.settings, self.n_rejected = settings, 0
        self.pending: PendingRows | None = None
        self._gapped = Gapped(settings)
        self._merged = np.empty((0, SIZE))  # the fingerprints of the models that were merged into this one

    @property
    def _stream(self) -> Buffered:
        return self._gapped.inner

    @property
    def n_rows(self) -> int:
        """The number of rows learned, of positive weight."""
        return self._gapped.inner.n_rows

    @property
    def gaps(self) -> Gaps:
        """The account of missing features and targets."""
        return self._gapped.gaps

    @gaps.setter
    def gaps(self, gaps: Gaps) -> None:
        self._gapped.gaps = gaps

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
            tracking = self.tracking if refine else Tracking.none(state.core.targets, reason, self.settings.likelihood)
        self._gapped.gaps, self.pending = gaps, None
        self._stream.keep(state, tracking, fresh=True)
        if self.settings.chooses_alpha:
            self.settings = state.settings
        self._stream.settings = self.settings
        self._stream.n_rows, self.n_rejected, self._merged = counts.good, counts.bad, np.empty((0, SIZE))
        return counts

    def learn(self, batch: Block | ArraySource, settings: Settings | None = None, call: Call = PLAIN) -> Made | None:
        """Learn a batch of rows in addition to those learned before; `settings`, if given, replace the current ones.

        Returns the mean and the std of each row as they are predicted from all rows before it, if the call asks for
        them. A row that cannot be predicted, such as the first of all, has an infinite std.
        """
        known = self.settings if settings is None and batch.groups is None else self._known(settings, batch.groups)
        found = self._gapped.step(batch, known, call)
        self.settings = known
        return found

    def prequential(self, batch: Block, known: Array, settings: Settings | None = None) -> Made:
        """Learn the rows whose targets are `known`, and predict all of them, one run of rows after the other."""
        learner, call = self.copy(), Call(every_row=True)
        mean, std = np.full(batch.y.shape, np.nan), np.full(batch.y.shape, np.inf)
        ends = [*(np.flatnonzero(np.diff(known)) + 1).tolist(), len(batch)]
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            part = batch.part(start, stop)
            if known[start]:
                made = learner.learn(part, settings, call)
                assert made is not None
                mean[start:stop], std[start:stop] = made
            elif learner.is_fitted:
                step = len(part) if learner.belief.predicts else 1  # a filter of single rows predicts in a warm-up, too
                for i in range(start, stop, step):
                    some = batch.part(i, i + step)
                    live = learner._stream.live(some.X, offsets=some.offset is not None)
                    if step > 1 or learner.belief.predicts or live is not None:
                        found = learner.predict(some.X, offset=some.offset)
                        mean[i : i + step], std[i : i + step] = found.mean, found.std
        self.__dict__ = learner.__dict__
        return mean, std

    def _known(self, settings: Settings | None, groups: Array | None = None) -> Settings:
        """Return the settings for a batch with these clusters, or None.

        They are the current ones if they are equal to them: an unpickled model has other objects for the same.
        """
        known = settings is None or settings is self.settings or not settings.changed(self.settings)
        if settings is None or known:
            found = self.settings
        elif settings.awaits_alpha and self.is_fitted and self.settings.chooses_alpha:
            found = settings.with_alpha(self.settings.alpha)
        else:
            found = settings
            if self.is_fitted:
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

    def configure(self, settings: Settings) -> None:
        """Replace the settings, under which the rows learned so far are also interpreted from now on."""
        settings = self._known(settings)
        self._stream.configure(settings)
        self.settings = settings

    def add_features(self, more: int) -> None:
        """Go on with more features, which were 0 in all rows so far and come after the others. O(d^3).

        Change points are looked for anew from here on, if they are.
        """
        if self.is_fitted:
            state, tracking = self._stream.after_rows()
            after = state.with_features(more)
            self._stream.keep(after, tracking.with_features(self.settings, after.belief.coef.shape[-1]), fresh=True)
            self.gaps = grown(self.gaps, more)
            self.pending = None if self.pending is None else self.pending.with_features(more)

    def add_class(self, settings: Settings) -> None:
        """Go on with one more class, which no row had so far, under the settings of several classes.

        For what the rows say about it see `kalprox.learning.new_class`. The score of two classes is not that of
        several, and starts again.
        """
        state, tracking = self._stream.after_rows()
        after = state.with_class(settings)
        if settings.changed(self.settings):
            tracking = Tracking.none(None, _FIRST_CLASSES if settings.diagnose else NOT_ASKED, settings.likelihood)
        self.settings = self._stream.settings = settings
        self._stream.keep(after, tracking, fresh=True)

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
        if self.settings.alpha != other.settings.alpha:
            raise ValueError(
                "merge needs two models with the same alpha; alpha='auto' has chosen "
                f"{self.settings.alpha:.4g} and {other.settings.alpha:.4g}. Give one number to both."
            )
        check(self.settings, way="merge")
        state = self.state.merge(other.state)
        mine, theirs = self._fingerprints, other._fingerprints
        if not allow_overlap and overlap(mine, theirs):
            raise ValueError(
                "The models have rows in common: both have learned the same rows, or one of them was merged from a "
                "model of rows that the other has, too. Merge models of different rows, or set allow_overlap=True "
                "(--allow-overlap on the command line) if these rows are to count twice."
            )
        merged = np.concatenate([one if len(one) == 1 else one[1:] for one in (mine, theirs)])
        gaps, pending = self._merged_gaps(other), PendingRows.merged(self.pending, other.pending)
        if distance := state.belief.merge_distance:
            warnings.warn(doubt_of_merge(distance), ApproximateMerge, stacklevel=3)
        self._stream.keep(state, self.tracking.merge(other.tracking))
        self._gapped.gaps, self.pending = gaps, pending
        self._stream.n_rows += other.n_rows
        self.n_rejected += other.n_rejected
        self._merged = merged[np.lexsort(merged.T)]  # the same whichever was merged into the other

    @property
    def _fingerprints(self) -> Array:
        """The fingerprint of all rows, and those of the models that were merged."""
        return np.concatenate([self.state.core.fingerprint[None], self._merged])

    def _merged_gaps(self, other: "Learner") -> Gaps:
        """Return the account of gaps of both, with the moments of all rows unless the information has them."""
        if all(one.gaps.moments is None for one in (self, other)):
            return self.gaps.merge(other.gaps)
        mine, theirs = (replace(one.gaps, moments=one._gapped.moments()) for one in (self, other))
        return mine.merge(theirs)

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def std_doubt(self) -> str:
        """Why standard errors of coefficients may be too small, in a sentence; empty if nothing is known of it."""
        return self.settings.std_doubt or self.belief.std_doubt or self.gaps.std_doubt(self.n_rows)

    @property
    def structure_doubt(self) -> str:
        """What a structure drops, as of the last fold, in a sentence; empty if that is nothing."""
        return "" if not self.is_fitted or self.settings.structure is None else self._stream.std_doubt

    @property
    def is_fitted(self) -> bool:
        """Whether any row has been learned."""
        return self._gapped.inner.folded is not None

    @property
    def noise(self) -> Noise:
        """The noise variance used in predictions, and its degrees of freedom."""
        live = self._stream.followed()
        return self.belief.noise if live is None else Noise(*map(np.asarray, live.noise()))

    @property
    def belief(self) -> Belief:
        """The belief after all rows."""
        return self.state.belief

    @property
    def state(self) -> State:
        """The state after all rows, which says what its `belief` is."""
        return self._gapped.inner.state

    def belief_at(self, time: float | None) -> Belief:
        """Return what is known at a time, not before that of the last row; if None, after the last row."""
        return self.belief if time is None else self.state.with_core(lambda core: core.ahead(time)).belief

    @property
    def tracking(self) -> Tracking:
        """The score and the quantiles after all rows."""
        return self._gapped.inner.tracking

    @property
    def quantiles(self) -> Quantiles:
        """The tracked quantiles of conformal intervals after all rows."""
        return self._gapped.inner.quantiles

    @property
    def score(self) -> Calibration:
        """The prequential score: that of the rows that were predicted before they were learned."""
        score = self.tracking.score
        if not isinstance(score, Probabilities) or self.settings.forgets or not float(score.rows) > 0:
            return score
        return replace(score, pull=pull_of_penalty(self.belief))

    def verdict(self) -> Verdict:
        """Return the verdict on the score; the rows of a model that forgets or looks for changes are in time order."""
        in_time = self.settings.forgets or self.settings.change_points is not None
        return self.score.verdict()._replace(in_time=in_time)

    def conformal_ends(self, level: float) -> tuple[Array, Array]:
        """Return how many stds a conformal interval extends below and above the mean."""
        quantiles = self._stream.quantiles
        check(self.settings, way="conformal")
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
        if self.settings.fills_gaps and self._has_gaps(X):
            return self._gapped.reader().mean(X)
        live = self._gapped.inner.live(X)
        return self.belief.mean(X) if live is None else live.mean(X)

    def predict(self, X: Array, sigma: Any = None, offset: Array | None = None, *, alone: bool = True) -> Predictive:
        """Return the predictive distribution for rows of X, including the noise of relative std `sigma` (default 1).

        The offsets must be given if the rows that were learned had them. `alone` is False if these are some of the rows
        to predict.
        """
        if self._has_gaps(X):
            return self._gapped.reader().predict(X, sigma, offset)
        live = self._stream.live(X, alone=alone, offsets=offset is not None) if sigma is None else None
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
            return self._gapped.reader(time)
        live = live and sigma is None and time is None and isinstance(X, np.ndarray)
        found = self._stream.live(X, alone=alone, offsets=offsets) if live else None
        if found is not None:
            return found.copy()
        return self.belief_at(time)

    def _has_gaps(self, X: Any) -> bool:
        """Whether features are missing in some rows of X, and may be."""
        return self.settings.fills_gaps and isinstance(X, np.ndarray) and bool(np.isnan(X).any())

    # ---- saving ----------------------------------------------------------------------------------------

    @property
    def n_held(self) -> int:
        """The number of rows that are held as they came, and that a model file would hold too."""
        return self._stream.n_held + self.gaps.n_held + (0 if self.pending is None else len(self.pending))

    def release_rows(self) -> None:
        """Fold the rows that are held, so that no value of a row is left in the state, unless there is but one row.

        Raise a ValueError during a warm-up, which cannot do without its rows, and if rows wait for their target.
        """
        if self.pending:
            raise ValueError(
                f"{len(self.pending)} row(s) wait for their target and are held as they came. Give their targets "
                "first, or allow the file to have rows (samples=True)."
            )
        self._stream.release_rows()
        self.gaps = replace(self.gaps, held=None)

    def saved(self) -> dict[str, Any]:
        """Return the state of the learner as values that can be saved; see `kalprox.base.tree`."""
        found = self._stream.saved()
        if len(self._merged):
            found["merged"] = self._merged
        if self.settings.fills_gaps or self.gaps.unlabelled:
            found["gaps"] = self.gaps
        if self.pending is not None:
            found["pending"] = self.pending.saved()
        if self.settings.chooses_alpha and not self.settings.is_exact:
            found["alpha"] = np.array(self.settings.alpha)
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
        sizes: dict[str, int | None] = {name: saved.header[f"sizes.{name}"] for name in ("k", "o", "p")}
        expect(saved.count("sizes.d") == d and is_count(sizes["p"]))
        expect(all(sizes[name] is None or is_count(sizes[name]) for name in ("k", "o")))
        sizes["d"] = d
        learner = cls(settings)
        learner._gapped.inner = Buffered.restored(settings, saved, sizes)
        if "gaps" in saved:
            learner.gaps = saved.tree(Gaps, "gaps", sizes)
        if "merged" in saved:
            learner._merged = saved["merged"]
            expect(learner._merged.ndim == 2 and learner._merged.shape[1] == SIZE and len(learner._merged))
            expect(np.isfinite(learner._merged).all())
        if "pending" in saved:
            learner.pending = PendingRows.restored(d, saved)
        learner.n_rejected = saved.count("n_rejected")
        return learner

    def copy(self) -> "Learner":
        """Return an independent copy."""
        new = object.__new__(Learner)
        new.__dict__ |= self.__dict__
        new._gapped = self._gapped.copy()
        new.pending = None if self.pending is None else self.pending.copy()
        return new
