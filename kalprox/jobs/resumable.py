"""Resumable passes over a table: the totals of finished passes, and of the current one, are checkpointed.

Refinement depends on the totals of its passes alone. If it is run again and the totals of the finished passes are
replayed, it reaches the same point, bit for bit.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from kalprox.jobs.restoring import from_json
from kalprox.jobs.totals import can_be_saved, load_totals, save_totals
from kalprox.sources import Block, Counts, Folded
from kalprox.sources.files import check_rows
from kalprox.sources.table import Cursor, Table

__all__ = ["ResumableSource"]

T = TypeVar("T")


class ResumableSource:
    """A table as a source whose passes can be resumed.

    Parameters
    ----------
    table : Table
    every : int
        Rows between two checkpoints of a pass.
    seen : callable
        Called as seen(block, number) with every block that is read in pass `number`, from 0.
    keep : callable, optional
        Called without arguments after every `every` rows and after each pass; it may save what `state` returns. Without
        it the totals of finished passes, d x d numbers each, are not held in memory.
    """

    def __init__(
        self, table: Table, every: int, seen: Callable[[Block, int], None], keep: Callable[[], None] | None
    ) -> None:
        self.table, self.every, self._seen, self._keep = table, every, seen, keep
        self.number = 0  # the number of the current or next pass
        self._rows: int | None = None  # read in the first pass
        self._done: list[Folded[Any]] = []
        self._cursor: Cursor | None = None
        self._current: Folded[Any] = Folded(None, Counts())

    def fold(self, part: Callable[[Block], T]) -> Folded[T]:
        """Make one pass, or replay a finished one; see `kalprox.sources.Source`."""
        number, self.number = self.number, self.number + 1
        if number < len(self._done):
            return self._done[number]
        total: Any = self._current.total
        counts, since = self._current.counts, 0
        for block in self.table.blocks_ahead(self._cursor):
            self._seen(block, number)
            counts = counts + Counts.of(block)
            if len(block):
                value = part(block)
                total = value if total is None else total + value
            since += block.read
            if self._keep is not None and since >= self.every and can_be_saved(total):
                self._cursor, self._current, since = block.place.cursor, Folded(total, counts), 0
                self._keep()
        self._rows = counts.read if self._rows is None else self._rows
        check_rows(self._rows, counts.read)
        folded = Folded(total, counts)
        if self._keep is not None and can_be_saved(total):
            self._done.append(folded)
            self._cursor, self._current = None, Folded(None, Counts())
            self._keep()
        return folded

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the header and the arrays that `resume` needs."""
        passes = self._done if self._cursor is None else [*self._done, self._current]
        header, arrays = save_totals(passes)
        return header | {"cursor": None if self._cursor is None else asdict(self._cursor)}, arrays

    def resume(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Resume from what `state` returned."""
        passes = load_totals(header, arrays)
        if header["cursor"] is not None:
            self._cursor, self._current = from_json(Cursor, header["cursor"]), passes.pop()
        self._done = passes
        self._rows = passes[0].counts.read if passes else None
