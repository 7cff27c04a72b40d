"""The state of a linear model: how rows are folded into its information, and predicted before that."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from typing import Any, ClassVar

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import LARGEST, check_usable
from kalprox.base.tree import Saved, Sizes, expect, grown, leaf, state
from kalprox.information import Information, merge
from kalprox.learning.design import Design
from kalprox.learning.drift import LONGEST, fold_drifting, walking_innovations
from kalprox.learning.fingerprint import fingerprint
from kalprox.learning.folds import CrossValidation, Folds, piece_reaching
from kalprox.learning.innovations import Innovations, SquareRootFilter, may_overflow
from kalprox.learning.linear import LinearBelief
from kalprox.learning.moment_filter import MomentFilter
from kalprox.learning.path import Path
from kalprox.learning.rules import check
from kalprox.learning.scorer import MODERATE_LEVERAGE, SMALL_LEVERAGE, Scorer
from kalprox.learning.settings import Settings
from kalprox.learning.state import FIRST_PIECE, State, check_any_row
from kalprox.learning.window import WindowRows
from kalprox.linalg.row_space import row_coordinates
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Ridge
from kalprox.solvers.curvature import diagonal_curvature
from kalprox.sources import Block, Counts, Source
from kalprox.sources.forgetting import course, faded
from kalprox.sources.times import check_later
from kalprox.sources.weighting import CountedSource, counts_of

__all__ = ["Exact"]

_EXACT_ROWS = 10, 2048  # the innovations of as many rows per coefficient, or in all, are computed exactly
_LONGEST = 4096  # rows of a piece whose innovations are exact
_CHUNK = 1024  # rows predicted at a time
_MANY_COLUMNS = 512


@state
class Exact(State):
    """The information of the rows of a linear model, and how each row is learned and was predicted before.

    Attributes
    ----------
    information : Information
    folds : Folds or None
        The rows in folds, if alpha is chosen by cross-validation.
    spread_before : array of shape (d,) or None
        The `spread` of the belief before the last rows.
    elapsed : float or None
        What the time since the last row has left of the weights; None for all.
    scorer : Scorer or None
        What predicted the last rows.
    window : WindowRows or None
        The rows of the window, if there is one.
    time : float or None
        The time of the last row, if rows are forgotten by time.
    """

    information: Information
    folds: Folds | None = None
    spread_before: Array | None = leaf("d", sign="nonnegative", default=None)
    elapsed: float | None = leaf(default=None, given=True)
    scorer: Scorer | None = leaf(default=None, derived=True)
    window: WindowRows | None = None
    time: float | None = leaf(default=None, kw_only=True)

    whole_batches: ClassVar[bool] = True

    @cached_property
    def belief(self) -> LinearBelief:
        return LinearBelief(
            self.settings,
            self.information,
            self.folds,
            spread_before=self.spread_before,
            elapsed=self.elapsed,
            time=self.time,
        )

    @property
    def linear_information(self) -> Information:
        return self.information

    @property
    def targets(self) -> int | None:
        return self.information.targets

    @property
    def effective_rows(self) -> float:
        return float(self.information.effective_rows)

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError unless what the settings need is there, for as many targets."""
        window = self.settings.forgetting.window
        expect(self.targets == sizes["k"] and sizes["p"] == 1 + self.information.d)
        expect(window == (self.window and self.window.size))
        expect((self.time is None) or self.settings.by_time)

    # ---- learning --------------------------------------------------------------------------------------

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "Exact":
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
    def fit(cls, settings: Settings, source: Source) -> tuple["Exact", Counts]:
        """Fit in one pass to a source without an order of rows."""
        check(settings, way="no order")
        folded = CountedSource(source, settings.weight_kind).fold(Information.from_block)
        check_any_row(folded.counts)
        assert folded.total is not None
        return cls(settings, folded.total), folded.counts

    def learn(self, block: Block) -> "Exact":
        """Return the state after one more block of b rows. Exact up to rounding; O(b d^2)."""
        if not self.belief.by_prediction:
            return self._fold(block)
        state, start, counts = self, 0, self.settings.counts(block.weights)
        while start < len(block):
            left = state._current_folds.left
            stop = start + piece_reaching(left, None if counts is None else counts[start:], len(block) - start)
            state = state._fold(block.part(start, stop))
            start = stop
        return state

    @property
    def _current_folds(self) -> Folds:
        """The folds for the choice of alpha by cross-validation; empty ones if it was not asked for before."""
        return self.folds or Folds.start(partial(LinearBelief, self.settings), self.information)

    def _fold(self, block: Block, visit: Callable[[int, int], None] | None = None) -> "Exact":
        info, weights, kind, window = self.information, block.weights, self.settings.forgetting, self.window
        counts, squares, left, folds = counts_of(weights, self.settings.weight_kind), None, None, None
        if block.times is not None and not kind.needs_times:
            check(self.settings, way="times")
        time = self.time
        if kind.fades and kind.forgets:
            times = self._times(block, self.time)
            weights = np.ones(len(block)) if weights is None else weights
            weights, counts, squares, left = faded(weights, kind, counts, times, self.time)
            info = info.forget(left) if float(info.rows) > 0 else info
            time = None if times is None else float(times[-1])
        if block.noise is not None:
            counts = self.settings.counts(weights) if counts is None else counts
            counts = np.ones(len(block)) if counts is None else counts
            weights = (1.0 if weights is None else weights) / block.noise
        if window is not None:
            window = window.after(block)
            info = window.information
        elif kind.walks:
            times_seen = self.settings.counts(block.weights)
            info = fold_drifting(
                info, kind, replace(block, weights=weights), times_seen, intercept=self.settings.fit_intercept
            )
        else:
            info = info.fold(block.X, block.y, weights, counts, squares, visit=visit)
            if self.belief.by_prediction:
                rows, times_seen = (block.X, block.y, weights, counts, squares), self.settings.counts(block.weights)
                n = float(len(block) if times_seen is None else times_seen.sum())
                folds = self._current_folds.after(lambda one: one.fold(*rows), n, left)
        if not np.abs(info.T.diagonal()).max() < LARGEST:  # otherwise no value is larger
            check_usable(block.X, block.y, block.weights)
        scorer = self.current_scorer if float(self.information.rows) else None
        if scorer is not None and not scorer.serves_on(float(info.rows), len(block)):
            scorer = None
        spread = self.belief.spread
        return Exact(self.settings, info, folds, spread, scorer=scorer, window=window, time=time)

    def with_settings(self, settings: Settings) -> "Exact":
        folds = self.folds and self.folds.under(partial(LinearBelief, settings))
        window = None if settings.forgetting.window is None else self.window
        time, before = self.time if settings.by_time else None, self.belief.spread
        return replace(
            self, settings=settings, folds=folds, spread_before=before, scorer=None, time=time, window=window
        )

    def with_origin(self, columns: Array, values: Array) -> "Exact":
        """Return the state with other values of columns that have been zero in all rows. Exact."""
        information = self.information.with_origin(columns, values)
        folds = self.folds and self.folds.mapped(lambda one: one.with_origin(columns, values))
        return replace(self, information=information, folds=folds, scorer=None)

    def merge(self, other: State) -> "Exact":
        """Return the state after the rows of both. Exact; O(d^3)."""
        assert isinstance(other, Exact)  # whose settings are the same
        info = merge(self.information, other.information)
        folds = self.folds and other.folds and self.folds.merge(other.folds)
        return Exact(self.settings, info, folds, self.belief.spread)

    @property
    def predicts(self) -> bool:
        return self.belief.predicts

    # ---- innovations -----------------------------------------------------------------------------------

    @cached_property
    def has_fixed_penalty(self) -> bool:
        """Whether the penalty is a quadratic that does not depend on the rows: `SquareRootFilter` is then exact."""
        settings = self.settings
        if self.belief.chooses_alpha or settings.standardize:
            return False
        g, d = settings.penalty.regularizer(settings.alpha), self.information.d
        return diagonal_curvature(g, d) is not None or g.root(d) is not None

    @property
    def predicts_every_row(self) -> bool:
        return self.has_fixed_penalty and not self.settings.forgets

    @property
    def is_wide(self) -> bool:
        """Whether columns outnumber rows so far that a root of the covariance as one matrix costs more than a fold."""
        m, p = self.information.T.shape
        return bool(p > _MANY_COLUMNS and 4 * m <= 3 * p)

    @property
    def _needs_every_leverage(self) -> bool:
        """Whether the exact filter predicts all rows, because robust standard errors need the leverage of each."""
        return self.settings.needs_leverage and self.predicts_every_row

    @property
    def _exact_rows(self) -> int:
        """The number of rows whose innovations are exact."""
        return max(_EXACT_ROWS[0] * (self.information.d + self.settings.fit_intercept), _EXACT_ROWS[1])

    @cached_property
    def current_scorer(self) -> Scorer | None:
        """What predicts the next rows of a long stream; None as long as their innovations are exact."""
        settings, n = self.settings, float(self.information.rows)
        if self.scorer is not None and self.scorer.serves(n):
            return self.scorer
        if n < self._exact_rows or settings.forgets or self._needs_every_leverage or not settings.needs_innovations:
            return None
        posterior = self.belief.posterior
        if len(posterior.factors) > 1 or not posterior.proper:
            return None
        return Scorer.of(posterior, self.belief.design, n)

    def with_new_scorer(self) -> "Exact":
        """Return the state with an estimate of all its rows in place of the one that predicted the last of them."""
        return replace(self, scorer=None)

    @cached_property
    def next_cut(self) -> float:
        """The number of rows at which predictions change: from exact innovations to a scorer, or to the next one."""
        if (scorer := self.current_scorer) is not None:
            return scorer.rows + scorer.reach
        return self._exact_rows if float(self.information.rows) < self._exact_rows else inf

    @property
    def filter(self) -> SquareRootFilter:
        """The filter that continues from this state row by row."""
        return SquareRootFilter.of(self.belief.posterior, self.belief.design, self.settings.noise_var)

    @property
    def moment_filter(self) -> MomentFilter | None:
        """The filter for single rows under any separable penalty, with forgetting or standardised columns.

        None if alpha is chosen by cross-validation, or cannot be followed, or if moments do not keep the digits.
        """
        settings, search = self.settings, self.belief.evidence_search if self.belief.chooses_alpha else None
        if self.belief.chooses_alpha and search is None:
            return None
        if not self.belief.posterior.proper:
            return None
        kind = settings.forgetting
        if not (kind.fades or (kind.of_intercept and settings.fit_intercept)):
            return None
        g, coef = (
            settings.penalty.regularizer(self.belief.alpha),
            self.belief.posterior.mean[int(settings.fit_intercept) :],
        )
        made = MomentFilter.of(settings, g, self.information, self.belief.design, coef, self.time, search)
        return made if made is not None and made.estimate() is not None else None

    def _next_piece(self, block: Block, start: int, rows: int, *, exact: bool = False) -> int:
        """Return the end of the piece of a block that begins at row `start`.

        The innovations of the first rows are computed exactly, in pieces of any length if the penalty is fixed and
        quadratic. For other penalties the estimate is computed anew after a quarter more rows, and after twice as many
        rows where alpha is chosen. Later rows are predicted by a `Scorer`. With forgetting a piece halves the weights
        at most, and is a small part of a window. With `exact`, every row is predicted from all rows before it, which
        robust standard errors need too.
        """
        exact = exact or self._needs_every_leverage
        n, forgets = self.information.rows, self.settings.forgets
        if not self.predicts:
            length = (
                FIRST_PIECE - int(n)
                if self.belief.chooses_alpha
                else 1
                if exact or self.belief.posterior.proper
                else _LONGEST
            )
        elif exact:
            length = _LONGEST if self.has_fixed_penalty and not forgets else self._walks_freely or 1
        elif self.current_scorer is not None:
            length = self.next_cut - n
        elif self.belief.chooses_alpha:
            length = min(n, self.next_cut - n)
        else:
            length = min(_LONGEST if self.has_fixed_penalty else n // 4, self.next_cut - n)
        if forgets:
            length = min(length, self._fading_piece(block, start))
        stop = min(len(block), start + max(int(length), 1))
        if self.belief.chooses_alpha or self.current_scorer is not None or self.belief.posterior.proper:
            return stop
        return start + self._foreseen(block.X[start:stop])

    @property
    def _walks_freely(self) -> int:
        """The number of rows whose innovations are exact while coefficients walk without a penalty; 0 otherwise."""
        return LONGEST if self.settings.forgetting.walks and not self.settings.penalty.penalises else 0

    def _fading_piece(self, block: Block, start: int) -> int:
        """Return the number of rows from `start` that may be predicted together although earlier rows are forgotten."""
        length = self.settings.forgetting.together(self._times(block.part(start, len(block)), self.time))
        if length is not None:
            return length
        return self._walks_freely or max(1, min(LONGEST, int(self.information.rows) // 8))

    def ahead(self, time: float | None = None) -> "Exact":
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

    def _foreseen(self, X: Array) -> int:
        """Return how many of these rows can be predicted together.

        They are those before the first row in a new direction or, if the first row is in one, the rows at the start
        that each add another new direction.

        A new direction is one that neither the rows learned so far nor the penalty determine.
        """
        factor = self.belief.posterior.factor
        for start in range(0, len(X), _CHUNK):  # which takes less memory than all rows at once
            new = factor.undetermined(self.belief.design.rows(X[start : start + _CHUNK]))
            if new.any() and (start or not new[0]):
                return start + int(np.argmax(new))
            if new.any():
                break
        else:
            return len(X)
        run = int(np.argmin(new)) if not new.all() else len(new)
        run = min(run, factor.n_undetermined)
        parts = factor.along_null(self.belief.design.rows(X[:run]))
        size = np.abs(np.diagonal(np.linalg.qr(parts.T, mode="r")))
        repeated = size <= np.finfo(float).eps ** 0.5 * np.linalg.norm(parts, axis=1)
        return max(int(np.argmax(repeated)) if repeated.any() else run, 1)

    def _predicted(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple["Exact", Innovations]:
        """Return the state after a piece, and its innovations.

        Where there is a scorer, the estimate before the piece predicts all of its rows, with their mean leverage if
        that is small, or with the leverage of each if it is moderate. Otherwise the rows before it predict each row.
        """
        scorer = self.current_scorer if self.predicts and not exact else None
        if scorer is None:
            return super()._predicted(block, known=known, exact=exact)
        mean = np.empty((len(block), len(scorer.variance)))

        def visit(start: int, stop: int) -> None:
            mean[start:stop] = scorer.predictor(block.X[start:stop]).reshape(stop - start, -1)

        if self.belief.by_prediction:
            after = self.learn(block)
            visit(0, len(block))
        else:
            after = self._fold(block, visit)
        leverage = scorer.mean_leverage(self.information, after.information)
        if not leverage < SMALL_LEVERAGE:
            moderate = leverage < MODERATE_LEVERAGE and not self._needs_every_leverage
            return after, super().innovations(block, after) if moderate else self.innovations(block, after)
        own = self.settings.own_variance(block)
        return after, scorer.innovations(block, mean, own, float(self.information.rows))

    def innovations(self, block: Block, after: "Exact", *, exact: bool = False) -> Innovations:
        """Return the innovations of a piece, equal to those of its rows one by one."""
        if may_overflow(block):
            return Innovations.unknown(block.y)
        posterior, settings = self.belief.posterior, self.settings
        if not posterior.proper and posterior.factor.undetermined(self.belief.design.rows(block.X[:1]))[0]:
            return Innovations.unknown(block.y)._replace(mean=self.belief.mean(block.X))
        options: dict[str, Any] = {"own": settings.own_variance(block), "counts": settings.counts(block.weights)}
        times = self._times(block, self.time)
        first = self if times is None else self.ahead(float(times[0]))
        return self._by_filter(first.belief.of_next_row, block, options, times)

    def _by_filter(
        self, belief: LinearBelief, block: Block, options: dict[str, Any], times: Array | None
    ) -> Innovations:
        """Return the innovations of a block by a filter that starts from a belief, at the time of its first row."""
        posterior, settings, kind = belief.posterior, self.settings, self.settings.forgetting
        block = replace(block, weights=_weights(block), times=None)
        take: Callable[..., Innovations] = partial(SquareRootFilter.take, last=True, **options)
        if kind.walks:
            take = partial(walking_innovations, walk=kind, **options)
        elif kind.fades and kind.forgets:
            counts = np.ones(len(block)) if options["counts"] is None else options["counts"]
            take = partial(take, fading=course(kind, counts, times, self.time))
        if len(posterior.factors) == 1:
            whole = posterior, belief.design, block
            start, design, block = whole if kind.walks else _in_row_space(belief, block)
            return take(SquareRootFilter.of(start, design, settings.noise_var), block)
        filters = (
            SquareRootFilter.of(posterior, belief.design, settings.noise_var, j) for j in range(len(posterior.factors))
        )
        columns = (Block(block.X, y, block.weights) for y in block.y.T)
        return Innovations.joined([take(one, rows) for one, rows in zip(filters, columns, strict=True)])

    @property
    def n_held(self) -> int:
        """The number of rows of the window."""
        return 0 if self.window is None else len(self.window)

    @property
    def fingerprint(self) -> Array:
        return fingerprint(self.information)

    def without_rows(self) -> "Exact":
        """Return the state about the means of the rows, where a first row may have been the origin of its sums."""
        if self.window is not None:
            raise ValueError(
                f"A window is made of the rows themselves, and a model file would hold its {self.n_held} rows as they "
                "came. Forget in another way, or save the rows too: leave --no-samples (samples=False) out."
            )
        information = self.information.about_means()
        folds = self.folds and self.folds.without_rows
        return replace(self, information=information, folds=folds)

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        return self.belief.path(alphas)

    # ---- saving ----------------------------------------------------------------------------------------

    @property
    def sizes(self) -> dict[str, int | None]:
        d, k = self.information.d, self.targets
        return {"d": d, "k": k, "o": k, "p": 1 + d}  # the scores of a linear model always have an intercept

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, name: str, sizes: Sizes) -> "Exact":
        folds = None
        if f"{name}.folds" in saved:
            make = partial(LinearBelief, settings)
            compared = saved.tree(CrossValidation, f"{name}.folds.compared", sizes, belief=make)
            folds = saved.tree(Folds, f"{name}.folds", sizes, compared=compared)
        window = WindowRows.restored(saved, f"{name}.window", sizes) if f"{name}.window" in saved else None
        return saved.tree(cls, name, sizes, settings=settings, folds=folds, window=window)

    def with_features(self, more: int) -> "Exact":
        """Return the state about more features. Exact; O(d^2).

        What predicted the last rows gives way to an estimate that knows how uncertain the new coefficients are.
        """
        return grown(replace(self, spread_before=self.belief.spread), more)


def _weights(block: Block) -> Array | None:
    """Return the weights with which rows are learned: divided by the variance of their noise."""
    if block.noise is None:
        return block.weights
    return (1.0 if block.weights is None else block.weights) / block.noise


def _in_row_space(belief: LinearBelief, block: Block) -> tuple[InformationPosterior, Design, Block]:
    """Return the posterior, the design and a block in the coordinates that the rows so far and these rows span.

    What is orthogonal to them is at its prior before and after the block. O((m + b)^2 d) for m rows so far.
    """
    posterior, design = belief.posterior, belief.design
    h = diagonal_curvature(posterior.regularizer, posterior.data.d)
    R = posterior.data.compact()[0]
    if h is None or not h.any() or len(R) + len(block) >= posterior.data.d:
        return posterior, design, block
    found = row_coordinates(np.concatenate([R, design.rows(block.X)]), h, posterior.data.rows)
    if found is None:
        return posterior, design, block
    rows, curvature = found
    data = posterior.data.in_coordinates(rows[: len(R)])
    reduced = InformationPosterior(data, Ridge(curvature), gamma=posterior.gamma)
    design = Design(offset=design.offset, offset_rest=design.offset_rest)
    return reduced, design, replace(block, X=rows[len(R) :])
