"""Where the rows of a block stand in the files of a table, where to resume reading, and how much has been read."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kalprox.sources.files import STDIN, Unreadable, format_of
from kalprox.sources.readers import Reading

__all__ = ["Cursor", "FileSize", "Place", "Size", "file_size", "share_read", "total_size"]


@dataclass(frozen=True)
class Cursor:
    """A position in the files of a table, from which reading can be resumed.

    Parameters
    ----------
    file : int
        The index of the file in the order of reading; of a shuffled table, of the pile (see
        `kalprox.sources.shuffling`).
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


class Size(NamedTuple):
    """The number of bytes and rows of all files; None where it is not known."""

    bytes: int | None
    rows: int | None


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


def total_size(sizes: list[FileSize]) -> Size:
    """The size of all files together."""
    rows = [size.rows for size in sizes]
    total = None if any(count is None for count in rows) else sum(count or 0 for count in rows)
    return Size(sum(size.bytes for size in sizes), total)


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
