"""KalproxClassifier: batch and streaming classification with uncertainty, as a scikit-learn estimator."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from kalprox.base.arrays import Array
from kalprox.engines.collections import is_collection
from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.checks import with_nan
from kalprox.estimators.class_source import ClassSource, LabelCounts
from kalprox.estimators.classes import (
    check_class_weight,
    checked_classes,
    checked_labels,
    class_targets,
    class_weights,
    plain_target,
)
from kalprox.estimators.files import Files
from kalprox.estimators.formulas import Formulas
from kalprox.estimators.frames import is_raw
from kalprox.estimators.paths import Paths
from kalprox.estimators.predicting_classes import PredictingClasses, of_both
from kalprox.estimators.readings import Readings
from kalprox.estimators.renamed import says_new_names
from kalprox.estimators.showing import Showing
from kalprox.forgetting import Forgetting
from kalprox.learning.gaps import FILLED
from kalprox.learning.learner import Learner
from kalprox.learning.path import Path
from kalprox.learning.state import check_any_row
from kalprox.sources import Source

__all__ = ["KalproxClassifier"]


class KalproxClassifier(
    Formulas, Paths, PredictingClasses, Readings, Showing, Files, ClassifierMixin, LearnerEstimator
):
    """Regularised logistic regression, in batch or streaming, with standard errors and honest probabilities.

    For two classes the estimator minimises

        sum_k w_k (log(1 + exp(f_k)) - y_k f_k) + alpha * penalty(coef),    f_k = x_k' coef + intercept,

    with y_k = 1 for the second class. For m classes it is multinomial: every class has coefficients, the probabilities
    are the softmax of the m outputs, and one fold learns all of them together, not one class against the others. The
    intercepts are not penalised, and add up to zero.

    `fit` makes passes over the rows until it reaches the minimiser. `partial_fit` learns in one pass: each row by the
    mean and the variance that the belief has after it (moment matching), once a warm-up has ended, during which the
    first rows are held. Probabilities are averaged over the posterior, so that a row far from all others does not get
    a probability near 0 or 1. All computations are in float64.

    Parameters
    ----------
    formula : str, optional
        The target and the terms of a frame, such as "y ~ x + C(g)"; see `KalproxRegressor`. The target is a column of
        text, numbers or booleans.
    function : callable, optional
        A JAX function fn(theta, x) of one row returns the output f for two classes, or a vector of m outputs; it is
        then the whole model, and `start` must be given.
    start : array, optional
        See `KalproxRegressor`.
    penalty : None, a name, or an object of kalprox.penalties or kalprox.regularizers
        The penalty that alpha multiplies; see `KalproxRegressor`. With several classes the parameters of a penalty are
        numbers, the same for all coefficients: "group" and bounds that differ between features need two classes.
        "default" is "ridge".
    alpha : float or "auto"
        The weight of the penalty: 1 / C of scikit-learn's LogisticRegression. "auto" needs ridge: `fit` then takes the
        alpha of the largest evidence, by the Laplace approximation, in about 10 fits, and `partial_fit` goes on with
        it. Use it if there are fewer than 50 rows for each coefficient or so.
    fit_intercept : bool
        Whether to fit intercepts, which are never penalised.
    standardize : bool
        Whether to penalise the coefficients as if the columns of X had been standardised; `fit` only.
    forget : float, "auto", or kalprox.forgetting.ByTime
        The forgetting factor, in (0, 1]: every new row multiplies the weights of all earlier rows by it. With
        `ByTime(half_life)` the weight of a row is halved with every half-life since its time, see `times` in `fit`.
        "auto" mixes several ways to forget by how well each has predicted, see `KalproxRegressor`. Two classes with a
        ridge penalty are then learned row by row, by moment matching, also in `fit`; more classes, or other penalties,
        have a warm-up, and only ways to forget with a memory of 60 rows for each coefficient.
    class_weight : dict, "balanced" or None
        The weights of the classes, by which the weights of their rows are multiplied. "balanced" takes weights
        proportional to 1 / (number of rows of the class), and needs `fit`, which has all rows. Such weights are no
        repetitions: the standard errors are then robust ones, with the squares of the weights of classes, unless
        `coef_cov` says otherwise.
    weight_kind : {"frequency", "precision"}
        What the weights of rows, `sample_weight`, mean: how often a row counts, or how much it counts for, without
        being more than one row (weights of importance or of sampling). The standard errors are then robust ones, with
        the squares of the weights, unless `coef_cov` says otherwise.
    engine, max_passes, tol
        See `KalproxRegressor`.
    diagnose : bool
        Whether every row of `partial_fit` is predicted before it is learned, to keep the prequential score in
        `diagnostics_`.
    coef_cov : {"auto", "model", "robust", "clustered"}
        What the standard errors of the coefficients assume; see `KalproxRegressor`. "model" counts rows as often as
        their weights say, also with `class_weight` and weight_kind="precision", for which "auto" is "robust".
    change_points : bool or float
        Whether to look for change points in rows of two classes that are learned with `partial_fit`; see
        `KalproxRegressor`.
    missing : {"raise", "drop", "impute", "marginalize"}
        What to do with missing values. "raise": NaN, infinity and values above 1e70 in size are an error. "drop": rows
        with such a value in X are left out, and counted in `n_rows_rejected_`. "impute": a missing
        feature is replaced by the mean of its column, as known from the rows before (the first batch, and `fit`: of the
        batch itself), and learned as if it were known. "marginalize": it is replaced by its mean given the other
        features of its row, under the running mean and covariance of the features. What is left open of
        the log odds is averaged over in the probabilities, and the row counts less when it is learned, by 1 / (1 + pi/8
        times that variance); this is approximate, and shrinks the coefficients a little.
        Both assume that features are missing independently of the target, given the features that are there (missing at
        random, with the target not among what missingness depends on), and "impute" that they are missing completely at
        random. `diagnostics_` tests it, and its verdict is "informative missingness" if the rows contradict it.
        `n_rows_with_gaps_` counts the rows that were learned with gaps.
        With all but "raise", a row without a label, None or NaN, is counted in `n_rows_unlabelled_` and not learned.
        `prequential` predicts it. For labels that come later see `learn_late`.
    structure : None, "diagonal", or an object of kalprox.structures
        For many columns, about 10^4 to 10^6: what is kept of the information about the coefficients, instead of a
        matrix of d x d numbers: its diagonal, or with `LowRank(20)` also 20 directions. `fit` still finds the
        coefficients of the objective, by conjugate gradients that stop by `tol`, and a sparse X stays sparse.
        `coef_std_` and the standard deviations of predictions come from the structure: predictions are usually within a
        few per cent of exact, and standard errors of coefficients may be too small, which a warning says. `partial_fit`
        needs two classes, penalty "ridge" or None, and forget=1. Not with alpha="auto", several targets,
        missing="marginalize", and robust or clustered standard errors.

    Attributes
    ----------
    classes_ : array of shape (m,)
        The labels of the classes, sorted.
    n_features_in_ : int
        The number d of columns of X.
    feature_names_in_ : array of str, shape (d,)
        The names of the columns of X; only if X was a frame whose columns have names.

    Notes
    -----
    `coef_` and `coef_std_` have the shape (1, d) for two classes, and are about the second one; otherwise (m, d).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = np.where(X @ [2.0, -1.0] + rng.logistic(size=300) > 0, "yes", "no")
    >>> model = KalproxClassifier().fit(X, y)
    >>> model.classes_, model.coef_.round(2), model.coef_std_.round(2)
    (array(['no', 'yes'], dtype='<U3'), array([[ 1.59, -0.85]]), array([[0.19, 0.17]]))
    >>> proba, std = model.predict_proba(X[:2], return_std=True)
    >>> proba.round(2), std.round(2)
    (array([[0.44, 0.56],
           [0.3 , 0.7 ]]), array([[0.04, 0.04],
           [0.04, 0.04]]))
    """

    @says_new_names
    def __init__(
        self,
        formula: str | None = None,
        *,
        function: Callable[..., Any] | None = None,
        start: Any = None,
        penalty: Any = "default",
        alpha: float | str = 1.0,
        fit_intercept: bool = True,
        standardize: bool = False,
        forget: float | str | Forgetting = 1.0,
        class_weight: Any = None,
        coef_cov: str = "auto",
        weight_kind: str = "frequency",
        missing: str = "raise",
        change_points: bool | float = False,
        diagnose: bool = True,
        structure: Any = None,
        engine: Any = None,
        max_passes: int = 200,
        tol: float = 1e-10,
    ) -> None:
        self.formula = formula
        self.function = function
        self.start = start
        self.penalty = penalty
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.forget = forget
        self.class_weight = class_weight
        self.coef_cov = coef_cov
        self.weight_kind = weight_kind
        self.missing = missing
        self.change_points = change_points
        self.diagnose = diagnose
        self.structure = structure
        self.engine = engine
        self.max_passes = max_passes
        self.tol = tol

    _balanced: tuple[float, ...] = ()  # the weights of the classes that class_weight="balanced" took

    # ---- learning --------------------------------------------------------------------------------------

    @says_new_names
    def fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        clusters: Any = None,
        times: Any = None,
        *,
        offset: Any = None,
    ) -> Self:
        """Fit the model to these rows, discarding everything learned before.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        y : array-like of shape (n,); the name of the target column for a Spark frame
            The labels of the classes: numbers, texts or booleans. One pass over a collection finds which there are.
        sample_weight : array-like of shape (n,), optional
            The weights of the rows; see `weight_kind`. A row of weight 0 is ignored. The name of a column for a Spark
            frame.
        clusters : array-like of shape (n,), optional
            The cluster of each row, for clustered standard errors; see `coef_cov`. The name of a column for a Spark
            frame.
        times : array-like of shape (n,), or one time, optional
            The time of each row, or of all rows; required with forget=ByTime(half_life). See `KalproxRegressor.fit`.
        offset : array-like of shape (n,), optional
            What is added to the log odds of the second of two classes, in each row. Then every row has one, those to
            predict included. The name of a column for a Spark frame.

        Returns
        -------
        self : KalproxClassifier

        Examples
        --------
        >>> model = KalproxClassifier().fit([[0.0], [1.0], [2.0], [3.0]], ["a", "b", "a", "b"])
        >>> model.predict([[9.0]]), model.coef_.round(3)
        (array(['b'], dtype='<U1'), array([[0.453]]))
        """
        with self._lock:
            if self.formula is not None:
                return self._fit_formula(X, y, (sample_weight, clusters, offset, None, times))
            if self.engine is not None or is_collection(X):
                return super().fit(X, y, sample_weight, clusters, offset, times=times)
            labels, missing = self._checked_labels(y)
            weights = self._weighted(labels, missing, sample_weight)
            given = None if weights is None else np.asarray(weights)
            known = given is not None and given.shape == labels.shape and given.any() and (given >= 0).all()
            classes = checked_classes(labels[~missing], given[~missing] if known else None)  # type: ignore[index]
            with self._classes_until_done(classes, self._balance(labels, missing, sample_weight, classes)):
                return super().fit(X, class_targets(labels, missing, classes), weights, clusters, offset, times=times)

    def refine(  # type: ignore[override]
        self, X: Any, y: Any, sample_weight: Any = None, clusters: Any = None, times: Any = None, *, offset: Any = None
    ) -> Self:
        """Refine a fitted model by passes over all rows, which begin at its estimate; see `KalproxRegressor.refine`.

        Parameters
        ----------
        X, y, sample_weight, clusters, times, offset
            All rows that the model has learned; see `fit`.

        Returns
        -------
        self : KalproxClassifier

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 2))
        >>> y = X[:, 0] + rng.logistic(size=400) > 0
        >>> model = KalproxClassifier().partial_fit(X, y, classes=[False, True]).refine(X, y)
        >>> bool(np.allclose(model.coef_, KalproxClassifier().fit(X, y).coef_, rtol=1e-9))
        True
        """
        with self._lock:
            self._fitted  # noqa: B018  # raises an error if there is nothing to refine
            labels, missing = self._checked_labels(y)
            weights = self._weighted(labels, missing, sample_weight)
            targets = class_targets(labels, missing, self.classes_)
            with self._classes_until_done(self.classes_, self._balance(labels, missing, sample_weight, self.classes_)):
                return super().refine(X, targets, weights, clusters, offset, times=times)

    def partial_fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        sample_weight: Any = None,
        clusters: Any = None,
        times: Any = None,
        keys: Any = None,
        *,
        offset: Any = None,
    ) -> Self:
        """Learn these rows in addition to those learned before.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            A model that was fitted to files also takes a frame of pandas, polars or pyarrow with the columns of those
            files.
        y : array-like of shape (n,)
            The labels of the classes. May be left out if X is such a frame, which has a column of them.
        classes : array-like of shape (m,), optional
            The labels of all classes, in the first call; later it may be left out.
        sample_weight : array-like of shape (n,), optional
            The weights of the rows; see `weight_kind`. If every weight is 0, nothing is learned.
        clusters : array-like of shape (n,), optional
            The cluster of each row; see `KalproxRegressor.partial_fit`.
        times : array-like of shape (n,), or one time for the batch, optional
            See `fit`. None may be before that of the last row learned.
        keys : array-like of shape (n,), optional
            The keys by which rows without a label, None or NaN, are held until `learn_late` has it.
        offset : array-like of shape (n,), optional
            See `fit`.

        Returns
        -------
        self : KalproxClassifier

        Examples
        --------
        >>> model = KalproxClassifier()
        >>> for x, label in [(0.0, "a"), (1.0, "b"), (2.0, "a"), (3.0, "b")]:
        ...     model = model.partial_fit([[x]], [label], classes=["a", "b"])
        >>> model.n_rows_seen_, model.coef_.round(3)
        (4, array([[0.45]]))
        """
        with self._lock:
            if y is None and classes is None and self._table is not None and is_raw(self._table.columns, X):
                return super().partial_fit(X, None, sample_weight, clusters, offset, times=times, keys=keys)
            mine = vars(self)
            if "_learner" in mine and sample_weight is None and self.class_weight is None:
                target = plain_target(y, classes, mine["classes_"])
                if target is not None:
                    return super().partial_fit(X, target, None, clusters, offset, times=times, keys=keys)
            labels, missing, weights, known = self._labelled(y, classes, sample_weight, keys)
            with self._classes_until_done(known):
                targets = class_targets(labels, missing, known)
                return super().partial_fit(X, targets, weights, clusters, offset, times=times, keys=keys)

    def path(  # type: ignore[override]
        self,
        alphas: Any = None,
        *,
        X: Any = None,
        y: Any = None,
        sample_weight: Any = None,
        times: Any = None,
        offset: Any = None,
    ) -> Path:
        """Return the solutions for a grid of alphas, by passes over the rows for each; see `KalproxRegressor.path`.

        Parameters
        ----------
        alphas : array-like, optional
            The default is a grid in the scale of the data.
        X, y, sample_weight, times, offset
            All rows that the model has learned; see `fit`.

        Returns
        -------
        Path
            Its `coef` has the shape (number of alphas, 1, d) for two classes, otherwise (number of alphas, m, d).

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 3))
        >>> y = X[:, 0] + rng.logistic(size=300) > 0
        >>> path = KalproxClassifier(penalty="l1").fit(X, y).path([100.0, 10.0, 1.0], X=X, y=y)
        >>> path.coef[:, 0].round(2), float(path.alphas[path.score.argmax()])
        (array([[0.  , 0.  , 0.  ],
               [0.67, 0.  , 0.  ],
               [0.85, 0.12, 0.11]]), 10.0)
        """
        if X is not None and y is not None:
            self._fitted  # noqa: B018  # raises an error if there is no model
            labels, missing = self._checked_labels(y)
            sample_weight = self._weighted(labels, missing, sample_weight)
            y = class_targets(labels, missing, self.classes_)
        return super().path(alphas, X=X, y=y, sample_weight=sample_weight, offset=offset, times=times)

    def fit_source(self, source: Source, d: int, classes: Any = (0, 1)) -> Self:
        """Fit the model to the rows of a source, which need not be in memory.

        Parameters
        ----------
        source : kalprox.sources.Source
            Its targets are 0 and 1 for two classes; for m classes they have m columns, with a 1 for the class of a row.
        d : int
            The number of columns of X.
        classes : array-like of shape (m,)
            The labels of the classes, in the order of the targets; they must be sorted.

        Returns
        -------
        self : KalproxClassifier

        Examples
        --------
        >>> from kalprox.sources import ArraySource
        >>> source = ArraySource(np.arange(4.0)[:, None], np.array([0.0, 1.0, 0.0, 1.0]), None, block_rows=2)
        >>> KalproxClassifier().fit_source(source, 1, ["no", "yes"]).coef_.round(3)
        array([[0.453]])
        """
        if self.class_weight is not None:
            raise ValueError("class_weight needs fit or partial_fit: a source has the weights of its rows.")
        found = checked_classes(classes)
        if np.asarray(classes).tolist() != found.tolist():
            raise ValueError(f"classes must be sorted and different; got {np.asarray(classes).tolist()}.")
        with self._lock, self._classes_until_done(found):
            return super().fit_source(source, d)

    _has_labels = True

    def _fit_partitions(self, source: Source, d: int) -> None:
        """Fit to partitions whose targets are labels: find the classes in one pass, then make those of a fit."""
        found = source.fold(LabelCounts.of)
        check_any_row(found.counts)
        assert found.total is not None
        labels = np.array(list(found.total.weights))
        check_classification_targets(labels)
        order, totals = np.argsort(labels), np.array(list(found.total.weights.values()))
        classes, totals = checked_classes(labels, totals), totals[order]
        weights = None if self.class_weight is None else class_weights(self.class_weight, classes, totals)
        with self._classes_until_done(classes, () if weights is None else tuple(weights.tolist())):
            super().fit_source(ClassSource(source, classes, weights), d)

    def prequential(  # type: ignore[override]
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
        times: Any = None,
        *,
        offset: Any = None,
    ) -> Array:
        """Learn these rows, and return the probabilities of the classes that each row had before it was learned.

        Each row is predicted from all rows before it, as if the rows came one by one.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        classes : array-like of shape (m,), optional
            The labels of all classes, in the first call; see `partial_fit`.
        sample_weight : array-like of shape (n,), optional
        times : array-like of shape (n,), or one time, optional
            See `fit`. Each row is predicted at its own time.
        offset : array-like of shape (n,), optional
            See `fit`.

        Returns
        -------
        array of shape (n, m)
            NaN before the first row; and during the warm-up, with forgetting, a penalty with kinks or another
            `coef_cov`.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(100, 1))
        >>> proba = KalproxClassifier().prequential(X, X[:, 0] + rng.logistic(size=100) > 0, classes=[False, True])
        >>> proba.shape, bool(np.isfinite(proba[-1]).all())
        ((100, 2), True)
        """
        with self._lock:
            labels, missing, weights, known = self._labelled(y, classes, sample_weight)
            with self._classes_until_done(known):
                targets = class_targets(labels, missing, known)
                mean, _ = super().prequential(X, targets, weights, times, offset=offset)
        return mean if mean.ndim == 2 else of_both(mean)

    def _target_classes(self) -> Any:
        from kalprox.sources.classes import TargetClasses

        return TargetClasses()

    def _fit_encoded(self, rows: Any, classes: tuple[str, ...], weights: Any, *others: Any) -> None:
        labels = np.array(classes)
        codes = rows.y.astype(int) if rows.y.ndim == 1 else rows.y.argmax(axis=1)
        known, given = np.zeros(len(codes), bool), rows.weights if weights is None else weights
        weights = self._weighted(labels[codes], known, given)
        with self._classes_until_done(labels, self._balance(labels[codes], known, given, labels)):
            super()._fit_encoded(rows, classes, weights, *others)

    def _labelled(
        self, y: Any, classes: Any, sample_weight: Any, keys: Any = None
    ) -> tuple[Array, Array, Array | None, Array]:
        """Return the labels of a batch, which of them are missing, the weights, and the classes."""
        labels, missing = self._checked_labels(y, keys)
        begun = "_learner" in vars(self) or self._unfitted is not None
        known = vars(self).get("classes_") if begun else None
        if known is None and classes is None:
            raise ValueError("classes must be given in the first call of partial_fit: the labels of all classes.")
        given: Array = known if classes is None else checked_classes(classes)
        if known is not None and given.tolist() != known.tolist():
            if given.tolist() != np.sort(known).tolist():
                raise ValueError(f"classes must be those of the first call, {known.tolist()}; got {given.tolist()}.")
            given = known
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs fit, which has all rows; for a stream, give a dict with the "
                "weight of each class."
            )
        return labels, missing, self._weighted(labels, missing, sample_weight), given

    def _checked_labels(self, y: Any, keys: Any = None) -> tuple[Array, Array]:
        """Return the labels of rows, and which of them are missing."""
        may_be_missing = self.missing != "raise" or keys is not None
        return checked_labels(with_nan(y) if may_be_missing else y, may_be_missing=may_be_missing)

    def _late_targets(self, y: Any, settings: Any) -> tuple[Array, Array | float]:
        labels, missing = checked_labels(y)
        weights = 1.0 if self.class_weight is None else class_weights(self.class_weight, labels, np.ones(len(labels)))
        return class_targets(labels, missing, self.classes_), weights

    def _weighted(self, labels: Array, missing: Array, sample_weight: Any) -> Array | None:
        """Return the weights of rows times those of their classes; None if all are 1."""
        if self.class_weight is None:
            return sample_weight
        rows = _check_sample_weight(sample_weight, labels, dtype=np.float64, ensure_non_negative=True)
        weights = np.ones(len(labels))
        weights[~missing] = class_weights(self.class_weight, labels[~missing], rows[~missing])
        return rows * weights

    def _balance(self, labels: Array, missing: Array, sample_weight: Any, classes: Array) -> tuple[float, ...]:
        """Return the weight of each class for class_weight="balanced"; nothing otherwise."""
        if not isinstance(self.class_weight, str):
            return ()
        rows = _check_sample_weight(sample_weight, labels, dtype=np.float64, ensure_non_negative=True)[~missing]
        totals = np.array([rows[labels[~missing] == label].sum() for label in classes])
        return tuple(class_weights(self.class_weight, classes, totals).tolist())

    @contextmanager
    def _classes_until_done(self, classes: Array, balance: tuple[float, ...] = ()) -> Iterator[None]:
        """Set the classes, and the weights that balance them; an exception leaves the model as it was."""
        check_class_weight(self.class_weight, classes)
        before = {name: vars(self)[name] for name in ("classes_", "_balanced") if name in vars(self)}
        self.classes_, self._balanced = classes, balance
        try:
            yield
        except BaseException:
            del self.classes_, self._balanced
            self.__dict__.update(before)
            raise

    def _learner_parameters(self) -> dict[str, Any]:
        classes, weights = vars(self).get("classes_"), None
        if isinstance(self.class_weight, Mapping) and classes is not None:
            weights = tuple(float(self.class_weight.get(label, 1.0)) for label in classes.tolist())
        elif self.class_weight is not None:
            weights = self._balanced
        likelihood = "bernoulli" if classes is None or len(classes) == 2 else "categorical"
        return super()._learner_parameters() | {"likelihood": likelihood, "class_weights": weights}

    # ---- reading, saving -------------------------------------------------------------------------------

    def _shown(self, values: Any, axis: int = 0) -> Any:
        """Return what belongs to one output with an axis for the classes, as scikit-learn's classifiers have it."""
        return np.expand_dims(values, axis) if len(self.classes_) == 2 else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        known = self.missing not in FILLED  # features may be missing in dense rows only
        tags.input_tags.sparse, tags.input_tags.allow_nan = known, not known
        return tags

    def _class_names(self) -> list[str]:
        return list(map(str, self.classes_.tolist()))

    def _about(self) -> dict[str, Any]:
        about, labels = super()._about(), self.classes_.tolist()
        about["estimator_settings"] |= {"class_weight": self.class_weight, "classes": labels}
        return about

    @classmethod
    def _of(cls, learner: Learner, about: dict[str, Any]) -> Self:
        own = dict(about["estimator_settings"])
        classes = own.pop("classes")
        names = cls._get_param_names()
        model = cls(
            **{
                name: value
                for name, value in {**learner.settings.parameters, **own, "formula": about.get("formula")}.items()
                if name in names
            }
        )
        model.classes_, model._balanced = np.array(classes), learner.settings.class_weights or ()
        return model._fitted_to(learner, about)
