"""A parameter of a likelihood that is learned together with theta, such as the scale of good rows."""

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree
from kalprox.base.checks import Speaking
from kalprox.base.tree import leaf

__all__ = ["Learned", "LearnedParameter", "plain", "stacked"]

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
