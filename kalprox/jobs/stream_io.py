"""The ends of a stream: its input, whose format and header are read first, and its output.

Predictions are lines of JSON or CSV, one for each row, written before the next row is read.
"""

import io
import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO

import numpy as np

from kalprox.base.text import csv_line
from kalprox.jobs.predict import output_names
from kalprox.sources.files import STDIN, SourceError
from kalprox.sources.readers import Reading
from kalprox.sources.readers.csv import CsvReader
from kalprox.sources.readers.notation import Notation
from kalprox.sources.readers.text import BOM
from kalprox.sources.records import Records
from kalprox.sources.row_parser import Style

FORMATS = ("csv", "tsv", "jsonl")
STATUSES = {
    "learned": "predicted, and then learned, since it came with its target",
    "predicted": "predicted only, since it has no target",
    "waiting": "predicted; it waits for its target, by its key",
    "late": "the target of a row that waited, which has been learned",
    "bad": "neither predicted nor learned; the quarantine says why",
}


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


class StreamOutput:
    """Writes a line for each row: its number, the columns that are kept, the prediction, and what became of the row.

    Parameters
    ----------
    file : binary stream
    format : {"jsonl", "csv"}
        In JSON, what there is no number for is null; in CSV, the cell is empty.
    keep : sequence of str
        The columns that are copied from the input, the key first.
    classes : tuple of str
        Those of the target; empty if it holds numbers.
    writing : callable
        Returns a context for the times at which lines are written.
    """

    def __init__(
        self,
        file: BinaryIO,
        format: str,
        *,
        keep: Sequence[str] = (),
        classes: tuple[str, ...] = (),
        writing: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.file, self.is_json, self.keep, self.classes = file, format == "jsonl", tuple(keep), classes
        self.names, self.writing = output_names(classes), writing
        self._columns = ("row", *self.keep, *self.names, "status")
        if taken := [name for name in self.keep if name in ("row", *self.names, "status")]:
            raise ValueError(
                f"The output has a column {taken[0]!r}, so that the column {taken[0]!r} of the input cannot be kept: "
                "rename it, or keep other columns."
            )
        self._begun = self.is_json

    def header(self) -> None:
        """Write the header of CSV, if it has not been written."""
        if not self._begun:
            self._begun = True
            self._write(csv_line(self._columns))

    def rows(
        self, numbers: Sequence[int], kept: Sequence[Sequence[Any]], predicted: np.ndarray, statuses: Sequence[str]
    ) -> None:
        """Write the lines of some rows, and flush them.

        Parameters
        ----------
        numbers : sequence of int
            The numbers of the rows in the input.
        kept : sequence of sequences
            The values of the columns that are kept, of each row.
        predicted : array of shape (number of names, rows)
            See `kalprox.jobs.predict.output_columns`; NaN where there is no prediction.
        statuses : sequence of str
            See `STATUSES`.
        """
        self.header()
        made = self._json if self.is_json else self._csv
        columns = predicted.T.tolist()
        self._write("".join(map(made, numbers, kept, columns, statuses)))

    def _write(self, text: str) -> None:
        with self.writing():
            self.file.write(text.encode("utf-8", "backslashreplace"))
            self.file.flush()

    def _values(self, values: list[float]) -> list[Any]:
        shown: list[Any] = [value if math.isfinite(value) else None for value in values]
        if self.classes and shown[0] is not None:
            shown[0] = self.classes[int(shown[0])]
        return shown

    def _json(self, number: int, kept: Sequence[Any], values: list[float], status: str) -> str:
        line = (number, *kept, *self._values(values), status)
        return json.dumps(dict(zip(self._columns, line, strict=True))) + "\n"

    def _csv(self, number: int, kept: Sequence[Any], values: list[float], status: str) -> str:
        shown = ["" if value is None else str(value) for value in self._values(values)]
        if not kept and not self.classes:
            return f"{number},{','.join(shown)},{status}\n"
        texts = ["" if v is None else v if isinstance(v, str) else json.dumps(v) for v in kept]
        return csv_line((str(number), *texts, *shown, status))
