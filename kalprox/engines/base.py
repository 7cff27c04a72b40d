"""The interface of engines: partitions are folded where their rows are, and only the totals travel.

The totals are merged as a binary tree whose shape depends on the indices of the partitions alone.
"""

import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Protocol, TypeVar

from kalprox.base.control import import_jax
from kalprox.models import GLM, Linear, Model, Offset
from kalprox.sources.base import Block, ColumnSums, Counts, Folded, Passes
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import NO_NOTES, BadRow, Notes, Quarantine


@dataclass(frozen=True)
class _PickledModel:
    pickled: bytes


class ModelPickler:
    """Replaces the models in a part by their pickles. The same model gives the same bytes in every pass.

    Parameters
    ----------
    dumps : callable
        Pickles a model; `cloudpickle.dumps` also pickles lambdas.
    """

    def __init__(self, dumps: Callable[[Any], bytes]) -> None:
        self._dumps = dumps
        self._recent: list[tuple[Model, _PickledModel]] = []

    def packed(self, part: Any) -> Any:
        """The part with every model that JAX compiles pickled, also in the arguments of a `functools.partial`."""
        if isinstance(part, partial):
            arguments = {name: self.packed(value) for name, value in part.keywords.items()}
            return partial(part.func, *map(self.packed, part.args), **arguments)
        if not is_traced(part):
            return part
        for model, pickled in self._recent:
            if model is part:
                return pickled
        pickled = _PickledModel(self._dumps(part))
        self._recent = [*self._recent[-7:], (part, pickled)]
        return pickled


def unpacked(part: Any) -> Any:
    """The part that was packed; models with the same pickle are the same object in all tasks of a process."""
    if isinstance(part, partial):
        arguments = {name: unpacked(value) for name, value in part.keywords.items()}
        return partial(part.func, *map(unpacked, part.args), **arguments)
    return _model(part.pickled) if isinstance(part, _PickledModel) else part


def is_traced(part: Any) -> bool:
    """Whether `part` is a model that JAX compiles at its first use."""
    part = part.model if isinstance(part, Offset) else part
    return isinstance(part, Model) and not isinstance(part, GLM | Linear)


@lru_cache(maxsize=16)
def _model(pickled: bytes) -> Any:
    return pickle.loads(pickled)


T = TypeVar("T")
Part = Callable[[Block], T]


class Partition(Protocol):
    """Some rows of a source. A partition can be pickled, and is opened by the worker that folds it."""

    @property
    def name(self) -> str:
        """The name of the partition in error messages and bad rows."""

    def blocks(self) -> Iterator[Block]:
        """The rows of the partition in blocks: the same blocks in the same order in every call."""


@dataclass(frozen=True)
class PartitionSummary:
    """What one partition held.

    Parameters
    ----------
    name : str
        The name of the partition.
    read : int
        The number of rows read, bad rows included.
    good : int
        The number of good rows of positive weight.
    bad : tuple of BadRow
        The bad rows, in the order of reading.
    notes : Notes
        What must be said about the cells of the partition.
    columns : ColumnSums
        The minimum, the maximum and the sum of each column over the good rows.
    """

    name: str
    read: int = 0
    good: int = 0
    bad: tuple[BadRow, ...] = ()
    notes: Notes = NO_NOTES
    columns: ColumnSums = field(default_factory=ColumnSums)

    @property
    def counts(self) -> Counts:
        """The numbers of rows read, good and bad."""
        return Counts(self.read, self.good, len(self.bad))


Seen = Callable[[int, PartitionSummary], None]


@dataclass(frozen=True)
class PartialFold:
    """The fold of one or several partitions: their total (None where there was no good row) and their summaries.

    `summaries` maps the index of a partition to its summary.
    """

    total: Any
    summaries: dict[int, PartitionSummary] = field(default_factory=dict)

    def __add__(self, other: "PartialFold") -> "PartialFold":
        """The sum of two folds, in this order. Adding a fold without good rows changes no bit of the total."""
        if self.total is None or other.total is None:
            total = other.total if self.total is None else self.total
        else:
            total = self.total + other.total
        return PartialFold(total, self.summaries | other.summaries)


class EngineFailed(RuntimeError):
    """The machines failed, not the computation: the scheduler was lost, or workers died repeatedly."""


class Engine(ABC):
    """Where partitions are folded. Parts are sent to the partitions and totals are sent back; rows do not travel."""

    def fold(self, partitions: Sequence[Any], part: Part[T], seen: Seen | None = None) -> Folded[T]:
        """Apply `part` to every block of every partition that has good rows, and add the results with `+`.

        Within a partition the results are added in order. The totals of the partitions are added as a binary tree over
        their indices (see `Tree`), so the sum does not depend on which partition finishes first.

        Parameters
        ----------
        partitions : sequence of Partition
        part : callable
            Takes a `Block` and returns something that can be added and pickled.
        seen : callable, optional
            Called in this process as seen(index, summary), once for each partition, as the partitions finish.

        Returns
        -------
        Folded
            The total, None where there is no good row, and the counts of all partitions.
        """
        counts = Counts()

        def note(index: int, summary: PartitionSummary) -> None:
            nonlocal counts
            counts = counts + summary.counts
            if seen is not None:
                seen(index, summary)

        return Folded(self._total(partitions, part, note), counts)

    @abstractmethod
    def _total(self, partitions: Sequence[Any], part: Part[Any], seen: Seen) -> Any:
        """The total of `fold`; `seen` must be called once for each partition."""


class EngineSource(Passes):
    """Partitions on an engine as a `kalprox.sources.Source`.

    Parameters
    ----------
    engine : Engine
    partitions : sequence of Partition
    quarantine : Quarantine, optional
        Receives the bad rows of the first pass, in the order of the partitions. The default raises TooManyBadRows at
        the first bad row.
    watch : callable, optional
        Called as watch(number, index, summary) whenever partition `index` of pass `number` has been folded.
    done, keep
        See `kalprox.sources.base.Passes`.
    groups : Any
        What names the clusters of the rows, if they have any; None otherwise.

    Attributes
    ----------
    summaries : dict of int to PartitionSummary
        The summaries of the partitions in pass 0, by index; empty where that pass was replayed.

    Examples
    --------
    >>> import numpy as np
    >>> from kalprox.engines import LocalEngine, partitions_of
    >>> source = EngineSource(LocalEngine(1), partitions_of((np.ones((6, 2)), np.ones(6)), n=3))
    >>> folded = source.fold(len)
    >>> folded.total, folded.counts.good
    (6, 6)
    """

    def __init__(
        self,
        engine: Engine,
        partitions: Sequence[Any],
        *,
        quarantine: Quarantine | None = None,
        watch: Callable[[int, int, PartitionSummary], None] | None = None,
        done: Sequence[Folded[Any]] = (),
        keep: Callable[[int, Folded[Any]], None] | None = None,
        groups: Any = None,
    ) -> None:
        if not partitions:
            raise SourceError("There must be at least one partition; got none.")
        super().__init__(done, keep)
        self.engine, self.partitions, self.groups = engine, list(partitions), groups
        self.quarantine = Quarantine() if quarantine is None else quarantine
        self._watch = watch
        self.summaries: dict[int, PartitionSummary] = {}
        self._quarantined = 0  # the first partition whose bad rows have not been handed over

    def read(self, part: Part[T], number: int) -> Folded[T]:
        folded = self.engine.fold(self.partitions, part, lambda index, summary: self._seen(number, index, summary))
        for index in sorted(index for index in self.summaries if index >= self._quarantined):
            self._quarantine_bad_rows(index)
        return folded

    def _seen(self, number: int, index: int, summary: PartitionSummary) -> None:
        if number == 0:
            self.summaries[index] = summary
            while self._quarantined in self.summaries:  # in the order of the partitions, not of their completion
                self._quarantine_bad_rows(self._quarantined)
        if self._watch is not None:
            self._watch(number, index, summary)

    def _quarantine_bad_rows(self, index: int) -> None:
        self._quarantined = index + 1
        self.quarantine.take(self.summaries[index].bad, self.summaries[index].read)


def fold_partition(partition: Partition, index: int, part: Part[Any]) -> PartialFold:
    """Fold one partition on the machine where this runs."""
    total, counts = None, Counts()
    bad: list[BadRow] = []
    notes, columns = NO_NOTES, ColumnSums()
    part = unpacked(part)
    if _holds_traced_model(part):
        import_jax("kalprox.models.Function needs")  # before a thread of another partition starts the import
    with one_blas_thread():
        for block in partition.blocks():
            counts = counts + Counts.of(block)
            bad += block.bad
            notes = notes + block.notes
            if not len(block):
                continue
            value = _with_note(partition.name, part, block)
            total = value if total is None else total + value
            columns = columns + ColumnSums.of(block)
    summary = PartitionSummary(partition.name, counts.read, counts.good, tuple(bad), notes, columns)
    return PartialFold(total, {index: summary})


def _holds_traced_model(part: Any) -> bool:
    """Whether a part has a model that imports JAX when it is first used."""
    if isinstance(part, partial):
        return any(map(_holds_traced_model, (*part.args, *part.keywords.values())))
    return is_traced(part)


def _with_note(name: str, part: Part[Any], block: Block) -> Any:
    """part(block); an error carries the name of the partition as a note."""
    try:
        return part(block)
    except Exception as error:
        error.add_note(f"in {name}")
        raise


class Tree:
    """Takes the folds of partitions in any order, and merges two neighbours as soon as both are there.

    Partition i is merged with partition i ^ 1, their sum with the sum of the next two, and so on. The shape of the
    tree depends on the indices alone, so the total is the same bit for bit whichever partition finishes first. A
    subtree of 2^k partitions that starts at a multiple of 2^k may be merged elsewhere first.

    >>> tree = Tree()
    >>> for index in (2, 0, 1):
    ...     tree.put(index, PartialFold(10 ** index))
    >>> tree.result().total
    111
    """

    def __init__(self) -> None:
        self._unmerged: dict[tuple[int, int], PartialFold] = {}

    def put(self, index: int, folded: PartialFold, level: int = 0) -> None:
        """Add the fold of 2^level partitions: those numbered index * 2^level and up."""
        while (other := self._unmerged.pop((level, index ^ 1), None)) is not None:
            folded = other + folded if index & 1 else folded + other
            level, index = level + 1, index >> 1
        self._unmerged[level, index] = folded

    def result(self) -> PartialFold:
        """The fold of all partitions; a subtree without a neighbour moves up a level unchanged."""
        while len(self._unmerged) > 1:
            level, index = min(self._unmerged)
            self.put(index >> 1, self._unmerged.pop((level, index)), level + 1)
        return next(iter(self._unmerged.values()), PartialFold(None))


class _Limit:
    """The number of tasks in this process that need the limit, and the limits to restore after the last one."""

    lock = threading.Lock()
    tasks = 0
    original: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while any task of this process is in this context: the other cores have their own tasks.

    The limit applies to the whole process, so the first task sets it and the last one restores the original limits.
    Without threadpoolctl the context does nothing.
    """
    try:
        threadpoolctl = import_module("threadpoolctl")
    except ImportError:
        yield
        return
    with _Limit.lock:
        if _Limit.tasks == 0:
            _Limit.original = threadpoolctl.threadpool_limits(1)
        _Limit.tasks += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.tasks -= 1
            if _Limit.tasks == 0:
                _Limit.original.restore_original_limits()
