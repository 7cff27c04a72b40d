"""Rows that come as dictionaries or frames, as rows of numbers: a column for each name, or for the hashes of names."""

import math
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.base.checks import LARGEST
from kalprox.estimators.frames import frame_kind
from kalprox.sources.hashing import HashedSpace

__all__ = ["HashedColumns", "NamedColumns", "check_frame", "frame_like", "frame_rows", "series_like"]

Row = Mapping[Any, Any]
_MOST_KNOWN = 1 << 16  # hashes of names that are kept


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
        """Return a row as an array of shape (1, d), the same at every call.

        Raise a KeyError if a feature has no column yet, and a TypeError if a value is not a number.
        """
        row, names = self._row, list(x)
        if names != self._last:
            self._at, self._last = np.array([self._positions[name] for name in names], np.intp), names
        values = array("d", x.values())  # which takes nothing but numbers, unlike NumPy
        if len(names) < len(self.names):
            row.fill(0.0)
        row[0, self._at] = values
        return row

    def unknown(self, names: Iterable[Any]) -> list[Any]:
        """Return the names that have no column yet."""
        return [name for name in names if name not in self._positions]

    def add(self, names: Sequence[Any]) -> None:
        """Add columns after the others."""
        names = sorted(names, key=str)
        self._positions |= {name: len(self.names) + i for i, name in enumerate(names)}
        self.names = [*self.names, *names]
        self._row = np.zeros((1, len(self.names)))

    def matrix(self, names: Sequence[Any], columns: Sequence[Array]) -> Array:
        """Return the rows of a frame, shape (n, d), given its columns; 0 for features that it does not have."""
        X = np.zeros((len(columns[0]) if len(columns) else 0, len(self.names)))
        for name, column in zip(names, columns, strict=True):
            if name in self._positions:
                X[:, self._positions[name]] = _numbers(name, column)
        return X

    def width(self, names: Sequence[Any]) -> int:
        """Return how many numbers a row of a frame with these columns takes in `matrix`, at most."""
        return len(self.names)


class HashedColumns:
    """Columns that features share by the hashes of their names: see `kalprox.sources.hashing.HashedSpace`.

    They are filled as `NamedColumns` are; with `sparse` each row is a new CSR matrix. A number counts under its name; a
    text counts 1 under its name and itself, so that every text is a feature of its own.

    Parameters
    ----------
    bits : int
    sparse : bool
        Whether rows are CSR matrices: there may then be many more columns.

    Examples
    --------
    >>> columns = HashedColumns(2)
    >>> columns.fill({"age": 2.0, "carrier": "UA"}), columns.unknown(["anything"])
    (array([[0., 0., 2., 1.]]), [])
    >>> row = HashedColumns(18, sparse=True).fill({"age": 2.0, "carrier": "UA"})
    >>> row.shape, row.indices.tolist(), row.data.tolist()
    ((1, 262144), [121158, 194519], [2.0, 1.0])
    """

    def __init__(self, bits: int, *, sparse: bool = False) -> None:
        self.space, self.sparse = HashedSpace(bits, sparse=sparse), sparse
        self._row = np.zeros((1, 0 if sparse else self.space.size))
        self._known: dict[str, tuple[int, float]] = {}

    @property
    def names(self) -> list[Any]:
        return self.space.names

    def fill(self, x: Row) -> Any:
        found: dict[int, float] = {}
        for name, value in x.items():
            text = isinstance(value, str)
            at, sign = self._place(f"{name}={value}" if text else str(name))
            found[at] = found.get(at, 0.0) + (sign if text else sign * _number(name, value))
        if self.sparse:
            places = np.array(sorted(found), np.int32)
            values = np.array([found[at] for at in places.tolist()], np.float64)
            return scipy.sparse.csr_array((values, places, [0, len(found)]), shape=(1, self.space.size))
        self._row.fill(0.0)
        for at, value in found.items():
            self._row[0, at] = value
        return self._row

    def unknown(self, names: Iterable[Any]) -> list[Any]:
        return []

    def add(self, names: Sequence[Any]) -> None:
        """Add nothing: all columns are there from the start."""

    def matrix(self, names: Sequence[Any], columns: Sequence[Array]) -> Any:
        n, k = len(columns[0]) if len(columns) else 0, len(columns)
        at, values = np.zeros((n, k), np.int32), np.zeros((n, k))
        for j, (name, column) in enumerate(zip(names, columns, strict=True)):
            at[:, j], values[:, j] = self._cells(name, column)
        X = scipy.sparse.csr_array((values.ravel(), at.ravel(), np.arange(n + 1) * k), shape=(n, self.space.size))
        X.sum_duplicates()  # features that share a column
        return X if self.sparse else X.toarray()

    def width(self, names: Sequence[Any]) -> int:
        return len(names) if self.sparse else self.space.size

    def _cells(self, name: Any, column: Array) -> tuple[Array, Array]:
        """Return the columns of the space that the cells of a column of a frame belong to, and their values."""
        cells = np.asarray(column)
        mixed = cells.dtype.kind in "OT"
        text = np.array([isinstance(one, str) for one in cells], bool) if mixed else cells.dtype.kind in "US"
        text = np.broadcast_to(text, cells.shape)
        at, values = np.zeros(cells.shape, np.int32), np.zeros(cells.shape)
        if text.any():
            texts, codes = np.unique(cells[text].astype(str), return_inverse=True)
            places, signs = map(np.array, zip(*(self._place(f"{name}={one}") for one in texts), strict=True))
            at[text], values[text] = places[codes], signs[codes]
        if not text.all():
            at[~text], sign = self._place(str(name))
            values[~text] = sign * _numbers(name, cells[~text])
        return at, values

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


def check_frame(X: Any) -> None:
    """Raise a TypeError unless X is a frame of pandas or polars."""
    if frame_kind(X) not in ("pandas", "polars"):
        raise TypeError(
            f"X must be a DataFrame of pandas or polars, whose columns have the names of the features; got "
            f"{type(X).__name__}. Give arrays to KalproxRegressor or KalproxClassifier."
        )


def frame_rows(X: Any) -> Iterator[dict[Any, Any]]:
    """Yield the rows of a frame as dictionaries."""
    check_frame(X)
    names = list(X.columns)
    columns = [X[name].to_list() for name in names]
    if not names:
        yield from ({} for _ in range(len(X)))
    yield from (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def series_like(values: list[Any], X: Any) -> Any:
    """Return values as a series of the library of a frame, with its index."""
    if frame_kind(X) == "polars":
        import polars

        return polars.Series(values=values)
    import pandas

    return pandas.Series(values, index=X.index)


def frame_like(columns: dict[Any, list[Any]], X: Any) -> Any:
    """Return columns as a frame of the library of a frame, with its index. Polars names columns by texts only."""
    if frame_kind(X) == "polars":
        import polars

        return polars.DataFrame({str(name): values for name, values in columns.items()})
    import pandas

    return pandas.DataFrame(columns, index=X.index)
