"""Inferring the kinds of columns from the first rows of a file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kalprox.sources._arrow import pa
from kalprox.sources.cell_parsing import parse_days, parse_numbers
from kalprox.sources.cell_types import is_date, is_label, is_number, is_text, plain
from kalprox.sources.files import SourceError, Unreadable
from kalprox.sources.levels import same_levels
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers import reader
from kalprox.sources.readers.base import check_names

__all__ = ["FeatureKinds", "FirstRows", "first_rows", "infer_features"]


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a file.

    Parameters
    ----------
    file : str
        The name of the file.
    table : pyarrow.Table
        The rows, as they are in the file.
    text_may_be_number : bool
        Whether the format stores numbers as text, so that a column of text may be one of numbers.
    """

    file: str
    table: Any
    text_may_be_number: bool


def first_rows(
    files: Iterable[Path],
    names: list[str] | None,
    needed: list[str],
    rows: int,
    options: dict[str, Any],
    *,
    skip_unreadable: bool,
) -> FirstRows:
    """The first `rows` rows of the first file that has any.

    Parameters
    ----------
    files : iterable of Path
    names : list of str, or None
        The columns to read; None reads all columns.
    needed : list of str
        The columns that must be there, exactly once.
    rows : int
    options : dict
        Keyword arguments of `kalprox.sources.readers.reader`.
    skip_unreadable : bool
        Whether to go on with the next file where one cannot be read.
    """
    rows = min(rows, 2**62)  # more is all of them, and not what pyarrow can count to
    for file in files:
        opened = reader(file, batch_rows=rows, **options)
        try:
            if opened.empty:
                continue
            there = opened.names()
            if there is not None:
                check_names(str(file), there, [*needed, *(there if names is None else names)])
            table = opened.head(names, rows)
        except Unreadable:
            if not skip_unreadable:
                raise
            continue
        finally:
            opened.close()
        if table is not None and table.num_rows:
            check_names(str(file), table.column_names, names or needed)
            return FirstRows(str(file), table, opened.text_may_be_number)
    raise SourceError(f"There are no rows in {', '.join(str(file) for file in files)[:500]}.")


class FeatureKinds(NamedTuple):
    """The numeric features, those of them that are true or false, and the levels of each categorical feature.

    Levels that are not given are None.
    """

    numeric: tuple[str, ...]
    booleans: tuple[str, ...]
    levels: dict[str, tuple[str, ...] | None]


def infer_features(
    first: FirstRows,
    numbers: Sequence[str],
    features: Sequence[str],
    categorical: Mapping[str, Sequence[str] | None],
    dates: Sequence[str],
) -> FeatureKinds:
    """The kinds of the features.

    Parameters
    ----------
    first : FirstRows
    numbers : sequence of str
        The columns that must be numeric: the target and the weight.
    features : sequence of str
    categorical : dict of str to sequence of str, or None
        The features that are categorical, with their levels; None where they are not given.
    dates : sequence of str
        The features that are dates.
    """
    file, table = first.file, first.table
    check_names(file, features, [*categorical, *dates])
    for name in numbers:
        if (kind := _kind(table.column(name), first.text_may_be_number)) != "number":
            raise SourceError(f"{file}: column {name!r} must hold numbers; it holds {kind}.")
    numeric: list[str] = []
    booleans: list[str] = []
    levels: dict[str, tuple[str, ...] | None] = {}
    for name in features:
        if name in dates:
            continue
        if name in categorical and _can_be_levels(table.column(name)):
            kind = "text"
        else:
            kind = _kind(table.column(name), first.text_may_be_number)
        if kind == "number":
            numeric.append(name)
            if pa.types.is_boolean(plain(table.column(name)).type):
                booleans.append(name)
        elif kind == "text":
            given = categorical.get(name)
            if given and (same := same_levels(given)):
                raise SourceError(
                    f"The levels {same[0]!r} and {same[1]!r} of column {name!r} are the same value: list one of them."
                )
            levels[name] = tuple(given) if given else None
        elif kind == "date":
            raise SourceError(f"{file}: column {name!r} holds dates. List it in dates, or leave it out.")
        else:
            raise SourceError(f"{file}: column {name!r} holds {kind}, which cannot be a feature. Leave it out.")
    return FeatureKinds(tuple(numeric), tuple(booleans), levels)


def _kind(column: Any, text_may_be_number: bool) -> str:
    """The kind of most cells of a column: "number", "date", "text", or the name of another type."""
    column = plain(column)
    if is_number(column.type):
        return "number"
    if is_date(column.type):
        return "date"
    if not is_text(column.type):
        return str(column.type)
    _, faults = parse_numbers(column)
    why = faults.why if faults else []
    missing = why.count(Reason.MISSING)
    others = len(why) - missing - why.count(Reason.NOT_FINITE)
    filled = len(column) - missing
    if not filled or (text_may_be_number and 2 * others <= filled):
        return "number"
    _, faults = parse_days(column)
    good = len(column) - (len(faults.at) if faults else 0)
    return "date" if 2 * good >= filled else "text"


def _can_be_levels(column: Any) -> bool:
    kind = plain(column).type
    return is_text(kind) or is_label(kind)
