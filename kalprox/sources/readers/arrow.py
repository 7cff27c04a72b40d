"""The reader of Arrow files, in the file format (Feather) or the stream format, batch by batch as written."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kalprox.sources._arrow import load, pa
from kalprox.sources.readers.base import RawBlock, Wanted, check_names, check_types, guarded, head_of
from kalprox.sources.readers.notation import PLAIN, Notation

__all__ = ["ArrowReader"]

_ipc = load("pyarrow.ipc")


class ArrowReader:
    """An Arrow file or stream. One batch of the wanted columns is in memory at a time."""

    text_may_be_number = True
    found = ()

    def __init__(self, path: Path, notation: Notation = PLAIN) -> None:
        self.path, self.name, self.notation = path, str(path), notation

    @property
    def empty(self) -> bool:
        """Whether the file has no bytes."""
        return self.path.stat().st_size == 0

    def close(self) -> None:
        """Do nothing: the file is closed after each method."""

    def names(self) -> list[str]:
        """The names of the columns."""
        with self._open() as (opened, _):
            return list(opened.schema.names)

    def rows(self) -> int | None:
        """The number of rows; None for the stream format, which does not tell it."""
        with self._open() as (opened, in_file_format):
            return opened.count_rows() if in_file_format else None

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        """The first rows; see `Reader`."""
        columns = self.names() if names is None else list(names)
        return head_of(self._batches(columns), rows)

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        """The rows from row `start` on; see `Reader`."""
        names, offset = list(wanted.names), 0
        with self._open() as (opened, _):
            check_names(self.name, opened.schema.names, names)
            check_types(self.name, opened.schema, wanted)
        for batch in self._batches(names):
            offset += batch.num_rows
            if offset > start:
                table, bad = self.notation.plain_table(batch, wanted.numbers)
                yield RawBlock(table, batch.num_rows, offset, bad=bad)

    def _batches(self, names: list[str]) -> Iterator[Any]:
        there = self.names()
        with self._open([there.index(name) for name in names]) as (opened, in_file_format):
            for batch in map(opened.get_batch, range(opened.num_record_batches)) if in_file_format else opened:
                for column in batch.columns:
                    _as_bytes(column).validate(full=True)
                yield batch.select(names)

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
