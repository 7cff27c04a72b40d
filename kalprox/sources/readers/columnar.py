"""What the readers of files of typed columns share: Parquet and Arrow."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kalprox.sources._arrow import pa
from kalprox.sources.readers.base import RawBlock, Reader, Wanted, check_names, check_types
from kalprox.sources.readers.notation import PLAIN, Notation

__all__ = ["ColumnarReader"]


class ColumnarReader(Reader):
    """A file of typed columns, read batch by batch."""

    def __init__(self, path: Path, notation: Notation = PLAIN) -> None:
        self.path, self.name, self.notation = path, str(path), notation

    @property
    def empty(self) -> bool:
        """Whether the file has no bytes."""
        return self.path.stat().st_size == 0

    @abstractmethod
    def schema(self) -> Any:
        """The pyarrow schema."""

    @abstractmethod
    def _batches(self, names: list[str], start: int) -> Iterator[tuple[Any, int]]:
        """Batches of these columns from row `start` on, where one begins; each with the number of its last row."""

    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema().names)

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        """The first rows; see `Reader`. No further batches are read."""
        taken = []
        for batch, end in self._batches(self.names() if names is None else list(names), 0):
            taken.append(batch)
            if end >= rows:
                break
        return pa.Table.from_batches(taken).slice(0, rows) if taken else None

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        """The rows from row `start` on; see `Reader`."""
        schema = self.schema()
        check_names(self.name, schema.names, wanted.names)
        check_types(self.name, schema, wanted)
        for batch, end in self._batches(list(wanted.names), start):
            table, bad = self.notation.plain_table(batch, wanted.numbers)
            yield RawBlock(table, batch.num_rows, end, bad=bad)
        self.close()
