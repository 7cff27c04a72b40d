"""The beginning of a stream: its format, its header, and the rows from which columns are inferred."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from kalprox.sources.files import STDIN, SourceError
from kalprox.sources.readers import Reading
from kalprox.sources.readers.csv import CsvReader
from kalprox.sources.readers.notation import Notation
from kalprox.sources.readers.text import BOM
from kalprox.sources.records import Records
from kalprox.sources.row_parser import Style

__all__ = ["FORMATS", "StreamInput"]

FORMATS = ("csv", "tsv", "jsonl")


class StreamInput:
    """A stream whose header has been read.

    Parameters
    ----------
    stream : binary stream
        See `kalprox.sources.records.Records`.
    format : {"csv", "tsv", "jsonl"}, optional
        The default is JSON lines if the first byte is a brace, else CSV.
    delimiter : str, optional
        The default is found in the header and the first row.
    max_record, is_whole, reading
        See `kalprox.sources.records.Records`.
    **marks
        Those in numbers; see `kalprox.sources.readers.notation.Notation`.

    Attributes
    ----------
    records : Records
        The records after the header.
    style : Style
    """

    def __init__(
        self,
        stream: Any,
        *,
        format: str | None = None,
        delimiter: str | None = None,
        max_record: int = 1 << 20,
        is_whole: bool = True,
        reading: Callable[[], AbstractContextManager[Any]] = nullcontext,
        **marks: Any,
    ) -> None:
        if format is not None and format not in FORMATS:
            raise SourceError(f"format must be one of {', '.join(FORMATS)} for a stream; got {format!r}.")
        self.records = Records(stream, max_record=max_record, is_whole=is_whole, reading=reading)
        self._header = b""
        first = self.records.begin().removeprefix(BOM).lstrip()
        if format == "jsonl" or (format is None and first[:1] == b"{"):
            self.style = Style(notation=Notation(**marks))
            return
        self.records.split_by(delimiter or ("\t" if format == "tsv" else ","))
        head = self.records.peek(3 if first[:4].lower() == b"sep=" else 2)  # the header, and the first row
        how = Reading(format=format or "csv", delimiter=delimiter, max_record=max_record, stdin=io.BytesIO(head))
        opened = how.open(STDIN)
        assert isinstance(opened, CsvReader)
        header, begin = opened.header()
        self.style = Style(header, opened.delimiter, Notation(**marks))
        self.records.split_by(opened.delimiter)
        self._header = head[:begin]
        self.records.advance(begin)

    def head(self, rows: int) -> bytes:
        """The header and the first good rows, which stay in the stream; fewer rows if the stream has no more."""
        return self._header + b"".join(record.data for record in self.records.ahead(rows))
