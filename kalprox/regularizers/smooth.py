"""Smooth regularisers: quadratic ones, smoothed L1 norms, a non-convex one, and any function."""

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree, static
from kalprox.base.checks import check_positive
from kalprox.base.control import call_jax
from kalprox.base.extras import require
from kalprox.regularizers.base import Pieces, Regularizer, Separable, per_coordinate


@pytree
class Zero(Separable):
    """g = 0: no regularisation.

    Examples
    --------
    >>> Zero().value(np.array([1.0, 2.0]))
    np.float64(0.0)
    """

    quadratic: ClassVar[bool] = True
    is_zero: ClassVar[bool] = True

    def terms(self, theta: Array) -> Array:
        return namespace(theta).zeros_like(theta)

    def grad(self, theta: Array) -> Array:
        return namespace(theta).zeros_like(theta)

    def hessian(self, theta: Array) -> Array:
        return namespace(theta).zeros_like(theta)

    def root(self, d: int) -> Array:
        return np.zeros((0, d))

    def pieces(self) -> Pieces:
        return Pieces()


@pytree
class Ridge(Separable):
    """g = lam/2 ||theta||^2.

    Parameters
    ----------
    lam : float or array
        The weight, a scalar or one per coordinate.

    Examples
    --------
    >>> Ridge(3.0).value(np.array([1.0, 1.0]))
    np.float64(3.0)
    """

    lam: Any
    quadratic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("lam", self.lam, strict=False)

    def terms(self, theta: Array) -> Array:
        return self.lam / 2 * theta**2

    def grad(self, theta: Array) -> Array:
        return self.lam * theta

    def hessian(self, theta: Array) -> Array:
        return self.lam * namespace(theta).ones_like(theta)

    def root(self, d: int) -> Array:
        return namespace(self.lam).diag(per_coordinate(self.lam, d, "lam") ** 0.5)

    def pieces(self) -> Pieces:
        return Pieces(l2=self.lam)


@pytree
class Quadratic(Regularizer):
    """g = 1/2 ||A theta||^2: the paper's eq. (quad).

    Parameters
    ----------
    A : array
        Any matrix of shape (m, d).

    Examples
    --------
    >>> Quadratic(np.array([[1.0, -1.0]])).value(np.array([3.0, 1.0]))  # neighbours alike
    np.float64(2.0)
    """

    A: Any
    quadratic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if hasattr(self.A, "ndim") and self.A.ndim < 2:  # more than two: a batch under jax.vmap
            raise ValueError(f"A must be a matrix of shape (m, d); got shape {self.A.shape}.")

    def value(self, theta: Array) -> Array:
        return ((self.root(theta.shape[0]) @ theta) ** 2).sum() / 2

    def grad(self, theta: Array) -> Array:
        return self.A.T @ (self.A @ theta)

    def hessian(self, theta: Array) -> Array:
        return self.A.T @ self.A

    def root(self, d: int) -> Array:
        if self.A.shape[1] != d:
            raise ValueError(f"A must have one column per parameter: expected (m, {d}), got {self.A.shape}.")
        return self.A


@pytree
class _Smoothed(Separable):
    """lam * sum_i phi(theta_i / delta), with a weight lam >= 0 and a width delta > 0."""

    lam: Any
    delta: Any

    def __post_init__(self) -> None:
        check_positive("lam", self.lam, strict=False)
        check_positive("delta", self.delta)


@pytree
class SmoothL1(_Smoothed):
    """g = lam * sum_i (sqrt(1 + theta_i^2 / delta^2) - 1): the paper's sparse experiment.

    Near zero g is lam/2 (theta/delta)^2, and far from zero lam |theta| / delta. As delta goes to zero, it tends to the
    L1 norm with weight lam / delta.

    Parameters
    ----------
    lam : float or array
        The weight, a scalar or one per coordinate.
    delta : float or array
        The width, a scalar or one per coordinate.

    Examples
    --------
    >>> SmoothL1(2.0, 1.0).value(np.array([0.0, 1.0])).round(3)
    np.float64(0.828)
    """

    def terms(self, theta: Array) -> Array:
        t2 = (theta / self.delta) ** 2
        return self.lam * t2 / (1 + namespace(theta).sqrt(1 + t2))  # without cancellation near 0

    def grad(self, theta: Array) -> Array:
        t = theta / self.delta
        return self.lam / self.delta * t / namespace(theta).sqrt(1 + t**2)

    def hessian(self, theta: Array) -> Array:
        return self.lam / self.delta**2 * (1 + (theta / self.delta) ** 2) ** -1.5


@pytree
class Huber(_Smoothed):
    """g = lam * sum_i (theta_i^2 / (2 delta) where |theta_i| <= delta, else |theta_i| - delta/2).

    The second derivative jumps at |theta_i| = delta, where the value from inside is returned.

    Parameters
    ----------
    lam : float or array
        The weight, a scalar or one per coordinate.
    delta : float or array
        The width, a scalar or one per coordinate.

    Examples
    --------
    >>> Huber(1.0, 1.0).grad(np.array([0.5, 3.0]))
    array([0.5, 1. ])
    """

    def terms(self, theta: Array) -> Array:
        xp = namespace(theta)
        size = xp.abs(theta)
        return self.lam * xp.where(size <= self.delta, theta**2 / (2 * self.delta), size - self.delta / 2)

    def grad(self, theta: Array) -> Array:
        return self.lam * namespace(theta).clip(theta / self.delta, -1, 1)

    def hessian(self, theta: Array) -> Array:
        xp = namespace(theta)
        return self.lam / self.delta * (xp.abs(theta) <= self.delta).astype(theta.dtype)


@pytree
class Cauchy(_Smoothed):
    """g = lam * sum_i log(1 + theta_i^2 / delta^2): the log-sum penalty, closer to the number of nonzeros than L1.

    It is not convex: its curvature is negative where |theta_i| > delta.

    Parameters
    ----------
    lam : float or array
        The weight, a scalar or one per coordinate.
    delta : float or array
        The width, a scalar or one per coordinate.

    Examples
    --------
    >>> Cauchy(1.0, 1.0).hessian(np.array([0.0, 2.0]))
    array([ 2.  , -0.24])
    """

    def terms(self, theta: Array) -> Array:
        return self.lam * namespace(theta).log1p((theta / self.delta) ** 2)

    def grad(self, theta: Array) -> Array:
        return 2 * self.lam * theta / (self.delta**2 + theta**2)

    def hessian(self, theta: Array) -> Array:
        return 2 * self.lam * (self.delta**2 - theta**2) / (self.delta**2 + theta**2) ** 2


@pytree
class Custom(Regularizer):
    """g = fn(theta) for any function; the gradient and the dense Hessian come from JAX.

    JAX is an extra: `pip install "kalprox[jax]"`.

    NumPy arrays are answered with NumPy arrays of the same dtype, whatever JAX's global x64 flag says. A model file
    holds no code: an estimator with this penalty can be pickled, as by joblib, but not saved.

    Parameters
    ----------
    fn : callable
        A twice differentiable JAX function from theta, shape (d,), to a scalar. Numbers that it closes over are
        constants: to differentiate a minimiser by them, write a `Regularizer` that has them as parameters.

    Examples
    --------
    >>> Custom(lambda theta: (theta**4).sum()).grad(np.array([1.0, 2.0]))
    array([ 4., 32.])
    """

    fn: Callable[[Array], Array] = static()

    def __post_init__(self) -> None:
        require("jax", "kalprox.regularizers.Custom needs")

    def value(self, theta: Array) -> Array:
        return call_jax(_derivatives(self.fn)[0], theta)

    def grad(self, theta: Array) -> Array:
        return call_jax(_derivatives(self.fn)[1], theta)

    def hessian(self, theta: Array) -> Array:
        return call_jax(_derivatives(self.fn)[2], theta)


@cache
def _derivatives(fn: Callable[[Array], Array]) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    import jax

    return jax.jit(fn), jax.jit(jax.grad(fn)), jax.jit(jax.hessian(fn))
