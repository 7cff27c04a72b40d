"""The reader of Parquet files: row group by row group, in batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kalprox.sources.arrow import load
from kalprox.sources.readers.base import ColumnarReader, Reading, guarded

_parquet = load("pyarrow.parquet")
_BUFFER = 1 << 18  # bytes of each column to read ahead


class ParquetReader(ColumnarReader):
    """A Parquet file. A batch and a page of each column are in memory at a time, however large the row groups are."""

    def __init__(self, path: Path, reading: Reading, threads: int = 1) -> None:
        super().__init__(path, reading, threads)
        self._file: Any = None

    def schema(self) -> Any:
        """The pyarrow schema."""
        with guarded(self.name, "Parquet"):
            return self.file.schema_arrow

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

    def _batches(self, names: list[str], start: int) -> Iterator[tuple[Any, int]]:
        offset = 0
        with guarded(self.name, "Parquet"):
            for group in range(self.file.num_row_groups):
                rows = self.file.metadata.row_group(group).num_rows
                if offset + rows <= start:
                    offset += rows
                    continue
                for batch in self.file.iter_batches(
                    self.reading.batch_rows, row_groups=[group], columns=names, use_threads=False
                ):
                    offset += batch.num_rows
                    if offset > start:
                        yield batch, offset
