"""Models of rows that come as dictionaries or frames: their columns, and the learner behind them."""

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.base.checks import LARGEST, check_positive, check_usable
from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.frames import column_names, frame_kind
from kalprox.learning.learner import Learner
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.penalties import penalty_of
from kalprox.sources import Block
from kalprox.sources.hashing import HashedSpace

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


_MATRIX_BYTES = 1 << 25  # of the rows of a frame that are made numbers at a time


class DictionaryModel:
    """A learner of rows that come as dictionaries. Subclasses define the parameters and what is predicted.

    The parameters are checked when the first row is learned.
    """

    hash_bits: int | None
    structure: Any
    missing: str
    _kind: type[LearnerEstimator]  # the estimator of scikit-learn
    _own: tuple[str, ...] = ("hash_bits",)  # the parameters that it does not have

    _learner: Learner | None
    _columns: NamedColumns | HashedColumns

    def __post_init__(self) -> None:
        self._learner = None
        self._columns = NamedColumns()

    def _estimator(self) -> LearnerEstimator:
        """Return an estimator of scikit-learn, not fitted, with these parameters."""
        given: dict[str, Any] = self._get_params()  # type: ignore[attr-defined]
        penalty = penalty_of(given["penalty"])
        if penalty.by_position:
            raise ValueError(
                f"penalty must not be about features by their positions, since these come by name; got {penalty!r}. "
                "Use KalproxRegressor, another penalty, or the same numbers for all features."
            )
        return self._kind(**{name: value for name, value in given.items() if name not in self._own})

    # ---- learning --------------------------------------------------------------------------------------

    def _started(self) -> Learner:
        """Return the learner, made for the first row."""
        if self._learner is None:
            settings = self._estimator()._checked_settings()
            check_names(settings, self.hash_bits)
            if self.hash_bits is not None:
                self._columns = HashedColumns(self.hash_bits, sparse=settings.structure is not None)
            self._learner = Learner(settings)
        return self._learner

    def _learn(self, x: Row, y: Array, weight: float) -> None:
        """Learn one row, with a target of shape (1,) or (1, m), both of which may change afterwards."""
        learner = self._learner or self._started()
        try:
            row = self._columns.fill(x)
        except (KeyError, TypeError):
            self._check_numbers(x)
            if self._is_bad(x, y, weight):
                return
            self._add_features(self._columns.unknown(x))
            row = self._columns.fill(x)
        try:
            if weight == 1 and learner.settings.is_exact:  # which copies what it holds, and looks at the values
                learner.learn(Block(row, y))
                return
            weights = None if weight == 1 else np.array([float(weight)])
            self._learn_block(Block(row.copy(), y.copy(), weights))
        except ValueError:
            if not self._is_bad(x, y, weight):
                raise

    def _learn_block(self, block: Block, *, single: bool = False) -> None:
        """Learn rows as they are in the columns, together or, with `single`, one by one; all of them or none."""
        if block.weights is not None:
            check_positive("weights", block.weights, strict=False)
        check_usable(block.X, block.y, block.weights)
        for part in (block.part(i, i + 1) for i in range(len(block))) if single else (block,):
            self._started().learn(part)

    def _add_features(self, names: list[Any]) -> None:
        """Give columns to new features, which were 0 in all rows so far."""
        learner = self._started()
        if learner.is_fitted:
            learner.add_features(len(names))
        self._columns.add(names)

    def _check_numbers(self, x: Row) -> None:
        """Raise a TypeError if a value is neither a number nor missing; with hashing it may be a text."""
        if not isinstance(x, Mapping):
            raise TypeError(f"x must be a dictionary with a number for each feature; got {type(x).__name__}.")
        for name, value in x.items():
            text = isinstance(value, str)
            if (text and self.hash_bits is None) or not (text or value is None or hasattr(value, "__float__")):
                raise TypeError(
                    f"Feature {name!r} must be a number; got {value!r}. Encode text before the model, such as with "
                    "river.preprocessing.OneHotEncoder, or set hash_bits."
                )

    def _is_bad(self, x: Row, y: Array, weight: float) -> bool:
        """Whether a row is bad and is skipped; raise a ValueError if it is bad and must not be."""
        bad = first_bad(x) or ("" if np.isfinite(y).all() else f"the target is {y.ravel()[0]}")
        bad = bad or ("" if weight >= 0 and math.isfinite(weight) else f"the weight is {weight!r}")
        if not bad:
            return False
        if self.missing == "drop":
            self._started().n_rejected += 1
            return True
        raise ValueError(
            f"A row is bad and was not learned: {bad}. Fill it in before the model, such as with "
            "river.preprocessing.StatImputer, or set missing='drop'."
        )

    def _matrices(self, X: Any) -> Iterator[tuple[slice, Any]]:
        """Yield the rows of a frame as numbers, some at a time: which rows they are, and a matrix of shape (b, d)."""
        check_frame(X)
        names = column_names(X)
        columns = [np.asarray(X[name]) for name in names]
        length = max(1, _MATRIX_BYTES // (8 * max(self._columns.width(names), 1)))
        for start in range(0, len(X), length):
            rows = slice(start, start + length)
            yield rows, self._columns.matrix(names, [column[rows] for column in columns])

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def n_rows_rejected(self) -> int:
        """The number of rows that were skipped, with missing="drop"."""
        return 0 if self._learner is None else self._learner.n_rejected

    def _read(self, x: Row, *, spread: bool) -> tuple[Learner, Any]:
        """Return a row, and the learner that predicts it.

        With `spread` the prediction depends on how uncertain coefficients are, those of features that were never
        learned included: the learner is then one that has them at their prior.
        """
        learner = self._learner
        assert learner is not None
        try:
            return learner, self._columns.fill(x)
        except (KeyError, TypeError):
            self._check_numbers(x)
        x = {name: math.nan if value is None else value for name, value in x.items()}
        unknown = set(self._columns.unknown(x))
        row = self._columns.fill({name: value for name, value in x.items() if name not in unknown})
        more = [float(x[name]) for name in unknown]
        if not spread or not any(more):
            return learner, row
        learner = learner.copy()
        learner.add_features(len(more))
        return learner, np.append(row, [more], axis=1)

    def _read_many(self, X: Any, read: Callable[[Learner, Any], Array]) -> Array | None:
        """Return what `read` returns for the rows of a frame with a structure; None if they are read one by one.

        That is so before the first row, without a structure, and if a result is NaN since a value is bad.
        """
        learner = self._learner
        if learner is None or not learner.is_fitted or learner.settings.structure is None or not len(X):
            return None
        found = np.concatenate([read(learner, matrix) for _, matrix in self._matrices(X)])
        return found if np.isfinite(found).all() else None

    def _check_read(self, x: Row) -> None:
        """Raise a ValueError if a prediction is NaN because a value of the row is bad, unless bad rows are skipped."""
        bad = first_bad(x)
        if bad and self.missing != "drop":
            raise ValueError(f"A row cannot be predicted: {bad}. Fill it in before the model.")

    def _fitted_estimator(self) -> Any:
        """Return an estimator of scikit-learn that has learned the same rows."""
        if self._learner is None or not self._learner.is_fitted:
            raise ValueError("Nothing has been learned yet: learn at least one row first.")
        model: Any = self._estimator()
        model.n_features_in_ = len(self._columns.names)
        model.feature_names_in_ = np.array(list(map(str, self._columns.names)), dtype=object)
        return model._keep(self._learner.copy())


def check_names(settings: Settings, hash_bits: int | None) -> None:
    """Raise a ValueError if a model with a structure would have to grow."""
    check(settings, way="names")
    if hash_bits is None:
        check(settings, way="new names")
