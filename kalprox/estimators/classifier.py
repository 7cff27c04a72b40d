"""KalproxClassifier: batch and streaming classification with uncertainty, as a scikit-learn estimator."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from kalprox.base.arrays import Array
from kalprox.engines.partitions import is_collection
from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.classes import (
    ClassSource,
    LabelCounts,
    block_rows,
    check_class_weight,
    checked_classes,
    checked_labels,
    class_targets,
    class_weights,
    labels_of_targets,
    plain_target,
)
from kalprox.estimators.files import Files
from kalprox.estimators.fitting import Fitting
from kalprox.estimators.frames import as_frame
from kalprox.estimators.readings import Readings
from kalprox.estimators.rows import Given, Rows, with_nan
from kalprox.forgetting import Forgetting
from kalprox.learning.path import Path
from kalprox.learning.state import check_any_row
from kalprox.sources import Source
from kalprox.sources.weighting import time_numbers
from kalprox.structures import UnderstatedWarning


@dataclass(eq=False, repr=False)
class KalproxClassifier(Fitting, Readings, Files, ClassifierMixin, LearnerEstimator):
    """Regularised logistic regression, in batch or streaming, with standard errors and honest probabilities.

    For two classes the estimator minimises

        sum_k w_k (log(1 + exp(f_k)) - y_k f_k) + alpha * penalty(coef),    f_k = x_k' coef + intercept,

    with y_k = 1 for the second class. For m classes it is multinomial: every class has coefficients, the probabilities
    are the softmax of the m outputs, and one fold learns all of them together, not one class against the others. The
    intercepts are not penalised; with a ridge penalty they add up to zero.

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

    formula: str | None = None
    _: KW_ONLY
    function: Callable[..., Any] | None = None
    start: Any = None
    penalty: Any = "default"
    alpha: float | str = 1.0
    fit_intercept: bool = True
    standardize: bool = False
    forget: float | str | Forgetting = 1.0
    class_weight: Any = None
    coef_cov: str = "auto"
    weight_kind: str = "frequency"
    missing: str = "raise"
    change_points: bool | float = False
    diagnose: bool = True
    structure: Any = None
    engine: Any = None
    max_passes: int = 200
    tol: float = 1e-10

    # ---- learning --------------------------------------------------------------------------------------

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
        return self._fit(X, y, Given(sample_weight, clusters, offset, None, times))

    def refine(  # type: ignore[override]
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        clusters: Any = None,
        times: Any = None,
        *,
        offset: Any = None,
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
        return super().refine(X, y, sample_weight, clusters, offset, times=times)

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
        X = as_frame(X)
        with self._lock:
            of_table, plain = self._is_raw(X), None
            if "_learner" in vars(self) and sample_weight is None and self.class_weight is None:
                plain = plain_target(y, classes, self.classes_)
            if plain is not None:
                return super().partial_fit(X, plain, None, clusters, offset, times=times, keys=keys)
            labels, given = self._classes_of_stream(classes), Given(sample_weight, keys=keys)
            with self._targets(y, given, labels, of_table=of_table) as (target, given):
                return super().partial_fit(X, target, given.weights, clusters, offset, times=times, keys=keys)

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
        y: Any = None,
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
        X = as_frame(X)
        with self._lock:
            labels, of_table = self._classes_of_stream(classes), self._is_raw(X)
            with self._targets(y, Given(sample_weight), labels, of_table=of_table) as (targets, given):
                mean, _ = super().prequential(X, targets, given.weights, times, offset=offset)
        return mean if mean.ndim == 2 else _of_both(mean)

    def _target_classes(self) -> Any:
        from kalprox.sources.inference import TargetClasses

        return TargetClasses()

    def _classes_of_stream(self, classes: Any) -> Array:
        """Return the classes of the rows of a stream: those that are given, or of the first call."""
        begun = "_learner" in vars(self) or self._unfitted is not None
        known = vars(self).get("classes_") if begun else None
        if known is None and classes is None:
            raise ValueError("classes must be given in the first call of partial_fit: the labels of all classes.")
        found: Array = known if classes is None else checked_classes(classes)
        if known is not None and found.tolist() != known.tolist():
            if found.tolist() != np.sort(known).tolist():
                raise ValueError(f"classes must be those of the first call, {known.tolist()}; got {found.tolist()}.")
            found = known
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs fit, which has all rows; for a stream, give a dict with the "
                "weight of each class."
            )
        return found

    @contextmanager
    def _targets(
        self, y: Any, given: Given, classes: Any = None, *, of_table: bool = False
    ) -> Iterator[tuple[Any, Given]]:
        if y is None and of_table:
            yield None, given
            return
        may_be_missing = self.missing != "raise" or given.keys is not None
        labels, missing = checked_labels(with_nan(y) if may_be_missing else y, may_be_missing=may_be_missing)
        weights = given.weights
        balance: tuple[float, ...] = ()
        if self.class_weight is not None:
            rows = _check_sample_weight(weights, labels, dtype=np.float64, ensure_non_negative=True)
            factors = np.ones(len(labels))
            factors[~missing] = class_weights(self.class_weight, labels[~missing], rows[~missing])
            weights = rows * factors
        if classes is None:
            numbers = None if weights is None else np.asarray(weights)
            usable = numbers is not None and numbers.shape == labels.shape and numbers.any() and (numbers >= 0).all()
            classes = checked_classes(labels[~missing], numbers[~missing] if usable else None)  # type: ignore[index]
        if isinstance(self.class_weight, str):
            totals = np.array([rows[labels == label].sum() for label in classes])
            balance = tuple(class_weights(self.class_weight, classes, totals).tolist())
        with self._classes_until_done(classes, balance):
            yield class_targets(labels, missing, classes), given if of_table else given._replace(weights=weights)

    def _weighted_by_class(self, rows: Rows) -> Rows:
        if self.class_weight is None:
            return rows
        known = np.isfinite(rows.y if rows.y.ndim == 1 else rows.y.sum(axis=1))  # other labels come late
        labels, weights = labels_of_targets(rows.y[known], self.classes_), np.ones(len(known))
        weights[known] = class_weights(self.class_weight, labels, weights[known])
        return rows._replace(weights=weights if rows.weights is None else rows.weights * weights)

    def _late_targets(self, y: Any, settings: Any) -> tuple[Array, Array | float]:
        labels, missing = checked_labels(y)
        weights = 1.0 if self.class_weight is None else class_weights(self.class_weight, labels, np.ones(len(labels)))
        return class_targets(labels, missing, self.classes_), weights

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

    # ---- predicting ----------------------------------------------------------------------------------------

    def predict(self, X: Any, *, time: Any = None, offset: Any = None) -> Any:
        """Return the most probable class of each row.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        time : float or date, optional
            See `predict_proba`.
        offset : array-like of shape (n,), optional
            See `predict_proba`.

        Returns
        -------
        array of shape (n,)
            For a Dask collection a lazy array or series; for a Spark frame that frame with a column "class".

        Examples
        --------
        >>> from kalprox import KalproxClassifier
        >>> KalproxClassifier().fit([[0.0], [1.0], [2.0]], [0, 0, 1]).predict([[-1.0], [5.0]])
        array([0, 1])
        """
        if _is_lazy(X):
            return self._lazily("predict", X, {"class": self.classes_.dtype}, {"offset": offset}, time=time)
        found = self.predict_proba(X, time=time, offset=offset)
        if np.isnan(found).any():
            bad = np.flatnonzero(np.isnan(found).any(axis=1))
            raise ValueError(
                f"{len(bad)} row(s) of X are bad and have no class, the first is row {bad[0]}. Leave them out, or use "
                "predict_proba, which returns NaN for them."
            )
        labels: Array = self.classes_[found.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any, return_std: bool = False, *, time: Any = None, offset: Any = None) -> Any:
        """Return the probabilities of the classes, averaged over the posterior.

        The posterior is taken as normal, which makes the probabilities of a class with fewer than ten rows or so too
        large on average: twice as large with a single row.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        return_std : bool
            Whether to return the standard deviations of the probabilities too: how far the rows seen leave them open.
        time : float or date, optional
            With forget=ByTime(half_life), the time at which the rows are predicted, not before that of the last row
            learned, which is the default: what is known has faded until then.
        offset : array-like of shape (n,), optional
            Those of the rows to predict, if the model was fitted to rows that have them. For a collection of Dask it is
            such a collection, and for a Spark frame the name of a column.

        Returns
        -------
        proba : array of shape (n, m)
            NaN for bad rows with missing="drop".
        std : array of shape (n, m), only with return_std

        For a Dask array these are lazy arrays. For a Dask frame, and for a Spark frame, they are columns p_NAME, and
        std_NAME, of one frame.

        Examples
        --------
        >>> from kalprox import KalproxClassifier
        >>> model = KalproxClassifier().fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])
        >>> proba, std = model.predict_proba([[1.5], [100.0]], return_std=True)
        >>> proba.round(2), std.round(2)
        (array([[0.5, 0.5],
               [0.2, 0.8]]), array([[0.21, 0.21],
               [0.4 , 0.4 ]]))
        """
        if _is_lazy(X):
            names = [f"{what}_{label}" for what in ("p", "std")[: 1 + return_std] for label in self.classes_]
            by_row, given = {"offset": offset}, {"return_std": return_std, "time": time}
            return self._lazily("predict_proba", X, dict.fromkeys(names, float), by_row, **given)
        at = None if time is None else float(time_numbers(time, 1)[0])
        proba = self._read(
            X, lambda reader, rows, **more: reader.predict(rows, **more).mean, live=at is None, time=at, offset=offset
        )
        if proba.ndim == 1:
            proba = _of_both(proba)
        if not return_std:
            return proba
        if doubt := self._fitted.stream.structure_doubt:
            warnings.warn(doubt, UnderstatedWarning, stacklevel=2)
        std = self._read(
            X, lambda reader, rows, **more: reader.probability_std(rows, **more), live=False, time=at, offset=offset
        )
        return proba, std if std.ndim == 2 else np.column_stack([std, std])

    def predict_log_proba(self, X: Any, *, offset: Any = None) -> Array:
        """Return the logarithms of `predict_proba`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
        offset : array-like of shape (n,), optional
            See `predict_proba`.

        Returns
        -------
        array of shape (n, m)

        Examples
        --------
        >>> from kalprox import KalproxClassifier
        >>> KalproxClassifier().fit([[0.0], [1.0], [2.0]], [0, 0, 1]).predict_log_proba([[0.5]]).shape
        (1, 2)
        """
        with np.errstate(divide="ignore"):
            found: Array = np.log(self.predict_proba(X, offset=offset))
        return found

    def decision_function(self, X: Any, *, offset: Any = None) -> Array:
        """Return the log odds of the second class, or for several classes their log probabilities less the mean.

        They are those of `predict_proba`, averaged over the posterior, and order rows and classes in the same way.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
        offset : array-like of shape (n,), optional
            See `predict_proba`.

        Returns
        -------
        array of shape (n,) for two classes, or (n, m)

        Examples
        --------
        >>> from kalprox import KalproxClassifier
        >>> KalproxClassifier().fit([[0.0], [1.0], [2.0]], [0, 0, 1]).decision_function([[0.0], [9.0]]).shape
        (2,)
        """
        if _is_lazy(X):
            raise TypeError(
                f"X must be an array, a sparse matrix or a frame in memory; got {type(X).__name__}. Use predict_proba, "
                "or compute it first."
            )
        found: Array = self._read(
            X, lambda reader, rows, **more: reader.log_odds(rows, **more), live=False, offset=offset
        )
        return found

    def _block_rows(self, d: int) -> int | None:
        """Return the number of rows of a block: the Jacobian of m classes has m^2 d numbers for each row."""
        return None if len(self.classes_) == 2 else block_rows(d, len(self.classes_))

    # ---- reading, saving -------------------------------------------------------------------------------

    def _shown(self, values: Any, axis: int = 0) -> Any:
        """Return what belongs to one output with an axis for the classes, as scikit-learn's classifiers have it."""
        return np.expand_dims(values, axis) if len(self.classes_) == 2 else values

    def _class_names(self) -> list[str]:
        return list(map(str, self.classes_.tolist()))

    def _about(self) -> dict[str, Any]:
        about, labels = super()._about(), self.classes_.tolist()
        about["estimator_settings"] |= {"class_weight": self.class_weight, "classes": labels}
        return about


def _is_lazy(X: Any) -> bool:
    return type(X) is not np.ndarray and is_collection(X)


def _of_both(p: Array) -> Array:
    """Return the probabilities of both classes, shape (n, 2), for those of the second one."""
    both = np.empty((len(p), 2))
    both[:, 0], both[:, 1] = 1 - p, p
    return both
