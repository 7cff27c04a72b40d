"""Records of a stream of text as they come: lines of JSON, or records of CSV, whose cells may contain newlines."""

import hashlib
import io
import select
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.csv_records import CsvRecords

__all__ = ["Position", "Record", "Records"]

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
        Why the record, which does not end, is bad.
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
    """

    row: int = 0
    offset: int = 0
    last: int = 0
    sha256: str = ""


class Records:
    """Reads a stream record by record, each as soon as it has come. Blank lines are no records.

    At most 64 KiB, or the record that is not complete yet, are held: what is not taken stays in the stream, so that who
    writes it has to wait.

    Parameters
    ----------
    stream : binary stream
        Needs the method `read1`, as the standard input of a process has it.
    max_record : int
        The largest number of bytes in a record. A longer one is a record with a fault, and what follows begins after
        its first line.
    reading : callable
        Returns a context for the times at which bytes are waited for.

    Attributes
    ----------
    delimiter : str or None
        That of CSV records, in which a quoted cell may contain newlines; None for lines.
    offset : int
        The number of bytes before the next record.

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
        reading: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.stream, self.max_record, self.reading = stream, max_record, reading
        self.offset = 0
        self._data, self._at, self._ended, self._came = b"", 0, False, 0.0
        self._quotes: CsvRecords | None = None

    def split_by(self, delimiter: str) -> None:
        """From now on, records are those of CSV with this delimiter."""
        self.delimiter, self._quotes = delimiter, CsvRecords(delimiter)

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
        while True:
            found = self._split()
            if found is None:
                if self._ended or (until is not None and not self._waits(until)):
                    return None
                self._more()
                continue
            record, blank = found
            if not blank:
                return record

    def peek(self, rows: int) -> bytes:
        """The bytes of the next records, `rows` of them or fewer at the end, which are read but not taken."""
        at, offset, count = self._at, self.offset, 0
        while count < rows:
            found = self._split(whole=True)
            if found is not None:
                count += not found[1]
            elif self._ended or len(self._data) - self._at > self.max_record:
                break
            else:
                looked_at, self._at = self._at - at, at
                self._more()
                at, self._at = 0, looked_at
        end, self._at, self.offset = self._at, at, offset
        return self._data[at:end]

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

    def _split(self, *, whole: bool = False) -> tuple[Record, bool] | None:
        """The next record that has come, and whether it is blank; None if there is none. A `whole` one has no fault."""
        data, start = self._data, self._at
        end = data.find(b"\n", start) + 1
        if self._quotes is not None and data.find(b'"', start, end or len(data)) >= 0:
            end = self._quotes.end_of_first(data, start)
        held = len(data) - start
        if end == 0 and held > self.max_record and not whole:
            return self._faulty(Reason.TOO_LONG if b"\n" not in data[start:] else Reason.UNCLOSED)
        if end == 0 and self._ended and held:
            if b"\n" in data[start:] and not whole:
                return self._faulty(Reason.UNCLOSED)
            end = len(data)
        if end == 0:
            return None
        fault = Reason.TOO_LONG if end - start > self.max_record else None
        return self._taken(data[start:end], end, fault)

    def _faulty(self, fault: Reason) -> tuple[Record, bool]:
        """The first line of what is held as a record that does not end; the rest of a longer line is passed over."""
        begin, at = self._at, self.offset
        head = self._data[begin : begin + 80]
        while (end := self._data.find(b"\n", self._at) + 1) == 0 and not self._ended:
            self.advance(len(self._data) - self._at)
            self._more()
        self.advance((end or len(self._data)) - self._at)
        return Record(head, at, self.offset, self._came, fault), False

    def _taken(self, data: bytes, end: int, fault: Reason | None) -> tuple[Record, bool]:
        start = self.offset
        self.advance(end - self._at)
        return Record(data[:80] if fault else data, start, self.offset, self._came, fault), not data.strip(_BLANKS)

    def _more(self) -> None:
        """Wait for more bytes."""
        with self.reading():
            data = self.stream.read1(_STEP)
        self._came = time.perf_counter()
        self._data, self._at = self._data[self._at :] + data, 0
        self._ended = not data

    def _waits(self, until: float) -> bool:
        """Wait until there are more bytes, or until a time; return whether there are."""
        try:
            with self.reading():
                return bool(select.select([self.stream], [], [], max(0.0, until - time.monotonic()))[0])
        except (io.UnsupportedOperation, OSError, ValueError):  # a stream in memory, or a file, which never waits
            return True
