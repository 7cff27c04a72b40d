"""A filter of single rows for other likelihoods than the Gaussian."""

import math
from dataclasses import dataclass, replace

from kalprox._arrays import Array
from kalprox.learning.innovations import SquareRootFilter
from kalprox.likelihoods import Likelihood
from kalprox.noise import Noise
from kalprox.predictive import Predictive

__all__ = ["MatchingFilter"]

_NOISE = Noise.known(1.0)


@dataclass
class MatchingFilter:
    """A filter of single rows that learns each by moment matching, and predicts with the likelihood.

    Attributes
    ----------
    root : SquareRootFilter
        In units of the loss, which are those of a noise variance of 1.
    likelihood : Likelihood
    """

    root: SquareRootFilter
    likelihood: Likelihood

    def copy(self) -> "MatchingFilter":
        """Return a filter that later rows of this one do not change. O(d^2)."""
        return replace(self, root=self.root.copy())

    def predict(self, X: Array) -> Predictive:
        """Return the predictive distribution for rows of X."""
        return self.likelihood.predict(*self.root.output(X), _NOISE)

    def mean(self, X: Array) -> Array:
        """Return the predictive means for rows of X, shape (n,)."""
        return self.predict(X).mean

    def noise(self) -> tuple[float, float]:
        """Return the noise variance, which is 1, and its degrees of freedom."""
        return 1.0, math.inf
