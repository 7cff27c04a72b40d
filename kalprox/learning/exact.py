"""The state of a linear model: how rows are folded into its information, and predicted before that."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from math import ceil, inf
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import LARGEST, check_usable
from kalprox.base.text import worded
from kalprox.base.tree import Saved, Sizes, expect, grown, leaf, state
from kalprox.information import Information, merge
from kalprox.learning.design import Design
from kalprox.learning.drift import LONGEST, WindowRows, fold_drifting
from kalprox.learning.innovations import MODERATE_LEVERAGE, SMALL_LEVERAGE, Innovations, Scorer, may_overflow
from kalprox.learning.linear import AlphaFamily, LinearBelief, LinearRows
from kalprox.learning.path import Path
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.state import Core, State, check_any_row, times_of
from kalprox.linalg.row_space import RowSpace
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Ridge
from kalprox.solvers.terms import diagonal_curvature
from kalprox.sources import Block, Counts, Source
from kalprox.sources.weighting import check_later, counted_source, counts_of, course, faded

_EXACT_ROWS = 10, 2048  # the innovations of as many rows per coefficient, or in all, are computed exactly
_LONGEST = 4096  # rows of a piece whose innovations are exact
_CHUNK = 1024  # rows predicted at a time
# A filter holds the scales of the columns, alpha, and which coefficients are at a kink or a bound for 16 rows; of few
# rows for a sixteenth or none, and of many for one in a hundred. All of these move by a part of 1 / n with every row.
# Then it goes on if the same coefficients are still at a kink or a bound, and is made afresh otherwise.
_ROWS_EACH = 1  # rows per coefficient from which on an estimate is near that of a few rows more
_HELD_ROWS, _HELD_SHARES, _FEW_ROWS = 16, (1 / 100, 1 / 16), 48
Visit = Callable[[int, int], None]  # called with the first row and the end of each part of a block


class Weighted(NamedTuple):
    """How the rows of a block are learned.

    Attributes
    ----------
    weights, counts, squares : array of shape (n,) or None
        The weight of each row, how often it counts, and the square of what forgetting leaves of it.
    left : float or None
        What forgetting leaves of all rows before them.
    time : float or None
        The time of the last row, if rows are forgotten by time.
    """

    weights: Array | None
    counts: Array | None
    squares: Array | None
    left: Any
    time: float | None

    @classmethod
    def of(cls, settings: Settings, block: Block, since: float | None) -> "Weighted":
        """Return how the rows of a block are learned after those up to the time `since`."""
        weights, kind, time = block.weights, settings.forgetting, since
        counts, squares, left = counts_of(weights, settings.weight_kind), None, None
        if block.times is not None and not kind.needs_times:
            check(settings, way="times")
        if kind.fades and kind.forgets:
            times = times_of(settings, block, since)
            weights = np.ones(len(block)) if weights is None else weights
            weights, counts, squares, left = faded(weights, kind, counts, times, since)
            time = None if times is None else float(times[-1])
        if block.noise is not None:
            counts = settings.counts(weights) if counts is None else counts
            counts = np.ones(len(block)) if counts is None else counts
            weights = (1.0 if weights is None else weights) / block.noise
        return cls(weights, counts, squares, left, time)


E = TypeVar("E", bound="Exact")


@state
class Exact(Core):
    """The information of the rows of a linear model, and how each row is learned and was predicted before.

    Its penalty has the weight alpha of the settings, a number; `ChosenAlpha` chooses it from the rows.

    Attributes
    ----------
    information : Information
    spread_before : array of shape (d,) or None
        The `spread` before the last rows.
    elapsed : float or None
        What the time since the last row has left of the weights; None for all.
    scorer : Scorer or None
        What predicted the last rows.
    window : WindowRows or None
        The rows of the window, if there is one.
    time : float or None
        The time of the last row, if rows are forgotten by time.
    begin : array of shape (p,) or (p, k), or None
        Where the search for the estimate begins, if that of other rows is known.
    """

    information: Information
    spread_before: Array | None = leaf("d", sign="nonnegative", default=None)
    elapsed: float | None = leaf(default=None, given=True)
    scorer: Scorer | None = leaf(default=None, derived=True)
    window: WindowRows | None = None
    time: float | None = leaf(default=None, kw_only=True)
    begin: Array | None = leaf(default=None, given=True, kw_only=True)

    whole_batches: ClassVar[bool] = True
    first_rows: ClassVar[int] = 1  # before which nothing is predicted
    chooses_alpha: ClassVar[bool] = False
    penalty_determines: ClassVar[bool] = False  # whether it is known to determine what the rows do not

    @cached_property
    def rows(self) -> LinearRows:
        """The rows, as all beliefs about them read them."""
        return LinearRows(self.settings, self.information, self.spread_before)

    @cached_property
    def belief(self) -> LinearBelief:
        return LinearBelief(self.settings, self.rows, elapsed=self.elapsed, begin=self.begin, time=self.time)

    @property
    def linear_information(self) -> Information:
        return self.information

    # ---- learning --------------------------------------------------------------------------------------

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> Self:
        block = next(iter(blocks))
        targets = block.y.shape[1] if block.y.ndim == 2 else None
        if targets is not None:
            check(settings, way="targets")
        d, kind = block.X.shape[1], settings.forgetting
        kind.steps(d, intercept=settings.fit_intercept)  # raises an error if it is about another model
        window = None if kind.window is None else WindowRows.empty(kind.window, settings.weight_kind, d, targets)
        zero = Information.zero(d, targets)
        return cls(settings, replace(zero, T=zero.T[:1]), window=window)  # as many rows of T as were learned

    @classmethod
    def fit(cls, settings: Settings, source: Source) -> tuple[Self, Counts]:
        """Fit in one pass to a source without an order of rows."""
        check(settings, way="no order")
        folded = counted_source(source, settings.weight_kind).fold(Information.from_block)
        check_any_row(folded.counts)
        assert folded.total is not None
        return cls(settings, folded.total), folded.counts

    def learn(self, block: Block, visit: Visit | None = None) -> Self:
        """Return the state after one more block of b rows, which `visit` sees as they are folded. O(b d^2).

        Exact up to rounding.
        """
        info, kind, window, given = (
            self.information,
            self.settings.forgetting,
            self.window,
            Weighted.of(self.settings, block, self.time),
        )
        if given.left is not None and float(info.rows) > 0:
            info = info.forget(given.left)
        if window is not None:
            window = window.after(block)
            info = window.information
        elif kind.walks:
            counts, intercept = self.settings.counts(block.weights), self.settings.fit_intercept
            info = fold_drifting(info, kind, replace(block, weights=given.weights), counts, intercept=intercept)
        else:
            info = info.fold(block.X, block.y, given.weights, given.counts, given.squares, visit=visit)
        if not np.abs(info.T.diagonal()).max() < LARGEST:  # otherwise no value is larger
            check_usable(block.X, block.y, block.weights)
        scorer = self.current_scorer if float(self.information.rows) else None
        if scorer is not None and not scorer.serves_on(float(info.rows), len(block)):
            scorer = None
        about: dict[str, Any] = {"spread_before": self.rows.spread, "elapsed": None, "begin": None, "scorer": scorer}
        return replace(self, information=info, window=window, time=given.time, **about)

    def with_settings(self, settings: Settings) -> Self:
        window = None if settings.forgetting.window is None else self.window
        time, before = self.time if settings.by_time else None, self.rows.spread
        return replace(self, settings=settings, spread_before=before, scorer=None, time=time, window=window)

    def with_origin(self, columns: Array, values: Array) -> Self:
        """Return the state with other values of columns that have been zero in all rows. Exact."""
        return replace(self, information=self.information.with_origin(columns, values), scorer=None)

    def merge(self, other: State) -> Self:
        """Return the state after the rows of both. Exact; O(d^3)."""
        assert isinstance(other, Exact)  # whose settings are the same
        info = merge(self.information, other.information)
        return type(self)(self.settings, info, self.rows.spread)

    @property
    def predicts(self) -> bool:
        return float(self.information.rows) >= self.first_rows

    # ---- innovations -----------------------------------------------------------------------------------

    @cached_property
    def filter_serves(self) -> float:
        settings, d, n = self.settings, self.information.d, float(self.information.rows)
        if not (settings.standardize or self.chooses_alpha):
            g = settings.penalty.regularizer(settings.alpha)
            if diagonal_curvature(g, d) is not None or g.root(d) is not None:
                return inf  # the penalty is a quadratic that does not depend on the rows
        return max(min(_HELD_ROWS, n * _HELD_SHARES[1]), n * _HELD_SHARES[0]) if n > _FEW_ROWS else 1

    @property
    def predicts_every_row(self) -> bool:
        return self.filter_serves == inf and not self.settings.forgets

    @cached_property
    def current_scorer(self) -> Scorer | None:
        """What predicts the next rows of a long stream; None as long as their innovations are exact."""
        settings, n = self.settings, float(self.information.rows)
        if self.scorer is not None and self.scorer.serves(n):
            return self.scorer
        if n < _exact_rows(self) or settings.forgets or _needs_every_leverage(self) or not settings.needs_innovations:
            return None
        posterior = self.belief.posterior
        if len(posterior.factors) > 1 or not posterior.proper:
            return None
        return Scorer.of(posterior, self.belief.design, n)

    def row_filter(self) -> SquareRootFilter | None:
        """Return the filter that continues from this state row by row; None if there is none.

        It holds alpha, the scales of the columns, and which coefficients are at a kink or a bound; see `filter_serves`.
        """
        settings, kind = self.settings, self.settings.forgetting
        walk = kind.of_intercept if settings.fit_intercept else 0.0
        fades = kind.fades and kind.forgets
        if not self.belief.determines or (kind.forgets and not fades and not walk):
            return None
        belief = self.belief.of_next_row
        if len(belief.posterior.metric_factors) > 1 or (self.targets is not None and kind.forgets):
            return None
        made = SquareRootFilter.of(belief.posterior, belief.design, settings.noise_var)
        if not fades:
            return made.walking(walk)
        sizes = np.asarray(belief.posterior.data.R**2).sum(axis=0)
        sizes[belief.design.first :] *= self.rows.scale**2
        return made.forgetting_by(kind, sizes, self.time)

    def _next_piece(self, block: Block, start: int, rows: int, *, exact: bool = False) -> int:
        """Return the end of the piece of a block that begins at row `start`.

        With forgetting a piece halves the weights at most, and is a small part of a window. With `exact`, every row is
        predicted from all rows before it, which robust standard errors need too.
        """
        length = _together(self, exact=exact or _needs_every_leverage(self))
        if self.settings.forgets:
            times = times_of(self.settings, block.part(start, len(block)), self.time)
            fading = self.settings.forgetting.together(times)
            if fading is None:
                fading = _walking_freely(self.settings) or max(1, min(LONGEST, int(self.information.rows) // 8))
            length = min(length, fading)
        stop = min(len(block), start + max(int(length), 1))
        if self.penalty_determines or self.current_scorer is not None or self.belief.posterior.proper:
            return stop
        return start + _foreseen(self.belief, block.X[start : min(stop, start + self._held(exact=exact))])

    def _held(self, *, exact: bool) -> int:
        """Return the number of rows for which a filter holds what `filter_serves` names.

        They are a quarter of the rows so far, unless each row is to be predicted from all rows before it.
        """
        if self.filter_serves == inf:
            return sys.maxsize
        return ceil(self.filter_serves) if exact else max(int(self.information.rows) // 4, 1)

    def ahead(self, time: float | None = None) -> Self:
        """Return what is known at a later time."""
        kind, info = self.settings.forgetting, self.information
        if self.elapsed is not None:
            return self
        if not kind.needs_times:
            return super().ahead(time)
        if time is None or self.time is None or time == self.time:
            return self
        check_later(time, self.time)
        left = float(kind.left(self.time, time))
        return replace(self, information=info.forget(left), time=time, elapsed=left)

    def _predicted(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple[Self, Innovations]:
        """Return the state after a piece, and its innovations.

        Where there is a scorer, the estimate before the piece predicts all of its rows, with their mean leverage if
        that is small, or with the leverage of each if it is moderate. Otherwise the rows before it predict each row.
        """
        scorer = self.current_scorer if self.predicts and not exact else None
        if scorer is None:
            if known and self.predicts:
                return _taken(self, block, exact=exact)
            return self.learn(block), Innovations.unknown(block.y)
        mean = np.empty((len(block), len(scorer.variance)))

        def visit(start: int, stop: int) -> None:
            mean[start:stop] = scorer.predictor(block.X[start:stop]).reshape(stop - start, -1)

        after = self.learn(block, visit)
        leverage = scorer.mean_leverage(self.information, after.information)
        if not leverage < SMALL_LEVERAGE:
            moderate = leverage < MODERATE_LEVERAGE and not _needs_every_leverage(self)
            return after, super().innovations(block, after) if moderate else self.innovations(block, after)
        own = self.settings.own_variance(block)
        return after, scorer.innovations(block, mean, own, float(self.information.rows))

    def innovations(self, block: Block, after: Self, *, exact: bool = False) -> Innovations:
        """Return the innovations of a piece, equal to those of its rows one by one."""
        return _taken(self, block, after, exact=exact)[1]

    @property
    def n_held(self) -> int:
        """The number of rows of the window."""
        return 0 if self.window is None else len(self.window)

    def without_rows(self) -> Self:
        """Return the state about the means of the rows, where a first row may have been the origin of its sums."""
        if self.window is not None:
            raise ValueError(
                worded(
                    f"A window is made of the rows themselves, and a model file would hold its {self.n_held} rows as "
                    "they came. Forget in another way, or save the rows too: leave {samples=False} out."
                )
            )
        return replace(self, information=self.information.about_means())

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        alpha, path = self.belief.facts.alpha, AlphaFamily(self.rows).path(alphas)
        return path.about(alpha=None if np.ndim(alpha) else float(alpha))

    # ---- saving ----------------------------------------------------------------------------------------

    @property
    def sizes(self) -> dict[str, int | None]:
        d, k = self.information.d, self.targets
        return {"d": d, "k": k, "o": k, "p": 1 + d}  # the scores of a linear model always have an intercept

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, name: str, sizes: Sizes, **about: Any) -> Self:
        window = WindowRows.restored(saved, f"{name}.window", sizes) if f"{name}.window" in saved else None
        state = saved.tree(cls, name, sizes, settings=settings, window=window, **about)
        expect(state.targets == sizes["k"] and sizes["p"] == 1 + state.information.d)
        expect(settings.forgetting.window == (window and window.size))
        expect((state.time is None) or settings.by_time)
        return state

    def with_features(self, more: int) -> Self:
        """Return the state about more features. Exact; O(d^2).

        What predicted the last rows gives way to an estimate that knows how uncertain the new coefficients are.
        """
        return grown(replace(self, spread_before=self.rows.spread), more)


def _together(state: Exact, *, exact: bool) -> float:
    """Return how many rows can be predicted together, if none is forgotten.

    The innovations of the first rows are computed exactly. Later rows are predicted by a `Scorer`.
    """
    n = float(state.information.rows)
    if not state.predicts and state.chooses_alpha:
        return state.first_rows - int(n)
    if not state.predicts:
        return 1 if exact or state.belief.posterior.proper else _LONGEST
    if exact:
        return (_walking_freely(state.settings) or 1) if state.settings.forgets else _LONGEST
    if state.current_scorer is not None:
        return next_cut(state) - n
    most = state._held(exact=False) if state.settings.forgets else _LONGEST
    return min(_LONGEST, most, next_cut(state) - n)


def _taken(before: E, block: Block, after: E | None = None, *, exact: bool = False) -> tuple[E, Innovations]:
    """Return the state after a piece, if it is not given, and the `innovations` of the piece.

    Filters predict the rows. They are made afresh on the way where they no longer hold; see `filter_serves`.
    """
    posterior = before.belief.posterior
    unknown = not posterior.proper and posterior.factor.undetermined(before.belief.design.rows(block.X[:1]))[0]
    if may_overflow(block) or unknown:
        mean = {"mean": before.belief.mean(block.X)} if unknown else {}
        return after or before.learn(block), Innovations.unknown(block.y)._replace(**mean)
    state, start, found = before, 0, []
    filters, inputs = _filters_of(before, block)
    while True:
        stop = min(start + state._held(exact=exact), len(block))
        piece = block.part(start, stop)
        found.append(_followed(filters, piece, inputs[start:stop], before.settings, before.time))
        last = stop == len(block)
        state, start = (after if last and after is not None else state.learn(piece)), stop
        if last:
            return state, Innovations.concatenated(found)
        if not continues(state, filters):
            state = beginning(state, np.hstack([one.kernel.theta for one in filters]))
            if not state.belief.posterior.proper:  # the rest may have rows in new directions
                break
            filters, inputs = _filters_of(state, block)
    for one in state.steps(block.part(start, len(block)), start, every_row=exact):
        assert one.found is not None and isinstance(one.after, type(before))
        state = one.after
        found.append(one.found)
    return state, Innovations.concatenated(found)


def _filters_of(state: Exact, block: Block) -> tuple[list[SquareRootFilter], Array]:
    """Return the filters that predict the rows of a block, one for each covariance, and the inputs of the rows."""
    times = times_of(state.settings, block, state.time)
    belief = (state if times is None else state.ahead(float(times[0]))).belief.of_next_row
    posterior, design, noise_var = belief.posterior, belief.design, state.settings.noise_var
    if len(posterior.factors) > 1:
        k = len(posterior.factors)
        return [SquareRootFilter.of(posterior, design, noise_var, j) for j in range(k)], block.X
    if state.settings.forgetting.walks:
        return [SquareRootFilter.of(posterior, design, noise_var)], block.X
    posterior, design, inputs = _in_row_space(belief, block.X)
    return [SquareRootFilter.of(posterior, design, noise_var)], inputs


def beginning(state: E, theta: Array) -> E:
    """Return the state whose search begins at an estimate, shape (p, k), if there are enough rows to be near it."""
    if float(state.information.rows) <= _ROWS_EACH * len(theta):
        return state
    return replace(state, begin=theta if state.targets else theta[:, 0])


def continues(state: Exact, filters: list[SquareRootFilter]) -> bool:
    """Whether filters that were moved to these rows still hold: the same coefficients are at a kink or a bound.

    Their estimates are then the minimiser: where a penalty is made of pieces, it is quadratic between its kinks.
    """
    settings = state.settings
    pieces = settings.penalty.regularizer(settings.alpha).pieces() if not state.chooses_alpha else None
    if pieces is None or settings.standardize or settings.forgetting.walks:
        return False
    first, (R, z, _) = int(settings.fit_intercept), state.rows.centered.compact()
    now = np.hstack([one.kernel.theta for one in filters])[first:].T
    left, right = pieces.slopes(now)
    before = pieces.slopes(np.hstack([one.start for one in filters])[first:].T)
    if not (np.array_equal(left, before[0]) and np.array_equal(right, before[1])):
        return False
    descent = (z.reshape(len(R), len(now)) - R @ now.T).T @ R - pieces.l2 * now
    return bool(((left == right) | ((left <= descent) & (descent <= right))).all())


def next_cut(state: Exact) -> float:
    """Return the number of rows at which predictions change: from exact innovations to a scorer, or to the next one."""
    if (scorer := state.current_scorer) is not None:
        return scorer.rows + scorer.reach
    return _exact_rows(state) if float(state.information.rows) < _exact_rows(state) else inf


def _needs_every_leverage(state: Exact) -> bool:
    """Whether the exact filter predicts all rows, because robust standard errors need the leverage of each."""
    settings = state.settings
    return settings.coef_cov != "model" and not settings.noise_depends_on_inputs and state.predicts_every_row


def _exact_rows(state: Exact) -> int:
    """Return the number of rows whose innovations are exact."""
    return max(_EXACT_ROWS[0] * (state.information.d + state.settings.fit_intercept), _EXACT_ROWS[1])


def _walking_freely(settings: Settings) -> int:
    """Return the number of rows whose innovations are exact while coefficients walk without a penalty; 0 otherwise."""
    return LONGEST if settings.forgetting.walks and not settings.penalty.penalises else 0


def _foreseen(belief: LinearBelief, X: Array) -> int:
    """Return how many of these rows can be predicted together.

    They are those before the first row in a new direction or, if the first row is in one, the rows at the start
    that each add another new direction.

    A new direction is one that neither the rows learned so far nor the penalty determine.
    """
    factor = belief.posterior.factor
    for start in range(0, len(X), _CHUNK):  # which takes less memory than all rows at once
        new = factor.undetermined(belief.design.rows(X[start : start + _CHUNK]))
        if new.any() and (start or not new[0]):
            return start + int(np.argmax(new))
        if new.any():
            break
    else:
        return len(X)
    run = int(np.argmin(new)) if not new.all() else len(new)
    run = min(run, factor.n_undetermined)
    parts = factor.along_null(belief.design.rows(X[:run]))
    size = np.abs(np.diagonal(np.linalg.qr(parts.T, mode="r")))
    repeated = size <= np.finfo(float).eps ** 0.5 * np.linalg.norm(parts, axis=1)
    return max(int(np.argmax(repeated)) if repeated.any() else run, 1)


def _followed(
    filters: list[SquareRootFilter], block: Block, inputs: Array, settings: Settings, since: float | None
) -> Innovations:
    """Return the innovations of a block that filters learn, given its inputs; `since` is the time of the row before."""
    kind, counts = settings.forgetting, settings.counts(block.weights)
    take: Callable[..., Innovations] = partial(SquareRootFilter.take, own=settings.own_variance(block), counts=counts)
    if kind.walks:
        take = partial(take, walk=kind)
    elif kind.fades and kind.forgets:
        each = np.ones(len(block)) if counts is None else counts
        take = partial(take, fading=course(kind, each, times_of(settings, block, since), since))
    rows = Block(inputs, block.y, _weights(block))
    if len(filters) == 1:
        return take(filters[0], rows)
    columns = (replace(rows, y=y) for y in block.y.T)
    return Innovations.joined([take(one, column) for one, column in zip(filters, columns, strict=True)])


def _weights(block: Block) -> Array | None:
    """Return the weights with which rows are learned: divided by the variance of their noise."""
    if block.noise is None:
        return block.weights
    return (1.0 if block.weights is None else block.weights) / block.noise


def _in_row_space(belief: LinearBelief, X: Array) -> tuple[InformationPosterior, Design, Array]:
    """Return the posterior, the design and rows of X in the coordinates that the rows so far and these rows span.

    What is orthogonal to them is at its prior before and after the block. O((m + b)^2 d) for m rows so far.
    """
    posterior, design = belief.posterior, belief.design
    h = diagonal_curvature(posterior.regularizer, posterior.data.d)
    R = posterior.data.compact()[0]
    if h is None or not h.any() or len(R) + len(X) >= posterior.data.d:
        return posterior, design, X
    space = RowSpace.of(np.concatenate([R, design.rows(X)]), h, posterior.data.rows)
    if space is None:
        return posterior, design, X
    data = posterior.data.in_coordinates(space.rows[: len(R)])
    reduced = InformationPosterior(data, Ridge(space.curvature), gamma=posterior.gamma)
    design = Design(offset=design.offset, offset_rest=design.offset_rest)
    return reduced, design, space.rows[len(R) :]
