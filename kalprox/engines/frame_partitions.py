"""Partitions of data frames in memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kalprox.engines.array_partitions import BLOCK_ROWS
from kalprox.sources.base import Block
from kalprox.sources.labels import missing_labels, plain_labels
from kalprox.sources.quarantine import BadRow, Reason

__all__ = ["FramePartition"]


@dataclass(frozen=True)
class FramePartition:
    """A table in memory.

    Parameters
    ----------
    tables : pandas DataFrame, pyarrow Table or RecordBatch, or an iterator of them
    columns : kalprox.sources.columns.Columns
        The target, weight, clusters and features, and how the features are encoded.
    name : str
        The name of the partition in error messages and bad rows.
    labels : str, optional
        The column with the labels of classes, which are left as they are, if `columns` has no target. A row without one
        is bad.
    """

    tables: Any
    columns: Any
    name: str = "table"
    labels: str | None = None

    def blocks(self) -> Iterator[Block]:
        """The rows in blocks of at most `BLOCK_ROWS` rows."""
        from kalprox.sources.arrow import pa

        rows_before = 0
        for table in self.tables if isinstance(self.tables, Iterator) else [self.tables]:
            if not isinstance(table, pa.Table | pa.RecordBatch):
                table = pa.Table.from_pandas(table[list(self.columns.wanted.names)], preserve_index=False)
            for first in range(0, table.num_rows, BLOCK_ROWS):
                yield self._block(table.slice(first, BLOCK_ROWS), rows_before + first)
            rows_before += table.num_rows

    def _block(self, table: Any, first: int) -> Block:
        encoded = self.columns.encode(table)
        bad = {
            cell.at: BadRow(self.name, first + cell.at + 1, cell.column, cell.reason, cell.value)
            for cell in encoded.bad
        }
        labels = None
        if self.labels is not None:
            labels = plain_labels(table.column(self.labels).to_pylist())
            for at in np.flatnonzero(missing_labels(labels)).tolist():
                bad.setdefault(at, BadRow(self.name, first + at + 1, self.labels, Reason.MISSING, ""))
        rows: Block = encoded
        if bad:
            good = np.ones(table.num_rows, bool)
            good[list(bad)] = False
            rows, labels = encoded.at(good), None if labels is None else labels[good]
        y, refused = rows.y if labels is None else labels, [bad[at] for at in sorted(bad)]
        return replace(rows, y=y, read=table.num_rows, bad=refused, notes=encoded.notes)
