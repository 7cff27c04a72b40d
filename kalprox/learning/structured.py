"""The belief of a model of many parameters, whose information is held in a structure instead of a dense matrix."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import add
from typing import Any, ClassVar, NoReturn

import numpy as np
import scipy.sparse

from kalprox._arrays import Array
from kalprox.algorithms.refine import refine
from kalprox.information.implicit import counting, inputs_of, pieces
from kalprox.information.structured import Structured
from kalprox.learning.belief import Belief, check_any_row
from kalprox.learning.design import Design, DesignedSource, Moments
from kalprox.learning.intervals import Estimate
from kalprox.learning.path import Path
from kalprox.learning.saved import Saved
from kalprox.learning.settings import Settings
from kalprox.learning.targets import Seen, check_targets
from kalprox.learning.weak_prior import coef_regularizer, first_theta
from kalprox.likelihoods import Likelihood
from kalprox.linalg.structured_factor import StructuredFactor
from kalprox.noise import Noise
from kalprox.posterior import Posterior
from kalprox.solvers.curvature import diagonal_curvature
from kalprox.sources import ArraySource, Block, Counts, Source
from kalprox.structures import UnderstatedWarning

__all__ = ["StructuredBelief"]

_FREE = ("diagnose", "max_passes", "tol", "targets", "missing_targets")  # settings that may change between batches
_WEAK = 1e-5  # the precision of what has no penalty in a stream, in units of the noise: less would lose digits
_LOST = 1e-6  # the share of the precision below which nothing is said of what a structure drops


class StructuredPosterior(Posterior):
    """The posterior with a given mean, whose precision matrix is held in a structure."""

    def __init__(self, data: Structured, held: Array | None, noise: Noise, likelihood: Likelihood) -> None:
        self.data, self._held, self._noise, self.likelihood = data, held, noise, likelihood

    @property
    def mean(self) -> Array:
        return self.data.mean

    @property
    def noise(self) -> Noise:
        return self._noise

    @cached_property
    def factors(self) -> list[Any]:  # of StructuredFactor, which is read as the others are
        return [StructuredFactor(self.data.precision, self._held)]

    def output_variance(self, f: Array, D: Any) -> Array:
        """Return the variance of the outputs, see `Posterior`; D may also be a Jacobian by its products."""
        if not hasattr(D, "explicit"):
            return super().output_variance(f, D)
        parts = [self._variance_of(f[rows], rows_of_D) for rows, rows_of_D in pieces(D, len(f), f[0].size)]
        return np.concatenate(parts)

    def _variance_of(self, f: Array, D: Any) -> Array:
        if not scipy.sparse.issparse(D) or not self.likelihood.interacts:
            D = D if scipy.sparse.issparse(D) else D.reshape(-1, D.shape[-1])
            return self.leverage(D).reshape(f.shape) if not self.likelihood.interacts else super().output_variance(f, D)
        found = np.empty((*f.shape, f.shape[1]))
        for i in range(len(f)):
            rows = D[i * f.shape[1] : (i + 1) * f.shape[1]].toarray()
            found[i] = super().output_variance(f[i : i + 1], rows)[0]
        return found


@dataclass(frozen=True, eq=False)
class StructuredBelief(Belief):
    """The minimiser over all rows, found without a matrix, and its precision in a structure.

    Attributes
    ----------
    data : Structured
        The information of the rows, the prior and the penalty, with the estimate as its mean.
    fixed : Design
    noise_found : Noise
    likelihood : Likelihood
        With the parameter that was learned.
    """

    data: Structured
    fixed: Design
    noise_found: Noise
    likelihood: Likelihood
    n_passes: int = 1
    fit_converged: bool = True
    message: str = ""
    fit_column_std: Array | None = None
    fit_outside: float = 0.0
    seen: Moments | None = None  # of the rows of a stream, since the last fit

    in_one_pass: ClassVar[bool] = False

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "StructuredBelief":
        """Return the belief before the first row of a linear model: the ridge penalty is the prior."""
        assert settings.structure is not None
        _check_stream(settings)
        blocks = list(blocks)
        moments = reduce(add, map(Moments.of, blocks))
        sparse = any(scipy.sparse.issparse(block.X) for block in blocks)
        design = Design.of_moments(moments, intercept=settings.fit_intercept, standardize=False, centred=not sparse)
        h = diagonal_curvature(coef_regularizer(settings, design), design.size)
        assert h is not None
        mean = np.zeros(design.size)
        if settings.fit_intercept:
            mean[0] = _mean_target(blocks)  # so that the weak prior does not pull
        data = settings.structure.start(mean, np.where(h > 0, h, _WEAK))
        none = Moments(0.0, 0 * moments.mean, 0 * moments.squares)
        return cls(settings, data, design, Noise.known(settings.gamma or 1.0), settings.likelihood, seen=none)

    @classmethod
    def fit(
        cls, settings: Settings, source: Source, start: "StructuredBelief | None" = None
    ) -> tuple["StructuredBelief", Counts]:
        """Refine to a stationary point of the objective, after one pass for the means of X; see `kalprox.refine`."""
        if settings.forgets:
            raise ValueError("forget needs partial_fit with a structure: set forget=1.")
        folded = source.fold(partial(Seen.of, settings))
        check_any_row(folded.counts)
        assert folded.total is not None
        seen = folded.total
        check_targets(settings, seen.y, seen.y, source)
        design, rows = Design(), source
        if isinstance(settings.link, str):
            sparse = isinstance(source, ArraySource) and source.keep_sparse
            about: dict[str, Any] = {"intercept": settings.fit_intercept, "standardize": settings.standardize}
            about |= {"outputs": seen.y.outputs, "row_offsets": seen.offsets > 0, "centred": not sparse}
            design = Design.of_moments(seen.X, **about)
            rows = _designed(source, design)
        first = first_theta(settings, design) if start is None else np.asarray(start.data.mean)
        options: dict[str, Any] = {"gamma": settings.gamma, "max_passes": settings.max_passes, "tol": settings.tol}
        options |= {"weights": settings.weights, "likelihood": settings.likelihood, "structure": settings.structure}
        model, g = design.model(settings.model(design.outputs)), coef_regularizer(settings, design)
        out = refine(model, g, rows, first, **options)
        std = np.sqrt(seen.X.squares / seen.X.rows) if isinstance(settings.link, str) else None
        noise, data = Noise(np.asarray(out.noise_var), np.asarray(out.noise_dof)), out.information
        data = replace(data, rss=data.rows * out.noise_var)  # so that a stream goes on with this noise variance
        about_fit = out.passes, out.converged, out.message, std, seen.y.outside
        return cls(settings, data, design, noise, out.likelihood, *about_fit), folded.counts

    def learn(self, block: Block) -> "StructuredBelief":
        """Learn a block in one pass; the mean is exact for the precision before each piece of its rows."""
        _check_stream(self.settings)
        if block.count == 0:
            return self
        block = counting(block)
        counts = self.settings.counts(block.weights)
        data = self.data.fold(self.fixed.rows(block.X, block.offset), block.y, block.weights, counts)
        noise = self.noise_found
        if self.settings.gamma is None:
            noise = Noise.learned(data.rss, data.rows, 0.0)
        moments = Moments.of(block)
        return replace(self, data=data, noise_found=noise, seen=moments if self.seen is None else self.seen + moments)

    @property
    def predicts(self) -> bool:
        """Whether there is a noise variance to predict with: after the first row."""
        return float(self.data.rows) > 0

    def with_settings(self, settings: Settings) -> "StructuredBelief":
        if changed := [name for name in settings.changed(self.settings) if name not in _FREE]:
            raise ValueError(f"{' and '.join(changed)} cannot change between calls of partial_fit: use fit.")
        return replace(self, settings=settings)

    @property
    def design(self) -> Design:
        return self.fixed

    @cached_property
    def posterior(self) -> Posterior:
        held = ~np.asarray(coef_regularizer(self.settings, self.fixed).free(self.data.mean))
        return StructuredPosterior(self.data, held if held.any() else None, self.noise_found, self.likelihood)

    @property
    def converged(self) -> bool:
        return self.fit_converged

    @property
    def column_std(self) -> Array | None:
        return self.fit_column_std if self.fit_column_std is not None or self.seen is None else self.seen.sd

    @property
    def targets_outside(self) -> float:
        return self.fit_outside

    # ---- reading ---------------------------------------------------------------------------------------

    @cached_property
    def coef_std(self) -> Array:
        """The standard errors of the coefficients; warns if the structure is known to understate them."""
        lost = float(self.data.dropped)
        if lost > _LOST:
            warnings.warn(
                f"The standard errors of coefficients may be too small: of {lost:.0%} of the precision of the rows the "
                "structure keeps no correlations, and without them every coefficient seems better known than it is. "
                "Predictions are affected far less. Use a structure of a higher rank, or structure=None if the columns "
                "are few enough.",
                UnderstatedWarning,
                stacklevel=4,
            )
        return np.sqrt(self._variances(self._var(self.posterior)))

    @property
    def exact_zeros(self) -> Array:
        kinked = not coef_regularizer(self.settings, self.fixed).smooth
        return (self.coef == 0) & (np.sqrt(self._variances(self._var(self.posterior))) == 0) & kinked

    def determined(self, penalised: bool) -> Array:
        return np.ones(self.coef.shape[-1], bool)

    def coef_estimate(self, penalised: bool) -> Estimate:
        if not penalised or not coef_regularizer(self.settings, self.fixed).smooth:
            _refuse("An interval of coefficients without the penalty", "Read coef_ and coef_std_.")
        var = self._variances(self.posterior.factors[0].variances())
        return Estimate(self.coef, self.coef_std, self._dof(self.posterior), 1 / var)

    def _value(self, inputs: Array) -> tuple[Array, Any]:
        """Return the output of the model at the estimate, and its Jacobian by its products."""
        J = inputs_of(self.model, np.asarray(self.posterior.mean), inputs)
        return J.value(), J

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        return _refuse("path", "Fit once for each alpha.")

    def merge(self, other: Belief) -> "StructuredBelief":
        return _refuse("merge", "Fit one model to all rows.")

    def saved(self) -> dict[str, Any]:
        return _refuse("A model file", "Use pickle or joblib to keep the model.")

    @classmethod
    def restored(cls, settings: Settings, d: int, saved: Saved) -> "StructuredBelief":
        return _refuse("A model file", "Fit the model again.")


def _check_stream(settings: Settings) -> None:
    """Raise a ValueError unless the model learns rows exactly, given the precision, in one pass."""
    linear = isinstance(settings.link, str) and settings.link == "identity" and settings.likelihood.quadratic
    g = settings.penalty.regularizer(settings.penalty.alpha)
    if not linear or settings.forgets or settings.standardize or diagonal_curvature(g, 1) is None:
        _refuse(
            "partial_fit of this model",
            "It needs link='identity', likelihood='gaussian', penalty='ridge' or None, forget=1 and standardize=False. "
            "Use fit, or kalprox.proximal_filter(..., structure=...).",
        )


def _mean_target(blocks: list[Block]) -> float:
    """Return the mean of the targets, less their offsets; 0 if no row has a weight."""
    total, weight = 0.0, 0.0
    for block in blocks:
        w = np.ones(len(block.y)) if block.weights is None else block.weights
        used = w > 0
        y = block.y if block.offset is None else block.y - block.offset
        total, weight = total + float(w[used] @ y[used]), weight + float(w[used].sum())
    return total / weight if weight else 0.0


def _refuse(what: str, instead: str) -> NoReturn:
    raise ValueError(f"{what} is not offered with a structure. {instead} Or set structure=None.")


def _designed(source: Source, design: Design) -> Source:
    """Return a source of the inputs of h. Those of a sparse X are made once, and not in every pass."""
    if not isinstance(source, ArraySource) or not source.keep_sparse:
        return DesignedSource(source, design)
    about: dict[str, Any] = {name: getattr(source, name) for name in ("counts", "squares", "groups", "times", "noise")}
    X = design.rows(source.X, source.offset)
    return ArraySource(X, source.y, source.weights, keep_sparse=True, **about)
