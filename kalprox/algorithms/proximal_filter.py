"""The proximal filter: fold the rows, and take the prox of g in the metric of the data when the answer is read.

For linear h the estimate is at every moment the exact minimiser of (1) over the rows seen so far, in any
order and any blocks, with g counted once in the mean and once in the covariance. For nonlinear h each block
is linearised at the belief before it; the first rows are held, and iterated on to convergence, until they
determine theta well enough that no early linearisation poisons the rest.
"""

import warnings
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jax.tree_util import Partial

from kalprox._arrays import Array, full_precision, is_traced, namespace, pytree, register_pytrees, static
from kalprox._checks import check_finite, check_floating, check_positive, check_same_length, concrete
from kalprox.algorithms.base import Algorithm, start_covariance, start_mean
from kalprox.algorithms.refine import Refined, refine
from kalprox.information import Information, merge
from kalprox.information.linearized import expand
from kalprox.likelihoods import Gaussian
from kalprox.linalg.triangle import undetermined
from kalprox.models import Model
from kalprox.noise import Noise, effective_dof, log_evidence
from kalprox.regularizers import Regularizer
from kalprox.solvers.prox import covariance, posterior_root, prox
from kalprox.sources import Block

__all__ = ["Prediction", "ProximalState", "WarmupCutShort", "proximal_filter"]

_LEVERAGE = 0.1  # of the most influential held row, below which the warm-up ends; docs/proximal_filter.md
_GROWTH = 1.5  # rows held at the next look, relative to this one
_PASSES = 50  # over the held rows at a look: one that needs more is running away, and waits for more rows
_CONVERGED = 1e-6  # relative; far below the standard errors, which are about sqrt(d / rows) of theta


class WarmupCutShort(RuntimeWarning):
    """The warm-up's memory bound was reached before its rows determined theta well."""


class Prediction(NamedTuple):
    """What new rows will show: mean, scale (Student's where the noise was learned), degrees of freedom."""

    mean: Array
    std: Array
    dof: Array


@pytree
class Problem:
    """h, g, the noise precision (None: learned), the forgetting per row, and the warm-up's bound in bytes."""

    model: Model
    regularizer: Regularizer
    gamma: Any
    forget: Any
    warmup: int = static()


@pytree
class Held:
    """Rows that wait for the end of the warm-up, and how many there will be at the next look."""

    X: tuple[Array, ...]
    y: tuple[Array, ...]
    weights: tuple[Array, ...]
    next_look: int = static()

    @property
    def rows(self) -> int:
        return sum(map(len, self.y))

    @property
    def bytes(self) -> int:
        return sum(a.nbytes for a in (*self.X, *self.y, *self.weights))

    def plus(self, X: Array, y: Array, weights: Array) -> "Held":
        return Held((*self.X, X), (*self.y, y), (*self.weights, weights), self.next_look)

    def arrays(self, forget: Any) -> tuple[Array, Array, Array]:
        X, y, weights = map(np.concatenate, (self.X, self.y, self.weights))
        return X, y, _faded(weights, forget)[0]


@pytree
class ProximalState:
    """The rows' information and the prior's, with the problem they belong to; all else is read off them.

    Reading changes nothing: the same rows give the same state, looked at or not.
    """

    problem: Problem
    prior: Information
    data: Information
    estimate: Array  # where the next block of a nonlinear model is linearised
    held: Held | None = None  # None: not a nonlinear model, or past its warm-up

    @cached_property
    def mean(self) -> Array:
        """argmin over theta of (1): the prox of g in the metric of the data. O(d^3)."""
        if self.held is not None:
            return self._refined.mean if self.held.rows else self.estimate
        if self.problem.model.linear:
            known, g = self._known, self.problem.regularizer
            start = known.solve() if g.root(known.d) is None else None  # quadratic g needs none
            return prox(known.R, known.z, g, start).theta
        return self.estimate

    def cov(self) -> Array:
        """(R'R + Hess g)^-1 times the noise variance, shape (d, d).

        Where g has kinks or bounds: on the coordinates that are free, and zero for the others, which are
        held at a kink or a bound; see `kalprox.solvers.prox.covariance`. Infinite where nothing is known.
        """
        xp, C = namespace(self.data.T), self._unit_cov
        return xp.where(C == 0, 0, C * self.noise.variance)  # infinity stays infinity, zero zero

    def var(self) -> Array:
        """The variances, shape (d,)."""
        return namespace(self.data.T).diagonal(self.cov())

    @cached_property
    def noise(self) -> Noise:
        """The noise level: given, or learned from what the fit leaves over."""
        if self.problem.gamma is not None:
            return Noise.known(self.problem.gamma)
        edf = effective_dof(self._data.R, self.problem.regularizer, self.mean, prior=self.prior.R)
        return Noise.learned(self._data.residual(self.mean), self._data.rows, edf)

    @property
    def rows(self) -> Array:
        """How many rows it is worth: the sum of their weights, faded where it forgets."""
        return self._data.rows

    @full_precision
    def predict(self, X: Array) -> Prediction:
        """The predictive distribution of new rows X, noise included."""
        h, D = self.problem.model.linearize_rows(self.mean, X)
        C = self._unit_cov
        if is_traced(C) or np.isfinite(C).all():
            leverage = (D @ C * D).sum(axis=-1)
        else:
            leverage = self._leverage(np.asarray(D).reshape(-1, self.data.d)).reshape(h.shape)
        return Prediction(h, self.noise.std(leverage), namespace(h).asarray(self.noise.dof))

    def _leverage(self, D: Array) -> Array:
        """d' (R'R + Hess g)^+ d for each row of D; infinite for those that ask of a direction nothing is known of."""
        free = np.asarray(self.problem.regularizer.free(self.mean))
        U = np.asarray(posterior_root(self._known.R, self.problem.regularizer, self.mean))[np.ix_(free, free)]
        D = D[:, free]
        scale = np.where(np.linalg.norm(U, axis=0) > 0, np.linalg.norm(U, axis=0), 1)
        q = np.linalg.lstsq((U / scale).T, (D / scale).T)[0]
        return np.where(undetermined(U, self.rows, D), np.inf, (q**2).sum(axis=0))

    def interval(self, X: Array, level: float = 0.95) -> tuple[Array, Array]:
        """Central predictive intervals for new rows: Student's where the noise was learned."""
        mean, std, _ = self.predict(X)
        reach = self.noise.quantile(level) * std
        return mean - reach, mean + reach

    def log_evidence(self) -> Array:
        """log p(y) for linear h and quadratic g, exact: see `kalprox.noise.log_evidence`."""
        if not self.problem.model.linear:
            raise ValueError("log_evidence is exact for a linear model only; got a nonlinear one.")
        if np.any(np.asarray(self.prior.T)):
            raise ValueError("log_evidence takes g as the prior: start with v0=None and a Ridge or Quadratic g.")
        data = self.data
        return log_evidence(data.R, data.z, data.rss, data.rows, self.problem.regularizer, self.problem.gamma)

    @cached_property
    def _refined(self) -> Refined:
        """The rows held so far, iterated on to convergence."""
        assert self.held is not None
        p = self.problem
        rows = self.held.arrays(p.forget)
        return refine(p.model, p.regularizer, rows, self.estimate, prior=self.prior, max_passes=_PASSES, tol=_CONVERGED)

    @property
    def _data(self) -> Information:
        return self.data if self.held is None or not self.held.rows else self._refined.information

    @cached_property
    def _known(self) -> Information:
        """Data and prior together."""
        return merge(self._data, self.prior)

    @cached_property
    def _unit_cov(self) -> Array:
        """The covariance in units of the noise."""
        return covariance(self._known.R, self.problem.regularizer, self.mean)


register_pytrees()


def proximal_filter(
    model: Model, regularizer: Regularizer, *, gamma: Any = 1.0, forget: Any = 1.0, warmup: int = 256 * 2**20
) -> Algorithm:
    """The exact counterpart of `pipg`: a proximal step on both f_k and g. The default of the library.

    `step(state, X, y, weights=None)` takes a block, X (b, ...) and y (b,), of any size. For linear h the
    estimate equals the batch minimiser of (1) at every moment, and costs O(b d^2) a block and O(d^3) a
    reading. For nonlinear h it is one pass of Gauss-Newton, close to the minimiser; `refine` goes all the
    way. A block that is not finite is refused whole, with its rows named, and the state stays as it was.

    Args:
      model: h, one of `kalprox.models`.
      regularizer: g, one of `kalprox.regularizers`, smooth or not.
      gamma: the noise precision, or None to learn the noise level; (1) does not depend on it.
      forget: what a row's weight is multiplied by with every later row; 1 forgets nothing.
      warmup: bytes of first rows that a nonlinear model may hold. It holds them, and iterates on them to
        convergence, until no single row has a leverage above 0.1; a `WarmupCutShort` warning says if
        the bound comes first. 0 linearises from the first block on, at mean0.

    `init(mean0, v0)`: v0 is the prior covariance (with gamma None, in units of the noise variance), or None
    for no prior; mean0 is then only where a nonlinear model starts. A stream behind a saturating link needs a
    weak prior, or a g that bounds theta, lest the warm-up run away.

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
    problem = Problem(model, regularizer, gamma, forget, warmup)
    return Algorithm(init=Partial(_init, problem), step=Partial(_step, problem), by_block=True)


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
    waits = not problem.model.linear and problem.warmup > 0
    held = Held((), (), (), next_look=10 * d) if waits else None  # fewer rows cannot all have a leverage below 0.1
    return ProximalState(problem, prior, zero, mean, held)


@full_precision
def _step(problem: Problem, state: ProximalState, X: Array, y: Array, weights: Array | None = None) -> ProximalState:
    weights = _checked(X, y, weights)
    state = replace(state, problem=problem)
    if state.held is not None:
        return _hold(state, X, y, weights)
    weights, left = _faded(weights, problem.forget)
    before = state.data if left is None else state.data.forget(left)
    if problem.model.linear:
        return replace(state, data=_if_finite(before.fold(X, y, weights), state.data))
    _, D, e, w, _ = expand(problem.model, Gaussian(), state.estimate, Block(X, y, weights), _belief(state))
    _check_linearized(e, D, y)
    data = before.fold(D, e + D @ state.estimate, w)
    return _reestimated(replace(state, data=_if_finite(data, state.data)))


def _reestimated(state: ProximalState) -> ProximalState:
    known = merge(state.data, state.prior)
    return replace(state, estimate=prox(known.R, known.z, state.problem.regularizer, state.estimate).theta)


def _belief(state: ProximalState) -> Array | None:
    """The covariance, where it is known in every direction: a line through h is then drawn where theta may be."""
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


def _faded(weights: Array, forget: Any) -> tuple[Array, Array | None]:
    """Weights as they are once the whole block has come, and what is left of everything before it.

    Weight w is w rows in a row, so that it is worth 1 + forget + ... = (1 - forget^w) / (1 - forget), and fades
    by forget for every later one. Any split into blocks gives the same.
    """
    number = concrete(forget)
    if number is not None and number == 1:
        return weights, None
    xp = namespace(weights, forget)
    rho = xp.asarray(forget, weights.dtype)
    seen = weights.cumsum()
    return rho ** (seen[-1] - seen) * (1 - rho**weights) / (1 - rho), rho ** seen[-1]


def _hold(state: ProximalState, X: Array, y: Array, weights: Array) -> ProximalState:
    """One more block held; at a look, the end of the warm-up if its rows determine theta well."""
    if is_traced(X, y, weights, state):
        raise TypeError("The warm-up of a nonlinear model decides on values and cannot be traced: step outside jit.")
    assert state.held is not None
    problem, held = state.problem, state.held.plus(X, y, weights)
    state = replace(state, held=held)
    full = held.bytes >= problem.warmup
    if held.rows < held.next_look and not full:
        return state
    fit = state._refined
    X, y, w = held.arrays(problem.forget)
    _, D, _, w, _ = expand(problem.model, Gaussian(), fit.mean, Block(X, y, w))
    C = state._unit_cov
    leverage = float((w * (D @ C * D).sum(axis=1)).max()) if np.isfinite(C).all() else np.inf
    well = fit.converged and leverage < _LEVERAGE
    if not (well or full):
        # a fit that ran away is no place to start the next one from
        estimate = fit.mean if fit.converged else state.estimate
        return replace(state, held=replace(held, next_look=int(_GROWTH * held.rows)), estimate=estimate)
    if not well:
        warnings.warn(
            f"The warm-up was cut short at {held.rows} rows by its bound of {problem.warmup} bytes, with a leverage of "
            f"{leverage:.2g} (below {_LEVERAGE} was wanted): the estimate may be far off and over-confident. Raise "
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


def _check_linearized(e: Array, D: Array, y: Array) -> None:
    """Refuse rows where the model, at the current estimate, has no finite value or derivative."""
    if is_traced(e, D):
        return
    bad = ~np.isfinite(np.asarray(e) + np.asarray(D).sum(axis=1)).reshape(len(y), -1).all(axis=1)
    if bad.any():
        raise ValueError(
            f"The model has no finite value or derivative at the current estimate in row(s) "
            f"{', '.join(map(str, np.flatnonzero(bad)[:5]))} of the block, which is refused whole. Remove them first."
        )
