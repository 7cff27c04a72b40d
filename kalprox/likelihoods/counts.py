"""Counts and positive amounts, with the log of the mean as the output of the model."""

import math
from typing import Any, ClassVar

import numpy as np

from kalprox.base.arrays import Array, certainly, namespace, pytree, special_functions
from kalprox.likelihoods.base import Likelihood, Outcomes
from kalprox.predictive import Amounts, Counts, FromMoments


class _Counts(Likelihood):
    """Counts, with the log of their mean as the output of the model."""

    support: ClassVar[tuple[float, float]] = 0.0, np.inf
    outcomes: ClassVar[Outcomes] = "counts"
    predictive: ClassVar[type[FromMoments] | None] = Counts

    def likely_size(self, largest: float) -> float:
        return max(1.0, float(np.log1p(largest)))


@pytree
class Poisson(_Counts):
    """Counts with the mean exp(f): the loss is exp(f) - y f.

    An exposure, the time or the number at risk of a row, is an offset: log(exposure) is added to f. With weights in its
    place, y / exposure with the weight exposure has the same estimate. In predictions the rate exp(f) has the gamma
    distribution whose log has about the mean and the variance of f, so that a count has a negative binomial
    distribution: up to 1.4% of its shape, the one that Bayes' rule gives where all rows have the same rate.

    Examples
    --------
    >>> import numpy as np
    >>> Poisson().expand(np.array([3.0]), np.array([0.0]))
    (array([-2.]), array([1.]))
    """

    help: ClassVar[str] = "counts"

    def loss(self, y: Array, f: Array) -> Array:
        return namespace(f).exp(f) - y * f

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        mean = namespace(f).exp(f)
        return mean - y, mean

    def _expand_row(self, y: float, f: float) -> tuple[float, float]:
        mean = math.exp(f)
        return mean - y, mean

    @property
    def rough(self) -> Likelihood | None:  # type: ignore[override]
        """A quadratic likelihood with about the same minimiser, for a start far from it."""
        return _LogCounts()

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Counts:
        xp, variance = namespace(f, leverage), noise.variance
        # A multiple that cannot be learned from so few rows is 1 for the mean, and leaves the std unknown.
        mean, spread = rate(xp, f, leverage * xp.where(xp.isnan(xp.asarray(variance)), 1.0, variance))
        return Counts(mean, xp.sqrt(mean * variance + mean**2 * spread))


@pytree
class _LogCounts(Poisson):
    """Logs of counts as normal observations: the log of y + 1/2 has about the variance 1 / (y + 1/2)."""

    quadratic: ClassVar[bool] = True

    def loss(self, y: Array, f: Array) -> Array:
        return (y + 0.5) * (f - namespace(f).log(y + 0.5)) ** 2 / 2

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        weight = y + 0.5 + 0 * f
        return weight * (f - namespace(f).log(y + 0.5)), weight


@pytree
class QuasiPoisson(Poisson):
    """Counts with the mean exp(f), and a variance that is a multiple of the mean, which is learned.

    The estimate is that of `Poisson`. The multiple is Pearson's statistic over its degrees of freedom, and multiplies
    the covariance.

    Examples
    --------
    >>> import numpy as np
    >>> import kalprox as kp
    >>> X, y = np.ones((6, 1)), np.array([0.0, 0.0, 1.0, 9.0, 2.0, 0.0])
    >>> fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(1), likelihood=QuasiPoisson())
    >>> bool(np.isclose(np.exp(fit.mean[0]), y.mean())), round(fit.noise_var, 3)
    (True, 6.2)
    """

    help: ClassVar[str] = "counts whose variance is a multiple of the mean"
    learns_noise: ClassVar[bool] = True
    noise_name: ClassVar[str] = "root of variance / mean"


@pytree
class NegativeBinomial(_Counts):
    """Counts with the mean m = exp(f) and the variance m + dispersion m^2.

    The loss is (y + 1/a) log(1 + a m) - y f with the dispersion a.

    Parameters
    ----------
    dispersion : float or None
        Positive; Poisson is the limit at 0. None means that it is learned by maximum likelihood, with `kalprox.refine`
        and `kalprox.proximal_filter`. Counts that vary no more than Poisson's, and counts that are all zero, have the
        smallest dispersion, 1e-6.

    Examples
    --------
    >>> import numpy as np
    >>> slope, curvature = NegativeBinomial(0.5).expand(np.array([3.0]), np.array([0.0]))
    >>> slope.round(3), curvature.round(3)
    (array([-1.333]), array([1.111]))
    """

    help: ClassVar[str] = "counts whose variance grows with the square of the mean"
    parameter: ClassVar[str | None] = "dispersion"
    bounds: ClassVar[tuple[float, float]] = 1e-6, 1e6
    positive: ClassVar[tuple[str, ...]] = ("dispersion",)

    dispersion: Any = None

    @property
    def first(self) -> Likelihood | None:  # type: ignore[override]
        """A likelihood whose estimate refinement should start from."""
        return Poisson() if self.dispersion is None else None

    def loss(self, y: Array, f: Array) -> Array:
        xp = namespace(f)
        return (y + 1 / self.dispersion) * xp.logaddexp(0 * f, f + xp.log(self.dispersion)) - y * f

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        expit = special_functions(namespace(f)).expit
        u = f + namespace(f).log(self.dispersion)
        high, low = expit(u), expit(-u)  # a m / (1 + a m) and 1 / (1 + a m)
        return (y + 1 / self.dispersion) * high - y, (y + 1 / self.dispersion) * high * low

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Counts:
        xp = namespace(f, leverage)
        mean, spread = rate(xp, f, leverage)
        return Counts(mean, xp.sqrt(mean + mean**2 * (spread + self.dispersion * (1 + spread))))

    def sums(self, y: Array, f: Array, variance: Array, counts: Array) -> Array:
        xp = namespace(y, f, counts)
        mean, spread = rate(xp, f, variance)
        if self.dispersion is None:  # moments: the square of y - m is on average m + a m^2
            parts = xp.stack([(y - mean) ** 2 - mean, mean**2])
        else:
            # A log rate with this variance is more dispersion, about a + variance. The score is that of 1/a.
            functions, r = special_functions(xp), 1 / (self.dispersion + spread)
            score = r * (functions.digamma(r) - functions.digamma(y + r) + xp.log1p(mean / r) + (y - mean) / (r + mean))
            score = self.dispersion * r * score
            parts = xp.stack([score, score**2, y])
        return xp.where(counts[None] > 0, counts[None] * parts, 0).sum(axis=1)

    def score(self, sums: Array, edf: Any = 0.0) -> Any:
        # Zeros alone go with any mean if the dispersion is large: without a positive count it is the smallest.
        return namespace(sums).where(sums[2] > 0, sums[0], -np.inf)

    def guess(self, sums: Array) -> Any:
        xp = namespace(sums)
        return xp.clip(sums[0] / xp.where(sums[1] > 0, sums[1], 1), _FIRST, self.bounds[1])


def rate(xp: Any, f: Array, variance: Array) -> tuple[Array, Array]:
    """Return the mean of a rate, and its variance relative to the square of that, given those of its log.

    The rate has the gamma distribution whose shape k has a trigamma function of about `variance`: 1 / k = spread is off
    by at most 1.4%, and the log of the mean is f + log(k) - digamma(k). Unlike those of a log-normal rate, they
    describe most of the distribution even where the log is hardly known. Means of 1e14 and more may be too small.
    """
    spread = variance / xp.sqrt(1 + variance)
    small, info = xp.minimum(spread, _SMALL), np.finfo(np.dtype(spread.dtype))
    square = small**2
    log_mean = f + small * (0.5 + small * (1 / 12 - square * (1 / 120 - square / 252)))  # Stirling's series
    if not certainly(spread <= _SMALL):
        k = 1 / xp.maximum(spread, _SMALL)
        most = xp.log(k) - 0.9 * float(np.log(info.eps))  # above it the distribution function loses its digits
        wide = xp.minimum(f + xp.log(k) - special_functions(xp).digamma(k), most)
        log_mean = xp.where(spread <= _SMALL, log_mean, wide)
    return xp.exp(xp.minimum(log_mean, 0.4 * float(np.log(info.max)))), spread


_SMALL = 0.03  # the relative variance of a rate up to which the series has all digits
_FIRST = 1e-3  # the smallest dispersion that a fit starts with: a smaller one says little about where to go


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
