"""The state of a model of many parameters, whose information is held in a structure instead of a dense matrix."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, partial, reduce
from operator import add
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from kalprox.algorithms.state import learned_by, outliers_of
from kalprox.base.arrays import Array
from kalprox.base.text import worded
from kalprox.base.tree import Saved, Sizes, expect, leaf, state
from kalprox.information.implicit import counting, inputs_of
from kalprox.large.block_diagonal import BlockDiagonal
from kalprox.large.diagonal_rows import DiagonalFilter
from kalprox.large.information import Structured, StructuredPosterior, Weighed, noise_of, piece_rows
from kalprox.large.low_rank import PlusLowRank, StructuredFactor
from kalprox.large.rows import learn_rows, minimiser, moved_intercept
from kalprox.learning.belief import Belief, Facts
from kalprox.learning.design import Design, Moments
from kalprox.learning.errors import Estimate
from kalprox.learning.linearised_belief import contrasts
from kalprox.learning.passes import refined
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import FIRST_PIECE, Core, Following
from kalprox.learning.targets import Targets, check_targets
from kalprox.learning.weak_prior import coef_regularizer, first_intercept, weak_precisions
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.base import Learned
from kalprox.noise import Noise
from kalprox.posterior import Posterior
from kalprox.solvers.terms import diagonal_curvature
from kalprox.sources import ArraySource, Block, Counts, Source

_WEAK = 1e-5  # the precision of what has no penalty in a stream, in units of the noise: less would lose digits
_NOT_FOUND = (
    "The minimiser was not found for some rows of the stream, whose loss is far from a parabola near the estimate: it "
    "may be a little off. Scale the columns to similar sizes, use a stronger penalty, or use fit."
)
_MANY = 20  # rows for each parameter, with which a batch is fitted in several passes
_AS_MANY = 0.25  # and as a share of the rows before it
_FAR = 0.02  # the squared distance of the mean of the columns from their centre, in standard deviations, that matters
_LOST = 1e-6  # the share of the precision below which nothing is said of what a structure drops


@state
class StructuredState(Core):
    """The minimiser over all rows, found without a matrix, and its precision in a structure.

    Attributes
    ----------
    data : Structured
        The information of the rows, the prior and the penalty, with the estimate as its mean.
    fixed : Design
    noise_found : Noise
    learned : Learned or None
        What is known of the parameter of the likelihood; None if it has none.
    """

    data: Structured
    fixed: Design
    noise_found: Noise
    learned: Learned | None = None
    n_passes: int = 1
    fit_converged: bool = True
    message: str = ""
    fit_column_std: Array | None = leaf("d", sign="nonnegative", default=None)
    fit_outside: float = 0.0
    seen: Moments | None = None  # of all rows

    in_one_pass: ClassVar[bool] = False

    @cached_property
    def belief(self) -> "StructuredBelief":
        return StructuredBelief(self.settings, self, n_passes=self.n_passes, fit_message=self.message)

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "StructuredState":
        """Return the state before the first row: the ridge penalty is the prior, and a weak one where there is none.

        The intercept that fits the first rows best is its prior mean, so that the weak prior does not pull.
        """
        assert settings.structure is not None
        blocks = [counting(block) for block in blocks]
        moments = reduce(add, map(Moments.of, blocks))
        about: dict[str, Any] = {"intercept": settings.fit_intercept, "standardize": False}
        about |= {"centred": not any(scipy.sparse.issparse(block.X) for block in blocks)}
        design = Design.of_moments(moments, row_offsets=blocks[0].offset is not None, **about)
        h = diagonal_curvature(coef_regularizer(settings, design), design.size)
        assert h is not None
        largest = max((float(block.y.max(initial=0.0)) for block in blocks), default=0.0)
        weak = np.full(design.size, _WEAK)
        if not settings.likelihood.location:
            weak = weak_precisions(settings, design, moments, largest)
        mean = np.zeros(design.size)
        if settings.fit_intercept:
            mean[0] = first_intercept(settings.likelihood, blocks, float(weak[0]))
        data = settings.structure.start(mean, np.where(h > 0, h, weak))
        none = Moments(0.0, 0 * moments.mean, 0 * moments.squares)
        return cls(settings, data, design, Noise.known(settings.gamma or 1.0), seen=none)

    @classmethod
    def fit(
        cls, settings: Settings, source: Source, start: "StructuredState | None" = None
    ) -> tuple["StructuredState", Counts]:
        """Refine to a stationary point of the objective, after one pass for the means of X; see `kalprox.refine`."""
        found = refined(settings, source, None if start is None else lambda _: np.asarray(start.data.mean))
        out, design, data = found.out, found.design, found.out.information
        noise = Noise(np.asarray(out.noise_var), np.asarray(out.noise_dof))
        rss = (data.rows - design.first) * out.noise_var  # so that a stream goes on with this noise variance
        data = replace(data, rss=rss)
        about_fit = out.passes, out.converged, out.message, found.column_std, found.seen.y.outside
        return cls(settings, data, design, noise, learned_by(out), *about_fit, found.seen.X), found.counts

    def learn(self, block: Block) -> "StructuredState":
        """Learn a block in one pass; the mean is exact for the precision before each piece of its rows.

        Exact means the minimiser of the loss of the piece and of what was known before; see `learn_rows`.
        """
        settings, likelihood = self.settings, self.settings.likelihood
        check(settings, way="one pass")
        if block.count == 0:
            return self
        block = counting(block)
        if block.offset is not None:
            check(settings, way="offset")
        new = Targets.of(settings, block)
        check_targets(settings, new, new, block)
        about: dict[str, Any] = {"seen": Moments.of(block) if self.seen is None else self.seen.with_rows(block)}
        state = self._centred(about["seen"], block)
        if likelihood.quadratic:
            inputs = state.fixed.rows(block.X, block.offset)
            data = state.data.fold(inputs, block.y, block.weights, settings.counts(block.weights))
        else:
            data, about["learned"], converged = learn_rows(state.data, likelihood, self.learned, *state._rows(block))
            if not converged:
                about |= {"fit_converged": False, "message": _NOT_FOUND}
        found = replace(state, data=data, **about)
        noise = noise_of(data, found.belief.likelihood, settings.gamma, fitted=float(found.fixed.first))
        return replace(found, noise_found=noise)  # the first row fits the intercept without an error

    def _centred(self, seen: Moments, block: Block) -> "StructuredState":
        """Return the state with the columns centred at their mean in all rows and a block, if that is far away.

        Otherwise the columns go together with the intercept, and a structure without directions drops how they do: the
        centre is the mean of the first batch, and of a single row, or of sorted ones, that is far from all others.
        """
        data, design = self.data, self.fixed
        if data.rank or not design.intercept or design.center is None or not data.rows > 0:
            return self
        if scipy.sparse.issparse(block.X) and not design.center.any():
            return self  # sparse rows stay sparse
        away, varying = seen.mean - design.center, seen.squares > 0
        if not seen.rows * (away[varying] ** 2 / seen.squares[varying]).sum() > _FAR:
            return self
        shift = self._shift(seen.mean)
        base = data.precision.base
        row = base.apply(np.eye(1, data.d)[0])  # of the intercept, which moves as `moved_intercept` has it
        root = np.sqrt(row[0])
        none, before, after = base.scaled(0.0), row / root, row / root - root * shift
        base = base.plus(none.plus_rows(after[None])).plus(none.plus_rows(before[None]).scaled(-1.0))
        data = replace(data, mean=moved_intercept(data.mean, shift), precision=data.precision.with_base(base))
        return replace(self, data=data, fixed=replace(design, center=seen.mean))

    def _shift(self, center: Array) -> Array:
        """Return how far another centre of the columns is away in the units of theta, and 0 for the intercept."""
        return np.concatenate([[0.0], (center - self.fixed.center) / self.fixed.scale])

    def settled(self, batch: Block | ArraySource, before: "StructuredState") -> "StructuredState":
        """Return the state after a batch, fitted in several passes if it has 20 rows for each parameter.

        Learned piece by piece, rows are weighed by a precision that has lost its correlations, and where columns go
        together or change slowly the estimate stays far from the minimiser. That is mended for the first batch, and for
        one with at least a quarter as many rows as all before it, which then count as the prior that they are. Of
        fewer rows each pass would be more than all the rest of the work, and their correlations are not those of all.
        """
        learned = float(before.data.rows)
        if self.data.rows - learned < max(_MANY * self.data.d, _AS_MANY * learned):
            return self
        if learned:
            rows = self._rows(counting(Block(batch.X, batch.y, batch.weights, offset=batch.offset)))
            shift = None if self.fixed is before.fixed else before._shift(self.fixed.center)
            theta, converged = minimiser(self.data, before.data, shift, self.belief.likelihood, *rows)
            about: dict[str, Any] = {} if converged else {"fit_converged": False, "message": _NOT_FOUND}
            return replace(self, data=replace(self.data, mean=theta), **about)
        if isinstance(batch, Block):
            batch = ArraySource(batch.X, batch.y, batch.weights, offset=batch.offset, keep_sparse=True)
        fitted, _ = self.fit(self.settings, batch, self)
        return replace(fitted, seen=self.seen)

    def _rows(self, block: Block) -> tuple[Weighed, Array]:
        """Return the inputs of the predictor in a block of rows of positive weight, and the offsets of the rows."""
        inputs, counts = self.fixed.rows(block.X, block.offset), self.settings.counts(block.weights)
        offset = np.zeros(len(block)) if block.offset is None else block.offset
        inputs = inputs if block.offset is None else inputs[:, : self.fixed.size]
        return Weighed.of(inputs, block.y, block.weights, counts, None), offset

    def _next_piece(self, block: Block, start: int, rows: int, *, exact: bool = False) -> int:
        """Return the end of the piece of a block that begins at row `start`; it is at most an eighth of all rows.

        Each of many columns is in few rows, so that the last rows matter for a prediction.
        """
        return min(len(block), start + (1 if exact else max(FIRST_PIECE, rows // 8)))

    # ---- single rows -----------------------------------------------------------------------------------

    def following(self, rows: int) -> Following | None:
        """Return how single sparse rows are followed by a linear Gaussian model that holds a diagonal."""
        settings, data, design = self.settings, self.data, self.fixed
        if settings.needs_innovations or settings.forgets or data.rank or data.precision.base.layout.groups:
            return None
        if not (settings.is_linear and settings.likelihood.quadratic) or design.row_offsets or design.center is None:
            return None
        if diagonal_curvature(settings.penalty.regularizer(settings.alpha), 1) is None:
            return None
        if design.center.any() or not np.all(design.scale == 1):
            return None
        return Following(len(design.center), None, np.inf, leads=True, sparse=True)

    def row_filter(self) -> DiagonalFilter:
        return DiagonalFilter(self.settings, self.data, self.fixed.first)

    def after_filter(self, live: DiagonalFilter, block: Block, found: list[Array]) -> tuple["StructuredState", None]:
        seen = live.seen() if self.seen is None else self.seen + live.seen()
        return replace(self, data=live.information(), noise_found=live.noise_found, seen=seen), None

    def with_settings(self, settings: Settings) -> "StructuredState":
        return replace(self, settings=settings)

    # ---- saving ----------------------------------------------------------------------------------------

    def without_rows(self) -> "StructuredState":
        """Return the state with the directions of its precision turned: some of them may be rows as they came."""
        P = self.data.precision
        turned = np.linalg.eigh(P.gram)[1].T @ P.W
        return replace(self, data=replace(self.data, precision=PlusLowRank.of(P.base, turned)))

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, name: str, sizes: Sizes) -> "StructuredState":
        assert settings.structure is not None
        data, (p,) = f"{name}.data", saved[f"{name}.data.mean"].shape
        expect(p == sizes["p"] and (saved[f"{data}.prior_precision"] > 0).all())
        like = settings.structure.start(saved[f"{data}.mean"], saved[f"{data}.prior_precision"])
        base = saved.tree(BlockDiagonal, f"{data}.precision.base", sizes, layout=like.precision.base.layout)
        expect([one.shape for one in base.dense] == [one.shape for one in like.precision.base.dense])
        precision = saved.tree(PlusLowRank, f"{data}.precision", sizes, base=base)
        expect(len(precision.W) <= (like.rank and like.rank + piece_rows(like.rank)))
        about = {"precision": precision, "least": like.least, "rank": like.rank}
        whole = saved.tree(Structured, data, sizes, **about)
        return saved.tree(cls, name, sizes, settings=settings, data=whole)

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError if something is not known that rows tell."""
        expect((self.learned is None) is (self.settings.likelihood.parameter is None or not self.data.rows > 0))


@state
class StructuredBelief(Belief):
    """What the rows say that a state has learned."""

    state: StructuredState

    @property
    def data(self) -> Structured:
        """The information of the rows."""
        return self.state.data

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with the parameter that was learned."""
        given = self.settings.likelihood
        return given if self.state.learned is None else self.state.learned.likelihood(given)

    @property
    def predicts(self) -> bool:
        """Whether there is a noise variance to predict with."""
        return float(self.data.rows) > 0 and bool(np.isfinite(self.state.noise_found.variance))

    @property
    def design(self) -> Design:
        return self.state.fixed

    @cached_property
    def posterior(self) -> Posterior:
        free = np.asarray(coef_regularizer(self.settings, self.design).free(self.data.mean))
        held = None if free.all() else ~free
        factor = partial(StructuredFactor, self.data.precision, held)
        return StructuredPosterior(self.data.mean, self.state.noise_found, self.likelihood, factor)

    @property
    def converged(self) -> bool:
        return self.state.fit_converged

    @cached_property
    def facts(self) -> Facts:
        std, seen = self.state.fit_column_std, self.state.seen
        std = seen.sd if std is None and seen is not None else std
        outliers = outliers_of(self.settings.likelihood, self.state.learned)
        return Facts(self.settings.alpha, None, std, self.state.fit_outside, outliers)

    @property
    def std_doubt(self) -> str:
        lost = float(self.data.dropped)
        if not lost > _LOST:
            return ""
        return worded(
            "The standard errors of coefficients, and the std of the mean along contrasts of correlated columns, may "
            f"be too small: of {lost:.0%} of the precision of the rows the structure keeps no correlations, and "
            "without them everything seems better known than it is. Intervals of new rows that include the noise are "
            "affected far less. Of rows that came in several batches the estimate, too, may be off by many standard "
            "errors where columns go together or change slowly, unless each has at least a quarter as many rows as all "
            "before it. Use a structure of a higher rank, or {structure=None} if the columns are few enough."
        )

    def covariance_of(self, some: Array) -> Array:
        units = np.zeros((len(some), self.data.d))
        units[np.arange(len(some)), self.design.first + some] = (
            1 if self.design.scale is None else 1 / self.design.scale[some]
        )
        root = self.posterior.factors[0].whitened(units)
        return root @ root.T * np.asarray(self.posterior.noise.variance)

    @property
    def exact_zeros(self) -> Array:
        kinked = not coef_regularizer(self.settings, self.design).smooth
        return (self.coef == 0) & (self.coef_std == 0) & kinked

    def contrasts(self, posterior: Posterior) -> Any:
        return contrasts(self.design, coef_regularizer(self.settings, self.design))

    def determined(self, penalised: bool) -> Array:
        return np.ones(self.coef.shape[-1], bool)

    @property
    def why_no_interval(self) -> str:
        if coef_regularizer(self.settings, self.design).smooth:
            return ""
        return (
            "Intervals of the coefficients are empty: with this penalty they are about the estimate without it, which "
            "a structure does not give."
        )

    def coef_estimate(self, penalised: bool) -> Estimate:
        if not penalised or self.why_no_interval:
            raise ValueError(
                "An interval of coefficients without the penalty is not offered with a structure. Read coef_ and "
                "coef_std_, or set structure=None."
            )
        return super().coef_estimate(penalised)

    def _value(self, inputs: Array) -> tuple[Array, Any]:
        """Return the output of the model at the estimate, and its Jacobian by its products."""
        J = inputs_of(self.model, np.asarray(self.posterior.mean), inputs)
        return J.value(), J
