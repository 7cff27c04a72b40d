"""The state of a model whose rows are linearised: that of the proximal filter, after streaming or refinement."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial, reduce
from operator import add
from typing import Any, ClassVar

import numpy as np

from kalprox.algorithms.proximal_filter import later, learn, take_matched, with_prior
from kalprox.algorithms.state import ProximalState
from kalprox.base.arrays import Array
from kalprox.base.text import worded
from kalprox.base.tree import Saved, Sizes, expect, grown, leaf, state
from kalprox.information import Information, merge
from kalprox.learning.design import Design, Moments
from kalprox.learning.innovations import Innovations, in_stds, may_overflow
from kalprox.learning.linearised_belief import SEPARATED, LinearisedBelief, SeparationWarning
from kalprox.learning.matched import MatchingFilter, filter_after, matched_innovations
from kalprox.learning.merging import SIZE, change, distance, in_coordinates, likely_rows, mean_skew, of_moments
from kalprox.learning.passes import faded_source, fitted_in_passes, refined_path
from kalprox.learning.path import Path
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import Core, Following, State
from kalprox.learning.targets import Seen, check_targets
from kalprox.learning.weak_prior import (
    Columns,
    first_theta,
    noise_variance,
    problem_of,
    weak_prior,
    with_class,
    with_weak_prior,
)
from kalprox.solvers.terms import diagonal_curvature
from kalprox.sources import Block, Counts, Source
from kalprox.sources.weighting import check_later

_FEW = 256  # coefficients of a filter that predicts the rows of a warm-up, which takes them one by one
_REPEATED = 8  # times the rows of a batch that it may have to learn again
_FEWEST, _MANY, _SHARE = 16, 1024, 4  # the fewest and the most rows that are folded together, or a part of all before
_SHORT = 64  # rows of a batch up to which they are learned faster one by one than together
_APART = 0.1  # standard errors from the minimiser, which the rows of a batch may add unsaid


@state
class Linearised(Core):
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

    in_one_pass: ClassVar[bool] = False

    @property
    def time(self) -> float | None:
        return self.proximal.time

    @cached_property
    def belief(self) -> LinearisedBelief:
        own = "settings", "proximal", "fixed", "seen", "columns", "fit_converged", "fit_column_std", "fit_outside"
        of_all = "n_passes", "fit_message", "merge_distance", "time"
        return LinearisedBelief(**{name: getattr(self, name) for name in (*own, *of_all)})

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "Linearised":
        design, seen = Design(), None
        if settings.function is None:
            check(settings, way="first rows")
            blocks = list(blocks)
            moments = reduce(add, map(Moments.of, blocks))
            outputs = blocks[0].y.shape[1] if blocks[0].y.ndim == 2 else None
            about: dict[str, Any] = {"intercept": settings.fit_intercept, "standardize": False}
            about |= {"outputs": outputs, "row_offsets": blocks[0].offset is not None}
            design = Design.of_moments(moments, **about)
            seen = Seen.nothing(len(moments.mean))
        state = ProximalState._start(problem_of(settings, design), first_theta(settings, design))
        return cls(settings, state, design, seen)

    @classmethod
    def fit(cls, settings: Settings, source: Source, start: "Linearised | None" = None) -> tuple["Linearised", Counts]:
        """Refine to a stationary point of the objective, after one pass for the means of X.

        The search begins at the estimate of `start`, if given.
        """
        return fitted_in_passes(cls, settings, source, None if start is None else partial(_estimate_in, start))

    def learn(self, block: Block) -> "Linearised":
        """Take one step of the filter, which linearises the block at the current belief once the warm-up has ended."""
        if block.count == 0:
            return self
        block = block.weighted()
        new = Seen.of(self.settings, block)
        seen = new if self.seen is None else self.seen + new
        check_targets(self.settings, seen.y, new.y, block)
        now = self if self.seen is None else self.with_seen(seen, block)
        inputs = now.fixed.block(block)
        if block.times is not None and not self.settings.by_time:
            check(self.settings, way="times")
        after = replace(now, proximal=learn(now.proximal, inputs.X, inputs.y, inputs.weights, block.times))
        return _warned(with_weak_prior(after) if self.warms_up and not after.warms_up else after, self)

    def faded(self, source: Source) -> Source:
        return faded_source(self.settings, source)

    @property
    def warms_up(self) -> bool:
        return self.proximal.held is not None

    # ---- single rows -----------------------------------------------------------------------------------

    def _predicted(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple["Linearised", Innovations]:
        """Return the state after a piece, and its innovations; in a warm-up, those of single rows where they are few.

        A filter of single rows can predict what the rows held determine badly: it averages over all that they allow.
        """
        held, live = self.proximal.held, None
        if known and held is not None and not held.settled and _matches_rows(self) and self.fixed.size <= _FEW:
            repeats = held.rows if self.proximal.is_fresh else 0  # rows that a new filter has to learn again
            if repeats <= _REPEATED * len(block) and not may_overflow(block):
                live = filter_after(self.proximal, self.fixed)
        if live is None:
            return super()._predicted(block, known=known, exact=exact)
        after = self.learn(block)
        before = live.predict(block.X, block.offset)
        try:
            matched = live.learn_rows(block)
        except ValueError:
            return after, Innovations.unknown(block.y)
        likelihood, outputs = self.settings.likelihood, self.fixed.outputs
        found = matched_innovations(likelihood, outputs, block.y, np.array(matched), all_rows=exact)
        issued = in_stds(block.y - before.mean, before.std)
        return after, found._replace(issued=np.where(np.isnan(found.issued), np.nan, issued))

    def following(self, rows: int) -> Following | None:
        held, design, fresh = self.proximal.held, self.fixed, self.proximal.is_fresh
        if not _matches_rows(self) or design.center is None:
            return None
        most = max(_FEWEST, min(_MANY, rows // _SHARE))
        if held is not None:
            most = max(held.next_look - held.rows, 1)
            most = min(most, max(held.rows, 1)) if fresh else most
        return Following(len(design.center), design.outputs, most, _SHORT, offsets=design.row_offsets, leads=fresh)

    def row_filter(self) -> MatchingFilter | None:
        """Return the filter; None if a coefficient is undetermined.

        In a warm-up it starts from the prior, and learns all rows that are held.
        """
        return filter_after(self.proximal, self.fixed)

    def after_filter(
        self, live: MatchingFilter, block: Block, found: list[Array]
    ) -> tuple["Linearised", Innovations | None]:
        """Take the rows that a filter of single rows has learned since this state; see `take_matched`.

        In the warm-up they are held like others, and checked if they have moved the filter far.
        """
        held, matched, innovations = self.proximal.held, np.array(found), None
        if self.settings.needs_innovations:
            about = self.settings.likelihood, self.fixed.outputs
            innovations = matched_innovations(*about, block.y, matched, all_rows=True)
        if held is not None:
            held = held.to_check() if live.is_due else held
            return replace(self, proximal=replace(self.proximal, held=held)).learn(block), innovations
        block, now = block.weighted(), self
        if self.seen is not None:
            now = self.with_seen(self.seen + Seen.of(self.settings, block), block)
        after = replace(now, proximal=take_matched(now.proximal, now.fixed.block(block), matched))
        return _warned(after, self), innovations

    def with_seen(self, seen: Seen, block: Block) -> "Linearised":
        """Return the state with the prior of all rows seen; and with their centre, if the block leads to a check."""
        state, design, held = self.proximal, self.fixed, self.proximal.held
        if design.intercept and held is not None and held.plus(design.block(block)).is_due(state.problem.warmup):
            theta = _at_center(seen.X.mean - design.center, design.outputs)
            shift = np.r_[0.0, seen.X.mean - design.center, [0.0] * design.row_offsets]
            held = held.moved(lambda rows: replace(rows, X=rows.X - shift), theta)
            state = replace(state, estimate=theta(state.estimate), held=held)
            design = replace(design, center=seen.X.mean)
        if held is None:
            before = None if self.seen is None else self.seen.X
            columns = Columns.after(self.columns, before, seen.X, design)
        else:
            rows = self.held_rows()
            X = block.X if rows is None else np.concatenate([rows.X, block.X])
            columns = Columns.of(X, seen.X, design)
        state = replace(state, prior=weak_prior(self.settings, design, seen, columns, noise_variance(state)))
        return replace(self, proximal=state, fixed=design, seen=seen, columns=columns)

    def with_settings(self, settings: Settings) -> "Linearised":
        """Return the same rows under another penalty or noise variance; earlier blocks are not linearised again."""
        proximal = replace(self.proximal, problem=problem_of(settings, self.fixed))
        return replace(self, settings=settings, proximal=proximal)

    def ahead(self, time: float | None = None) -> "Linearised":
        """Return what is known at a later time, if rows are forgotten by time."""
        if not self.settings.by_time:
            return super().ahead(time)
        if time is None or self.time is None or time == self.time:
            return self
        check_later(time, self.time)
        return replace(self, proximal=later(self.proximal, time))

    def with_features(self, more: int) -> "Linearised":
        """Return the state about more features, whose coefficients are at their prior. Linear models only.

        The rows held in a warm-up are checked when there are 10 for each coefficient.
        """
        check(self.settings, way="new features")
        if self.fixed.row_offsets:
            raise ValueError("New features came, and rows with an offset cannot have them: give all in every row.")
        now = grown(self, more, self.fixed.outputs or 1)
        state, design, at = now.proximal, now.fixed, len(self.proximal.estimate)
        first = first_theta(self.settings, design)

        def started(theta: Array) -> Array:
            return np.append(theta[:at], first[at:])

        held = state.held
        if held is not None:
            held = held.moved(lambda rows: rows, started)
            held = held.anew() if self.proximal.is_fresh else held
        problem = problem_of(self.settings, design)
        state = replace(state, problem=problem, estimate=started(state.estimate), held=held)
        after: Linearised = with_weak_prior(replace(now, proximal=state), noise_variance(self.proximal))
        return after

    def merge(self, other: State) -> "Linearised":
        """Return the state after the rows of both: approximate, see `kalprox.learning.merging` and `merge_distance`.

        The rows of a stream whose warm-up has not ended are learned by the other: if neither has, all of them together.
        """
        assert isinstance(other, Linearised)  # whose settings are the same
        sizes = {(one.fixed.size, one.fixed.outputs, one.fixed.row_offsets) for one in (self, other)}
        if len(sizes) > 1:
            raise ValueError("merge needs two models of the same features and classes, with offsets or without.")
        if other.warms_up:
            return self.with_held(other)[0]
        if self.warms_up:
            return other.merge(self)
        mine, theirs = self.proximal.posterior.data, other.proximal.posterior.data
        assert isinstance(mine, Information) and isinstance(theirs, Information)
        J = self.coordinates_of(other)
        data = merge(mine, in_coordinates(theirs, J))
        learned = self.proximal.learned
        if learned is not None and other.proximal.learned is not None:
            learned = learned.merge(other.proximal.learned)
        cut_short = self.proximal.cut_short or other.proximal.cut_short
        skew = mean_skew((mine, self.proximal.skew, None), (theirs, other.proximal.skew, J))
        both = replace(self.proximal, data=data, extrapolating=None, learned=learned, cut_short=cut_short, skew=skew)
        seen = None if self.seen is None or other.seen is None else self.seen + other.seen
        now, columns = replace(self, proximal=with_prior(both, both.prior), seen=seen), self.columns
        if columns is not None and other.columns is not None:
            columns = Columns(columns.middle, np.minimum(columns.spread, other.columns.spread))
            now = with_weak_prior(replace(now, columns=columns))
        parts = [_part_of(one, self.fixed) for one in (self, other)]
        apart = distance(self.belief.model, now.proximal.likelihood, now.proximal.posterior, parts)
        passes, outside = max(self.n_passes, other.n_passes), self.fit_outside + other.fit_outside
        distant = self.merge_distance + other.merge_distance + apart
        return replace(now, n_passes=passes, fit_outside=outside, merge_distance=distant)

    def coordinates_of(self, other: Core) -> Array | None:
        assert isinstance(other, Linearised)
        return change(other.fixed, self.fixed)

    def with_held(self, other: "Linearised") -> tuple["Linearised", Block | None, Innovations | None]:
        """Return the state after the rows that another one holds in its warm-up, these rows, and their innovations.

        In a warm-up they are joined with those held here, and checked together; after one they are learned as a batch
        of the stream is. A batch that moves the estimate by more than a tenth of a standard error, beyond which a
        stream of shuffled rows is not expected to be from the minimiser, adds to `merge_distance`.
        """
        rows, held = other.held_rows(), self.proximal.held
        if rows is None:
            return self, None, None
        if held is not None:
            held = held.to_check() if held.rows else held
            return replace(self, proximal=replace(self.proximal, held=held)).learn(rows), rows, None
        (after, found), part = self.step(rows), _part_of(self, self.fixed)
        apart = distance(self.belief.model, after.proximal.likelihood, after.proximal.posterior, [part])
        distant = self.merge_distance + (apart if apart > _APART else 0.0)
        return replace(after, merge_distance=distant), rows, found

    with_class = with_class

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        """Return the minimiser for each alpha, by passes over the rows of a source; see `refined_path`."""
        assert source is not None
        return refined_path(self, source, faded_source(self.settings, source), alphas)

    @property
    def fingerprint(self) -> Array:
        """That of the moments of the rows; after `fit`, which does not keep the moments of y, without these."""
        std, seen = self.belief.facts.column_std, self.seen
        rows = _rows_of(self) if seen is None else seen.X.rows
        center = self.fixed.center if seen is None else seen.X.mean
        if center is None or std is None:
            return np.full(SIZE, np.nan)  # no function is like another
        y = (0.0, 0.0) if seen is None else (float(seen.y.moments.mean[0]), float(seen.y.moments.sd[0]))
        return of_moments(rows, rows, np.append(center, y[0]), np.append(std, y[1]), len(std))

    def held_rows(self) -> Block | None:
        held, design = self.proximal.held, self.fixed
        if held is None or not held.rows:
            return None
        rows = Block.joined(held.blocks)
        X = rows.X if design.center is None else design.columns(rows.X)
        return replace(rows, X=X, offset=rows.X[:, -1] if design.row_offsets else None)

    @property
    def n_held(self) -> int:
        """The number of rows held: those of the warm-up, and those that extrapolate."""
        held, far = self.proximal.held, self.proximal.extrapolating
        return (0 if held is None else held.rows) + (0 if far is None else len(far))

    def without_rows(self) -> "Linearised":
        """Return the state with the rows that extrapolate linearised at the estimate, as its posterior has them."""
        held = self.proximal.held
        if held is not None and held.rows:
            raise ValueError(
                worded(
                    f"The warm-up of the stream has not ended, and a model file would hold its {held.rows} rows as "
                    "they came. Learn more rows, let the fit make several passes, or save the rows too: leave "
                    "{samples=False} out."
                )
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
        problem = problem_of(settings, design)
        expect(sizes["o"] == design.outputs)
        wide = {**sizes, "f": design.first + design.row_offsets}  # rows of inputs have so many columns more
        state = saved.tree(ProximalState, f"{name}.proximal", wide, problem=problem)
        now = saved.tree(cls, name, sizes, settings=settings, fixed=design, proximal=state)
        held, learned = state.held, state.learned
        expect(settings.start is None or np.shape(settings.start) == state.estimate.shape)
        expect(settings.by_time or now.time is None)
        expect(held is None or all((rows.times is not None) is settings.by_time for rows in held.blocks))
        expect(learned is None or learned.numbers.shape == settings.likelihood.numbers.shape)
        return now


def _matches_rows(state: Linearised) -> bool:
    """Whether single rows are learned by moment matching, and exactly so by a filter that is updated in place.

    The model must be linear, with one output or with one for each class, the loss not quadratic, and without a
    parameter or a noise variance that is learned, the penalty quadratic, and no row forgotten.
    """
    settings, design, loss = state.settings, state.fixed, state.settings.likelihood
    if not settings.is_linear or loss.quadratic or loss.learns or loss.learns_noise or settings.forgets:
        return False
    if loss.interacts is (design.outputs is None) or settings.coef_cov == "clustered" or np.any(design.scale != 1):
        return False
    g, size = state.proximal.problem.regularizer, design.size
    return diagonal_curvature(g, size) is not None or g.root(size) is not None


def _at_center(shift: Array, outputs: int | None) -> Callable[[Array], Array]:
    """Return the map of theta = (intercept, coef) to that of a design whose centre is greater by `shift`."""
    m = outputs or 1
    return lambda theta: np.append(theta[:m] + shift @ theta[m:].reshape(-1, m), theta[m:])


def _warned(state: Linearised, before: Linearised) -> Linearised:
    """Return a state; warn if its rows are separated, and those before were not, or were few."""
    if state.belief.separated and state.belief.many and not (before.belief.separated and before.belief.many):
        warnings.warn(SEPARATED, SeparationWarning, stacklevel=5)
    return state


def _rows_of(state: Linearised) -> float:
    return float(state.proximal.rows) / (state.fixed.outputs or 1)


def _estimate_in(state: Linearised, design: Design) -> Array:
    """Return the estimate in the coordinates of another design."""
    theta, J = np.asarray(state.proximal.posterior.mean), change(state.fixed, design)
    return theta if J is None else np.linalg.solve(J, theta)


def _part_of(one: Linearised, design: Design) -> tuple[float, Array, Array]:
    """Return the number of rows, the estimate, and inputs like those of the rows, in the coordinates of a design.

    There are no such inputs for a function.
    """
    center, std = one.fixed.center if one.seen is None else one.seen.X.mean, one.belief.facts.column_std
    inputs, data = np.empty((0, 0)), one.proximal.posterior.data
    if center is not None and std is not None:
        assert isinstance(data, Information)
        X = likely_rows(center, std, data, one.fixed)
        inputs = design.rows(X, np.zeros(len(X)) if design.row_offsets else None)
    return _rows_of(one), _estimate_in(one, design), inputs
