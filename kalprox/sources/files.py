"""Finding files, their formats and fingerprints; standard input."""

import functools
import glob
import hashlib
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

__all__ = [
    "FORMATS",
    "MAX_RECORD",
    "STDIN",
    "Replay",
    "SourceError",
    "Unreadable",
    "find",
    "fingerprint",
    "format_of",
    "refuse_pipe",
    "stdin",
]

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
MAX_RECORD = 1 << 24  # bytes of a record of a text file, by default
_END = 1 << 16  # bytes at each end of a file that its fingerprint covers


class SourceError(ValueError):
    """A source that cannot be read with these settings; the message names the file and what to change."""


class Unreadable(SourceError):
    """A file that does not have the expected format: truncated, damaged, or of another format."""


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
    raise SourceError(
        f"{path}: the suffix {path.suffix or '(none)'!r} is not one of {', '.join(FORMATS)}. Give the format."
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


def fingerprint(path: Path) -> dict[str, str | int] | None:
    """Name, size, modification time, and SHA-256 of the first and last 64 KiB of a file; None for standard input."""
    if path == STDIN:
        return None
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            changed = os.fstat(file.fileno()).st_mtime_ns
            digest.update(file.read(_END))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _END))
            digest.update(file.read(_END))
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}.") from error
    return {"name": path.name, "size": size, "changed": changed, "sha256": digest.hexdigest()}


class Replay:
    """A stream of bytes that can be rewound: its first rows are read to infer the columns, and read again to learn.

    Parameters
    ----------
    stream : binary stream
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._kept, self._at, self._keep = stream, bytearray(), 0, True

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

    def rewind(self, *, keep: bool) -> None:
        """Start again at the first byte. Unless `keep`, this is the last time, and bytes are no longer kept."""
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
    return Replay(sys.stdin.buffer)


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
