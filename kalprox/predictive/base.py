"""What a predictive distribution is."""

from typing import Any, Protocol, Self

from kalprox._arrays import Array

__all__ = ["FromMoments", "Predictive"]


class Predictive(Protocol):
    """The predictive distribution of new observations, one for each row."""

    @property
    def mean(self) -> Array:
        """The predictive means."""

    @property
    def std(self) -> Array:
        """The predictive scales."""

    def cdf(self, y: Array) -> Array:
        """Return the probability that an observation is at most y."""

    def quantile(self, p: float) -> Array:
        """Return the p-quantile."""

    def log_prob(self, y: Array) -> Array:
        """Return the log density, or the log probability, at y."""


class FromMoments(Predictive, Protocol):
    """A predictive distribution that its mean, its scale and the degrees of freedom of that scale determine."""

    @classmethod
    def of_moments(cls, mean: Array, std: Array, dof: Any) -> Self:
        """Return the distributions with these moments."""
