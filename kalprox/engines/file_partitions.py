"""Partitions of files, which the workers open by name."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kalprox.sources.base import Block
from kalprox.sources.files import STDIN, SourceError, format_of

__all__ = ["FilePartition", "file_partitions"]


@dataclass(frozen=True)
class FilePartition:
    """One or several files, or some row groups of one Parquet file.

    Parameters
    ----------
    files : tuple of str
        Paths under which the workers can open the files.
    columns : kalprox.sources.columns.Columns
        The target, weight, clusters and features, and how the features are encoded.
    options : dict
        Keyword arguments of `kalprox.sources.table.Table`.
    start, stop : int
        The rows of a Parquet file from `start` up to, not including, `stop`; both are boundaries of row groups. The
        default is the whole file.
    shown : tuple of str
        The names of the files in error messages and bad rows. The default is `files`.
    """

    files: tuple[str, ...]
    columns: Any
    options: dict[str, Any] = field(default_factory=dict)
    start: int = 0
    stop: int | None = None
    shown: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The first file, the number of other files, and the range of rows where it is not the whole file."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        rows = f", rows {self.start + 1} to {self.stop}" if self.stop is not None else ""
        return f"{(self.shown or self.files)[0]}{more}{rows}"

    def blocks(self) -> Iterator[Block]:
        """The blocks of `Table.blocks` for these files."""
        from kalprox.sources.table import Cursor, Table

        table = Table([Path(file) for file in self.files], self.columns, **self.options)
        shown = dict(zip(self.files, self.shown or self.files, strict=True))
        for block in table.blocks(Cursor(offset=self.start, row=self.start)):
            yield replace(block, bad=[replace(row, file=shown[row.file]) for row in block.bad])
            if self.stop is not None and block.place.cursor.row >= self.stop:
                table.check_unchanged()
                return


def file_partitions(files: list[Path], columns: Any, n: int | None, options: dict[str, Any]) -> list[FilePartition]:
    """Files as partitions: one per file by default, else `n` groups of files or of row groups of Parquet files."""
    if STDIN in files:
        raise SourceError(
            "Standard input can only be read by this process: write it to a file that the workers can open."
        )
    if options.get("shuffle") is not None:
        raise SourceError("shuffle cannot be used with an engine: sums over rows do not depend on their order.")
    paths, shown = tuple(str(file.resolve()) for file in files), tuple(map(str, files))
    cuts = [len(files) * i // n for i in range(n + 1)] if n is not None and n < len(files) else range(len(files) + 1)
    partitions = [FilePartition(paths[a:b], columns, options, shown=shown[a:b]) for a, b in pairwise(cuts)]
    if n is None or n <= len(files):
        return partitions
    return [share for partition in partitions for share in _by_row_groups(partition, -(-n // len(files)))]


def _by_row_groups(partition: FilePartition, n: int) -> list[FilePartition]:
    """Up to `n` shares of the row groups of a Parquet file; a file of another format is not divided."""
    from kalprox.sources.arrow import load

    path = Path(partition.files[0])
    if format_of(path, partition.options.get("format")) != "parquet":
        return [partition]
    try:
        metadata = load("pyarrow.parquet").read_metadata(path)
    except (OSError, ValueError):  # the worker that reads the file raises the error
        return [partition]
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    ends = np.cumsum([0, *rows])
    cuts = sorted({int(ends[len(rows) * i // n]) for i in range(n + 1)})
    if len(cuts) <= 2:
        return [partition]
    return [replace(partition, start=a, stop=b) for a, b in pairwise(cuts)]
