"""Models for River: a regressor and a classifier whose rows are dictionaries, with features that come and go."""

import math
import random
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from kalprox.adapters.streams import DictionaryModel, Row, check_frame, check_names, frame_like, frame_rows, series_like
from kalprox.base.checks import check_level
from kalprox.base.extras import not_installed
from kalprox.estimators import KalproxClassifier, KalproxRegressor
from kalprox.learning.settings import Settings
from kalprox.predictive import Predictive, Student
from kalprox.sources import Block
from kalprox.structures import Diagonal, LowRank

__all__ = ["PredictiveDistribution", "RiverClassifier", "RiverRegressor"]

try:
    from river import base, proba
except ModuleNotFoundError as missing:
    raise not_installed("river", "kalprox.adapters.river needs") from missing


class PredictiveDistribution(proba.base.ContinuousDistribution):
    """The predictive distribution of one observation, with the interface of `river.proba.Gaussian`.

    It is Student's t distribution if the noise variance is learned, the normal one if it is given, and that of counts
    with a likelihood of counts. A distribution is what was known when it was made: it cannot be updated.

    Parameters
    ----------
    predictive : kalprox.predictive.Predictive
        Of one row.
    n_samples : int
        The number of rows learned before.
    seed : int, optional
        That of `sample`.

    Examples
    --------
    >>> import numpy as np
    >>> found = PredictiveDistribution(Student(np.array([1.0]), np.array([2.0]), math.inf), 10, seed=1)
    >>> found, found.mu, found.sigma, found(1.0), found.cdf(1.0)
    (Student(μ=1.000, σ=2.000, dof=inf), 1.0, 2.0, 0.199471..., 0.5)
    >>> found.interval(0.95)
    (-2.919..., 4.919...)
    """

    def __init__(self, predictive: Predictive, n_samples: int, seed: int | None = None) -> None:
        self.predictive = predictive
        self.seed = seed
        self._n_samples = n_samples

    def __repr__(self) -> str:
        about = f", dof={self.dof:.4g}" if isinstance(self.predictive, Student) else ""
        return f"{type(self.predictive).__name__}(μ={self.mu:.3f}, σ={self.sigma:.3f}{about})"

    __str__ = __repr__

    @property
    def n_samples(self) -> int:
        """The number of rows learned before."""
        return self._n_samples

    @property
    def mu(self) -> float:
        """The mean."""
        return float(self.predictive.mean[0])

    @property
    def dof(self) -> float:
        """The degrees of freedom of Student's t distribution; infinite for others."""
        found = getattr(self.predictive, "dof", math.inf)
        return float(found if isinstance(found, (int, float)) or not getattr(found, "shape", ()) else found[0])

    @property
    def scale(self) -> float:
        """The scale of Student's t distribution, which `predict` of `kalprox.KalproxRegressor` returns."""
        return float(self.predictive.std[0])

    @property
    def sigma(self) -> float:
        """The standard deviation: infinite with no more than 2 degrees of freedom."""
        dof = self.dof
        if math.isinf(dof):
            return self.scale
        return self.scale * math.sqrt(dof / (dof - 2)) if dof > 2 else math.inf

    @property
    def mode(self) -> float:
        """The mean, which is the mode of a symmetric distribution."""
        return self.mu

    def __call__(self, x: float) -> float:
        """Return the density at x, or the probability of the count x."""
        return math.exp(self.log_pdf(x))

    def log_pdf(self, x: float) -> float:
        """Return the log of the density, or of the probability, at a value.

        Parameters
        ----------
        x : float

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> round(PredictiveDistribution(Student(np.zeros(1), np.ones(1), math.inf), 1).log_pdf(0.0), 3)
        -0.919
        """
        return float(self.predictive.log_prob(self.predictive.mean * 0 + x)[0])

    def cdf(self, x: float) -> float:
        """Return the probability that the observation is at most a value.

        Parameters
        ----------
        x : float

        Returns
        -------
        float
        """
        return float(self.predictive.cdf(self.predictive.mean * 0 + x)[0])

    def quantile(self, p: float) -> float:
        """Return a quantile.

        Parameters
        ----------
        p : float
            Its probability.

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> round(PredictiveDistribution(Student(np.zeros(1), np.ones(1), math.inf), 1).quantile(0.975), 2)
        1.96
        """
        return float(self.predictive.quantile(p)[0])

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the ends of the central interval that has this probability.

        Parameters
        ----------
        level : float
            Strictly between 0 and 1.

        Returns
        -------
        low, high : float
        """
        check_level(level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def sample(self) -> float:
        """Draw an observation.

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> found = PredictiveDistribution(Student(np.zeros(1), np.ones(1), math.inf), 1, seed=0)
        >>> round(found.sample(), 3)
        1.013
        """
        if "_rng" not in vars(self):
            self._rng = random.Random(self.seed)
        return self.quantile(self._rng.random())

    def update(self, x: float) -> None:
        """Raise a NotImplementedError: an observation does not change a prediction, but the model.

        Parameters
        ----------
        x : float

        Examples
        --------
        >>> import numpy as np
        >>> PredictiveDistribution(Student(np.zeros(1), np.ones(1), math.inf), 1).update(3.0)
        Traceback (most recent call last):
        NotImplementedError: A predictive distribution cannot be updated: update the model, and predict again.
        """
        raise NotImplementedError("A predictive distribution cannot be updated: update the model, and predict again.")

    def revert(self, x: float) -> None:
        """Raise a NotImplementedError; see `update`.

        Parameters
        ----------
        x : float

        Examples
        --------
        >>> import numpy as np
        >>> PredictiveDistribution(Student(np.zeros(1), np.ones(1), math.inf), 1).revert(3.0)
        Traceback (most recent call last):
        NotImplementedError: A predictive distribution cannot be updated: update the model, and predict again.
        """
        self.update(x)


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
