"""The predictions of a stream as lines of JSON or CSV, one for each row, written before the next row is read."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO

import numpy as np

from kalprox.base.text import csv_line
from kalprox.jobs.predict import output_names

__all__ = ["STATUSES", "StreamOutput"]

STATUSES = {
    "learned": "predicted, and then learned, since it came with its target",
    "predicted": "predicted only, since it has no target",
    "waiting": "predicted; it waits for its target, by its key",
    "late": "the target of a row that waited, which has been learned",
    "bad": "neither predicted nor learned; the quarantine says why",
}


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
