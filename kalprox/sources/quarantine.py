"""Bad rows, their reasons and the file that they are written to; and what must be said about cells that were read."""

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from kalprox.base.files import flush_to_disk, open_locked
from kalprox.base.text import Text, csv_line, from_csv_cell, parameter, printable, worded
from kalprox.sources.files import SourceError

_MIN_ROWS = 10_000  # rows read before a percentage of bad rows stops a run early
_UNSEEN = worded(
    " An unseen level is neither listed nor one that the model was fitted to: list it, or fit the model to rows that "
    "have it; without a formula, {unseen='zero'} encodes it as zeros, as the reference level."
)
_SHOWN = 5  # bad rows in the message of TooManyBadRows
_DECIMAL_COMMA = re.compile(r"\s*[+-]?[0-9.]*,[0-9]+\s*")
_THOUSANDS = re.compile(r"\s*[+-]?[0-9]{1,3}([.,' _])[0-9]{3}(\1[0-9]{3})*([.,][0-9]*)?\s*")


class Reason(StrEnum):
    """Why a row is bad."""

    MISSING = "missing"
    NOT_NUMBER = "not a number"
    NOT_FINITE = "not finite"
    TOO_LARGE = "above 1e70 in size, rescale the column"  # `kalprox.base.checks.LARGEST`
    WEIGHT_TOO_LARGE = "weight too large for the values of the row, rescale the weights"
    NOT_DATE = "not a date"
    NOT_TEXT = "not text"
    UNSEEN = "unseen level"
    UNSEEN_CLASS = "unseen class"
    NOT_UTF8 = "not UTF-8"
    NUL = "NUL byte"
    NEGATIVE_WEIGHT = "negative weight"
    NO_EXPOSURE = "exposure not positive"
    OUTSIDE = "outside of the range of the spline, which extrapolation='extend' or 'clip' in bs() allows"
    IMPOSSIBLE = "not possible for the likelihood"
    TOO_FEW = "too few fields"
    TOO_MANY = "too many fields"
    UNCLOSED = "unclosed quote"
    TOO_LONG = "record too long"
    NOT_JSON = "not JSON"
    EMPTY = "empty file"
    UNREADABLE = "unreadable"
    NOT_WAITING = "no row with this key waits for its target"
    WAITS = "a row with this key waits for its target already"
    REFUSED = "refused by the model"
    JUMPS = "time far after that of the row before"  # more than `--max-jump`
    GOES_BACK = "time before that of an earlier row"
    OUTLIER = "outlier"  # which is learned nevertheless; see `Quarantine.note`


class Cell(NamedTuple):
    """A bad cell.

    Parameters
    ----------
    at : int
        The position of its row in a raw block.
    column : str
        The name of its column; "" where the whole row is bad.
    reason : Reason
    value : str
        What the cell holds.
    """

    at: int
    column: str
    reason: Reason
    value: str


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used.

    Parameters
    ----------
    file : str
        The name of the file or partition.
    row : int
        The number of the row in the file, counted from 1 without the header; 0 stands for the file itself.
    column : str
        The column of the bad cell; "" where the whole row is bad.
    reason : str
        One of `Reason`.
    value : str
        What the cell holds.
    """

    file: str
    row: int
    column: str
    reason: str
    value: str

    def __str__(self) -> str:
        column = f", column {self.column!r}" if self.column else ""
        value = f" ({self.value!r})" if self.value else ""
        file = printable(self.file, keep="")
        where = f"{file}, row {self.row}" if self.row else file
        return f"{where}{column}: {self.reason}{value}"


class TooManyBadRows(SourceError):
    """There are more bad rows than `max_bad`; the message lists the first of them."""


class Quarantine:
    """Counts bad rows, writes them to a file, and raises TooManyBadRows where there are too many.

    Parameters
    ----------
    path : path, optional
        A CSV file with the columns file, row, column, reason and value, in the order of reading. It is created by
        `open`, or when the first rows are taken, for its owner alone, and locked against other processes until
        it is closed. Text that a spreadsheet would take for a formula has an apostrophe in front, see
        `kalprox.base.text.csv_cell`; `read_quarantine` removes it.
    max_bad : int or str, optional
        The maximum number of bad rows, or a percentage of the rows read, such as "1%". A percentage is checked at the
        end and, to stop early, once more than 10,000 rows have been read. The default is 0 without a `path`, and no
        limit with one.
    resume : dict, optional
        What `state` returned in the run to resume. The file is truncated to its length at that time.

    Attributes
    ----------
    bad, read : int
        The number of bad rows, and of all rows read.
    noted : int
        The number of rows that were written and are not bad; see `note`.
    first : list of BadRow
        The first bad rows.

    Examples
    --------
    >>> quarantine = Quarantine(max_bad=1)
    >>> quarantine.take([BadRow("a.csv", 3, "distance", Reason.MISSING, "")], 100)
    >>> quarantine.bad, quarantine.read
    (1, 100)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        max_bad: int | str | None = None,
        *,
        resume: dict[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.limit, self.share = _limit(max_bad, path)
        state = resume or {"bytes": 0, "bad": 0, "read": 0, "first": []}
        self.bad, self.read, self.noted = int(state["bad"]), int(state["read"]), int(state.get("noted", 0))
        self.first = [BadRow(**row) for row in state["first"]]
        self._size = int(state["bytes"])  # of the file
        self._file: BinaryIO | None = None if path is None or resume is None else _open(path, self._size)
        self._closed = False
        self._unseen = any(row.reason == Reason.UNSEEN for row in self.first)

    def open(self) -> None:
        """Create the file, with its header, before any row is taken; later calls do nothing."""
        if self.path is not None and self._file is None and not self._closed:
            self._file = open_locked(self.path)
            self._write(b"file,row,column,reason,value\n")

    def take(self, bad_rows: Sequence[BadRow], n_read: int) -> None:
        """Add the bad rows among the next `n_read` rows; raise TooManyBadRows where there are too many."""
        self.bad, self.read = self.bad + len(bad_rows), self.read + n_read
        self.first += bad_rows[: _SHOWN - len(self.first)]
        self._unseen |= any(row.reason == Reason.UNSEEN for row in bad_rows)
        self._write_rows(bad_rows)
        self._check(early=True)

    def note(self, rows: Sequence[BadRow]) -> None:
        """Write rows that are not bad but worth a look, such as outliers: they do not count as bad rows."""
        self.noted += len(rows)
        self._write_rows(rows)

    def finish(self) -> None:
        """Close the file, and check the percentage over all rows."""
        self.open()
        self.close()
        self._check(early=False)

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        if self._file is not None:
            self._file.close()
            self._file = None

    def state(self) -> dict[str, Any]:
        """What `resume` takes, in JSON's types. All rows so far are written to the disk first."""
        self.open()
        if self._file is not None:
            self._file.flush()
            flush_to_disk(self._file.fileno())
        counts = {"bytes": self._size, "bad": self.bad, "read": self.read, "noted": self.noted}
        return {**counts, "first": [vars(row) for row in self.first]}

    def _write_rows(self, rows: Sequence[BadRow]) -> None:
        self.open()
        if rows and self._file is not None:
            lines = (csv_line((row.file, str(row.row), row.column, row.reason, row.value)) for row in rows)
            self._write("".join(lines).encode("utf-8", "backslashreplace"))

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        self._file.write(data)
        self._size += len(data)

    def _check(self, *, early: bool) -> None:
        over = self.limit is not None and self.bad > self.limit
        if self.share is not None and not (early and self.read <= _MIN_ROWS):
            over = self.bad > self.share * self.read
        if not over:
            return
        allowed = f"{self.limit:,}" if self.limit is not None else f"{self.share:.6%}".rstrip("0%").rstrip(".") + "%"
        rows = "\n  ".join(map(str, self.first)) + ("\n  ..." if self.bad > len(self.first) else "")
        self.close()
        raise TooManyBadRows(
            Text.of(
                f"{self.bad:,} bad of {self.read:,} rows read, more than the {allowed} allowed:\n  {rows}\n",
                *_remedies(self.first),
                worded("Allow more with {max_bad}: a number, or a percentage such as 1%."),
                _UNSEEN if self._unseen else "",
            )
        )


def _remedies(rows: Sequence[BadRow]) -> list[Text]:
    """What may be changed about how the file is read, given some of its bad rows."""
    remedies = []
    if any(row.reason == Reason.NOT_UTF8 for row in rows):
        remedies.append(worded("Use {encoding='latin-1'} if the file is in Latin-1, as older programs write it. "))
    values = [row.value for row in rows if row.reason == Reason.NOT_NUMBER]
    if any(_DECIMAL_COMMA.fullmatch(value) for value in values):
        remedies.append(worded("Use {decimal=','} to read numbers with decimal commas. "))
    marks = [found[1] for value in values if (found := _THOUSANDS.fullmatch(value))]
    if marks:
        use = parameter("thousands", marks[0])
        remedies.append(worded("Use {} to read numbers with marks between thousands. ", use))
    if any(row.reason == Reason.UNSEEN_CLASS for row in rows):
        remedies.append(
            worded(
                "An unseen class is neither listed nor one that the model was fitted to: list it with {classes}, or "
                "correct the cell. "
            )
        )
    return remedies


def read_quarantine(path: str | os.PathLike[str]) -> list[BadRow]:
    """The bad rows in a file that a `Quarantine` has written."""
    with open(path, encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return [
        BadRow(from_csv_cell(name), int(row), from_csv_cell(column), reason, from_csv_cell(value))
        for name, row, column, reason, value in rows
    ]


def _limit(max_bad: int | str | None, path: object) -> tuple[int | None, float | None]:
    """The limit as (number, None) or (None, share); (None, None) for no limit."""
    if max_bad is None:
        return (0 if path is None else None), None
    text = str(max_bad).strip()
    try:
        number = float(text.removesuffix("%")) if text.endswith("%") else int(text)
    except ValueError:
        number = -1
    if not number >= 0 or (text.endswith("%") and number > 100):
        raise SourceError(f"max_bad must be a number of rows >= 0 or a percentage such as 1%; got {max_bad!r}.")
    return (None, number / 100) if text.endswith("%") else (int(number), None)


def _open(path: str | os.PathLike[str], size: int) -> BinaryIO:
    """Open the file of a run to resume, and truncate it to `size` bytes."""
    if not os.path.exists(path):
        raise SourceError(f"{path}: the quarantine file of the run to resume does not exist.")
    if os.path.getsize(path) < size:
        raise SourceError(f"{path}: the quarantine file is shorter than when the run to resume was saved.")
    return open_locked(path, size)


MAX_EXAMPLES = 5
_MAX_COLUMNS = 5  # that a text names
_KEPT = 512  # hashes of levels


Note = TypeVar("Note", "ColumnNote", "HashNote", tuple[str, ...])


class UnknownLevels(SourceError):
    """A column has cells, and the model knows the level of none of them."""


@dataclass(frozen=True)
class ColumnNote:
    """How many cells of a column a note is about, how many cells are filled, and the first different values."""

    count: int
    filled: int
    examples: tuple[str, ...] = ()

    def __add__(self, other: "ColumnNote") -> "ColumnNote":
        examples = tuple(dict.fromkeys(self.examples + other.examples))[:MAX_EXAMPLES]
        return ColumnNote(self.count + other.count, self.filled + other.filled, examples)

    def __str__(self) -> str:
        values = ", ".join(map(repr, self.examples)) + (", ..." if len(self.examples) == MAX_EXAMPLES else "")
        return f"{self.count:,} of {self.filled:,}" + (f" ({values})" if values else "")


@dataclass(frozen=True)
class HashNote:
    """How many levels of a hashed column there are, in how many bins.

    Up to 512 levels are counted. Of more, the 512 smallest hashes tell the number to some 4%: hashes are uniform.

    Attributes
    ----------
    bins : int
    smallest : tuple of int
        The smallest different hashes of levels, at most 512, sorted; see `kalprox.sources.labels.level_hash`.

    Examples
    --------
    >>> note = HashNote.of(4, np.array([1, 5, 6], np.uint64)) + HashNote.of(4, np.array([6, 7], np.uint64))
    >>> note.levels, note.shared
    (4, 2)
    """

    bins: int
    smallest: tuple[int, ...] = ()

    @classmethod
    def of(cls, bins: int, hashes: np.ndarray) -> "HashNote":
        """The note about levels with these hashes, which must be different ones."""
        return cls(bins, tuple(np.sort(hashes)[:_KEPT].tolist()))

    def __add__(self, other: "HashNote") -> "HashNote":
        return HashNote(self.bins, tuple(sorted({*self.smallest, *other.smallest})[:_KEPT]))

    @property
    def levels(self) -> int:
        """The number of levels."""
        if len(self.smallest) < _KEPT:
            return len(self.smallest)
        return round((_KEPT - 1) * 2.0**48 / self.smallest[-1])

    @property
    def shared(self) -> int:
        """The number of levels that share their bin with another level; of more than 512, the expected number."""
        if len(self.smallest) < _KEPT:
            _, counts = np.unique(np.array(self.smallest, np.uint64) % np.uint64(self.bins), return_counts=True)
            return int(counts[counts > 1].sum())
        return round(self.levels * (1 - (1 - 1 / self.bins) ** (self.levels - 1)))

    def __str__(self) -> str:
        about = "about " if len(self.smallest) == _KEPT else ""
        return f"{about}{self.shared:,} of {about}{self.levels:,} levels share one of {self.bins:,} bins with others"


@dataclass(frozen=True)
class Notes:
    """Notes about the cells that were read. They add.

    Attributes
    ----------
    unknown : dict of str to ColumnNote
        For each categorical column with filled cells, those with a level that the model does not know.
    rounded : dict of str to ColumnNote
        For each column of numbers that has any, the numbers with more digits than float64 holds, such as integers above
        2^53.
    hashed : dict of str to HashNote
        For each hashed column, its levels and bins.
    missing : dict of str to ColumnNote
        For each feature that has any, its missing cells, where these may be missing; those of all rows are counted.
    unlabelled : dict of str to ColumnNote
        The same of the target.
    units : dict of str to tuple of str
        For each column of numbers that has any, the units that stood with them.

    Examples
    --------
    >>> notes = Notes({"carrier": ColumnNote(2, 10, ("XX", "YY"))}) + Notes({"carrier": ColumnNote(0, 5)})
    >>> list(notes.texts())
    ["Unknown levels, encoded as zeros: column 'carrier', 2 of 15 ('XX', 'YY')."]
    """

    unknown: Mapping[str, ColumnNote] = field(default_factory=dict)
    rounded: Mapping[str, ColumnNote] = field(default_factory=dict)
    hashed: Mapping[str, HashNote] = field(default_factory=dict)
    missing: Mapping[str, ColumnNote] = field(default_factory=dict)
    unlabelled: Mapping[str, ColumnNote] = field(default_factory=dict)
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __add__(self, other: "Notes") -> "Notes":
        parts = {one.name: _added(getattr(self, one.name), getattr(other, one.name)) for one in fields(self)}
        units = {name: tuple(dict.fromkeys(both)) for name, both in parts.pop("units").items()}
        return Notes(**parts, units=units)

    @property
    def unknown_levels(self) -> dict[str, ColumnNote]:
        """The columns that have unknown levels."""
        return {name: note for name, note in self.unknown.items() if note.count}

    @property
    def all_unknown(self) -> dict[str, ColumnNote]:
        """The columns of which no cell has a known level."""
        return {name: note for name, note in self.unknown_levels.items() if note.count == note.filled}

    @property
    def n_unlabelled(self) -> int:
        """The number of rows without a target."""
        return sum(note.count for note in self.unlabelled.values())

    def texts(self) -> Iterator[str]:
        """A sentence for each kind of note, which names the columns, the number of cells, and examples."""
        if unknown := self.unknown_levels:
            yield f"Unknown levels, encoded as zeros: {listed(unknown.items())}."
        if self.rounded:
            yield (
                f"Numbers with more digits than float64 holds, which were rounded: {listed(self.rounded.items())}. If "
                "they are identifiers, make the column categorical or leave it out."
            )
        if mixed := {name: f"with {' and '.join(units)}" for name, units in self.units.items() if len(units) > 1}:
            yield (
                f"Numbers with different units, none of which was converted: {listed(mixed.items())}. Give each column "
                "one unit."
            )
        if shared := {name: note for name, note in self.hashed.items() if note.shared}:
            yield f"Hashed levels that share a coefficient: {listed(shared.items())}. More bins separate them."
        if missing := {name: note for name, note in self.missing.items() if note.count}:
            yield f"Missing features, which were filled in: {listed(missing.items())}."
        if self.n_unlabelled:
            yield f"Rows without a target, which were not learned: {listed(self.unlabelled.items())}."

    def without_examples(self) -> "Notes":
        """The notes without values of cells."""

        def bare(notes: Mapping[str, ColumnNote]) -> dict[str, ColumnNote]:
            return {name: replace(note, examples=()) for name, note in notes.items()}

        # a hash tells which of some values a level has
        return replace(self, unknown=bare(self.unknown), rounded=bare(self.rounded), hashed={})


NO_NOTES = Notes()


def check_known(notes: Notes, levels: Mapping[str, Sequence[str]]) -> None:
    """Raise UnknownLevels where no cell of a column has a level that is known.

    Parameters
    ----------
    notes : Notes
    levels : mapping of str to sequence of str
        The levels that are known, by column.
    """
    for name, note in notes.all_unknown.items():
        known = ", ".join(map(repr, levels[name][:MAX_EXAMPLES])) + (
            ", ..." if len(levels[name]) > MAX_EXAMPLES else ""
        )
        raise UnknownLevels.worded(
            "Column {} has no level that the model knows: {} are unknown; the model knows {}. Give the column the "
            "values that the model was fitted to. If they are new levels, to be encoded as zeros, predict with "
            "{unseen='zero'}.",
            repr(name),
            note,
            known,
        )


def listed(notes: Iterable[tuple[str, object]]) -> str:
    """The first columns with their notes, and the number of other columns."""
    texts = [f"column {name!r}, {note}" for name, note in notes]
    more = len(texts) - _MAX_COLUMNS
    return "; ".join(texts[:_MAX_COLUMNS]) + (f"; and {more:,} more columns" if more > 0 else "")


def _added(one: Mapping[str, Note], other: Mapping[str, Note]) -> dict[str, Note]:
    return {
        name: one[name] + other[name] if name in one and name in other else {**other, **one}[name]
        for name in {**one, **other}
    }
