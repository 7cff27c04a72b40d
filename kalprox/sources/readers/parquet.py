"""The reader of Parquet files: row group by row group, in batches."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kalprox.sources._arrow import load
from kalprox.sources.readers.base import RawBlock, Wanted, check_names, check_types, guarded, head_of
from kalprox.sources.readers.notation import PLAIN, Notation

__all__ = ["ParquetReader"]

_parquet = load("pyarrow.parquet")
_BUFFER = 1 << 18  # bytes of each column to read ahead


class ParquetReader:
    """A Parquet file. A batch and a page of each column are in memory at a time, however large the row groups are."""

    text_may_be_number = True
    found = ()

    def __init__(self, path: Path, batch_rows: int, notation: Notation = PLAIN) -> None:
        self.path, self.name, self.batch_rows, self.notation = path, str(path), batch_rows, notation
        self._file: Any = None

    @property
    def empty(self) -> bool:
        """Whether the file has no bytes."""
        return self.path.stat().st_size == 0

    def names(self) -> list[str]:
        """The names of the columns."""
        with guarded(self.name, "Parquet"):
            return list(self.file.schema_arrow.names)

    def rows(self) -> int:
        """The number of rows."""
        with guarded(self.name, "Parquet"):
            return int(self.file.metadata.num_rows)

    @property
    def file(self) -> Any:
        """The `pyarrow.parquet.ParquetFile`, opened at its first use."""
        if self._file is None:
            self._file = _parquet.ParquetFile(
                self.path, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True
            )
        return self._file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        """The first rows; see `Reader`."""
        columns = self.names() if names is None else list(names)
        return head_of((batch for batch, _ in self._batches(columns, 0)), rows)

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        """The rows from row `start` on; see `Reader`."""
        check_names(self.name, self.names(), wanted.names)
        check_types(self.name, self.file.schema_arrow, wanted)
        for batch, offset in self._batches(list(wanted.names), start):
            table, bad = self.notation.plain_table(batch, wanted.numbers)
            yield RawBlock(table, batch.num_rows, offset, bad=bad)
        self.close()

    def _batches(self, columns: list[str], start: int) -> Iterator[tuple[Any, int]]:
        """The batches from row `start` on, where a batch begins; each with the number of rows up to its end."""
        offset = 0
        with guarded(self.name, "Parquet"):
            for group in range(self.file.num_row_groups):
                rows = self.file.metadata.row_group(group).num_rows
                if offset + rows <= start:
                    offset += rows
                    continue
                for batch in self.file.iter_batches(
                    self.batch_rows, row_groups=[group], columns=columns, use_threads=False
                ):
                    offset += batch.num_rows
                    if offset > start:
                        yield batch, offset
