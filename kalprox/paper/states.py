"""The states that the paper's recursions pass on, the step of one row, and the predictions made from a state."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, cast, eager, namespace, pytree, tree_map
from kalprox.base.checks import check_finite, check_floating
from kalprox.base.control import full_precision
from kalprox.covariance import Covariance
from kalprox.likelihoods import Likelihood
from kalprox.models import Model
from kalprox.noise import Noise
from kalprox.predictive import Predictive

__all__ = ["Belief", "Point", "check_target", "predictive", "row_step"]


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

    def variance(self, D: Array) -> Array:
        """The variances of the predictors D theta."""
        return self.V.variance(D)


@pytree
class Point:
    """An estimate without a covariance, and the number of rows it was made from."""

    mean: Any
    rows: Any

    def variance(self, D: Array) -> Array:
        """The variances of the predictors D theta, infinite: nothing is known about the error of theta."""
        return namespace(D).full_like(D[..., 0], np.inf)


def row_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the equations of a row, `step(*numbers, state, x, y)`.

    Before any arithmetic the row is checked. The numbers, x and y then come in the array library and dtype of the
    state, so that a float64 penalty weight does not promote a float32 recursion, and products are in full precision.
    """

    @full_precision
    @wraps(step)
    def checked(*args: Any) -> Any:
        *numbers, state, x, y = args
        with eager():
            for name, value in (("x", x), ("y", y)):
                if hasattr(value, "dtype"):
                    check_floating(name, value)
                check_finite(name, value)
        numbers, x, y = cast((numbers, x, y), state.mean)
        return step(*numbers, _in_library_of(x, state), x, y)

    return checked


@full_precision
def predictive(
    model: Model, likelihood: Likelihood, gamma: Any, state: Belief | Point, x: Array, block: bool | None = None
) -> Predictive:
    """The predictive distribution of y at x under what `state` says of theta, with h linearised at the mean.

    `block` is whether x is a block of rows; by default it is one if it has two dimensions.
    """
    h, likelihood, gamma, x = cast((model, likelihood, gamma, x), state.mean)
    state = _in_library_of(x, state)
    block = x.ndim == 2 if block is None else block
    f, D = h.linearize_rows(state.mean, x) if block else h.linearize(state.mean, x)
    gamma = gamma / likelihood.unit
    return likelihood.predict(f, gamma * state.variance(D), Noise.known(gamma))


def _in_library_of(x: Array, state: Any) -> Any:
    """`state`, or where it is NumPy's and x, cast to its dtype, is traced inside jit, the state as arrays of JAX."""
    same = isinstance(state.mean, np.ndarray) is isinstance(x, np.ndarray)
    return state if same else tree_map(namespace(x).asarray, state)


def check_target(y: Array, value: Array) -> None:
    """Raise unless y has the shape of the model's output: otherwise it would be broadcast."""
    if y.shape != value.shape:
        raise ValueError(f"y must have the shape of the model's output, {value.shape}; got {y.shape}.")
