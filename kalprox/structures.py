"""Structures of the precision matrix for models of many parameters: what the proximal filter keeps of it.

A dense precision matrix of d parameters has d^2 numbers. The other structures keep O(d) numbers, and lose correlations
between parameters. See `kalprox.proximal_filter`, which takes them as `structure`.
"""

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from kalprox.base.arrays import Array

if TYPE_CHECKING:
    from kalprox.large.information import Structured

__all__ = ["Blocks", "Dense", "Diagonal", "LastLayer", "LowRank", "Structure", "structure_of"]


class UnderstatedWarning(UserWarning):
    """Standard errors are too small: a structure drops correlations, or few rows told how to fill gaps."""


class Structure(ABC):
    """The base class of the structures.

    Examples
    --------
    >>> isinstance(LowRank(20), Structure)
    True
    """

    name: ClassVar[str]
    help: ClassVar[str]

    @abstractmethod
    def start(self, mean: Array, precision: Any) -> "Structured":
        """Return the information of no rows.

        Parameters
        ----------
        mean : array of shape (d,)
            The prior mean.
        precision : float or array of shape (d,)
            The prior precisions, positive, in units of the precision of the noise.

        Returns
        -------
        kalprox.large.information.Structured

        Examples
        --------
        >>> info = Diagonal().start(np.zeros(2), 4.0)
        >>> info.fold(np.eye(2), np.array([5.0, 10.0])).mean
        array([1., 2.])
        """


@dataclass(frozen=True)
class Dense(Structure):
    """All d^2 entries: exact, and the default.

    Examples
    --------
    >>> structure_of("dense")
    Dense()
    """

    def start(self, mean: Array, precision: Any) -> "Structured":
        """Raise a TypeError: a dense precision matrix is a `kalprox.Information`.

        Parameters
        ----------
        mean : array of shape (d,)
        precision : float or array of shape (d,)

        Returns
        -------
        kalprox.large.information.Structured

        Examples
        --------
        >>> Dense().start(np.zeros(2), 1.0)
        Traceback (most recent call last):
            ...
        TypeError: The dense structure is that of kalprox.Information: use Information.from_prior.
        """
        raise TypeError("The dense structure is that of kalprox.Information: use Information.from_prior.")


@dataclass(frozen=True)
class Diagonal(Structure):
    """No correlations: P = diag(p). O(d) numbers, and O(d) operations per row.

    Rows are learned in blocks of 16, within which nothing is lost.

    Examples
    --------
    >>> info = Diagonal().start(np.zeros(2), 1.0).fold(np.array([[1.0, 1.0]]), np.array([3.0]))
    >>> info.mean, info.variances()
    (array([1., 1.]), array([0.5, 0.5]))
    """

    name = "diagonal"
    help = "No correlations: d numbers."

    def start(self, mean: Array, precision: Any) -> "Structured":
        return _information(mean, precision, 0)


@dataclass(frozen=True)
class LowRank(Structure):
    """A diagonal plus a few directions: P = diag(p) + W'W. O(d rank) numbers, and O(d rank) operations per row.

    The mean of each block of rows is exact for the P before it. Of the directions of all rows the largest are kept; the
    diagonal of the others is added to p, so that only correlations are lost. Exact while there are no more than `rank`
    directions.

    Parameters
    ----------
    rank : int
        The number of directions that are kept.

    Examples
    --------
    >>> info = LowRank(1).start(np.zeros(2), 1.0).fold(np.array([[1.0, 1.0]]), np.array([3.0]))
    >>> info.mean, info.variances().round(6)
    (array([1., 1.]), array([0.666667, 0.666667]))
    """

    rank: int = 20
    name = "low_rank"
    help = "A diagonal and as many directions: d * rank numbers."

    def __post_init__(self) -> None:
        _check_rank(self.rank)

    def start(self, mean: Array, precision: Any) -> "Structured":
        return _information(mean, precision, self.rank)


@dataclass(frozen=True)
class Blocks(Structure):
    """A dense block for each group of consecutive parameters, such as a layer. O(sum of s^2) numbers.

    Parameters
    ----------
    sizes : sequence of int
        The sizes of the groups, which add up to the number of parameters.

    Examples
    --------
    >>> info = Blocks([2, 1]).start(np.zeros(3), 1.0).fold(np.array([[1.0, 1.0, 1.0]]), np.array([4.0]))
    >>> info.mean, info.variances().round(6)
    (array([1., 1., 1.]), array([0.666667, 0.666667, 0.5     ]))
    """

    sizes: Sequence[int]

    def __post_init__(self) -> None:
        sizes = tuple(self.sizes) if np.ndim(self.sizes) == 1 else ()
        if not sizes or not all(isinstance(s, numbers.Integral) and s > 0 for s in sizes):
            raise ValueError(f"sizes must be a list of numbers of parameters, each at least 1; got {self.sizes!r}.")
        object.__setattr__(self, "sizes", tuple(map(int, sizes)))

    def start(self, mean: Array, precision: Any) -> "Structured":
        if sum(self.sizes) != len(mean):
            raise ValueError(
                f"The sizes of Blocks must add up to the number of parameters, {len(mean)}; got {sum(self.sizes)}."
            )
        ends = np.cumsum([0, *self.sizes])
        groups = (range(a, b) for a, b in pairwise(ends))
        return _information(mean, precision, 0, groups)


@dataclass(frozen=True)
class LastLayer(Structure):
    """A dense block on some parameters, such as the last layer, a diagonal on the rest, and directions over all.

    P = B + W'W, where B is dense on the chosen parameters and diagonal on the others. Of the directions that W has no
    place for, B keeps the whole part of the chosen parameters. Exact while there are no more than `rank` directions,
    and exact for the chosen parameters if the others are known.

    Parameters
    ----------
    last : int or sequence of int
        The number of the last parameters that have a dense block, or the indices of the parameters that have it.
    rank : int
        The number of directions that are kept.

    Examples
    --------
    >>> info = LastLayer(2, rank=1).start(np.zeros(4), 1.0)
    >>> info.fold(np.ones((1, 4)), np.array([5.0])).mean
    array([1., 1., 1., 1.])
    """

    last: int | Sequence[int]
    rank: int = 20

    def __post_init__(self) -> None:
        _check_rank(self.rank)
        chosen = np.asarray(self.last)
        good = np.issubdtype(chosen.dtype, np.integer) and chosen.ndim <= 1 and chosen.size > 0
        if good and chosen.ndim == 0:
            good = int(chosen) > 0
            object.__setattr__(self, "last", int(chosen))
        elif good:
            good = bool(chosen.min() >= 0 and len(np.unique(chosen)) == chosen.size)
            object.__setattr__(self, "last", tuple(chosen.tolist()))
        if not good:
            raise ValueError(
                f"last must be the number of the last parameters, at least 1, or different indices; got {self.last!r}."
            )

    def start(self, mean: Array, precision: Any) -> "Structured":
        d = len(mean)
        chosen = range(d - self.last, d) if isinstance(self.last, int) else self.last
        if (isinstance(self.last, int) and self.last > d) or max(chosen) >= d:
            raise ValueError(f"last must fit the number of parameters, {d}; got {self.last!r}.")
        return _information(mean, precision, self.rank, [chosen])


def structure_of(structure: Any) -> Structure:
    """Return a structure that is given by its name, "dense", "diagonal" or "low_rank", or as an object.

    Parameters
    ----------
    structure : str or Structure

    Returns
    -------
    Structure

    Examples
    --------
    >>> structure_of("diagonal"), structure_of(LowRank(10))
    (Diagonal(), LowRank(rank=10))
    """
    if isinstance(structure, Structure):
        return structure
    known: dict[Any, Any] = {"dense": Dense} | STRUCTURES
    if isinstance(structure, str) and structure in known:
        return cast("Structure", known[structure]())
    raise ValueError(
        f"structure must be {', '.join(map(repr, known))}, or one of kalprox.structures, as in LowRank(20), "
        f"Blocks([100, 10]) or LastLayer(10); got {structure!r}."
    )


STRUCTURES: dict[str, type[Diagonal | LowRank]] = {kind.name: kind for kind in (Diagonal, LowRank)}


def _check_rank(rank: Any) -> None:
    if not isinstance(rank, numbers.Integral) or int(rank) < 1:
        raise ValueError(f"rank must be a whole number, at least 1; got {rank!r}. For no directions use Diagonal.")


def _information(mean: Array, precision: Any, rank: int, groups: Iterable[Iterable[int]] = ()) -> "Structured":
    """Return the information of no rows, with a dense block for each group of parameters, and `rank` directions."""
    from kalprox.large.information import Structured

    return Structured.start(mean, precision, rank, groups)
