"""Columns: what is wanted of a table, and a table's rows as arrays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kalprox.sources import cell_parsing as cells
from kalprox.sources.cell_parsing import Faults, shown
from kalprox.sources.files import Replay, SourceError, Unreadable
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers import Wanted, reader
from kalprox.sources.readers.base import Cell, check_names

__all__ = ["Columns"]

Levels = Mapping[str, Sequence[str] | None]


@dataclass(frozen=True)
class Columns:
    """Target, weight and features of a table, and how each feature becomes numbers.

    numeric: as they are. categorical: one column of 0 and 1 for each level (without the first, where `drop_first`); a
    level that is not among them is all zeros, or a bad cell, as `unseen` says ("zero" or "reject"). dates: ISO 8601
    text, dates or timestamps as days since 1970-01-01. features: the order of them all.
    """

    target: str | None = None
    weight: str | None = None
    numeric: tuple[str, ...] = ()
    categorical: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: tuple[str, ...] = ()
    drop_first: bool = False
    unseen: str = "zero"
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("numeric", tuple(self.numeric))
        put("dates", tuple(self.dates))
        put("categorical", {name: tuple(levels) for name, levels in self.categorical.items()})
        put("features", tuple(self.features) or (*self.numeric, *self.categorical, *self.dates))
        kinds = (*self.numeric, *self.categorical, *self.dates)
        if len(set(kinds)) < len(kinds) or sorted(self.features) != sorted(kinds):
            raise SourceError("Every feature must be one of numeric, categorical or dates, once.")
        if self.unseen not in ("zero", "reject"):
            raise SourceError(f"unseen must be 'zero' or 'reject'; got {self.unseen!r}.")
        if {self.target, self.weight} & set(self.features) or (self.target is not None and self.target == self.weight):
            raise SourceError("The target, the weight and the features must be different columns.")

    @property
    def names(self) -> list[str]:
        """Names of the columns of X: "distance", "carrier=UA", ..."""
        return [name for feature in self.features for name in self._expanded(feature)]

    @property
    def groups(self) -> list[int]:
        """For each column of X the number of the feature that it came from: the levels of one go together."""
        return [i for i, feature in enumerate(self.features) for _ in self._expanded(feature)]

    @property
    def wanted(self) -> Wanted:
        """The columns of a file that are needed."""
        ends = tuple(name for name in (self.target, self.weight) if name is not None)
        return Wanted(numbers=ends + self.numeric, texts=tuple(self.categorical), dates=self.dates)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Columns":
        return cls(**data)

    @classmethod
    def infer(
        cls,
        files: Sequence[Path],
        target: str | None,
        features: Sequence[str] | None = None,
        categorical: Sequence[str] | Levels | None = None,
        dates: Sequence[str] = (),
        weight: str | None = None,
        rows: int = 10_000,
        max_levels: int = 1000,
        drop_first: bool = False,
        unseen: str = "zero",
        *,
        format: str | None = None,
        encoding: str = "utf-8",
        delimiter: str | None = None,
        stdin: BinaryIO | Replay | None = None,
        skip_unreadable: bool = False,
    ) -> "Columns":
        """Columns from a first look at the first `rows` rows of the first file that has any.

        features: by default all columns but target and weight. A column is numeric where at least half of its cells
        are numbers (the others will be bad cells), else categorical, its levels those of the look, sorted. Dates must
        be asked for.
        """
        options = {"format": format, "encoding": encoding, "delimiter": delimiter, "stdin": stdin}
        ends = [name for name in (target, weight) if name is not None]
        asked = None if features is None else [*ends, *features]
        file, table, typeless = _first_rows(files, asked, ends, rows, options, skip_unreadable)
        if features is None:
            features = [name for name in table.column_names if name not in ends]
        if not features:
            raise SourceError(f"{file}: there is no column to learn from but the target and the weight.")
        chosen = dict(categorical) if isinstance(categorical, Mapping) else dict.fromkeys(categorical or (), None)
        check_names(file, features, [*chosen, *dates])
        for name in ends:
            if (kind := _kind(table.column(name), typeless)) != "number":
                raise SourceError(f"{file}: column {name!r} must hold numbers; it holds {kind}.")
        numeric, levels = [], {}
        for name in features:
            kind = "date" if name in dates else "text" if name in chosen else _kind(table.column(name), typeless)
            if kind == "number":
                numeric.append(name)
            elif kind == "text":
                given = chosen.get(name)
                levels[name] = tuple(given) if given else _levels(file, name, table.column(name), max_levels)
            elif kind == "date" and name not in dates:
                raise SourceError(f"{file}: column {name!r} holds dates. Ask for it as one (dates), or leave it out.")
            elif kind != "date":
                raise SourceError(f"{file}: column {name!r} holds {kind}, which cannot be a feature. Leave it out.")
        return cls(target, weight, tuple(numeric), levels, tuple(dates), drop_first, unseen, tuple(features))

    def encode(self, table: Any) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, list[Cell]]:
        """(X, y, weights, bad) of a table: X (b, d) float64; bad has the first bad cell of each row that has one."""
        bad = _Bad(table)
        y = None if self.target is None else bad.checked(self.target, *cells.numbers(table.column(self.target)))
        w = None if self.weight is None else bad.checked(self.weight, *_weights(table.column(self.weight)))
        X = np.empty((table.num_rows, len(self.names)))
        at = 0
        for name in self.features:
            width = len(self._expanded(name))
            column = table.column(name)
            if name in self.categorical:
                codes = bad.checked(name, *self._coded(name, column))
                X[:, at : at + width] = 0.0
                hit = np.flatnonzero(codes >= 0)
                X[hit, at + codes[hit]] = 1.0
            else:
                values, faults = cells.days(column) if name in self.dates else cells.numbers(column)
                X[:, at] = bad.checked(name, values, faults)
            at += width
        return X, y, w, bad.sorted()

    def _expanded(self, feature: str) -> list[str]:
        if feature not in self.categorical:
            return [feature]
        return [f"{feature}={level}" for level in self.categorical[feature][self.drop_first :]]

    @cached_property
    def _known(self) -> dict[str, dict[bytes, int]]:
        """The number of each level's column; of a dropped one, -1."""
        return {
            name: {level.encode(): i - self.drop_first for i, level in enumerate(levels)}
            for name, levels in self.categorical.items()
        }

    def _coded(self, name: str, column: Any) -> tuple[np.ndarray, Faults | None]:
        codes, faults = cells.levels(column, self._known[name])
        if faults is not None and self.unseen == "zero":
            keep = [i for i, why in enumerate(faults.why) if why != Reason.UNSEEN]
            faults = Faults(faults.at[keep], [faults.why[i] for i in keep]) if keep else None
        return codes, faults


class _Bad:
    """The first bad cell of each row of a table."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.cells: dict[int, Cell] = {}

    def checked(self, name: str, values: np.ndarray, faults: Faults | None) -> np.ndarray:
        """`values`, once their bad cells are noted."""
        if faults is not None:
            column = cells.plain(self.table.column(name))
            for at, why in zip(faults.at.tolist(), faults.why, strict=True):
                if at not in self.cells:
                    value = "" if why == Reason.MISSING else shown(column, at)
                    self.cells[at] = Cell(at, name, why, value)
        return values

    def sorted(self) -> list[Cell]:
        return [self.cells[at] for at in sorted(self.cells)]


def _weights(column: Any) -> tuple[np.ndarray, Faults | None]:
    values, faults = cells.numbers(column)
    if not (values < 0).any():
        return values, faults
    why = dict(zip(faults.at.tolist(), faults.why, strict=True)) if faults else {}
    why |= dict.fromkeys((i for i in np.flatnonzero(values < 0).tolist() if i not in why), Reason.NEGATIVE_WEIGHT)
    return values, Faults(np.array(sorted(why)), [why[i] for i in sorted(why)])


def _first_rows(
    files: Iterable[Path],
    asked: list[str] | None,
    ends: list[str],
    rows: int,
    options: dict[str, Any],
    skip_unreadable: bool,
) -> tuple[str, Any, bool]:
    """Name, first rows and typelessness of the first file that has rows; the needed columns are there, once."""
    for file in files:
        found = reader(file, batch_rows=rows, **options)
        try:
            if found.empty:
                continue
            there = found.names()
            if there is not None:
                check_names(str(file), there, [*ends, *(there if asked is None else asked)])
            table = found.head(asked, rows)
        except Unreadable:
            if not skip_unreadable:
                raise
            continue
        finally:
            found.close()
        if table is not None and table.num_rows:
            check_names(str(file), table.column_names, asked or ends)
            return str(file), table, found.typeless
    raise SourceError(f"There is no row in {', '.join(str(file) for file in files)[:500]}.")


def _kind(column: Any, typeless: bool) -> str:
    """What most cells of a column are: "number", "date", "text", or the name of a type that is none of them."""
    column = cells.plain(column)
    if cells.is_number(column.type):
        return "number"
    if cells.is_date(column.type):
        return "date"
    if not cells.is_text(column.type):
        return str(column.type)
    _, faults = cells.numbers(column)
    why = faults.why if faults else []
    missing = why.count(Reason.MISSING)
    others = len(why) - missing - why.count(Reason.NOT_FINITE)
    filled = len(column) - missing
    if not filled or (typeless and 2 * others <= filled):
        return "number"
    _, faults = cells.days(column)
    good = len(column) - (len(faults.at) if faults else 0)
    return "date" if 2 * good >= filled else "text"


def _levels(file: str, name: str, column: Any, max_levels: int) -> tuple[str, ...]:
    found = cells.distinct(column)
    if len(found) > max_levels:
        raise SourceError(
            f"{file}: column {name!r} has {len(found):,} different texts, more than {max_levels:,}. "
            "Leave it out, or give its levels."
        )
    return tuple(found)
