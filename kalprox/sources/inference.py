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
from kalprox.sources.readers.notation import PLAIN, Likeness, Notation, likeness

__all__ = ["FeatureKinds", "FirstRows", "first_rows", "holds_dates", "infer_features"]


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
    notation : Notation
        The marks in numbers that are written as text.
    samples : bool
        Whether error messages may contain values of cells.
    """

    file: str
    table: Any
    text_may_be_number: bool
    notation: Notation = PLAIN
    samples: bool = True


def first_rows(
    files: Iterable[Path],
    names: list[str] | None,
    needed: list[str],
    rows: int,
    options: dict[str, Any],
    *,
    skip_unreadable: bool,
    exclude: Sequence[str] = (),
) -> FirstRows:
    """The first `rows` rows of the first file that has any.

    Parameters
    ----------
    files : iterable of Path
    names : list of str, or None
        The columns to read; None reads all columns that have a name and are not in `exclude`.
    needed : list of str
        The columns that must be there, exactly once.
    rows : int
    options : dict
        Keyword arguments of `kalprox.sources.readers.reader`.
    skip_unreadable : bool
        Whether to go on with the next file where one cannot be read.
    exclude : sequence of str
        The columns to leave out, which must be there, and not among those needed.
    """
    if both := [name for name in exclude if name in needed]:
        raise SourceError(f"exclude must not have the target, the weight or the clusters; got {both[0]!r}.")
    rows = min(rows, 2**62)  # more is all of them, and not what pyarrow can count to
    for file in files:
        opened = reader(file, batch_rows=rows, **options)
        try:
            if opened.empty:
                continue
            there = opened.names()
            read = names
            if there is not None:
                check_names(str(file), there, [name for name in exclude if name not in there])
                read = [name for name in there if name and name not in exclude] if names is None else names
                check_names(str(file), there, [*needed, *read])
            table = opened.head(read, rows)
        except Unreadable:
            if not skip_unreadable:
                raise
            continue
        finally:
            opened.close()
        if table is not None and table.num_rows:
            check_names(str(file), table.column_names, names or needed)
            check_names(str(file), table.column_names if there is None else there, exclude if there is None else ())
            notation = Notation(options.get("decimal", "."), options.get("thousands"), options.get("units", ()))
            return FirstRows(str(file), table, opened.text_may_be_number, notation)
    raise SourceError(f"There are no rows in {', '.join(str(file) for file in files)[:500]}.")


class FeatureKinds(NamedTuple):
    """The numeric features, those of them that are true or false, the levels of categorical features, and the dates.

    Levels that are not given are None.
    """

    numeric: tuple[str, ...]
    booleans: tuple[str, ...]
    levels: dict[str, tuple[str, ...] | None]
    dates: tuple[str, ...]


def infer_features(
    first: FirstRows,
    numbers: Sequence[str],
    features: Sequence[str],
    categorical: Mapping[str, Sequence[str] | None],
    dates: Sequence[str],
    target: Sequence[str] = (),
) -> FeatureKinds:
    """The kinds of the features.

    Parameters
    ----------
    first : FirstRows
    numbers : sequence of str
        The columns that must be numeric: the target, the weight, the offset and the exposure.
    features : sequence of str
    categorical : dict of str to sequence of str, or None
        The features that are categorical, with their levels; None where they are not given.
    dates : sequence of str
        The features that are dates whatever their cells are. Others are found.
    target : sequence of str
        Which of `numbers` are columns of the target, for error messages.
    """
    file, table = first.file, first.table
    check_names(file, features, [*categorical, *dates])
    for name in numbers:
        if (kind := _kind(first, name)) != "number":
            like = _likeness(first, name) if kind == "text" else None
            holds = f"{kind}." if like is None else like.text(samples=first.samples)
            remedy = ""
            if like is None and name in target and _can_be_levels(table.column(name)):
                remedy = " If these are classes, use likelihood='bernoulli' for two of them, 'categorical' for more."
            raise SourceError(f"{file}: column {name!r} must hold numbers; it holds {holds}{remedy}")
    numeric: list[str] = []
    booleans: list[str] = []
    levels: dict[str, tuple[str, ...] | None] = {}
    found_dates = list(dates)
    for name in features:
        if name in dates:
            continue
        kind = "text" if name in categorical and _can_be_levels(table.column(name)) else _kind(first, name)
        if kind == "number":
            numeric.append(name)
            if pa.types.is_boolean(plain(table.column(name)).type):
                booleans.append(name)
        elif kind == "text":
            given = categorical.get(name)
            if name not in categorical and (like := _likeness(first, name)):
                raise SourceError(
                    f"{file}: column {name!r} holds {like.text(samples=first.samples)} If they are levels, "
                    f"use categorical={name!r} and to leave the column out exclude={name!r}."
                )
            if given and (same := same_levels(given)):
                raise SourceError(
                    f"The levels {same[0]!r} and {same[1]!r} of column {name!r} are the same value: list one of them."
                )
            levels[name] = tuple(given) if given else None
        elif kind == "date":
            found_dates.append(name)
        else:
            raise SourceError(
                f"{file}: column {name!r} holds {kind}, which cannot be a feature. Leave it out with exclude={name!r}."
            )
    return FeatureKinds(tuple(numeric), tuple(booleans), levels, tuple(found_dates))


def holds_dates(first: FirstRows, name: str) -> bool:
    """Whether most cells of a column are dates; raise SourceError unless they are dates or numbers."""
    if (kind := _kind(first, name)) not in ("number", "date"):
        raise SourceError(f"{first.file}: column {name!r} must hold times, numbers or dates; it holds {kind}.")
    return kind == "date"


def _likeness(first: FirstRows, name: str) -> Likeness | None:
    """What a column of text looks like; marks cannot be given where the format has numbers of its own."""
    like = likeness(first.table.column(name))
    marks = like is not None and like.remedy.startswith("Use ")
    if like is None or not marks or first.text_may_be_number:
        return like
    return like._replace(what=f"{like.what} as text", remedy="Write them as numbers.")


def _kind(first: FirstRows, name: str) -> str:
    """The kind of most cells of a column: "number", "date", "text", or the name of another type."""
    column = plain(first.table.column(name))
    if is_number(column.type):
        return "number"
    if is_date(column.type):
        return "date"
    if not is_text(column.type):
        return str(column.type)
    cells, no_numbers = (column, ()) if first.notation.is_plain else first.notation.plain_numbers(column)
    _, faults = parse_numbers(cells)
    why = list(faults.values())
    missing = why.count(Reason.MISSING) - len(no_numbers)  # which are null
    others = len(why) - missing - why.count(Reason.NOT_FINITE)
    filled = len(column) - missing
    if not filled or (first.text_may_be_number and 2 * others <= filled):
        return "number"
    _, faults = parse_days(column)
    return "date" if 2 * (len(column) - len(faults)) >= filled else "text"


def _can_be_levels(column: Any) -> bool:
    kind = plain(column).type
    return is_text(kind) or is_label(kind)
