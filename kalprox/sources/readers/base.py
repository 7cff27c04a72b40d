"""The interface of readers: raw blocks of rows, as pyarrow tables."""

import difflib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from kalprox.base.memory import check_address_space
from kalprox.sources.arrow import is_date, is_label, is_number, is_text, pa
from kalprox.sources.files import MAX_RECORD, READERS, STDIN, Replay, SourceError, Unreadable, format_of, refuse_pipe
from kalprox.sources.files import stdin as standard_input
from kalprox.sources.quarantine import Cell
from kalprox.sources.readers.notation import Notation


@dataclass(frozen=True)
class Wanted:
    """The names of the columns to read: as numbers, as text, as dates (text or a date type), as labels (any type).

    Columns that are `kept` are read as they are, of any type; text for files of text.
    """

    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def keeping(self, names: tuple[str, ...]) -> "Wanted":
        """The same columns and those that are kept, none of which is converted to numbers while it is read."""
        return replace(self, numbers=tuple(name for name in self.numbers if name not in names), kept=names)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, each of them once."""
        return tuple(dict.fromkeys(self.numbers + self.texts + self.dates + self.labels + self.kept))


@dataclass(frozen=True)
class RawBlock:
    """Consecutive rows of a file, as they were read.

    Parameters
    ----------
    table : pyarrow.Table or RecordBatch
        The rows that could be split into cells.
    read : int
        The number of rows read, including those that could not.
    offset : int
        Where to resume after these rows: a number of bytes for text files, of rows for other files. The raw block that
        starts at an offset is the same in every run.
    rows : array of int, optional
        The positions among the rows read of the rows of `table`. The default is all rows.
    bad : list of Cell
        The bad cells that the reader found, and the rows that are bad as a whole.
    sha256 : str, optional
        For standard input, the digest of all bytes up to the offset.
    """

    table: Any
    read: int
    offset: int
    rows: np.ndarray | None = None
    bad: list[Cell] = field(default_factory=list)
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read.

    Parameters
    ----------
    format : str, optional
        The format of all files, such as "csv.gz". The default is the format that the suffix of each says.
    encoding, delimiter : str, optional
        The encoding of text files, and the delimiter of CSV files. By default the delimiter is found, and so are UTF-16
        and UTF-32, by their byte order marks.
    max_record : int
        The largest number of bytes in the header or a record of a text file; a longer record is a bad row.
    decimal, thousands, units : optional
        How numbers are written as text; see `kalprox.sources.readers.notation.Notation`.
    chunk_bytes, batch_rows : int
        The size of raw blocks: about `chunk_bytes` of a text file, at most `batch_rows` rows of a Parquet file.
    stdin : binary stream, optional
        The stream to read for the path "-". The default is the standard input of this process.
    """

    format: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    max_record: int = MAX_RECORD
    decimal: str = "."
    thousands: str | None = None
    units: tuple[str, ...] = ()
    chunk_bytes: int = 1 << 20
    batch_rows: int = 1 << 16
    stdin: Any = None

    notation: Notation = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", tuple(self.units))
        object.__setattr__(self, "notation", Notation(self.decimal, self.thousands, self.units))
        if self.stdin is not None:  # one object, which is rewound
            object.__setattr__(self, "stdin", standard_input(self.stdin))

    @property
    def replay(self) -> Replay:
        """The stream that is read for the path "-"."""
        return standard_input(self.stdin)

    def settings(self) -> dict[str, Any]:
        """The keyword arguments for a Reading of the same files, in blocks of another size."""
        names = [part.name for part in fields(Reading) if part.name not in ("chunk_bytes", "batch_rows", "notation")]
        return {name: getattr(self, name) for name in names}

    def identity(self) -> dict[str, Any]:
        """What determines the raw blocks."""
        own = self.settings() | {"chunk_bytes": self.chunk_bytes, "batch_rows": self.batch_rows}
        del own["stdin"]
        return own

    def open(self, path: Path, *, threads: int = 1) -> "Reader":
        """The reader of one file, which parses so many raw blocks of a text file at a time."""
        refuse_pipe(path)
        check_address_space()
        kind, _, _ = format_of(path, self.format).partition(".")
        module, _, name = READERS[kind].partition(".")
        found: Reader = getattr(import_module(f"kalprox.sources.readers.{module}"), name)(path, self, threads)
        return found


class Reader(ABC):
    """Reads one file.

    Parameters
    ----------
    path : Path
    reading : Reading
    threads : int
        The number of raw blocks of a text file to parse at a time.
    """

    text_may_be_number = True  # whether the format stores numbers as text

    def __init__(self, path: Path, reading: Reading, threads: int = 1) -> None:
        self.path, self.name, self.reading, self.threads = path, str(path), reading, threads

    @property
    def found(self) -> tuple[str, ...]:
        """How the file is written, where that was found and is not the default, such as "delimiter ';'"."""
        return ()

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether the file has no content at all."""

    def names(self) -> list[str] | None:
        """The names of the columns; None where the format has no header, or the file is empty."""
        return None

    def rows(self) -> int | None:
        """The number of rows; None where the format does not tell it."""
        return None

    @abstractmethod
    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        """The first rows, at most `rows` of them, with their types as they are in the file; None names: all columns."""

    @abstractmethod
    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        """The rows from offset `start` on; `sha256` is the digest of the bytes before it, for standard input."""

    def close(self) -> None:  # noqa: B027
        """Close the file, if it is open. It is opened again when rows are read."""


def first_rows(tables: Iterable[Any], rows: int) -> Any:
    """The first rows of some tables with the same columns, of which no more are read; None where there is none."""
    taken, count = [], 0
    for table in tables:
        taken.append(table)
        count += table.num_rows
        if count >= rows:
            break
    return pa.concat_tables(taken).slice(0, rows) if taken else None


_MORE_THAN_ANY = 1 << 47  # bytes: a damaged file may ask for more memory than a process can address


@contextmanager
def guarded(file: str, kind: str) -> Iterator[None]:
    """Turn any error into `Unreadable`: for a damaged file pyarrow raises errors of every kind.

    That the machine has no memory, or no room for another thread, says nothing about the file.
    """
    try:
        yield
    except SourceError:
        raise
    except pa.ArrowMemoryError as error:
        if max(map(int, re.findall(r"\d+", str(error))), default=0) >= _MORE_THAN_ANY:
            raise Unreadable(f"{file}: not a valid {kind} file.", f"ArrowMemoryError: {error}") from error
        raise MemoryError(
            f"There is not enough memory to read {file} ({error}). A smaller --memory needs less."
        ) from error
    except MemoryError:
        raise
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0][:200]
        if "launch worker thread" in first_line:
            raise OSError(f"{file} cannot be read: {first_line} Free memory, or allow more threads.") from error
        raise Unreadable(f"{file}: not a valid {kind} file.", f"{type(error).__name__}: {first_line}") from error


def check_names(file: str, there: Sequence[str], needed: Sequence[str]) -> None:
    """Raise SourceError where a needed column is missing or occurs twice."""
    counts = Counter(there)
    for name in needed:
        if (count := counts[name]) == 1:
            continue
        if count:
            raise SourceError(
                f"{file}: there are {count} columns {name!r}. Rename them, or leave them out with exclude={name!r}."
            )
        near = difflib.get_close_matches(name, there[:1000], n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        shown = ", ".join(map(repr, there[:20])) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
        raise SourceError(
            f"{file}: there is no column {name!r}.{meant} The columns are {shown[:2000]}.{_delimiter_hint(there)}"
        )


def _delimiter_hint(there: Sequence[str]) -> str:
    """What to do where a name looks like several names."""
    mark = next((mark for mark in (";", "\t", "|", ",") for name in there[:1000] if mark in name), None)
    return "" if mark is None else f" If {mark!r} separates names, give delimiter={mark!r}."


def check_types(file: str, schema: Any, wanted: Wanted) -> None:
    """Raise SourceError where a column has a type that cannot be read as wanted."""
    for names, as_what, allowed in (
        (wanted.numbers, "numbers", is_number),
        (wanted.texts, "levels", is_label),
        (wanted.dates, "dates", lambda kind: is_date(kind) or pa.types.is_null(kind)),
        (wanted.labels, "labels of clusters", is_label),
        (wanted.kept, "a column to keep", is_label),
    ):
        for name in names:
            kind = schema.field(name).type
            cell = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not is_text(cell) and not allowed(cell):
                raise SourceError(f"{file}: column {name!r} is of type {kind}, which cannot be read as {as_what}.")


class ColumnarReader(Reader):
    """A file of typed columns, read batch by batch."""

    def __init__(self, path: Path, reading: Reading, threads: int = 1) -> None:
        super().__init__(path, reading, threads)
        if path == STDIN:
            kind = format_of(path, reading.format)
            raise SourceError(f"Standard input must be csv, tsv or jsonl, or one of them with .gz; got {kind}.")

    @property
    def empty(self) -> bool:
        """Whether the file has no bytes."""
        return self.path.stat().st_size == 0

    @abstractmethod
    def schema(self) -> Any:
        """The pyarrow schema."""

    @abstractmethod
    def _batches(self, names: list[str], start: int) -> Iterator[tuple[Any, int]]:
        """Batches of these columns from row `start` on, where one begins; each with the number of its last row."""

    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema().names)

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        """The first rows; see `Reader`. No further batches are read."""
        batches = self._batches(self.names() if names is None else list(names), 0)
        return first_rows((pa.Table.from_batches([batch]) for batch, _ in batches), rows)

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        """The rows from row `start` on; see `Reader`."""
        schema = self.schema()
        check_names(self.name, schema.names, wanted.names)
        check_types(self.name, schema, wanted)
        for batch, end in self._batches(list(wanted.names), start):
            table, bad = self.reading.notation.plain_table(batch, wanted.numbers)
            yield RawBlock(table, batch.num_rows, end, bad=bad)
        self.close()
