"""The interface of engines: partitions are folded where their rows are, and only the totals travel."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from kalprox.base.control import import_jax
from kalprox.engines.pickling import is_traced, unpacked
from kalprox.engines.threads import one_blas_thread
from kalprox.sources.base import Block, Counts, Folded
from kalprox.sources.notes import NO_NOTES, Notes
from kalprox.sources.quarantine import BadRow

__all__ = ["Engine", "EngineFailed", "Part", "PartialFold", "Partition", "PartitionSummary", "Seen", "fold_partition"]

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
    low, high, total : tuple of float
        Minimum, maximum and sum of each column of X over the good rows. Empty where there is no good row, or where X
        is not a matrix.
    notes : Notes
        What must be said about the cells of the partition.
    targets : tuple of float
        Sum of each column of y over the good rows.
    """

    name: str
    read: int = 0
    good: int = 0
    bad: tuple[BadRow, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    total: tuple[float, ...] = ()
    notes: Notes = NO_NOTES
    targets: tuple[float, ...] = ()

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


class EngineFailed(RuntimeError):
    """The machines failed, not the computation: the scheduler was lost, or workers died repeatedly."""


class Engine(ABC):
    """Where partitions are folded. Parts are sent to the partitions and totals are sent back; rows do not travel."""

    def fold(self, partitions: Sequence[Any], part: Part[T], seen: Seen | None = None) -> Folded[T]:
        """Apply `part` to every block of every partition that has good rows, and add the results with `+`.

        Within a partition the results are added in order. The totals of the partitions are added as a binary tree over
        their indices (see `kalprox.engines.tree`), so the sum does not depend on which partition finishes first.

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


def fold_partition(partition: Partition, index: int, part: Part[Any]) -> PartialFold:
    """Fold one partition on the machine where this runs."""
    total, counts = None, Counts()
    bad: list[BadRow] = []
    notes = NO_NOTES
    low = high = sums = targets = None
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
            if block.X.ndim == 2:
                (smallest, largest), sum_ = block.ranges(), np.ones(len(block)) @ block.X
                low = smallest if low is None else np.minimum(low, smallest)
                high = largest if high is None else np.maximum(high, largest)
                sums = sum_ if sums is None else sums + sum_
                targets = block.target_sums() if targets is None else targets + block.target_sums()
    low, high, sums, targets = (() if a is None else tuple(a.tolist()) for a in (low, high, sums, targets))
    summary = PartitionSummary(partition.name, counts.read, counts.good, tuple(bad), low, high, sums, notes, targets)
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
