"""What the columns of files hold: their kinds, the levels of categorical columns, and the classes of a target."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.text import Part, Text, as_option, parameter, worded
from kalprox.sources.arrow import is_date, is_label, is_number, is_text, pa, plain
from kalprox.sources.cells import (
    MISSING,
    Faults,
    cell_labels,
    distinct_cells,
    one_hot,
    parse_days,
    parse_levels,
    parse_numbers,
    parsed_labels,
    shown,
)
from kalprox.sources.files import STDIN, SourceError, Unreadable
from kalprox.sources.labels import LevelIndex, in_order, label_of, number_in, same_levels
from kalprox.sources.prefetch import parsers
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers import Reading
from kalprox.sources.readers.base import Wanted, check_names
from kalprox.sources.readers.notation import Likeness, likeness

MOST_CLASSES = 100
_SHOWN = 5  # classes that a message names


@dataclass(frozen=True)
class TargetClasses:
    """What is known of the classes of a target before its rows are read.

    Parameters
    ----------
    listed : tuple of str
        The classes, in their order. The default is all that are found in the rows, in sorted order.
    positive : str, optional
        Which of two classes is 1 in y. The default is the second.
    most : int
        The largest number of classes. More are an error.

    Examples
    --------
    >>> TargetClasses().arranged("late", {"yes": 3, "no": 9, "NA": 1})
    ('no', 'yes')
    >>> TargetClasses(positive="no").arranged("late", {"yes": 3, "no": 9})
    ('yes', 'no')
    """

    listed: tuple[str, ...] = ()
    positive: str | None = None
    most: int = MOST_CLASSES

    def arranged(self, column: str, counts: Mapping[str, int]) -> tuple[str, ...]:
        """Return the classes in their order: the listed ones, or those that were found in a column.

        Parameters
        ----------
        column : str
        counts : mapping of str to int
            The number of rows with each label, missing ones included; of no matter if classes are listed.

        Raises
        ------
        SourceError
            If there are fewer than two classes, or more than `most`, or if two of them are the same class.
        """
        found = _without_missing(counts)
        classes = self.listed or in_order(found)
        if same := same_levels(classes):
            raise SourceError(f"The classes {same[0]!r} and {same[1]!r} are the same value: list one of them.")
        self.check_number(column, dict.fromkeys(classes, 0) if self.listed else counts)
        if len(classes) < 2:
            what = f"one class only, {classes[0]!r}" if classes else "no class"
            raise SourceError.worded(
                "Column {} has {}: there is nothing to tell apart. Cells that are empty or hold NA, ?, - and the "
                "like are missing; if that is a class, list the classes with {classes}.",
                repr(column),
                what,
            )
        if not self.listed:
            _check_case(column, classes)
        return classes if self.positive is None else self._positive_last(column, classes)

    def check_number(self, column: str, counts: Mapping[str, int]) -> None:
        """Raise SourceError if a column has more classes than there may be; see `arranged`."""
        found = _without_missing(counts)
        if len(found) <= self.most:
            return
        some = ", ".join(map(repr, list(found)[:_SHOWN])) + (", ..." if len(found) > _SHOWN else "")
        if self.most == 2:
            _check_case(column, in_order(found))
            raise SourceError.worded(
                "Column {} has more than two classes: {}. Use {likelihood='categorical'} for several classes, or "
                "list two of them with {classes}: rows of another class are then bad rows.",
                repr(column),
                some,
            )
        advice = (
            "Did you mean a regression? For numbers use {likelihood='gaussian'}, {'poisson'|poisson} or another one."
        )
        raise SourceError.worded("Column {} has more than {} classes: {}. " + advice, repr(column), self.most, some)

    def _positive_last(self, column: str, classes: tuple[str, ...]) -> tuple[str, ...]:
        at = class_index(classes).find(None, label_of(self.positive))
        names = ", ".join(map(repr, classes))
        if at is None:
            raise SourceError.worded(
                "{positive} must be one of the classes of column {}; got {} of {}.",
                *map(repr, (column, self.positive)),
                names,
            )
        if len(classes) > 2:
            raise SourceError.worded(
                "{positive} must be left out unless there are two classes; column {} has {}: each of them has a "
                "probability.",
                repr(column),
                len(classes),
            )
        return classes[1 - at], classes[at]


def values_of_classes(classes: tuple[str, ...], kind: Any) -> np.ndarray:
    """Return classes as the values of a column of this pyarrow type that they are the labels of.

    >>> values_of_classes(("false", "true"), pa.bool_()), values_of_classes(("0", "1"), pa.float64())
    (array([False,  True]), array([0., 1.]))
    """
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return np.array([label == "true" for label in classes])
    if pa.types.is_integer(kind):
        return np.array([int(label) for label in classes])
    return np.array(classes, float if pa.types.is_floating(kind) else str)


def encode_classes(column: Any, classes: tuple[str, ...]) -> tuple[np.ndarray, Faults]:
    """Encode a pyarrow column of classes.

    A class is found however its value is spelled, see `LevelIndex`, and in upper and lower case unless two classes
    differ in nothing else. Cells that are empty, or hold NA and the like, are missing unless that is a class.

    Parameters
    ----------
    column : pyarrow.Array
    classes : tuple of str

    Returns
    -------
    y : array of shape (n,) or (n, m)
        For two classes 1 where the cell has the second one, else 0; for m of them a 1 in the column of the class.
    faults : Faults
        The bad cells: missing ones, and those of another class.
    """
    column = plain(column)
    codes, faults = parse_levels(column, class_index(classes))
    faults = {at: _why(column, at, why) for at, why in faults.items()}
    if len(classes) == 2:
        return np.maximum(codes, 0).astype(float), faults
    y = np.empty((len(codes), len(classes)))
    one_hot(codes, y)
    return y, faults


def _why(column: Any, at: int, why: Reason) -> Reason:
    """Why a cell is bad, in the words of classes."""
    if why != Reason.UNSEEN:
        return why
    return Reason.MISSING if shown(column, at).strip() in MISSING else Reason.UNSEEN_CLASS


def _without_missing(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: n for name, n in counts.items() if name not in MISSING}


def _check_case(column: str, classes: tuple[str, ...]) -> None:
    """Raise SourceError if two classes differ only in upper and lower case."""
    for one, other in pairwise(sorted(classes, key=str.casefold)):
        if one.casefold() == other.casefold():
            raise SourceError.worded(
                "The classes {} and {} of column {} differ only in upper and lower case. List the classes with "
                "{classes}: each once, to find it in any case, or both, to tell them apart.",
                *map(repr, (one, other, column)),
            )


@lru_cache(maxsize=8)
def class_index(classes: tuple[str, ...]) -> LevelIndex:
    """What finds the number of a class by its text, however it is spelled."""
    return LevelIndex({name: i for i, name in enumerate(classes)}, any_case=True)


SPOOL = 1 << 34  # bytes of standard input to store, by default


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


def _nothing(text: str) -> None:
    """What is done with a sentence by default."""


@dataclass(frozen=True, kw_only=True)
class Inference(Reading):
    """How files are read, and what is known of their columns before they are inferred.

    Parameters
    ----------
    files : sequence of Path
    weight, cluster, offset, exposure, low, high, time : optional
        See `kalprox.sources.columns.TableColumns`.
    classes : TargetClasses, optional
        That the cells of the target are classes, and what is known of them. The default is a target of numbers.
    categorical : sequence of str, or dict of str to levels, optional
        Features to one-hot encode even if their cells are numbers, with their levels where they are known: the
        first level is then the reference.
    dates : sequence of str
        Features that are dates, also where most of their cells are not.
    exclude : sequence of str
        Columns to leave out.
    rows : int
        The number of rows to infer the types from.
    max_levels : int
        The largest number of levels of a categorical feature that are found; more are an error.
    skip_unreadable : bool
        Whether to go on with the next file where one cannot be read.
    samples : bool
        Whether error messages may contain values of cells.
    spool : int
        The largest number of bytes of standard input to store in a temporary file, where levels must be found.
    watch : callable
        Called with a sentence before levels are looked for, where that may take long.
    **reading
        See `kalprox.sources.readers.Reading`.
    """

    files: Sequence[Path] = ()
    weight: str | None = None
    cluster: str | None = None
    offset: str | None = None
    exposure: str | None = None
    low: float | None = None
    high: float | None = None
    time: str | None = None
    classes: TargetClasses | None = None
    categorical: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None
    dates: Sequence[str] = ()
    exclude: Sequence[str] = ()
    rows: int = 10_000
    max_levels: int = 1000
    skip_unreadable: bool = False
    samples: bool = True
    spool: int = SPOOL
    watch: Callable[[str], None] = _nothing

    @property
    def levels(self) -> dict[str, Sequence[str] | None]:
        """The categorical features, with their levels where these are known."""
        given = self.categorical or ()
        return dict(given) if isinstance(given, Mapping) else dict.fromkeys(given)

    def needed(self, target: Sequence[str]) -> list[str]:
        """The columns that must be there, given those of the target."""
        others = (self.weight, self.offset, self.exposure, self.cluster, self.time)
        return [*target, *(name for name in others if name is not None)]

    def first_rows(self, target: Sequence[str], features: Sequence[str] | None) -> FirstRows:
        """The first rows of the first file that has any.

        Parameters
        ----------
        target : sequence of str
            The columns of the target.
        features : sequence of str, or None
            The other columns to read; None reads all columns that have a name and are not to be left out.
        """
        needed = self.needed(target)
        if both := [name for name in self.exclude if name in needed]:
            raise SourceError(f"exclude must not have the target, the weight or the clusters; got {both[0]!r}.")
        names = None if features is None else list(dict.fromkeys([*needed, *features]))
        rows = min(self.rows, 2**62)  # more is all of them, and not what pyarrow can count to
        reading = Reading(**self.settings(), batch_rows=rows)
        for file in self.files:
            try:
                with closing(reading.open(file)) as opened:
                    if opened.empty:
                        continue
                    there, read = opened.names(), names
                    if there is not None:
                        check_names(str(file), there, [name for name in self.exclude if name not in there])
                        read = [name for name in there if name and name not in self.exclude] if names is None else names
                        check_names(str(file), there, [*needed, *read])
                    table = opened.head(read, rows)
            except Unreadable:
                if not self.skip_unreadable:
                    raise
                continue
            if table is not None and table.num_rows:
                check_names(str(file), table.column_names, names or needed)
                check_names(str(file), table.column_names, self.exclude if there is None else ())
                return FirstRows(str(file), table, opened.text_may_be_number)
        raise SourceError(f"There are no rows in {', '.join(str(file) for file in self.files)[:500]}.")


class FeatureKinds(NamedTuple):
    """The levels of the categorical features, None where they are not given, and other fields of `TableColumns`."""

    levels: dict[str, tuple[str, ...] | None]
    fields: dict[str, Any]


def infer_features(
    inference: Inference,
    first: FirstRows,
    features: Sequence[str],
    categorical: Mapping[str, Sequence[str] | None],
    dates: Sequence[str],
    target: Sequence[str],
) -> FeatureKinds:
    """The kinds of the features; raise SourceError where the target, the weight and so on are not numbers.

    Parameters
    ----------
    inference : Inference
    first : FirstRows
    features : sequence of str
    categorical : dict of str to sequence of str, or None
        The features that are categorical, with their levels; None where they are not given.
    dates : sequence of str
        The features that are dates whatever their cells are. Others are found.
    target : sequence of str
        The columns of the target.
    """
    file, table = first.file, first.table
    time_is_date = _holds_dates(inference, first)
    check_names(file, features, [*categorical, *dates])
    others = (inference.weight, inference.offset, inference.exposure, None if time_is_date else inference.time)
    for name in [*([] if inference.classes else target), *(name for name in others if name is not None)]:
        if (kind := _kind(inference, first, name)) != "number":
            like = _likeness(first, name) if kind == "text" else None
            holds = f"{kind}." if like is None else like.text(samples=inference.samples)
            remedy = ""
            if like is None and name in target and _can_be_levels(table.column(name)):
                remedy = worded(
                    " If these are classes, use {likelihood='bernoulli'} for two of them, {'categorical'|categorical} "
                    "for more."
                )
            raise SourceError.worded("{}: column {} must hold numbers; it holds {}{}", file, repr(name), holds, remedy)
    numeric: list[str] = []
    booleans: list[str] = []
    levels: dict[str, tuple[str, ...] | None] = {}
    found_dates = list(dates)
    for name in features:
        if name in dates:
            continue
        kind = "text" if name in categorical and _can_be_levels(table.column(name)) else _kind(inference, first, name)
        if kind == "number":
            numeric.append(name)
            if pa.types.is_boolean(plain(table.column(name)).type):
                booleans.append(name)
        elif kind == "text":
            given = categorical.get(name)
            if name not in categorical and (like := _likeness(first, name)):
                holds = Text.of(f"{file}: column {name!r} holds ", like.text(samples=inference.samples))
                use, leave = parameter("categorical", name), parameter("exclude", name)
                raise SourceError(
                    Text.of(holds, " If they are levels, use ", use, "; to leave the column out, ", leave, ".")
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
    known = ("weight", "cluster", "offset", "exposure", "low", "high", "time")
    kinds = {"numeric": tuple(numeric), "booleans": tuple(booleans), "dates": tuple(found_dates)}
    roles = {name: getattr(inference, name) for name in known}
    return FeatureKinds(levels, kinds | roles | {"time_is_date": time_is_date})


def _holds_dates(inference: Inference, first: FirstRows) -> bool:
    """Whether most cells of the column of the times are dates; raise SourceError unless they are dates or numbers."""
    if (name := inference.time) is None:
        return False
    if (kind := _kind(inference, first, name)) not in ("number", "date"):
        raise SourceError(f"{first.file}: column {name!r} must hold times, numbers or dates; it holds {kind}.")
    return kind == "date"


def _likeness(first: FirstRows, name: str) -> Likeness | None:
    """What a column of text looks like; marks cannot be given where the format has numbers of its own."""
    like = likeness(first.table.column(name))
    marks = like is not None and like.remedy.startswith("Use ")
    if like is None or not marks or first.text_may_be_number:
        return like
    return like._replace(what=f"{like.what} as text", remedy="Write them as numbers.")


def _kind(inference: Inference, first: FirstRows, name: str) -> str:
    """The kind of most cells of a column: "number", "date", "text", or the name of another type."""
    column = plain(first.table.column(name))
    if is_number(column.type):
        return "number"
    if is_date(column.type):
        return "date"
    if not is_text(column.type):
        return str(column.type)
    cells, no_numbers = (column, ()) if inference.notation.is_plain else inference.notation.plain_numbers(column)
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


_MOST = 100_000  # levels of a column that are counted
_LONG = 1 << 28  # bytes of files whose scan is announced


def count_levels(
    counts: dict[str, int], column: Any, counted: np.ndarray | None = None, *, numbers: bool = False
) -> None:
    """Add how often each level of a pyarrow column occurs to the counts of its levels.

    Parameters
    ----------
    counts : dict of str to int
    column : pyarrow.Array
    counted : array of bool, optional
        Where it is False, the level is known, but the row not counted.
    numbers : bool
        Whether the column holds numbers: levels that spell the same number, such as 1.1 and 1.10, are then one level.

    Examples
    --------
    >>> count_levels(counts := {}, pa.array(["UA", "AA", " UA", None]))
    >>> counts
    {'UA': 2, 'AA': 1}
    """
    cells, codes = distinct_cells(column)
    times = np.bincount(codes if counted is None else codes[counted], minlength=len(cells))
    same = {number_in(level): level for level in counts} if numbers else {}
    for label, n in zip(cell_labels(cells), times.tolist(), strict=True):
        if isinstance(label, Reason):
            continue
        level = same.setdefault(number_in(label), label) if numbers and number_in(label) else label
        counts[level] = counts.get(level, 0) + n


def most_frequent_first(counts: Mapping[str, int]) -> tuple[str, ...]:
    """The levels in order, with the most frequent one, the first of them in a tie, moved to the front.

    >>> most_frequent_first({"UA": 3, "B6": 5, "AA": 5})
    ('AA', 'B6', 'UA')
    """
    levels = in_order(counts)
    first = max(levels, key=lambda level: counts[level], default=None)
    return tuple(sorted(levels, key=lambda level: level != first))


def scan_levels(inference: Inference, columns: Mapping[str, bool], target: str | None) -> dict[str, dict[str, int]]:
    """The levels of some columns in all rows of all files.

    Only these columns and the target are read. Standard input, which can be read only once, is stored in a temporary
    file first. A file that cannot be read to its end is left to the pass that learns, which says so.

    Parameters
    ----------
    inference : Inference
        What is known of the files, and the largest number of levels of a column; more are an error.
    columns : dict of str to bool
        The columns, and whether each of them holds numbers; see `count_levels`. The target may be among them.
    target : str, optional
        Rows without a usable target are not counted, although their levels are found.

    Returns
    -------
    dict of str to dict
        For each column the number of rows with each level.
    """
    if not columns:
        return {}
    classes, names = inference.classes, ", ".join(map(repr, columns))
    if STDIN in inference.files:
        inference.watch(
            f"Storing standard input in a temporary file, to find the levels of {names}. To learn rows as they arrive, "
            f"list {'the classes of the target, and ' if target in columns else ''}the levels, or hash the columns."
        )
        inference.replay.store(inference.spool, f"to find the levels of {names}")
    elif sum(file.stat().st_size for file in inference.files if file.exists()) > _LONG:
        inference.watch(f"Finding the levels of {names}.")
    found: dict[str, dict[str, int]] = {name: {} for name in columns}
    others = () if target is None or target in columns else (target,)
    wanted = Wanted((), (*columns, *others)) if classes else Wanted(others, tuple(columns))
    for file in inference.files:
        try:
            with closing(inference.open(file, threads=parsers())) as opened:
                for raw in () if opened.empty else opened.blocks(wanted):
                    counted = None if target is None else _usable(raw.table.column(target), classes=bool(classes))
                    for name, numbers in columns.items():
                        count_levels(found[name], raw.table.column(name), counted, numbers=numbers)
                    if classes and target in found:
                        classes.check_number(str(target), found[target])
                    _check(found, _MOST)
        except (Unreadable, OSError):
            continue
    _check({name: levels for name, levels in found.items() if name != target}, inference.max_levels)
    return found


def _usable(column: Any, *, classes: bool) -> np.ndarray:
    """Which cells are numbers that can be learned, or hold a class."""
    _, faults = parsed_labels(column, _of_class, "") if classes else parse_numbers(column)
    good = np.ones(len(column), bool)
    good[list(faults)] = False
    return good


def _of_class(label: str) -> str | Reason:
    return Reason.MISSING if label in MISSING else label


def _check(found: Mapping[str, Mapping[str, int]], allowed: int) -> None:
    """Raise SourceError where a column has more than the `allowed` levels."""
    over = {name: len(levels) for name, levels in found.items() if len(levels) > allowed}
    if not over:
        return
    counts = [f"column {name!r} has {'more than ' * (n > _MOST)}{min(n, _MOST):,} levels" for name, n in over.items()]
    some, most = max(over.items(), key=lambda item: item[1])
    raise SourceError.worded(
        "Too many levels: {}, more than the {} allowed. Leave such a column out, allow more levels with "
        "{}, or put them into bins with {}: levels that share a bin share a coefficient.",
        ", ".join(counts),
        f"{allowed:,}",
        parameter("max_levels", most),
        Part("hashed", as_option("hashed", some)),
    )
