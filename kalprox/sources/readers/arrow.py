"""The reader of Arrow files, in the file format (Feather) or the stream format, batch by batch as written."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kalprox.sources.arrow import load, pa
from kalprox.sources.readers.base import ColumnarReader, guarded

_ipc = load("pyarrow.ipc")


class ArrowReader(ColumnarReader):
    """An Arrow file or stream. One batch of the wanted columns is in memory at a time; each method closes the file."""

    def schema(self) -> Any:
        """The pyarrow schema."""
        with self._open() as (opened, _):
            return opened.schema

    def rows(self) -> int | None:
        """The number of rows; None for the stream format, which does not tell it."""
        with self._open() as (opened, in_file_format):
            return opened.count_rows() if in_file_format else None

    def _batches(self, names: list[str], start: int) -> Iterator[tuple[Any, int]]:
        there, offset = self.names(), 0
        with self._open([there.index(name) for name in names]) as (opened, in_file_format):
            for batch in map(opened.get_batch, range(opened.num_record_batches)) if in_file_format else opened:
                for column in batch.columns:
                    _as_bytes(column).validate(full=True)
                offset += batch.num_rows
                if offset > start:
                    yield batch.select(names), offset

    @contextmanager
    def _open(self, fields: list[int] | None = None) -> Iterator[tuple[Any, bool]]:
        """pyarrow's reader of some fields, and whether the file is in the file format (else in the stream format)."""
        options = _ipc.IpcReadOptions(use_threads=False, included_fields=fields)
        with guarded(self.name, "Arrow"), pa.OSFile(str(self.path)) as source:
            in_file_format = source.read(6) == b"ARROW1"
            source.seek(0)
            yield (_ipc.open_file if in_file_format else _ipc.open_stream)(source, options=options), in_file_format


def _as_bytes(column: Any) -> Any:
    """Text as bytes: whether a cell is valid UTF-8 is checked cell by cell, when it is parsed."""
    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    return column.view(kinds[column.type]) if column.type in kinds else column
