"""Arrow: the file format (Feather) and the stream format, batch by batch as they were written."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kalprox.sources._arrow import load, pa
from kalprox.sources.readers.base import RawBlock, Wanted, check_names, check_types, first_rows, guarded

__all__ = ["ArrowReader"]

_ipc = load("pyarrow.ipc")


class ArrowReader:
    """An Arrow file or stream; memory is one batch of it, of the columns asked for."""

    typeless = True

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    @property
    def empty(self) -> bool:
        return self.path.stat().st_size == 0

    def close(self) -> None:
        pass

    def names(self) -> list[str]:
        with self._open() as (opened, _):
            return opened.schema.names

    def rows(self) -> int | None:
        """What a file says; a stream does not say it."""
        with self._open() as (opened, whole):
            return opened.count_rows() if whole else None

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        columns = self.names() if names is None else list(names)
        return first_rows(self._batches(columns), rows)

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        names, offset = list(wanted.names), 0
        with self._open() as (opened, _):
            check_names(self.name, opened.schema.names, names)
            check_types(self.name, opened.schema, wanted)
        for batch in self._batches(names):
            offset += batch.num_rows
            if offset > start:
                yield RawBlock(batch, batch.num_rows, offset)

    def _batches(self, names: list[str]) -> Iterator[Any]:
        there = self.names()
        with self._open([there.index(name) for name in names]) as (opened, whole):
            for batch in map(opened.get_batch, range(opened.num_record_batches)) if whole else opened:
                for column in batch.columns:
                    _as_bytes(column).validate(full=True)
                yield batch.select(names)

    @contextmanager
    def _open(self, fields: list[int] | None = None) -> Iterator[tuple[Any, bool]]:
        """The file's reader of some fields, and whether it is of the file format and not of the stream format."""
        options = _ipc.IpcReadOptions(use_threads=False, included_fields=fields)
        with guarded(self.name, "Arrow"), pa.OSFile(str(self.path)) as source:
            whole = source.read(6) == b"ARROW1"
            source.seek(0)
            yield (_ipc.open_file if whole else _ipc.open_stream)(source, options=options), whole


def _as_bytes(column: Any) -> Any:
    """Text without its promise to be UTF-8, which is for each cell's own check."""
    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    return column.view(kinds[column.type]) if column.type in kinds else column
