"""What every covariance structure can do."""

from abc import ABC, abstractmethod
from typing import Any, Self

from kalprox._arrays import Array


class Covariance(ABC):
    """A d x d covariance V, as the recursions need it: applied, predicted, conditioned, read."""

    @abstractmethod
    def apply(self, x: Array) -> Array:
        """V x for a vector x, shape (d,)."""

    @abstractmethod
    def predict(self, gamma: Array, H: Array, q: Any) -> Self:
        """M V M' + Q with M = I - gamma V H; H of shape (d,) is a diagonal matrix, and so is q."""

    @abstractmethod
    def condition(self, d: Array, gamma: Array) -> tuple[Array, Self]:
        """After seeing d' theta with noise variance 1/gamma: the gain V d / (1/gamma + d' V d), and V."""

    @abstractmethod
    def diag(self) -> Array:
        """The variances, shape (d,)."""

    @abstractmethod
    def dense(self) -> Array:
        """V as a matrix, shape (d, d)."""
