"""What an engine does: fold every partition where it is, and merge the sums as a tree that their order fixes."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.engines.pickling import is_traced, unpacked
from kalprox.sources.quarantine import BadRow

__all__ = ["Engine", "EngineFailed", "Folded", "Part", "Piece", "Report", "Seen", "Tree", "add", "fold", "one_thread"]

Part = Callable[[Array, Array, Array], Any]


@dataclass(frozen=True)
class Piece:
    """Some consecutive rows of a partition: the good ones as arrays, how many were read, and the bad ones."""

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None
    read: int
    bad: list[BadRow] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """What a partition held. good: rows of weight > 0; low, high, total: of each column of X over the good rows, empty
    where there are none."""

    name: str
    read: int = 0
    good: int = 0
    bad: tuple[BadRow, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    total: tuple[float, ...] = ()


Seen = Callable[[int, Report], None]


@dataclass(frozen=True)
class Folded:
    """What a partition, or several, came to: None where there was no good row. reports: by partition index."""

    total: Any
    reports: dict[int, Report] = field(default_factory=dict)


class EngineFailed(RuntimeError):
    """The machines gave up, not the work: a scheduler is gone, or workers died again and again."""


class Engine(ABC):
    """Where partitions are folded. What travels is a part, to each partition, and a total, back: never rows."""

    @abstractmethod
    def sum(self, partitions: Sequence[Any], part: Part, seen: Seen | None = None) -> Any:
        """part(X, y, weights) of every block, added with `+`: in order within a partition, and across partitions as a
        binary tree over their indices. None where there is no good row at all.

        seen(index, report) is called here, once a partition, as they finish.
        """


def fold(name: str, index: int, pieces: Iterable[Piece], part: Part) -> Folded:
    """The sum over one partition, on whichever machine this runs."""
    total, read, good = None, 0, 0
    bad: list[BadRow] = []
    low = high = sums = None
    part = unpacked(part)
    if _traces(part):
        import jax  # noqa: F401  whole before a thread of another partition looks for it
    with one_thread():
        for piece in pieces:
            read += piece.read
            bad += piece.bad
            if len(piece.X) == 0:
                continue
            weights = np.ones(len(piece.X)) if piece.weights is None else piece.weights
            good += int((weights > 0).sum())
            value = _noted(name, part, piece.X, piece.y, weights)
            total = value if total is None else total + value
            if piece.X.ndim == 2:
                least, most, column = piece.X.min(axis=0), piece.X.max(axis=0), np.ones(len(piece.X)) @ piece.X
                low = least if low is None else np.minimum(low, least)
                high = most if high is None else np.maximum(high, most)
                sums = column if sums is None else sums + column
    spans = (() if a is None else tuple(a.tolist()) for a in (low, high, sums))
    return Folded(total, {index: Report(name, read, good, tuple(bad), *spans)})


def _traces(part: Any) -> bool:
    """Whether a part holds a model that imports JAX when it is first used."""
    if isinstance(part, partial):
        return any(map(_traces, (*part.args, *part.keywords.values())))
    return is_traced(part)


def _noted(name: str, part: Part, X: Array, y: Array, weights: Array) -> Any:
    try:
        return part(X, y, weights)
    except Exception as error:
        error.add_note(f"in {name}")
        raise


def add(left: Folded, right: Folded) -> Folded:
    """Both, in this order; nothing added to something leaves it as it is, bit for bit."""
    total = right.total if left.total is None else left.total if right.total is None else left.total + right.total
    return Folded(total, left.reports | right.reports)


class Tree:
    """Takes what partitions came to in any order, and merges two neighbours as soon as both are there.

    Partition i is merged with i ^ 1, their sum with that of the next two, and so on: the shape follows from the indices
    alone, so that the sum is the same bit for bit whatever finished first. A subtree of 2^k partitions that begins at
    a multiple of 2^k may be merged elsewhere before.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], Any] = {}

    def put(self, index: int, folded: Folded, level: int = 0) -> None:
        """What 2^level partitions came to, the index-th of such groups."""
        while (other := self._waiting.pop((level, index ^ 1), _NOTHING)) is not _NOTHING:
            folded = add(other, folded) if index & 1 else add(folded, other)
            level, index = level + 1, index >> 1
        self._waiting[level, index] = folded

    def result(self) -> Folded:
        """All of them; what has no neighbour goes up as it is."""
        while len(self._waiting) > 1:
            level, index = min(self._waiting)
            self.put(index >> 1, self._waiting.pop((level, index)), level + 1)
        return next(iter(self._waiting.values()), Folded(None))


_NOTHING = object()


class _Threads:
    """How many tasks of this process want one BLAS thread each, and what was before."""

    lock = threading.Lock()
    tasks = 0
    before: Any = None


@contextmanager
def one_thread() -> Iterator[None]:
    """One BLAS thread for this process while any task is inside: its other cores have tasks of their own.

    The limit is the process's, not the thread's, so the first task in sets it and the last one out takes it back.
    Without threadpoolctl nothing happens.
    """
    try:
        threadpoolctl = import_module("threadpoolctl")
    except ImportError:
        yield
        return
    with _Threads.lock:
        if _Threads.tasks == 0:
            _Threads.before = threadpoolctl.threadpool_limits(1)
        _Threads.tasks += 1
    try:
        yield
    finally:
        with _Threads.lock:
            _Threads.tasks -= 1
            if _Threads.tasks == 0:
                _Threads.before.restore_original_limits()
