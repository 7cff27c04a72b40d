"""KalproxRegressor: fit, partial_fit, predict, and how sure it is, under scikit-learn's contract."""

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
from kalprox.calibration import Calibration
from kalprox.engines.collections import is_collection, partition_collection, predict_collection
from kalprox.estimators.checks import batch_of, checked_rows
from kalprox.learning.belief import Belief, Path
from kalprox.learning.learner import HUGE, Learner
from kalprox.learning.saving import load_learner, save_learner
from kalprox.learning.settings import Settings, same
from kalprox.predictive import Student
from kalprox.sources import ArraySource, Source
from kalprox.sources.quarantine import Quarantine

_FLOAT64 = np.dtype(np.float64)  # compared with a type, a dtype takes twice as long
_NOT_SETTINGS = ("block_size", "on_bad_rows", "engine")  # how rows are taken in; not how they are learned


class KalproxRegressor(RegressorMixin, BaseEstimator):
    """Regularised regression, in one go or as a stream, with standard errors and predictive intervals.

    Minimises, with an intercept that is not penalised,

        sum_k 1/2 w_k (y_k - link(x_k' coef + intercept))^2 + alpha * penalty(coef).

    With the identity link every answer is exact over the rows seen so far, whatever the batches and their order;
    `partial_fit` costs O(d^2) a row, and reading `coef_` or predicting O(d^3) once after it. Everything is computed in
    float64.

    Parameters
    ----------
    link : {"identity", "sigmoid", "tanh", "softplus", "exp", "arctan"} or callable
        The link, by its name in `kalprox.models.LINKS`. A JAX function fn(theta, x) of one row is the whole model: it
        has no intercept, `coef_` is theta, and `start` is needed. Behind any link but the identity, `fit` refines the
        estimate to a stationary point by passes over the rows, and `partial_fit` learns in one pass, with a weak prior
        on the scale of the linear predictor.
    penalty : {"ridge", "l1", "elasticnet", "smooth_l1", "group", "box"}, Regularizer or None
        What alpha multiplies: "ridge" is 1/2 ||coef||^2; "l1" is ||coef||_1; "elasticnet" is l1_ratio ||coef||_1 +
        (1 - l1_ratio)/2 ||coef||^2; "smooth_l1" is sum(sqrt(1 + coef^2/delta^2) - 1); "group" is the sum over groups
        of sqrt(size) ||coef_g||. "box" keeps the coefficients between `bounds`, and alpha has no effect on it. A
        regulariser of `kalprox.regularizers` has weights of its own.
    alpha : float or "auto"
        The weight of the penalty. It is the alpha of scikit-learn's Ridge, and n times the alpha of its Lasso and
        ElasticNet, which divide the sum of squares by n. "auto", for linear models, maximises the evidence for ridge,
        from the information alone; for other penalties it maximises the prequential score: each batch is predicted
        with every alpha of a grid before it is learned. `fit` then goes through its rows in their order.
    l1_ratio : float
        The share of the L1 norm in "elasticnet", between 0 and 1.
    delta : float
        The width over which "smooth_l1" is rounded.
    groups : sequence of int
        For "group": an integer label for each feature, -1 for a feature that is not penalised.
    bounds : pair
        For "box": the lower and the upper bound, each a number or one for each feature.
    method : {"exact", "paper"}
        "paper" runs the paper's recursion (`kalprox.pipg`) row by row from N(start, v0) with process noise q. It needs
        the noise variance, and its estimate tends to the minimiser for n times the penalty.
    noise : "learn" or float
        The noise variance. Learned, it is the residual sum of squares over the residual degrees of freedom, and
        intervals are Student's.
    fit_intercept : bool
        Whether an intercept is added. It is never penalised.
    standardize : bool
        Penalise the coefficients in units of 1 / (standard deviation of their column), exactly as if X had been
        standardised; `coef_` stays in the units of X. Behind a nonlinear link, only for `fit`.
    forget : float
        What the weight of a row is multiplied by with every later row, in (0, 1]; 1 forgets nothing.
    block_size : int or "auto"
        How many rows of a sparse X are made dense at a time; "auto" takes 32 MiB.
    max_passes : int
        The largest number of passes of `fit` over the rows, behind a nonlinear link.
    tol : float
        `fit` behind a nonlinear link stops when a step moves theta by less than this, relatively.
    on_bad_rows : {"raise", "skip"}
        "skip" leaves out rows with NaN or infinity in X or y, and counts them in `n_rows_rejected_`.
    start : array of shape (d,) or (1 + d,), optional
        The first theta for a function, or the first (intercept, coef) behind a nonlinear link.
    v0, q : float
        For method="paper": the variance of the first theta, and the process noise.
    diagnose : bool
        Whether `partial_fit` predicts batches before it learns them, and keeps their score in `diagnostics_`. All
        batches of the first 16,384 rows are scored, then one in 16, but at least one in 32,768 rows (64 d if that is
        more); of a batch, 512 rows, evenly spaced, or a sixteenth of its rows if that is more. Batches of 16 rows or
        fewer are all scored.
    engine : optional
        Where `fit` folds the rows. None folds them in this process; otherwise "local" (threads), "processes", "dask",
        "spark", the address of a Dask scheduler, a `distributed.Client` or a `SparkSession`. X and y may be Dask
        arrays, a Dask dataframe and series, or a Spark frame and the name of its target; with engine None they are
        folded by their own client or session, and `predict` of them is lazy. The engine is not saved with the model.

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
    _given: tuple[Any, ...]  # the parameters of the last fit
    _current: Callable[[dict[str, Any]], tuple[Any, ...]]  # the parameters of now, from vars(self)

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
        engine: Any = None,
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
        self.engine = engine

    # ---- learning --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn these rows alone.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        y : array-like of shape (n,), or (n, k) for a linear model; the name of the target for a Spark frame
        sample_weight : array-like of shape (n,), optional
            How often each row counts: 2 is the row twice, 0 is no row.

        Returns
        -------
        self : KalproxRegressor
        """
        settings = self._checked_settings()
        if self.engine is not None or is_collection(X):
            return self._fit_on_engine(X, y, sample_weight, settings)
        rows, rejected = checked_rows(self, X, y, sample_weight, reset=True, linear=settings.is_exact)
        batch = batch_of(rows, self.block_size, whole=False)
        assert isinstance(batch, ArraySource)
        learner = Learner(settings)
        learner.fit(batch)
        learner.n_rejected = rejected
        return self._keep(learner)

    def fit_source(self, source: Source, d: int) -> Self:
        """Learn the rows of a source that need not be in memory.

        A linear model takes one pass, a nonlinear one as many as it needs.

        Parameters
        ----------
        source : kalprox.sources.Source
        d : int
            The number of columns of X.

        Returns
        -------
        self : KalproxRegressor
        """
        learner = Learner(self._checked_settings())
        learner.fit(source)
        self.n_features_in_ = d
        return self._keep(learner)

    def _fit_on_engine(self, X: Any, y: Any, sample_weight: Any, settings: Settings) -> Self:
        """On whatever machines the rows are: the sums are those of one machine."""
        from kalprox import engines

        partitions, names, d = partition_collection(X, y, sample_weight)
        quarantine = Quarantine(max_bad=None if self.on_bad_rows == "raise" else "100%")
        with engines.open(self.engine or engines.engine_of(X)) as engine:
            self.fit_source(engines.EngineSource(engine, partitions, quarantine=quarantine), d)
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn these rows besides those learned before. If a row is bad all are refused, and nothing changes.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
        y : array-like of shape (n,), or (n, k) for a linear model
        sample_weight : array-like of shape (n,), optional
            How often each row counts.

        Returns
        -------
        self : KalproxRegressor
        """
        if sample_weight is None and self._is_one_row(X) and _is_one(y) and abs(y[0]) < HUGE**0.5:
            self._learner.learn_rows(X, y)
            return self
        fitted = hasattr(self, "_learner")
        unchanged = fitted and all(map(is_, self._current(dict(vars(self))), self._given))
        settings = self._learner.settings if unchanged else self._checked_settings()
        linear = settings.is_exact
        rows, rejected = checked_rows(self, X, y, sample_weight, reset=not fitted, linear=linear)
        learner = self._learner if fitted else Learner(settings)
        learner.learn(batch_of(rows, self.block_size, whole=linear), settings)
        learner.n_rejected += rejected
        return self if unchanged else self._keep(learner)

    def merge(self, other: Self) -> Self:
        """Take in what `other` has learned, as if its rows had come here: exact, O(d^3). Linear models only.

        Parameters
        ----------
        other : KalproxRegressor
            Fitted with the same settings to the same features.

        Returns
        -------
        self : KalproxRegressor
        """
        learner, theirs = self._fitted, other._fitted
        names = [getattr(model, "feature_names_in_", None) for model in (self, other)]
        if not same(*names):
            raise ValueError(f"merge needs the same features in the same order; got {names[0]} and {names[1]}.")
        learner.merge(theirs)
        return self

    # ---- asking ----------------------------------------------------------------------------------------

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean for each row; with return_std also the scale of a new observation there, noise included.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        return_std : bool

        Returns
        -------
        mean : array of shape (n,) or (n, k)
        std : array of the same shape, with return_std
            Student's scale with `noise_dof_` degrees of freedom where the noise variance is learned, and NaN where no
            degrees of freedom are left. O(d) a row, O(d^2) with std.
        """
        if self._is_one_row(X):
            learner = self._learner
            if not return_std:
                return learner.mean(X)
            predicted = learner.predict(X)
            return predicted.mean, predicted.std
        if is_collection(X):
            return predict_collection(self, X, return_std)
        learner = self._fitted
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        if learner.settings.is_exact and not return_std:
            return learner.mean(X)
        batch = batch_of((X, np.zeros(X.shape[0]), None), self.block_size, whole=False)
        found = [learner.predict(block.X) for block in batch]  # type: ignore[union-attr]
        mean = np.concatenate([one.mean for one in found])
        return (mean, np.concatenate([one.std for one in found])) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[Array, Array]:
        """The ends of the central predictive intervals, which hold a new observation with probability `level`.

        Parameters
        ----------
        X : array-like of shape (n, d)
        level : float
            Strictly between 0 and 1.

        Returns
        -------
        low, high : arrays of shape (n,) or (n, k)
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1; got {level!r}.")
        mean, std = self.predict(X, return_std=True)
        return Student(mean, std, self._fitted.noise.dof).interval(level)

    def sample(self, n: int = 1, random_state: Any = None) -> tuple[Array, Array]:
        """Draws from the posterior.

        Parameters
        ----------
        n : int
            The number of draws.
        random_state : int, RandomState or None

        Returns
        -------
        coef : array of shape (n, d) or (n, k, d)
        intercept : array of shape (n,) or (n, k)
        """
        return self._belief.sample(n, check_random_state(random_state))

    def path(self, alphas: Any = None) -> Path:
        """Coefficients, intercepts, degrees of freedom and score for each alpha, with no pass over the data.

        O(d^3) an alpha. Linear models only.

        Parameters
        ----------
        alphas : array-like, optional
            The default is a grid in the scale of the data.

        Returns
        -------
        Path
        """
        return self._belief.path(alphas)

    @property
    def coef_(self) -> Array:
        """The coefficients, shape (d,), or (k, d) where y had k columns."""
        return self._belief.coef

    @property
    def intercept_(self) -> Any:
        """The intercept, a number or shape (k,)."""
        return self._belief.intercept[()]

    @property
    def coef_std_(self) -> Array:
        """The standard errors of the coefficients, shaped like `coef_`.

        Infinite where nothing determines a coefficient (which then has minimum norm); zero where a penalty holds it at
        a kink or a bound, the others being conditional on that.
        """
        return self._belief.coef_std

    @property
    def intercept_std_(self) -> Any:
        """The standard error of the intercept."""
        return self._belief.intercept_std[()]

    @property
    def covariance_(self) -> Array:
        """The covariance of the coefficients, shape (d, d) or (k, d, d)."""
        return self._belief.covariance

    @property
    def noise_var_(self) -> Any:
        """The noise variance, given or learned."""
        return np.asarray(self._belief.noise.variance)[()]

    @property
    def noise_dof_(self) -> Any:
        """The degrees of freedom of the learned noise variance; infinite where it is given."""
        return np.asarray(self._belief.noise.dof)[()]

    @property
    def alpha_(self) -> Any:
        """The weight of the penalty that is used."""
        return self._belief.alpha

    @property
    def converged_(self) -> bool:
        """Whether the minimiser was reached."""
        return bool(self._belief.converged)

    @property
    def n_passes_(self) -> int:
        """The number of passes over the rows."""
        return self._belief.n_passes

    @property
    def n_rows_seen_(self) -> int:
        """The number of rows learned, of positive weight."""
        return self._fitted.n_rows

    @property
    def n_rows_rejected_(self) -> int:
        """The number of rows that were skipped because they were bad."""
        return self._fitted.n_rejected

    @property
    def diagnostics_(self) -> Calibration:
        """The score of the rows that partial_fit predicted before it learned them."""
        return self._fitted.score

    @property
    def log_evidence_(self) -> Any:
        """log p(y) with the penalty read as a prior, a number or shape (k,): linear models with ridge."""
        try:
            return self._belief.log_evidence[()]
        except ValueError as error:  # hasattr says no
            raise AttributeError(str(error)) from error

    # ---- files -----------------------------------------------------------------------------------------

    def save(self, file: str | PathLike) -> None:
        """Write the fitted model to a file, whole or not at all, without pickle.

        A model whose link is a function or whose penalty is `Custom` cannot be saved.
        """
        if changed := self._checked_settings().changed(self._fitted.settings):
            raise ValueError(f"{', '.join(changed)} changed since the last fit: fit or partial_fit first, then save.")
        save_learner(file, self._learner, **self._about())

    def _about(self) -> dict[str, Any]:
        """What a model file holds besides the learner."""
        names = getattr(self, "feature_names_in_", None)
        return {
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else list(names),
            "estimator_settings": {"block_size": self.block_size, "on_bad_rows": self.on_bad_rows},
        }

    @classmethod
    def load(cls, file: str | PathLike) -> Self:
        """Read what `save` wrote; partial_fit continues bit for bit. Any other file raises `ModelFileError`."""
        learner, about = load_learner(file)
        return cls._of(learner, about)

    @classmethod
    def _of(cls, learner: Learner, about: dict[str, Any]) -> Self:
        model = cls(**{**learner.settings.parameters, **about["estimator_settings"]})
        model.n_features_in_ = about["n_features"]
        if about["feature_names"] is not None:
            model.feature_names_in_ = np.array(about["feature_names"], dtype=object)
        return model._keep(learner)

    # ---- inside ----------------------------------------------------------------------------------------

    def _checked_settings(self) -> Settings:
        """The parameters of now as settings; those that mean nothing are refused."""
        if self.on_bad_rows not in ("raise", "skip"):
            raise ValueError(f"on_bad_rows must be one of raise, skip; got {self.on_bad_rows!r}.")
        size = self.block_size
        if size != "auto" and not (isinstance(size, numbers.Integral) and size >= 1):
            raise ValueError(f"block_size must be 'auto' or a whole number >= 1; got {size!r}.")
        parameters = self.get_params(deep=False)
        return Settings.of(**{name: value for name, value in parameters.items() if name not in _NOT_SETTINGS})

    def _keep(self, learner: Learner) -> Self:
        """All that was learned, at once: an error before this has changed nothing."""
        self._learner = learner
        names = [name for name in self._get_param_names() if name != "engine"]  # which takes 0.5 ms
        self._current = itemgetter(*names)
        self._given = self._current(vars(self))
        if learner.belief.message and not learner.belief.converged:
            warnings.warn(learner.belief.message, ConvergenceWarning, stacklevel=3)
        return self

    @property
    def _fitted(self) -> Learner:
        check_is_fitted(self)
        return self._learner

    @property
    def _belief(self) -> Belief:
        return self._fitted.belief

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learner")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: a client or session stays behind, and the copy learns on its own."""
        state = super().__getstate__() | {"engine": self.engine if isinstance(self.engine, str) else None}
        if "_learner" in state:
            state["_learner"] = state["_learner"].copy()
        return state

    def __sklearn_tags__(self) -> Any:
        linear = self.method == "exact" and isinstance(self.link, str) and self.link == "identity"
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.target_tags.multi_output = True, linear
        tags.regressor_tags.poor_score = not linear  # a link's range need not hold any y
        return tags

    def _is_one_row(self, X: Any) -> bool:
        """Whether X is one good row, for settings that have a short way: scikit-learn's checks take 200 us."""
        mine = vars(self)
        return (
            type(X) is np.ndarray
            and "_learner" in mine
            and mine["_learner"].takes_rows
            and X.shape == (1, mine["n_features_in_"])
            and X.dtype == _FLOAT64
            and "feature_names_in_" not in mine
            and all(map(is_, mine["_current"](mine), mine["_given"]))  # none has changed
            and float(np.vdot(X, X)) < HUGE  # not so for NaN
        )


def _is_one(y: Any) -> bool:
    return type(y) is np.ndarray and y.shape == (1,) and y.dtype == _FLOAT64
