"""Files as a source: the rows of a table in blocks, starting at any cursor."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from kalprox.sources.arrow_arrays import from_numpy
from kalprox.sources.base import Block, Folded, fold_blocks
from kalprox.sources.files import (
    MAX_RECORD,
    STDIN,
    Replay,
    Snapshot,
    SourceError,
    Unreadable,
    find,
    format_of,
    refuse_pipe,
)
from kalprox.sources.files import stdin as standard_input
from kalprox.sources.places import Cursor, Place
from kalprox.sources.prefetch import parsers, prefetch
from kalprox.sources.quarantine import BadRow, Reason
from kalprox.sources.readers import RawBlock, reader
from kalprox.sources.readers.notation import Notation
from kalprox.sources.sizes import FileSize, Size, file_size, share_read, total_size
from kalprox.sources.table_columns import TableColumns

__all__ = ["Cursor", "Place", "Size", "Table"]

T = TypeVar("T")
_COPIES = 16  # of a block in memory at a time: as read, decoded, encoded, and the copies that the learner makes
_MAX_ROWS, _MAX_BYTES = 1 << 15, 1 << 21  # larger blocks are no faster to read or to learn


class Table:
    """The rows of one or several files as a source. The blocks have a `Place`.

    The size of the blocks depends on `memory` and on the number of columns alone, so the same files give the same
    blocks in every run.

    Parameters
    ----------
    source : str or sequence of Path
        A file, folder or glob, "-" for standard input, or a list of files.
    columns : Columns or FormulaColumns
        The target, weight, clusters and features, and how the features are encoded.
    memory : int
        The number of bytes to use for all blocks that are held at a time.
    format, encoding, delimiter : str, optional
        The format of all files, such as "csv.gz" (by default from each suffix), the encoding of text files, and the
        delimiter of CSV files; see `kalprox.sources.readers.reader`.
    decimal, thousands : str, optional
        The marks in numbers that are written as text; see `kalprox.sources.readers.notation.Notation`.
    skip_unreadable : bool
        Whether a file that cannot be read becomes a bad row instead of an error.
    stdin : binary stream, optional
        The stream to read for "-". The default is the standard input of this process.
    shuffle : int, optional
        A random seed: the files are read in a random order, and the rows of every block are permuted.
    max_record : int
        The largest number of bytes in the header or a record of a text file; a longer record is a bad row.
    samples : bool
        Whether bad rows, notes and error messages may contain values of cells. A fit of a table without samples keeps
        no rows, cells or ranges of columns in its model file either; see `kalprox.jobs.fit.FitJob`.
    keep : sequence of str, or "all"
        Columns to read as they are, besides those of `columns`: each block has them in its place. "all" is the columns
        of the first file.
    snapshot : Snapshot, optional
        The state that the files must keep, for files that have been looked at before. The default is their state now.
    """

    def __init__(
        self,
        source: str | Sequence[Path],
        columns: TableColumns,
        *,
        memory: int = 1 << 28,
        format: str | None = None,
        encoding: str = "utf-8",
        delimiter: str | None = None,
        skip_unreadable: bool = False,
        stdin: BinaryIO | Replay | None = None,
        shuffle: int | None = None,
        max_record: int = MAX_RECORD,
        samples: bool = True,
        keep: Sequence[str] | str = (),
        snapshot: Snapshot | None = None,
        decimal: str = ".",
        thousands: str | None = None,
    ) -> None:
        self.files = find(source) if isinstance(source, str) else list(source)
        if shuffle is not None:
            self.files = [self.files[i] for i in np.random.default_rng(shuffle).permutation(len(self.files))]
        self._snapshot = snapshot or Snapshot(self.files)
        self.columns, self.skip_unreadable, self.shuffle, self.memory = columns, skip_unreadable, shuffle, memory
        self.samples = samples
        d, m = columns.row_size, len(columns.classes)
        width = d + 2 if m <= 2 else m * m * (d + 1)  # of a row, or of its Jacobian if it has several classes
        self.block_rows = int(np.clip(memory // (_COPIES * 8 * width), 64, _MAX_ROWS))
        self._options: dict[str, Any] = {
            "format": format,
            "encoding": encoding,
            "delimiter": delimiter,
            "stdin": standard_input(stdin) if STDIN in self.files else None,
            "chunk_bytes": int(np.clip(memory // _COPIES, 1 << 12, _MAX_BYTES)),
            "batch_rows": self.block_rows,
            "max_record": max_record,
            "decimal": decimal,
            "thousands": thousands,
        }
        self._notation = Notation(decimal, thousands)
        for file in self.files:
            refuse_pipe(file)
            format_of(file, format)
        self.keep = self._all_names() if keep == "all" else tuple(dict.fromkeys(keep))

    def _all_names(self) -> tuple[str, ...]:
        """The names of the columns of the first file that is not empty."""
        for file in self.files:
            opened = reader(file, **self._options)
            if opened.empty:
                continue
            names = opened.names()
            if names is None:  # without a header
                head = opened.head(None, self.block_rows)
                names = [] if head is None else head.column_names
            opened.close()
            return tuple(name for name in names if name)
        return ()

    def blocks_ahead(self, start: Cursor | None = None) -> Iterator[Block]:
        """The blocks of `blocks`, read and parsed in threads, as many as there are cores, while others are learned."""
        return prefetch(self.blocks(start, threads=parsers()))

    def blocks(self, start: Cursor | None = None, *, threads: int = 1) -> Iterator[Block]:
        """The blocks after the cursor `start`: the same blocks as in a run from the beginning.

        `threads` raw blocks of a text file are parsed at a time; of standard input one, as soon as it has come. Raises
        SourceChanged if a file changed since the table was made, before the first block or after the last one.
        """
        start = start or Cursor()
        self.check_unchanged()
        for index in range(start.file, len(self.files)):
            cursor = start if index == start.file else Cursor(index)
            try:
                yield from self._blocks_of_file(self.files[index], cursor, threads)
            except (Unreadable, OSError) as error:
                self.check_unchanged()  # a file that changes while it is read may look damaged
                if isinstance(error, OSError):
                    error = Unreadable(f"{self.files[index]}: {error.strerror or error}.")
                elif not self.samples:
                    error = error.without_detail()
                if not self.skip_unreadable:
                    raise error from None
                yield self._bad_file(index, Reason.UNREADABLE, str(error)[:80])
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise SourceChanged if a file has changed since the table was made."""
        self._snapshot.check()

    def fold(self, part: Callable[[Block], T]) -> Folded[T]:
        """One pass over all rows; see `kalprox.sources.Source`."""
        return fold_blocks(self.blocks(), part)

    def fingerprint(self) -> dict[str, Any]:
        """The fingerprint of each file, in the order of reading: other files give another one.

        From now on, files that are touched but have the same content have not changed.
        """
        return {"files": self._snapshot.fingerprints(self.files)}

    def identity(self) -> dict[str, Any]:
        """All settings that determine how the files are divided into blocks."""
        defaults = {"decimal": ".", "thousands": None}  # left out, as in checkpoints that are older than these options
        plain = {k: v for k, v in self._options.items() if k != "stdin" and (k not in defaults or v != defaults[k])}
        more = {} if self.samples else {"samples": False}  # what one run kept out, another one must not have kept
        return plain | {"skip_unreadable": self.skip_unreadable, "shuffle": self.shuffle} | more

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments for another Table that reads some of these files in the same way."""
        names = ("format", "encoding", "delimiter", "max_record", "decimal", "thousands")
        return {name: self._options[name] for name in names} | {
            "memory": self.memory,
            "samples": self.samples,
            "skip_unreadable": self.skip_unreadable,
        }

    def size(self) -> Size:
        """The number of bytes and, where every file tells it, of rows; None for standard input."""
        return Size(None, None) if STDIN in self.files else total_size(self._sizes)

    def found(self) -> list[str]:
        """How files are written, a line for each way that was found and is not the default. Call it before `blocks`."""
        ways: dict[tuple[str, ...], list[Path]] = {}
        for file in self.files:
            with suppress(SourceError, OSError), closing(reader(file, **self._options)) as opened:
                ways.setdefault(opened.found, []).append(file)
        return [f"Read with {' and '.join(way)}{self._which(files)}." for way, files in ways.items() if way]

    def _which(self, files: list[Path]) -> str:
        """The first of these files and the number of others; nothing where they are all files of the table."""
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        return "" if len(files) == len(self.files) else f": {files[0]}{more}"

    def done(self, cursor: Cursor) -> float | None:
        """The share of the files, in bytes, that lies before the cursor; None for standard input."""
        return None if STDIN in self.files else share_read(self._sizes, cursor)

    @cached_property
    def _sizes(self) -> list[FileSize]:
        return [file_size(file, self._options) for file in self.files]

    def _bad_file(self, index: int, reason: Reason, value: str = "") -> Block:
        """A block without rows and with one bad row, number 0, which stands for the file."""
        columns, file, none, m = self.columns, str(self.files[index]), np.empty(0), len(self.columns.classes)
        return Block(
            np.empty((0, len(columns.names))),
            None if columns.target is None else np.empty((0, m)) if m > 2 else none,
            None if columns.weight is None else none,
            bad=[BadRow(file, 0, "", reason, value)],
            place=Place(file, np.empty(0, np.int64), np.empty(0, bool), Cursor(index + 1)),
            groups=None if columns.cluster is None else np.empty(0, str),
            offset=None if columns.offset is None and columns.exposure is None else none,
            times=None if columns.time is None else none,
        )

    def _blocks_of_file(self, file: Path, cursor: Cursor, threads: int) -> Iterator[Block]:
        opened = reader(file, **self._options, threads=1 if file == STDIN else threads)
        try:
            if opened.empty:
                yield self._bad_file(cursor.file, Reason.EMPTY)
                return
            cursor, skip = replace(cursor, row=cursor.row - cursor.skip, skip=0), cursor.skip
            for raw in opened.blocks(self.columns.wanted.keeping(self.keep), cursor.offset, cursor.sha256):
                for begin in range(skip, raw.read, self.block_rows):
                    yield self.block(raw, begin, min(begin + self.block_rows, raw.read), cursor)
                cursor = replace(cursor, offset=raw.offset, row=cursor.row + raw.read, sha256=raw.sha256)
                skip = 0
        finally:
            opened.close()

    def block(self, raw: RawBlock, begin: int, end: int, cursor: Cursor) -> Block:
        """The rows from `begin` up to `end` of a raw block that starts at `cursor`, encoded."""
        places = np.arange(begin, end) if raw.rows is None else raw.rows  # of the rows of raw.table in the raw block
        low, high = np.searchsorted(places, (begin, end))
        places = places[low:high] - begin
        first = begin if raw.rows is None else low
        part = raw.table.slice(first, high - low)
        both = [name for name in self.columns.wanted.numbers if name in self.keep]  # read as text, which is kept
        table, no_numbers = self._notation.plain_table(part, both)
        encoded = self.columns.encode(table)
        cells = {places[cell.at]: cell for cell in (*encoded.bad, *reversed(no_numbers))} | {
            cell.at - begin: cell for cell in reversed(raw.bad) if begin <= cell.at < end
        }
        good = np.ones(end - begin, bool)
        good[list(cells)] = False
        if encoded.notes.n_unlabelled and encoded.y is not None:
            good[places[np.isnan(encoded.y.reshape(len(places), -1)[:, 0])]] = False
        rows = np.arange(cursor.row + begin + 1, cursor.row + end + 1)
        keep = None if good.all() else np.flatnonzero(good[places])
        if self.shuffle is not None:
            order = np.random.default_rng([self.shuffle, cursor.file, cursor.offset, begin]).permutation(end - begin)
            rank = np.full(end - begin, -1)
            rank[places] = np.arange(len(places))
            good, rows = good[order], rows[order]
            keep = rank[order[good]]
        if keep is not None:
            encoded = encoded.rows(keep)
        file = str(self.files[cursor.file])
        numbered = [(cursor.row + begin + place + 1, cells[place]) for place in sorted(cells)]
        bad_rows = [
            BadRow(file, int(row), cell.column, cell.reason, cell.value if self.samples else "")
            for row, cell in numbered
        ]
        after = replace(cursor, skip=end, row=cursor.row + end)
        if end == raw.read:
            after = replace(after, offset=raw.offset, skip=0, sha256=raw.sha256)
        X, y, weights, groups, _, notes, offset, times = encoded
        place = Place(file, rows, good, after)
        if self.keep:
            place = replace(place, kept=_aligned(part.select(list(self.keep)), places, end - begin))
        if not self.samples:
            notes = notes.without_examples()
        return Block(X, y, weights, end - begin, bad_rows, place, groups, notes=notes, offset=offset, times=times)


def _aligned(part: Any, places: np.ndarray, n: int) -> Any:
    """The rows of a pyarrow table at their places among n rows; the other rows are null."""
    if len(places) == n:
        return part
    at = np.full(n, -1)
    at[places] = np.arange(len(places))
    return part.take(from_numpy(at, at < 0))
