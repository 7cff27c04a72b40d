"""Files that are written: which names mean the same file, atomic replacement, locks, and what differs between systems.

A reader, or a crash, finds the old file or the new one, never a part of it. Devices and pipes are written to as they
are. Files are created for their owner alone, since they hold the user's data; an existing file keeps its permissions.
"""

import contextlib
import os
import re
import stat
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


_SUFFIX = ".part"
_RANDOM = "[a-z0-9_]{8}"  # what tempfile adds to a name; it has no dot, so the name before it is known
_STANDARD = {"stdin": 0, "stdout": 1, "stderr": 2}
_DESCRIPTOR = re.compile(
    r"/dev/(?P<standard>stdin|stdout|stderr)|/(?:dev|proc/(?P<process>[0-9]+))/fd/(?P<number>[0-9]+)"
)
_MAX_LINKS = 40  # symbolic links to follow, as Linux does
_ATTEMPTS = 20  # to create a temporary file, and to replace a file that another program on Windows has just opened
_LOCKED_BYTE = (1 << 31) - 2  # on Windows, where other processes cannot read what is locked: beyond the content


class FileInUseError(OSError):
    """Another process is writing to the file."""


def descriptor(path: str | os.PathLike[str]) -> int | None:
    """The number of the open file that a name such as /dev/stdout or /dev/fd/63 stands for; None for other names."""
    name = os.path.abspath(path)
    for _ in range(_MAX_LINKS):
        folder = os.path.realpath(os.path.dirname(name))  # of /dev/fd on Linux: /proc, the number of the process, fd
        name = os.path.join(folder, os.path.basename(name))
        if found := _DESCRIPTOR.fullmatch(name):
            number, process, standard = found.group("number", "process", "standard")
            return (int(number) if process in (None, str(os.getpid())) else None) if number else _STANDARD[standard]
        if not os.path.islink(name):
            break
        name = os.path.join(folder, os.readlink(name))
    return None


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path is written to as it is: an open file such as /dev/stdout, a device, a pipe, a socket."""
    if descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def check_distinct(
    reads: Iterable[tuple[str, str | os.PathLike[str]]],
    writes: Iterable[tuple[str, str | os.PathLike[str] | None]],
    *,
    repeats: bool = False,
) -> None:
    """Raise a ValueError if a job would write to a file that it also reads or writes under another name.

    Files are compared, not names: symbolic and hard links, relative paths and, on file systems that ignore it, the
    case of letters make no difference. Files that do not exist yet are the same if their folders are, and their names
    up to case. Devices, such as terminals and /dev/null, may be used more than once. Nothing is opened.

    Parameters
    ----------
    reads, writes : iterable of (str, path)
        What a path is for, in the words of the user, such as "--out", and the path. A path to read may be "-", for
        standard input; one to write may be None.
    repeats : bool
        Whether a file may be read twice.
    """
    seen: dict[tuple[Any, ...], tuple[str, str]] = {}
    for use, path in reads:
        name = os.fspath(path)
        if (key := _identity("/dev/stdin" if name == "-" else name)) is None:
            continue
        if key in seen and not repeats:
            first, other = seen[key]
            same = f"{name} is given twice" if name == other else f"{other} ({first}) and {name} ({use}) are one file"
            raise ValueError(f"{same}: its rows would count twice. Give each file once.")
        seen.setdefault(key, (use, name))
    for use, to in writes:
        if to is None or (key := _identity(to)) is None:
            continue
        name = os.fspath(to)
        if key in seen:
            first, other = seen[key]
            same = name if name == other else f"{other} and {name}"
            raise ValueError(
                f"{first} and {use} are the same file, {same}. Nothing was written; choose another file for {use}."
            )
        seen[key] = use, name


def _identity(path: str | os.PathLike[str]) -> tuple[Any, ...] | None:
    """What is equal for all names of one file; None for devices, which have no content to lose."""
    number = descriptor(path)
    try:
        found = os.stat(path) if number is None else os.fstat(number)
    except OSError:
        if number is not None:
            return None
        folder, name = os.path.split(os.path.realpath(path))
        try:
            parent = os.stat(folder)
        except OSError:
            return folder, name
        return parent.st_dev, parent.st_ino, unicodedata.normalize("NFC", name).casefold()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISFIFO(found.st_mode):
        return None
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def atomic_open(path: Path, check: Callable[[str], None] | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file for writing that replaces `path` when the `with` block ends without an error.

    The content is written to a temporary file in the same folder, flushed to disk, and renamed to `path`. If the block
    raises an error, the temporary file is removed and `path` is unchanged. Temporary files that killed processes have
    left behind are removed. A symbolic link is followed: the file that it points to is replaced. A new file can be
    read by its owner alone; an existing file keeps its permissions. A device or pipe (see `is_stream`) is not
    replaced: the content is written to it.

    Parameters
    ----------
    path : Path
        The file to create or replace. Its folder must exist.
    check : callable, optional
        Called with the name of the temporary file before it is renamed; an error that it raises cancels the write.

    Yields
    ------
    BinaryIO
        The temporary file, open for writing.
    """
    if is_stream(path):
        with _checked(check) as spooled, _open_stream(path) as file:
            yield spooled or file
            if spooled is not None:
                file.write(_content(spooled, check))
        return
    target = Path(os.path.realpath(path))
    remove_partial_files(target)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    file, temporary = _create_partial(target)
    try:
        yield file
        file.flush()
        flush_to_disk(file.fileno())
        if sys.platform == "win32":  # which neither reads nor renames a file that is open; elsewhere it stays locked
            file.close()
        if check is not None:
            check(temporary)
        if mode is not None:
            os.chmod(temporary, mode)
        _replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    file.close()
    _flush_folder(target.parent)


def atomic_write(path: Path, content: bytes) -> Path:
    """Write `content` to `path` atomically, creating its folder if needed; return `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_open(path) as file:
        file.write(content)
    return path


def open_locked(path: str | os.PathLike[str], keep: int = 0) -> BinaryIO:
    """Open a file that is written piece by piece, and lock it until it is closed.

    A new file can be read by its owner alone; an existing file keeps its permissions. A device or pipe is neither
    locked nor truncated.

    Parameters
    ----------
    path : str or path-like
    keep : int
        The number of bytes at the beginning of the file that are kept; the rest is removed once the file is locked.

    Returns
    -------
    BinaryIO
        The file, open for writing after these bytes.

    Raises
    ------
    FileInUseError
        If another process has locked the file; it is not changed.
    """
    if is_stream(path):
        return _open_stream(path)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
    try:
        if not _lock(handle):
            raise FileInUseError(
                f"Another process is writing to {path}. Wait for it to finish, or choose another file."
            )
        os.ftruncate(handle, keep)
        os.lseek(handle, keep, os.SEEK_SET)
        return os.fdopen(handle, "wb")
    except BaseException:
        os.close(handle)
        raise


def remove_partial_files(path: Path) -> None:
    """Remove the temporary files of `atomic_open(path)` that killed processes have left behind.

    A living process holds a lock on its temporary file (on Windows an open file cannot be removed). Temporary files of
    other paths are kept, also of those whose names begin with this one's.
    """
    target = Path(os.path.realpath(path))
    mine = re.compile(re.escape(f".{target.name}.") + _RANDOM + re.escape(_SUFFIX))
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for name in [entry.name for entry in entries if mine.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove_if_dead(str(target.parent / name))


def flush_to_disk(handle: int) -> None:
    """Flush an open file to the disk, if it is on one: a pipe cannot be flushed."""
    if sys.platform == "darwin":  # fsync does not empty the drive's own cache there
        with contextlib.suppress(OSError):
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    if stat.S_ISREG(os.fstat(handle).st_mode):
        os.fsync(handle)


# -- streams ----------------------------------------------------------------------------------------------------------


def _open_stream(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a device or pipe for writing; an open file such as /dev/stdout goes on where it is."""
    number = descriptor(path)
    if number is None:
        return open(path, "wb")
    if number == 1 and sys.stdout is not None:
        sys.stdout.flush()
    try:
        return os.fdopen(os.dup(number), "wb")
    except OSError as error:
        raise OSError(error.errno, f"{path} is not open for writing") from error


@contextlib.contextmanager
def _checked(check: Callable[[str], None] | None) -> Iterator[BinaryIO | None]:
    """A file to write to first, if what is written must be checked; else None."""
    if check is None:
        yield None
        return
    import tempfile

    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "content", "w+b") as file:
        yield file


def _content(file: BinaryIO, check: Callable[[str], None] | None) -> bytes:
    """The content of a file, once it has been checked."""
    file.flush()
    if check is not None:
        check(file.name)
    file.seek(0)
    return file.read()


# -- what differs between systems -------------------------------------------------------------------------------------


def _create_partial(target: Path) -> tuple[BinaryIO, str]:
    """Create and lock a temporary file of `target`, for its owner alone."""
    import tempfile  # here, because it would take a tenth of the time of `kalprox --help`

    for _ in range(_ATTEMPTS):
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=_SUFFIX)
        if _lock(handle) and os.path.exists(name):  # else another process took it for a dead one's before the lock
            return os.fdopen(handle, "wb"), name
        os.close(handle)
    raise FileInUseError(f"Other processes keep removing the temporary files of {target}. Choose another file.")


def _remove_if_dead(name: str) -> None:
    """Remove a temporary file, unless a living process has locked it."""
    if sys.platform == "win32":
        os.unlink(name)
        return
    handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if _lock(handle, default=False):
            os.unlink(name)
    finally:
        os.close(handle)


def _lock(handle: int, *, default: bool = True) -> bool:
    """Lock an open file, and return whether no other process has; `default` where the file system has no locks."""
    try:
        if sys.platform == "win32":
            at = os.lseek(handle, 0, os.SEEK_CUR)
            os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, at, os.SEEK_SET)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return default
    return True


def _replace(temporary: str, target: Path) -> None:
    """Rename a file; on Windows again and again for a second while another program has the target open."""
    for attempt in range(_ATTEMPTS):
        try:
            os.replace(temporary, target)
            return
        except PermissionError:
            if sys.platform != "win32" or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(1 / _ATTEMPTS)


def _flush_folder(folder: Path) -> None:
    """Flush the folder's entries, so that the new name survives a power failure too."""
    if sys.platform == "win32":  # which cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # not every network file system can flush a folder
            os.fsync(handle)
    finally:
        os.close(handle)
