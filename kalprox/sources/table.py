"""Files as a source: the rows of a table in blocks, from any cursor on, or in random order."""

import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kalprox.sources.arrow import aligned, from_bytes, from_numpy, load, pa, plain, to_numpy
from kalprox.sources.base import Block, Folded, fold_blocks
from kalprox.sources.columns import TableColumns
from kalprox.sources.files import (
    STDIN,
    Snapshot,
    SourceError,
    Unreadable,
    find,
    format_of,
    refuse_pipe,
    storing,
    temporary,
)
from kalprox.sources.prefetch import parsers, prefetch
from kalprox.sources.quarantine import NO_NOTES, BadRow, Cell, Reason
from kalprox.sources.readers import RawBlock, Reading

_ipc = load("pyarrow.ipc")
_FILE, _ROW, _SPLIT, _BAD = _EXTRA = ("\0file", "\0row", "\0split", "\0bad")  # columns that rows have in a pile only


class ShuffledRows(NamedTuple):
    """Rows of a pile in random order.

    Attributes
    ----------
    tables : list of pyarrow.Table
        The rows that could be split into cells; those of a table have the same schema.
    places : array of int
        The positions among all rows of the rows of the first table, then of the second one, and so on.
    files, rows : array of int
        The index of the file of each row, and its number in the file, counted from 1.
    bad : list of Cell
        The bad cells that the reader found.
    """

    tables: list[Any]
    places: np.ndarray
    files: np.ndarray
    rows: np.ndarray
    bad: list[Cell]


class Piles:
    """All rows of some files in a random order, which the seed determines. Every order has the same probability.

    Each row is put on a pile by lot, and the rows of a pile are permuted when it is read. One pile at a time is in
    memory, and the others are in a temporary file, which only this user may read, and which vanishes with the process.

    Parameters
    ----------
    piles : int
    seed : int

    Attributes
    ----------
    n_rows : int
        The number of rows that were put.
    """

    def __init__(self, piles: int, seed: int) -> None:
        self._seed, self._rng, self.n_rows = seed, np.random.default_rng([seed]), 0
        self._pieces: list[list[tuple[int, int]]] = [[] for _ in range(piles)]  # where in the file, and their lengths
        self._store: Any = temporary()
        weakref.finalize(self, self._store.close)

    def __len__(self) -> int:
        return len(self._pieces)

    def put(self, raw: RawBlock, file: int, row: int) -> None:
        """Scatter the rows of a raw block of the file with this index; the first of them has the number `row`."""
        n = raw.read
        table = raw.table if isinstance(raw.table, pa.Table) else pa.Table.from_batches([raw.table])
        split = np.ones(n, bool)
        if raw.rows is not None:
            split = np.isin(np.arange(n), raw.rows)
            table = aligned(table, raw.rows, n)
        bad = {cell.at: json.dumps(cell[1:]).encode() for cell in reversed(raw.bad)}
        extra = [from_numpy(values) for values in (np.full(n, file), np.arange(row, row + n), split)]
        for name, values in zip(_EXTRA, [*extra, from_bytes([bad.get(i) for i in range(n)])], strict=True):
            table = table.append_column(name, values)
        pile = self._rng.integers(len(self), size=n)
        table, begin = table.take(from_numpy(np.argsort(pile, kind="stable"))), 0
        with storing("The rows cannot be stored in {folder} to shuffle them"):
            for pieces, size in zip(self._pieces, np.bincount(pile, minlength=len(self)).tolist(), strict=True):
                if size:
                    data = _written(table.slice(begin, size))
                    pieces.append((self._store.tell(), self._store.write(data)))
                begin += size
        self.n_rows += n

    def blocks(self, pile: int, size: int, skip: int = 0) -> Iterator[ShuffledRows]:
        """The rows of a pile, but for the first `skip`, in blocks of `size`."""
        by_schema: list[list[Any]] = []
        for offset, length in self._pieces[pile]:
            self._store.seek(offset)
            piece = _ipc.open_stream(pa.py_buffer(self._store.read(length))).read_all()
            same = next((tables for tables in by_schema if tables[0].schema.equals(piece.schema, True)), None)
            by_schema.append([piece]) if same is None else same.append(piece)
        tables = [pa.concat_tables(pieces).combine_chunks() for pieces in by_schema]
        first = np.cumsum([0, *(table.num_rows for table in tables)])
        order = np.random.default_rng([self._seed, pile]).permutation(first[-1])
        for begin in range(skip, len(order), size):
            yield _taken(tables, first, order[begin : begin + size])


def _taken(tables: list[Any], first: np.ndarray, order: np.ndarray) -> ShuffledRows:
    """Some rows of several tables; the first row of each table has the number in `first`."""
    table_of = np.searchsorted(first, order, side="right") - 1
    n, parts, places, bad = len(order), [], [], []
    files, rows = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in np.unique(table_of):
        at = np.flatnonzero(table_of == i)
        part = tables[i].take(from_numpy(order[at] - first[i]))
        split = to_numpy(plain(part.column(_SPLIT)))
        files[at], rows[at] = (to_numpy(plain(part.column(name))) for name in (_FILE, _ROW))
        for j, found in zip(at.tolist(), plain(part.column(_BAD)).to_pylist(), strict=True):
            if found is not None:
                column, reason, value = json.loads(found)
                bad.append(Cell(j, column, Reason(reason), value))
        parts.append(part.drop_columns(list(_EXTRA)).filter(from_numpy(split)))
        places.append(at[split])
    return ShuffledRows(parts, np.concatenate(places), files, rows, bad)


def _written(table: Any) -> Any:
    """A table as the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with _ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


T = TypeVar("T")
_COPIES = 16  # of a block in memory at a time: as read, decoded, encoded, and the copies that the learner makes
_NONE = np.empty(0, bool)
_SMALLEST_PILE = 1 << 14  # bytes
_PILES_OF_STREAM = 64  # of shuffled rows, if standard input does not say how many there are
_MAX_ROWS, _MAX_BYTES = 1 << 15, 1 << 21  # larger blocks are no faster to read or to learn


@dataclass(frozen=True)
class Cursor:
    """A position in the files of a table, from which reading can be resumed.

    Parameters
    ----------
    file : int
        The index of the file in the order of reading; of a shuffled table, of the pile (see
        `kalprox.sources.table`).
    offset : int
        Where a raw block of the file begins: a number of bytes for text files, of rows for other files.
    skip : int
        The number of rows of that raw block, or of the pile, that have been read.
    row : int
        The number of rows of the file, or of all piles, that have been read.
    sha256 : str, optional
        For standard input, the digest of the bytes before the offset; of a shuffled table, of all bytes.
    """

    file: int = 0
    offset: int = 0
    skip: int = 0
    row: int = 0
    sha256: str | None = None


@dataclass(frozen=True)
class Place:
    """Where the rows of a block of a table were read.

    Parameters
    ----------
    file : str, or array of str of shape (read,)
        The name of the file, or those of the files of all rows, if they are of several.
    rows : array of int, shape (read,)
        The numbers in the file, counted from 1, of all rows read.
    good : array of bool, shape (read,)
        Which of these rows are good: the rows of the block's X and y.
    cursor : Cursor
        Where to resume after the block.
    kept : pyarrow.Table, optional
        The columns that the table keeps, of all rows read; null for rows that could not be split into cells.
    """

    file: Any
    rows: np.ndarray
    good: np.ndarray
    cursor: Cursor
    kept: Any = None

    def names(self) -> list[tuple[str, int]]:
        """The file and the number of each good row."""
        files = np.broadcast_to(self.file, self.rows.shape)[self.good]
        return list(zip(files.tolist(), self.rows[self.good].tolist(), strict=True))


class FileSize(NamedTuple):
    """The size of one file.

    Parameters
    ----------
    bytes : int
        Bytes on disk.
    rows : int, optional
        Rows, where the format tells.
    text_bytes : int
        Bytes of the decompressed text; 0 where the file is not a text file.
    """

    bytes: int
    rows: int | None
    text_bytes: int


def file_size(file: Path, reading: Reading) -> FileSize:
    """The size of a file; 0 for standard input and for a file that cannot be read."""
    if file == STDIN:
        return FileSize(0, None, 0)
    try:
        size = file.stat().st_size
        kind = format_of(file, reading.format)
        text_bytes = 0 if kind == "arrow" else size
        if kind.endswith(".gz"):
            with open(file, "rb") as compressed:
                compressed.seek(max(0, size - 4))
                text_bytes = max(size, int.from_bytes(compressed.read(4), "little"))  # from gzip's trailer, mod 4 GiB
        with closing(reading.open(file)) as opened:
            rows = 0 if size == 0 else opened.rows()
        return FileSize(size, rows, text_bytes)
    except (OSError, Unreadable):
        return FileSize(0, 0, 0)


def share_read(sizes: list[FileSize], cursor: Cursor) -> float:
    """The share of the files' bytes that lies before the cursor.

    An Arrow stream, which does not tell its length, counts once it has been read to its end.
    """
    total = sum(size.bytes for size in sizes)
    if not total:
        return 1.0
    before = float(sum(size.bytes for size in sizes[: cursor.file]))
    if cursor.file < len(sizes):
        size = sizes[cursor.file]
        whole, read = (size.text_bytes, cursor.offset) if size.rows is None else (size.rows, cursor.row)
        before += size.bytes * min(1.0, read / whole) if whole else 0
    return before / total


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
    skip_unreadable : bool
        Whether a file that cannot be read becomes a bad row instead of an error.
    shuffle : int, optional
        A random seed, by which the rows of all files are shuffled: every order has the same probability. They are
        stored in a temporary file for it; see `kalprox.sources.table.Piles`.
    samples : bool
        Whether bad rows, notes and error messages may contain values of cells. A fit of a table without samples keeps
        no rows, cells or ranges of columns in its model file either; see `kalprox.jobs.fit.FitJob`.
    keep : sequence of str, or "all"
        Columns to read as they are, besides those of `columns`: each block has them in its place. "all" is the columns
        of the first file.
    snapshot : Snapshot, optional
        The state that the files must keep, for files that have been looked at before. The default is their state now.
    **reading
        How the files are read; see `kalprox.sources.readers.Reading`.
    """

    def __init__(
        self,
        source: str | Sequence[Path],
        columns: TableColumns,
        *,
        memory: int = 1 << 28,
        skip_unreadable: bool = False,
        shuffle: int | None = None,
        samples: bool = True,
        keep: Sequence[str] | str = (),
        snapshot: Snapshot | None = None,
        **reading: Any,
    ) -> None:
        self.files = find(source) if isinstance(source, str) else list(source)
        self._snapshot = snapshot or Snapshot(self.files)
        self.columns, self.skip_unreadable, self.shuffle, self.memory = columns, skip_unreadable, shuffle, memory
        self.samples, self._n_rows = samples, 0  # of a shuffled table, once they have been read
        d, m = columns.row_size, len(columns.classes)
        width = d + 2 if m <= 2 else m * m * (d + 1)  # of a row, or of its Jacobian if it has several classes
        self.block_rows = int(np.clip(memory // (_COPIES * 8 * width), 64, _MAX_ROWS))
        chunk_bytes = int(np.clip(memory // _COPIES, 1 << 12, _MAX_BYTES))
        self.reading = Reading(**reading, chunk_bytes=chunk_bytes, batch_rows=self.block_rows)
        for file in self.files:
            refuse_pipe(file)
            format_of(file, self.reading.format)
        self.keep = self._all_names() if keep == "all" else tuple(dict.fromkeys(keep))

    def _all_names(self) -> tuple[str, ...]:
        """The names of the columns of the first file that is not empty."""
        for file in self.files:
            with closing(self.reading.open(file)) as opened:
                if opened.empty:
                    continue
                names = opened.names()
                if names is None:  # without a header
                    head = opened.head(None, self.block_rows)
                    names = [] if head is None else head.column_names
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
        if self.shuffle is not None:
            yield from self._shuffled(start, threads)
        else:
            for raw, cursor in self._raw_blocks(start, threads):
                if isinstance(raw, Block):
                    yield raw
                    continue
                for begin in range(cursor.skip, raw.read, self.block_rows):
                    yield self.block(raw, begin, min(begin + self.block_rows, raw.read), cursor)
        self.check_unchanged()

    def _raw_blocks(self, start: Cursor, threads: int) -> Iterator[tuple[RawBlock | Block, Cursor]]:
        """The raw blocks of all files, each with the cursor of its first row, whose `skip` rows have been read before.

        A file that is empty, or that cannot be read and may be skipped, is a block with one bad row.
        """
        for index in range(start.file, len(self.files)):
            try:
                yield from self._raw_blocks_of_file(start if index == start.file else Cursor(index), threads)
            except (Unreadable, OSError) as error:
                self.check_unchanged()  # a file that changes while it is read may look damaged
                if isinstance(error, OSError):
                    error = Unreadable(f"{self.files[index]}: {error.strerror or error}.")
                elif not self.samples:
                    error = error.without_detail()
                if not self.skip_unreadable:
                    raise error from None
                yield self._bad_file(index, Reason.UNREADABLE, str(error)[:80]), Cursor(index)

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
        own = {name: getattr(self, name) for name in ("skip_unreadable", "shuffle", "samples")}
        return self.reading.identity() | own | {"piles": None if self.shuffle is None else self._n_piles}

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments for another Table that reads some of these files in the same way."""
        own = {"memory": self.memory, "samples": self.samples, "skip_unreadable": self.skip_unreadable}
        return own | {name: value for name, value in self.reading.settings().items() if name != "stdin"}

    def known_rows(self) -> int | None:
        """The number of rows, where every file tells it; None where one does not."""
        rows = [-1 if size.rows is None else size.rows for size in self._sizes]
        return None if -1 in rows else sum(rows)

    def found(self) -> list[str]:
        """How files are written, a line for each way that was found and is not the default. Call it before `blocks`."""
        ways: dict[tuple[str, ...], list[Path]] = {}
        for file in self.files:
            with suppress(SourceError, OSError), closing(self.reading.open(file)) as opened:
                ways.setdefault(opened.found, []).append(file)
        return [f"Read with {' and '.join(way)}{self._which(files)}." for way, files in ways.items() if way]

    def _which(self, files: list[Path]) -> str:
        """The first of these files and the number of others; nothing where they are all files of the table."""
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        return "" if len(files) == len(self.files) else f": {files[0]}{more}"

    def done(self, cursor: Cursor) -> float | None:
        """The share of the files, in bytes, before the cursor; of shuffled rows, in rows; None for standard input."""
        if self.shuffle is not None:
            return cursor.row / max(self._n_rows, 1)
        return None if STDIN in self.files else share_read(self._sizes, cursor)

    @cached_property
    def _sizes(self) -> list[FileSize]:
        return [file_size(file, self.reading) for file in self.files]

    def _bad_file(self, index: int, reason: Reason, value: str = "") -> Block:
        """A block without rows and with one bad row, number 0, which stands for the file."""
        file = str(self.files[index])
        rows = self.columns.encode(pa.table({name: from_bytes([]) for name in self.columns.wanted.names}))
        place = Place(file, np.empty(0, np.int64), np.empty(0, bool), Cursor(index + 1))
        return replace(rows, bad=[BadRow(file, 0, "", reason, value)], place=place, notes=NO_NOTES)

    def _raw_blocks_of_file(self, cursor: Cursor, threads: int) -> Iterator[tuple[RawBlock | Block, Cursor]]:
        file = self.files[cursor.file]
        with closing(self.reading.open(file, threads=1 if file == STDIN else threads)) as opened:
            if opened.empty:
                yield self._bad_file(cursor.file, Reason.EMPTY), cursor
                return
            cursor = replace(cursor, row=cursor.row - cursor.skip)
            for raw in opened.blocks(self.columns.wanted.keeping(self.keep), cursor.offset, cursor.sha256):
                yield raw, cursor
                cursor = Cursor(cursor.file, raw.offset, 0, cursor.row + raw.read, raw.sha256)

    def _shuffled(self, start: Cursor, threads: int) -> Iterator[Block]:
        """The blocks of all files in random order, after the cursor `start`: all files are read before the first."""
        assert self.shuffle is not None
        piles, whole_files, sha256 = Piles(self._n_piles, self.shuffle), [], None
        for raw, cursor in self._raw_blocks(Cursor(), threads):
            if isinstance(raw, Block):
                whole_files.append(raw)
            else:
                piles.put(raw, cursor.file, cursor.row + 1)
                sha256 = raw.sha256
        if start.sha256 is not None and start.sha256 != sha256:
            raise SourceError("Standard input: the bytes differ from those of the run to resume.")
        self._n_rows, names, row = piles.n_rows, np.array([str(file) for file in self.files]), start.row
        for pile in range(start.file, len(piles)):
            skip = start.skip if pile == start.file else 0
            for found in piles.blocks(pile, self.block_rows, skip):
                skip, row = skip + len(found.rows), row + len(found.rows)
                files = names[found.files] if len(names) > 1 else str(names[0])
                after = Cursor(pile, 0, skip, row, sha256)
                bad = {cell.at: cell for cell in found.bad}
                yield self._block(found.tables, found.places, bad, Place(files, found.rows, _NONE, after))
        for i, block in enumerate(whole_files, len(piles)):
            if i >= start.file:
                yield replace(block, place=replace(block.place, cursor=Cursor(i + 1, 0, 0, row, sha256)))

    @cached_property
    def _n_piles(self) -> int:
        """The number of piles of rows, so that one of them takes a part of the memory."""
        width = 8 * len(self.columns.wanted.names)
        sizes = [max(size.bytes, size.text_bytes, (size.rows or 0) * width) for size in self._sizes]
        return _PILES_OF_STREAM if STDIN in self.files else 1 + sum(sizes) // max(self.memory // 4, _SMALLEST_PILE)

    def block(self, raw: RawBlock, begin: int, end: int, cursor: Cursor) -> Block:
        """The rows from `begin` up to `end` of a raw block that starts at `cursor`, encoded."""
        places = np.arange(begin, end) if raw.rows is None else raw.rows  # of the rows of raw.table in the raw block
        low, high = np.searchsorted(places, (begin, end))
        places = places[low:high] - begin
        first = begin if raw.rows is None else low
        part = raw.table.slice(first, high - low)
        cells = {cell.at - begin: cell for cell in reversed(raw.bad) if begin <= cell.at < end}
        after = replace(cursor, skip=end, row=cursor.row + end)
        if end == raw.read:
            after = replace(after, offset=raw.offset, skip=0, sha256=raw.sha256)
        rows = np.arange(cursor.row + begin + 1, cursor.row + end + 1)
        return self._block([part], places, cells, Place(str(self.files[cursor.file]), rows, _NONE, after))

    def _block(self, parts: list[Any], places: np.ndarray, cells: dict[int, Cell], place: Place) -> Block:
        """The rows of tables, whose positions among all rows read are `places`, encoded and in the order of these.

        `cells` are the bad cells that the reader found, by position. `place` still lacks which rows are good.
        """
        both = [name for name in self.columns.wanted.numbers if name in self.keep]  # read as text, which is kept
        encoded = [self._encoded(part, both) for part in parts]
        first = np.cumsum([0, *map(len, encoded)]).tolist()
        own = {places[at + cell.at]: cell for at, one in zip(first, encoded, strict=False) for cell in one.bad}
        cells, notes = own | cells, sum((one.notes for one in encoded), NO_NOTES)
        rows = encoded[0] if len(encoded) == 1 else Block.joined(encoded)
        good = np.ones(len(place.rows), bool)
        good[list(cells)] = False
        if notes.n_unlabelled and rows.y is not None:
            good[places[np.isnan(rows.y.reshape(len(places), -1)[:, 0])]] = False
        if len(parts) > 1 or not good.all():
            at = np.argsort(places)
            rows = rows.at(at[good[places[at]]])
        files = np.broadcast_to(place.file, good.shape)
        bad_rows = [
            BadRow(str(files[at]), int(place.rows[at]), cell.column, cell.reason, cell.value if self.samples else "")
            for at, cell in sorted(cells.items())
        ]
        place = replace(place, good=good)
        if self.keep:
            place = replace(place, kept=aligned(parts[0].select(list(self.keep)), places, len(good)))
        if not self.samples:
            notes = notes.without_examples()
        return replace(rows, read=len(good), bad=bad_rows, place=place, notes=notes)

    def _encoded(self, part: Any, both: list[str]) -> Block:
        table, no_numbers = self.reading.notation.plain_table(part, both)
        encoded = self.columns.encode(table)
        return replace(encoded, bad=[*encoded.bad, *reversed(no_numbers)]) if no_numbers else encoded
