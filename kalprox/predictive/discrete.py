"""Predictive distributions of counts, classes and positive amounts."""

from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, certainly, namespace, special_functions
from kalprox.base.control import call_numpy
from kalprox.base.text import worded
from kalprox.predictive.student import bounded, signed_scores

_LEAST_SPREAD = 1e-12  # the share of the mean by which a variance must exceed it, lest the dispersion round to 0
_POISSON = 1e-8  # the share below which it is a Poisson distribution; JAX's incomplete beta function loses digits there
_LARGE_SHAPE = 1e3  # above it differences of log gamma functions come from Stirling's series, lest they cancel


class Counts(NamedTuple):
    """Counts with this mean and standard deviation: the negative binomial distribution.

    It is a Poisson distribution whose rate has a gamma distribution. A variance below the mean is taken as the mean.

    Parameters
    ----------
    mean, std : arrays

    Examples
    --------
    >>> counts = Counts(np.array(2.0), np.array(2.0))
    >>> round(float(counts.cdf(2.0)), 4), float(counts.quantile(0.9)), round(float(counts.log_prob(2.0)), 3)
    (0.6875, 5.0, -1.674)
    """

    mean: Array
    std: Array

    @classmethod
    def of_moments(cls, mean: Array, std: Array, dof: Any) -> "Counts":
        """Return the distributions with these moments."""
        return cls(mean, namespace(mean, std).maximum(std, mean**0.5))

    @staticmethod
    def possible(y: Array) -> Array:
        """Return which observations are counts."""
        return (y >= 0) & (y == namespace(y).floor(y))

    def _parameters(self) -> tuple[Array, Array, Array]:
        """Return the shape of the gamma distribution, variance / mean - 1, and a mean that is not 0."""
        xp = namespace(self.mean, self.std)
        mean = xp.maximum(self.mean, xp.finfo(xp.asarray(self.mean).dtype).tiny)
        excess = xp.maximum(self.std**2 / mean - 1, _LEAST_SPREAD)
        return mean / excess, excess, mean

    def cdf(self, y: Array) -> Array:
        xp = namespace(self.mean, self.std, y)
        return xp.where(y < 0, 0.0, 1 - self._above(xp, xp.maximum(xp.floor(y), 0)))

    def _above(self, xp: ModuleType, y: Array) -> Array:
        """Return the probability of more than y, a count."""
        functions, (shape, excess, mean) = special_functions(xp), self._parameters()
        if certainly(excess < _POISSON):
            return functions.gammainc(y + 1, mean)
        above = functions.betainc(y + 1, shape, excess / (1 + excess))
        return above if xp is np else xp.where(excess < _POISSON, functions.gammainc(y + 1, mean), above)

    def _below(self, xp: ModuleType, y: Array) -> Array:
        """Return the probability of less than y, a count."""
        functions, (shape, excess, mean) = special_functions(xp), self._parameters()
        some = xp.maximum(y, 1)
        if certainly(excess < _POISSON):
            below = functions.gammaincc(some, mean)
        elif xp is np:
            below = functions.betaincc(some, shape, excess / (1 + excess))
        else:
            below = functions.betainc(shape, some, 1 / (1 + excess))
            below = xp.where(excess < _POISSON, functions.gammaincc(some, mean), below)
        return xp.where(y > 0, below, 0.0)

    def quantile(self, p: float) -> Array:
        return call_numpy(partial(_quantile_of_counts, p=p), *self._parameters())

    def log_prob(self, y: Array) -> Array:
        xp = namespace(self.mean, self.std, y)
        shape, excess, mean = self._parameters()
        whole = (y >= 0) & (y == xp.floor(y))
        y = xp.where(whole, y, 0.0)
        rate = y * xp.log(mean / (1 + excess)) - mean * (xp.log1p(excess) / excess)
        ways = log_rising(xp, shape, y) - special_functions(xp).gammaln(y + 1)
        return xp.where(whole, rate + ways, -xp.inf)

    def scores(self, y: Array, v: Array) -> tuple[Array, Array]:
        """Return the normal scores of observed counts, randomised by v, and their log probabilities.

        With uniform v, F(y - 1) + v P(y) is uniform, and its normal score standard normal, if the prediction is right.

        Parameters
        ----------
        y, v : arrays
            Counts, and numbers strictly between 0 and 1.

        Returns
        -------
        scores, log_prob : arrays
            At most 37 in absolute value (13 in float32), and at least -708 (-87).
        """
        xp = namespace(self.mean, self.std, y)
        log_prob = self.log_prob(y)
        low, own = y < self.mean, xp.exp(log_prob)
        if xp is np:  # each tail of the rows that are in it, which takes half of the time
            mean, std, y, v = np.broadcast_arrays(self.mean, self.std, y, v)
            tail, high = np.empty(y.shape), ~low
            tail[low] = Counts(mean[low], std[low])._below(np, y[low]) + (v * own)[low]
            tail[high] = Counts(mean[high], std[high])._above(np, y[high]) + ((1 - v) * own)[high]
        else:
            tail = xp.where(low, self._below(xp, y) + v * own, self._above(xp, y) + (1 - v) * own)
        return signed_scores(xp, low, tail), bounded(xp, log_prob)


def log_rising(xp: ModuleType, shape: Array, y: Array) -> Array:
    """Return log Gamma(shape + y) - log Gamma(shape) - y log(shape)."""
    gammaln = special_functions(xp).gammaln
    few, many = xp.minimum(shape, _LARGE_SHAPE), xp.maximum(shape, _LARGE_SHAPE)
    total = many + y
    stirling = (total - 0.5) * xp.log1p(y / many) - y + (1 / total - 1 / many) / 12 - (total**-3 - many**-3) / 360
    return xp.where(shape > _LARGE_SHAPE, stirling, gammaln(few + y) - gammaln(few) - y * xp.log(few))


def _quantile_of_counts(shape: Any, excess: Any, mean: Any, p: float) -> np.ndarray:
    """Return the smallest count whose distribution function is at least p."""
    shape, excess, mean = np.asarray(shape), np.asarray(excess), np.asarray(mean)
    poisson = excess < 1e-6  # where 1 / (1 + excess) has lost its digits
    inverse = np.where(poisson, special.pdtrik(p, mean), special.nbdtrik(p, shape, 1 / (1 + excess)))
    found = np.maximum(np.ceil(inverse), 0.0)
    below = np.maximum(found - 1, 0.0)  # rounding of the inverse may have led one count too far
    enough = 1 - special.betainc(below + 1, shape, excess / (1 + excess)) >= p
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

    @classmethod
    def of_moments(cls, mean: Array, std: Array, dof: Any) -> "Classes":
        """Return the distributions with these moments."""
        return cls(mean)

    @staticmethod
    def possible(y: Array) -> Array:
        """Return which observations are classes."""
        return (y == 0) | (y == 1)

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

    def scores(self, y: Array, v: Array) -> tuple[Array, Array]:
        """Return the normal scores of observed classes, 0 or 1, randomised by v, and their log probabilities.

        With uniform v, v (1 - p) for class 0 and 1 - (1 - v) p for class 1 are uniform, and their normal scores
        standard normal, if the prediction is right.

        Parameters
        ----------
        y, v : arrays
            Classes, and numbers strictly between 0 and 1.

        Returns
        -------
        scores, log_prob : arrays
            At most 37 in absolute value (13 in float32), and at least -708 (-87).
        """
        xp = namespace(self.mean, y)
        low, p = y == 0, self.mean
        with np.errstate(divide="ignore"):
            log_prob = xp.where(low, xp.log1p(-p), xp.log(p))
        return signed_scores(xp, low, xp.where(low, v * (1 - p), (1 - v) * p)), bounded(xp, log_prob)


class Categories(NamedTuple):
    """One of m classes, whose probabilities are the last axis of the mean; an observation has a 1 for its class."""

    mean: Array

    @classmethod
    def of_moments(cls, mean: Array, std: Array, dof: Any) -> "Categories":
        """Return the distributions with these moments."""
        return cls(mean)

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


_ADVICE = {  # what words of a verdict mean
    "nonlinear": "The predictions are too high in some places and too low in others: the log of the mean is not a "
    "straight line in the inputs. Add the square or product that is named, or splines of columns.",
    "unequal spread": "How much the amounts vary about their means changes with the mean otherwise than stated, by "
    'a share of it. Use {likelihood="quasi-poisson"}, whose variance is a multiple of the mean, or learn the log of '
    'the amounts with {likelihood="gaussian"}.',
    "heavy tails": "A few amounts are farther from their means than a gamma distribution would have them. Use "
    '{method="conformal"|predict --interval conformal}, or learn the log of the amounts with {likelihood="student"}.',
    "skewed": "The amounts are not gamma distributed about their means. Use intervals that do not assume it, "
    '{method="conformal"|predict --interval conformal}, or learn the log of the amounts with {likelihood="gaussian"}.',
    "over-confident": "The amounts vary more than stated: look for what the model leaves out, such as a missing input.",
    "under-confident": "The amounts vary less than stated: look for rows that were unlike the others when the "
    "dispersion was learned.",
}


class Amounts(NamedTuple):
    """Positive amounts with this mean and standard deviation: the gamma distribution.

    Parameters
    ----------
    mean, std : arrays

    Examples
    --------
    >>> amounts = Amounts(np.array(2.0), np.array(2.0))  # exponential
    >>> float(amounts.cdf(2.0).round(4)), float(amounts.quantile(0.5).round(4)), float(amounts.log_prob(2.0).round(4))
    (0.6321, 1.3863, -1.6931)
    """

    mean: Array
    std: Array

    @staticmethod
    def advice() -> dict[str, str]:
        """Return what words of a verdict mean, and what to change."""
        return {word: worded(text) for word, text in _ADVICE.items()}

    @classmethod
    def of_moments(cls, mean: Array, std: Array, dof: Any) -> "Amounts":
        """Return the distributions with these moments."""
        return cls(mean, std)

    @staticmethod
    def possible(y: Array) -> Array:
        """Return which observations are positive."""
        return y > 0

    def _shape_and_size(self, y: Array) -> tuple[Any, Array, Array]:
        """Return the array library, the shape of the distribution, and observations in units of its scale."""
        xp = namespace(self.mean, self.std, y)
        shape = (self.mean / self.std) ** 2
        return xp, shape, xp.maximum(shape * (y / self.mean), 0)

    def cdf(self, y: Array) -> Array:
        xp, shape, size = self._shape_and_size(y)
        return special_functions(xp).gammainc(shape, size)

    def quantile(self, p: float) -> Array:
        shape = (np.asarray(self.mean) / np.asarray(self.std)) ** 2
        return namespace(self.mean).asarray(special.gammaincinv(shape, p) * (self.mean / shape))

    def log_prob(self, y: Array) -> Array:
        xp, shape, size = self._shape_and_size(y)
        density = shape * xp.log(size) - size - special_functions(xp).gammaln(shape) - xp.log(y)
        return xp.where(y > 0, density, -xp.inf)

    def normal_scores(self, y: Array) -> tuple[Array, Array]:
        """Return the normal scores of observations, from whichever tail is smaller, and the log densities.

        Parameters
        ----------
        y : array

        Returns
        -------
        scores, log_prob : arrays
        """
        xp, shape, size = self._shape_and_size(y)
        functions, low = special_functions(xp), size < shape
        tail = xp.where(low, functions.gammainc(shape, size), functions.gammaincc(shape, size))
        return signed_scores(xp, low, tail), bounded(xp, self.log_prob(y))
