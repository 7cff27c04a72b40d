"""Counts of successes among a number of trials that is known."""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree, special_functions
from kalprox.base.checks import concrete
from kalprox.likelihoods.base import Likelihood, Outcomes
from kalprox.likelihoods.classes import Bernoulli
from kalprox.predictive.base import bounded, signed_scores
from kalprox.predictive.discrete import log_rising

__all__ = ["Binomial", "OutOf", "Successes"]

_LEAST_SPREAD = 1e-12  # the correlation of two trials of a row, at least


_ADVICE = {  # what words of a verdict mean
    "calibrated": "The stated probabilities and intervals of the counts are reliable.",
    "biased": "The successes are more, or fewer, than predicted on average: fit an intercept; if the rows are in "
    'the order of time, let the model follow a change, with forget="auto".',
    "unequal spread": "How much the counts vary about their means changes with the mean otherwise than stated: look "
    "for a missing input, or trials of a row that are alike.",
    "over-confident": "The counts vary more than those of independent trials. Look for a missing input; standard "
    'errors that allow for it are those of coef_cov="robust".',
    "under-confident": "The counts vary less than those of independent trials: look for trials that depend on each "
    "other.",
}


class Successes(NamedTuple):
    """Counts of successes among some trials, with this mean and standard deviation: the beta-binomial distribution.

    It is a binomial distribution whose probability has a beta distribution. A variance below that of the binomial
    distribution is taken as that. O(trials) for each row.

    Parameters
    ----------
    mean, std : arrays
    trials : int

    Examples
    --------
    >>> even = Successes(np.array(1.0), np.array(0.5**0.5), 2)
    >>> float(even.cdf(0.0).round(4)), float(even.quantile(0.6)), float(np.exp(even.log_prob(1.0)).round(4))
    (0.25, 1.0, 0.5)
    """

    mean: Array
    std: Array
    trials: int

    def _table(self) -> Array:
        """Return the log probabilities of 0, 1, ... successes, on a last axis."""
        xp, n = namespace(self.mean, self.std), self.trials
        gammaln = special_functions(xp).gammaln
        tiny = xp.finfo(xp.asarray(self.mean).dtype).eps
        p = xp.clip(self.mean / n, tiny, 1 - tiny)
        excess = (self.std**2 / (n * p * (1 - p)) - 1) / max(n - 1, 1)
        excess = xp.clip(excess, _LEAST_SPREAD, 1 - tiny)  # the correlation of two trials
        total = (1 / excess - 1)[..., None]  # the sum of the parameters of the beta distribution
        p = p[..., None]
        k = xp.arange(n + 1).astype(p.dtype)
        ways = gammaln(n + 1.0) - gammaln(k + 1) - gammaln(n - k + 1)
        beta = log_rising(xp, total * p, k) + log_rising(xp, total * (1 - p), n - k) - log_rising(xp, total, n + 0 * k)
        return ways + beta + k * xp.log(p) + (n - k) * xp.log1p(-p)

    def cdf(self, y: Array) -> Array:
        xp = namespace(self.mean, y)
        below = xp.arange(self.trials + 1) <= xp.asarray(y)[..., None]
        return xp.minimum(xp.where(below, xp.exp(self._table()), 0.0).sum(axis=-1), 1.0)

    def quantile(self, p: float) -> Array:
        xp = namespace(self.mean)
        short = xp.cumsum(xp.exp(self._table()), axis=-1)[..., :-1] < p
        return short.sum(axis=-1).astype(xp.asarray(self.mean).dtype)

    def log_prob(self, y: Array) -> Array:
        xp = namespace(self.mean, y)
        chosen = xp.arange(self.trials + 1) == xp.asarray(y)[..., None]
        return xp.where(chosen, self._table(), -xp.inf).max(axis=-1)

    def scores(self, y: Array, v: Array) -> tuple[Array, Array]:
        """Return the normal scores of observed counts, randomised by v, and their log probabilities.

        Parameters
        ----------
        y, v : arrays
            Counts, and numbers strictly between 0 and 1.

        Returns
        -------
        scores, log_prob : arrays
        """
        xp, k = namespace(self.mean, y), np.arange(self.trials + 1)
        p, low = xp.exp(self._table()), y < self.mean
        own = xp.where(k == y[..., None], p, 0.0).sum(axis=-1)
        below = xp.where(k < y[..., None], p, 0.0).sum(axis=-1) + v * own
        above = xp.where(k > y[..., None], p, 0.0).sum(axis=-1) + (1 - v) * own
        return signed_scores(xp, low, xp.where(low, below, above)), bounded(xp, xp.log(own))


class OutOf(NamedTuple):
    """The distributions of successes among this number of trials; see `kalprox.predictive.FromMoments`."""

    trials: int

    @property
    def kind(self) -> type:
        """The class of the distributions."""
        return Successes

    @staticmethod
    def advice() -> dict[str, str]:
        """Return what words of a verdict mean, and what to change."""
        return _ADVICE

    def of_moments(self, mean: Array, std: Array, dof: Any) -> Successes:
        """Return the distributions with these moments."""
        return Successes(mean, std, self.trials)

    def possible(self, y: Array) -> Array:
        """Return which observations are counts of so many trials at most."""
        return (y >= 0) & (y <= self.trials) & (y == namespace(y).floor(y))


@pytree
class Binomial(Likelihood):
    """Counts of successes among a known number of trials, each with the probability p = 1 / (1 + exp(-f)).

    The loss is trials log(1 + exp(f)) - y f. There are two ways to say how many trials a row has, as in other software
    for generalised linear models:

    * the same number for all rows, `Binomial(trials=20)`: y counts successes, from 0 to 20. Predictions and intervals
      are those of counts.
    * a number for each row, `Binomial()`: y is the share of successes, and the weight of the row its number of trials.
      Predictions are those of a single trial, the mean its probability. Shares cannot be judged by it: there is no
      verdict, and no forget="auto".

    The estimate and the standard errors are the same, and those of `Bernoulli` for a row for each trial.

    Parameters
    ----------
    trials : int or None
        The number of trials of every row; None if the weights of the rows are their numbers, and y holds shares.

    Examples
    --------
    >>> Binomial(trials=4).expand(np.array([3.0]), np.array([0.0]))
    (array([-1.]), array([1.]))
    >>> import kalprox as kp
    >>> X, y, n = np.ones((3, 1)), np.array([2.0, 0.0, 4.0]), np.full(3, 5.0)
    >>> count, share = (
    ...     kp.KalproxRegressor(likelihood=one, penalty=None, fit_intercept=False).fit(X, target, weight)
    ...     for one, target, weight in ((Binomial(trials=5), y, None), (Binomial(), y / 5, n))
    ... )
    >>> count.coef_.round(4), np.allclose(count.coef_std_, share.coef_std_), count.predict(X[:1]).round(3)  # of 5
    (array([-0.4055]), True, array([1.998]))
    """

    outcomes: ClassVar[Outcomes] = "counts"
    help: ClassVar[str] = "counts of successes among trials=N, or shares of them with the trials as weights"

    trials: Any = None

    def __post_init__(self) -> None:
        trials = concrete(self.trials)
        if self.trials is None or trials is None:
            return
        if np.ndim(trials) or not (trials >= 1 and trials == np.floor(trials)):
            raise ValueError(
                f"trials must be a whole number >= 1, the same for all rows; got {self.trials!r}. For a number for "
                "each row use Binomial(), shares of successes as y, and the numbers of trials as weights."
            )

    @property
    def _n(self) -> Any:
        return 1 if self.trials is None else self.trials

    @property
    def support(self) -> tuple[float, float]:  # type: ignore[override]
        """The smallest and the largest possible observation."""
        return 0.0, float(self._n)

    @property
    def predictive(self) -> Any:  # type: ignore[override]
        """The kind of predictive distribution; None for shares."""
        return None if self.trials is None else OutOf(int(self.trials))

    def loss(self, y: Array, f: Array) -> Array:
        return self._n * namespace(f).logaddexp(0 * f, f) - y * f

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        slope, curvature = Bernoulli().expand(y / self._n, f)
        return self._n * slope, self._n * curvature

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Successes:
        n, one = self._n, Bernoulli()
        p = one.predict(f, leverage, noise).mean
        spread = one.probability_std(f, leverage + 0 * f)
        return Successes(n * p, namespace(f).sqrt(n * p * (1 - p) + n * (n - 1) * spread**2), int(n))
