"""The rows of files in random order: scattered over piles in a temporary file, which are then read one by one."""

import json
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from kalprox.sources.arrow import aligned, from_bytes, from_numpy, load, pa, plain, to_numpy
from kalprox.sources.files import storing, temporary
from kalprox.sources.quarantine import Cell, Reason
from kalprox.sources.readers import RawBlock

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
