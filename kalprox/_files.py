"""Files that are whole or not there."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["replace", "whole"]


@contextlib.contextmanager
def whole(path: Path, check: Callable[[str], None] = lambda name: None) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` when the block ends well: a reader, or a crash, sees the old file or the
    new one and nothing between. `check` looks at it before, by its temporary name in the same folder."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too, survives a power cut
    finally:
        os.close(folder)


def replace(path: Path, content: bytes) -> Path:
    """Write `content` to `path`, whole or not at all; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as file:
        file.write(content)
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
