"""What must be said about the cells of columns that were read: unknown levels, rounded numbers, shared bins."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import numpy as np

from kalprox.base.text import worded
from kalprox.sources.files import SourceError

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
        raise UnknownLevels(
            worded(
                "Column {} has no level that the model knows: {} are unknown; the model knows {}. Give the column the "
                "values that the model was fitted to. If they are new levels, to be encoded as zeros, predict with "
                "{unseen='zero'}.",
                repr(name),
                note,
                known,
            )
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
