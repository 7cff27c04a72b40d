"""The proximal filter: fold the rows, and take the prox of g in the metric of the data when the answer is read.

For linear h the estimate is at every moment the exact minimiser of (1) over the rows seen so far, in any
order and any blocks, with g counted once in the mean and once in the covariance. For nonlinear h each block
is linearised at the belief before it; the first rows are held, and iterated on to convergence, until they
determine theta well enough that no early linearisation spoils the rest.
"""

import warnings
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from jax.tree_util import Partial

from kalprox._arrays import Array, is_traced, namespace, pytree, register_pytrees, static
from kalprox._checks import check_finite, check_floating, check_positive, check_same_length, concrete
from kalprox._control import full_precision
from kalprox.algorithms.base import Algorithm, start_covariance, start_mean
from kalprox.algorithms.refine import Refined
from kalprox.algorithms.warmup import MAX_LEVERAGE, HeldRows, WarmupCutShort, largest_leverage, refine_held
from kalprox.information import Information
from kalprox.information.linearized import Expansion, expand
from kalprox.likelihoods import Gaussian, Likelihood
from kalprox.models import Model
from kalprox.noise import Noise, log_evidence
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Predictive, Student
from kalprox.regularizers import Regularizer
from kalprox.sources import Block
from kalprox.sources.forgetting import faded

__all__ = ["Problem", "ProximalState", "WarmupCutShort", "proximal_filter"]


@pytree
class Problem:
    """What is minimised, how rows fade, and how many bytes of rows a warm-up may hold."""

    model: Model
    likelihood: Likelihood
    regularizer: Regularizer
    gamma: Any  # the noise precision; None where the noise variance is learned
    forget: Any  # what a row's weight is multiplied by with every later row
    warmup: int = static()

    @property
    def exact(self) -> bool:
        """Whether one pass is exact: a linear model with a quadratic loss."""
        return self.model.linear and self.likelihood.quadratic


@pytree
class ProximalState:
    """The rows' information and the prior's, with the problem they belong to; all else is read off them.

    Reading changes nothing: the same rows give the same state, whether it was read in between or not.
    """

    problem: Problem
    prior: Information
    data: Information
    estimate: Array  # where the next block of a nonlinear model is linearised
    held: HeldRows | None = None  # None: the model needs no warm-up, or its warm-up has ended

    @cached_property
    def posterior(self) -> InformationPosterior:
        """The posterior of theta, from which everything below is read."""
        p, data, mean = self.problem, self.data, None if self.problem.exact else self.estimate
        if self.held is not None and self.held.rows:
            data, mean = self._refined.information, self._refined.mean
        return InformationPosterior(
            data, p.regularizer, gamma=p.gamma, prior=self.prior, mean=mean, likelihood=p.likelihood
        )

    @property
    def mean(self) -> Array:
        """The minimiser of (1): the prox of g in the metric of the data. O(d^3)."""
        return self.posterior.mean

    def cov(self) -> Array:
        """(R'R + Hess g)^-1 times the noise variance, shape (d, d); see `kalprox.posterior.Posterior.cov`."""
        return self.posterior.cov()

    def var(self) -> Array:
        """The variances, shape (d,)."""
        return self.posterior.var()

    @property
    def noise(self) -> Noise:
        """The noise variance, given or learned from the residuals, and its degrees of freedom."""
        return self.posterior.noise

    @property
    def rows(self) -> Array:
        """The sum of the rows' weights, as they have faded."""
        return self.posterior.data.rows

    @full_precision
    def predict(self, X: Array) -> Predictive:
        """The predictive distribution of new rows X, noise included."""
        f, D = self.problem.model.linearize_rows(self.mean, X)
        return self.posterior.predict(f, D)

    def interval(self, X: Array, level: float = 0.95) -> tuple[Array, Array]:
        """Central predictive intervals for new rows: Student's where the noise variance is learned."""
        predicted = self.predict(X)
        if isinstance(predicted, Student):
            return predicted.interval(level)
        return predicted.quantile((1 - level) / 2), predicted.quantile((1 + level) / 2)

    def log_evidence(self) -> Array:
        """log p(y) for linear h and quadratic g, exact: see `kalprox.noise.log_evidence`."""
        if not self.problem.exact:
            raise ValueError("log_evidence is exact for a linear model only; got a nonlinear one.")
        if np.any(np.asarray(self.prior.T)):
            raise ValueError("log_evidence takes g as the prior: start with v0=None and a Ridge or Quadratic g.")
        data = self.data
        return log_evidence(data.R, data.z, data.rss, data.rows, self.problem.regularizer, self.problem.gamma)

    @cached_property
    def _refined(self) -> Refined:
        """The rows held so far, refined to convergence."""
        assert self.held is not None
        p, rows = self.problem, self.held.block(self.problem.forget)
        return refine_held(p.model, p.likelihood, p.regularizer, rows, self.estimate, self.prior)


register_pytrees()


def proximal_filter(
    model: Model,
    regularizer: Regularizer,
    *,
    gamma: Any = 1.0,
    forget: Any = 1.0,
    warmup: int = 256 * 2**20,
    likelihood: Likelihood | None = None,
) -> Algorithm:
    """The exact counterpart of `pipg`: a proximal step on both f_k and g. The default of the library.

    `step(state, X, y, weights=None)` takes a block, X (b, ...) and y (b,), of any size. For linear h the
    estimate equals the batch minimiser of (1) at every moment, and costs O(b d^2) a block and O(d^3) a
    reading. For nonlinear h it is one pass of Gauss-Newton, close to the minimiser; `refine` goes all the
    way. A block that is not finite is refused whole, with its rows named, and the state stays as it was.

    Parameters
    ----------
    model : Model
        h, one of `kalprox.models`.
    regularizer : Regularizer
        g, one of `kalprox.regularizers`, smooth or not.
    gamma : float or None
        The noise precision. None learns the noise variance; (1) does not depend on it.
    forget : float
        What a row's weight is multiplied by with every later row; 1 forgets nothing.
    warmup : int
        How many bytes of first rows a nonlinear model may hold. It holds them, and iterates on them to
        convergence, until no single row has a leverage above 0.1; a `WarmupCutShort` warning is given if the limit
        is reached first. 0 linearises from the first block on, at mean0.
    likelihood : Likelihood, optional
        How observations scatter around h, one of `kalprox.likelihoods`; the default is Gaussian.

    Returns
    -------
    Algorithm
        `init(mean0, v0)`: v0 is the prior covariance (with gamma None, in units of the noise variance), or None
        for no prior; mean0 is then only where a nonlinear model starts. A stream behind a saturating link needs a
        weak prior, or a g that bounds theta, or its warm-up can run away.

    Examples
    --------
    >>> import kalprox as kp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 3))
    >>> y = X @ np.array([2.0, 0.0, -1.0]) + 0.5 * rng.normal(size=500)
    >>> alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.L1(30.0), gamma=None)
    >>> state = alg.init(np.zeros(3), None)
    >>> for start in range(0, 500, 50):
    ...     state = alg.step(state, X[start : start + 50], y[start : start + 50])
    >>> state.mean.round(2), np.sqrt(state.var()).round(2)
    (array([ 1.96,  0.  , -0.91]), array([0.02, 0.  , 0.02]))
    """
    if gamma is not None:
        check_positive("gamma", gamma)
    check_positive("forget", forget)
    number = concrete(forget)
    if number is not None and (number > 1).any():
        raise ValueError(f"forget must be at most 1, which forgets nothing; got {forget!r}.")
    if warmup < 0:
        raise ValueError(f"warmup must be a number of bytes >= 0; got {warmup!r}.")
    problem = Problem(model, Gaussian() if likelihood is None else likelihood, regularizer, gamma, forget, warmup)
    return Algorithm(
        init=Partial(_init, problem), step=Partial(_step, problem), predict=Partial(_predict), by_block=True
    )


def _init(problem: Problem, mean0: Any, v0: Any = None) -> ProximalState:
    mean = start_mean(mean0)
    xp, d = namespace(mean), len(mean)
    zero = Information.zero(d, dtype=mean.dtype, xp=xp)
    prior = zero
    if v0 is not None:
        V = start_covariance(v0, mean).dense()
        # V = L L', so ||L^-1 (theta - mean)||^2 is the prior, and L^-1 / sqrt(gamma) its root in units of the noise
        root = xp.linalg.inv(xp.linalg.cholesky(V))
        gamma = 1.0 if problem.gamma is None else xp.asarray(problem.gamma, mean.dtype)
        prior = Information.from_prior(mean, root / gamma**0.5)
    held = HeldRows.none(d) if not problem.exact and problem.warmup > 0 else None
    return ProximalState(problem, prior, zero, mean, held)


@full_precision
def _step(problem: Problem, state: ProximalState, X: Array, y: Array, weights: Array | None = None) -> ProximalState:
    weights = _checked(X, y, weights)
    state = replace(state, problem=problem)
    if state.held is not None:
        return _hold(state, Block(X, y, weights))
    weights, left = faded(weights, problem.forget)
    before = state.data if left is None else state.data.forget(left)
    if problem.exact:
        return replace(state, data=_if_finite(before.fold(X, y, weights), state.data))
    block = Block(X, y, weights)
    at = expand(problem.model, problem.likelihood, state.estimate, block, _finite_cov(state))
    _check_expansion(at, len(y))
    data = before.fold(at.D, at.targets + at.D @ state.estimate, at.weights)
    return _reestimated(replace(state, data=_if_finite(data, state.data)))


def _predict(state: ProximalState, X: Array) -> Predictive:
    return state.predict(X)


def _reestimated(state: ProximalState) -> ProximalState:
    p = state.problem
    posterior = InformationPosterior(state.data, p.regularizer, prior=state.prior, start=state.estimate)
    return replace(state, estimate=posterior.mean)


def _finite_cov(state: ProximalState) -> Array | None:
    """The covariance, where every direction is determined: a line through h is then drawn where theta may be."""
    V = state.cov()
    return V if not is_traced(V) and np.isfinite(V).all() else None


def _if_finite(new: Information, old: Information) -> Information:
    """`new`, or under jit, where nothing can be raised, `old` if `new` is not finite."""
    if not is_traced(new):
        return new
    import jax.numpy as jnp

    good = jnp.isfinite(new.T).all()
    T, shift, rows = (jnp.where(good, getattr(new, name), getattr(old, name)) for name in ("T", "shift", "rows"))
    return replace(new, T=T, shift=shift, rows=rows)


def _hold(state: ProximalState, block: Block) -> ProximalState:
    """One more block held; at a look, the end of the warm-up if its rows determine theta well."""
    if is_traced(block.X, block.y, block.weights, state):
        raise TypeError("The warm-up of a nonlinear model decides on values and cannot be traced: step outside jit.")
    assert state.held is not None
    problem, held = state.problem, state.held.plus(block)
    state = replace(state, held=held)
    full = held.bytes >= problem.warmup
    if held.rows < held.next_look and not full:
        return state
    fit = state._refined
    leverage = largest_leverage(problem.model, state.posterior, held.block(problem.forget))
    well = fit.converged and leverage < MAX_LEVERAGE
    if not (well or full):
        # a fit that ran away is no place to start the next one from
        return replace(state, held=held.later(), estimate=fit.mean if fit.converged else state.estimate)
    if not well:
        warnings.warn(
            f"The warm-up was cut short at {held.rows} rows by its limit of {problem.warmup} bytes, with a leverage of "
            f"{leverage:.2g} (below {MAX_LEVERAGE} was wanted): the estimate may be far off and over-confident. Raise "
            "warmup, give a prior (v0), or use refine.",
            WarmupCutShort,
            stacklevel=4,
        )
    return replace(state, data=fit.information, estimate=fit.mean, held=None)


def _checked(X: Array, y: Array, weights: Array | None) -> Array:
    """The weights, once the block has been found to be rows of finite numbers."""
    for name, a in (("X", X), ("y", y)):
        if not hasattr(a, "dtype"):
            raise TypeError(
                f"{name} must be a NumPy or JAX array with one row per observation; got {type(a).__name__}."
            )
        check_floating(name, a)
    check_same_length(X, y)
    if weights is None:
        weights = namespace(X, y).ones(len(y), y.dtype)
    check_positive("weights", weights, strict=False)
    for name, a in (("X", X), ("y", y)):
        check_finite(name, a)
    return weights


def _check_expansion(at: Expansion, rows: int) -> None:
    """Refuse rows where the model, at the current estimate, has no finite value or derivative."""
    if is_traced(at.targets, at.D):
        return
    bad = ~np.isfinite(np.asarray(at.targets) + np.asarray(at.D).sum(axis=1)).reshape(rows, -1).all(axis=1)
    if bad.any():
        raise ValueError(
            f"The model has no finite value or derivative at the current estimate in row(s) "
            f"{', '.join(map(str, np.flatnonzero(bad)[:5]))} of the block, which is refused whole. Remove them first."
        )
