"""The posterior of many parameters, given information with a structured precision matrix, and its noise variance."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.information.implicit import pieces
from kalprox.large.information import Structured, noise_of_predictions
from kalprox.large.low_rank import StructuredFactor
from kalprox.likelihoods import Likelihood
from kalprox.noise import Noise
from kalprox.posterior import Posterior
from kalprox.regularizers import Regularizer

__all__ = ["StructuredPosterior", "noise_of"]


class StructuredPosterior(Posterior):
    """The posterior with a given mean, whose precision matrix is held in a structure.

    Parameters
    ----------
    mean : array of shape (d,)
    noise : Noise
    likelihood : Likelihood
    factor : callable
        Returns the factor of the covariance, when that is read first.
    """

    mean: Array = None
    noise: Noise = None  # type: ignore[assignment]

    def __init__(
        self, mean: Array, noise: Noise, likelihood: Likelihood, factor: Callable[[], StructuredFactor]
    ) -> None:
        self.mean, self.noise, self.likelihood, self._factor = mean, noise, likelihood, factor

    @cached_property
    def factors(self) -> list[Any]:  # of StructuredFactor, which is read as the others are
        return [self._factor()]

    def output_variance(self, f: Array, D: Any) -> Array:
        """Return the variance of the outputs, see `Posterior`; D may also be sparse, or a Jacobian by its products.

        Of several classes it is that of the differences to their mean, which alone have an effect.
        """
        if not hasattr(D, "explicit"):
            return self._variance_of(f, D)
        parts = [self._variance_of(f[rows], rows_of_D) for rows, rows_of_D in pieces(D, len(f), f[0].size)]
        found = np.concatenate(parts)
        if self.likelihood.interacts:
            found = found - found.mean(axis=-1, keepdims=True)
            found = found - found.mean(axis=-2, keepdims=True)
        return found

    def _variance_of(self, f: Array, D: Any) -> Array:
        if not scipy.sparse.issparse(D):
            return super().output_variance(f, D)
        if not self.likelihood.interacts:
            return self.leverage(D).reshape(f.shape)
        parts = (D[i : i + f.shape[1]].toarray() for i in range(0, f.size, f.shape[1]))
        return np.concatenate([super(StructuredPosterior, self).output_variance(f[:1], rows) for rows in parts])


def noise_of(
    data: Structured,
    likelihood: Likelihood,
    gamma: Any = None,
    *,
    g: Regularizer | None = None,
    mean: Any = None,
    fitted: float = 0.0,
) -> Noise:
    """Return the noise variance: the one that is given, that of the likelihood, or that of the evidence.

    That of the evidence is the mean square of the errors with which each row was predicted from those before it, in
    units of their standard deviations, and its degrees of freedom are the rows.

    Parameters
    ----------
    data : Structured
    likelihood : Likelihood
    gamma : float, optional
        The noise precision; by default it is learned.
    g : Regularizer, optional
        A penalty besides the prior, which moves the estimate to `mean`.
    fitted : float
        How many parameters the rows have fitted that the errors do not know of.
    """
    if gamma is not None or not likelihood.learns_noise:
        return Noise.known((1.0 if gamma is None else gamma) / likelihood.unit)
    rows, rss = data.effective_rows, data.rss
    if likelihood.majorizes:
        return Noise(likelihood.unit, rows)
    if g is not None:
        rss = rss + data.quadratic(mean - data.mean).astype(rss.dtype)
        if g.quadratic:
            rss = rss + np.asarray(2 * g.value(mean)).astype(rss.dtype)
    return noise_of_predictions(rss / data.fading, rows, fitted, data.dropped)
