"""The classifier for River."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from river import base

from kalprox.adapters.dictionaries import Row, frame_like, frame_rows, series_like
from kalprox.adapters.streams import DictionaryModel, check_names
from kalprox.estimators import KalproxClassifier
from kalprox.learning.settings import Settings
from kalprox.sources import Block

__all__ = ["RiverClassifier"]


@dataclass(eq=False, repr=False)
class RiverClassifier(DictionaryModel, base.MiniBatchClassifier):
    """`kalprox.KalproxClassifier` for River: rows are dictionaries, and classes may come later.

    Two classes are a logistic model; with the third the model becomes multinomial, and grows by a class whenever one
    comes. What was learned about the classes known so far is kept. The rows before say about a new class that none of
    them had it, as rows with the means and the standard deviations of their features would; its coefficients start at
    their prior, and its probability at that of one row. Name the classes beforehand to have all rows count exactly for
    all of them.

    Parameters
    ----------
    penalty, alpha, fit_intercept, forget, missing, diagnose, coef_cov, hash_bits
        See `RiverRegressor`.
    structure : None, "diagonal", or an object of kalprox.structures
        See `RiverRegressor`. With a structure there are two classes, and no more. Every row costs O(d), or O(d r) with
        `LowRank(r)`: learn batches with `learn_many`.
    class_weight : dict, optional
        The weights of the classes, by which the weights of their rows are multiplied; 1 for others. These products are
        then no repetitions, see `weight_kind` of `kalprox.KalproxClassifier`.
    classes : tuple, optional
        Labels that are known beforehand, at least two. Others may still come.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> model = preprocessing.StandardScaler() | RiverClassifier()
    >>> evaluate.progressive_val_score(datasets.Phishing(), model, metrics.LogLoss())
    LogLoss: 0.261...
    """

    penalty: Any = "ridge"
    alpha: float = 1.0
    _: KW_ONLY
    fit_intercept: bool = True
    forget: Any = 1.0
    class_weight: Any = None
    missing: str = "raise"
    diagnose: bool = False
    coef_cov: str = "auto"
    classes: tuple[Any, ...] | None = None
    hash_bits: int | None = None
    structure: Any = None

    _kind = KalproxClassifier
    _own = ("hash_bits", "classes")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._codes: dict[Any, int] = {}

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {}
        yield {"hash_bits": 5}

    @property
    def _multiclass(self) -> bool:
        return self.structure is None

    def _estimator(self) -> Any:
        model: Any = super()._estimator()
        if self.class_weight is not None:  # no row counts more than once
            model.weight_kind = "precision"
        if len(self._codes) > 2:
            model.classes_ = np.array(list(self._codes))
        return model

    # ---- learning --------------------------------------------------------------------------------------

    def learn_one(self, x: Row, y: Any, w: float = 1.0) -> None:
        """Learn one row: O(d^2) with two classes, and O((d m)^3) with m of them; with a structure see there.

        Parameters
        ----------
        x : dict
            The features: a number for each name.
        y : label
            The class: a boolean, a text or a number.
        w : float
            How often the row counts; with `class_weight`, how much it counts for, without being more than one row.

        Examples
        --------
        >>> model = RiverClassifier()
        >>> for a, label in [(0.0, "cold"), (3.0, "hot"), (1.0, "cold"), (2.0, "hot"), (1.5, "mild")]:
        ...     model.learn_one({"a": a}, label)
        >>> model.predict_one({"a": 5.0}), list(model.predict_proba_one({"a": 0.0}))
        ('hot', ['cold', 'hot', 'mild'])
        """
        code, w = self._code(y), w * self._weight(y)
        if len(self._codes) <= 2:
            self._learn(x, np.array([float(code)]), w)
        else:
            self._learn(x, np.eye(len(self._codes))[code : code + 1], w)

    def _code(self, y: Any) -> int:
        """Return the number of a class."""
        if not self._codes:
            self._first_labels()
        code = self._codes.get(y)
        return self._new_label(y) if code is None else code

    def _weight(self, y: Any) -> float:
        """Return the weight of a class."""
        return 1.0 if self.class_weight is None else self.class_weight.get(y, 1.0)

    def _first_labels(self) -> None:
        """Name the classes that were given."""
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs all rows at once; for a stream, give a dict with the weight "
                "of each class."
            )
        if self.classes is not None:
            if len(set(self.classes)) < max(len(self.classes), 2):
                raise ValueError(f"classes must have at least two labels, all different; got {self.classes!r}.")
            self._codes = {label: code for code, label in enumerate(self.classes)}

    def _new_label(self, y: Any) -> int:
        """Give a number to a class that no row had so far; the model grows by it if there are two or more already."""
        if y is None or y != y:
            raise ValueError(f"y must be the label of a class; got {y!r}. Learn the row when its label is known.")
        if not self._codes and isinstance(y, (bool, np.bool_)):
            self._codes = {False: 0, True: 1}
            return int(y)
        if len(self._codes) >= 2:
            settings = Settings.of(**self._estimator()._learner_parameters() | {"likelihood": "categorical"})
            check_names(settings, self.hash_bits)
            learner = self._started()
            if learner.is_fitted:
                learner.add_class(settings)
            else:
                learner.configure(settings)
        self._codes[y] = len(self._codes)
        return self._codes[y]

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn the rows of a frame, one by one or, with a structure, together.

        Parameters
        ----------
        X : DataFrame of pandas or polars
        y : Series

        Examples
        --------
        >>> import pandas as pd
        >>> model = RiverClassifier()
        >>> model.learn_many(pd.DataFrame({"a": [0.0, 1.0, 2.0]}), pd.Series([False, False, True]))
        >>> model.predict_one({"a": 5.0})
        True
        """
        labels = list(y)
        if labels and not self._codes:
            self._first_labels()
        if not labels or self._started().settings.structure is None or self.missing != "raise":
            for x, label in zip(frame_rows(X), labels, strict=True):
                self.learn_one(x, label)
            return
        codes = np.array([self._code(label) for label in labels], float)
        weights = None if self.class_weight is None else np.array([self._weight(label) for label in labels])
        for rows, matrix in self._matrices(X):
            self._learn_block(Block(matrix, codes[rows], None if weights is None else weights[rows]))

    # ---- predicting ------------------------------------------------------------------------------------

    def predict_proba_one(self, x: Row, **kwargs: Any) -> dict[Any, float]:
        """Return the probability of each class for one row, averaged over the posterior.

        Parameters
        ----------
        x : dict
            The features. The coefficient of one that was never learned is as uncertain as its prior says.
        **kwargs
            Not used; River's wrappers pass them on.

        Returns
        -------
        dict
            Of all labels that have come or were named; empty before the first, and 1 if there is but one.

        Examples
        --------
        >>> model = RiverClassifier()
        >>> model.learn_one({"a": 1.0}, True)
        >>> {label: round(p, 2) for label, p in model.predict_proba_one({"a": 1.0}).items()}
        {False: 0.11, True: 0.89}
        """
        labels, learner = list(self._codes), self._learner
        if learner is None or not learner.is_fitted:
            labels = labels or list(self.classes or ())
            return {label: 1 / len(labels) for label in labels}
        if len(labels) == 1:
            return {labels[0]: 1.0}
        learner, row = self._read(x, spread=True)
        proba = learner.predict(row).mean[0]
        if np.isnan(proba).any():
            self._check_read(x)
        if len(labels) == 2:
            p = float(proba)
            return {labels[0]: 1 - p, labels[1]: p}
        return dict(zip(labels, (proba / proba.sum()).tolist(), strict=True))

    def predict_proba_many(self, X: Any) -> Any:
        """Return the probability of each class for the rows of a frame.

        Parameters
        ----------
        X : DataFrame of pandas or polars

        Returns
        -------
        DataFrame
            With a column for each label, and the index of X.

        Examples
        --------
        >>> import pandas as pd
        >>> model = RiverClassifier(classes=("a", "b"))
        >>> model.predict_proba_many(pd.DataFrame({"x": [1.0]})).to_dict("list")
        {'a': [0.5], 'b': [0.5]}
        """
        p = self._read_many(X, lambda learner, rows: learner.predict(rows).mean) if len(self._codes) == 2 else None
        if p is not None:
            return frame_like(dict(zip(self._codes, ((1 - p).tolist(), p.tolist()), strict=True)), X)
        found = [self.predict_proba_one(x) for x in frame_rows(X)]
        return frame_like({label: [one[label] for one in found] for label in (found[0] if found else self._codes)}, X)

    def predict_many(self, X: Any) -> Any:
        """Return the most probable class of the rows of a frame, as a Series; None before the first class.

        Parameters
        ----------
        X : DataFrame of pandas or polars

        Returns
        -------
        Series

        Examples
        --------
        >>> import pandas as pd
        >>> RiverClassifier(classes=("a", "b")).predict_many(pd.DataFrame({"x": [1.0]})).tolist()
        ['a']
        """
        p = self._read_many(X, lambda learner, rows: learner.predict(rows).mean) if len(self._codes) == 2 else None
        if p is not None:
            labels = list(self._codes)
            return series_like([labels[one] for one in (p > 0.5).tolist()], X)
        return series_like([self.predict_one(x) for x in frame_rows(X)], X)

    def to_estimator(self) -> KalproxClassifier:
        """Return a `kalprox.KalproxClassifier` that has learned the same rows: a copy, with the names of the features.

        Returns
        -------
        KalproxClassifier

        Examples
        --------
        >>> model = RiverClassifier()
        >>> for a, label in [(0.0, "no"), (1.0, "yes"), (2.0, "no"), (3.0, "yes")]:
        ...     model.learn_one({"a": a}, label)
        >>> model.to_estimator().classes_
        array(['no', 'yes'], dtype='<U3')
        """
        if len(self._codes) < 2:
            raise ValueError(f"An estimator needs two classes; those that have come are {list(self._codes)}.")
        found: KalproxClassifier = self._fitted_estimator()
        found.classes_ = np.array(list(self._codes))
        return found
