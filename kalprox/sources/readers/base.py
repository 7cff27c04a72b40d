"""What readers take and give."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from kalprox.sources._arrow import pa
from kalprox.sources.cell_parsing import is_date, is_number, is_text
from kalprox.sources.files import SourceError, Unreadable
from kalprox.sources.quarantine import Reason

__all__ = ["Cell", "RawBlock", "Reader", "Wanted", "check_names", "check_types", "guarded"]


class Cell(NamedTuple):
    """A bad cell: the position of its row in a piece, its column ("" for the whole row), why, and what was there."""

    at: int
    column: str
    reason: Reason
    value: str


@dataclass(frozen=True)
class Wanted:
    """The columns to read: as numbers, as text, as dates (text or a type of their own)."""

    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.numbers + self.texts + self.dates))


@dataclass(frozen=True)
class RawBlock:
    """Consecutive rows of a file: `read` of them, those at `rows` in `table` (None: all), others bad as a whole.

    Reading can go on from `offset`, which is the same for the same rows: bytes of text, or rows.
    """

    table: Any
    read: int
    offset: int
    rows: np.ndarray | None = None
    bad: list[Cell] = field(default_factory=list)
    sha256: str | None = None


class Reader(Protocol):
    """One file: its columns and its rows."""

    typeless: bool  # whether text may stand for a number

    def names(self) -> list[str] | None:
        """The columns there, or None where only the rows say; also None for a file without a byte (see `empty`)."""

    @property
    def empty(self) -> bool:
        """Whether the file has not a byte."""

    def rows(self) -> int | None:
        """How many rows there are, where the format says it."""

    def head(self, names: Sequence[str] | None, rows: int) -> Any:
        """The first `rows` rows (or fewer) as a table, as they are: to look at."""

    def blocks(self, wanted: Wanted, start: int = 0, sha256: str | None = None) -> Iterator[RawBlock]:
        """The rows from `start` on; `sha256` is of the bytes before it, for a stream that cannot seek."""

    def close(self) -> None: ...


@contextmanager
def guarded(file: str, kind: str) -> Iterator[None]:
    """Whatever goes wrong within is the file's fault: damaged bytes make pyarrow raise errors of every kind."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        told = (str(error).splitlines() or [""])[0][:200]
        raise Unreadable(f"{file}: not a whole {kind} file ({type(error).__name__}: {told}).") from error


def first_rows(batches: Iterable[Any], rows: int) -> Any:
    """A table of the first rows, read no further than they need; None where there is no batch."""
    taken, count = [], 0
    for batch in batches:
        taken.append(batch)
        count += batch.num_rows
        if count >= rows:
            break
    return pa.Table.from_batches(taken).slice(0, rows) if taken else None


def check_names(file: str, there: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse a needed column that is missing or there twice."""
    for name in needed:
        if (count := there.count(name)) == 1:
            continue
        if count:
            raise SourceError(f"{file}: there are {count} columns {name!r}. Rename them, or leave this one out.")
        near = difflib.get_close_matches(name, there, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        shown = ", ".join(map(repr, there[:20])) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
        raise SourceError(f"{file}: there is no column {name!r}.{meant} There are {shown[:2000]}.")


def check_types(file: str, schema: Any, wanted: Wanted) -> None:
    """Refuse a column whose type cannot be read as it is wanted."""
    for names, as_what, others in (
        (wanted.numbers, "numbers", is_number),
        (wanted.texts, "levels", is_number),
        (wanted.dates, "dates", lambda kind: is_date(kind) or pa.types.is_null(kind)),
    ):
        for name in names:
            kind = schema.field(name).type
            cell = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not is_text(cell) and not others(cell):
                raise SourceError(f"{file}: column {name!r} is of type {kind}, which cannot be read as {as_what}.")
