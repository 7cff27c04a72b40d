"""The states that the paper's recursions pass on, the checks of their rows, and the predictions made from them."""

from typing import Any

import numpy as np

from kalprox.base.arrays import Array, cast, eager, namespace, pytree
from kalprox.base.checks import check_finite, check_floating
from kalprox.base.control import full_precision
from kalprox.covariance import Covariance
from kalprox.likelihoods import Likelihood
from kalprox.models import Model
from kalprox.noise import Noise
from kalprox.predictive import Predictive

__all__ = ["Belief", "Point"]


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
