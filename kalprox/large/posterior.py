"""The posterior of many parameters, given information with a structured precision matrix."""

from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, is_traced
from kalprox.large.information import Structured, noise_of_predictions
from kalprox.large.prox import minimise
from kalprox.likelihoods import Gaussian, Likelihood
from kalprox.noise import Noise
from kalprox.posterior import Posterior
from kalprox.regularizers import Regularizer

__all__ = ["StructuredPosterior"]


class StructuredPosterior(Posterior):
    """The posterior given structured information: its mean is the prox of g in its metric, its precision P + Hess g.

    The prior is in units of the noise variance, and a noise variance that is learned is that of the evidence: the mean
    square of the errors with which each row was predicted from those before it, in units of their standard deviations.
    Its degrees of freedom are the rows.

    Parameters
    ----------
    data : Structured
        The information of the rows and of the prior.
    regularizer : Regularizer
        The penalty g, besides the prior.
    gamma : float or None
        The noise precision; None if the noise variance is learned.
    start : array, optional
        Where the search for the estimate starts.
    likelihood : Likelihood, optional
        The default is Gaussian.
    """

    def __init__(
        self,
        data: Structured,
        regularizer: Regularizer,
        *,
        gamma: Any = None,
        start: Array | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        self.data, self.regularizer, self.gamma = data, regularizer, gamma
        self.likelihood = Gaussian() if likelihood is None else likelihood
        self._start = start

    @cached_property
    def _found(self) -> Any:
        return minimise(self.data.precision, self.data.mean, self.regularizer, self._start)

    @property
    def mean(self) -> Array:
        return self._found.theta

    @property
    def converged(self) -> bool:
        """Whether the estimate is the minimiser, up to rounding."""
        converged = self._found.converged
        return is_traced(converged) or bool(converged)

    @cached_property
    def factors(self) -> list[Any]:  # of StructuredFactor, which is read as the others are
        return [self.data.factor(self.regularizer, self.mean)]

    @cached_property
    def noise(self) -> Noise:
        if self.gamma is None and self.likelihood.learns_noise:
            data, g, rows = self.data, self.regularizer, self.data.effective_rows
            if self.likelihood.majorizes:
                return Noise(self.likelihood.unit, rows)
            away = self.mean - data.mean
            total = data.rss + data.quadratic(away).astype(data.rss.dtype)
            if g.quadratic:
                total = total + np.asarray(2 * g.value(self.mean)).astype(data.rss.dtype)
            return noise_of_predictions(total / data.fading, rows, 0.0, data.dropped)
        return Noise.known((1.0 if self.gamma is None else self.gamma) / self.likelihood.unit)
