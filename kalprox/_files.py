"""Atomic writing of files: a reader, or a crash, finds the old file or the new one, never a part of it."""

import contextlib
import glob
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["atomic_open", "atomic_write", "remove_partial_files"]

_SUFFIX = ".part"


@contextlib.contextmanager
def atomic_open(path: Path, check: Callable[[str], None] = lambda name: None) -> Iterator[BinaryIO]:
    """Open a temporary file for writing that replaces `path` when the `with` block ends without an error.

    The content is written to a temporary file in the same folder, flushed to disk, and renamed to `path`. If the block
    raises an error, the temporary file is removed and `path` is unchanged.

    Parameters
    ----------
    path : Path
        The file to create or replace. Its folder must exist.
    check : callable
        Called with the name of the temporary file before it is renamed; an error that it raises cancels the write.

    Yields
    ------
    BinaryIO
        The temporary file, open for writing.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_SUFFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check(temporary)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp allows access to the owner only
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _flush_folder(path.parent)


def atomic_write(path: Path, content: bytes) -> Path:
    """Write `content` to `path` atomically, creating its folder if needed; return `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_open(path) as file:
        file.write(content)
    return path


def remove_partial_files(path: Path) -> None:
    """Remove the temporary files of `atomic_open(path)` that killed processes have left behind.

    Call it only when no other process can be writing to `path`. Temporary files of other paths are kept, also of those
    whose names begin with this one's: the random part of a temporary name contains no dot.
    """
    prefix = f".{path.name}."
    for found in path.parent.glob(f"{glob.escape(prefix)}*{_SUFFIX}"):
        if "." not in found.name[len(prefix) : -len(_SUFFIX)]:
            found.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Flush the folder's entries, so that the new name survives a power failure too."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
