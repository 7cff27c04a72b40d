"""The regressor for River."""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from river import base

from kalprox.adapters.dictionaries import Row, check_frame, frame_rows, series_like
from kalprox.adapters.distribution import PredictiveDistribution
from kalprox.adapters.streams import DictionaryModel
from kalprox.estimators import KalproxRegressor
from kalprox.predictive import Student
from kalprox.sources import Block
from kalprox.structures import Diagonal, LowRank

__all__ = ["RiverRegressor"]

_UNKNOWN = Student(np.zeros(1), np.full(1, math.inf), math.inf)  # before the first row


@dataclass(eq=False, repr=False)
class RiverRegressor(DictionaryModel, base.MiniBatchRegressor):
    """`kalprox.KalproxRegressor` for River: rows are dictionaries, and predictions are distributions.

    With the identity link and the Gaussian likelihood, the model is always the exact minimiser over all rows so far,
    whether they came one by one or in batches, and whichever features they had: an absent feature is 0, and one that
    comes later was 0 in all earlier rows. Its coefficient starts at its prior, the penalty; without a penalty it is
    undetermined until a row has it.

    Parameters
    ----------
    link : {"identity", "sigmoid", "tanh", "softplus", "exp", "arctan"}
        The link, by its name; see `kalprox.KalproxRegressor`, also for the parameters below.
    penalty : None, a name, or an object of kalprox.penalties or kalprox.regularizers
        The penalty that alpha multiplies, a prior of features that have not come yet. It must be the same for all
        features.
    alpha : float or "auto"
        The weight of the penalty.
    noise : "learn", "inputs" or float
        The noise variance.
    fit_intercept, standardize : bool
        Whether to fit an intercept, and to penalise coefficients as if the features were standardised.
    forget : float, "auto" or Forgetting
        How to forget, except by time: the rows have no times.
    missing : {"raise", "drop"}
        What to do with rows that have a missing value, None or NaN, or one that is infinite or too large: raise an
        error, or leave them out and count them in `n_rows_rejected`.
    diagnose : bool
        Whether to keep the score of predictions of each row before it was learned, for the diagnostics of
        `to_estimator`. It takes as long again as learning the row: by default it is left to `river.evaluate`.
    coef_cov : {"auto", "model", "robust", "clustered"}
        What the standard errors of the coefficients assume.
    weight_kind : {"frequency", "precision"}
        What the weight of a row means.
    likelihood : Likelihood or str
        The distribution of the target.
    hash_bits : int, optional
        Put all features into 2^hash_bits columns by the hashes of their names, with signs: memory is then bounded
        however many names come, and values may be texts, such as words and identifiers. Features that share a column
        share a coefficient. At most 12, and with a structure at most 20.
    structure : None, "diagonal", or an object of kalprox.structures
        For many columns, see `hash_bits`, which it needs: what is kept of the information about the coefficients,
        instead of a matrix of d x d numbers: its diagonal, or with `LowRank(20)` also 20 directions. Rows are then
        sparse, and are learned in one pass: the estimate is exact for the precision before each row, and not the
        minimiser over all of them, so that a larger alpha may predict better. It needs link="identity",
        penalty="ridge" or None, forget=1 and standardize=False.

    Notes
    -----
    With structure="diagonal" a row costs O(k) for its k features, however many columns there are, and O(d) with
    diagnose=True or another likelihood than the Gaussian one. With `LowRank(r)` a call costs O(d r^2): at 2^18 columns
    and rank 20 a single row takes some 30 milliseconds, and one of a batch of 500 in `learn_many` about 2.

    Functions of one's own and penalties of groups need to know the features beforehand: they are parameters of
    `kalprox.KalproxRegressor` only, as are missing features and change points, for which River has tools of its own.
    Everything else that it has, such as coefficients with standard errors, the diagnostics and model files,
    `to_estimator` gives.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> model = RiverRegressor(forget=0.98)
    >>> evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE())
    MAE: 0.399...
    >>> x, y = next(iter(datasets.TrumpApproval()))
    >>> low, high = model.predict_one(x, with_dist=True).interval(0.9)
    >>> low < high
    True

    Words, in 2^18 columns of which a row touches as many as it has words:

    >>> words = RiverRegressor(hash_bits=18, structure="diagonal")
    >>> for text, rating in [("good film", 4.0), ("bad film", 1.0), ("good cast", 5.0), ("bad", 0.5)] * 5:
    ...     words.learn_one(dict.fromkeys(text.split(), 1.0), rating)
    >>> round(words.predict_one({"good": 1.0}), 1), round(words.predict_one({"bad": 1.0}), 1)
    (3.9, 1.1)
    """

    link: str = "identity"
    penalty: Any = "ridge"
    alpha: float | str = 1.0
    _: KW_ONLY
    noise: float | str = "learn"
    fit_intercept: bool = True
    standardize: bool = False
    forget: Any = 1.0
    missing: str = "raise"
    diagnose: bool = False
    coef_cov: str = "auto"
    weight_kind: str = "frequency"
    likelihood: Any = "gaussian"
    hash_bits: int | None = None
    structure: Any = None

    _kind = KalproxRegressor

    def __post_init__(self) -> None:
        super().__post_init__()
        self._target = np.zeros(1)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {}
        yield {"penalty": "l1", "alpha": 5.0}
        yield {"forget": 0.99}
        yield {"hash_bits": 5}
        yield {"hash_bits": 18, "structure": "diagonal"}
        yield {"hash_bits": 8, "structure": LowRank(10)}

    # ---- learning --------------------------------------------------------------------------------------

    def learn_one(self, x: Row, y: Any, w: float = 1.0) -> None:
        """Learn one row. O(d^2) for d features, and O(d^3) for a row with new ones; for a structure see the notes.

        Parameters
        ----------
        x : dict
            The features: a number for each name.
        y : float
            The target.
        w : float
            The weight of the row; see `weight_kind`.

        Examples
        --------
        >>> model = RiverRegressor(penalty=None)
        >>> for x, y in [({"a": 1.0}, 3.0), ({"a": 2.0}, 5.0), ({"a": 2.0, "b": 1.0}, 9.0)]:
        ...     model.learn_one(x, y)
        >>> round(model.predict_one({"a": 3.0, "b": 1.0}), 6)
        11.0
        """
        self._target[0] = y
        self._learn(x, self._target, w)

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn the rows of a frame.

        A linear model with the Gaussian likelihood learns them at once, with the same result as one by one up to
        rounding. With the structure `LowRank` they are learned together, too, which is faster, and loses less of what
        rows have in common than one by one. Others learn them one by one.

        Parameters
        ----------
        X : DataFrame of pandas or polars
        y : Series

        Examples
        --------
        >>> import pandas as pd
        >>> model = RiverRegressor(penalty=None)
        >>> model.learn_many(pd.DataFrame({"a": [1.0, 2.0, 3.0]}), pd.Series([3.0, 5.0, 7.0]))
        >>> round(model.predict_one({"a": 4.0}), 6)
        9.0
        """
        check_frame(X)
        learner, targets = self._started(), np.asarray(y, float)
        settings = learner.settings
        if (settings.is_exact or settings.structure is not None) and self.missing == "raise" and len(X):
            if new := self._columns.unknown(X.columns):
                self._add_features(new)
            single = isinstance(settings.structure, Diagonal)  # of which a batch would lose less than its rows do
            for rows, matrix in self._matrices(X):
                self._learn_block(Block(matrix, targets[rows].copy()), single=single)
            return
        for x, target in zip(frame_rows(X), targets, strict=True):
            self.learn_one(x, target)

    # ---- predicting ------------------------------------------------------------------------------------

    def predict_one(self, x: Row, with_dist: bool = False) -> Any:
        """Predict the target of one row.

        Parameters
        ----------
        x : dict
            The features. One that was never learned has no effect on the mean of a linear model; with `with_dist` its
            coefficient is as uncertain as its prior says.
        with_dist : bool
            Whether to return the predictive distribution instead of its mean.

        Returns
        -------
        float or PredictiveDistribution
            0 before the first row, and a distribution with an infinite standard deviation.

        Examples
        --------
        >>> model = RiverRegressor(penalty=None)
        >>> for i, y in enumerate([0.1, 0.9, 2.1, 2.9]):
        ...     model.learn_one({"a": i}, y)
        >>> model.predict_one({"a": 4}, with_dist=True)
        Student(μ=3.900, σ=inf, dof=2)
        """
        learner = self._learner
        if learner is None or not learner.is_fitted:
            return PredictiveDistribution(_UNKNOWN, 0) if with_dist else 0.0
        spread = with_dist or not learner.settings.likelihood.location
        learner, row = self._read(x, spread=spread)
        if with_dist:
            return PredictiveDistribution(learner.predict(row), learner.n_rows)
        mean = float(learner.mean(row)[0])
        if mean != mean:
            self._check_read(x)
        return mean

    def predict_many(self, X: Any) -> Any:
        """Predict the targets of the rows of a frame.

        Parameters
        ----------
        X : DataFrame of pandas or polars

        Returns
        -------
        Series
            Of the same library.

        Examples
        --------
        >>> import pandas as pd
        >>> RiverRegressor().predict_many(pd.DataFrame({"a": [1.0, 2.0]})).tolist()
        [0.0, 0.0]
        """
        found = self._read_many(X, lambda learner, rows: learner.mean(rows))
        return series_like([self.predict_one(x) for x in frame_rows(X)] if found is None else found.tolist(), X)

    def to_estimator(self) -> KalproxRegressor:
        """Return a `kalprox.KalproxRegressor` that has learned the same rows: a copy, with the names of the features.

        It has the coefficients with their standard errors, intervals, the diagnostics, reports and model files.

        Returns
        -------
        KalproxRegressor

        Examples
        --------
        >>> model = RiverRegressor(penalty=None)
        >>> for x, y in [({"a": 1.0}, 3.0), ({"a": 2.0}, 5.0), ({"b": 1.0}, 2.0)]:
        ...     model.learn_one(x, y)
        >>> model.to_estimator().coef_.round(6)
        array([2., 1.])
        """
        found: KalproxRegressor = self._fitted_estimator()
        return found
