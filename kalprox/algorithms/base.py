"""The interface of an algorithm, the problem that a proximal filter solves, and checks of what both are given."""

from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, Partial, brief, cast, eager, is_traced, masked, namespace, pytree, static
from kalprox.base.checks import check_finite, check_floating, check_positive, check_same_length, check_vector
from kalprox.base.control import compiled
from kalprox.covariance import Covariance, Dense
from kalprox.forgetting import Forgetting
from kalprox.information.linearized import Expansion
from kalprox.likelihoods import Likelihood
from kalprox.models import Model
from kalprox.regularizers import Regularizer


@pytree
class Algorithm:
    """Three pure functions, so that any algorithm can replace another one.

    An algorithm is a pytree whose leaves are its numbers (gamma, lam, q, ...): another value recompiles nothing, and
    `jax.vmap` can map over them.

    Attributes
    ----------
    init : callable
        `init(mean0, v0)` returns the first state.
    step : callable
        `step(state, x, y)` returns the state after one row, or after a block of rows where `by_block` is True.
    predict : callable
        `predict(state, x)` returns the `Predictive` distribution of y, noise included. x is one row, or a block of rows
        of shape (b, d). Algorithms without a covariance (`ipg`, `sgd`) predict the mean with an infinite standard
        deviation: they make no statement about their uncertainty.
    by_block : bool
        Whether `step` takes a block of rows, shapes (b, ...) and (b,), instead of one row.

    Examples
    --------
    >>> import kalprox as kp
    >>> alg = kp.ipm(kp.models.Linear(), gamma=4.0)
    >>> state = alg.init(np.zeros(1), 0.75)
    >>> predicted = alg.predict(state, np.array([1.0]))
    >>> float(predicted.mean), round(float(predicted.std), 6)
    (0.0, 1.0)
    """

    init: Partial
    step: Partial
    predict: Partial
    by_block: bool = static(default=False)

    def __repr__(self) -> str:
        step = self.step.func
        name = step.__name__.strip("_").removesuffix("step").strip("_") or step.__module__.rpartition(".")[2]
        return f"Algorithm({name}: {', '.join(map(brief, self.step.args))})"


def start_mean(mean0: Any) -> Array:
    """The first estimate, checked: a finite floating vector of NumPy or JAX."""
    mean = mean0 if hasattr(mean0, "dtype") else np.asarray(mean0, dtype=float)
    with eager():  # inside jit, arrays from outside still have values to check
        check_vector("mean0", mean)
    return mean


def start_covariance(v0: Any, mean: Array) -> Covariance:
    """The first covariance, checked: v0 is a scalar, a diagonal, a matrix or a `Covariance`."""
    if isinstance(v0, Covariance):
        V: Covariance = cast(v0, mean)
    else:
        xp = namespace(mean, v0)
        v = xp.asarray(v0, mean.dtype)
        d = len(mean)
        if v.shape not in ((), (d,), (d, d)):
            raise ValueError(f"v0 must be a scalar, a vector ({d},) or a matrix ({d}, {d}); got shape {v.shape}.")
        V = Dense(v if v.ndim == 2 else xp.diag(xp.broadcast_to(v, (d,))))
    if not is_traced(V):
        with eager():
            V.check(len(mean))
    return V


@pytree
class Problem:
    """The objective, the forgetting factor, and the memory limit of the warm-up."""

    model: Model
    likelihood: Likelihood
    regularizer: Regularizer
    gamma: Any  # the noise precision; None if the noise variance is learned
    forget: Any  # the factor by which every new row multiplies the weights of earlier rows
    warmup: int = static(default=256 * 2**20)  # bytes
    weight_kind: str = static(default="frequency")  # what the weights of the rows mean

    @property
    def exact(self) -> bool:
        """Whether one pass is exact: a linear model with a quadratic loss."""
        return self.model.linear and self.likelihood.quadratic

    @property
    def by_time(self) -> bool:
        """Whether rows are forgotten by time, so that every row needs one."""
        return isinstance(self.forget, Forgetting) and self.forget.needs_times


def checked_rows(X: Array, y: Array, weights: Array | None, *, look: bool = True) -> Array:
    """Check that the block consists of finite numbers, and return the weights.

    With `look` False the values of JAX arrays are not looked at: a program that learns the rows does so, by `are_fine`,
    and an accelerator need not be waited for.
    """
    for name, a in (("X", X), ("y", y)):
        check_floating(name, a)
    check_same_length(X, y)
    if weights is None:
        xp = namespace(X, y)
        weights = xp.ones(len(y), y.dtype) if xp is np or is_traced(X, y) else _ones(len(y), np.dtype(y.dtype), xp)
    if namespace(X, y, weights) is not np and not is_traced(X, y, weights) and np.shape(weights) == (len(y),):
        with eager():  # also in a program that closes over the rows
            if not look or bool(compiled(are_fine)(X, y, weights)):
                return weights
    check_positive("weights", weights, strict=False)
    for name, a in (("X", X), ("y", y)):
        check_finite(name, masked(weights, a))
    return weights


@lru_cache(maxsize=16)
def _ones(n: int, dtype: np.dtype, xp: ModuleType) -> Array:
    """Return ones as a JAX array, made once: an accelerator takes as long for them as for a small product.

    They are numbers also in a program that is traced, and that closes over the rows.
    """
    with eager():
        return xp.ones(n, dtype)


def are_fine(X: Array, y: Array, weights: Array) -> Array:
    """Whether all numbers are finite and no weight is negative: the checks of `checked_rows` as one program."""
    finite = [namespace(a).isfinite(a).all() for a in (weights, masked(weights, X), masked(weights, y))]
    return (weights >= 0).all() & finite[0] & finite[1] & finite[2]


def check_expansion(at: Expansion, rows: int) -> None:
    """Raise a ValueError if the model has no finite value or derivative at the current estimate in some row."""
    if is_traced(at.targets, at.D):
        return
    bad = ~np.isfinite(np.asarray(at.targets) + np.asarray(at.D).sum(axis=1)).reshape(rows, -1).all(axis=1)
    if bad.any():
        raise ValueError(
            f"The model has no finite value or derivative at the current estimate in row(s) "
            f"{', '.join(map(str, np.flatnonzero(bad)[:5]))} of the block, which is rejected. Remove these rows first."
        )
