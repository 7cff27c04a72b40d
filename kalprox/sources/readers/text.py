"""Text files as one stream of UTF-8 bytes, cut into chunks of whole records."""

import codecs
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kalprox.sources.files import STDIN, Replay, SourceError, Unreadable
from kalprox.sources.files import stdin as standard_input
from kalprox.sources.quarantine import Reason

__all__ = ["MAX_RECORD", "Chunk", "Text", "chunks", "last_line"]

MAX_RECORD = 1 << 24  # bytes; a record that has not ended by then is bad
_STEP = 1 << 20


class Text:
    """The bytes of a text file: unpacked, in UTF-8, without a byte order mark; on standard input with their SHA-256."""

    def __init__(self, path: Path, *, packed: bool, encoding: str, stdin: Replay | None) -> None:
        self.path, self.packed, self.name = path, packed, str(path)
        try:
            self.encoding = codecs.lookup(encoding).name
        except (LookupError, ValueError):
            raise SourceError(f"There is no encoding {encoding!r}.") from None
        self.stdin = standard_input(stdin) if path == STDIN else None
        self._raw: Any = None
        self._stream: Any = None
        self.digest: Any = None

    def open(self, *, again: bool = False) -> None:
        """Begin at the first byte; `again`: it will be read once more, which a pipe must know."""
        self.close()
        self._raw = stream = self._source(again=again)
        if self.packed:
            stream = gzip.GzipFile(fileobj=stream)
        if self.encoding not in ("utf-8", "utf-8-sig", "ascii"):
            stream = _Recoded(stream, self.encoding)
        self._stream = stream
        self.digest = hashlib.sha256() if self.stdin else None

    def _source(self, *, again: bool) -> Any:
        if self.stdin:
            self.stdin.rewind(keep=again)
            return self.stdin
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise Unreadable(f"{self.name}: {error.strerror}.") from error

    def read(self, size: int) -> bytes:
        """The next bytes, `size` of them unless the file ends."""
        try:
            return self._stream.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise Unreadable(f"{self.name}: cannot be read to its end ({error}).") from error

    def seek(self, offset: int, sha256: str | None = None) -> None:
        """From the beginning to `offset`: at once in a plain file, by reading elsewhere, checking the bytes."""
        if isinstance(self._stream, io.BufferedReader):
            self._stream.seek(offset)
            return
        while offset and (data := self.read(min(offset, _STEP))):
            self.consume(data)
            offset -= len(data)
        if offset or (sha256 is not None and self.digest is not None and self.digest.hexdigest() != sha256):
            raise SourceError(f"{self.name}: these are not the bytes that were read before.")

    def consume(self, data: bytes) -> str | None:
        """The SHA-256 of all bytes up to and with `data`; None but for standard input."""
        if self.digest is None:
            return None
        self.digest.update(data)
        return self.digest.copy().hexdigest()

    def close(self) -> None:
        if self._raw is not None and self.stdin is None:
            self._raw.close()
        self._stream = self._raw = None


class _Recoded:
    """A stream of bytes in another encoding as UTF-8; what cannot be decoded becomes U+FFFD."""

    def __init__(self, stream: Any, encoding: str) -> None:
        self._stream, self._held = stream, b""
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def read(self, size: int) -> bytes:
        while len(self._held) < size:
            data = self._stream.read(_STEP)
            self._held += self._decoder.decode(data, not data).encode("utf-8", "replace")
            if not data:
                break
        data, self._held = self._held[:size], self._held[size:]
        return data


class Chunk(NamedTuple):
    """Whole records, the offset after them, and, for a single record that has no end, why it is bad."""

    data: bytes
    offset: int
    sha256: str | None
    fault: Reason | None = None


def last_line(data: bytes) -> tuple[int, bool]:
    """The end of the last whole line in `data`; no quote is ever open."""
    return data.rfind(b"\n") + 1, False


def chunks(
    text: Text,
    start: int,
    size: int,
    cut: Callable[[bytes], tuple[int, bool]],
    *,
    newline: bytes = b"\n",
    max_record: int = MAX_RECORD,
) -> Iterator[Chunk]:
    """Whole records from offset `start` on, about `size` bytes of them at a time; `text` stands at `start`.

    A chunk depends only on the offset where it begins, so that reading can go on from any of them. cut(data) is the end
    of the last whole record of `data` and whether a quote is open after it. A record that has not ended after
    `max_record` bytes, or one whose quote is open at the end of the file, is a chunk of its own with a fault; the next
    one begins after its first line.
    """
    held, offset = b"", start
    while True:
        want = min(size, max_record)
        while True:
            held += text.read(max(0, want - len(held)))
            ended = len(held) < want
            end, open_quote = cut(held[:want])
            if ended and not open_quote:
                end = len(held)
            if end or ended or want == max_record:
                break
            want = min(2 * want, max_record)
        if not held:
            return
        if end:
            data, held, fault = held[:end], held[end:], None
            offset, sha256 = offset + end, text.consume(data)
        else:
            data, fault = held[:80], Reason.UNCLOSED if open_quote else Reason.TOO_LONG
            skipped, held = _after_line(text, held, newline)
            offset, sha256 = offset + skipped, text.consume(b"")
        yield Chunk(data, offset, sha256, fault)


def _after_line(text: Text, held: bytes, newline: bytes) -> tuple[int, bytes]:
    """How many bytes go up to the next line, and what is held of it."""
    skipped = 0
    while held:
        if ends := [at + 1 for mark in newline if (at := held.find(mark)) >= 0]:
            text.consume(held[: min(ends)])
            return skipped + min(ends), held[min(ends) :]
        text.consume(held)
        skipped += len(held)
        held = text.read(_STEP)
    return skipped, held
