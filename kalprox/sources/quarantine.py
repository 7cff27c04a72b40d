"""Bad rows: why a row was refused, where refused rows are written, and how many are too many."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO

from kalprox.sources.files import SourceError

__all__ = ["BadRow", "Quarantine", "Reason", "TooManyBadRows"]

_JUDGED_FROM = 10_000  # rows: before that many, a share says little
_SHOWN = 5


class Reason(StrEnum):
    """Why a row was refused."""

    MISSING = "missing"
    NOT_NUMBER = "not a number"
    NOT_FINITE = "not finite"
    NOT_DATE = "not a date"
    NOT_TEXT = "not text"
    UNSEEN = "unseen level"
    NOT_UTF8 = "not UTF-8"
    NUL = "NUL byte"
    NEGATIVE_WEIGHT = "negative weight"
    TOO_FEW = "too few fields"
    TOO_MANY = "too many fields"
    UNCLOSED = "unclosed quote"
    TOO_LONG = "record too long"
    NOT_JSON = "not JSON"
    EMPTY = "empty file"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class BadRow:
    """A row that was refused: its number counts the file's data rows from 1; 0 is the file itself."""

    file: str
    row: int
    column: str
    reason: str
    value: str

    def __str__(self) -> str:
        column = f", column {self.column!r}" if self.column else ""
        value = f" ({self.value!r})" if self.value else ""
        where = f"{self.file}, row {self.row}" if self.row else self.file
        return f"{where}{column}: {self.reason}{value}"


class TooManyBadRows(SourceError):
    """More bad rows than `max_bad`; the message names the first few."""


class Quarantine:
    """Where bad rows go, and how many of them a run bears.

    path: a CSV file (file, row, column, reason, value) in the order of reading, or None. max_bad: a count, a share
    ("1%", of the rows read, judged at the end and, to stop early, once more than 10,000 rows have been read), or
    None: 0 without a `path`, no limit with one. resume: what `state()` was; the file is cut back to it.
    """

    def __init__(
        self, path: str | os.PathLike | None = None, max_bad: int | str | None = None, *, resume: dict | None = None
    ) -> None:
        self.path = path
        self.limit, self.share = _limit(max_bad, path)
        was = resume or {"bytes": 0, "bad": 0, "read": 0, "first": []}
        self.bad, self.read = int(was["bad"]), int(was["read"])
        self.first = [BadRow(**row) for row in was["first"]]
        self._file = None if path is None else _open(path, int(was["bytes"]), fresh=resume is None)

    def take(self, bad_rows: Sequence[BadRow], n_read: int) -> None:
        """Write the bad rows among the `n_read` rows just read; raise TooManyBadRows where they are too many."""
        self.bad, self.read = self.bad + len(bad_rows), self.read + n_read
        self.first += bad_rows[: _SHOWN - len(self.first)]
        if bad_rows and self._file is not None:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(
                (row.file, row.row, row.column, row.reason, row.value) for row in bad_rows
            )
            self._file.write(text.getvalue().encode("utf-8", "backslashreplace"))
        self._judge(early=True)

    def finish(self) -> None:
        """Judge the share over all rows, and close the file."""
        self.close()
        self._judge(early=False)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def state(self) -> dict:
        """All that is needed to go on from here (JSON's types); what was written so far is on the disk."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        size = 0 if self._file is None else self._file.tell()
        return {"bytes": size, "bad": self.bad, "read": self.read, "first": [vars(row) for row in self.first]}

    def _judge(self, *, early: bool) -> None:
        over = self.limit is not None and self.bad > self.limit
        if self.share is not None and not (early and self.read <= _JUDGED_FROM):
            over = self.bad > self.share * self.read
        if not over:
            return
        allowed = f"{self.limit:,}" if self.limit is not None else f"{self.share:.6%}".rstrip("0%").rstrip(".") + "%"
        rows = "\n  ".join(map(str, self.first)) + ("\n  ..." if self.bad > len(self.first) else "")
        self.close()
        raise TooManyBadRows(
            f"{self.bad:,} bad of {self.read:,} rows read, more than the {allowed} allowed:\n  {rows}\n"
            "Allow more with max_bad (a number, or a share such as 1%)."
        )


def _limit(max_bad: int | str | None, path: object) -> tuple[int | None, float | None]:
    """(count, None), (None, share), or (None, None) for no limit."""
    if max_bad is None:
        return (0 if path is None else None), None
    text = str(max_bad).strip()
    try:
        number = float(text.removesuffix("%")) if text.endswith("%") else int(text)
    except ValueError:
        number = -1
    if not number >= 0 or (text.endswith("%") and number > 100):
        raise SourceError(f"max_bad must be a number of rows >= 0 or a share such as 1%; got {max_bad!r}.")
    return (None, number / 100) if text.endswith("%") else (int(number), None)


def _open(path: str | os.PathLike, size: int, *, fresh: bool) -> BinaryIO:
    """The file at its end, which is `size`; a fresh one has the header."""
    if fresh:
        file = open(path, "w+b")  # noqa: SIM115
        file.write(b"file,row,column,reason,value\n")
        return file
    try:
        file = open(path, "r+b")  # noqa: SIM115
    except FileNotFoundError:
        raise SourceError(f"{path}: the quarantine file of the run to go on with is not there.") from None
    if file.seek(0, os.SEEK_END) < size:
        file.close()
        raise SourceError(f"{path}: the quarantine file is shorter than the run to go on with left it.")
    file.truncate(size)
    file.seek(size)
    return file
