"""Positive amounts, such as costs and waiting times, whose standard deviation grows with their mean."""

from typing import Any, ClassVar

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree
from kalprox.likelihoods.base import Likelihood
from kalprox.likelihoods.counts import rate
from kalprox.predictive import Amounts, FromMoments

__all__ = ["Gamma"]


@pytree
class Gamma(Likelihood):
    """Positive amounts with the mean exp(f), and a standard deviation that is a share of the mean, which is learned.

    The loss is y exp(-f) + f, and the estimate is that of a generalised linear model with the gamma distribution and
    the log link. The square of the share, the dispersion, is Pearson's statistic over its degrees of freedom, and
    multiplies the covariance. An exposure is an offset, as for counts. In predictions the mean exp(f) is uncertain,
    too, which adds to the variance.

    Examples
    --------
    >>> Gamma().expand(np.array([3.0]), np.array([0.0]))
    (array([-2.]), array([1.]))
    >>> import kalprox as kp
    >>> X, y = np.ones((4, 1)), np.array([1.0, 2.0, 3.0, 6.0])
    >>> fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(1), likelihood=Gamma())
    >>> np.exp(fit.mean).round(6), round(fit.noise_var, 6)  # the mean, and the variance over its square
    (array([3.]), 0.518519)
    """

    support: ClassVar[tuple[float, float]] = float(np.nextafter(0, 1)), np.inf
    learns_noise: ClassVar[bool] = True
    expected_curvature: ClassVar[bool] = True
    predictive: ClassVar[type[FromMoments] | None] = Amounts
    help: ClassVar[str] = "positive amounts, with the log of the mean as the linear predictor"
    noise_name: ClassVar[str] = "std / mean"

    def likely_size(self, largest: float) -> float:
        return max(1.0, abs(float(np.log(largest))) if largest > 0 else 1.0)

    def loss(self, y: Array, f: Array) -> Array:
        return y * namespace(f).exp(-f) + f

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        return 1 - y * namespace(f).exp(-f), namespace(f).ones_like(f)  # that of the observation itself is y / mean

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Amounts:
        xp, dispersion = namespace(f, leverage), noise.variance
        # One that cannot be learned from so few rows is 1 for the mean, and leaves the std unknown.
        mean, spread = rate(xp, f, leverage * xp.where(xp.isnan(xp.asarray(dispersion)), 1.0, dispersion))
        return Amounts(mean, mean * xp.sqrt(spread + dispersion * sigma**2 * (1 + spread)))
