"""Likelihoods: the distribution of observations y given the output f = h(theta, x) of the model.

A likelihood defines the loss -log p(y | f), its first and second derivative with respect to f, and the predictive
distribution of new observations. The recursions, the proximal filter and refinement need nothing else, so that a new
likelihood is one class in one file of this package, independent of models, regularisers and algorithms.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from kalprox.base.arrays import Array, certainly, namespace, pytree
from kalprox.base.checks import Speaking, concrete
from kalprox.base.control import fori_loop
from kalprox.base.tree import leaf
from kalprox.predictive import FromMoments, Predictive

_TINY = float(np.finfo(np.float32).tiny)  # what is divided by, at least
_FAR = np.log(10.0)  # the largest step of the log of a parameter


@pytree
class Learned:
    """What a stream has learned about the parameter of its likelihood.

    Parameters
    ----------
    numbers : array of shape (k,)
        The `LearnedParameter.numbers` of the likelihood.
    sums : array of shape (m,)
        The `LearnedParameter.sums` of the rows so far, each at the numbers that it met.

    Examples
    --------
    >>> from kalprox.likelihoods import Huber
    >>> Learned(np.array([2.0, 0.8]), np.zeros(6)).likelihood(Huber()).scale
    np.float64(2.0)
    """

    numbers: Any = leaf("a", sign="nonnegative")
    sums: Any = leaf("s")

    def likelihood(self, given: Any) -> Any:
        """Return the given likelihood with these numbers.

        Parameters
        ----------
        given : Likelihood

        Returns
        -------
        Likelihood
        """
        return given.with_numbers(self.numbers)

    def plus(self, given: Any, sums: Array, left: Array | None) -> "Learned":
        """Return what is known after a block.

        Parameters
        ----------
        given : Likelihood
            The likelihood that was given, which says what is learned.
        sums : array of shape (m,)
            Those of the block, at these numbers.
        left : float or None
            The share of the sums before that forgetting has left; None if nothing is forgotten.

        Returns
        -------
        Learned
        """
        xp = namespace(self.sums, sums)
        before = self.sums if left is None else left * self.sums
        total = xp.concatenate([sums[:1], before[1:] + sums[1:]])  # the score of rows before has been used
        return Learned(given.learned(self.likelihood(given), total).numbers, total)

    def merge(self, other: "Learned") -> "Learned":
        """Return what is known from the rows of both: logs are averaged by how much each says.

        Parameters
        ----------
        other : Learned

        Returns
        -------
        Learned
        """
        xp = namespace(self.sums, other.sums)
        share = other.sums[1] / xp.maximum(self.sums[1] + other.sums[1], _TINY)
        mine, theirs = (xp.log(xp.maximum(one.numbers, _TINY)) for one in (self, other))
        return Learned(xp.exp((1 - share) * mine + share * theirs), self.sums + other.sums)


class LearnedParameter(Speaking):
    """One positive parameter of a likelihood that is learned if it is None, from sums over rows.

    The parameter solves an equation: its score, a sum over rows, is zero. Steps of Newton's method for its log need the
    score and how fast it falls, so that rows on several machines, passes over a source and blocks of a stream serve
    alike. The likelihood that was given keeps the None, and says what is learned; another one has the value found.

    Attributes
    ----------
    parameter : str or None
        The name of the parameter; None if there is none.
    bounds : tuple of float
        Its smallest and its largest value.

    Examples
    --------
    >>> from kalprox.likelihoods import Huber
    >>> y, f = np.array([3.0, 1.0]), np.array([1.0, 1.0])
    >>> huber, none, ones = Huber(), np.zeros(2), np.ones(2)  # its scale is learned
    >>> first = huber.learned(huber, huber.sums(y, f, none, ones))
    >>> second = huber.learned(first, first.sums(y, f, none, ones), edf=0.5)
    >>> huber.learns, round(first.scale, 3), round(second.scale, 3), second.numbers.round(3)
    (True, 2.965, 1.516, array([1.516, 0.303]))
    >>> huber.with_numbers([2.0, 0.8]).scale
    2.0
    """

    parameter: ClassVar[str | None] = None
    bounds: ClassVar[tuple[float, float]] = 1e-150, 1e150

    @property
    def learns(self) -> bool:
        """Whether a parameter of the likelihood is to be learned together with theta."""
        return any(getattr(self, name) is None for name in self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        """The fields that are learned: the parameter, and what follows from the sums without a search."""
        return () if self.parameter is None else (self.parameter,)

    @property
    def numbers(self) -> Array:
        """The numbers that are learned, shape (k,); NaN where they are not known yet."""
        return stacked(*(getattr(self, name) for name in self._names))

    def with_numbers(self, numbers: Array) -> Self:
        """Return the likelihood with these numbers, as `numbers` of another gave them.

        Parameters
        ----------
        numbers : array of shape (k,)

        Returns
        -------
        Likelihood
        """
        known = {name: numbers[i] for i, name in enumerate(self._names)}
        return replace(self, **known) if known else self  # type: ignore[type-var]

    def with_model_numbers(self) -> Self:
        """Return the likelihood with those of its model for numbers that follow from the rows and are not known yet.

        Returns
        -------
        Likelihood
        """
        return self

    def sums(self, y: Array, f: Array, variance: Array, counts: Array) -> Array:
        """Return the sums over rows from which the next value of the parameter is computed; they add over blocks.

        If the parameter is not known, they are what `guess` needs. Else the first is the score, which is zero on
        average at the right value, and the second how fast it falls with the log of the parameter.

        Parameters
        ----------
        y, f : arrays of shape (n,)
        variance : array of shape (n,)
            The variance of f for rows that have not been learned yet, zero for others.
        counts : array of shape (n,)
            How many rows each row is.

        Returns
        -------
        array of shape (k,)
        """
        return np.zeros(0)

    def guess(self, sums: Array) -> Any:
        """Return a first value of the parameter.

        Parameters
        ----------
        sums : array of shape (k,)

        Returns
        -------
        float
        """
        raise NotImplementedError(f"{type(self).__name__} has no parameter to learn.")

    def score(self, sums: Array, edf: Any = 0.0) -> Any:
        """Return the score of the log of the parameter, after a fit with so many effective degrees of freedom.

        Parameters
        ----------
        sums : array of shape (k,)
        edf : float

        Returns
        -------
        float
        """
        return sums[0]

    def learned(self, current: Self, sums: Array, edf: Any = 0.0) -> Self:
        """Return the likelihood with the next value of what it does not have itself: one step of Newton's method.

        Parameters
        ----------
        current : Likelihood
            The likelihood with the value before; this likelihood, if there is none.
        sums : array of shape (k,)
            Those of `current`; see `sums`.
        edf : float
            The effective degrees of freedom of the fit from which the errors came; 0 for errors of predictions.

        Returns
        -------
        Likelihood
        """
        if self.parameter is None:
            return current
        if getattr(current, self.parameter) is None:
            return replace(current, **{self.parameter: plain(current.guess(sums))})  # type: ignore[type-var]
        if getattr(self, self.parameter) is None:
            xp = namespace(sums)
            step = current.score(sums, edf) / xp.maximum(sums[1], _TINY)
            value = getattr(current, self.parameter) * xp.exp(xp.clip(step, -_FAR, _FAR))
            current = replace(current, **{self.parameter: plain(xp.clip(value, *self.bounds))})  # type: ignore[type-var]
        return self.finished(current, sums, edf)

    def finished(self, current: Self, sums: Array, edf: Any = 0.0) -> Self:
        """Return `current` with what follows from the sums without a search.

        Parameters
        ----------
        current : Likelihood
        sums : array of shape (k,)
        edf : float

        Returns
        -------
        Likelihood
        """
        return current


def plain(value: Any) -> Any:
    """Return a number of NumPy as a float, which leaves the precision of arrays as it is, and others as they are."""
    return float(value) if namespace(value) is np else value


def stacked(*values: Any) -> Array:
    """Return numbers as a vector, with NaN for None."""
    xp = namespace(*values)
    return xp.asarray([np.nan if value is None else value for value in values], None if values else float)


Outcomes = Literal["numbers", "counts", "two classes", "several classes"]


def normal_quadrature(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n nodes and their shares, with which a sum over nodes is the mean over a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / weights.sum()


_NODES, _SHARES = normal_quadrature(20)
_NARROW, _WIDE = 1e-6, 4.0  # variances of a belief, in units of the loss's own, between which moments are matched
_CERTAIN = 0.1  # the variance of a belief about f below which an expected curvature is used
_POWERS = _SHARES * _NODES ** np.arange(3)[:, None]  # for the moments of a belief, in units of its standard deviation
_FARTHEST, _MODERATE = 8.0, 300.0  # beyond the last node, and a size of f up to which exp(f) is a number
_ASIDE = 1e-4  # the step of a difference quotient, whose error is its square
_STEPS, _CLOSE = 100, 1e-9  # of Newton's method or bisection, of which 4 to 8 are usual, and a step that ends it


class Likelihood(LearnedParameter, ABC):
    """The loss -log p(y | f) with f = h(theta, x), up to terms that do not depend on f.

    If the noise variance is learned, the loss is in units of the noise variance. Expanded to second order at theta, the
    loss of a block with Jacobian D and weights w is a weighted least-squares problem for the step of theta: its rows
    are D, its targets -slope / curvature, its weights w * curvature.

    Attributes
    ----------
    quadratic : bool
        Whether the second-order expansion is exact. One pass over the rows is then exact for a linear model.
    learns_noise : bool
        Whether the loss is scaled by a noise variance, which can be learned from the residuals.
    location : bool
        Whether f is the location of the observations, in their units, as the mean of the Gaussian likelihood is.
    outcomes : {"numbers", "counts", "two classes", "several classes"}
        What the observations are, which says how their predictions are judged and told.
    predictive : type or None
        The kind of predictive distribution that the mean, the std and the degrees of freedom of a prediction determine,
        with a method `of_moments`, such as `kalprox.predictive.Student`; see `kalprox.predictive.FromMoments`. It is
        what predictions are judged by, and what forget="auto" weighs ways to forget by. If it is None, nothing is
        judged, and forget="auto" is refused.
    support : tuple of float
        The smallest and the largest possible observation.
    help : str
        One line for the documentation and the command line.
    noise_name : str
        What the root of the learned noise variance is called in summaries.
    log_concave : bool
        Whether the loss is convex in f, for all values of its parameters.
    expected_curvature : bool
        Whether the curvature of `expand` is the expected one, not the second derivative at the observation. A stream
        that learns the noise then counts rows by it too, so that its squared residuals are Pearson's.
    interacts : bool
        Whether the outputs of a row interact in the loss, which is then not elementwise: see `contrasts` and
        `matched_rows`.
    majorizes : bool
        Whether `least_squares` is an upper bound of the loss that is safe to descend with, rather than its expansion:
        the information of rows is that of `matched`.
    parameter : str or None
        The name of a parameter that is learned together with theta if it is None; see
        `kalprox.likelihoods.base.LearnedParameter`.
    bounds : tuple of float
        The smallest and the largest value of that parameter.
    positive : tuple of str
        The names of parameters that must be positive, unless they are None.
    unit : float
        The noise variance for gamma = 1.
    first : Likelihood or None
        A likelihood whose estimate refinement should start from; None if it is not needed.
    rough : Likelihood or None
        A quadratic likelihood with about the same minimiser, for a start far from it; None if there is none.

    Examples
    --------
    >>> from kalprox.likelihoods import Gaussian
    >>> from kalprox.noise import Noise
    >>> y, f = np.array([3.0, 1.0]), np.array([1.0, 1.0])
    >>> gaussian = Gaussian()  # which is one
    >>> gaussian.loss(y, f), gaussian.expand(y, f), gaussian.least_squares(y, f)
    (array([2., 0.]), (array([-2.,  0.]), array([1., 1.])), (array([2., 0.]), None))
    >>> targets, weights = gaussian.matched(y, f, variance=np.ones(2))
    >>> targets.round(6), weights.round(6), gaussian.contrasts(f, np.eye(2)).shape
    (array([2., 0.]), array([1., 1.]), (2, 2))
    >>> gaussian.predict(f, leverage=np.zeros(2), noise=Noise(4.0, np.inf)).std
    array([2., 2.])
    >>> gaussian.curvature_change(y, f, std=np.ones(2)), gaussian.skew(y, f, variance=np.ones(2))
    (array([0., 0.]), array([0., 0.]))
    >>> gaussian.excess(y, f, 0.0), gaussian.family  # all information of a row is the second derivative of its loss
    (None, 'gaussian')
    >>> gaussian.check(y), gaussian.limits == 'at least -inf'  # every number is possible
    (None, True)
    >>> gaussian.unit, gaussian.first, gaussian.row_weights(y, None)
    (1.0, None, array([1., 1.]))
    >>> gaussian.likely_size(3.0), [round(a, 6) for a in gaussian.matched_row(3.0, 1.0, variance=1.0)]
    (1.0, [2.0, 1.0])


    Classes have probabilities, and the outputs of several classes interact:

    >>> from kalprox.likelihoods import Categorical
    >>> none, one, V = np.zeros((1, 2)), np.array([[0.0, 1.0]]), 0.01 * np.eye(2)[None]
    >>> targets, D = Categorical().matched_rows(one, none, np.eye(2)[None], V)
    >>> Categorical().probability_std(none, V).round(3), targets.shape, D.shape
    (array([[0.035, 0.035]]), (1, 2), (1, 2, 2))

    The scale of good rows is learned with a likelihood that has one:

    >>> from kalprox.likelihoods import Huber
    >>> huber, rows = Huber(), (y, f, np.zeros(2), np.ones(2))
    >>> sums = huber.sums(*rows)
    >>> current = huber.learned(huber, sums)
    >>> float(huber.guess(sums).round(3)), round(current.scale, 3), huber.with_numbers([2.0, 0.8]).scale
    (2.965, 2.965, 2.0)
    >>> sums = current.sums(*rows)
    >>> float(current.score(sums).round(3)), float(round(huber.finished(current, sums).spread, 3))
    (-1.359, 0.227)
    >>> float(round(current.with_model_numbers().spread, 3))
    0.865
    """

    quadratic: ClassVar[bool] = False
    learns_noise: ClassVar[bool] = False
    location: ClassVar[bool] = False
    outcomes: ClassVar[Outcomes] = "numbers"
    predictive: ClassVar[type[FromMoments] | None] = None
    support: ClassVar[tuple[float, float]] = -np.inf, np.inf
    help: ClassVar[str] = ""
    noise_name: ClassVar[str] = "noise std"
    log_concave: ClassVar[bool] = True
    expected_curvature: ClassVar[bool] = False
    interacts: ClassVar[bool] = False
    majorizes: ClassVar[bool] = False
    positive: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[Any] = 1.0
    first: ClassVar["Likelihood | None"] = None
    rough: ClassVar["Likelihood | None"] = None

    @property
    def family(self) -> str:
        """One word for likelihoods that go with the same settings; see `kalprox.learning.rules`."""
        if self.outcomes in ("two classes", "several classes"):
            return self.outcomes
        words = {"gaussian": self.quadratic, "location": self.location}
        return next((word for word, holds in words.items() if holds), "dispersed" if self.learns_noise else "other")

    @property
    def limits(self) -> str:
        """The possible observations, in words."""
        low, high = self.support
        if np.isfinite(high):
            return f"between {low:g} and {high:g}"
        return "positive" if 0 < low < np.finfo(float).tiny else f"at least {low:g}"

    def check(self, y: Array, weights: Array | None = None) -> None:
        """Raise a ValueError that names the first rows of a block whose observations are not possible.

        Parameters
        ----------
        y : array of shape (b,) or (b, m)
        weights : array of shape (b,), optional
            Rows of weight 0 are not looked at.

        Returns
        -------
        None
        """
        low, high = self.support
        numbers = None if (low, high) == (-np.inf, np.inf) else concrete(y)
        if numbers is None or not numbers.size or (low <= numbers.min() and numbers.max() <= high):
            return
        outside = ((numbers < low) | (numbers > high)).reshape(len(numbers), -1).any(axis=1)
        bad = np.flatnonzero(outside if weights is None else outside & (np.asarray(weights) > 0))
        if len(bad):
            shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            name = type(self).__name__
            raise ValueError(
                f"y must be {self.limits} for the likelihood {name}; got {numbers[bad[0]]} in row {bad[0]} of a block, "
                f"and {len(bad)} such row(s) in all: {shown}. Correct them, or choose another likelihood."
            )

    def likely_size(self, largest: float) -> float:
        """Return the likely size of f, if it is not a location, given the largest observation.

        It is the scale of the weak prior with which a stream begins.

        Parameters
        ----------
        largest : float

        Returns
        -------
        float
        """
        return 1.0

    @abstractmethod
    def loss(self, y: Array, f: Array) -> Array:
        """Return the loss of observations y for the model outputs f, elementwise.

        Parameters
        ----------
        y, f : arrays of the same shape

        Returns
        -------
        array of the same shape
        """

    @abstractmethod
    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        """Return the slope and the curvature of the loss at f, elementwise.

        Parameters
        ----------
        y, f : arrays of the same shape

        Returns
        -------
        slope : array
            The first derivative of the loss with respect to f.
        curvature : array
            The second derivative, or a positive substitute for it if the loss is not convex.
        """

    def least_squares(self, y: Array, f: Array) -> tuple[Array, Array | None]:
        """Return the second-order expansion as a least-squares problem for the step of f.

        Parameters
        ----------
        y, f : arrays of the same shape

        Returns
        -------
        targets : array
            -slope / curvature.
        weights : array or None
            The curvature; None if it is 1 everywhere.
        """
        slope, curvature = self.expand(y, f)
        return -slope / curvature, curvature

    def matched(self, y: Array, f: Array, variance: Array) -> tuple[Array, Array]:
        """Return a least-squares problem for the step of f that fits the loss over a belief about f, N(f, variance).

        Learned by that problem, the belief has the mean and the variance that it has when it is multiplied by
        exp(-loss): moment matching, or assumed density filtering. The moments come from a Gauss-Hermite rule with 20
        nodes. Where the belief is wider than the loss, the rule is centred at the minimiser of the loss and the belief
        together, a proximal step, and as wide as the belief is there. Where it is much narrower, `least_squares` is the
        same. For losses that are elementwise.

        If the noise is learned, and the curvature of `expand` is the expected one, a row has that as its weight under a
        narrow belief, and the belief moves as far: the moments have the curvature at the observation, which would make
        the squares of the targets larger than Pearson's, and with them the noise.

        Parameters
        ----------
        y, f, variance : arrays of the same shape

        Returns
        -------
        targets, weights : arrays
            As in `least_squares`.
        """
        with np.errstate(all="ignore"):  # nodes far out may overflow, where the belief is expanded instead
            targets, weights = self._matched(y, f, variance)
            if not (self.learns_noise and self.expected_curvature):
                return targets, weights
            xp, curvature = namespace(y, f, variance), self.expand(y, f)[1]
            moved = targets * ((1 / curvature + variance) / (1 / weights + variance))
            narrow = variance < _CERTAIN
            return xp.where(narrow, moved, targets), xp.where(narrow, curvature, weights)

    def _matched(self, y: Array, f: Array, variance: Array) -> tuple[Array, Array]:
        xp = namespace(y, f, variance)
        slope, curvature = self.expand(y, f)
        size = variance * xp.maximum(curvature, slope**2)  # a large slope leads far from f
        wide, narrow = size >= _WIDE, size <= _NARROW
        nodes, shares = (xp.asarray(a, f.dtype).reshape(-1, *[1] * f.ndim) for a in (_NODES, _SHARES))
        steps, tilt = nodes * xp.sqrt(variance)[None], 0.0
        other, bend = -slope / curvature, curvature  # the expansion that serves where the moments do not
        if not certainly(~wide):
            mode = xp.where(wide, self._mode(y, f, variance), f)
            slope, bend = self.expand(y, mode)
            other = mode - f - slope / bend
            spread = xp.sqrt(variance / xp.where(wide, 1 + variance * bend, 1))
            steps = (mode - f)[None] + nodes * spread[None]
            tilt = (nodes**2 - steps**2 / variance[None]) / 2
        logs = tilt - self.loss(y[None], f[None] + steps)
        powers = shares * xp.exp(logs - logs.max(axis=0, keepdims=True))
        total = powers.sum(axis=0)
        mean = (powers * steps).sum(axis=0) / total
        left = (powers * (steps - mean[None]) ** 2).sum(axis=0) / total
        weights = 1 / left - 1 / variance
        targets = mean * (1 + 1 / (weights * variance))
        bad = narrow | ~(weights > 0)
        return xp.where(bad, other, targets), xp.where(bad, bend, weights)

    def matched_rows(self, y: Array, f: Array, D: Array, covariance: Array) -> tuple[Array, Array]:
        """Return the least-squares problem of `matched` for a likelihood whose outputs interact.

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
        """
        raise NotImplementedError(f"The outputs of {type(self).__name__} do not interact: use `matched`.")

    def probability_std(self, f: Array, leverage: Array) -> Array:
        """Return the standard deviations of the probabilities of classes.

        Parameters
        ----------
        f : array of shape (n,) or (n, m)
        leverage : array of shape (n,) or (n, m, m)
            The variance of f.

        Returns
        -------
        array of the shape of f
        """
        raise NotImplementedError(f"{type(self).__name__} has no probabilities of classes.")

    def matched_row(self, y: float, f: float, variance: float) -> tuple[float, float]:
        """Return what `matched` returns for one observation, in a fifth of its time.

        Parameters
        ----------
        y, f, variance : float

        Returns
        -------
        target, weight : float
        """
        spread = math.sqrt(variance)
        plain = not (self.learns_noise and self.expected_curvature)
        if plain and abs(f) + _FARTHEST * spread < _MODERATE:  # so that nothing overflows
            slope, curvature = self._expand_row(y, f)
            size = variance * max(curvature, slope**2)
            if size <= _NARROW:
                return -slope / curvature, curvature
            if size < _WIDE:
                total, first, second = _POWERS.dot(self._density(y, f + spread * _NODES)).tolist()
                mean = first / total
                weight = (1 / (second / total - mean * mean) - 1) / variance
                if weight > 0:
                    return spread * mean * (1 + 1 / (weight * variance)), weight
        targets, weights = self.matched(*(np.array([a]) for a in (y, f, variance)))
        return float(targets[0]), float(weights[0])

    def _density(self, y: float, f: Array) -> Array:
        """Return numbers proportional to p(y | f), for f of a moderate size."""
        logs = -self.loss(y, f)
        return np.exp(logs - logs.max())

    def _expand_row(self, y: float, f: float) -> tuple[float, float]:
        """Return what `expand` returns for one observation, with f of a moderate size."""
        slope, curvature = self.expand(y, f)
        return float(slope), float(curvature)

    def _mode(self, y: Array, f: Array, variance: Array) -> Array:
        """Return argmin_t loss(y, t) + (t - f)^2 / (2 variance), a proximal step."""
        xp = namespace(y, f, variance)
        t, low, high = f, xp.full_like(f, -xp.inf), xp.full_like(f, xp.inf)
        if self.log_concave:  # the slope only falls on the way from f
            end = f - variance * self.expand(y, f)[0]
            low, high = xp.minimum(f, end), xp.maximum(f, end)

        # Newton's method while its steps halve, within the interval in which the minimiser lies.
        def step(_: Any, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            t, low, high, before = carry
            slope, curvature = self.expand(y, t)
            gradient = slope * variance + (t - f)
            low, high = xp.where(gradient < 0, t, low), xp.where(gradient > 0, t, high)
            move = -gradient / (1 + curvature * variance)
            good = (t + move > low) & (t + move < high) & (xp.abs(move) <= xp.abs(before) / 2)
            move = xp.where(good | xp.isinf(low) | xp.isinf(high), move, (low + high) / 2 - t)
            move = xp.where(gradient == 0, 0, move)
            return t + move, low, high, move

        carry = t, low, high, high - low
        if xp is not np:  # a loop without a break, which can be differentiated; unrolled, it takes minutes to compile
            return fori_loop(xp, _STEPS, step, carry)[0]
        for _ in range(_STEPS):
            carry = step(None, carry)
            if (np.abs(carry[-1]) <= _CLOSE * (1 + np.abs(carry[0]))).all():
                break
        return carry[0]

    def skew(self, y: Array, f: Array, variance: Array) -> Array:
        """Return half the third derivative of the log-likelihood times the variance of a belief about f, elementwise.

        By it the mean of the slope over the belief differs from the slope at f. It comes from a difference quotient.

        Parameters
        ----------
        y, f, variance : arrays of the same shape
            If the outputs of a row interact, f has the shape (n, m), and `variance` has their covariances, (n, m, m).

        Returns
        -------
        array of the shape of f
        """
        low, high = (self.expand(y, f + side * _ASIDE)[1] for side in (-1, 1))
        return (low - high) * variance / (4 * _ASIDE)

    def row_weights(self, y: Array, predicted: Predictive) -> Array:
        """Return the weights of rows in a fit, relative to that of a row that is exactly as predicted.

        Parameters
        ----------
        y : array of shape (n,)
        predicted : Predictive

        Returns
        -------
        array of shape (n,)
        """
        return namespace(y).ones_like(y)

    def excess(self, y: Array, f: Array, variance: Any) -> Array | None:
        """Return by how much the information of rows exceeds the second derivative of their loss.

        Parameters
        ----------
        y, f : arrays of the same shape
        variance : float or array
            That of a belief about f.

        Returns
        -------
        array of the same shape, or None
            None if it does not.
        """
        return None

    def curvature_change(self, y: Array, f: Array, std: Array) -> Array:
        """Return by how much the curvature of the loss changes within a standard deviation of f, as a share of it.

        Parameters
        ----------
        y, f, std : arrays of the same shape
            If the outputs of a row interact, `std` is that of the `contrasts`.

        Returns
        -------
        array of the same shape
        """
        with np.errstate(all="ignore"):
            low, here, high = (self.expand(y, f + side * std)[1] for side in (-1, 0, 1))
            return abs(high - low) / (2 * here)

    def contrasts(self, f: Array, D: Array) -> Array:
        """Return the Jacobian of what the least-squares problem is about, given that of f.

        It is that of f itself, unless the outputs of a row interact in the loss, as the classes of `Categorical` do.

        Parameters
        ----------
        f : array of shape (b,) or (b, m)
        D : array of shape (b, d) or (b, m, d)

        Returns
        -------
        array of the shape of D
        """
        return D

    @abstractmethod
    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Predictive:
        """Return the predictive distribution of new observations.

        Parameters
        ----------
        f : array
            The output of the model at the estimate.
        leverage : array
            The variance of f in units of the noise variance.
        noise : kalprox.noise.Noise
            The noise variance and its degrees of freedom.
        sigma : float or array
            The standard deviation of the noise of each observation, in units of that of a row of weight 1; for
            likelihoods with `learns_noise` only.

        Returns
        -------
        Predictive
        """
