"""Finding where the records of a CSV file end, quotes considered, as pyarrow's parser does."""

import re

import numpy as np

__all__ = ["CsvRecords"]


class CsvRecords:
    """Finds the ends of records. A quote opens a quoted field only at the start of a field.

    Parameters
    ----------
    delimiter : str
        One character.
    """

    def __init__(self, delimiter: str) -> None:
        self.delimiter = delimiter
        mark = re.escape(delimiter).encode()
        self._quoted = re.compile(rb"(?:\A|(?<=[" + mark + rb'\r\n]))"[^"]*+(?:""[^"]*+)*+(?:"|\Z)')

    def end_of_first(self, data: bytes, start: int) -> int:
        """The end of the record that begins at `start`; 0 where it does not end in `data`."""
        if data.find(b"\n", start) < 0 and data.find(b"\r", start) < 0:
            return 0
        here = start
        for quoted in self._quoted.finditer(data[start:]):
            if newline := re.search(rb"[\r\n]", data[here : start + quoted.start()]):
                return here + newline.end()
            here = start + quoted.end()
        newline = re.search(rb"[\r\n]", data[here:])
        return 0 if newline is None else here + newline.end()

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
