"""What a source of rows is: blocks of rows, and a sum over all of them.

Everything that learns from more than one block asks a source for a sum: `source.fold(part)` applies `part` to every
block and adds up what it returns. Arrays in memory, files and partitions on a cluster are sources.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.base.tree import Sizes, expect, leaf, state
from kalprox.sources.files import check_rows
from kalprox.sources.quarantine import NO_NOTES, Notes

_MAX_SIDES = 64
_OF_ROWS = ("X", "y", "weights", "groups", "counts", "squares", "offset", "times", "noise", "missing")  # of `Block`
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@state(frozen=False)  # one is made for each row of a stream, and a frozen one takes four times as long
class Block:
    """Consecutive rows of a source: the good rows as arrays, and what was read to find them. It is never changed.

    Parameters
    ----------
    X : array of shape (b, ...)
        The inputs of the good rows.
    y : array of shape (b,) or (b, k), or None
        Their targets; None where only predictions are asked for.
    weights : array of shape (b,), or None
        The weights of the rows; None where every row has weight 1.
    read : int, optional
        The number of rows read, bad rows included. The default is the number of good rows.
    bad : sequence of BadRow
        The rows that were refused, in the order of reading. Of a table whose rows have no place yet, a sequence of
        `Cell`; see `kalprox.sources.columns.TableColumns.encode`.
    place : Any
        Where in the source the rows stand, for sources that have places (see `kalprox.sources.table.Place`).
    groups : array of shape (b,), or None
        The label of the cluster that each row belongs to, for clustered standard errors.
    notes : Notes
        What must be said about the cells that were read.
    counts, squares : array of shape (b,), or None
        What each row adds to `rows` and to `squares` of an `Information`; None where the weight of a row is the number
        of times that it counts, and no forgetting has faded it.
    offset : array of shape (b,), or None
        What is added to the linear predictor of each row.
    times : array of shape (b,), or None
        The time of each row, for forgetting by time.
    noise : array of shape (b,), or None
        The variance of the noise of each row in units of what it would be if all its features were known, at least 1;
        None where nothing is missing.
    missing : array of bool of shape (b, d), or None
        The features of each row that were missing before X was completed; None where nothing was.
    """

    X: Array = leaf("n,d", values="any", rows=True)  # NaN where a feature is missing
    y: Array = leaf("n,o", rows=True)  # None where only predictions are asked for
    weights: Array | None = leaf("n", sign="nonnegative", default=None)
    read: int = leaf(given=True, default=-1)
    bad: Sequence[Any] = leaf(given=True, default=())
    place: Any = leaf(given=True, default=None)
    groups: Array | None = None
    counts: Array | None = leaf("n", default=None)
    squares: Array | None = leaf("n", default=None)
    notes: Notes = leaf(given=True, default=NO_NOTES)
    offset: Array | None = leaf("n", default=None)
    times: Array | None = leaf("n", default=None)
    noise: Array | None = leaf("n", default=None)
    missing: Array | None = leaf("n,d", default=None)

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError unless every row has a label, if there are labels, and no cell is infinite."""
        expect(self.groups is None or len(self.groups) == len(self))
        expect(not np.isinf(self.X).any())

    def __post_init__(self) -> None:
        if self.read < 0:
            self.read = len(self)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def part(self, start: int, stop: int) -> "Block":
        """The good rows from `start` to `stop`, without an account of what was read to find them."""
        return self if start == 0 and stop >= len(self) else self.at(slice(start, stop))

    def at(self, rows: Any) -> "Block":
        """Some of the good rows, given as a slice, by their numbers or by a mask, without such an account."""
        of_rows: dict[str, Any] = {name: None if (a := getattr(self, name)) is None else a[rows] for name in _OF_ROWS}
        return Block(**of_rows)

    @classmethod
    def joined(cls, blocks: Sequence["Block"]) -> "Block":
        """The rows of blocks one after the other, with the bad rows and the notes of all.

        If some blocks have weights, those of the others are 1.
        """
        full: Sequence[Block] = [block for block in blocks if len(block)] or blocks[:1]
        if any(block.weights is not None for block in full):
            full = [block.weighted() for block in full]
        columns = {name: [getattr(block, name) for block in full] for name in _OF_ROWS}
        of_rows: dict[str, Any] = {name: None if a[0] is None else concatenated(a) for name, a in columns.items()}
        bad = [row for block in blocks for row in block.bad]
        notes = sum((block.notes for block in blocks if block.notes is not NO_NOTES), NO_NOTES)
        return cls(**of_rows, read=sum(block.read for block in blocks), bad=bad, notes=notes)

    def weighted(self) -> "Block":
        """The block with weights, 1 if it had none."""
        return self if self.weights is not None else replace(self, weights=np.ones(len(self)))

    @property
    def count(self) -> int:
        """The number of rows that count: those of positive weight."""
        return len(self) if self.weights is None else int((self.weights > 0).sum())


@dataclass(frozen=True)
class ColumnSums:
    """The minimum, the maximum and the sum of each column of X, and the sum of each column of y. They add.

    Attributes
    ----------
    low, high, total : arrays of shape (d,)
        Empty where there is no row, or X is not a dense matrix; `low` and `high` also where they are not to be known. A
        missing value counts as the mean of the others in the sum; the ends of the range of a column without any value
        are infinite, the smaller one being the larger.
    targets : array
        For one-hot classes, the number of rows of each. Empty where there is no row, or no y, or y has labels.
    """

    low: Any = ()
    high: Any = ()
    total: Any = ()
    targets: Any = ()

    @classmethod
    def of(cls, block: Block, *, ranges: bool = True) -> "ColumnSums":
        """The sums of one block; without `ranges`, which are values of rows, only those."""
        X, y, n, targets = block.X, block.y, len(block), ()
        if n and y is not None and y.dtype.kind in "fiub":
            targets = np.ones(n) @ np.reshape(y, (n, -1))
        if not n or X.ndim != 2 or hasattr(X, "toarray"):
            return cls(targets=targets)
        total = np.ones(n) @ X
        if np.isnan(total).any():
            known = ~np.isnan(X)
            total = np.where(known, X, 0.0).sum(axis=0) * n / np.maximum(known.sum(axis=0), 1)
            low, high = np.where(known, X, np.inf), np.where(known, X, -np.inf)
        else:
            low = high = X
        if not ranges:
            return cls(total=total, targets=targets)
        return cls(_reduced(np.min, low), _reduced(np.max, high), total, targets)

    def __add__(self, other: "ColumnSums") -> "ColumnSums":
        low, high = _both(np.minimum, self.low, other.low), _both(np.maximum, self.high, other.high)
        if len(self.total) and len(other.total) and not (len(self.low) and len(other.low)):
            low, high = (), ()
        return ColumnSums(low, high, _both(np.add, self.total, other.total), _both(np.add, self.targets, other.targets))


def _both(function: Any, one: Any, other: Any) -> Any:
    """A function of two arrays; the other one, if one is empty."""
    return function(one, other) if len(one) and len(other) else one if len(one) else other


def _reduced(reduce: Any, X: Array) -> Array:
    """What `np.min` or `np.max` makes of each column of X."""
    n, d = X.shape
    sides = 1 << (min(n, _MAX_SIDES).bit_length() - 1)  # rows side by side: reductions are fast where rows are long
    wide, rest = X[: n - n % sides].reshape(-1, sides * d), X[n - n % sides :]
    return np.asarray(reduce(np.concatenate([reduce(wide, axis=0).reshape(sides, d), rest]), axis=0))


@dataclass(frozen=True)
class Counts:
    """How many rows a pass over a source read, learned (rows of positive weight) and refused."""

    read: int = 0
    good: int = 0
    bad: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.read + other.read, self.good + other.good, self.bad + other.bad)

    @classmethod
    def of(cls, block: Block) -> "Counts":
        """The counts of one block."""
        return cls(block.read, block.count, len(block.bad))


@dataclass(frozen=True)
class Folded(Generic[T_co]):
    """What one pass over a source brings back: the sum (None where there was no good row), and the counts."""

    total: T_co | None
    counts: Counts


class Source(Protocol):
    """Rows that can be gone over more than once, block by block."""

    def fold(self, part: Callable[[Block], T]) -> Folded[T]:
        """Apply `part` to every block that has good rows, and add the results with `+`: one pass."""


@dataclass(frozen=True)
class MappedSource:
    """A source whose blocks a function has changed. An engine pickles the function."""

    source: Source
    change: Callable[[Block], Block]

    def fold(self, part: Callable[[Block], T]) -> Folded[T]:
        """Make one pass; see `Source`."""
        return self.source.fold(partial(_changed, self.change, part))

    def sample(self, rows: int, least: int) -> "MappedSource | None":
        """Return a part of the rows, if the source can give one; see `kalprox.sources.ArraySource`."""
        sample = getattr(self.source, "sample", None)
        part = None if sample is None else sample(rows, least)
        return None if part is None else MappedSource(part, self.change)


def _changed(change: Callable[[Block], Block], part: Callable[[Block], T], block: Block) -> T:
    return part(change(block))


def fold_blocks(blocks: Iterable[Block], part: Callable[[Block], T]) -> Folded[T]:
    """The pass of `Source.fold` over blocks that are at hand, added from left to right.

    >>> import numpy as np
    >>> folded = fold_blocks([Block(np.ones((2, 1)), np.ones(2)), Block(np.ones((3, 1)), np.ones(3))], len)
    >>> folded.total, folded.counts.good
    (5, 5)
    """
    total: Any = None
    counts = Counts()
    for block in blocks:
        counts = counts + Counts.of(block)
        if len(block):
            value = part(block)
            total = value if total is None else total + value
    return Folded(total, counts)


def concatenated(parts: Sequence[Any]) -> Any:
    """Return rows one after the other; those of sparse matrices stay sparse.

    >>> concatenated([np.ones((1, 2)), np.zeros((1, 2))])
    array([[1., 1.],
           [0., 0.]])
    """
    return scipy.sparse.vstack(parts, format="csr") if scipy.sparse.issparse(parts[0]) else np.concatenate(parts)


class Passes(ABC):
    """A source that counts its passes, and replays those that an earlier run completed.

    Refinement depends on the results of its passes alone. If it is run again, and the results of the completed passes
    are replayed, it reaches the same point, bit for bit.

    Parameters
    ----------
    done : sequence of Folded
        The results of the completed passes. The first passes return them and read no rows.
    keep : callable, optional
        Called as keep(number, folded) after each pass that read a good row, with the result that `done` takes.

    Attributes
    ----------
    number : int
        The number of passes made or replayed.
    """

    def __init__(
        self, done: Sequence[Folded[Any]] = (), keep: Callable[[int, Folded[Any]], None] | None = None
    ) -> None:
        self.number, self._done, self._keep = 0, list(done), keep
        self._rows = self._done[0].counts.read if self._done else None  # of a pass

    @abstractmethod
    def read(self, part: Callable[[Block], T], number: int) -> Folded[T]:
        """Make one pass over all rows, that of this number."""

    def fold(self, part: Callable[[Block], T]) -> Folded[T]:
        """Make one pass, or replay a completed one; see `kalprox.sources.Source`."""
        number, self.number = self.number, self.number + 1
        if number < len(self._done):
            return self._done[number]
        folded = self.read(part, number)
        self._rows = folded.counts.read if self._rows is None else self._rows
        check_rows(self._rows, folded.counts.read)
        if self._keep is not None and folded.total is not None:
            self._keep(number, folded)
        return folded
