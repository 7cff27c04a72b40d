"""The belief of a nonlinear model: a state of the proximal filter, reached by streaming or by refinement."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial, reduce
from operator import add
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from kalprox._arrays import Array
from kalprox.algorithms.parameters import learned_by
from kalprox.algorithms.proximal_filter import (
    ProximalState,
    has_moved,
    later,
    prediction_errors,
    proximal_filter,
    take_matched,
    with_prior,
)
from kalprox.algorithms.refine import refine
from kalprox.algorithms.warmup import HeldRows, skew_of
from kalprox.base.tree import Saved, Sizes, expect, grown, leaf, state
from kalprox.information import Information, merge
from kalprox.learning.belief import Belief, check_any_row, refuse_scores
from kalprox.learning.design import Design, DesignedSource, Moments
from kalprox.learning.fingerprint import SIZE, of_moments
from kalprox.learning.innovations import Innovations, SquareRootFilter, in_stds, may_overflow
from kalprox.learning.laplace import fit_with_chosen_alpha
from kalprox.learning.matching_filter import ClassFilter, MatchingFilter, followed, spread
from kalprox.learning.merging import change, distance, in_coordinates, likely_rows
from kalprox.learning.path import Path
from kalprox.learning.refined_path import refined_path
from kalprox.learning.rules import check
from kalprox.learning.sandwich import UNNAMED, Sandwich, moved, next_unnamed, row_scores
from kalprox.learning.separation import SEPARATED, SeparationWarning, is_separated
from kalprox.learning.settings import Settings
from kalprox.learning.targets import Seen, check_targets
from kalprox.learning.weak_prior import (
    Columns,
    coef_regularizer,
    coefficients_sum_to_zero,
    first_theta,
    sums_to_zero,
    weak_prior,
    weak_root,
)
from kalprox.likelihoods import Categorical
from kalprox.noise import Noise
from kalprox.posterior import InformationPosterior, Posterior
from kalprox.regularizers import Regularizer, Zero
from kalprox.solvers.curvature import diagonal_curvature
from kalprox.sources import ArraySource, Block, Counts, Source
from kalprox.sources.forgetting import faded
from kalprox.sources.times import check_later, in_order
from kalprox.sources.weighting import counts_of

__all__ = ["FilteredBelief", "contrasts", "refuse_changes"]

_FEW = 256  # coefficients of a filter that predicts the rows of a warm-up, which takes them one by one
_REPEATED = 8  # times the rows of a batch that it may have to learn again
_APART = 0.1  # standard errors from the minimiser, which the rows of a batch may add unsaid
_MANY = 10  # rows of the rarest class of a warm-up for each input, that may be said to be separated
_SMALL = 0.01  # the share of events by which the skewness of the posterior may change their expected number unheeded
_WIDE = 1.0  # the variance of an output above which its prediction is not judged
# What cannot change after the first row.
_FIXED = ("link", "likelihood", "fit_intercept", "standardize", "weights")


@state
class FilteredBelief(Belief):
    """The state of the proximal filter, in the coordinates of a design that the rows of the warm-up fixed.

    A stream has a weak prior on the scale of the linear predictor; see `kalprox.learning.weak_prior`. The prior is that
    of all rows so far, and the design is centred at the mean of all rows held when they are checked, so that neither
    depends on how the first rows are cut into batches.
    """

    state: ProximalState
    fixed: Design
    seen: Seen | None = None  # None without a weak prior: for a function, after `fit`, and in files of version 0.1
    n_passes: int = 1
    fit_converged: bool = True
    fit_message: str = leaf(default="", given=True)
    # The standard deviations of the rows of `fit`, which `seen` does not summarise.
    fit_column_std: Array | None = leaf("d", sign="nonnegative", default=None)
    fit_outside: float = 0.0
    merge_distance: float = 0.0  # about how many standard errors merges have left the estimate from the minimiser
    columns: Columns | None = None  # on which the weak prior rests; see `Columns`
    held_groups: tuple[str, ...] = ()  # the cluster of each row of the warm-up; "" for those of an unnamed batch

    in_one_pass: ClassVar[bool] = False

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "FilteredBelief":
        design, seen = Design(), None
        if isinstance(settings.link, str):
            blocks = list(blocks)
            moments = first_moments(settings, blocks)
            about: dict[str, Any] = {"intercept": settings.fit_intercept, "standardize": False}
            about |= {"outputs": _outputs(blocks[0]), "row_offsets": blocks[0].offset is not None}
            design = Design.of_moments(moments, **about)
            seen = Seen.nothing(len(moments.mean))
        state = _filter(settings, design).init(first_theta(settings, design), None)
        return cls(settings, state, design, seen)

    @classmethod
    def fit(
        cls, settings: Settings, source: Source, start: "FilteredBelief | None" = None
    ) -> tuple["FilteredBelief", Counts]:
        """Refine to a stationary point of the objective, after one pass for the means of X.

        One more pass sums the scores, if `coef_cov` needs them. The search begins at the estimate of `start`, if given.
        With alpha="auto" there is a search for each of a few alphas; see `kalprox.learning.laplace`.
        """
        if settings.penalty.alpha == "auto":
            return fit_with_chosen_alpha(cls.fit, settings, source, _faded(settings, source), start)
        time = None
        if settings.by_time and hasattr(source, "faded"):
            time = float(in_order(source.times, None, source.weights)[-1])  # type: ignore[attr-defined]
        source = _faded(settings, source)
        folded = source.fold(partial(Seen.of, settings))
        check_any_row(folded.counts)
        assert folded.total is not None
        check_targets(settings, folded.total.y, folded.total.y, source)
        design = Design()
        if isinstance(settings.link, str):
            about: dict[str, Any] = {"intercept": settings.fit_intercept, "standardize": settings.standardize}
            about |= {"outputs": folded.total.y.outputs, "row_offsets": folded.total.offsets > 0}
            design = Design.of_moments(folded.total.X, **about)
        g = coef_regularizer(settings, design)
        first = first_theta(settings, design) if start is None else start._estimate_in(design)
        options: dict[str, Any] = {"gamma": settings.gamma, "max_passes": settings.max_passes, "tol": settings.tol}
        options |= {"weights": settings.weights, "likelihood": settings.likelihood}
        prior = sums_to_zero(settings, design, folded.total.X)
        model, rows = design.model(settings.model(design.outputs)), DesignedSource(source, design)
        out = refine(model, g, rows, first, prior=prior, **options)
        state = _filter(settings, design).init(out.mean, None)
        state = replace(state, data=out.information, estimate=out.mean, held=None, prior=prior or state.prior)
        state = replace(state, learned=learned_by(out), time=time)
        if out.converged and _has_few_events(state.posterior, design):
            state = replace(state, skew=skew_of(model, state.posterior, rows))
        message = out.message
        if not out.converged and settings.likelihood.support == (0.0, np.inf) and not folded.total.y.high > 0:
            message = (
                "All counts are zero: the intercept runs to minus infinity, and the standard errors say nothing. Fit "
                "rows with events in them."
            )
        X, named = folded.total.X, isinstance(settings.link, str)
        std = np.sqrt(X.squares / X.rows) if named else None
        belief = cls(settings, state, design, None, out.passes, out.converged, message, std, folded.total.y.outside)
        return replace(belief, time=time).with_scores_of(source), folded.counts

    def learn(self, block: Block) -> "FilteredBelief":
        """Take one step of the filter, which linearises the block at the current belief once the warm-up has ended."""
        if block.count == 0:
            return self
        if block.weights is None:
            block = replace(block, weights=np.ones(len(block)))
        new = Seen.of(self.settings, block)
        seen = new if self.seen is None else self.seen + new
        check_targets(self.settings, seen.y, new.y, block)
        belief = self if self.seen is None else self._with_seen(seen, block)
        step = _filter(self.settings, belief.fixed, warmup=belief.state.problem.warmup).step
        inputs = belief.fixed.block(block)
        if block.times is not None and not self.settings.by_time:
            check(self.settings, way="times")
        state = step(belief.state, inputs.X, inputs.y, inputs.weights, block.times)
        if belief.columns is not None and self.state.held is not None and state.held is None:
            prior = weak_prior(self.settings, belief.fixed, seen, belief.columns, _noise_of(state))
            state = with_prior(state, prior)
        about: dict[str, Any] = {"sandwich": self._faded_sandwich(block), "time": state.time}
        about["held_groups"] = self._groups_with(block)
        after = replace(belief, state=state, **about)
        if self.state.held is not None or state.cut_short:
            after = replace(after, fit_message=after._of_stream)
        if self.state.held is None or state.held is not None or self.settings.coef_cov == "model":
            return after._warned(self)
        return after._with_scores_of_held(block, self.held_rows())._warned(self)

    @property
    def _of_stream(self) -> str:
        """Why the rows of a stream do not determine the coefficients well; empty if they do."""
        held = self.state.held
        if self.state.cut_short:
            return (
                "The stream can hold no more rows, and those held did not determine the coefficients well: they were "
                "linearised for good, and the estimate may be wrong and over-confident. Call refine with all rows."
            )
        if held is None or held.settled or self._convex:
            return ""
        return (
            f"The warm-up of the stream has not ended: the {held.rows} rows held so far do not determine the "
            "coefficients well, and the estimate may be far off. Learn more rows, or use fit."
        )

    def _groups_with(self, block: Block) -> tuple[str, ...]:
        """Return the clusters of the rows that are held, and of a block that is held, too."""
        if self.state.held is None or self.settings.coef_cov != "clustered":
            return ()
        return self.held_groups + (("",) * len(block) if block.groups is None else tuple(block.groups.tolist()))

    def _with_scores_of_held(self, *blocks: Block | None) -> "FilteredBelief":
        """Return this belief with the scores of the rows of its warm-up, from their residuals at the estimate."""
        parts = [one for one in reversed(blocks) if one is not None]
        names = ("X", "y", "weights", "offset", "times")
        rows: dict[str, Any] = {
            name: None if getattr(parts[0], name) is None else np.concatenate([getattr(one, name) for one in parts])
            for name in names
        }
        groups = np.array(self.held_groups) if self.held_groups else None
        scored = self.with_scores_of(_faded(self.settings, ArraySource(**rows, groups=groups)))
        return replace(scored, sandwich=scored.sandwich and scored.sandwich.with_open_batch(), held_groups=())

    def closed(self) -> "FilteredBelief":
        """Return the belief after a batch; its rows without a label that are held are a cluster of their own."""
        name = f"{UNNAMED}{next_unnamed(self.held_groups)}"
        groups = tuple(name if one == "" else one for one in self.held_groups)
        return replace(super().closed(), held_groups=groups) if groups != self.held_groups else super().closed()

    def observing(self, block: Block, found: Innovations, before: Belief) -> "FilteredBelief":
        """Return this belief with the scores of a piece; those of a warm-up are summed when it ends."""
        assert isinstance(before, FilteredBelief)
        return self if before.state.held is not None else super().observing(block, found, before)

    def _faded_sandwich(self, block: Block) -> Sandwich | None:
        """Return the scores of the rows learned so far with the weight that a block leaves them."""
        settings = self.settings
        if self.sandwich is None or not settings.forgets or block.weights is None:
            return self.sandwich
        times, counts = self._times(block, self.time), counts_of(block.weights, settings.weights)
        left = faded(block.weights, settings.forgetting, counts, times, self.time)[-1]
        return self.sandwich if left is None else self.sandwich.forget(float(left))

    # ---- single rows -----------------------------------------------------------------------------------

    @property
    def matches_rows(self) -> bool:
        """Whether single rows are learned by moment matching, and exactly so by a filter that is updated in place.

        The model must be linear, with one output or with one for each class, the loss not quadratic, and without a
        parameter or a noise variance that is learned, the penalty quadratic, and no row forgotten.
        """
        settings, design = self.settings, self.fixed
        loss, named = settings.likelihood, isinstance(settings.link, str) and settings.link == "identity"
        if not named or loss.quadratic or loss.learns or loss.learns_noise:
            return False
        if loss.interacts is not isinstance(loss, Categorical) or loss.interacts is (design.outputs is None):
            return False
        if settings.forgets or settings.coef_cov == "clustered":
            return False
        if not np.all(design.scale == 1):
            return False
        g, size = self.state.problem.regularizer, design.size
        return diagonal_curvature(g, size) is not None or g.root(size) is not None

    @property
    def is_fresh(self) -> bool:
        """Whether the rows of a warm-up have not been checked yet, so that they are held and nothing else is known."""
        return self.state.held is not None and not np.any(self.state.data.T)

    def row_filter(self) -> MatchingFilter | ClassFilter | None:
        """Return a filter of single rows that continues from this belief; None if a coefficient is undetermined.

        In a warm-up that has had no check, it learns the rows held, which need not be refined then.
        """
        state, fresh = self.state, self.is_fresh
        posterior = self._before_rows() if fresh else state.posterior
        if not posterior.proper or posterior.metric_factors[0].free is not None or posterior.noise.variance != 1:
            return None
        design, loss = replace(self.fixed, row_offsets=False), self.settings.likelihood
        assert design.center is not None
        at_zero = replace(design, center=np.zeros(len(design.center)), intercept=False)
        inputs = design.size // (design.outputs or 1)
        root = replace(SquareRootFilter.of(posterior, at_zero, 1.0), row=np.ones(inputs))
        root.theta += posterior.expected - posterior.mean
        offsets = self.fixed.row_offsets
        made = ClassFilter(root, loss) if isinstance(loss, Categorical) else MatchingFilter(root, loss, offsets)
        if fresh and state.held is not None and state.held.rows:
            X, y, weights = (np.concatenate(a) for a in (state.held.X, state.held.y, state.held.weights))
            X, added = (X[:, :-1], X[:, -1]) if offsets else (X, None)
            if followed(made, X, y, weights, added) is None:
                return None
        root.design = design
        return made

    def scored(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple["FilteredBelief", Innovations]:
        """Return the belief after a piece, and its innovations; in a warm-up, those of single rows where they are few.

        A filter of single rows can predict what the rows held determine badly: it averages over all that they allow.
        """
        held, live = self.state.held, None
        if known and held is not None and not held.settled and self.matches_rows and self.fixed.size <= _FEW:
            repeats = held.rows if self.is_fresh else 0  # rows that a new filter has to learn again
            live = self.row_filter() if repeats <= _REPEATED * len(block) and not may_overflow(block) else None
        if live is None:
            return super().scored(block, known=known, exact=exact)
        after = self.learn(block)
        before = live.predict(block.X, **({} if block.offset is None else {"offset": block.offset}))
        matched = followed(live, block.X, block.y, block.weights, block.offset)
        if matched is None:
            return after, Innovations.unknown(block.y)
        found = self.matched_innovations(block.y, matched, all_rows=exact)
        issued = in_stds(block.y - before.mean, before.std)
        return after, found._replace(issued=np.where(np.isnan(found.issued), np.nan, issued))

    def _before_rows(self) -> InformationPosterior:
        """Return the posterior that the prior and the penalty give without any rows."""
        p, state = self.state.problem, self.state
        return InformationPosterior(
            state.data, p.regularizer, gamma=p.gamma, prior=state.prior, start=state.estimate, likelihood=p.likelihood
        )

    def learn_matched(self, block: Block, matched: Array) -> "FilteredBelief":
        """Take the rows that a filter of single rows has learned since this belief; see `take_matched`.

        In the warm-up they are held like others, and checked if they have moved the filter far.
        """
        if self.state.held is not None:
            held = self.state.held.to_check() if self.has_moved(block, matched) else self.state.held
            return replace(self, state=replace(self.state, held=held)).learn(block)
        block = block if block.weights is not None else replace(block, weights=np.ones(len(block)))
        belief = self
        if self.seen is not None:
            belief = self._with_seen(self.seen + Seen.of(self.settings, block), block)
        after = replace(belief, state=take_matched(belief.state, belief.fixed.block(block), matched))
        if self.settings.coef_cov != "model":
            after = after._with_matched_scores(block, matched)
        return after._warned(self)

    def has_moved(self, block: Block, matched: Array) -> bool:
        """Whether a filter of single rows has moved far from where the rows of a warm-up were linearised."""
        if self.state.held is None or self.is_fresh:
            return False
        X, posterior = self.fixed.block(block).X, self.state.posterior
        f = matched[:, : self.fixed.outputs or 1].reshape(block.y.shape)
        if posterior.expected is not posterior.mean:  # where the filter began, and rows are linearised at the mode
            f = f - self.model.linearize_rows(posterior.mean, X)[1] @ (posterior.expected - posterior.mean)
        return has_moved(self.state, X, f)

    def _warned(self, before: "FilteredBelief") -> "FilteredBelief":
        """Return this belief; warn if its rows are separated, and those before were not, or were few."""
        if self._separated and self._many and not (before._separated and before._many):
            warnings.warn(SEPARATED, SeparationWarning, stacklevel=5)
        return self

    def _with_matched_scores(self, block: Block, matched: Array) -> "FilteredBelief":
        """Return this belief with the scores of rows, from the outputs that were predicted before each of them."""
        m, inputs = self.fixed.outputs, self.fixed.rows(block.X, block.offset)
        D = self.model.linearize_rows(np.asarray(self.state.estimate), inputs)[1]  # the model is linear
        if m is None:
            f, leverage = matched[:, 0], matched[:, 1]
        else:
            S = matched[:, m : m + m * m].reshape(-1, m, m)
            f, leverage = matched[:, :m], np.diagonal(S, axis1=1, axis2=2)
        own = self.settings.relative_precision(block)
        D, u, _ = row_scores(self.settings.likelihood, block.y, f, D, leverage, own)
        sandwich = self.sandwich or Sandwich.zero(None, D.shape[1], None)
        return replace(self, sandwich=sandwich.after_rows(D, u, block.weights))

    def prediction_errors(self, block: Block) -> Array:
        """Return the errors of a block that this belief is about to learn, in standard deviations of its predictions.

        After the warm-up, with a robust likelihood; see `kalprox.algorithms.proximal_filter.prediction_errors`.
        """
        belief = self if self.seen is None else self._with_seen(self.seen + Seen.of(self.settings, block), block)
        return prediction_errors(belief.state, belief.fixed.block(block))

    def matched_innovations(self, y: Array, matched: Array, *, all_rows: bool = False) -> Innovations:
        """Return the innovations of rows that a filter of single rows has predicted and learned.

        Unless `all_rows` are wanted, those of rows whose output, or a difference of two, had a std above 1 are unknown:
        odds or rates that are uncertain by a factor of e depend on the penalty more than on the rows so far.
        """
        f, variance = matched[:, 0], matched[:, 1]
        widest = variance
        if (m := self.fixed.outputs) is not None:
            f, variance = matched[:, :m], matched[:, m : m + m * m].reshape(-1, m, m)
            widest = spread(variance)
        predicted = self.settings.likelihood.predict(f, variance, Noise.known(1.0))
        found = Innovations.of(y, predicted, predicted.std)._replace(together=1)
        wide = (widest > _WIDE).reshape(-1, *[1] * (y.ndim - 1))
        if all_rows or not wide.any():
            return found
        unknown = Innovations.unknown(y)
        names = ("mean", "std", "dof", "scale", "issued")
        return found._replace(**{name: np.where(wide, getattr(unknown, name), getattr(found, name)) for name in names})

    def _with_seen(self, seen: Seen, block: Block) -> "FilteredBelief":
        """Return the belief with the prior of all rows seen; and with their centre, if the block leads to a check."""
        state, design, held = self.state, self.fixed, self.state.held
        if design.intercept and held is not None and held.plus(design.block(block)).is_due(state.problem.warmup):
            theta = _at_center(seen.X.mean - design.center, design.outputs)
            held = held.moved(np.r_[0.0, seen.X.mean - design.center, [0.0] * design.row_offsets], theta)
            state = replace(state, estimate=theta(state.estimate), held=held)
            design = replace(design, center=seen.X.mean)
        noise_var = _noise_of(state) if held is None else np.inf
        if held is None:
            before = None if self.seen is None else self.seen.X
            columns = Columns.after(self.columns, before, seen.X, design)
        else:
            rows = self.held_rows()
            X = block.X if rows is None else np.concatenate([rows.X, block.X])
            columns = Columns.of(X, seen.X, design)
        state = replace(state, prior=weak_prior(self.settings, design, seen, columns, noise_var))
        return replace(self, state=state, fixed=design, seen=seen, columns=columns)

    def with_settings(self, settings: Settings) -> "FilteredBelief":
        """Return the same rows under another penalty or noise variance; earlier blocks are not linearised again."""
        refuse_changes(self.settings, settings)
        g = coef_regularizer(settings, self.fixed)
        if settings.by_time is not self.settings.by_time:
            raise ValueError("forget cannot become or cease to be ByTime between calls of partial_fit: use fit.")
        problem = replace(self.state.problem, regularizer=g, gamma=settings.gamma, forget=_forget(settings))
        return replace(self, settings=settings, state=replace(self.state, problem=problem))

    def ahead(self, time: float | None = None) -> "FilteredBelief":
        """Return what is known at a later time, if rows are forgotten by time."""
        if not self.settings.by_time:
            return super().ahead(time)
        if time is None or self.time is None or time == self.time:
            return self
        check_later(time, self.time)
        return replace(self, state=later(self.state, time), time=time)

    def with_features(self, more: int) -> "FilteredBelief":
        """Return the belief about more features, whose coefficients are at their prior. Linear models only.

        The rows held in a warm-up are checked when there are 10 for each coefficient.
        """
        check(self.settings, way="new features")
        if self.fixed.row_offsets:
            raise ValueError("New features came, and rows with an offset cannot have them: give all in every row.")
        belief = grown(self, more, self.fixed.outputs or 1)
        state, design = belief.state, belief.fixed
        first = _filter(self.settings, design).init(first_theta(self.settings, design), None)
        at = len(self.state.estimate)

        def started(theta: Array) -> Array:
            return np.append(theta[:at], np.asarray(first.estimate)[at:])

        held = state.held
        if held is not None:
            look = held.next_look if np.any(self.state.data.T) else HeldRows.none(held.start).next_look
            held = replace(held, start=started(held.start), origin=started(held.origin), next_look=look)
        state = replace(state, problem=first.problem, estimate=started(np.asarray(state.estimate)), held=held)
        if belief.seen is None or belief.columns is None:
            return replace(belief, state=state)
        noise_var = np.inf if held is not None else _noise_of(self.state)
        prior = weak_prior(self.settings, design, belief.seen, belief.columns, noise_var)
        return replace(belief, state=replace(state, prior=prior) if held is not None else with_prior(state, prior))

    def merge(self, other: Belief) -> "FilteredBelief":
        """Return the belief after the rows of both: approximate, see `kalprox.learning.merging` and `merge_distance`.

        The rows of a stream whose warm-up has not ended are learned by the other: if neither has, all of them together.
        """
        assert isinstance(other, FilteredBelief)  # whose settings are the same
        sizes = {(one.fixed.size, one.fixed.outputs, one.fixed.row_offsets) for one in (self, other)}
        if len(sizes) > 1:
            raise ValueError("merge needs two models of the same features and classes, with offsets or without.")
        if other.state.held is not None:
            return self._with_held(other)
        if self.state.held is not None:
            return other.merge(self)
        mine, theirs = self.state.posterior.data, other.state.posterior.data
        assert isinstance(mine, Information) and isinstance(theirs, Information)
        data = merge(mine, in_coordinates(theirs, other.fixed, self.fixed))
        learned = self.state.learned
        if learned is not None and other.state.learned is not None:
            learned = learned.merge(other.state.learned)
        cut_short, J = self.state.cut_short or other.state.cut_short, change(other.fixed, self.fixed)
        skew = _mean_skew((mine, self.state.skew, None), (theirs, other.state.skew, J))
        both = replace(self.state, data=data, extrapolating=None, learned=learned, cut_short=cut_short, skew=skew)
        seen = None if self.seen is None or other.seen is None else self.seen + other.seen
        state, columns = with_prior(both, self.state.prior), self.columns
        if seen is not None and self.columns is not None and other.columns is not None:
            columns = Columns(self.columns.middle, np.minimum(self.columns.spread, other.columns.spread))
            state = with_prior(both, weak_prior(self.settings, self.fixed, seen, columns, _noise_of(state)))
        parts = [(one._rows, one._estimate_in(self.fixed), self._like_rows_of(one)) for one in (self, other)]
        found = self.merge_distance + other.merge_distance
        if all(len(inputs) for _, _, inputs in parts):
            found += distance(self.model, state.likelihood, state.posterior, parts)
        sandwich = self.sandwich
        if other.sandwich is not None:
            scores = other.sandwich if J is None else other.sandwich.in_coordinates(J)
            sandwich = scores if sandwich is None else sandwich + scores
        outside = self.fit_outside + other.fit_outside
        passes = max(self.n_passes, other.n_passes)
        about: dict[str, Any] = {"n_passes": passes, "fit_outside": outside, "merge_distance": found}
        about |= {"columns": columns}
        return replace(self, state=state, seen=seen, sandwich=sandwich, **about)

    def _with_held(self, other: "FilteredBelief") -> "FilteredBelief":
        """Return the belief after the rows that another one holds in its warm-up.

        In a warm-up they are joined with those held here, and checked together; after one they are learned as a batch
        of the stream is. A batch that moves the estimate by more than a tenth of a standard error, beyond which a
        stream of shuffled rows is not expected to be from the minimiser, adds to `merge_distance`.
        """
        rows, held = other.held_rows(), self.state.held
        if rows is None:
            return self
        if rows.groups is not None:
            first = next_unnamed(self.held_groups if self.sandwich is None else self.sandwich.groups)
            rows = replace(rows, groups=np.array([moved(one, first) for one in rows.groups.tolist()]))
        if held is not None:
            held = held.to_check() if held.rows else held
            return replace(self, state=replace(self.state, held=held)).learn(rows)
        learned, found = self.scored(rows)
        after, inputs = learned.observing(rows, found, self), self._like_rows_of(self)
        if not len(inputs):
            return after
        part = self._rows, np.asarray(self.state.posterior.mean), inputs
        apart = distance(self.model, after.state.likelihood, after.state.posterior, [part])
        return replace(after, merge_distance=self.merge_distance + (apart if apart > _APART else 0.0))

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        """Return the minimiser for each alpha, by passes over the rows of a source; see `refined_path`."""
        assert source is not None
        return refined_path(self, source, _faded(self.settings, source), alphas)

    def _estimate_in(self, design: Design) -> Array:
        """Return the estimate in the coordinates of another design."""
        theta, J = np.asarray(self.state.posterior.mean), change(self.fixed, design)
        return theta if J is None else np.linalg.solve(J, theta)

    @property
    def _rows(self) -> float:
        return float(self.state.rows) / (self.fixed.outputs or 1)

    @property
    def effective_rows(self) -> float:
        data = self.state.posterior.data
        return float(data.effective_rows) / (self.fixed.outputs or 1)

    @property
    def fingerprint(self) -> Array:
        """That of the moments of the rows; after `fit`, which does not keep the moments of y, without these."""
        std, seen = self.column_std, self.seen
        rows = self._rows if seen is None else seen.X.rows
        center = self.fixed.center if seen is None else seen.X.mean
        if center is None or std is None:
            return np.full(SIZE, np.nan)  # no function is like another
        y = (0.0, 0.0) if seen is None else (float(seen.y.moments.mean[0]), float(seen.y.moments.sd[0]))
        return of_moments(rows, rows, np.append(center, y[0]), np.append(std, y[1]), len(std))

    def held_rows(self) -> Block | None:
        """Return the rows of the warm-up as they came; None if there are none."""
        held, design = self.state.held, self.fixed
        assert held is not None
        if not held.rows:
            return None
        X, y, weights = map(np.concatenate, (held.X, held.y, held.weights))
        offset, times = X[:, -1] if design.row_offsets else None, np.concatenate(held.times) if held.times else None
        groups = np.array(self.held_groups) if self.held_groups else None
        about: dict[str, Any] = {"offset": offset, "times": times, "groups": groups}
        return Block(X if design.center is None else design.columns(X), y, weights, **about)

    def _like_rows_of(self, other: "FilteredBelief") -> Array:
        """Return inputs like those of the rows of another belief, in these coordinates; none for a function."""
        center, std = other.fixed.center if other.seen is None else other.seen.X.mean, other.column_std
        if center is None or std is None:
            return np.empty((0, 0))
        data = other.state.posterior.data
        assert isinstance(data, Information)
        X = likely_rows(center, std, data, other.fixed)
        return self.fixed.rows(X, np.zeros(len(X)) if self.fixed.row_offsets else None)

    @property
    def predicts(self) -> bool:
        """Whether the warm-up has ended; until then the rows held do not determine theta well.

        Predictions by the state are then too certain, and are not scored; see `scored` for what is.
        """
        return self.state.held is None or self.state.held.settled

    @property
    def _convex(self) -> bool:
        """Whether the objective has no other minima than the one found, also among the few rows of a warm-up."""
        return self.settings.likelihood.log_concave and self.model.linear

    @property
    def converged(self) -> bool:
        """Whether the fit converged, and a stream has left its warm-up or is before its first check."""
        found = self.state.converged or (self._convex and not self.state.cut_short)
        return self.fit_converged and found and not self._separated

    @property
    def message(self) -> str:  # type: ignore[override]
        return SEPARATED if self._separated else self.fit_message

    @cached_property
    def _separated(self) -> bool:
        """Whether a stream of classes or counts has no finite estimate without a penalty; see `is_separated`."""
        seen, settings, design = self.seen, self.settings, self.fixed
        loss, columns = settings.likelihood, self.columns
        if seen is None or columns is None or not self._convex or loss.quadratic or loss.location or self.is_fresh:
            return False
        if self.state.problem.regularizer.value(np.ones(design.size)) > 0:  # a penalty makes the estimate finite
            return False
        if not self._rarest > 0:  # of a class that has not come yet nothing can be said
            return False
        noise_var = np.inf if self.state.held is not None else _noise_of(self.state)
        A, C = weak_root(settings, design, seen, columns, noise_var), contrasts(design, Zero())
        return is_separated(self.state, A if C is None else A @ C, first_theta(settings, design))

    @property
    def _many(self) -> bool:
        """Whether there are rows enough to be told that they are separated: few often are, by chance."""
        return self._rarest >= _MANY * self.fixed.size / (self.fixed.outputs or 1)

    @property
    def _rarest(self) -> float:
        """The number of rows of the rarest class, or of events, in a warm-up; infinite after it."""
        if self.state.held is None:
            return np.inf
        y = np.concatenate(self.state.held.y)
        events = (y > 0).sum(axis=0).min()
        return float(min(events, (y < 1).sum()) if self.settings.likelihood.outcomes == "two classes" else events)

    @property
    def design(self) -> Design:
        return self.fixed

    @property
    def posterior(self) -> Posterior:
        return self.state.posterior

    def _sandwiched(self, posterior: Posterior) -> Array | None:
        """Return the covariance of the base class; the rows of a warm-up are scored by their residuals."""
        return super(FilteredBelief, self._scored)._sandwiched(posterior)

    @cached_property
    def _scored(self) -> "FilteredBelief":
        """This belief with the scores of the rows that are held, if there are any."""
        rows = None if self.state.held is None or self.settings.coef_cov == "model" else self.held_rows()
        return self if rows is None else self._with_scores_of_held(rows)

    @property
    def why_no_std(self) -> str:
        return self._scored._why_no_std

    def _dof(self, posterior: Posterior, K: Array | None = None) -> Array:
        return super(FilteredBelief, self._scored)._dof(posterior, K)

    def _contrasts(self, posterior: Posterior) -> Array | None:
        """Return the matrix that subtracts from parameters their means over the outputs, where these are kept at zero.

        It has no effect on the estimate, and takes what `sums_to_zero` adds out of the variances.
        """
        if self.fixed.outputs is None:
            return None
        assert isinstance(posterior, InformationPosterior)
        return contrasts(self.fixed, posterior.regularizer).toarray()

    @cached_property
    def unpenalised(self) -> Posterior:
        """The posterior without the penalty, in which the coefficients of all classes add up to zero."""
        found, design, std = super().unpenalised, self.fixed, self.column_std
        if design.outputs is None or not isinstance(found, InformationPosterior) or found.prior is None:
            return found
        assert std is not None and design.center is not None
        rows = float(found.data.rows) / design.outputs
        moments = Moments(rows, design.center, rows * std**2)
        sums = sums_to_zero(self.settings, design, moments, all_inputs=True)
        assert sums is not None
        return InformationPosterior(found.data, Zero(), gamma=found.gamma, prior=sums, likelihood=found.likelihood)

    @property
    def column_std(self) -> Array | None:
        if callable(self.settings.link):  # whose parameters have no columns
            return None
        X = None if self.seen is None else self.seen.X
        return self.fit_column_std if X is None else np.sqrt(X.squares / max(X.rows, 1.0))

    @property
    def targets_outside(self) -> float:
        return self.fit_outside if self.seen is None else self.seen.y.outside

    @property
    def n_outliers(self) -> float | None:  # type: ignore[override]
        """The number of rows flagged as outliers, each before it was learned; None if the likelihood is not robust."""
        return self.state.outliers

    @property
    def n_held(self) -> int:  # type: ignore[override]
        """The number of rows held: those of the warm-up, and those that extrapolate."""
        held, far = self.state.held, self.state.extrapolating
        return (0 if held is None else held.rows) + (0 if far is None else len(far.y))

    def without_rows(self) -> "FilteredBelief":
        """Return the belief with the rows that extrapolate linearised at the estimate, as its posterior has them."""
        if self.state.held is not None and self.state.held.rows:
            raise ValueError(
                f"The warm-up of the stream has not ended, and a model file would hold its {self.state.held.rows} rows "
                "as they came. Learn more rows, let the fit make several passes, or save the rows too: leave "
                "--no-samples (samples=False) out."
            )
        data, seen = self.state.posterior.data, self.seen
        assert isinstance(data, Information)
        if seen is not None:  # the least and the largest target matter for the prior of the warm-up only
            mean = float(seen.y.moments.mean[0])
            seen = replace(seen, y=replace(seen.y, low=mean, high=mean))
        return replace(self, seen=seen, state=replace(self.state, data=data, extrapolating=None))

    @property
    def sizes(self) -> dict[str, int | None]:
        return {**super().sizes, "p": len(self.state.estimate)}

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, name: str, sizes: Sizes) -> "FilteredBelief":
        design = saved.tree(Design, f"{name}.fixed", sizes)
        expect((design.center is None) is not isinstance(settings.link, str))
        start = np.zeros(sizes["p"] or 0)
        problem = _filter(settings, design).init(start, None).problem
        expect(sizes["o"] == design.outputs)
        wide = {**sizes, "f": design.first + design.row_offsets}  # rows of inputs have so many columns more
        state = saved.tree(ProximalState, f"{name}.state", wide, problem=problem)
        belief = saved.tree(cls, name, sizes, settings=settings, fixed=design, state=state)
        return replace(belief, fit_message=belief._of_stream)

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError unless rows are held with times if that is needed, and the likelihood is the right one."""
        settings, held, learned = self.settings, self.state.held, self.state.learned
        expect(settings.start is None or np.shape(settings.start) == self.state.estimate.shape)
        expect(settings.by_time or self.time is None)
        expect(held is None or bool(held.times) is (settings.by_time and bool(held.X)))
        expect(learned is None or learned.numbers.shape == settings.likelihood.numbers.shape)
        expect(len(self.held_groups) in (0, 0 if held is None else held.rows))


def _has_few_events(posterior: InformationPosterior, design: Design) -> bool:
    """Whether there are so few events for each coefficient that the skewness of the posterior matters.

    It changes the sum of the probabilities of a class, or of counts, by at most half the number of coefficients. The
    information about an intercept is the number of events, less what is certain.
    """
    events = (np.asarray(posterior.data.R)[:, : design.outputs or 1] ** 2).sum(axis=0).min()
    return not design.intercept or bool(design.size / 2 > _SMALL * events)


def _mean_skew(*parts: tuple[Information, Array | None, Array | None]) -> Array | None:
    """Return the skewness of the rows of all parts: it does not grow with them, and so it is the mean by rows.

    The third of each part is the matrix to its coordinates; None if they are those of the first.
    """
    known = [(float(data.rows), skew if J is None else J.T @ skew) for data, skew, J in parts if skew is not None]
    rows = sum(float(data.rows) for data, *_ in parts)
    return sum(n / rows * skew for n, skew in known) if known else None


def refuse_changes(before: Settings, now: Settings) -> None:
    """Raise a ValueError if settings differ that cannot change once rows have been learned."""
    refuse_scores(before, now)
    if changed := now.changed(before, *_FIXED):
        raise ValueError(f"{' and '.join(changed)} cannot change between calls of partial_fit: use fit.")


def contrasts(design: Design, regularizer: Regularizer) -> Any:
    """Return a sparse matrix that subtracts from parameters their means over the outputs; None if there is one output.

    Those of coefficients stay as they are where the penalty decides on their means.
    """
    if (m := design.outputs) is None:
        return None
    summed = np.ones(design.size // m)
    if not coefficients_sum_to_zero(regularizer):
        summed[design.first :] = 0.0
    means = scipy.sparse.kron(scipy.sparse.diags_array(summed), np.full((m, m), 1 / m))
    return (scipy.sparse.eye_array(design.size) - means).tocsr()


def first_moments(settings: Settings, blocks: Iterable[Block]) -> Moments:
    """Return the moments of the first rows of a stream."""
    check(settings, way="first rows")
    return reduce(add, map(Moments.of, blocks))


def _filter(settings: Settings, design: Design, **options: Any) -> Any:
    g = coef_regularizer(settings, design)
    options |= {"gamma": settings.gamma, "forget": _forget(settings), "weights": settings.weights}
    model = design.model(settings.model(design.outputs))
    return proximal_filter(model, g, likelihood=settings.likelihood, **options)


def _faded(settings: Settings, source: Source) -> Source:
    """Return the rows of a source with the weights that forgetting leaves them."""
    if settings.forgets:
        rows: Any = source
        if not hasattr(rows, "faded"):
            check(settings, way="no order")
        faded: Source = rows.faded(settings.forgetting, settings.weights)
        return faded
    if getattr(source, "times", None) is not None:
        check(settings, way="times")
    return source


def _forget(settings: Settings) -> Any:
    """Return what the proximal filter takes as its forgetting."""
    return settings.forgetting if settings.by_time else settings.forget


def _outputs(block: Block) -> int | None:
    """Return the number of outputs that the targets of a block need; None for one that is a number."""
    return block.y.shape[1] if block.y.ndim == 2 else None


def _at_center(shift: Array, outputs: int | None) -> Callable[[Array], Array]:
    """Return the map of theta = (intercept, coef) to that of a design whose centre is greater by `shift`."""
    m = outputs or 1
    return lambda theta: np.append(theta[:m] + shift @ theta[m:].reshape(-1, m), theta[m:])


def _noise_of(state: ProximalState) -> float:
    """Return the noise variance; infinite if it is not known."""
    variance = float(state.posterior.noise.variance)
    return variance if variance > 0 else np.inf
