"""Files as a source: the rows of a table, block by block, from any cursor; bad rows apart."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from kalprox._arrays import Array
from kalprox.sources.columns import Columns
from kalprox.sources.files import STDIN, Replay, Unreadable, find, fingerprint, format_of
from kalprox.sources.files import stdin as standard_input
from kalprox.sources.quarantine import BadRow, Reason
from kalprox.sources.readers import Piece, Reader, reader

__all__ = ["Block", "Cursor", "Size", "Table"]

_COPIES = 16  # of a block: as read, decoded, encoded, and what the reader of the blocks makes of it
_MAX_ROWS, _MAX_BYTES = 1 << 15, 1 << 21  # larger blocks are no faster to read, or to learn


@dataclass(frozen=True)
class Cursor:
    """Where reading stands, in JSON's types.

    file: its place in the order of reading. offset: where a piece of it begins. skip, row: how many rows of that piece,
    and of the file, have been read. sha256: of the bytes before the offset, for standard input.
    """

    file: int = 0
    offset: int = 0
    skip: int = 0
    row: int = 0
    sha256: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Cursor":
        return cls(**data)


@dataclass(frozen=True)
class Block:
    """Some consecutive rows of a file, and the cursor to go on from after them.

    X, y, weights: the good rows. good: which of `rows` these are; rows: numbers in the file, from 1, of all rows read.
    """

    X: np.ndarray
    y: np.ndarray | None
    weights: np.ndarray | None
    good: np.ndarray
    rows: np.ndarray
    file: str
    bad: list[BadRow]
    cursor: Cursor


class Size(NamedTuple):
    """Bytes and rows of all files; None where they cannot be known."""

    bytes: int | None
    rows: int | None


class Table:
    """The rows of a source, in blocks whose size follows from `memory` (bytes for all blocks in flight) and d alone.

    source: what `find` takes, or files. shuffle: a seed; the files in an order drawn from it, and the rows of every
    block permuted. skip_unreadable: a file that cannot be read becomes a bad row and is skipped.
    """

    def __init__(
        self,
        source: str | Sequence[Path],
        columns: Columns,
        *,
        memory: int = 1 << 28,
        format: str | None = None,
        encoding: str = "utf-8",
        delimiter: str | None = None,
        skip_unreadable: bool = False,
        stdin: BinaryIO | Replay | None = None,
        shuffle: int | None = None,
    ) -> None:
        self.files = find(source) if isinstance(source, str) else list(source)
        if shuffle is not None:
            self.files = [self.files[i] for i in np.random.default_rng(shuffle).permutation(len(self.files))]
        self.columns, self.skip_unreadable, self.shuffle, self.memory = columns, skip_unreadable, shuffle, memory
        self.block_rows = int(np.clip(memory // (_COPIES * 8 * (len(columns.names) + 2)), 64, _MAX_ROWS))
        self._options: dict[str, Any] = {
            "format": format,
            "encoding": encoding,
            "delimiter": delimiter,
            "stdin": standard_input(stdin) if STDIN in self.files else None,
            "chunk_bytes": int(np.clip(memory // _COPIES, 1 << 12, _MAX_BYTES)),
            "batch_rows": self.block_rows,
        }
        for file in self.files:
            format_of(file, format)

    def blocks(self, start: Cursor | None = None) -> Iterator[Block]:
        """The blocks after the cursor `start`, the same ones as in a run from the beginning."""
        start = start or Cursor()
        for index in range(start.file, len(self.files)):
            at = start if index == start.file else Cursor(index)
            try:
                yield from self._blocks(self.files[index], at)
            except (Unreadable, OSError) as error:
                if not self.skip_unreadable:
                    if isinstance(error, OSError):
                        raise Unreadable(f"{self.files[index]}: {error.strerror or error}.") from error
                    raise
                yield self._fault(index, Reason.UNREADABLE, str(error)[:80])

    def sum(self, part: Callable[[Array, Array, Array], Any]) -> Any:
        """part(X, y, weights) of every block, added up with `+`: one pass over the good rows."""
        blocks = (block for block in self.blocks() if len(block.X))
        return reduce(add, (part(b.X, b.y, np.ones(len(b.X)) if b.weights is None else b.weights) for b in blocks))

    def fingerprint(self) -> dict[str, Any]:
        """What tells these files from others: name, size and both ends of each, in the order of reading."""
        return {"files": [fingerprint(file) for file in self.files]}

    def identity(self) -> dict[str, Any]:
        """How the files are cut into blocks and rows: with all of this the same, the blocks are the same."""
        plain = {name: value for name, value in self._options.items() if name != "stdin"}
        return plain | {"skip_unreadable": self.skip_unreadable, "shuffle": self.shuffle}

    @property
    def options(self) -> dict[str, Any]:
        """With which another Table reads some of these files in the same way."""
        names = ("format", "encoding", "delimiter")
        return {name: self._options[name] for name in names} | {
            "memory": self.memory,
            "skip_unreadable": self.skip_unreadable,
        }

    def size(self) -> Size:
        """Bytes and, where every file says it, rows."""
        rows = [length.rows for length in self._lengths]
        if STDIN in self.files:
            return Size(None, None)
        total = None if any(count is None for count in rows) else sum(count or 0 for count in rows)
        return Size(sum(length.bytes or 0 for length in self._lengths), total)

    def done(self, cursor: Cursor) -> float | None:
        """The share of the source that lies before the cursor, by bytes; None for standard input.

        An Arrow stream, which does not say how long it is, counts once it has been read.
        """
        total = self.size().bytes
        if total is None:
            return None
        before = float(sum(length.bytes or 0 for length in self._lengths[: cursor.file]))
        if cursor.file < len(self.files):
            length = self._lengths[cursor.file]
            whole, here = (length.unpacked, cursor.offset) if length.rows is None else (length.rows, cursor.row)
            before += length.bytes * min(1.0, here / whole) if whole else 0
        return before / total if total else 1.0

    @cached_property
    def _lengths(self) -> list["_Length"]:
        return [_Length(0, None, 0) if file == STDIN else self._length(file) for file in self.files]

    def _length(self, file: Path) -> "_Length":
        try:
            size = file.stat().st_size
            kind = format_of(file, self._options["format"])
            unpacked = 0 if kind == "arrow" else size
            if kind.endswith(".gz"):
                with open(file, "rb") as packed:
                    packed.seek(max(0, size - 4))
                    unpacked = max(size, int.from_bytes(packed.read(4), "little"))  # what gzip says, modulo 4 GiB
            found = self._reader(file)
            rows = 0 if size == 0 else found.rows()
            found.close()
            return _Length(size, rows, unpacked)
        except (OSError, Unreadable):
            return _Length(0, 0, 0)

    def _reader(self, file: Path) -> Reader:
        return reader(file, **self._options)

    def _fault(self, index: int, reason: Reason, value: str = "") -> Block:
        """No row, but a bad one: the file itself."""
        columns = self.columns
        nothing = np.empty(0)
        return Block(
            np.empty((0, len(columns.names))),
            None if columns.target is None else nothing,
            None if columns.weight is None else nothing,
            np.empty(0, bool),
            np.empty(0, np.int64),
            str(self.files[index]),
            [BadRow(str(self.files[index]), 0, "", reason, value)],
            Cursor(index + 1),
        )

    def _blocks(self, file: Path, at: Cursor) -> Iterator[Block]:
        found = self._reader(file)
        try:
            if found.empty:
                yield self._fault(at.file, Reason.EMPTY)
                return
            at, skip = replace(at, row=at.row - at.skip, skip=0), at.skip
            for piece in found.pieces(self.columns.wanted, at.offset, at.sha256):
                for begin in range(skip, piece.read, self.block_rows):
                    yield self._block(piece, begin, min(begin + self.block_rows, piece.read), at)
                at = replace(at, offset=piece.offset, row=at.row + piece.read, sha256=piece.sha256)
                skip = 0
        finally:
            found.close()

    def _block(self, piece: Piece, begin: int, end: int, at: Cursor) -> Block:
        """The rows from `begin` to `end` of a piece that begins at the cursor `at`."""
        places = np.arange(begin, end) if piece.rows is None else piece.rows
        low, high = np.searchsorted(places, (begin, end))
        places = places[low:high] - begin
        first = begin if piece.rows is None else low
        X, y, w, bad = self.columns.encode(piece.table.slice(first, high - low))
        cells = {places[cell.at]: cell for cell in bad} | {
            cell.at - begin: cell for cell in reversed(piece.bad) if begin <= cell.at < end
        }
        good = np.ones(end - begin, bool)
        good[list(cells)] = False
        rows = np.arange(at.row + begin + 1, at.row + end + 1)
        keep = np.flatnonzero(good[places]) if cells else None
        if self.shuffle is not None:
            order = np.random.default_rng([self.shuffle, at.file, at.offset, begin]).permutation(end - begin)
            rank = np.full(end - begin, -1)
            rank[places] = np.arange(len(places))
            good, rows = good[order], rows[order]
            keep = rank[order[good]]
        if keep is not None:
            X, y, w = X[keep], None if y is None else y[keep], None if w is None else w[keep]
        file = str(self.files[at.file])
        numbered = [(at.row + begin + place + 1, cells[place]) for place in sorted(cells)]
        whole = end == piece.read
        return Block(
            X,
            y,
            w,
            good,
            rows,
            file,
            [BadRow(file, int(row), cell.column, cell.reason, cell.value) for row, cell in numbered],
            replace(
                at,
                offset=piece.offset if whole else at.offset,
                skip=0 if whole else end,
                row=at.row + end,
                sha256=piece.sha256 if whole else at.sha256,
            ),
        )


class _Length(NamedTuple):
    """Of a file: bytes, rows where it says them, and bytes of the text in it (0 where there is none)."""

    bytes: int
    rows: int | None
    unpacked: int
