"""The sizes of files, and how much of them has been read."""

from pathlib import Path
from typing import NamedTuple

from kalprox.sources.files import STDIN, Unreadable, format_of
from kalprox.sources.places import Cursor
from kalprox.sources.readers import Reading

__all__ = ["FileSize", "Size", "file_size", "share_read", "total_size"]


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
        opened = reading.open(file)
        rows = 0 if size == 0 else opened.rows()
        opened.close()
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
