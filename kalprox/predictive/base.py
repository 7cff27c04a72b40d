"""What a predictive distribution is."""

from typing import Protocol

from kalprox._arrays import Array

__all__ = ["Predictive"]


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
