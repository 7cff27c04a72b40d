"""Rows that wait for their target: held by key, a bounded number of them, and saved with the model."""

import numbers
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from kalprox.base.tree import Saved, as_numbers, expect, from_numbers
from kalprox.sources.base import concatenated

Key = str | int

_SHOWN = 5  # keys that an error names
_BYTES = 6  # of a text that one float64 holds exactly
_SPARSE = ("data", "indices", "indptr")


class PendingRow(NamedTuple):
    """A row without its target.

    Attributes
    ----------
    x : array of shape (d,), or sparse matrix of shape (1, d)
        The inputs. NaN stands for a missing feature.
    weight : float
    group : str or None
        The cluster of the row.
    time : float or None
        When the row came.
    offset : float or None
        What is added to its linear predictor.
    issued : tuple of floats
        The prediction that was issued when the row came, in whatever form its reader wants it; empty if there was none.
    """

    x: Any
    weight: float = 1.0
    group: str | None = None
    time: float | None = None
    offset: float | None = None
    issued: tuple[float, ...] = ()

    @property
    def X(self) -> Any:
        """The inputs as a matrix of one row."""
        return self.x if scipy.sparse.issparse(self.x) else self.x[None]


class PendingRows:
    """Rows by key that wait for their target, at most `capacity` of them: then the oldest is dropped, and counted.

    Adding and taking a row are O(d). What is held depends on the order of the calls alone.

    Parameters
    ----------
    capacity : int
        The largest number of rows that are held.

    Attributes
    ----------
    n_dropped : int
        The number of rows that were dropped before their target came.

    Examples
    --------
    >>> pending = PendingRows(capacity=2)
    >>> for key in ("a", "b", "c"):
    ...     pending.add(key, PendingRow(np.array([1.0, 2.0])))
    >>> list(pending), pending.n_dropped
    (['b', 'c'], 1)
    >>> pending.take("b").x, pending.take("a")
    (array([1., 2.]), None)
    """

    def __init__(self, capacity: int = 100_000) -> None:
        if not (isinstance(capacity, numbers.Integral) and capacity >= 1):
            raise ValueError(f"capacity must be a whole number >= 1; got {capacity!r}.")
        self.capacity: int = int(capacity)
        self.n_dropped: int = 0
        self._rows: dict[Key, PendingRow] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: Any) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[Key]:
        """Return the keys of the rows, the oldest first."""
        return iter(self._rows)

    def __getitem__(self, key: Key) -> PendingRow:
        return self._rows[key]

    def add(self, key: Key, row: PendingRow) -> None:
        """Hold a row until `take`; its inputs are copied. A ValueError is raised if a row with this key is held."""
        self.check_new([key])
        x = row.x.tocsr().astype(np.float64) if scipy.sparse.issparse(row.x) else np.array(row.x, np.float64)
        self._rows[key] = row._replace(x=x)
        if len(self._rows) > self.capacity:
            del self._rows[next(iter(self._rows))]
            self.n_dropped += 1

    def take(self, key: Key) -> PendingRow | None:
        """Return the row with this key, which is held no longer; None if there is none."""
        return self._rows.pop(key, None)

    def check_new(self, keys: Iterable[Key]) -> None:
        """Raise a ValueError that names the keys of rows that are held, or that occur twice."""
        if twice := [key for key, times in Counter(keys).items() if times > 1 or key in self._rows]:
            raise ValueError(
                f"Each key may wait for one target; {_named(twice)} came before. Give every row a key of its own, or "
                "the target of the earlier row first."
            )

    def check_known(self, keys: Iterable[Key]) -> None:
        """Raise a ValueError that names the keys of which no row is held, or that occur twice."""
        given = Counter(keys)
        if unknown := [key for key in given if key not in self._rows]:
            dropped = f", or was dropped: {self.n_dropped} were, of the oldest, to hold {self.capacity}"
            raise ValueError(
                f"No row waits for the target of {_named(unknown)}: it was learned already, or never came without a "
                f"target{dropped if self.n_dropped else ''}. {len(self)} row(s) wait."
            )
        if twice := [key for key, times in given.items() if times > 1]:
            raise ValueError(f"Each key may have one target; {_named(twice)} has several.")

    @classmethod
    def merged(cls, one: "PendingRows | None", other: "PendingRows | None") -> "PendingRows | None":
        """Return the rows of both, those of `one` being the older; raise a ValueError if they share keys."""
        if one is None or other is None:
            return one or other
        both = PendingRows(one.capacity)
        both.n_dropped = one.n_dropped + other.n_dropped
        for pending in (one, other):
            for key in pending:
                both.add(key, pending[key])
        return both

    def with_features(self, more: int) -> "PendingRows":
        """Return the rows with more features, which are 0 in all of them and come after the others."""
        new = self.copy()
        new._rows = {key: row._replace(x=_padded(row.x, more)) for key, row in self._rows.items()}
        return new

    # ---- saving ----------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """Return the rows as values that can be saved; see `kalprox.base.tree`."""
        rows = [[key, *row[1:]] for key, row in self._rows.items()]
        X = _saved_inputs([row.X for row in self._rows.values()])
        return {"capacity": self.capacity, "dropped": self.n_dropped, "rows": as_numbers(rows), "X": X}

    @classmethod
    def restored(cls, d: int, saved: Saved, name: str = "pending") -> "PendingRows":
        """Return the rows of d features that were saved under `name`; raise a ValueError if the values do not fit."""
        pending = cls(saved.count(f"{name}.capacity"))
        pending.n_dropped = saved.count(f"{name}.dropped")
        rows, X = from_numbers(saved[f"{name}.rows"]), _restored_inputs(d, saved, f"{name}.X")
        expect(len(rows) <= pending.capacity and X.shape == ((len(rows), d) if rows else (0, 0)))
        expect(not np.isinf(X.data if scipy.sparse.issparse(X) else X).any())
        for i, row in enumerate(rows):
            key, weight, group, time, offset, issued = row
            expect(type(key) in (str, int) and key not in pending and (group is None or type(group) is str))
            expect(all(type(value) is float for value in (weight, *issued)) and weight > 0)
            expect(all(value is None or type(value) is float for value in (time, offset)))
            x = X[[i]] if scipy.sparse.issparse(X) else X[i].copy()
            pending._rows[key] = PendingRow(x, weight, group, time, offset, tuple(issued))
        return pending

    def copy(self) -> "PendingRows":
        """Return an independent copy; the rows themselves never change, and are shared."""
        new = PendingRows(self.capacity)
        new.n_dropped, new._rows = self.n_dropped, dict(self._rows)
        return new


def _padded(x: Any, more: int) -> Any:
    if not scipy.sparse.issparse(x):
        return np.pad(x, (0, more))
    return scipy.sparse.csr_array((x.data, x.indices, x.indptr), shape=(1, x.shape[1] + more))


def _saved_inputs(rows: list[Any]) -> Any:
    """Return the inputs of rows as one array, or the arrays of one sparse matrix."""
    if not rows:
        return np.zeros((0, 0))
    X = concatenated(rows)
    return {name: getattr(X, name) for name in _SPARSE} if scipy.sparse.issparse(X) else X


def _restored_inputs(d: int, saved: Saved, name: str) -> Any:
    """Return inputs of d features; raise a ValueError if the arrays are not those of a matrix."""
    if name in saved.arrays:
        return saved[name]
    data, indices, indptr = (saved[f"{name}.{part}"] for part in _SPARSE)
    whole = (np.all(a == np.floor(a)) for a in (indices, indptr))
    expect(data.ndim == indices.ndim == indptr.ndim == 1 and len(indptr) > 0 and all(whole))
    expect(len(data) == len(indices) == indptr[-1] and indptr[0] == 0 and (np.diff(indptr) >= 0).all())
    expect(((indices >= 0) & (indices < d)).all())
    return scipy.sparse.csr_array((data, indices.astype(int), indptr.astype(int)), shape=(len(indptr) - 1, d))


def as_key(value: Any) -> Key:
    """Return a key as text or a whole number of Python; raise a TypeError if it is neither.

    >>> as_key(np.int64(3)), as_key("3")
    (3, '3')
    """
    key = value.item() if isinstance(value, np.generic) else value
    if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
        return key
    raise TypeError(f"A key must be a text or a whole number; got {value!r}. Convert it to text, as with str.")


def as_keys(values: Any, n: int) -> list[Key]:
    """Return the keys of n rows; raise an error if there are not as many."""
    if isinstance(values, (str, bytes)) or len(values) != n:
        found = repr(values) if isinstance(values, (str, bytes)) else f"{len(values)} key(s)"
        raise ValueError(f"keys must have one key per row, {n} in all; got {found}.")
    return [as_key(value) for value in values]


def _named(keys: list[Key]) -> str:
    shown = ", ".join(map(repr, keys[:_SHOWN]))
    more = len(keys) - _SHOWN
    return f"the key(s) {shown}" + (f" and {more} more" if more > 0 else "")
