"""Predictive distributions of counts and classes."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from kalprox._arrays import Array, namespace, special_functions
from kalprox._control import call_numpy

__all__ = ["Categories", "Classes", "Counts"]

_LEAST_SPREAD = 1e-12  # the share of the mean by which a variance must exceed it, lest the dispersion round to 0


class Counts(NamedTuple):
    """Counts with this mean and standard deviation: the negative binomial distribution.

    It is a Poisson distribution whose rate has a gamma distribution. A variance below the mean is taken as the mean.

    Parameters
    ----------
    mean, std : arrays

    Examples
    --------
    >>> counts = Counts(np.array(2.0), np.array(2.0))
    >>> round(float(counts.cdf(2.0)), 4), float(counts.quantile(0.9))
    (0.6875, 5.0)
    """

    mean: Array
    std: Array

    def _parameters(self) -> tuple[Array, Array]:
        """Return the shape of the gamma distribution, and the probability mean / variance."""
        excess = namespace(self.mean).maximum(self.std**2 / self.mean - 1, _LEAST_SPREAD)
        return self.mean / excess, 1 / (1 + excess)

    def cdf(self, y: Array) -> Array:
        xp = namespace(self.mean, self.std, y)
        shape, p = self._parameters()
        whole = xp.maximum(xp.floor(y), 0)
        return xp.where(y < 0, 0.0, special_functions(xp).betainc(shape, whole + 1, p))

    def quantile(self, p: float) -> Array:
        return call_numpy(partial(_quantile_of_counts, p=p), *self._parameters())

    def log_prob(self, y: Array) -> Array:
        xp = namespace(self.mean, self.std, y)
        gammaln, (shape, p) = special_functions(xp).gammaln, self._parameters()
        whole = (y >= 0) & (y == xp.floor(y))
        y = xp.where(whole, y, 0.0)
        ways = gammaln(y + shape) - gammaln(shape) - gammaln(y + 1)
        return xp.where(whole, ways + shape * xp.log(p) + y * xp.log1p(-p), -xp.inf)


def _quantile_of_counts(shape: Any, probability: Any, p: float) -> np.ndarray:
    """Return the smallest count whose distribution function is at least p."""
    shape, probability = np.asarray(shape), np.asarray(probability)
    found = np.maximum(np.ceil(special.nbdtrik(p, shape, probability)), 0.0)
    below = np.maximum(found - 1, 0.0)  # rounding of the inverse may have led one count too far
    enough = special.betainc(shape, below + 1, probability) >= p
    whole: np.ndarray = np.where(enough, below, found).astype(shape.dtype)
    return whole


class Classes(NamedTuple):
    """One of two classes, 0 or 1, with the probability of class 1 as the mean.

    Examples
    --------
    >>> yes = Classes(np.array(0.8))
    >>> float(yes.cdf(0.0).round(3)), float(yes.quantile(0.5)), float(yes.std.round(3))
    (0.2, 1.0, 0.4)
    """

    mean: Array

    @property
    def std(self) -> Array:
        """The standard deviations, sqrt(p (1 - p))."""
        return namespace(self.mean).sqrt(self.mean * (1 - self.mean))

    def cdf(self, y: Array) -> Array:
        xp = namespace(self.mean, y)
        return xp.where(y < 0, 0.0, xp.where(y < 1, 1 - self.mean, 1.0))

    def quantile(self, p: float) -> Array:
        return namespace(self.mean).where(p <= 1 - self.mean, 0.0, 1.0)

    def log_prob(self, y: Array) -> Array:
        xp = namespace(self.mean, y)
        return xp.where(y == 1, xp.log(self.mean), xp.where(y == 0, xp.log1p(-self.mean), -xp.inf))


class Categories(NamedTuple):
    """One of m classes, whose probabilities are the last axis of the mean; an observation has a 1 for its class."""

    mean: Array

    @property
    def std(self) -> Array:
        """The standard deviations of each entry, sqrt(p (1 - p))."""
        return Classes(self.mean).std

    def cdf(self, y: Array) -> Array:
        """Return the probability that each entry is at most that of y."""
        return Classes(self.mean).cdf(y)

    def quantile(self, p: float) -> Array:
        """Return the p-quantile of each entry."""
        return Classes(self.mean).quantile(p)

    def log_prob(self, y: Array) -> Array:
        """Return the log probability of the class of each row, without the last axis."""
        xp = namespace(self.mean, y)
        return xp.log((self.mean * y).sum(axis=-1))
