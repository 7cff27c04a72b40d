"""Finding where the records of a CSV file end, quotes considered, as pyarrow's parser does."""

import re
from collections import deque

import numpy as np

__all__ = ["CsvRecords"]


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
