"""The predictive distribution of positive amounts, such as costs and waiting times."""

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, namespace, special_functions
from kalprox.predictive.base import bounded, signed_scores

__all__ = ["Amounts"]

_ADVICE = {  # what words of a verdict mean
    "nonlinear": "The predictions are too high in some places and too low in others: the log of the mean is not a "
    "straight line in the inputs. Add the square or product that is named, or splines of columns.",
    "unequal spread": "How much the amounts vary about their means changes with the mean otherwise than stated, by "
    'a share of it. Use likelihood="quasi-poisson", whose variance is a multiple of the mean, or learn the log of '
    'the amounts with likelihood="gaussian".',
    "heavy tails": "A few amounts are farther from their means than a gamma distribution would have them. Use "
    'method="conformal", or learn the log of the amounts with likelihood="student".',
    "skewed": "The amounts are not gamma distributed about their means. Use intervals that do not assume it, "
    'method="conformal", or learn the log of the amounts with likelihood="gaussian".',
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
        return _ADVICE

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
