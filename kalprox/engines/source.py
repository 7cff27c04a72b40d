"""Partitions on an engine as a source."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kalprox.engines.base import Engine, Part, PartitionSummary
from kalprox.sources.base import Folded, Passes
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Quarantine

__all__ = ["EngineSource"]

T = TypeVar("T")


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
