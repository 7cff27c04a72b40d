"""The state of a model whose rows are linearised: that of the proximal filter, after streaming or refinement."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial, reduce
from operator import add
from typing import Any, ClassVar

import numpy as np

from kalprox.algorithms.parameters import learned_by
from kalprox.algorithms.proximal_filter import (
    has_moved,
    later,
    prediction_errors,
    proximal_filter,
    take_matched,
    with_prior,
)
from kalprox.algorithms.refine import refine
from kalprox.algorithms.state import ProximalState
from kalprox.algorithms.warmup import HeldRows, skew_of
from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, Sizes, expect, grown, leaf, state
from kalprox.information import Information, merge
from kalprox.learning.design import Design, DesignedSource, Moments
from kalprox.learning.fingerprint import SIZE, of_moments
from kalprox.learning.innovations import Innovations, SquareRootFilter, in_stds, may_overflow
from kalprox.learning.laplace import fit_with_chosen_alpha
from kalprox.learning.linearised_belief import LinearisedBelief, noise_variance
from kalprox.learning.matching_filter import ClassFilter, MatchingFilter, followed, spread
from kalprox.learning.merging import change, distance, in_coordinates, likely_rows
from kalprox.learning.path import Path
from kalprox.learning.refined_path import refined_path
from kalprox.learning.rules import check
from kalprox.learning.sandwich import UNNAMED, Sandwich, moved, next_unnamed, row_scores
from kalprox.learning.separation import SEPARATED, SeparationWarning
from kalprox.learning.settings import Settings
from kalprox.learning.state import State, check_any_row
from kalprox.learning.targets import Seen, check_targets
from kalprox.learning.weak_prior import (
    Columns,
    coef_regularizer,
    first_theta,
    sums_to_zero,
    weak_prior,
)
from kalprox.noise import Noise
from kalprox.posterior import InformationPosterior
from kalprox.solvers.curvature import diagonal_curvature
from kalprox.sources import ArraySource, Block, Counts, Source
from kalprox.sources.forgetting import faded
from kalprox.sources.times import check_later, in_order
from kalprox.sources.weighting import counts_of

__all__ = ["Linearised"]

_FEW = 256  # coefficients of a filter that predicts the rows of a warm-up, which takes them one by one
_REPEATED = 8  # times the rows of a batch that it may have to learn again
_APART = 0.1  # standard errors from the minimiser, which the rows of a batch may add unsaid
_SMALL = 0.01  # the share of events by which the skewness of the posterior may change their expected number unheeded
_WIDE = 1.0  # the variance of an output above which its prediction is not judged


@state
class Linearised(State):
    """The state of the proximal filter, in the coordinates of a design that the rows of the warm-up fixed.

    A stream has a weak prior on the scale of the linear predictor; see `kalprox.learning.weak_prior`. The prior is that
    of all rows so far, and the design is centred at the mean of all rows held when they are checked, so that neither
    depends on how the first rows are cut into batches.
    """

    proximal: ProximalState
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

    @cached_property
    def belief(self) -> LinearisedBelief:
        held, unscored = self.proximal.held, None
        if held is not None and held.rows and self.settings.coef_cov != "model":
            unscored = partial(Linearised._held_source, replace(self))  # a copy: a state that holds itself stays longer
        return LinearisedBelief(
            self.settings,
            self.proximal,
            self.fixed,
            self.seen,
            self.columns,
            self.fit_converged,
            self.fit_column_std,
            self.fit_outside,
            unscored,
            n_passes=self.n_passes,
            fit_message=self.fit_message,
            merge_distance=self.merge_distance,
            sandwich=self.sandwich,
            time=self.time,
        )

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "Linearised":
        design, seen = Design(), None
        if settings.function is None:
            blocks = list(blocks)
            moments = first_moments(settings, blocks)
            about: dict[str, Any] = {"intercept": settings.fit_intercept, "standardize": False}
            about |= {"outputs": _outputs(blocks[0]), "row_offsets": blocks[0].offset is not None}
            design = Design.of_moments(moments, **about)
            seen = Seen.nothing(len(moments.mean))
        state = _filter(settings, design).init(first_theta(settings, design), None)
        return cls(settings, state, design, seen)

    @classmethod
    def fit(cls, settings: Settings, source: Source, start: "Linearised | None" = None) -> tuple["Linearised", Counts]:
        """Refine to a stationary point of the objective, after one pass for the means of X.

        One more pass sums the scores, if `coef_cov` needs them. The search begins at the estimate of `start`, if given.
        With alpha="auto" there is a search for each of a few alphas; see `kalprox.learning.laplace`.
        """
        if settings.alpha == "auto":
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
        if settings.function is None:
            about: dict[str, Any] = {"intercept": settings.fit_intercept, "standardize": settings.standardize}
            about |= {"outputs": folded.total.y.outputs, "row_offsets": folded.total.offsets > 0}
            design = Design.of_moments(folded.total.X, **about)
        g = coef_regularizer(settings, design)
        first = first_theta(settings, design) if start is None else start._estimate_in(design)
        options: dict[str, Any] = {"gamma": settings.gamma, "max_passes": settings.max_passes, "tol": settings.tol}
        options |= {"weight_kind": settings.weight_kind, "likelihood": settings.likelihood}
        prior = sums_to_zero(settings, design, folded.total.X)
        model, rows = design.model(settings.model(design.outputs)), DesignedSource(source, design)
        out = refine(model, g, rows, first, prior=prior, **options)
        state = _filter(settings, design).init(out.mean, None)
        state = replace(state, data=out.information, estimate=out.mean, held=None, prior=prior or state.prior)
        state = replace(state, learned=learned_by(out), time=time)
        if out.converged and _has_few_events(state.posterior, design):
            state = replace(state, skew=skew_of(model, state.posterior, rows))
        message = out.message
        if not out.converged and settings.likelihood.outcomes == "counts" and not folded.total.y.high > 0:
            message = (
                "All counts are zero: the intercept runs to minus infinity, and the standard errors say nothing. Fit "
                "rows with events in them."
            )
        X, named = folded.total.X, settings.function is None
        std = np.sqrt(X.squares / X.rows) if named else None
        now = cls(settings, state, design, None, out.passes, out.converged, message, std, folded.total.y.outside)
        return replace(now, time=time).with_scores_of(source), folded.counts

    def learn(self, block: Block) -> "Linearised":
        """Take one step of the filter, which linearises the block at the current belief once the warm-up has ended."""
        if block.count == 0:
            return self
        if block.weights is None:
            block = replace(block, weights=np.ones(len(block)))
        new = Seen.of(self.settings, block)
        seen = new if self.seen is None else self.seen + new
        check_targets(self.settings, seen.y, new.y, block)
        now = self if self.seen is None else self._with_seen(seen, block)
        step = _filter(self.settings, now.fixed, warmup=now.proximal.problem.warmup).step
        inputs = now.fixed.block(block)
        if block.times is not None and not self.settings.by_time:
            check(self.settings, way="times")
        state = step(now.proximal, inputs.X, inputs.y, inputs.weights, block.times)
        if now.columns is not None and self.proximal.held is not None and state.held is None:
            prior = weak_prior(self.settings, now.fixed, seen, now.columns, noise_variance(state))
            state = with_prior(state, prior)
        about: dict[str, Any] = {"sandwich": self._faded_sandwich(block), "time": state.time}
        about["held_groups"] = self._groups_with(block)
        after = replace(now, proximal=state, **about)
        if self.proximal.held is not None or state.cut_short:
            after = replace(after, fit_message=after._of_stream)
        if self.proximal.held is None or state.held is not None or self.settings.coef_cov == "model":
            return after._warned(self)
        held = replace(self, held_groups=after.held_groups)._held_source(block)
        scored = after.with_scores_of(held)
        sandwich = scored.sandwich and scored.sandwich.with_open_batch()
        return replace(scored, sandwich=sandwich, held_groups=())._warned(self)

    @property
    def _of_stream(self) -> str:
        """Why the rows of a stream do not determine the coefficients well; empty if they do."""
        held = self.proximal.held
        if self.proximal.cut_short:
            return (
                "The stream can hold no more rows, and those held did not determine the coefficients well: they were "
                "linearised for good, and the estimate may be wrong and over-confident. Call refine with all rows."
            )
        if held is None or held.settled or self.belief.convex:
            return ""
        return (
            f"The warm-up of the stream has not ended: the {held.rows} rows held so far do not determine the "
            "coefficients well, and the estimate may be far off. Learn more rows, or use fit."
        )

    def _groups_with(self, block: Block) -> tuple[str, ...]:
        """Return the clusters of the rows that are held, and of a block that is held, too."""
        if self.proximal.held is None or self.settings.coef_cov != "clustered":
            return ()
        return self.held_groups + (("",) * len(block) if block.groups is None else tuple(block.groups.tolist()))

    def _held_source(self, *more: Block) -> Source:
        """Return the rows of the warm-up and more rows, with the weights that forgetting leaves them."""
        rows = self.held_rows()
        parts = [*more] if rows is None else [rows, *more]
        names = ("X", "y", "weights", "offset", "times")
        joined: dict[str, Any] = {
            name: None if getattr(parts[0], name) is None else np.concatenate([getattr(one, name) for one in parts])
            for name in names
        }
        groups = np.array(self.held_groups) if self.held_groups else None
        return _faded(self.settings, ArraySource(**joined, groups=groups))

    def closed(self) -> "Linearised":
        """Return the state after a batch; its rows without a label that are held are a cluster of their own."""
        name = f"{UNNAMED}{next_unnamed(self.held_groups)}"
        groups = tuple(name if one == "" else one for one in self.held_groups)
        return replace(super().closed(), held_groups=groups) if groups != self.held_groups else super().closed()

    def _observing(self, block: Block, found: Innovations, before: State) -> "Linearised":
        """Return this state with the scores of a piece; those of a warm-up are summed when it ends."""
        assert isinstance(before, Linearised)
        return self if before.proximal.held is not None else super()._observing(block, found, before)

    def _faded_sandwich(self, block: Block) -> Sandwich | None:
        """Return the scores of the rows learned so far with the weight that a block leaves them."""
        settings = self.settings
        if self.sandwich is None or not settings.forgets or block.weights is None:
            return self.sandwich
        times, counts = self._times(block, self.time), counts_of(block.weights, settings.weight_kind)
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
        loss, named = settings.likelihood, settings.is_linear
        if not named or loss.quadratic or loss.learns or loss.learns_noise:
            return False
        if loss.interacts is (design.outputs is None):
            return False
        if settings.forgets or settings.coef_cov == "clustered":
            return False
        if not np.all(design.scale == 1):
            return False
        g, size = self.proximal.problem.regularizer, design.size
        return diagonal_curvature(g, size) is not None or g.root(size) is not None

    def row_filter(self) -> MatchingFilter | ClassFilter | None:
        """Return a filter of single rows that continues from this state; None if a coefficient is undetermined.

        In a warm-up that has had no check, it learns the rows held, which need not be refined then.
        """
        state, fresh = self.proximal, self.proximal.is_fresh
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
        made = ClassFilter(root, loss) if loss.interacts else MatchingFilter(root, loss, offsets)
        if fresh and state.held is not None and state.held.rows:
            X, y, weights = (np.concatenate(a) for a in (state.held.X, state.held.y, state.held.weights))
            X, added = (X[:, :-1], X[:, -1]) if offsets else (X, None)
            if followed(made, X, y, weights, added) is None:
                return None
        root.design = design
        return made

    def _predicted(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple["Linearised", Innovations]:
        """Return the state after a piece, and its innovations; in a warm-up, those of single rows where they are few.

        A filter of single rows can predict what the rows held determine badly: it averages over all that they allow.
        """
        held, live = self.proximal.held, None
        if known and held is not None and not held.settled and self.matches_rows and self.fixed.size <= _FEW:
            repeats = held.rows if self.proximal.is_fresh else 0  # rows that a new filter has to learn again
            live = self.row_filter() if repeats <= _REPEATED * len(block) and not may_overflow(block) else None
        if live is None:
            return super()._predicted(block, known=known, exact=exact)
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
        p, state = self.proximal.problem, self.proximal
        return InformationPosterior(
            state.data, p.regularizer, gamma=p.gamma, prior=state.prior, start=state.estimate, likelihood=p.likelihood
        )

    def learn_matched(self, block: Block, matched: Array) -> "Linearised":
        """Take the rows that a filter of single rows has learned since this state; see `take_matched`.

        In the warm-up they are held like others, and checked if they have moved the filter far.
        """
        if self.proximal.held is not None:
            held = self.proximal.held.to_check() if self.has_moved(block, matched) else self.proximal.held
            return replace(self, proximal=replace(self.proximal, held=held)).learn(block)
        block = block if block.weights is not None else replace(block, weights=np.ones(len(block)))
        now = self
        if self.seen is not None:
            now = self._with_seen(self.seen + Seen.of(self.settings, block), block)
        after = replace(now, proximal=take_matched(now.proximal, now.fixed.block(block), matched))
        if self.settings.coef_cov != "model":
            after = after._with_matched_scores(block, matched)
        return after._warned(self)

    def has_moved(self, block: Block, matched: Array) -> bool:
        """Whether a filter of single rows has moved far from where the rows that are held were linearised."""
        state = self.proximal
        if (state.held is None and state.extrapolating is None) or state.is_fresh:
            return False
        X, posterior = self.fixed.block(block).X, self.proximal.posterior
        f = matched[:, : self.fixed.outputs or 1].reshape(block.y.shape)
        if posterior.expected is not posterior.mean:  # where the filter began, and rows are linearised at the mode
            f = f - self.belief.model.linearize_rows(posterior.mean, X)[1] @ (posterior.expected - posterior.mean)
        return has_moved(self.proximal, X, f)

    def _warned(self, before: "Linearised") -> "Linearised":
        """Return this state; warn if its rows are separated, and those before were not, or were few."""
        if self.belief.separated and self.belief.many and not (before.belief.separated and before.belief.many):
            warnings.warn(SEPARATED, SeparationWarning, stacklevel=5)
        return self

    def _with_matched_scores(self, block: Block, matched: Array) -> "Linearised":
        """Return this state with the scores of rows, from the outputs that were predicted before each of them."""
        m, inputs = self.fixed.outputs, self.fixed.rows(block.X, block.offset)
        D = self.belief.model.linearize_rows(np.asarray(self.proximal.estimate), inputs)[1]  # the model is linear
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
        """Return the errors of a block that this state is about to learn, in standard deviations of its predictions.

        After the warm-up, with a robust likelihood; see `kalprox.algorithms.proximal_filter.prediction_errors`.
        """
        now = self if self.seen is None else self._with_seen(self.seen + Seen.of(self.settings, block), block)
        return prediction_errors(now.proximal, now.fixed.block(block))

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

    def _with_seen(self, seen: Seen, block: Block) -> "Linearised":
        """Return the state with the prior of all rows seen; and with their centre, if the block leads to a check."""
        state, design, held = self.proximal, self.fixed, self.proximal.held
        if design.intercept and held is not None and held.plus(design.block(block)).is_due(state.problem.warmup):
            theta = _at_center(seen.X.mean - design.center, design.outputs)
            held = held.moved(np.r_[0.0, seen.X.mean - design.center, [0.0] * design.row_offsets], theta)
            state = replace(state, estimate=theta(state.estimate), held=held)
            design = replace(design, center=seen.X.mean)
        noise_var = noise_variance(state) if held is None else np.inf
        if held is None:
            before = None if self.seen is None else self.seen.X
            columns = Columns.after(self.columns, before, seen.X, design)
        else:
            rows = self.held_rows()
            X = block.X if rows is None else np.concatenate([rows.X, block.X])
            columns = Columns.of(X, seen.X, design)
        state = replace(state, prior=weak_prior(self.settings, design, seen, columns, noise_var))
        return replace(self, proximal=state, fixed=design, seen=seen, columns=columns)

    def with_settings(self, settings: Settings) -> "Linearised":
        """Return the same rows under another penalty or noise variance; earlier blocks are not linearised again."""
        g = coef_regularizer(settings, self.fixed)
        problem = replace(self.proximal.problem, regularizer=g, gamma=settings.gamma, forget=_forget(settings))
        return replace(self, settings=settings, proximal=replace(self.proximal, problem=problem))

    def ahead(self, time: float | None = None) -> "Linearised":
        """Return what is known at a later time, if rows are forgotten by time."""
        if not self.settings.by_time:
            return super().ahead(time)
        if time is None or self.time is None or time == self.time:
            return self
        check_later(time, self.time)
        return replace(self, proximal=later(self.proximal, time), time=time)

    def with_features(self, more: int) -> "Linearised":
        """Return the state about more features, whose coefficients are at their prior. Linear models only.

        The rows held in a warm-up are checked when there are 10 for each coefficient.
        """
        check(self.settings, way="new features")
        if self.fixed.row_offsets:
            raise ValueError("New features came, and rows with an offset cannot have them: give all in every row.")
        now = grown(self, more, self.fixed.outputs or 1)
        state, design = now.proximal, now.fixed
        first = _filter(self.settings, design).init(first_theta(self.settings, design), None)
        at = len(self.proximal.estimate)

        def started(theta: Array) -> Array:
            return np.append(theta[:at], np.asarray(first.estimate)[at:])

        held = state.held
        if held is not None:
            look = held.next_look if np.any(self.proximal.data.T) else HeldRows.none(held.start).next_look
            held = replace(held, start=started(held.start), origin=started(held.origin), next_look=look)
        state = replace(state, problem=first.problem, estimate=started(np.asarray(state.estimate)), held=held)
        if now.seen is None or now.columns is None:
            return replace(now, proximal=state)
        noise_var = np.inf if held is not None else noise_variance(self.proximal)
        prior = weak_prior(self.settings, design, now.seen, now.columns, noise_var)
        return replace(now, proximal=replace(state, prior=prior) if held is not None else with_prior(state, prior))

    def merge(self, other: State) -> "Linearised":
        """Return the state after the rows of both: approximate, see `kalprox.learning.merging` and `merge_distance`.

        The rows of a stream whose warm-up has not ended are learned by the other: if neither has, all of them together.
        """
        assert isinstance(other, Linearised)  # whose settings are the same
        sizes = {(one.fixed.size, one.fixed.outputs, one.fixed.row_offsets) for one in (self, other)}
        if len(sizes) > 1:
            raise ValueError("merge needs two models of the same features and classes, with offsets or without.")
        if other.proximal.held is not None:
            return self._with_held(other)
        if self.proximal.held is not None:
            return other.merge(self)
        mine, theirs = self.proximal.posterior.data, other.proximal.posterior.data
        assert isinstance(mine, Information) and isinstance(theirs, Information)
        data = merge(mine, in_coordinates(theirs, other.fixed, self.fixed))
        learned = self.proximal.learned
        if learned is not None and other.proximal.learned is not None:
            learned = learned.merge(other.proximal.learned)
        cut_short, J = self.proximal.cut_short or other.proximal.cut_short, change(other.fixed, self.fixed)
        skew = _mean_skew((mine, self.proximal.skew, None), (theirs, other.proximal.skew, J))
        both = replace(self.proximal, data=data, extrapolating=None, learned=learned, cut_short=cut_short, skew=skew)
        seen = None if self.seen is None or other.seen is None else self.seen + other.seen
        state, columns = with_prior(both, self.proximal.prior), self.columns
        if seen is not None and self.columns is not None and other.columns is not None:
            columns = Columns(self.columns.middle, np.minimum(self.columns.spread, other.columns.spread))
            state = with_prior(both, weak_prior(self.settings, self.fixed, seen, columns, noise_variance(state)))
        parts = [(one._rows, one._estimate_in(self.fixed), self._like_rows_of(one)) for one in (self, other)]
        found = self.merge_distance + other.merge_distance
        if all(len(inputs) for _, _, inputs in parts):
            found += distance(self.belief.model, state.likelihood, state.posterior, parts)
        sandwich = self.sandwich
        if other.sandwich is not None:
            scores = other.sandwich if J is None else other.sandwich.in_coordinates(J)
            sandwich = scores if sandwich is None else sandwich + scores
        outside = self.fit_outside + other.fit_outside
        passes = max(self.n_passes, other.n_passes)
        about: dict[str, Any] = {"n_passes": passes, "fit_outside": outside, "merge_distance": found}
        about |= {"columns": columns}
        return replace(self, proximal=state, seen=seen, sandwich=sandwich, **about)

    def _with_held(self, other: "Linearised") -> "Linearised":
        """Return the state after the rows that another one holds in its warm-up.

        In a warm-up they are joined with those held here, and checked together; after one they are learned as a batch
        of the stream is. A batch that moves the estimate by more than a tenth of a standard error, beyond which a
        stream of shuffled rows is not expected to be from the minimiser, adds to `merge_distance`.
        """
        rows, held = other.held_rows(), self.proximal.held
        if rows is None:
            return self
        if rows.groups is not None:
            first = next_unnamed(self.held_groups if self.sandwich is None else self.sandwich.groups)
            rows = replace(rows, groups=np.array([moved(one, first) for one in rows.groups.tolist()]))
        if held is not None:
            held = held.to_check() if held.rows else held
            return replace(self, proximal=replace(self.proximal, held=held)).learn(rows)
        (after, _), inputs = self.step(rows), self._like_rows_of(self)
        if not len(inputs):
            return after
        part = self._rows, np.asarray(self.proximal.posterior.mean), inputs
        apart = distance(self.belief.model, after.proximal.likelihood, after.proximal.posterior, [part])
        return replace(after, merge_distance=self.merge_distance + (apart if apart > _APART else 0.0))

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        """Return the minimiser for each alpha, by passes over the rows of a source; see `refined_path`."""
        assert source is not None
        return refined_path(self, source, _faded(self.settings, source), alphas)

    def _estimate_in(self, design: Design) -> Array:
        """Return the estimate in the coordinates of another design."""
        theta, J = np.asarray(self.proximal.posterior.mean), change(self.fixed, design)
        return theta if J is None else np.linalg.solve(J, theta)

    @property
    def _rows(self) -> float:
        return float(self.proximal.rows) / (self.fixed.outputs or 1)

    @property
    def effective_rows(self) -> float:
        return self.belief.effective_rows

    @property
    def fingerprint(self) -> Array:
        """That of the moments of the rows; after `fit`, which does not keep the moments of y, without these."""
        std, seen = self.belief.column_std, self.seen
        rows = self._rows if seen is None else seen.X.rows
        center = self.fixed.center if seen is None else seen.X.mean
        if center is None or std is None:
            return np.full(SIZE, np.nan)  # no function is like another
        y = (0.0, 0.0) if seen is None else (float(seen.y.moments.mean[0]), float(seen.y.moments.sd[0]))
        return of_moments(rows, rows, np.append(center, y[0]), np.append(std, y[1]), len(std))

    def held_rows(self) -> Block | None:
        """Return the rows of the warm-up as they came; None if there are none."""
        held, design = self.proximal.held, self.fixed
        assert held is not None
        if not held.rows:
            return None
        X, y, weights = map(np.concatenate, (held.X, held.y, held.weights))
        offset, times = X[:, -1] if design.row_offsets else None, np.concatenate(held.times) if held.times else None
        groups = np.array(self.held_groups) if self.held_groups else None
        about: dict[str, Any] = {"offset": offset, "times": times, "groups": groups}
        return Block(X if design.center is None else design.columns(X), y, weights, **about)

    def _like_rows_of(self, other: "Linearised") -> Array:
        """Return inputs like those of the rows of another belief, in these coordinates; none for a function."""
        center, std = other.fixed.center if other.seen is None else other.seen.X.mean, other.belief.column_std
        if center is None or std is None:
            return np.empty((0, 0))
        data = other.proximal.posterior.data
        assert isinstance(data, Information)
        X = likely_rows(center, std, data, other.fixed)
        return self.fixed.rows(X, np.zeros(len(X)) if self.fixed.row_offsets else None)

    @property
    def predicts(self) -> bool:
        return self.belief.predicts

    @property
    def n_held(self) -> int:
        """The number of rows held: those of the warm-up, and those that extrapolate."""
        held, far = self.proximal.held, self.proximal.extrapolating
        return (0 if held is None else held.rows) + (0 if far is None else len(far.y))

    def without_rows(self) -> "Linearised":
        """Return the state with the rows that extrapolate linearised at the estimate, as its posterior has them."""
        held = self.proximal.held
        if held is not None and held.rows:
            raise ValueError(
                f"The warm-up of the stream has not ended, and a model file would hold its {held.rows} rows "
                "as they came. Learn more rows, let the fit make several passes, or save the rows too: leave "
                "--no-samples (samples=False) out."
            )
        data, seen = self.proximal.posterior.data, self.seen
        assert isinstance(data, Information)
        if seen is not None:  # the least and the largest target matter for the prior of the warm-up only
            mean = float(seen.y.moments.mean[0])
            seen = replace(seen, y=replace(seen.y, low=mean, high=mean))
        return replace(self, seen=seen, proximal=replace(self.proximal, data=data, extrapolating=None))

    @property
    def sizes(self) -> dict[str, int | None]:
        return {**super().sizes, "p": len(self.proximal.estimate)}

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, name: str, sizes: Sizes) -> "Linearised":
        design = saved.tree(Design, f"{name}.fixed", sizes)
        expect((design.center is None) is (settings.function is not None))
        start = np.zeros(sizes["p"] or 0)
        problem = _filter(settings, design).init(start, None).problem
        expect(sizes["o"] == design.outputs)
        wide = {**sizes, "f": design.first + design.row_offsets}  # rows of inputs have so many columns more
        state = saved.tree(ProximalState, f"{name}.proximal", wide, problem=problem)
        now = saved.tree(cls, name, sizes, settings=settings, fixed=design, proximal=state)
        return replace(now, fit_message=now._of_stream)

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError unless rows are held with times if that is needed, and the likelihood is the right one."""
        settings, held, learned = self.settings, self.proximal.held, self.proximal.learned
        expect(settings.start is None or np.shape(settings.start) == self.proximal.estimate.shape)
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


def first_moments(settings: Settings, blocks: Iterable[Block]) -> Moments:
    """Return the moments of the first rows of a stream."""
    check(settings, way="first rows")
    return reduce(add, map(Moments.of, blocks))


def _filter(settings: Settings, design: Design, **options: Any) -> Any:
    g = coef_regularizer(settings, design)
    options |= {"gamma": settings.gamma, "forget": _forget(settings), "weight_kind": settings.weight_kind}
    model = design.model(settings.model(design.outputs))
    return proximal_filter(model, g, likelihood=settings.likelihood, **options)


def _faded(settings: Settings, source: Source) -> Source:
    """Return the rows of a source with the weights that forgetting leaves them."""
    if settings.forgets:
        rows: Any = source
        if not hasattr(rows, "faded"):
            check(settings, way="no order")
        faded: Source = rows.faded(settings.forgetting, settings.weight_kind)
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
