"""Partitions on an engine as a source."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kalprox.engines.base import Engine, Part, PartitionSummary
from kalprox.sources.base import Folded
from kalprox.sources.files import SourceError, check_rows
from kalprox.sources.quarantine import Quarantine

__all__ = ["EngineSource"]

T = TypeVar("T")


class EngineSource:
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
    done : sequence of Folded
        The results of passes that an earlier run completed. The first passes return them and read no rows.
    keep : callable, optional
        Called as keep(number, folded) after each pass that read the rows, with the result that `done` takes.
    groups : Any
        What names the clusters of the rows, if they have any; None otherwise.

    Attributes
    ----------
    number : int
        The number of passes made or replayed.
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
        self.engine, self.partitions = engine, list(partitions)
        self.quarantine = Quarantine() if quarantine is None else quarantine
        self.number, self.groups = 0, groups
        self.summaries: dict[int, PartitionSummary] = {}
        self._watch, self._keep, self._done = watch, keep, list(done)
        self._rows = self._done[0].counts.read if self._done else None  # of a pass
        self._quarantined = 0  # the first partition whose bad rows have not been handed over

    def fold(self, part: Part[T]) -> Folded[T]:
        """One pass over all partitions, or its replay; see `kalprox.sources.Source`."""
        number, self.number = self.number, self.number + 1
        if number < len(self._done):
            return self._done[number]
        folded = self.engine.fold(self.partitions, part, lambda index, summary: self._seen(number, index, summary))
        self._rows = folded.counts.read if self._rows is None else self._rows
        check_rows(self._rows, folded.counts.read)
        if number == 0:
            for index in sorted(index for index in self.summaries if index >= self._quarantined):
                self._quarantine_bad_rows(index)
        if self._keep is not None and folded.total is not None:
            self._keep(number, folded)
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
