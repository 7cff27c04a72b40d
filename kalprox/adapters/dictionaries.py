"""Rows that come as dictionaries, as rows of numbers: a column for each name, or for the hashes of all names."""

import math
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import LARGEST
from kalprox.sources.hashing import HashedSpace

__all__ = ["DictionaryColumns", "HashedColumns", "NamedColumns"]

Row = Mapping[Any, Any]
_MOST_KNOWN = 1 << 16  # hashes of names that are kept


class DictionaryColumns(Protocol):
    """Which column of X a feature belongs to.

    Attributes
    ----------
    names : list
        The names of the columns.
    """

    names: list[Any]

    def fill(self, x: Row) -> Array:
        """Return a row as an array of shape (1, d), the same at every call.

        Raise a KeyError if a feature has no column yet, and a TypeError if a value is not a number.
        """

    def unknown(self, names: Iterable[Any]) -> list[Any]:
        """Return the names that have no column yet."""

    def add(self, names: Sequence[Any]) -> None:
        """Add columns after the others."""

    def matrix(self, names: Sequence[Any], columns: Sequence[Array]) -> Array:
        """Return the rows of a frame, shape (n, d), given its columns; 0 for features that it does not have."""


class NamedColumns:
    """A column for each name, in the order in which the names came. An absent feature is 0.

    New names of one row are sorted, so that nothing depends on the order of a dictionary.

    Examples
    --------
    >>> columns = NamedColumns()
    >>> columns.add(["a", "b"])
    >>> columns.fill({"b": 2.0})
    array([[0., 2.]])
    >>> columns.unknown({"c": 1.0, "a": 3.0})
    ['c']
    """

    def __init__(self) -> None:
        self.names: list[Any] = []
        self._positions: dict[Hashable, int] = {}
        self._row = np.zeros((1, 0))
        self._last: list[Any] = []  # the names of the last row, in their order
        self._at: Any = slice(0, 0)  # their columns

    def fill(self, x: Row) -> Array:
        row, names = self._row, list(x)
        if names != self._last:
            self._at, self._last = np.array([self._positions[name] for name in names], np.intp), names
        values = array("d", x.values())  # which takes nothing but numbers, unlike NumPy
        if len(names) < len(self.names):
            row.fill(0.0)
        row[0, self._at] = values
        return row

    def unknown(self, names: Iterable[Any]) -> list[Any]:
        return [name for name in names if name not in self._positions]

    def add(self, names: Sequence[Any]) -> None:
        names = sorted(names, key=str)
        self._positions |= {name: len(self.names) + i for i, name in enumerate(names)}
        self.names = [*self.names, *names]
        self._row = np.zeros((1, len(self.names)))

    def matrix(self, names: Sequence[Any], columns: Sequence[Array]) -> Array:
        X = np.zeros((len(columns[0]) if len(columns) else 0, len(self.names)))
        for name, column in zip(names, columns, strict=True):
            if name in self._positions:
                X[:, self._positions[name]] = _numbers(name, column)
        return X


class HashedColumns:
    """Columns that features share by the hashes of their names: see `kalprox.sources.hashing.HashedSpace`.

    A number counts under its name; a text counts 1 under its name and itself, so that every text is a feature of its
    own.

    Examples
    --------
    >>> columns = HashedColumns(2)
    >>> columns.fill({"age": 2.0, "carrier": "UA"}), columns.unknown(["anything"])
    (array([[0., 0., 2., 1.]]), [])
    """

    def __init__(self, bits: int) -> None:
        self.space = HashedSpace(bits)
        self.names: list[Any] = self.space.names
        self._row = np.zeros((1, self.space.size))
        self._known: dict[str, tuple[int, float]] = {}

    def fill(self, x: Row) -> Array:
        row = self._row
        row.fill(0.0)
        for name, value in x.items():
            text = isinstance(value, str)
            at, sign = self._place(f"{name}={value}" if text else str(name))
            row[0, at] += sign if text else sign * _number(name, value)
        return row

    def unknown(self, names: Iterable[Any]) -> list[Any]:
        return []

    def add(self, names: Sequence[Any]) -> None:
        """Add nothing: all columns are there from the start."""

    def matrix(self, names: Sequence[Any], columns: Sequence[Array]) -> Array:
        X = np.zeros((len(columns[0]) if len(columns) else 0, self.space.size))
        rows = np.arange(len(X))
        for name, column in zip(names, columns, strict=True):
            if np.asarray(column).dtype.kind in "OUST":
                texts, codes = np.unique(np.array([str(one) for one in column]), return_inverse=True)
                at, sign = map(np.array, zip(*(self._place(f"{name}={text}") for text in texts), strict=True))
                X[rows, at[codes]] += sign[codes]
            else:
                place = self._place(str(name))
                X[:, place[0]] += place[1] * _numbers(name, column)
        return X

    def _place(self, key: str) -> tuple[int, float]:
        if (found := self._known.get(key)) is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = self.space.place(key)
        return found


def first_bad(x: Row) -> str:
    """Return what is wrong with the first value that is not a finite number of moderate size; empty if none is."""
    for name, value in x.items():
        if isinstance(value, str):
            continue  # which is said elsewhere, or hashed
        if value is None or not math.isfinite(value):
            return f"feature {name!r} is {value!r}"
        if abs(value) > LARGEST:
            return f"feature {name!r} is {value!r}, above {LARGEST:g} in size"
    return ""


def _number(name: Any, value: Any) -> float:
    if value is None or isinstance(value, (bytes, complex)):
        raise TypeError(f"feature {name!r} must be a number or a text; got {value!r}")
    return float(value)


def _numbers(name: Any, column: Array) -> Array:
    values = np.asarray(column)
    if values.dtype.kind not in "fiub":
        if values.dtype.kind != "O" or any(isinstance(one, str) for one in values):
            raise ValueError(f"Column {name!r} must hold numbers; it holds {values.dtype}. Encode it first.")
        values = np.array([np.nan if one is None else one for one in values], float)
    return values.astype(float)
