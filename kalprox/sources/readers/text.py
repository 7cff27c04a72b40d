"""Text files as a stream of UTF-8 bytes, divided into chunks of complete records."""

import codecs
import gzip
import hashlib
import io
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kalprox.base.text import worded
from kalprox.sources.files import MAX_RECORD, STDIN, Replay, SourceError, Unreadable, format_of
from kalprox.sources.files import stdin as standard_input
from kalprox.sources.prefetch import map_ahead
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.base import RawBlock, Reader, Reading, guarded

BOM = b"\xef\xbb\xbf"  # the byte order mark of UTF-8
_STEP = 1 << 20  # bytes to read at a time
_UTF_8 = ("utf-8", "utf-8-sig", "ascii")
_MARKS = (  # byte order marks of other encodings; none of them is UTF-8
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Lines:
    """Finds the ends of records that are lines; see `CsvRecords`."""

    def end_of_first(self, data: bytes, start: int) -> int:
        """The end of the line that begins at `start`; 0 where it does not end in `data`."""
        return data.find(b"\n", start) + 1

    def end_of_last(self, data: bytes) -> tuple[int, bool]:
        """The end of the last complete line in `data`, and False: no quote is open."""
        return data.rfind(b"\n") + 1, False

    def shortened(self, data: bytes) -> bytes:
        """No bytes: whatever a line begins with, it ends with the next newline."""
        return b""


class CsvRecords:
    """Finds the ends of records. A quote opens a quoted field only at the start of a field.

    Parameters
    ----------
    delimiter : str
        One character.
    newlines : bytes
        The characters that end a line.
    """

    def __init__(self, delimiter: str, newlines: bytes = b"\r\n") -> None:
        self.delimiter, self._newline = delimiter, re.compile(b"[" + newlines + b"]")
        mark = re.escape(delimiter).encode()
        self._quoted = re.compile(rb"(?:\A|(?<=[" + mark + rb'\r\n]))"[^"]*+(?:""[^"]*+)*+(?:"|\Z)')

    def end_of_first(self, data: bytes, start: int) -> int:
        """The end of the record that begins at `start`; 0 where it does not end in `data`."""
        if self._newline.search(data, start) is None:
            return 0
        here = start
        for quoted in self._quoted.finditer(data[start:]):
            if newline := self._newline.search(data, here, start + quoted.start()):
                return newline.end()
            here = start + quoted.end()
        newline = self._newline.search(data, here)
        return 0 if newline is None else newline.end()

    def shortened(self, data: bytes) -> bytes:
        """A few bytes in place of `data`, the beginning of a record: it ends where it does after `data`."""
        last = deque(self._quoted.finditer(data), maxlen=1)
        if not last or last[0].end() < len(data):
            return b"x" + data[-1:]  # in a field that is not quoted, or at the beginning of one
        inside = data[last[0].start() + 1 :]
        return b'"' + inside[len(inside.rstrip(b'"')) :]  # the next byte may be another quote

    def end_of_last(self, data: bytes) -> tuple[int, bool]:
        """The end of the last complete record, and whether a quote is open at the end of `data`."""
        if b'"' not in data:
            return (data.rfind(b"\n") + 1 or data.rfind(b"\r") + 1), False
        raw = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(raw == ord('"'))
        before = raw[quotes[::2] - 1]
        if quotes[0] == 0:
            before[0] = ord("\n")
        if not np.isin(before, list(f'{self.delimiter}\r\n"'.encode())).all():
            return self.end_of_last_by_fields(data)
        # Every second quote opens a field or follows a quote, so the quotes open and close in turn.
        for mark in b"\n\r":
            marks = np.flatnonzero(raw == mark)
            outside = marks[np.searchsorted(quotes, marks) % 2 == 0]
            if len(outside):
                return int(outside[-1]) + 1, len(quotes) % 2 == 1
        return 0, len(quotes) % 2 == 1

    def end_of_last_by_fields(self, data: bytes) -> tuple[int, bool]:
        """`end_of_last`, one quoted field after another: for text with quotes in the middle of a field."""
        line = feed = here = 0
        is_open = False
        for quoted in self._quoted.finditer(data):
            start, end = quoted.span()
            line = data.rfind(b"\n", here, start) + 1 or line
            feed = data.rfind(b"\r", here, start) + 1 or feed
            here = end
            is_open = end == len(data) and data.count(b'"', start, end) % 2 == 1
        line = data.rfind(b"\n", here) + 1 or line
        feed = data.rfind(b"\r", here) + 1 or feed
        return line or feed, is_open


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
            told = worded("{encoding} must be one that Python knows, such as latin-1; got {}.", repr(encoding))
            raise SourceError(told) from None
        self.stdin = standard_input(stdin) if path == STDIN else None
        self.found: str | None = None  # the encoding that a byte order mark says
        self._raw: Any = None
        self._stream: Any = None
        self._opened_before = self._again = False
        self.digest: Any = None

    def open(self, *, again: bool = False) -> None:
        """Start at the first byte. `again` says that the text will be opened once more, so standard input is kept."""
        if not self._opened_before and self.encoding in _UTF_8:
            self._start(again=True)
            begin = self.read(4)
            self.found = next((name for mark, name in _MARKS if begin.startswith(mark)), None)
        self._opened_before, self._again = True, again
        self._start(again=again)
        encoding = self.found or self.encoding
        if encoding not in _UTF_8:
            self._stream = _Recoded(self._stream, encoding)

    def reopen(self, offset: int) -> None:
        """Go back to `offset`; raise SourceError for standard input, unless it is stored."""
        try:
            self.open(again=self._again)
        except SourceError as error:
            raise SourceError.worded(
                "{}: a quote that opens before byte {} never closes, and is longer than {max_record}. Write "
                "standard input to a file, of which only that line is a bad row; or correct the line.",
                self.name,
                f"{offset:,}",
            ) from error
        self.seek(offset)

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

    def consume(self, data: bytes | memoryview) -> str | None:
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


def chunks(
    text: Text, start: int, size: int, records: Lines | CsvRecords, *, max_record: int = MAX_RECORD
) -> Iterator[Chunk]:
    """Divide a text into chunks of complete records.

    A chunk depends only on the offset where it begins, so reading can be resumed at the end of any chunk. A record of
    more than `max_record` bytes is a chunk of its own with a fault, whatever lines a quoted cell of it contains. So is
    a record with a quote that never closes, but the next chunk begins after the first line of that record.

    Parameters
    ----------
    text : Text
        The text, positioned at `start`.
    start : int
        The offset of the first record.
    size : int
        The number of bytes of a chunk, roughly.
    records : Lines or CsvRecords
        Finds the ends of records.
    max_record : int
        The largest number of bytes in a record.
    """
    held, offset = b"", start
    while True:
        want = min(size, max_record)
        while True:
            held += text.read(max(0, want - len(held)))
            ended = len(held) < want
            end, open_quote = records.end_of_last(held[:want])
            if ended and not open_quote:
                end = len(held)
            if end or ended or want == max_record:
                break
            want = min(2 * want, max_record)
        if not held:
            return
        data, fault = held[: end or 80], None
        if end or ended:
            fault = None if end else Reason.UNCLOSED
            end = end or _end_of_line(held) or len(held)
            text.consume(memoryview(held)[:end])
            held = held[end:]
        else:
            passed = pass_over(held, records, lambda: text.read(_STEP), text.consume)
            end, held, fault = passed.size, passed.behind, Reason.TOO_LONG
            if passed.is_open:
                end, fault = passed.line, Reason.UNCLOSED
                text.reopen(offset + end)
        offset += end
        yield Chunk(data, offset, text.consume(b""), fault)


class Passed(NamedTuple):
    """A record that was passed over: its bytes and those of its first line, what was read behind it, and its quotes."""

    size: int
    line: int
    behind: bytes
    is_open: bool


def pass_over(
    held: bytes, records: Lines | CsvRecords, more: Callable[[], bytes], seen: Callable[[Any], Any] = len
) -> Passed:
    """Pass over the record that `held` begins with, however long it is, in bounded memory.

    Parameters
    ----------
    held : bytes
    records : Lines or CsvRecords
    more : callable
        Reads more bytes; none at the end.
    seen : callable
        Called with the bytes of the record, piece by piece.
    """
    size, line, before = 0, 0, b""  # before stands for what has been passed over
    while held:
        if not line and (end := _end_of_line(held)):
            line = size + end
        if end := records.end_of_first(before + held, 0):
            end -= len(before)
            seen(held[:end])
            return Passed(size + end, line, held[end:], False)
        seen(held)
        size, before = size + len(held), records.shortened(before + held)
        held = more()
    return Passed(size, line or size, b"", records.end_of_last(before)[1])


def _end_of_line(data: bytes) -> int:
    """The end of the first line, whatever mark ends it; 0 where there is none."""
    found = re.search(rb"[\r\n]", data)
    return found.end() if found else 0


class TextReader(Reader):
    """A text file, whose records are read and parsed chunk by chunk."""

    kind: ClassVar[str]  # of file, for error messages

    def __init__(self, path: Path, reading: Reading, threads: int = 1) -> None:
        super().__init__(path, reading, threads)
        self.format = format_of(path, reading.format)
        compressed = self.format.endswith(".gz")
        self.text = Text(path, compressed=compressed, encoding=reading.encoding, stdin=reading.stdin)

    @property
    def found(self) -> tuple[str, ...]:
        """The encoding, where a byte order mark says it; see `Reader`."""
        return () if self.empty or self.text.found is None else (f"encoding {self.text.found!r}",)

    def close(self) -> None:
        """Close the file."""
        self.text.close()

    def _chunks(self, start: int, sha256: str | None, records: Lines | CsvRecords, *, again: bool) -> Iterator[Chunk]:
        """The chunks from the byte `start` on; see `Text.open` for `again`."""
        self.text.open(again=again)
        self.text.seek(start, sha256)
        size, most = self.reading.chunk_bytes, self.reading.max_record
        yield from chunks(self.text, start, size, records, max_record=most)

    def _parsed(self, divided: Iterator[Chunk], parse: Callable[[Chunk], RawBlock]) -> Iterator[RawBlock]:
        """The rows of chunks, of which several may be parsed at a time."""

        def parse_guarded(chunk: Chunk) -> RawBlock:
            with guarded(self.name, self.kind):
                return parse(chunk)

        yield from map_ahead(parse_guarded, divided, self.threads)
        self.text.close()
