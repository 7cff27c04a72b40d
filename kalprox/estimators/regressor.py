"""KalproxRegressor: batch and streaming regression with uncertainty, as a scikit-learn estimator."""

import numbers
import warnings
from collections.abc import Callable
from operator import is_, itemgetter
from os import PathLike
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from kalprox._arrays import Array
from kalprox._checks import LARGEST, check_positive
from kalprox.calibration import Calibration
from kalprox.engines.collections import is_collection, partition_collection, predict_collection
from kalprox.estimators.checks import Rows, batch_of, check_size, checked_rows
from kalprox.learning.belief import Belief, Path
from kalprox.learning.learner import Learner
from kalprox.learning.sandwich import NEEDS_GROUPS
from kalprox.learning.saving import load_learner, save_learner
from kalprox.learning.settings import Settings, same
from kalprox.predictive import Student
from kalprox.sources import ArraySource, Block, Source
from kalprox.sources.quarantine import Quarantine

_FLOAT64 = np.dtype(np.float64)  # comparing two dtypes is twice as fast as comparing a dtype with a type
_NOT_SETTINGS = ("block_size", "on_bad_rows", "engine")  # parameters of the input, not of the learner


class KalproxRegressor(RegressorMixin, BaseEstimator):
    """Regularised regression, in batch or streaming, with standard errors and predictive intervals.

    The estimator minimises

        sum_k 1/2 w_k (y_k - link(x_k' coef + intercept))^2 + alpha * penalty(coef).

    The intercept is not penalised. With the identity link the result is exact for the rows seen so far, for any batches
    in any order. `partial_fit` costs O(d^2) per row; the first access to `coef_` or the first prediction after it costs
    O(d^3). All computations are in float64.

    Parameters
    ----------
    link : {"identity", "sigmoid", "tanh", "softplus", "exp", "arctan"} or callable
        The link, by its name in `kalprox.models.LINKS`, or a JAX function fn(theta, x) of one row, which is then the
        whole model: it has no intercept, `coef_` is theta, and `start` must be given. For every link but the identity,
        `fit` makes passes over the rows until it reaches a stationary point, and `partial_fit` learns in one pass, with
        a weak prior on the scale of the linear predictor.
    penalty : {"ridge", "l1", "elasticnet", "smooth_l1", "group", "box"}, Regularizer or None
        The penalty that alpha multiplies: "ridge" is 1/2 ||coef||^2; "l1" is ||coef||_1; "elasticnet" is
        l1_ratio ||coef||_1 + (1 - l1_ratio)/2 ||coef||^2; "smooth_l1" is sum(sqrt(1 + coef^2/delta^2) - 1); "group" is
        the sum over groups of sqrt(size) ||coef_g||. "box" keeps the coefficients between `bounds`, and alpha has no
        effect on it. A regulariser of `kalprox.regularizers` has its own weights, and alpha must then be 1.
    alpha : float or "auto"
        The weight of the penalty. It is the alpha of scikit-learn's Ridge, and n times the alpha of its Lasso and
        ElasticNet, which divide the sum of squares by n. "auto" chooses alpha, for linear models only. For ridge it
        maximises the evidence, times a weak prior (the share of the variance of y that X explains is uniform) if there
        are no more rows than coefficients, or if otherwise all or nothing would be taken for noise. For other penalties
        it minimises the errors of predictions: alpha is c sqrt(n), each row is predicted with every c of a grid
        before it is learned, and `fit` then uses the rows in their order. Below 40 rows, alpha is instead the smallest
        that sets to zero what noise could explain as well.
    l1_ratio : float
        The share of the L1 norm in "elasticnet", between 0 and 1.
    delta : float
        The width over which "smooth_l1" is rounded.
    groups : sequence of int
        For "group": one integer label per feature, -1 for a feature that is not penalised.
    bounds : pair
        For "box": the lower and the upper bound of `coef_`, each a number or an array with one number per feature.
        They are in the units of X, whatever `standardize` is.
    method : {"exact", "paper"}
        "exact" is the proximal filter and, in `fit` of a nonlinear model, refinement. "paper" runs the recursion of the
        paper (`kalprox.pipg`) row by row, from N(start, v0) with process noise q. It needs the noise variance, and its
        estimate converges to the minimiser with n times the penalty.
    noise : "learn", "inputs" or float
        The noise variance. With "learn" it is estimated as the residual sum of squares divided by the residual degrees
        of freedom, and intervals are those of Student's t distribution. If there are no more rows than coefficients,
        that needs penalty="ridge" and alpha="auto", whose evidence determines the noise too (intervals of coefficients
        then cover on average over the coefficients); other intervals are NaN or in doubt there, and `predict_interval`
        warns. With "inputs" the variance differs from row to row: its logarithm is a linear function of the inputs and
        of the predicted mean, which is learned too, and the rows are weighted accordingly; `noise_var_` is then the
        variance at the mean of the inputs. Linear models only.
    fit_intercept : bool
        Whether to fit an intercept. It is never penalised.
    standardize : bool
        Whether to penalise the coefficients as if the columns of X had been standardised; `coef_` stays in the units of
        X. With a nonlinear link only `fit` supports it.
    forget : float
        The forgetting factor, in (0, 1]: every new row multiplies the weights of all earlier rows by it. 1 means no
        forgetting.
    block_size : int or "auto"
        The number of rows processed at a time where X is sparse or the link nonlinear; "auto" takes 32 MiB.
    weights : {"frequency", "precision"}
        What `sample_weight` means. "frequency": how often each row counts, so that a row of weight 2 equals two equal
        rows, also in the degrees of freedom. "precision": 1 / sigma^2 of the noise of each row, up to a common factor;
        the degrees of freedom are counted from the number of rows (of positive weight), and `noise_var_` is the noise
        variance of a row of weight 1. The results are those of weighted least squares; alpha is relative to the
        weights, as the objective says.
    max_passes : int
        The maximum number of passes of `fit` over the rows, with a nonlinear link.
    tol : float
        With a nonlinear link, `fit` stops when a step changes theta by less than this, relative to its size.
    on_bad_rows : {"raise", "skip"}
        What to do with rows that have NaN, infinity or a value above 1e70 in size, whose powers would overflow, in X or
        y, or such a value times the square root of the row's weight: raise an error, or skip them and count them in
        `n_rows_rejected_`.
    start : array of shape (d,) or (1 + d,), optional
        Where the search starts: theta for a function, (intercept, coef) for a nonlinear link.
    v0, q : float
        For method="paper": the prior variance of theta, and the process noise.
    diagnose : bool
        Whether every row is predicted before it is learned, to keep the prequential score in `diagnostics_` and the
        quantiles of conformal intervals. `fit` predicts rows in their order; with a nonlinear link, or on an engine,
        `fit` does not judge its rows. While leverage matters, each row is predicted from all rows before it. Later, a
        piece of a batch is predicted by the belief before it, and a row never by a belief that lacks more than half of
        the rows before it. The score does not depend on how the rows are cut into batches, up to 1e-3.
    coef_cov : {"model", "robust", "clustered"}
        What the standard errors of the coefficients assume. "model": independent rows with equal noise. "robust": the
        variance of the noise may differ from row to row (a sandwich covariance, which statsmodels calls HC1).
        "clustered": rows may depend on each other within clusters, which are the batches given to `partial_fit`, or
        the `groups` given to `fit` and `partial_fit`; intervals use Student's t with clusters - 1 degrees of freedom.
        Predictions are not affected.
    targets : {"range", "any"}
        Whether y must lie in the range of the link, up to noise. With "range" an error names the targets that do not: a
        target that lies outside by more than the largest of as many normal errors as there are rows, or all targets if
        their mean lies outside by more than the error of a mean. The standard deviation of the noise is the one given,
        or that of y, which is at least as large; targets with noise about the link are refused with a probability of
        0.001 at most. With "any" every target is learned.
    engine : optional
        Where `fit` folds the rows. None is this process. Otherwise give "local" (threads), "processes", "dask",
        "spark", the address of a Dask scheduler, a `distributed.Client` or a `SparkSession`. X and y may be Dask
        arrays, a Dask dataframe and series, or a Spark frame and the name of its target column. With engine None their
        own client or session folds such collections, and `predict` of them is lazy. The engine is not saved with the
        model.

    Notes
    -----
    The fitted attributes (`coef_`, `coef_std_`, `noise_var_`, `diagnostics_` and others) are properties, documented
    below. `diagnostics_.verdict()` states in words whether the predictive intervals can be trusted.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = 1 + X @ [2.0, 0.0, -1.0] + 0.5 * rng.normal(size=200)
    >>> model = KalproxRegressor(penalty="l1", alpha=20.0).partial_fit(X[:100], y[:100]).partial_fit(X[100:], y[100:])
    >>> model.coef_.round(2), model.coef_std_.round(2)
    (array([ 1.87,  0.  , -0.88]), array([0.04, 0.  , 0.04]))
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.round(2), std.round(2)
    (array([0.65, 0.86]), array([0.53, 0.53]))
    """

    _learner: Learner
    _given: tuple[Any, ...]  # the parameters at the last fit
    _current: Callable[[dict[str, Any]], tuple[Any, ...]]  # reads the current parameters from vars(self)

    def __init__(
        self,
        link: str | Callable = "identity",
        penalty: Any = "ridge",
        alpha: float | str = 1.0,
        *,
        l1_ratio: float = 0.5,
        delta: float = 1.0,
        groups: Any = None,
        bounds: Any = (0.0, np.inf),
        method: str = "exact",
        noise: float | str = "learn",
        fit_intercept: bool = True,
        standardize: bool = False,
        forget: float = 1.0,
        block_size: int | str = "auto",
        max_passes: int = 200,
        tol: float = 1e-10,
        on_bad_rows: str = "raise",
        start: Any = None,
        v0: Any = 1.0,
        q: Any = 0.0,
        diagnose: bool = True,
        coef_cov: str = "model",
        targets: str = "range",
        engine: Any = None,
        weights: str = "frequency",
    ) -> None:
        self.link = link
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.delta = delta
        self.groups = groups
        self.bounds = bounds
        self.method = method
        self.noise = noise
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.forget = forget
        self.block_size = block_size
        self.max_passes = max_passes
        self.tol = tol
        self.on_bad_rows = on_bad_rows
        self.start = start
        self.v0 = v0
        self.q = q
        self.diagnose = diagnose
        self.coef_cov = coef_cov
        self.targets = targets
        self.engine = engine
        self.weights = weights

    # ---- learning --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit the model to these rows, discarding everything learned before.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        y : array-like of shape (n,), or (n, k) for a linear model; the name of the target column for a Spark frame
        sample_weight : array-like of shape (n,), optional
            The weights of the rows; see `weights`. A row of weight 0 is ignored.
        groups : array-like of shape (n,), optional
            The cluster of each row, a number or a text, for coef_cov="clustered", which `fit` needs; the name of a
            column for a Spark frame.

        Returns
        -------
        self : KalproxRegressor
        """
        settings = self._checked_settings()
        if self.engine is not None or is_collection(X):
            return self._fit_on_engine(X, y, sample_weight, groups, settings)
        rows, rejected = checked_rows(self, X, y, sample_weight, groups, reset=True, linear=settings.is_exact)
        batch = batch_of(rows, self.block_size, whole=False)
        assert isinstance(batch, ArraySource)
        learner = Learner(settings)
        learner.fit(batch)
        learner.n_rejected = rejected
        return self._keep(learner)

    def fit_source(self, source: Source, d: int) -> Self:
        """Fit the model to the rows of a source, which need not be in memory.

        A linear model takes one pass, a nonlinear one makes passes until it converges.

        Parameters
        ----------
        source : kalprox.sources.Source
        d : int
            The number of columns of X.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> X = np.arange(12.0).reshape(6, 2) ** 2
        >>> source = ArraySource(X, X @ [1.0, 2.0], None, block_rows=2)
        >>> KalproxRegressor(penalty=None).fit_source(source, 2).coef_.round(8)
        array([1., 2.])
        """
        learner = Learner(self._checked_settings())
        learner.fit(source)
        self.n_features_in_ = d
        return self._keep(learner)

    def _fit_on_engine(self, X: Any, y: Any, sample_weight: Any, groups: Any, settings: Settings) -> Self:
        """Fit on an engine; the sums are those of one machine, up to rounding."""
        from kalprox import engines

        if groups is None and settings.coef_cov == "clustered":
            raise ValueError(NEEDS_GROUPS)
        partitions, names, d = partition_collection(X, y, sample_weight, groups=groups)
        quarantine = Quarantine(max_bad=None if self.on_bad_rows == "raise" else "100%")
        with engines.open(self.engine or engines.engine_of(X)) as engine:
            self.fit_source(engines.EngineSource(engine, partitions, quarantine=quarantine), d)
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Learn these rows in addition to those learned before.

        With on_bad_rows="raise" a bad row raises an error, none of the rows is learned, and the model stays unchanged.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
        y : array-like of shape (n,), or (n, k) for a linear model
        sample_weight : array-like of shape (n,), optional
            The weights of the rows; see `weights`. If every weight is 0, nothing is learned.
        groups : array-like of shape (n,), optional
            The cluster of each row, a number or a text, for coef_cov="clustered". A cluster may continue in later
            batches. By default each batch is a cluster.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> model = KalproxRegressor(penalty=None)
        >>> for x, y in [(1.0, 3.0), (2.0, 5.0), (3.0, 7.0)]:
        ...     model = model.partial_fit([[x]], [y])
        >>> model.coef_.round(8), model.n_rows_seen_
        (array([2.]), 3)
        """
        if sample_weight is None and groups is None and self._is_one_row(X) and _is_one(y) and abs(y[0]) < LARGEST:
            self._learner.learn_rows(X, y)
            return self
        settings, fitted, unchanged = self._settings_now()
        linear = settings.is_exact
        rows, rejected = checked_rows(
            self, X, y, sample_weight, groups, reset=not fitted, linear=linear, may_be_empty=True
        )
        learner = self._learner if fitted else Learner(settings)
        learner.learn(batch_of(rows, self.block_size, whole=linear), settings)
        learner.n_rejected += rejected
        return self if unchanged or not learner.is_fitted else self._keep(learner)

    def prequential(self, X: Any, y: Any, sample_weight: Any = None) -> tuple[Array, Array]:
        """Learn these rows, and return the predictions of each row that were made before it was learned.

        Each row is predicted from all rows before it, exactly as if the rows came one by one. A linear model with
        penalty None or "ridge" takes a few microseconds per row; with other penalties and links each row is learned in
        a step of its own.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,), or (n, k) for a linear model
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        mean : array of shape (n,) or (n, k)
            NaN if nothing was known: before the first row, and during the warm-up of a nonlinear model.
        std : array of the same shape
            The scale of the predictive distribution, as in `predict`; infinite if the row could not be predicted.

        Examples
        --------
        >>> X, y = np.arange(5.0)[:, None], np.array([1.0, 3.1, 4.9, 7.0, 9.1])
        >>> mean, std = KalproxRegressor(penalty=None).prequential(X, y)
        >>> mean.round(2), std.round(2)
        (array([ nan, 1.  , 5.2 , 6.9 , 8.95]), array([ inf,  inf,  nan, 0.22, 0.15]))
        """
        settings, fitted, unchanged = self._settings_now()
        rows, rejected = checked_rows(self, X, y, sample_weight, reset=not fitted, linear=settings.is_exact)
        learner = self._learner if fitted else Learner(settings)
        batch = Block(rows.X.toarray() if hasattr(rows.X, "toarray") else rows.X, rows.y, rows.weights)
        found = learner.prequential(batch, settings)
        learner.n_rejected += rejected
        if not unchanged:
            self._keep(learner)
        return found

    def merge(self, other: Self) -> Self:
        """Add the rows that `other` has learned to this model. Exact; O(d^3). Linear models only.

        Parameters
        ----------
        other : KalproxRegressor
            A model fitted with the same settings to the same features.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> X = np.arange(12.0).reshape(6, 2) ** 2
        >>> y = X @ [1.0, 2.0]
        >>> parts = [KalproxRegressor().fit(X[rows], y[rows]) for rows in (slice(0, 3), slice(3, 6))]
        >>> bool(np.allclose(parts[0].merge(parts[1]).coef_, KalproxRegressor().fit(X, y).coef_))
        True
        """
        learner, theirs = self._fitted, other._fitted
        names = [getattr(model, "feature_names_in_", None) for model in (self, other)]
        if not same(*names):
            raise ValueError(f"merge needs the same features in the same order; got {names[0]} and {names[1]}.")
        learner.merge(theirs)
        return self

    # ---- reading ---------------------------------------------------------------------------------------

    def predict(self, X: Any, return_std: bool = False, sigma: Any = None, *, minimax: bool = False) -> Any:
        """Predict the mean and, with return_std, the scale of a new observation for each row.

        The cost is O(d) per row, or O(d^2) with return_std or minimax.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        return_std : bool
        sigma : float or array-like of shape (n,), optional
            The standard deviation of the noise of the new rows, relative to that of a row of weight 1 (of any row with
            weights="frequency"): 1 / sqrt(weight) in the units of `sample_weight`. The predictive variance is
            noise_var_ * (sigma^2 + leverage). The default is 1; 0 leaves out the noise, so that `std` is that of the
            mean.
        minimax : bool
            Whether to predict by the forecaster of Vovk, Azoury and Warmuth instead of the mean, for targets that may
            be chosen by an adversary. It is the fit as if the row to predict had been learned with the target m, where
            m is the mean of the targets, or 0 without an intercept: m + (mean - m) / (1 + s), s the leverage of the
            row. Predicting each row of a stream before it is learned, its squared loss exceeds that of the best fixed
            coefficients u by at most alpha |u|^2 + d Y^2 log(1 + n B^2 / (alpha d)) without an intercept, for any rows
            with |x| <= B and |y| <= Y. With an intercept, Y is the range of the targets, the first row is not counted,
            and the second term is Y^2 times the log of the ratio of the determinants of the information after the last
            and the first row. Linear models with a quadratic penalty only, and not with return_std.

        Returns
        -------
        mean : array of shape (n,) or (n, k)
        std : array of the same shape, only with return_std
            The scale of the predictive distribution, including the noise: the standard deviation if the noise variance
            is given, and the scale of Student's t distribution with `noise_dof_` degrees of freedom if it is learned.
            NaN if no degrees of freedom remain.

        Examples
        --------
        >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0.1, 0.9, 2.1, 2.9])
        >>> mean, std = KalproxRegressor(penalty=None).fit(X, y).predict([[4.0]], return_std=True)
        >>> mean.round(3), std.round(3)
        (array([3.9]), array([0.2]))
        """
        if minimax:
            return self._predict_minimax(X, return_std or sigma is not None)
        if sigma is None and self._is_one_row(X):
            learner = self._learner
            if not return_std:
                return learner.mean(X)
            predicted = learner.predict(X)
            return predicted.mean, predicted.std
        if is_collection(X):
            if sigma is not None:
                raise ValueError("sigma needs X in memory; got a Dask collection or a Spark frame: predict in parts.")
            return predict_collection(self, X, return_std)
        learner = self._fitted
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        check_size(self, X)
        if learner.settings.is_exact and not return_std:
            return learner.mean(X)
        batch = batch_of(Rows(X, np.zeros(X.shape[0])), self.block_size, whole=False)
        relative = None if sigma is None else _checked_sigma(sigma, X.shape[0])
        found: list[Any] = []
        start = 0
        for block in batch:  # type: ignore[union-attr]
            stop = start + len(block)
            sigmas = None if relative is None else relative[start:stop]
            found.append(learner.predict(block.X, sigmas, alone=X.shape[0] == 1))
            start = stop
        mean = np.concatenate([one.mean for one in found])
        return (mean, np.concatenate([one.std for one in found])) if return_std else mean

    def _predict_minimax(self, X: Any, return_std: bool) -> Array:
        if return_std:
            raise ValueError(
                "minimax=True has no standard deviation: it makes no assumption on how the targets arise. Call predict "
                "twice, with minimax=True and with return_std=True."
            )
        belief = self._belief
        if is_collection(X):
            raise TypeError(f"minimax=True needs an array of rows; got {type(X).__name__}. Compute it first.")
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        check_size(self, X)
        batch = batch_of(Rows(X, np.zeros(X.shape[0])), self.block_size, whole=False)
        return np.concatenate([belief.minimax(block.X) for block in batch])  # type: ignore[union-attr]

    def predict_interval(
        self, X: Any, level: float = 0.95, sigma: Any = None, *, method: str = "gaussian"
    ) -> tuple[Array, Array]:
        """Return predictive intervals, which contain a new observation with probability `level`.

        Parameters
        ----------
        X : array-like of shape (n, d)
        level : float
            Strictly between 0 and 1.
        sigma : float or array-like of shape (n,), optional
            The relative standard deviation of the noise of the new rows; see `predict`. With 0 the interval is that of
            the mean of a new observation.
        method : {"gaussian", "conformal"}
            "gaussian": central intervals of the predictive distribution, right if the noise is normal with equal
            variance. "conformal": the ends are multiples of `std` that were adjusted after every batch, so that each
            side has missed its share of the rows: the intervals that were issued before each batch have covered
            `level` of a long stream, whatever the noise and the model. The levels are 0.5, 0.8, 0.9, 0.95 and 0.99.

        Returns
        -------
        low, high : arrays of shape (n,) or (n, k)

        Examples
        --------
        >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0.1, 0.9, 2.1, 2.9])
        >>> low, high = KalproxRegressor(penalty=None).fit(X, y).predict_interval([[4.0]], level=0.9)
        >>> low.round(2), high.round(2)
        (array([3.32]), array([4.48]))
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1; got {level!r}.")
        if method not in ("gaussian", "conformal"):
            raise ValueError(f"method must be 'gaussian' or 'conformal'; got {method!r}.")
        mean, std = self.predict(X, return_std=True, sigma=sigma)
        noise = self._fitted.noise
        if noise.reason:
            warnings.warn(noise.reason, RuntimeWarning, stacklevel=2)
        if method == "conformal":
            low, high = self._fitted.conformal_ends(level)
            return mean - low * std, mean + high * std
        return Student(mean, std, noise.dof).interval(level)

    def coef_interval(self, level: float = 0.95, anytime: bool = False) -> tuple[Array, Array]:
        """Return an interval for each coefficient, which contains the true one with probability `level`.

        For ridge, no penalty and other smooth penalties the interval is that of the posterior, `coef_` and `coef_std_`
        with quantiles of Student's t distribution. If the penalty has kinks or bounds ("l1", "elasticnet", "group",
        "box"), it is about the debiased estimate coef + (X'X)^-1 X'(y - X coef), which is least squares on all columns,
        with the noise variance and the degrees of freedom of least squares: `coef_` need not lie inside. It covers if
        there are more rows than columns, and is unbounded where the rows alone do not determine a coefficient. With a
        nonlinear link the model is linearised at `coef_`.

        Parameters
        ----------
        level : float
            Strictly between 0 and 1.
        anytime : bool
            Whether the interval may be looked at after every row. If False, the probability is that of one look: who
            looks at the 95% interval 400 times, finds the truth outside at some look in about half of all streams. If
            True, the intervals are a confidence sequence: the probability that any of them, however many, misses the
            coefficient is at most 1 - level. They are always about least squares on all columns, need a linear model
            and forget=1, and assume independent normal noise. They are narrowest, 1.6 times as wide as those for one
            look, at about 1,000 rows, 1.8 times as wide at 100,000, and mostly unbounded below 40.

        Returns
        -------
        low, high : arrays shaped like `coef_`

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 2))
        >>> y = X @ [1.0, 0.0] + rng.normal(size=400)
        >>> model = KalproxRegressor(penalty="l1", alpha=20.0).fit(X, y)
        >>> low, high = model.coef_interval()
        >>> low.round(2), high.round(2)
        (array([0.88, 0.03]), array([1.06, 0.21]))
        >>> low, high = model.coef_interval(anytime=True)
        >>> low.round(2), high.round(2)
        (array([ 0.82, -0.03]), array([1.11, 0.26]))
        """
        return self._with_std.coef_interval(level, anytime)

    def sample(self, n: int = 1, random_state: Any = None) -> tuple[Array, Array]:
        """Draw coefficients and intercepts from the posterior.

        Parameters
        ----------
        n : int
            The number of draws.
        random_state : int, RandomState or None

        Returns
        -------
        coef : array of shape (n, d) or (n, k, d)
        intercept : array of shape (n,) or (n, k)

        Examples
        --------
        >>> X = np.arange(12.0).reshape(6, 2) ** 2
        >>> model = KalproxRegressor().fit(X, [0.0, 1.0, 1.0, 3.0, 4.0, 5.0])
        >>> coef, intercept = model.sample(1000, random_state=0)
        >>> coef.shape, intercept.shape
        ((1000, 2), (1000,))
        """
        return self._belief.sample(n, check_random_state(random_state))

    def path(self, alphas: Any = None) -> Path:
        """Return the solutions for a grid of alphas, without a pass over the data. Linear models only.

        The cost is O(d^3) per alpha.

        Parameters
        ----------
        alphas : array-like, optional
            The default is a grid in the scale of the data.

        Returns
        -------
        Path
            A named tuple of arrays: `alphas`, `coef`, `intercept`, `edf` (effective degrees of freedom without the
            intercept), and `score` (log evidence for ridge, otherwise -BIC/2; higher is better).

        Examples
        --------
        >>> X = np.arange(12.0).reshape(6, 2) ** 2
        >>> path = KalproxRegressor(penalty="l1").fit(X, X @ [1.0, 2.0]).path([1e5, 1e-3])
        >>> path.coef.round(3), path.edf
        (array([[0., 0.],
               [1., 2.]]), array([0., 2.]))
        """
        return self._belief.path(alphas)

    @property
    def coef_(self) -> Array:
        """The coefficients, shape (d,), or (k, d) if y has k columns."""
        return self._belief.coef

    @property
    def intercept_(self) -> Any:
        """The intercept: a number, or an array of shape (k,) if y has k columns."""
        return self._belief.intercept[()]

    @property
    def coef_std_(self) -> Array:
        """The standard errors of the coefficients, shaped like `coef_`.

        A standard error is infinite if neither the data nor the penalty determine the coefficient; `coef_` is then the
        solution of minimum norm. It is zero if the penalty holds the coefficient at a kink or a bound.

        If the penalty has kinks or bounds, the standard errors are conditional on the coefficients that it selected,
        and ignore how far it pulls them: `coef_` plus or minus two of them is no confidence interval (such intervals of
        level 95% covered 22% to 84%). Use `coef_interval`.

        They are NaN, with a warning, if coef_cov="clustered" has seen fewer than two clusters.
        """
        return self._with_std.coef_std

    @property
    def intercept_std_(self) -> Any:
        """The standard error of the intercept: a number, or an array of shape (k,)."""
        return self._with_std.intercept_std[()]

    @property
    def covariance_(self) -> Array:
        """The covariance matrix of the coefficients, shape (d, d), or (k, d, d) if y has k columns."""
        return self._with_std.covariance

    @property
    def noise_var_(self) -> Any:
        """The noise variance, given or learned: a number, or an array of shape (k,)."""
        return np.asarray(self._belief.noise.variance)[()]

    @property
    def noise_dof_(self) -> Any:
        """The residual degrees of freedom of the learned noise variance; infinite if the noise variance is given."""
        return np.asarray(self._belief.noise.dof)[()]

    @property
    def alpha_(self) -> Any:
        """The weight of the penalty: `alpha`, or the value chosen by alpha="auto"."""
        return self._belief.alpha

    @property
    def converged_(self) -> bool:
        """Whether the estimate is the minimiser (with a nonlinear link, a stationary point).

        False if the fit ended on a plateau of the link or the coefficients ran to infinity; and for a stream with a
        nonlinear link as long as the rows it holds do not determine the coefficients well.
        """
        return bool(self._belief.converged)

    @property
    def n_passes_(self) -> int:
        """The number of passes over the rows that the fit made."""
        return self._belief.n_passes

    @property
    def n_rows_seen_(self) -> int:
        """The number of rows learned, not counting rows of weight 0."""
        return self._fitted.n_rows

    @property
    def n_rows_rejected_(self) -> int:
        """The number of rows skipped because of NaN, infinity or values that are too large; see `on_bad_rows`."""
        return self._fitted.n_rejected

    @property
    def diagnostics_(self) -> Calibration:
        """The prequential score: the `Calibration` of predictions made by `partial_fit` before learning the rows."""
        return self._fitted.score

    @property
    def log_evidence_(self) -> Any:
        """The log evidence log p(y) with the penalty as the prior: a number, or an array of shape (k,).

        It exists for linear models with a ridge penalty, or with a `Quadratic` regulariser of full rank.
        """
        try:
            return self._belief.log_evidence[()]
        except ValueError as error:  # so that hasattr returns False
            raise AttributeError(str(error)) from error

    # ---- files -----------------------------------------------------------------------------------------

    def save(self, file: str | PathLike) -> None:
        """Write the fitted model to a file, atomically and without pickle.

        A model whose link is a function or whose penalty is a `Custom` regulariser cannot be saved.

        Parameters
        ----------
        file : str or path-like

        Examples
        --------
        >>> import tempfile, pathlib
        >>> model = KalproxRegressor().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(pathlib.Path(folder) / "model.kalprox")
        ...     same_model = KalproxRegressor.load(pathlib.Path(folder) / "model.kalprox")
        >>> bool((same_model.coef_ == model.coef_).all())
        True
        """
        if changed := self._checked_settings().changed(self._fitted.settings):
            raise ValueError(f"{', '.join(changed)} changed since the last fit: call fit or partial_fit before save.")
        save_learner(file, self._learner, **self._about())

    def _about(self) -> dict[str, Any]:
        """Return what a model file contains in addition to the learner."""
        names = getattr(self, "feature_names_in_", None)
        return {
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else list(names),
            "estimator_settings": {"block_size": self.block_size, "on_bad_rows": self.on_bad_rows},
        }

    @classmethod
    def load(cls, file: str | PathLike) -> Self:
        """Read a model that `save` wrote, so that `partial_fit` can continue.

        The estimate and its covariance continue bit for bit. The score in `diagnostics_` continues to rounding: where
        rows come one at a time, their predictions are made from an estimate that is computed afresh after loading.

        Parameters
        ----------
        file : str or path-like

        Returns
        -------
        KalproxRegressor

        Raises
        ------
        ModelFileError
            If the file is not a model file.
        """
        learner, about = load_learner(file)
        return cls._of(learner, about)

    @classmethod
    def _of(cls, learner: Learner, about: dict[str, Any]) -> Self:
        model = cls(**{**learner.settings.parameters, **about["estimator_settings"]})
        model.n_features_in_ = about["n_features"]
        if about["feature_names"] is not None:
            model.feature_names_in_ = np.array(about["feature_names"], dtype=object)
        return model._keep(learner)

    # ---- private ---------------------------------------------------------------------------------------

    def _checked_settings(self) -> Settings:
        """Return the current parameters as settings; raise a ValueError if they are invalid."""
        if self.on_bad_rows not in ("raise", "skip"):
            raise ValueError(f"on_bad_rows must be one of raise, skip; got {self.on_bad_rows!r}.")
        size = self.block_size
        if size != "auto" and not (isinstance(size, numbers.Integral) and size >= 1):
            raise ValueError(f"block_size must be 'auto' or a whole number >= 1; got {size!r}.")
        parameters = self.get_params(deep=False)
        return Settings.of(**{name: value for name, value in parameters.items() if name not in _NOT_SETTINGS})

    def _settings_now(self) -> tuple[Settings, bool, bool]:
        """Return the current settings, whether the model is fitted, and whether no parameter has changed since."""
        fitted = hasattr(self, "_learner")
        unchanged = fitted and all(map(is_, self._current(dict(vars(self))), self._given))
        return (self._learner.settings if unchanged else self._checked_settings()), fitted, unchanged

    def _keep(self, learner: Learner) -> Self:
        """Assign the learner, the only change that a fit makes; an exception before it leaves the model unchanged."""
        self._learner = learner
        names = [name for name in self._get_param_names() if name != "engine"]  # computed once, since it takes 0.5 ms
        self._current = itemgetter(*names)
        self._given = self._current(vars(self))
        belief = learner.belief
        if belief.message and not belief.converged and belief.predicts:  # a warm-up is not worth a warning
            warnings.warn(belief.message, ConvergenceWarning, stacklevel=3)
        return self

    @property
    def _fitted(self) -> Learner:
        check_is_fitted(self)
        return self._learner

    @property
    def _belief(self) -> Belief:
        return self._fitted.belief

    @property
    def _with_std(self) -> Belief:
        """The belief, for reading standard errors: warns if there are none."""
        belief = self._belief
        if belief.why_no_std:
            warnings.warn(belief.why_no_std, RuntimeWarning, stacklevel=3)
        return belief

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learner")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy: without a client or session, and with a copy of the learner."""
        state = super().__getstate__() | {"engine": self.engine if isinstance(self.engine, str) else None}
        if "_learner" in state:
            state["_learner"] = state["_learner"].copy()
        return state

    def __sklearn_tags__(self) -> Any:
        linear = self.method == "exact" and isinstance(self.link, str) and self.link == "identity"
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.target_tags.multi_output = True, linear
        tags.regressor_tags.poor_score = not linear  # y may lie outside the range of the link
        return tags

    def _is_one_row(self, X: Any) -> bool:
        """Whether X is one good row for the fast path, which saves the 200 us of scikit-learn's checks."""
        mine = vars(self)
        return (
            type(X) is np.ndarray
            and "_learner" in mine
            and mine["_learner"].takes_rows
            and X.shape == (1, mine["n_features_in_"])
            and X.dtype == _FLOAT64
            and "feature_names_in_" not in mine
            and all(map(is_, mine["_current"](mine), mine["_given"]))  # no parameter has changed
            and float(np.vdot(X, X)) < LARGEST**2  # False for NaN
        )


def _checked_sigma(sigma: Any, n: int) -> Array:
    """Return the relative standard deviations of n new rows."""
    numbers = np.asarray(sigma, np.float64)
    if numbers.shape not in ((), (n,)):
        raise ValueError(f"sigma must be a number or have shape ({n},), one number per row of X; got {numbers.shape}.")
    check_positive("sigma", numbers, strict=False)
    return np.broadcast_to(numbers, n)


def _is_one(y: Any) -> bool:
    return type(y) is np.ndarray and y.shape == (1,) and y.dtype == _FLOAT64
