"""Fits of a formula to a frame."""

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kalprox.base.arrays import Array
from kalprox.estimators.fitting import Fitting
from kalprox.estimators.frames import as_arrow, check_encoded, column_names, encode, frame_kind
from kalprox.estimators.renamed import Renamed, says_new_names
from kalprox.penalties import penalty_of
from kalprox.sources import Block

if TYPE_CHECKING:
    from kalprox.sources.classes import TargetClasses
    from kalprox.sources.encoding import Encoded
    from kalprox.sources.formula import FormulaColumns

__all__ = ["Formulas"]

_ROLES = ("weight", "cluster", "offset", "exposure", "time")  # of columns, in the order of what `fit` takes


class Formulas(Fitting):
    """The parameter `formula`: a model of the columns of a frame."""

    formula: str | None
    fit_intercept: bool
    _new_columns: "FormulaColumns | None" = None  # of the formula, while a frame is fitted
    from_formula = Renamed("the parameter formula, as in KalproxRegressor('y ~ x').fit(frame)")

    @says_new_names
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        clusters: Any = None,
        offset: Any = None,
        exposure: Any = None,
        times: Any = None,
    ) -> Self:
        if self.formula is None:
            return super().fit(X, y, sample_weight, clusters, offset, exposure, times)
        return self._fit_formula(X, y, (sample_weight, clusters, offset, exposure, times))

    fit.__doc__ = Fitting.fit.__doc__

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the R2 of the predictions for rows of X, or the accuracy of a classifier.

        Parameters
        ----------
        X : array-like of shape (n, d), or a frame
        y : array-like of shape (n,), or (n, k)
            May be left out if X is a frame that has the target of the formula.
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        float

        Examples
        --------
        >>> import pandas as pd
        >>> from kalprox import KalproxRegressor
        >>> data = pd.DataFrame({"y": [1.0, 3.0, 5.0, 7.0], "x": [0.0, 1.0, 2.0, 3.0]})
        >>> round(KalproxRegressor("y ~ x").fit(data).score(data), 6)
        1.0
        """
        if y is None and self._table is not None:
            encoded = self._encoder("weight", "cluster", "time").encode(X)
            y = encoded.y
            if classes := self._table.columns.classes:
                y = np.asarray(classes)[y.astype(int) if y.ndim == 1 else y.argmax(axis=1)]
        found: float = super().score(X, y, sample_weight)
        return found

    def _fit_formula(self, X: Any, y: Any, about: tuple[Any, ...]) -> Self:
        """Fit the model to a frame. `about` are the weights, clusters, offsets, exposures and times of its rows.

        Each is an array, or the name of a column, which later frames need to have, too.
        """
        from kalprox.jobs.model import TableModel
        from kalprox.sources.formula_scan import formula_names, infer_formula_of_table

        if frame_kind(X) is None:
            raise TypeError(f"With a formula, X must be a frame of pandas, polars or pyarrow; got {type(X).__name__}.")
        if not self.fit_intercept:
            raise ValueError(
                "fit_intercept must be True with a formula: leave the intercept out by 0 + in the formula."
            )
        roles: dict[str, Any] = {
            role: given for role, given in zip(_ROLES, about, strict=True) if isinstance(given, str)
        }
        formula, names = str(self.formula), column_names(X)
        needed = [*formula_names(formula), *roles.values()]
        table = as_arrow(X, list(dict.fromkeys(needed)))
        if formula.lstrip().startswith("~"):
            table, target = _with_target(table, y, names)
            formula = f"`{target}` {formula}"
        elif y is not None:
            raise ValueError(f"The target is given by the formula, {formula!r}, and by y: leave out one of them.")
        with self._lock:
            columns = infer_formula_of_table(formula, table, classes=self._target_classes(), **roles)
            encoded = encode(columns, table)
            bad, good = check_encoded(encoded, drop=self.missing == "drop"), np.ones(len(encoded.X), bool)
            good[[row.row - 1 for row in bad]] = False
            given = [None if one is None or isinstance(one, str) else _as_rows(one, good) for one in about]
            rows = encoded.rows(good)
            self._new_columns = columns
            try:
                self._fit_encoded(rows, columns.classes, *given)
            finally:
                del self._new_columns
            self._learner.n_rejected += len(bad)
            block = Block(rows.X, rows.y, rows.weights, len(good), bad, notes=encoded.notes)
            self._table = TableModel(self._learner, columns).with_rows(block)
            self._frame_kind = frame_kind(X)
            self.feature_names_in_ = np.array(columns.names, dtype=object)
            return self

    def _learner_parameters(self) -> dict[str, Any]:
        """Return the parameters of `Settings.of`; a formula says whether there is an intercept, and its groups."""
        found = super()._learner_parameters()
        if self.formula is None:
            return found
        columns: Any = self._new_columns or (self._table and self._table.columns)
        if columns is not None:
            found["fit_intercept"] = columns.intercept
            given = penalty_of(None if found["penalty"] == "default" else found["penalty"])
            if (penalty := given.for_terms(columns.groups)) is not given:
                found["penalty"] = penalty
        return found

    def _target_classes(self) -> "TargetClasses | None":
        """Return how the classes of a target are found; None for targets that are numbers."""
        return None

    def _fit_encoded(
        self,
        rows: "Encoded",
        classes: tuple[str, ...],
        weights: Array | None,
        clusters: Array | None,
        offset: Array | None,
        exposure: Array | None,
        times: Array | None,
    ) -> None:
        """Fit the model to rows that were encoded, with the targets of these classes, if there are any.

        What is given of the rows takes the place of what the frame has.
        """
        weights, clusters = _first(weights, rows.weights), _first(clusters, rows.groups)
        offset, times = _first(offset, rows.offset), _first(times, rows.times)
        Fitting.fit(self, rows.X, rows.y, weights, clusters, offset, exposure, times)


def _first(given: Array | None, own: Array | None) -> Array | None:
    return own if given is None else given


def _as_rows(values: Any, good: Array) -> Array:
    """Return what is given of the rows of a frame for the good ones."""
    found = np.asarray(values)
    if found.shape[:1] != good.shape:
        raise ValueError(
            f"Weights, clusters, offsets and times need one value per row: {len(good)}; got {found.shape}."
        )
    return found[good]


def _with_target(table: Any, y: Any, names: list[str]) -> tuple[Any, str]:
    """Return a table with the targets of a formula that has none, and the name of their column."""
    import pyarrow as pa

    if y is None:
        raise ValueError("The formula has no target: give y to fit, or name a column before the ~ of the formula.")
    values = np.asarray(y)
    if values.shape != (len(table),):
        raise ValueError(f"y must have shape ({len(table)},), one target per row of the frame; got {values.shape}.")
    target = next(name for name in ("y", "target", *(f"y{i}" for i in range(len(names) + 1))) if name not in names)
    return table.append_column(target, pa.array(values.tolist())), target
