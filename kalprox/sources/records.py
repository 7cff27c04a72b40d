"""Records of a stream of text as they come: lines of JSON, or records of CSV, whose cells may contain newlines."""

import hashlib
import io
import re
import select
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.text import CsvRecords, Lines, pass_over

_STEP = 1 << 16  # bytes to read at a time: as many as a pipe holds
_BLANKS = b" \t\r\n"


class Record(NamedTuple):
    """One record, with its newline, if it has one.

    Parameters
    ----------
    data : bytes
        Of a record with a fault, the first 80 bytes.
    start, end : int
        The offset of its first byte, and the one after it.
    came : float
        When its last byte was read, in seconds of `time.perf_counter`.
    fault : Reason, optional
        Why the record, which is too long or does not end, is bad.
    """

    data: bytes
    start: int
    end: int
    came: float
    fault: Reason | None = None

    @property
    def sha256(self) -> str:
        """The digest of its bytes."""
        return hashlib.sha256(self.data).hexdigest()


class Position(NamedTuple):
    """A position in a stream, after a number of rows. It has a JSON form, `_asdict`.

    Parameters
    ----------
    row : int
        The number of rows before the position.
    offset : int
        The number of bytes before it; those of a header count, too.
    last : int
        The offset at which the last of the rows begins.
    sha256 : str
        The digest of its bytes; "" if there is no row.
    jumped : float, optional
        Its time, if it was refused because that is far after the time of the row before it.
    """

    row: int = 0
    offset: int = 0
    last: int = 0
    sha256: str = ""
    jumped: float | None = None


class Records:
    """Reads a stream record by record, each as soon as it has come. Blank lines are no records.

    At most 64 KiB, or the record that is not complete yet, are held: what is not taken stays in the stream, so that who
    writes it has to wait.

    Parameters
    ----------
    stream : binary stream
        Needs the method `read1`, as the standard input of a process has it, and `seek` where `is_whole` is true.
    max_record : int
        The largest number of bytes in a record. A longer one is a record with a fault, whatever lines a quoted cell of
        it contains.
    is_whole : bool
        Whether the stream is all there is: a record may end where the stream does, and if a quote is open there, only
        the line in which it opens is a record, with a fault. Otherwise, what has no end may have been cut, and is no
        record.
    reading : callable
        Returns a context for the times at which bytes are waited for.

    Attributes
    ----------
    delimiter : str or None
        That of CSV records, in which a quoted cell may contain newlines; None for lines.
    offset : int
        The number of bytes before the next record, or before the first that `ahead` has not returned.
    cut : int
        The number of bytes at the end of the stream that are no record, because they may have been cut.

    Examples
    --------
    >>> records = Records(io.BytesIO(b"a,b\\n1,2\\n\\n3,4"), max_record=100)
    >>> [record.data for record in records]
    [b'a,b\\n', b'1,2\\n', b'3,4']
    """

    delimiter: str | None = None

    def __init__(
        self,
        stream: Any,
        *,
        max_record: int,
        is_whole: bool = True,
        reading: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.stream, self.max_record, self.is_whole, self.reading = stream, max_record, is_whole, reading
        self.offset = self.cut = 0
        self._data, self._at, self._ended, self._came = b"", 0, False, 0.0
        self._ends: Lines | CsvRecords = Lines()
        self._ahead: deque[Record] = deque()
        self._blank_lines = re.compile(rb"(?:[ \t\r]{0,%d}\n)+" % min(max_record - 1, 1 << 30))

    def split_by(self, delimiter: str) -> None:
        """From now on, records are those of CSV with this delimiter."""
        self.delimiter, self._ends = delimiter, CsvRecords(delimiter, b"\n")

    def __iter__(self) -> Iterator[Record]:
        while (record := self.next()) is not None:
            yield record

    def take(self, rows: int, seconds: float | None = None) -> list[Record]:
        """The next records: `rows` of them, or fewer at the end, or those that come within some seconds of the first.

        An empty list says that the stream has ended.
        """
        first = self.next()
        if first is None:
            return []
        found, until = [first], None if seconds is None else time.monotonic() + seconds
        while len(found) < rows and (record := self.next(until)) is not None:
            found.append(record)
        return found

    def next(self, until: float | None = None) -> Record | None:
        """The next record; None at the end of the stream, or if none has come until this time of `time.monotonic`."""
        if self._ahead:
            return self._ahead.popleft()._replace(came=self._came)
        while True:
            record = self._split()
            if record is not None and (record.fault or record.data.strip(_BLANKS)):
                return record
            if record is None:
                if self._ended or (until is not None and not self._waits(until)):
                    return None
                self._more()

    def ahead(self, rows: int) -> list[Record]:
        """The next records without a fault, `rows` of them or fewer at the end, which are read but not taken."""
        seen, self._ahead = self._ahead, deque()
        good = sum(record.fault is None for record in seen)
        while good < rows and (record := self.next()) is not None:
            seen.append(record)
            good += record.fault is None
        self._ahead = seen
        return [record for record in seen if record.fault is None]

    def begin(self) -> bytes:
        """The first line of the next record, or 80 bytes of it, which are not taken."""
        while True:
            self._skip_blank_lines()
            data = self._data[self._at : self._at + 80]
            if b"\n" in data or len(data) == 80 or self._ended:
                return data.partition(b"\n")[0]
            self._more()

    def peek(self, rows: int) -> bytes:
        """The bytes of the header and the records after it, which are not taken.

        There are `rows` of them, or those before one that is too long. Raise SourceError if the header is too long.
        """
        size = count = 0
        while count < rows:
            start = self._at + size
            end = self._end(start)
            if (end or len(self._data)) - start > self.max_record:
                if count:
                    break
                raise SourceError.worded(
                    f"The header does not end within {self.max_record:,} bytes, the value of {{max_record}}. Check "
                    "that the input is CSV and has newlines, or raise {max_record}."
                )
            if not end and not self._ended:
                self._more()
                continue
            if not end and self.is_whole:
                end = len(self._data)
            if end <= start:
                break
            count += bool(self._data[start:end].strip(_BLANKS))
            size = end - self._at
        return self._data[self._at : self._at + size]

    def skip(self, to: Position) -> None:
        """Move on to a position; raise SourceError if the row before it is not the one that was there."""
        if to.row == 0:
            return
        self._discard(to.last - self.offset)
        record = self.next()
        if record is None or record.end != to.offset or record.sha256 != to.sha256:
            raise SourceError(
                f"The input differs from that of the run to resume, in row {to.row:,}, at byte {to.last:,}. Send the "
                "same rows again, from the first one; or, with --resume continue, those after this row."
            )

    def advance(self, size: int) -> None:
        """Move on by some bytes of those that `peek` has returned."""
        self._at, self.offset = self._at + size, self.offset + size

    def _discard(self, size: int) -> None:
        while size > 0:
            if self._at == len(self._data):
                if self._ended:
                    return
                self._more()
            step = min(size, len(self._data) - self._at)
            self.advance(step)
            size -= step

    def _skip_blank_lines(self) -> None:
        if blank := self._blank_lines.match(self._data, self._at):
            self.advance(blank.end() - self._at)

    def _end(self, start: int) -> int:
        """The end of the record that begins at `start` of what is held; 0 where it has not come."""
        end = self._data.find(b"\n", start) + 1
        if self.delimiter is None or self._data.find(b'"', start, end or len(self._data)) < 0:
            return end
        return self._ends.end_of_first(self._data, start)

    def _split(self) -> Record | None:
        """The next record that has come; None if there is none."""
        self._skip_blank_lines()
        end, fault, held = self._end(self._at), None, len(self._data) - self._at
        if not end and held > self.max_record:
            return self._passed_over()
        if not end and self._ended and self._data[self._at :].strip(_BLANKS):
            if not self.is_whole:
                self.cut = held
                return None
            end = len(self._data)
            if self._ends.end_of_last(self._data[self._at :])[1]:
                end, fault = self._data.find(b"\n", self._at) + 1 or end, Reason.UNCLOSED
        if not end:
            return None
        if end - self._at > self.max_record:
            fault = Reason.TOO_LONG
        data, start = self._data[self._at : end], self.offset
        self.advance(end - self._at)
        return Record(data[:80] if fault else data, start, self.offset, self._came, fault)

    def _passed_over(self) -> Record | None:
        """A record that is too long, as its first bytes; the others are passed over as they come, up to its end."""
        held, start = self._data[self._at :], self.offset
        if not self.is_whole and self._ends.end_of_last(held)[1]:
            warnings.warn(
                f"A quote that opened after byte {start:,} of the input has not closed within {self.max_record:,} "
                "bytes, the longest that a record may be (--max-record): everything is passed over until it closes.",
                RuntimeWarning,
                stacklevel=2,
            )
        passed = pass_over(held, self._ends, self._bytes)
        size, fault = passed.size, Reason.TOO_LONG
        self._data, self._at = passed.behind, 0
        if self._ended and not self.is_whole:
            self.cut = size
            return None
        if passed.is_open:
            size, fault = passed.line, Reason.UNCLOSED
            self.stream.seek(size - passed.size, io.SEEK_CUR)
            self._ended = False
        self.offset = start + size
        return Record(held[:80], start, self.offset, self._came, fault)

    def _more(self) -> None:
        """Wait for more bytes."""
        self._data, self._at = self._data[self._at :] + self._bytes(), 0

    def _bytes(self) -> bytes:
        """Some more bytes; none at the end of the stream."""
        if self._ended:
            return b""
        with self.reading():
            data: bytes = self.stream.read1(_STEP)
        self._came, self._ended = time.perf_counter(), not data
        return data

    def _waits(self, until: float) -> bool:
        """Wait until there are more bytes, or until a time; return whether there are."""
        try:
            with self.reading():
                return bool(select.select([self.stream], [], [], max(0.0, until - time.monotonic()))[0])
        except (io.UnsupportedOperation, OSError, ValueError):  # a stream in memory, or a file, which never waits
            return True
