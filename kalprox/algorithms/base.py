"""What an algorithm is: two pure functions, and the states that they pass on."""

from typing import Any

import numpy as np
from jax.tree_util import Partial

from kalprox._arrays import Array, cast, is_traced, namespace, pytree, register_pytrees, static
from kalprox._checks import check_finite, check_floating, check_vector
from kalprox.covariance import Covariance, Dense

__all__ = ["Algorithm", "Belief", "Point"]


@pytree
class Algorithm:
    """`init(mean0, v0) -> state` and `step(state, x, y) -> state`, both pure.

    An algorithm is itself a pytree whose leaves are its numbers (gamma, lam, q, ...): changing
    one recompiles nothing, and `jax.vmap` runs over them.
    """

    init: Partial
    step: Partial
    by_block: bool = static(default=False)  # whether a step takes a block (b, ...), (b,) or one row


@pytree
class Belief:
    """theta ~ N(mean, V)."""

    mean: Any
    V: Covariance

    def cov(self) -> Array:
        """The covariance as a matrix, shape (d, d)."""
        return self.V.dense()

    def var(self) -> Array:
        """The variances, shape (d,)."""
        return self.V.diag()


@pytree
class Point:
    """An estimate without a belief, and how many rows made it."""

    mean: Any
    rows: Any


register_pytrees()


def start_mean(mean0: Any) -> Array:
    """The first estimate, checked: a finite floating vector, NumPy's or JAX's."""
    mean = mean0 if hasattr(mean0, "dtype") else np.asarray(mean0, dtype=float)
    check_vector("mean0", mean)
    return mean


def start_covariance(v0: Any, mean: Array) -> Covariance:
    """v0, a scalar, a diagonal, a matrix or a structure, as a covariance beside `mean`."""
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
        V.check(len(mean))
    return V


def check_row(x: Array, y: Array) -> None:
    """Refuse a row that is not finite numbers, before any arithmetic."""
    for name, value in (("x", x), ("y", y)):
        if hasattr(value, "dtype"):
            check_floating(name, value)
        check_finite(name, value)


def innovation(y: Array, value: Array) -> Array:
    """y - h, where y has the shape of h: a broadcast would pass in silence."""
    if y.shape != value.shape:
        raise ValueError(f"y must have the shape of the model's output, {value.shape}; got {y.shape}.")
    return y - value
