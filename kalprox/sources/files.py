"""Finding files, their formats and fingerprints; standard input."""

import functools
import glob
import hashlib
import os
import stat
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from kalprox.base.text import worded

STDIN = Path("-")
FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv.gz": "csv.gz",
    ".tsv.gz": "tsv.gz",
    ".jsonl.gz": "jsonl.gz",
    ".ndjson.gz": "jsonl.gz",
}
READERS = {
    "parquet": "parquet.ParquetReader",
    "arrow": "arrow.ArrowReader",
    "csv": "csv.CsvReader",
    "tsv": "csv.CsvReader",
    "jsonl": "jsonl.JsonReader",
}  # what reads each format, in kalprox.sources.readers
MAX_RECORD = 1 << 24  # bytes of a record of a text file, by default
_PIECES, _PIECE = 1 << 10, 1 << 20  # of a file that its fingerprint covers: their number, and bytes of each
_THREADS = 8  # that take fingerprints
_IN_MEMORY = 1 << 24  # bytes of a stored stream
_NO_STORE = "List the levels (--categorical NAME=A|B), hash the columns (--hash NAME), write the rows to a file"


class SourceError(ValueError):
    """A source that cannot be read with these settings; the message names the file and what to change."""

    @classmethod
    def worded(cls, message: str, *values: Any) -> Self:
        """The error with a message of `kalprox.base.text.worded`."""
        return cls(worded(message, *values))


class Unreadable(SourceError):
    """A file that does not have the expected format: truncated, damaged, or of another format.

    Parameters
    ----------
    message : str
    detail : str
        What the library that reads the format says, which may repeat values of the file.
    """

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(f"{message.removesuffix('.')} ({detail})." if detail else message)
        self.message, self.detail = message, detail

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.message, self.detail)

    def without_detail(self) -> "Unreadable":
        """The same error without what may repeat values of the file."""
        return Unreadable(self.message)


class SourceChanged(SourceError):
    """A file changed while a job was reading it, or between two of its passes."""


def check_rows(first: int, now: int) -> None:
    """Raise SourceChanged if a pass read another number of rows than the first one."""
    if now != first:
        raise SourceChanged(
            f"The sources changed between two passes: the first read {first:,} rows, and a later one {now:,}. Run the "
            "job again when no other program writes to them."
        )


def find(source: str) -> list[Path]:
    """Find the files of a source.

    Parameters
    ----------
    source : str
        A file, a folder, a glob, or "-" for standard input. In a folder and its subfolders, all files with a known
        suffix are found, except those whose names begin with "." or "_".

    Returns
    -------
    list of Path
        Sorted by name.
    """
    path = Path(source)
    if path == STDIN:
        return [STDIN]
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [path]
    if not glob.has_magic(source):
        raise SourceError(f"There is no file {source}.")
    found = [Path(name) for name in sorted(glob.glob(source, recursive=True))]
    files = [file for file in found if file.is_file() and not _hidden(Path(file.name))]
    if not files:
        raise SourceError(f"No file matches {source}.")
    return files


def format_of(path: Path, given: str | None = None) -> str:
    """The format `given`, else the one that the suffix of `path` says; CSV for standard input."""
    known = sorted(set(FORMATS.values()))
    if given is not None:
        if given not in known:
            raise SourceError(f"format must be one of {', '.join(known)}; got {given!r}.")
        return given
    if path == STDIN:
        return "csv"
    name = path.name.lower()
    for suffix in sorted(FORMATS, key=len, reverse=True):
        if name.endswith(suffix):
            return FORMATS[suffix]
    raise SourceError.worded(
        "{}: the suffix {} is not one of {}. Give the format, as in {format='csv'}.",
        path,
        repr(path.suffix or "(none)"),
        ", ".join(FORMATS),
    )


def refuse_pipe(path: Path) -> None:
    """Raise SourceError for a pipe: files are opened more than once, and the second time would wait for ever."""
    try:
        mode = path.stat().st_mode
    except OSError:  # what opens the file raises the error
        return
    if path != STDIN and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        raise SourceError(
            f"{path} is a pipe, and a file is opened more than once. Read the pipe as standard input, with the source "
            f"-, as in `kalprox fit - ... < {path}`, or write it to a file first."
        )


class Snapshot:
    """The state of some files at one moment, to notice when they change.

    A file has changed if its size, its modification time or the time of its last change of status is another one.
    Where its fingerprint was taken, content decides instead of the clock: a file that was touched, but has the same
    content, has not changed. Standard input, and a file that was missing from the beginning, do not change.

    Parameters
    ----------
    files : iterable of Path
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._status = {file: _status(file) for file in files}
        self._fingerprints: dict[Path, dict[str, str | int] | None] = {}

    def fingerprints(self, files: Sequence[Path]) -> list[dict[str, str | int] | None]:
        """The fingerprint of each of these files; see `fingerprint`."""
        missing = [file for file in dict.fromkeys(files) if file not in self._fingerprints]
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            self._fingerprints |= zip(missing, pool.map(fingerprint, missing), strict=True)
        return [self._fingerprints[file] for file in files]

    def check(self) -> None:
        """Raise SourceChanged if a file has changed since the snapshot; the message says how."""
        for file, then in self._status.items():
            now = _status(file)
            if now == then or (now is not None and self._has_same_content(file)):
                self._status[file] = now
                continue
            raise SourceChanged(
                f"{file} changed while the job was reading it: {_difference(then, now)}. Rows of both would be mixed. "
                "Run the job again when no other program writes to the file."
            )

    def _has_same_content(self, file: Path) -> bool:
        taken = self._fingerprints.get(file)
        return taken is not None and fingerprint(file) == taken


class _Status(NamedTuple):
    """What the file system says about a file."""

    size: int
    modified: int  # nanoseconds
    changed: int  # of content, permissions, name or links


def _status(file: Path) -> _Status | None:
    """The status of a file; None for standard input and for a file that does not exist."""
    if file == STDIN:
        return None
    try:
        found = os.stat(file)
    except OSError:
        return None
    # The number of the inode is not stable on every network file system; the other fields differ where it matters.
    return _Status(found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _difference(then: _Status | None, now: _Status | None) -> str:
    """How a file changed, in words."""
    if now is None:
        return "it was deleted or moved"
    if then is None:
        return "it did not exist before"
    if now.size != then.size:
        return f"it had {then.size:,} bytes and has {now.size:,}"
    at = datetime.fromtimestamp(max(now.modified, now.changed) / 1e9).strftime("%Y-%m-%d %H:%M:%S")
    return f"it was written to, or replaced, at {at}; its size is still {now.size:,} bytes"


def fingerprint(path: Path) -> dict[str, str | int] | None:
    """What tells a file from another one that is read under the same name.

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict or None
        The name, the size and the SHA-256 of the content. Of a file above 1 GiB, the SHA-256 covers 1,024 pieces of
        1 MiB at equal distances, the first and the last included, and the modification time is compared too. None for
        standard input.
    """
    if path == STDIN:
        return None
    digest = hashlib.sha256()
    try:
        if not path.is_file():
            os.stat(path)
            raise Unreadable(f"{path} is not a file: it cannot be read again. Use - for standard input.")
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            whole = found.st_size <= _PIECES * _PIECE
            for piece in range(_PIECES):
                if not whole:
                    file.seek((found.st_size - _PIECE) * piece // (_PIECES - 1))
                digest.update(data := file.read(_PIECE))
                if len(data) < _PIECE:
                    break
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}.") from error
    compared: dict[str, str | int] = {"name": path.name, "size": found.st_size, "sha256": digest.hexdigest()}
    return compared if whole else compared | {"changed": found.st_mtime_ns}


def temporary() -> Any:
    """A temporary file that only this user may read, and that has no name where the system allows that.

    Up to 16 MiB of it stay in memory.
    """
    return tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=_temporary_folder())


@contextmanager
def storing(what: str, remedy: str = "Choose") -> Iterator[None]:
    """Turn an OSError of writing to a file of `temporary` into a SourceError; `what` may name the {folder}."""
    try:
        yield
    except OSError as error:
        folder = _temporary_folder() or tempfile.gettempdir()
        raise SourceError(
            f"{what.format(folder=folder)}: {error.strerror}. {remedy} another folder with the environment variable "
            "TMPDIR."
        ) from error


def _temporary_folder() -> str | None:
    return os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)


class Replay:
    """A stream of bytes that can be rewound: its first rows are read to infer the columns, and read again to learn.

    Parameters
    ----------
    stream : binary stream
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._kept, self._at, self._keep = stream, bytearray(), 0, True
        self._stored: BinaryIO | None = None

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end of the stream."""
        held = bytes(self._kept[self._at : self._at + size])
        parts, missing = [held], size - len(held)
        while missing and (part := self._stream.read(missing)):
            parts.append(part)
            missing -= len(part)
        if self._keep:
            self._kept += b"".join(parts[1:])
        elif missing < size - len(held):
            self._kept = bytearray()
        self._at += size - missing
        return b"".join(parts)

    def store(self, limit: int, why: str) -> None:
        """Read the stream to its end into a temporary file, so that it can be rewound as often as needed.

        See `temporary` for the file; it vanishes with the process.

        Parameters
        ----------
        limit : int
            The largest number of bytes to store; a longer stream raises SourceError.
        why : str
            For the error messages, such as "to find the levels of 'carrier'".
        """
        if self._stored is not None:
            return
        stored = temporary()
        weakref.finalize(self, stored.close)
        with storing(f"Standard input cannot be stored in {{folder}} {why}", f"{_NO_STORE}, or choose"):
            stored.write(self._kept)
            while stored.tell() <= limit and (part := self._stream.read(_PIECE)):
                stored.write(part)
        if stored.tell() > limit:
            raise SourceError.worded(
                f"Standard input has more than the {limit:,} bytes that may be stored {why}. {_NO_STORE}, or allow "
                "more with {spool}."
            )
        self._stream = self._stored = stored
        self._kept, self._keep = bytearray(), False

    def rewind(self, *, keep: bool) -> None:
        """Start again at the first byte. Unless `keep`, this is the last time, and bytes are no longer kept.

        A stream that is stored can be rewound at any time.
        """
        if self._stored is not None:
            self._stored.seek(0)
            return
        if not self._keep:
            raise SourceError("Standard input can be read only once. To read it again, write it to a file.")
        self._at, self._keep = 0, keep


def stdin(stream: BinaryIO | Replay | None = None) -> Replay:
    """The stream as a `Replay`. The default is the standard input of this process, the same object in every call."""
    if stream is None:
        return _own_stdin()
    return stream if isinstance(stream, Replay) else Replay(stream)


@functools.cache
def _own_stdin() -> Replay:
    return Replay(open_stdin())


def open_stdin() -> BinaryIO:
    """The standard input of this process; raise SourceError where it is closed."""
    if sys.stdin is None:
        raise SourceError("Standard input is closed. Give the name of a file, or send the rows to standard input.")
    return sys.stdin.buffer


def _hidden(relative: Path) -> bool:
    return any(part.startswith((".", "_")) for part in relative.parts)


def _in_folder(folder: Path) -> list[Path]:
    inside = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [
        path for path in inside if not _hidden(path.relative_to(folder)) and path.name.lower().endswith(tuple(FORMATS))
    ]
    if not files:
        there = [str(path.relative_to(folder)) for path in inside]
        shown = ", ".join(there[:5]) + (f" and {len(there) - 5} more" if len(there) > 5 else "")
        raise SourceError(
            f"{folder}: no file with a known suffix ({', '.join(FORMATS)}); the folder has {shown or 'no files'}."
        )
    return files
