"""Classes: yes or no, one of several, or how many of a known number of trials."""

import math
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, certainly, namespace, pytree, special_functions
from kalprox.base.checks import concrete
from kalprox.base.text import worded
from kalprox.likelihoods.base import Likelihood, Outcomes, normal_quadrature
from kalprox.predictive import Categories, Classes, FromMoments
from kalprox.predictive.discrete import log_rising
from kalprox.predictive.student import bounded, signed_scores

_CHUNK = 1 << 18  # numbers in an array of points of the belief about outputs
_LEAST = 1e-12  # the smallest curvature and probability by which is divided
_NODES, _SHARES = normal_quadrature(32)
_PIECE = 1024  # numbers that are averaged at a time
_NARROW = 1.5  # the standard deviation up to which quadrature is accurate to 1e-7, also relative to small probabilities
# The logistic distribution as a mixture of normal ones: the sigmoid is sum_i _PARTS_i Phi(_SLOPES_i u) to 8e-8, fitted
# by least squares. It makes the mean of the sigmoid of a normal variable a sum of eight terms, however wide that is.
_SLOPES, _PARTS = np.array(
    [
        [0.14342264830, 3.2857483e-06],
        [0.27268604497, 0.0102688375177],
        [0.36971305029, 0.1126034332777],
        [0.49798523581, 0.3162560877295],
        [0.66900047695, 0.3681595080635],
        [0.89399135292, 0.1726185792093],
        [1.1999315469, 0.0200840324807],
        [2.75003, 6.2359732e-06],
    ]
).T.copy()
_SQUARES = _SLOPES**2


def mean_of_sigmoid(f: Array, variance: Array) -> Array:
    """Return E sigmoid(u) for u ~ N(f, variance), to 1e-7.

    Parameters
    ----------
    f, variance : arrays of the same shape

    Examples
    --------
    >>> mean_of_sigmoid(np.array([0.0, 2.0, 2.0]), np.array([9.0, 0.0, 1e4])).round(4)
    array([0.5   , 0.8808, 0.508 ])
    """
    xp = namespace(f, variance)
    if xp is np and f.size == 1:  # numbers, which are faster than arrays
        u, v = float(f.item()), float(variance.item())
        if v <= _NARROW**2:
            return np.full(f.shape, _SHARES.dot(special.expit(u + math.sqrt(v) * _NODES)))
        return np.full(f.shape, _PARTS.dot(special.ndtr(u * _SLOPES / np.sqrt(1 + v * _SQUARES))))
    if xp is np and f.size > _PIECE:  # pieces that stay in the cache
        ends = range(0, f.size, _PIECE)
        parts = [mean_of_sigmoid(f.flat[i : i + _PIECE], variance.flat[i : i + _PIECE]) for i in ends]
        return np.concatenate(parts).reshape(f.shape)
    functions, u, v = special_functions(xp), f.reshape(-1), variance.reshape(-1)
    spread = xp.sqrt(v)
    is_narrow = spread <= _NARROW
    nodes, shares = (xp.asarray(a, f.dtype) for a in (_NODES, _SHARES))
    narrow = shares @ functions.expit(u + nodes[:, None] * spread)
    if certainly(is_narrow):
        return narrow.reshape(f.shape)
    slopes, shares = (xp.asarray(a, f.dtype) for a in (_SLOPES, _PARTS))
    wide = shares @ functions.ndtr(slopes[:, None] * u / xp.sqrt(1 + slopes[:, None] ** 2 * v))
    return xp.where(is_narrow, narrow, wide).reshape(f.shape)


def _not_zero(curvature: Array, slope: Array) -> Array:
    """Return curvatures by which slopes can be divided.

    Where both vanish as f goes on their ratio is 1, and stays so: a bound of the curvature alone would end a way
    without end, and the estimate of separated classes would look like a minimum.
    """
    xp = namespace(curvature)
    return xp.maximum(curvature, xp.maximum(_LEAST * xp.abs(slope), xp.finfo(curvature.dtype).tiny))


@pytree
class Bernoulli(Likelihood):
    """Yes or no, y = 1 or 0, with the probability p = 1 / (1 + exp(-f)) of yes: logistic regression.

    The loss is log(1 + exp(f)) - y f. A share of yes among several, y in [0, 1], has their number as its weight. In
    predictions the probability of yes is averaged over the belief about f.

    Examples
    --------
    >>> Bernoulli().expand(np.array([1.0]), np.array([0.0]))
    (array([-0.5]), array([0.25]))
    """

    help: ClassVar[str] = "two classes, which may be text"
    support: ClassVar[tuple[float, float]] = 0.0, 1.0
    outcomes: ClassVar[Outcomes] = "two classes"
    predictive: ClassVar[type[FromMoments] | None] = Classes

    def loss(self, y: Array, f: Array) -> Array:
        return namespace(f).logaddexp(0 * f, f) - y * f

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        expit = special_functions(namespace(f)).expit
        p, q = expit(f), expit(-f)
        slope = (1 - y) * p - y * q  # p - y, to all digits
        return slope, _not_zero(p * q, slope)

    def _density(self, y: float, f: Array) -> Array:
        if y != 0 and y != 1:  # the share of a class
            return super()._density(y, f)
        return special.expit(f if y else -f)

    def _expand_row(self, y: float, f: float) -> tuple[float, float]:
        p, q = 1 / (1 + math.exp(-f)), 1 / (1 + math.exp(f))
        slope = (1 - y) * p - y * q
        return slope, max(p * q, _LEAST * abs(slope), sys.float_info.min)

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Classes:
        return Classes(mean_of_sigmoid(f, leverage if np.shape(leverage) == f.shape else leverage + 0 * f))

    def probability_std(self, f: Array, leverage: Array) -> Array:
        """Return the standard deviation of the probability of yes, sigmoid(u) with u ~ N(f, leverage).

        Parameters
        ----------
        f, leverage : arrays of the same shape

        Returns
        -------
        array of the same shape

        Examples
        --------
        >>> Bernoulli().probability_std(np.zeros(2), np.array([0.01, 1e6])).round(4)
        array([0.0249, 0.4996])
        """
        spread, mean = np.sqrt(leverage), mean_of_sigmoid(f, leverage)
        values = special.expit(f + np.multiply.outer(_NODES, spread))
        narrow = np.tensordot(_SHARES, (values - mean) ** 2, axes=1)
        slope = 0 * f  # E sigmoid'(u), with which E sigmoid^2 = E sigmoid - E sigmoid'
        for one, part in zip(_SLOPES, _PARTS, strict=True):
            flat = one / np.sqrt(1 + one**2 * leverage)
            slope = slope + part * flat * np.exp(-((flat * f) ** 2) / 2) / np.sqrt(2 * np.pi)
        wide = np.maximum(mean - slope - mean**2, 0)
        return np.sqrt(np.where(spread <= _NARROW, narrow, wide))


@pytree
class Categorical(Likelihood):
    """One of m classes, y of shape (b, m) with a 1 for the class of each row, with the probabilities softmax(f).

    The loss is log sum_c exp(f_c) - f_y. Its Hessian in f, diag(p) - p p', is not diagonal, but the loss is, to second
    order, a least-squares function of the contrasts f_c - sum_k p_k f_k, with the weights p_c and the targets
    (y_c - p_c) / p_c. So one fold serves all classes.

    A row of which it is only known that it has one of several classes has a 1 for each of these, and the loss
    -log sum_c y_c p_c. It says nothing about which of them it is.

    Adding a number to all outputs of a row changes nothing: the model must leave out one of the classes, or have a
    penalty. In predictions the probabilities are averaged over the belief about the outputs of a row, by a rule of 128
    points (scrambled Sobol points, and their opposites) that is accurate to about 1e-3.

    Examples
    --------
    >>> slope, curvature = Categorical().expand(np.array([[1.0, 0.0, 0.0]]), np.zeros((1, 3)))
    >>> slope.round(3), curvature.round(3)
    (array([[-0.667,  0.333,  0.333]]), array([[0.333, 0.333, 0.333]]))
    """

    help: ClassVar[str] = "several classes, which may be text"
    support: ClassVar[tuple[float, float]] = 0.0, 1.0
    outcomes: ClassVar[Outcomes] = "several classes"
    predictive: ClassVar[type[FromMoments] | None] = Categories
    interacts: ClassVar[bool] = True

    def loss(self, y: Array, f: Array) -> Array:
        xp = namespace(f)
        known = special_functions(xp).logsumexp(f, axis=-1, keepdims=True) - f
        y = y + 0 * known
        among = (y * xp.exp(-known)).sum(axis=-1, keepdims=True)
        share = -xp.log(xp.maximum(among, _LEAST)) / xp.maximum(y.sum(axis=-1, keepdims=True), 1)
        return y * xp.where(_of_several(y), share, known)

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        xp, several, p = namespace(f), _of_several(y), _softmax(f)
        among = (y * p).sum(axis=-1, keepdims=True)
        odds = (1 - y) * p / xp.maximum(among, _LEAST)  # of a class that it is not: slope and expected curvature
        slope = xp.where(several, odds, p * y.sum(axis=-1, keepdims=True) - y)
        return slope, _not_zero(xp.where(several, odds, p), slope)

    def curvature_change(self, y: Array, f: Array, std: Array) -> Array:
        """Return the change for each class against the others, whose log odds are a contrast over 1 - p.

        Parameters
        ----------
        y, f, std : arrays of shape (n, m)
            `std` is that of the `contrasts`.

        Returns
        -------
        array of shape (n, m)
        """
        p = _softmax(f)
        rest = namespace(f).maximum(1 - p, _LEAST)
        return Bernoulli().curvature_change(y, namespace(f).log(namespace(f).maximum(p, _LEAST) / rest), std / rest)

    def skew(self, y: Array, f: Array, variance: Array) -> Array:
        xp, p = namespace(f, variance), _softmax(f)
        own, along = xp.diagonal(variance, axis1=-2, axis2=-1), (variance @ p[..., None])[..., 0]
        rest = (p * (2 * along - own)).sum(axis=-1, keepdims=True)
        return -p * (own - 2 * along + rest) / 2 * y.sum(axis=-1, keepdims=True)

    def contrasts(self, f: Array, D: Array) -> Array:
        return D - (_softmax(f)[..., None] * D).sum(axis=-2, keepdims=True)

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Categories:
        """Return the predictive distribution.

        Parameters
        ----------
        f : array of shape (n, m)
        leverage : array of shape (n, m, m)
            The covariances of the outputs of each row.
        noise, sigma
            Without effect: classes have no noise variance.

        Returns
        -------
        Categories
        """
        return Categories(self._averaged(f, leverage)[0])

    def probability_std(self, f: Array, leverage: Array) -> Array:
        """Return the standard deviations of the probabilities, softmax(u) with u ~ N(f, leverage).

        Parameters
        ----------
        f : array of shape (n, m)
        leverage : array of shape (n, m, m)

        Returns
        -------
        array of shape (n, m)

        Examples
        --------
        >>> Categorical().probability_std(np.zeros((1, 2)), 0.01 * np.eye(2)[None]).round(3)
        array([[0.035, 0.035]])
        """
        return self._averaged(f, leverage)[1]

    def matched_rows(self, y: Array, f: Array, D: Array, covariance: Array) -> tuple[Array, Array]:
        """Return a least-squares problem that fits the loss over a belief about the outputs of each row.

        Its slope and its curvature are those of the loss on average over the belief, E[p] - y and E[diag(p) - p p'].
        The curvature does not see a number that is added to all outputs, so that m - 1 rows are enough; the last one of
        each row is zero.

        Parameters
        ----------
        y, f : arrays of shape (b, m)
        D : array of shape (b, m, d)
            The Jacobian of the outputs.
        covariance : array of shape (b, m, m)

        Returns
        -------
        targets : array of shape (b, m)
        D : array of shape (b, m, d)

        Examples
        --------
        >>> y, f = np.array([[0.0, 1.0]]), np.zeros((1, 2))
        >>> targets, D = Categorical().matched_rows(y, f, np.eye(2)[None], 1e-9 * np.eye(2)[None])
        >>> targets.round(3), D.round(3)
        (array([[-1.,  0.]]), array([[[ 0.5, -0.5],
                [ 0. ,  0. ]]]))
        """
        xp, m = namespace(f, covariance), f.shape[-1]
        root, p, products = _root(covariance), 0 * f, 0 * covariance
        for steps in _chunks(root):
            q = _softmax(f[None] + steps)
            p = p + q.sum(axis=0)
            products = products + xp.einsum("sbi,sbj->bij", q, q)
        n = 2 * len(_points(m))
        p = p / n
        W = (p[..., None] * xp.eye(m, dtype=f.dtype)[None] - products / n)[:, :-1, :-1]
        L = xp.linalg.cholesky(W + _LEAST * xp.eye(m - 1, dtype=f.dtype)[None])
        slope = (p * y.sum(axis=-1, keepdims=True) - y)[:, :-1, None]
        targets = -xp.linalg.solve(L, slope)[..., 0]
        D = xp.swapaxes(L, -1, -2) @ (D[:, :-1] - D[:, -1:])
        return xp.pad(targets, ((0, 0), (0, 1))), xp.pad(D, ((0, 0), (0, 1), (0, 0)))

    def _averaged(self, f: Array, covariance: Array) -> tuple[Array, Array]:
        """Return the mean and the standard deviation of the probabilities."""
        xp, mean = namespace(f, covariance), 0 * f
        square = mean
        for steps in _chunks(_root(covariance)):
            p = _softmax(f[None] + steps)
            mean, square = mean + p.sum(axis=0), square + (p**2).sum(axis=0)
        n = 2 * len(_points(f.shape[-1]))
        return mean / n, xp.sqrt(xp.maximum(square / n - (mean / n) ** 2, 0))


def _of_several(y: Array) -> Array:
    """Return of which rows it is only known that they have one of several classes."""
    return y.sum(axis=-1, keepdims=True) > 1.5


def _root(covariance: Array) -> Array:
    """Return a root of covariances of the outputs, whose sum may be known."""
    xp, m = namespace(covariance), covariance.shape[-1]
    size = xp.trace(covariance, axis1=-2, axis2=-1)[..., None, None] / m
    least = xp.asarray(_LEAST, covariance.dtype) + float(xp.finfo(covariance.dtype).eps) ** 0.5 * size
    return xp.linalg.cholesky(covariance + least * xp.eye(m, dtype=covariance.dtype)[None])


def _chunks(root: Array) -> Iterator[Array]:
    """Yield the steps from the outputs of b rows to points of the belief about them, shape (s, b, m)."""
    xp, points = namespace(root), _points(root.shape[-1])
    length = max(1, _CHUNK // root[..., 0].size)
    for start in range(0, len(points), length):
        some = xp.asarray(points[start : start + length], root.dtype)
        steps = xp.einsum("bij,sj->sbi", root, some)
        yield from (steps, -steps)


@lru_cache(maxsize=32)
def _points(m: int) -> np.ndarray:
    """Return points of the normal distribution in m dimensions, to be used with their opposites."""
    from scipy.stats import qmc  # which takes half a second to import

    found: np.ndarray = special.ndtri(qmc.Sobol(m, seed=0).random(64))
    return found


def _softmax(f: Array) -> Array:
    xp = namespace(f)
    powers = xp.exp(f - f.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


_LEAST_SPREAD = 1e-12  # the correlation of two trials of a row, at least


_ADVICE = {  # what words of a verdict mean
    "calibrated": "The stated probabilities and intervals of the counts are reliable.",
    "biased": "The successes are more, or fewer, than predicted on average: fit an intercept; if the rows are in "
    'the order of time, let the model follow a change, with {forget="auto"}.',
    "unequal spread": "How much the counts vary about their means changes with the mean otherwise than stated: look "
    "for a missing input, or trials of a row that are alike.",
    "over-confident": "The counts vary more than those of independent trials. Look for a missing input; standard "
    'errors that allow for it are those of {coef_cov="robust"}.',
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
        return {word: worded(text) for word, text in _ADVICE.items()}

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
