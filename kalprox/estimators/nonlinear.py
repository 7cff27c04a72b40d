"""What is known of a nonlinear model after some rows: the proximal filter's state, or the paper's.

Behind a link, the columns are X less the mean of the first rows, so that the intercept, which comes first,
is not collinear with features far from zero. A function fn(theta, x) gets its rows as they are.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from kalprox._arrays import Array
from kalprox.algorithms.base import Belief
from kalprox.algorithms.pipg import pipg
from kalprox.algorithms.proximal_filter import ProximalState, proximal_filter
from kalprox.algorithms.refine import refine
from kalprox.algorithms.run import run
from kalprox.estimators.checks import check_settings
from kalprox.estimators.penalties import with_free_intercept
from kalprox.models import GLM, Function, Linear, Model
from kalprox.noise import Noise
from kalprox.regularizers import Regularizer
from kalprox.sources import Block, Folded
from kalprox.sources import Source as SourceRows

if TYPE_CHECKING:
    from kalprox.estimators.regressor import KalproxRegressor

__all__ = ["Design", "FilterBelief", "Moments", "PaperBelief", "begin", "problem_of", "refined"]

_RECORD = 8192  # rows between two records of a run: the same for all batches, or each length would compile anew
_WEAK = 10.0  # a stream's prior: a predictor this many times its likely size costs what one residual of y's sd does


def begin(settings: "KalproxRegressor", source: SourceRows, y: Array, d: int) -> "FilterBelief | PaperBelief":
    """The belief before the first row of a stream that begins with the rows of `source`, whose targets are y."""
    if settings.standardize:
        raise ValueError(
            "standardize=True with a nonlinear link needs fit, with method='exact': a stream does not know its "
            "standard deviations beforehand."
        )
    design, v0 = None, None
    if isinstance(settings.link, str):
        moments = source.fold(Moments.of).total
        design = Design.of(moments, intercept=settings.fit_intercept, standardize=False)
        v0 = _weak_prior(settings, design, moments, y)
    start = _start(settings, d, design)
    if settings.method == "paper":
        return PaperBelief.start(settings, design, start)
    return FilterBelief.streaming(settings, design, start, v0)


def refined(settings: "KalproxRegressor", source: SourceRows, d: int) -> tuple["FilterBelief", int]:
    """The belief after all rows of a source, at the minimiser: a pass for the means of X, and those of `refine`."""
    folded = source.fold(Moments.of)
    design = None
    if isinstance(settings.link, str):
        design = Design.of(folded.total, intercept=settings.fit_intercept, standardize=settings.standardize)
    return FilterBelief.fitted(settings, design, _start(settings, d, design), source), folded.counts.good


def problem_of(settings: "KalproxRegressor", design: "Design | None") -> tuple[Model, Regularizer, float | None]:
    """h, g and the noise precision (None: to be learned)."""
    link, g = settings.link, check_settings(settings).at(settings.alpha)  # type: ignore[arg-type]
    model: Model = Function(link) if callable(link) else Linear() if link == "identity" else GLM(link)
    gamma = None if isinstance(settings.noise, str) else 1 / float(settings.noise)
    return model, g if design is None else design.penalty(g), gamma


def _weak_prior(settings: "KalproxRegressor", design: "Design", moments: "Moments", y: Array) -> Array:
    """The variances of a prior that adds (theta_j sd_j / s)^2 var(y) / 200 to (1), s the likely size of the predictor:
    a coefficient that moves it by 10 s costs as much as one residual of y's standard deviation.

    It keeps the warm-up of a stream from running away, and is not there after `fit`. s is 1 where the link saturates,
    else what the link's inverse makes of the largest y.
    """
    square = moments.squares / moments.rows + (moments.mean - design.center) ** 2
    square = np.concatenate([[1.0], square]) if design.intercept else square
    largest = float(np.abs(y).max())
    size = max(1.0, {"softplus": largest, "exp": float(np.log1p(largest))}.get(str(settings.link), 1.0))
    v0 = (_WEAK * size) ** 2 / np.where(square > 0, square, 1)
    v0 = v0 / (float(np.var(y)) or float(np.mean(y**2)) or 1.0)
    return v0 if isinstance(settings.noise, str) else v0 * float(settings.noise)  # given: not in units of the noise


def _start(settings: "KalproxRegressor", d: int, design: "Design | None") -> Array:
    """The first theta, in the units of the design."""
    if design is None:
        return np.asarray(settings.start, float)
    expected = (d + design.intercept,)
    if settings.start is None:
        return np.zeros(expected)
    start = np.asarray(settings.start, float)
    if start.shape != expected:
        raise ValueError(
            f"start must have one entry per coefficient, the intercept first: expected {expected}, got {start.shape}."
        )
    return np.linalg.solve(design.jacobian(), start)


@dataclass(frozen=True)
class Moments:
    """Means and variances of columns, that add up without cancelling."""

    rows: float
    mean: Array
    squares: Array  # about the mean, summed

    @classmethod
    def of(cls, block: Block) -> "Moments":
        X, weights = block.X, np.ones(len(block)) if block.weights is None else block.weights
        rows = float(weights.sum())
        mean = weights @ X / rows if rows else np.zeros(X.shape[1])
        return cls(rows, mean, weights @ (X - mean) ** 2)

    def __add__(self, other: "Moments") -> "Moments":
        rows, apart = self.rows + other.rows, other.mean - self.mean
        share = other.rows / rows if rows else 0.0
        return Moments(rows, self.mean + share * apart, self.squares + other.squares + self.rows * share * apart**2)

    @property
    def sd(self) -> Array:
        return np.sqrt(self.squares / self.rows)


@dataclass(frozen=True)
class DesignedRows:
    """A source as h sees it."""

    source: SourceRows
    design: "Design | None"

    def fold(self, part: Callable[[Block], Any]) -> Folded:
        return self.source.fold(part if self.design is None else partial(self.design.through, part))


@dataclass(frozen=True)
class Design:
    """From rows of X to the inputs of h, and from theta to coefficients: [1 | (X - center) / scale]."""

    center: Array  # (d,)
    scale: Array  # (d,)
    intercept: bool

    @classmethod
    def of(cls, moments: "Moments", *, intercept: bool, standardize: bool) -> "Design":
        mean, sd = moments.mean, moments.sd
        ones, zeros = np.ones(len(mean)), np.zeros(len(mean))
        return cls(mean if intercept else zeros, np.where(sd > 0, sd, 1.0) if standardize else ones, intercept)

    def rows(self, X: Array) -> Array:
        Z = (X - self.center) / self.scale
        return np.column_stack([np.ones(len(Z)), Z]) if self.intercept else Z

    def through(self, part: Callable[[Block], Any], block: Block) -> Any:
        return part(replace(block, X=self.rows(block.X)))

    def penalty(self, g: Regularizer) -> Regularizer:
        return with_free_intercept(g, len(self.center)) if self.intercept else g

    def jacobian(self) -> Array:
        """(intercept, coef) from theta: a matrix, since the change of units is linear."""
        d = len(self.center)
        J = np.diag(1 / self.scale)
        if not self.intercept:
            return J
        top = np.concatenate([[1.0], -self.center / self.scale])
        return np.vstack([top, np.hstack([np.zeros((d, 1)), J])])


@dataclass(frozen=True)
class _NonlinearBelief(ABC):
    """Everything that is read off a mean and a covariance of theta. `design` is None for a function."""

    state: Any
    model: Model
    design: Design | None
    n_passes: int
    converged: bool

    @property
    def _parameters(self) -> tuple[Array, Array]:
        """Mean and covariance of (intercept, coef), or of theta itself; infinite variances are kept apart."""
        mean, cov = np.asarray(self.state.mean), np.asarray(self.state.cov())
        if self.design is None:
            return mean, cov
        J = self.design.jacobian()
        if np.isfinite(cov).all():
            return J @ mean, J @ cov @ J.T
        units = np.diagonal(J)
        whole = cov * units[:, None] * units  # of the coefficients: only the intercept is mixed with others
        if self.design.intercept:
            whole[0], whole[:, 0] = np.inf, np.inf
        return J @ mean, whole

    @property
    def _first(self) -> int:
        return int(self.design is not None and self.design.intercept)

    @property
    def coef(self) -> Array:
        return self._parameters[0][self._first :]

    @property
    def intercept(self) -> Array:
        return self._parameters[0][0] if self._first else np.zeros(())

    @property
    def covariance(self) -> Array:
        return self._parameters[1][self._first :, self._first :]

    @property
    def coef_std(self) -> Array:
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def intercept_std(self) -> Array:
        return np.sqrt(self._parameters[1][0, 0]) if self._first else np.zeros(())

    def _rows(self, X: Array) -> Array:
        return X if self.design is None else self.design.rows(X)

    def predict(self, X: Array) -> Array:
        return self.model.linearize_rows(np.asarray(self.state.mean), self._rows(X))[0]

    @property
    @abstractmethod
    def noise(self) -> Noise: ...

    def sample(self, n: int, rng: np.random.RandomState) -> tuple[Array, Array]:
        """Draws of coef (n, d) and intercept (n,): Student's where the noise is learned."""
        mean, cov = self._parameters
        if not np.isfinite(cov).all():
            raise ValueError("sample needs a proper posterior: some variances are not finite. Add rows or a penalty.")
        values, vectors = np.linalg.eigh(cov)
        draws = rng.standard_normal((n, len(mean))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
        dof = float(self.noise.dof)
        if np.isfinite(dof):
            draws *= np.sqrt(dof / rng.chisquare(dof, n))[:, None]
        draws += mean
        return draws[:, self._first :], draws[:, 0] if self._first else np.zeros(n)


@dataclass(frozen=True)
class FilterBelief(_NonlinearBelief):
    """The proximal filter's state: after a stream, or at the MAP once `refine` has found it."""

    state: ProximalState

    @classmethod
    def fitted(
        cls, settings: "KalproxRegressor", design: Design | None, start: Array, source: SourceRows
    ) -> "FilterBelief":
        """All the way to a stationary point of (1), by passes over the rows."""
        model, g, gamma = problem_of(settings, design)
        rows = DesignedRows(source, design)
        out = refine(model, g, rows, start, gamma=gamma, max_passes=settings.max_passes, tol=settings.tol)
        if not out.converged:
            warnings.warn(out.message, ConvergenceWarning, stacklevel=5)
        state = proximal_filter(model, g, gamma=gamma, forget=settings.forget).init(out.mean, None)
        state = replace(state, data=out.information, estimate=out.mean, held=None)
        return cls(state, model, design, out.passes, out.converged)

    @classmethod
    def streaming(cls, settings: "KalproxRegressor", design: Design | None, start: Array, v0: Any) -> "FilterBelief":
        """Before the first row: N(start, v0), no prior where v0 is None."""
        model, g, gamma = problem_of(settings, design)
        alg = proximal_filter(model, g, gamma=gamma, forget=settings.forget)
        return cls(alg.init(start, v0), model, design, 1, True)

    def reread(self, settings: "KalproxRegressor") -> "FilterBelief":
        """The same rows under another penalty or noise; what was linearised stays as it was."""
        _, g, gamma = problem_of(settings, self.design)
        problem = replace(self.state.problem, regularizer=g, gamma=gamma, forget=settings.forget)
        return replace(self, state=replace(self.state, problem=problem))

    def learn(self, blocks: Iterable[tuple[Array, Array, Array | None]], forget: float) -> "FilterBelief":
        """One pass. Each block is linearised at the belief before it, once the warm-up is over."""
        p, state = self.state.problem, self.state
        step = proximal_filter(p.model, p.regularizer, gamma=p.gamma, forget=forget, warmup=p.warmup).step
        for X, y, weights in blocks:
            state = step(state, self._rows(X), y, weights)
        return replace(self, state=state)

    @property
    def waits(self) -> bool:
        """Whether the rows are still held, iterated on at each reading: too few to be linearised for good."""
        return self.state.held is not None

    @property
    def noise(self) -> Noise:
        return self.state.noise

    def std(self, X: Array) -> Array:
        return self.state.predict(self._rows(X)).std


@dataclass(frozen=True)
class PaperBelief(_NonlinearBelief):
    """The paper's recursion, row by row; its V is a metric rather than a posterior where g != 0."""

    state: Belief
    regularizer: Regularizer
    gamma: float
    q: Any

    @classmethod
    def start(cls, settings: "KalproxRegressor", design: Design | None, start: Array) -> "PaperBelief":
        """N(start, v0)."""
        model, g, gamma = problem_of(settings, design)
        assert gamma is not None
        state = pipg(model, g, gamma=gamma, q=settings.q).init(start, settings.v0)
        return cls(state, model, design, 1, True, g, gamma, settings.q)

    def reread(self, settings: "KalproxRegressor") -> "PaperBelief":
        _, g, gamma = problem_of(settings, self.design)
        assert gamma is not None
        return replace(self, regularizer=g, gamma=gamma, q=settings.q)

    def learn(self, blocks: Iterable[tuple[Array, Array, Array | None]], forget: float) -> "PaperBelief":
        """The recursion, compiled, row by row."""
        alg, state = pipg(self.model, self.regularizer, gamma=self.gamma, q=self.q), self.state
        for X, y, weights in blocks:
            if weights is not None:
                if (weights != np.round(weights)).any():
                    raise ValueError("method='paper' takes whole numbers as sample_weight: a row is taken that often.")
                X, y = (np.repeat(a, weights.astype(int), axis=0) for a in (X, y))
            if len(y):
                state = run(alg, state, self._rows(X), y, record_every=_RECORD).state
        return replace(self, state=state)

    @property
    def noise(self) -> Noise:
        return Noise.known(self.gamma)

    def std(self, X: Array) -> Array:
        _, D = self.model.linearize_rows(np.asarray(self.state.mean), self._rows(X))
        return np.sqrt(1 / self.gamma + ((D @ np.asarray(self.state.cov())) * D).sum(axis=1))
