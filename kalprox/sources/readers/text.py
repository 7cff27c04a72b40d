"""Text files as a stream of UTF-8 bytes, divided into chunks of complete records."""

import codecs
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kalprox.sources.files import MAX_RECORD, STDIN, Replay, SourceError, Unreadable
from kalprox.sources.files import stdin as standard_input
from kalprox.sources.quarantine import Reason

__all__ = ["BOM", "Chunk", "Text", "chunks", "last_line"]

BOM = b"\xef\xbb\xbf"  # the byte order mark of UTF-8
_STEP = 1 << 20  # bytes to read at a time
_UTF_8 = ("utf-8", "utf-8-sig", "ascii")
_MARKS = (  # byte order marks of other encodings; none of them is UTF-8
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Text:
    """The bytes of a text file, decompressed and in UTF-8.

    Parameters
    ----------
    path : Path
        The file; "-" for standard input, whose bytes are also hashed.
    compressed : bool
        Whether the file is compressed with gzip.
    encoding : str
        The encoding of the file. A file that begins with the byte order mark of UTF-16 or UTF-32 is read as such where
        this is UTF-8.
    stdin : Replay, optional
        The stream to read for "-".
    """

    def __init__(self, path: Path, *, compressed: bool, encoding: str, stdin: Replay | None) -> None:
        self.path, self.compressed, self.name = path, compressed, str(path)
        try:
            self.encoding = codecs.lookup(encoding).name
            "".encode(encoding)  # or it is a codec of something else, such as rot13
        except (LookupError, ValueError):
            raise SourceError(f"encoding must be one that Python knows, such as latin-1; got {encoding!r}.") from None
        self.stdin = standard_input(stdin) if path == STDIN else None
        self.found: str | None = None  # the encoding that a byte order mark says
        self._raw: Any = None
        self._stream: Any = None
        self._opened_before = False
        self.digest: Any = None

    def open(self, *, again: bool = False) -> None:
        """Start at the first byte. `again` says that the text will be opened once more, so standard input is kept."""
        if not self._opened_before and self.encoding in _UTF_8:
            self._start(again=True)
            begin = self.read(4)
            self.found = next((name for mark, name in _MARKS if begin.startswith(mark)), None)
        self._opened_before = True
        self._start(again=again)
        encoding = self.found or self.encoding
        if encoding not in _UTF_8:
            self._stream = _Recoded(self._stream, encoding)

    def _start(self, *, again: bool) -> None:
        self.close()
        self._raw = self._source(again=again)
        self._stream = gzip.GzipFile(fileobj=self._raw) if self.compressed else self._raw
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
        """The next `size` bytes; fewer only at the end of the file."""
        try:
            data: bytes = self._stream.read(size)
            return data
        except (OSError, EOFError, zlib.error) as error:
            raise Unreadable(f"{self.name}: cannot be read to its end ({error}).") from error

    def seek(self, offset: int, sha256: str | None = None) -> None:
        """Move from the beginning to `offset`; where the stream cannot seek, read up to there and check the digest."""
        if isinstance(self._stream, io.BufferedReader):
            self._stream.seek(offset)
            return
        while offset and (data := self.read(min(offset, _STEP))):
            self.consume(data)
            offset -= len(data)
        if offset or (sha256 is not None and self.digest is not None and self.digest.hexdigest() != sha256):
            raise SourceError(f"{self.name}: the bytes differ from those of the run to resume.")

    def consume(self, data: bytes) -> str | None:
        """Add `data` to the digest, and return the SHA-256 of all bytes so far; for standard input only, else None."""
        if self.digest is None:
            return None
        self.digest.update(data)
        sha256: str = self.digest.copy().hexdigest()
        return sha256

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._raw is not None and self.stdin is None:
            self._raw.close()
        self._stream = self._raw = None


class _Recoded:
    """A stream of bytes in another encoding, converted to UTF-8. What cannot be decoded becomes U+FFFD."""

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
    """Complete records.

    Parameters
    ----------
    data : bytes
    offset : int
        The offset after the records.
    sha256 : str, optional
        For standard input, the digest of all bytes up to the offset.
    fault : Reason, optional
        Why a single record, which does not end, is bad.
    """

    data: bytes
    offset: int
    sha256: str | None
    fault: Reason | None = None


def last_line(data: bytes) -> tuple[int, bool]:
    """The end of the last complete line in `data`, and False: no quote is open."""
    return data.rfind(b"\n") + 1, False


def chunks(
    text: Text,
    start: int,
    size: int,
    end_of_last: Callable[[bytes], tuple[int, bool]],
    *,
    newline: bytes = b"\n",
    max_record: int = MAX_RECORD,
) -> Iterator[Chunk]:
    """Divide a text into chunks of complete records.

    A chunk depends only on the offset where it begins, so reading can be resumed at the end of any chunk. A record that
    does not end within `max_record` bytes, or with a quote that is open at the end of the file, is a chunk of its own
    with a fault; the next chunk begins after the first line of that record.

    Parameters
    ----------
    text : Text
        The text, positioned at `start`.
    start : int
        The offset of the first record.
    size : int
        The number of bytes of a chunk, roughly.
    end_of_last : callable
        Takes bytes, and returns the end of the last complete record in them and whether a quote is open at their end.
    newline : bytes
        The bytes that end a line.
    max_record : int
        The largest number of bytes in a record.
    """
    held, offset = b"", start
    while True:
        want = min(size, max_record)
        while True:
            held += text.read(max(0, want - len(held)))
            ended = len(held) < want
            end, open_quote = end_of_last(held[:want])
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
    """The number of bytes up to the next line, and the bytes of that line that have been read."""
    skipped = 0
    while held:
        if ends := [at + 1 for mark in newline if (at := held.find(mark)) >= 0]:
            text.consume(held[: min(ends)])
            return skipped + min(ends), held[min(ends) :]
        text.consume(held)
        skipped += len(held)
        held = text.read(_STEP)
    return skipped, held
