"""What a predictive distribution is."""

from typing import Any, Protocol, Self

import numpy as np

from kalprox.base.arrays import Array, namespace, special_functions

__all__ = ["FromMoments", "Predictive", "bounded", "central_interval", "is_discrete", "normal_scores", "signed_scores"]


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
    """A predictive distribution that its mean, its scale and the degrees of freedom of that scale determine.

    A class needs no more than this. It may also have `possible(y)`, which says of which observations it is a
    distribution, and `advice()`, which says for words of a verdict what they mean for such observations. A discrete
    distribution has `scores(y, v)`, the randomised normal scores and the log probabilities of observations. A
    continuous one may have `normal_scores(y)`, if it knows its tails better than `cdf`.
    """

    @classmethod
    def of_moments(cls, mean: Array, std: Array, dof: Any) -> Self:
        """Return the distributions with these moments."""


def is_discrete(predictive: Any) -> bool:
    """Return whether a distribution, or a kind of distribution, is discrete, so that its scores are randomised."""
    return hasattr(predictive, "scores")


def normal_scores(found: Predictive, y: Array) -> tuple[Array, Array]:
    """Return the normal scores Phi^-1(F(y)) of observations under a continuous distribution, and the log densities."""
    if hasattr(found, "normal_scores"):
        scores: tuple[Array, Array] = found.normal_scores(y)
        return scores
    xp, below = namespace(found.mean, y), found.cdf(y)
    low = below < 0.5
    return signed_scores(xp, low, xp.where(low, below, 1 - below)), bounded(xp, found.log_prob(y))


def signed_scores(xp: Any, low: Array, tail: Array) -> Array:
    """Return the normal scores of probabilities of the lower tail, where `low`, or of the upper one."""
    tail = xp.minimum(xp.maximum(tail, xp.finfo(tail.dtype).tiny), 1 - xp.finfo(tail.dtype).epsneg)
    score = special_functions(xp).ndtri(tail)
    return xp.where(low, score, -score)


def bounded(xp: Any, log_prob: Array) -> Array:
    """Return log probabilities that are finite, so that none can turn a sum into NaN."""
    return xp.maximum(log_prob, float(np.log(np.finfo(log_prob.dtype).tiny)))


def central_interval(found: Predictive, level: float) -> tuple[Array, Array]:
    """Return the ends of the central interval that contains an observation with probability `level`."""
    return found.quantile((1 - level) / 2), found.quantile((1 + level) / 2)
