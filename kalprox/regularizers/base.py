"""What every regulariser has, what a separable one has besides, and the pieces most of those are made of."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kalprox._arrays import Array, namespace


class Regularizer(ABC):
    """g(theta), twice differentiable at its `free` coordinates, which are all of them where it is smooth."""

    smooth: ClassVar[bool] = True

    @abstractmethod
    def value(self, theta: Array) -> Array:
        """g(theta), a scalar."""

    @abstractmethod
    def grad(self, theta: Array) -> Array:
        """The gradient, shape (d,); of meaning at the free coordinates."""

    @abstractmethod
    def hessian(self, theta: Array) -> Array:
        """The Hessian: shape (d,) where it is diagonal, else (d, d); of meaning at the free coordinates."""

    def root(self, d: int) -> Array | None:
        """The A with g = 1/2 ||A theta||^2, shape (m, d); None where g is not quadratic."""
        return None

    def free(self, theta: Array) -> Array:
        """Which coordinates are at no kink and no bound of g, shape (d,): there g is smooth."""
        return namespace(theta).ones(theta.shape, bool)


class Pieces(NamedTuple):
    """phi(t) = l1 |t| + l2/2 t^2 on [low, high], infinite outside: one kink at most, and two bounds.

    All four are scalars or have one entry per coordinate. Everything the L1 norm, the elastic net,
    the box and any weighting of them need is a formula in these.
    """

    l1: Any = 0.0
    l2: Any = 0.0
    low: Any = -np.inf
    high: Any = np.inf

    def slopes(self, theta: Array) -> tuple[Array, Array]:
        """The derivatives of l1 |t| + indicator from the left and from the right: the ends of its
        subdifferential. Infinite at a bound, where one cannot go on."""
        xp = namespace(theta, self)
        left = xp.where(theta > 0, self.l1, -self.l1)
        right = xp.where(theta < 0, -self.l1, self.l1)
        return xp.where(theta <= self.low, -np.inf, left), xp.where(theta >= self.high, np.inf, right)

    def prox(self, v: Array, step: Any) -> Array:
        """argmin over t of 1/2 (t - v)^2 + step * phi(t): soft threshold, shrink, clip."""
        xp = namespace(v, self)
        soft = v - xp.clip(v, -step * self.l1, step * self.l1)
        return xp.clip(soft / (1 + step * self.l2), self.low, self.high)

    def weighted(self, w: Array) -> "Pieces":
        """The pieces of w_i phi(theta_i); where w_i = 0 the bounds go too."""
        xp = namespace(w, self)
        low, high = xp.where(w > 0, self.low, -np.inf), xp.where(w > 0, self.high, np.inf)
        return Pieces(w * self.l1, w * self.l2, low, high)


class Separable(Regularizer):
    """g(theta) = sum_i phi(theta_i): everything about it is elementwise, its Hessian diagonal."""

    @abstractmethod
    def terms(self, theta: Array) -> Array:
        """phi(theta_i), shape (d,)."""

    def value(self, theta: Array) -> Array:
        return self.terms(theta).sum()

    def pieces(self) -> Pieces | None:
        """phi as `Pieces`; None where it is not of that form."""
        return None

    def free(self, theta: Array) -> Array:
        pieces = self.pieces()
        if pieces is None:
            return super().free(theta)
        left, right = pieces.slopes(theta)
        return left == right

    def prox(self, v: Array, step: Any = 1.0) -> Array:
        """argmin over t of 1/2 ||t - v||^2 + sum_i step_i phi(t_i); step is a scalar or one per coordinate."""
        pieces = self.pieces()
        if pieces is None:
            raise TypeError(f"{type(self).__name__} has no prox in closed form; use kalprox.solvers.prox.")
        return pieces.prox(v, step)


def per_coordinate(value: Any, d: int, name: str) -> Array:
    """A scalar or a vector of d entries, as a vector of d entries."""
    xp = namespace(value)
    if np.shape(value) not in ((), (d,)):
        raise ValueError(f"{name} must be a scalar or have one entry per parameter ({d}); got shape {np.shape(value)}.")
    return xp.broadcast_to(xp.asarray(value), (d,))
