"""Fits of a formula to a frame."""

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kalprox.estimators.fitting import Fitting
from kalprox.estimators.frames import as_arrow, check_encoded, encode, frame_kind
from kalprox.sources import Block

if TYPE_CHECKING:
    from kalprox.sources.classes import TargetClasses
    from kalprox.sources.encoding import Encoded

__all__ = ["Formulas"]


class Formulas(Fitting):
    """The method that makes a model of a formula and a frame."""

    @classmethod
    def from_formula(
        cls,
        formula: str,
        data: Any,
        *,
        weight: str | None = None,
        cluster: str | None = None,
        offset: str | None = None,
        exposure: str | None = None,
        time: str | None = None,
        **parameters: Any,
    ) -> Self:
        """Fit a model to a frame by a formula such as "y ~ x + C(g) + a:b", in the syntax of formulaic.

        The model takes frames with the same columns, in `predict` and `partial_fit`, and its file serves `kalprox
        predict`. The intercept is that of the formula: 0 + leaves it out. Needs `pip install "kalprox[formula]"`.

        Parameters
        ----------
        formula : str
            The target, and the terms; see `kalprox.sources.formula_syntax` for the expressions that are allowed. The
            target of a classifier is a column of text, numbers or booleans.
        data : frame of pandas, polars or pyarrow
        weight, cluster, offset, exposure, time : str, optional
            The columns of the weights, of the clusters, of the offset, of the exposure and of the times.
        **parameters
            Parameters of the estimator, except `fit_intercept`.

        Returns
        -------
        KalproxRegressor or KalproxClassifier

        Examples
        --------
        >>> import pandas as pd
        >>> from kalprox import KalproxRegressor
        >>> data = pd.DataFrame({"y": [1.0, 2.0, 4.0, 5.0], "x": [0.0, 1.0, 2.0, 3.0], "g": ["a", "a", "b", "b"]})
        >>> model = KalproxRegressor.from_formula("y ~ x + g", data, penalty=None)
        >>> [str(name) for name in model.feature_names_in_], model.coef_.round(6)
        (['x', 'g[T.b]'], array([1., 1.]))
        >>> model.predict(pd.DataFrame({"x": [4.0], "g": ["b"]})).round(6)
        array([6.])
        """
        from kalprox.jobs.model import TableModel
        from kalprox.sources.formula_scan import formula_names, infer_formula_of_table

        if "fit_intercept" in parameters:
            raise ValueError("fit_intercept must not be given: the formula has an intercept unless it says 0 + or - 1.")
        if frame_kind(data) is None:
            raise TypeError(f"data must be a frame of pandas, polars or pyarrow; got {type(data).__name__}.")
        own: dict[str, Any] = {"weight": weight, "cluster": cluster, "offset": offset, "exposure": exposure}
        own["time"] = time
        needed = [*formula_names(formula), *(name for name in own.values() if name is not None)]
        table = as_arrow(data, list(dict.fromkeys(needed)))
        columns = infer_formula_of_table(formula, table, classes=cls._target_classes(), **own)
        groups = {"groups": columns.groups} if parameters.get("penalty") == "group" else {}
        model = cls(**groups | parameters, fit_intercept=columns.intercept)
        encoded = encode(columns, data)
        bad, good = check_encoded(encoded, model.on_bad_rows), np.ones(len(encoded.X), bool)
        good[[row.row - 1 for row in bad]] = False
        rows = encoded.rows(good)
        model._fit_encoded(rows, columns.classes)
        model._learner.n_rejected += len(bad)
        block = Block(rows.X, rows.y, rows.weights, len(good), bad, notes=encoded.notes)
        model._table = TableModel(model._learner, columns).with_rows(block)
        model._frame_kind = frame_kind(data)
        model.feature_names_in_ = np.array(columns.names, dtype=object)
        return model

    @classmethod
    def _target_classes(cls) -> "TargetClasses | None":
        """Return how the classes of a target are found; None for targets that are numbers."""
        return None

    def _fit_encoded(self, rows: "Encoded", classes: tuple[str, ...]) -> None:
        """Fit the model to rows that were encoded, with the targets of these classes, if there are any."""
        self.fit(rows.X, rows.y, rows.weights, rows.groups, rows.offset, times=rows.times)
