"""The interface of an algorithm, and what its first state is made of, checked."""

from typing import Any

import numpy as np

from kalprox.base.arrays import Array, Partial, brief, cast, eager, is_traced, namespace, pytree, static
from kalprox.base.checks import check_vector
from kalprox.covariance import Covariance, Dense

__all__ = ["Algorithm", "start_covariance", "start_mean"]


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
