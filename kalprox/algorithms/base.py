"""The interface of an algorithm, the states that its steps pass on, and the predictions made from them."""

from typing import Any

import numpy as np

from kalprox._arrays import Array, Partial, brief, cast, eager, is_traced, namespace, pytree, static
from kalprox._checks import check_finite, check_floating, check_vector
from kalprox._control import full_precision
from kalprox.covariance import Covariance, Dense
from kalprox.likelihoods import Likelihood
from kalprox.models import Model
from kalprox.noise import Noise
from kalprox.predictive import Predictive

__all__ = ["Algorithm", "Belief", "Point"]


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


@pytree
class Belief:
    """The belief theta ~ N(mean, V)."""

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
    """An estimate without a covariance, and the number of rows it was made from."""

    mean: Any
    rows: Any


@full_precision
def predict_from_belief(
    model: Model, likelihood: Likelihood, gamma: Any, state: Belief, x: Array, block: bool | None = None
) -> Predictive:
    """The predictive distribution of y at x under theta ~ N(mean, V), with h linearised at the mean.

    `block` is whether x is a block of rows; by default it is one if it has two dimensions.
    """
    h, likelihood, gamma, x = cast((model, likelihood, gamma, x), state.mean)
    state = like_row(state, x)
    f, D = _linearize(h, state.mean, x, block)
    gamma = gamma / likelihood.unit
    return likelihood.predict(f, gamma * state.V.variance(D), Noise.known(gamma))


@full_precision
def predict_from_point(
    model: Model, likelihood: Likelihood, state: Point, x: Array, block: bool | None = None
) -> Predictive:
    """The mean of y at x, with an infinite standard deviation: nothing is known about the error of theta."""
    h, likelihood, theta, x = cast((model, likelihood, state.mean, x), state.mean)
    f, _ = _linearize(h, theta, x, block)
    return likelihood.predict(f, namespace(f).full_like(f, np.inf), Noise.known(1.0))


def _linearize(h: Model, theta: Array, x: Array, block: bool | None) -> tuple[Array, Array]:
    return h.linearize_rows(theta, x) if (x.ndim == 2 if block is None else block) else h.linearize(theta, x)


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


def like_row(state: Any, x: Array) -> Any:
    """`state` in the array library of a row x that has been cast to its dtype.

    They differ where a NumPy state from outside meets traced parameters inside jit.
    """
    return state if isinstance(state.mean, np.ndarray) is isinstance(x, np.ndarray) else cast(state, x)


def check_row(x: Array, y: Array) -> None:
    """Raise unless x and y are finite floating numbers, before any arithmetic."""
    with eager():
        for name, value in (("x", x), ("y", y)):
            if hasattr(value, "dtype"):
                check_floating(name, value)
            check_finite(name, value)


def check_target(y: Array, value: Array) -> None:
    """Raise unless y has the shape of the model's output: otherwise it would be broadcast."""
    if y.shape != value.shape:
        raise ValueError(f"y must have the shape of the model's output, {value.shape}; got {y.shape}.")
