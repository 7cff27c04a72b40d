"""Mixtures of predictive distributions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array
from kalprox.base.checks import check_level
from kalprox.predictive.discrete import Categories, Classes, Counts
from kalprox.predictive.student import Predictive, Student, central_interval, standard_score

_MOST_STEPS = 100  # of the search for a quantile; 5 to 10 are usual, and bisection alone needs 60
_TOL = 1e-13  # relative to the distance of the quantiles of the parts


class Mixture(NamedTuple):
    """One of several predictive distributions, each with its probability. NumPy only.

    A part that makes no claim about a row, since its mean or its scale is not finite, has no share in the distribution
    of that row; the others share in its weight.

    Parameters
    ----------
    parts : tuple of Predictive
        K distributions of one kind for the same n rows, with means of shape (n,) or (n, k).
    weights : array of shape (K,) or (K, k), or one more axis for the rows
        Not negative; they add up to 1 over the parts.

    Examples
    --------
    >>> parts = Student(np.zeros(1), np.ones(1), np.inf), Student(np.full(1, 4.0), np.ones(1), np.inf)
    >>> both = Mixture(parts, np.array([0.5, 0.5]))
    >>> both.mean, both.std.round(3), both.quantile(0.75).round(3)
    (array([2.]), array([2.236]), array([4.]))
    """

    parts: tuple[Predictive, ...]
    weights: Array

    @property
    def shares(self) -> Array:
        """The probability of each part for each row, shape (K, n) or (K, n, k)."""
        mean, std = (np.stack([getattr(part, name) for part in self.parts]) for name in ("mean", "std"))
        return shares(self.weights, np.isfinite(mean) & np.isfinite(std))

    @property
    def mean(self) -> Array:
        """The predictive means."""
        return self._average([part.mean for part in self.parts])

    @property
    def std(self) -> Array:
        """The predictive scales, by the law of total variance: the mean square of the scales and of the distances.

        As that of `Student`, the scale is smaller than the standard deviation where the degrees of freedom are few.
        """
        mean = self.mean
        return np.sqrt(self._average([part.std**2 + (part.mean - mean) ** 2 for part in self.parts]))

    def _average(self, values: Sequence[Array]) -> Array:
        """Return the mean of values of the parts, to which a part without a share adds nothing."""
        w = self.shares
        with np.errstate(invalid="ignore"):  # no share of infinity
            found: Array = np.where(w > 0, w * np.stack(values), 0.0).sum(axis=0)
        return found

    def cdf(self, y: Array) -> Array:
        with np.errstate(invalid="ignore", divide="ignore"):
            return self._average([part.cdf(y) for part in self.parts])

    def log_prob(self, y: Array) -> Array:
        with np.errstate(invalid="ignore", divide="ignore"):
            return log_mean(self.shares, np.stack([part.log_prob(y) for part in self.parts]))

    def quantile(self, p: float) -> Array:
        """Return the p-quantile, which lies between those of the parts: by Newton's method, or bisection.

        That of counts is the smallest count whose distribution function is at least p.
        """
        w = self.shares
        with np.errstate(invalid="ignore"):  # of parts that make no claim
            ends = np.where(w > 0, np.stack([part.quantile(p) for part in self.parts]), np.nan)
        known = np.isfinite(ends).any(axis=0)
        ends = np.where(known, ends, 0.0)
        low, high = np.nanmin(ends, axis=0), np.nanmax(ends, axis=0)
        smooth = isinstance(self.parts[0], Student)
        return np.where(known, self._root(p, w, low, high) if smooth else self._bisected(p, low, high), np.nan)

    def _root(self, p: float, w: Array, low: Array, high: Array) -> Array:
        """Return the quantile between two points: the parts, all `Student`, are evaluated together."""
        mean, std = (np.stack([getattr(part, name) for part in self.parts]) for name in ("mean", "std"))
        dof = np.stack([np.broadcast_to(part.dof, mean.shape[1:]) for part in self.parts])  # type: ignore[attr-defined]
        certain = std == 0  # a part without noise, whose distribution function is a step
        mean, std = np.where(w > 0, mean, 0.0), np.where((w > 0) & ~certain, std, 1.0)
        dof = np.where((w > 0) & (dof > 0), dof, np.inf)
        tol, x = _TOL * np.maximum(high - low, np.maximum(np.abs(low), np.abs(high))), (low + high) / 2
        for _ in range(_MOST_STEPS):
            u, log_density = standard_score((x - mean) / std, dof)
            excess = (w * np.where(certain, x >= mean, special.ndtr(u))).sum(axis=0) - p
            low, high = np.where(excess < 0, x, low), np.where(excess < 0, high, x)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = x - excess / np.where(certain, 0.0, w * np.exp(log_density) / std).sum(axis=0)
            inside = (step > low) & (step < high)
            following = np.where(inside, step, (low + high) / 2)
            done = (np.abs(following - x) <= tol) | (high - low <= tol)
            x = following
            if done.all():
                break
        return x

    def _bisected(self, p: float, low: Array, high: Array) -> Array:
        """Return the quantile between two points, for parts of any other kind; that of counts is a whole number."""
        whole = isinstance(self.parts[0], Counts)
        for _ in range(_MOST_STEPS):
            middle = following = (low + high) / 2
            if whole:
                middle = np.floor(middle)
                following = np.minimum(middle + 1, high)
            enough = self.cdf(middle) >= p
            low, high = np.where(enough, low, following), np.where(enough, middle, high)
            if (low >= high).all():
                break
        return high

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Return the ends of the central interval that contains an observation with probability `level`.

        Parameters
        ----------
        level : float
            Strictly between 0 and 1.

        Returns
        -------
        low, high : arrays
        """
        check_level(level)
        return central_interval(self, level)


def mixed(parts: Sequence[Predictive], weights: Array) -> Predictive:
    """Return the mixture of predictive distributions: for classes one of classes, and for one part that part.

    Parameters
    ----------
    parts : sequence of Predictive
        Of the same kind.
    weights : array
        As in `Mixture`.

    Examples
    --------
    >>> mixed([Classes(np.array([0.2])), Classes(np.array([0.6]))], np.array([0.5, 0.5]))
    Classes(mean=array([0.4]))
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if not isinstance(first, (Classes, Categories)):
        return Mixture(tuple(parts), weights)
    p = np.stack([part.mean for part in parts])
    if isinstance(first, Classes):
        w = shares(weights, np.isfinite(p))
    else:
        w = shares(weights, np.isfinite(p).all(axis=-1))[..., None]  # one for all classes of a row
    return type(first)(np.where(w > 0, w * p, 0.0).sum(axis=0))


def shares(weights: Array, known: Array) -> Array:
    """Return the weights of the parts that make a claim, adding up to 1; those of all parts where none does.

    Parameters
    ----------
    weights : array of shape (K,) or (K, k), or one more axis for the rows
    known : bool array of shape (K, n) or (K, n, k)
    """
    if weights.ndim < known.ndim:
        weights = weights[:, None]
    if known.all():
        return np.broadcast_to(weights, known.shape)
    w = np.where(known | ~known.any(axis=0), weights, 0.0)
    total = w.sum(axis=0)
    return w / np.where(total > 0, total, 1.0)


def log_mean(w: Array, logs: Array) -> Array:
    """Return the log of the mean of exp(logs) over the first axis with weights w; a part of weight 0 does not count."""
    logs = np.where(w > 0, logs, -np.inf)
    most = logs.max(axis=0)
    safe = np.where(np.isfinite(most), most, 0.0)
    with np.errstate(divide="ignore"):
        found: Array = safe + np.log((w * np.exp(logs - safe)).sum(axis=0))
    return found


def mixture_scores(w: Array, u: Array) -> Array:
    """Return the normal scores Phi^-1(F(y)) of a mixture for those of its parts, of which w are the shares.

    Both tails keep their digits: a score is computed from the logarithm of the smaller one.
    """
    low, high = (log_mean(w, special.log_ndtr(sign * u)) for sign in (1, -1))
    lower = low < high
    score = special.ndtri_exp(np.where(lower, low, high))
    return np.where(lower, score, -score)
