"""What the models of rows that come as dictionaries have in common: their columns, and the learner behind them."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from kalprox.adapters.dictionaries import HashedColumns, NamedColumns, Row, check_frame, first_bad
from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive, check_usable
from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.frames import column_names
from kalprox.learning.learner import Learner
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.penalties import penalty_of
from kalprox.sources import Block

__all__ = ["DictionaryModel", "check_names"]

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
