"""Classes as a target: which there are and in which order, and the cells of a column as 0 and 1, or one-hot."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from kalprox.base.text import worded
from kalprox.sources.arrow import pa, plain
from kalprox.sources.cells import MISSING, Faults, cell_labels, distinct_cells, one_hot, parse_levels, shown
from kalprox.sources.files import SourceError
from kalprox.sources.labels import LevelIndex, in_order, label_of, same_levels
from kalprox.sources.quarantine import Reason

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
            raise SourceError(
                worded(
                    "Column {} has {}: there is nothing to tell apart. Cells that are empty or hold NA, ?, - and the "
                    "like are missing; if that is a class, list the classes with {classes}.",
                    repr(column),
                    what,
                )
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
            raise SourceError(
                worded(
                    "Column {} has more than two classes: {}. Use {likelihood='categorical'} for several classes, or "
                    "list two of them with {classes}: rows of another class are then bad rows.",
                    repr(column),
                    some,
                )
            )
        advice = (
            "Did you mean a regression? For numbers use {likelihood='gaussian'}, {'poisson'|poisson} or another one."
        )
        raise SourceError(worded("Column {} has more than {} classes: {}. " + advice, repr(column), self.most, some))

    def _positive_last(self, column: str, classes: tuple[str, ...]) -> tuple[str, ...]:
        at = class_index(classes).find(None, label_of(self.positive))
        names = ", ".join(map(repr, classes))
        if at is None:
            raise SourceError(
                worded(
                    "{positive} must be one of the classes of column {}; got {} of {}.",
                    *map(repr, (column, self.positive)),
                    names,
                )
            )
        if len(classes) > 2:
            raise SourceError(
                worded(
                    "{positive} must be left out unless there are two classes; column {} has {}: each of them has a "
                    "probability.",
                    repr(column),
                    len(classes),
                )
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


def have_class(column: Any) -> np.ndarray:
    """Which cells of a pyarrow column hold a class, as a mask; the others are missing or cannot be read."""
    cells, codes = distinct_cells(column)
    good = [not isinstance(label, Reason) and label not in MISSING for label in cell_labels(cells)]
    mask: np.ndarray = np.array(good, bool)[codes]
    return mask


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
            raise SourceError(
                worded(
                    "The classes {} and {} of column {} differ only in upper and lower case. List the classes with "
                    "{classes}: each once, to find it in any case, or both, to tell them apart.",
                    *map(repr, (one, other, column)),
                )
            )


@lru_cache(maxsize=8)
def class_index(classes: tuple[str, ...]) -> LevelIndex:
    """What finds the number of a class by its text, however it is spelled."""
    return LevelIndex({name: i for i, name in enumerate(classes)}, any_case=True)
