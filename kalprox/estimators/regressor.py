"""KalproxRegressor: batch and streaming regression with uncertainty, as a scikit-learn estimator."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from kalprox.base.arrays import Array
from kalprox.base.checks import check_level
from kalprox.engines.partitions import is_collection
from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.files import Files
from kalprox.estimators.fitting import Fitting
from kalprox.estimators.frames import frame_kind
from kalprox.estimators.outliers import Outliers
from kalprox.estimators.readings import Readings
from kalprox.forgetting import Forgetting
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import INTERVALS
from kalprox.likelihoods.names import likelihood_of
from kalprox.predictive import Student, central_interval
from kalprox.sources.weighting import time_numbers
from kalprox.structures import UnderstatedWarning

_SHARE = 0.01  # of the variance of a prediction: what a structure drops of less than that does not matter


class Predicting(LearnerEstimator):
    """The methods that predict new observations."""

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        sigma: Any = None,
        *,
        minimax: bool = False,
        offset: Any = None,
        exposure: Any = None,
        time: Any = None,
    ) -> Any:
        """Predict the mean and, with return_std, the scale of a new observation for each row.

        The cost is O(d) per row, or O(d^2) with return_std or minimax.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
            A model that was fitted to files also takes a frame of pandas, polars or pyarrow with the columns of those
            files: numbers, text and dates are encoded as they were there, and other columns are ignored. Unknown levels
            and, with missing="drop", bad rows are counted in a warning.
        return_std : bool
        sigma : float or array-like of shape (n,), optional
            The standard deviation of the noise of the new rows, relative to that of a row of weight 1 (of any row with
            weight_kind="frequency"): 1 / sqrt(weight) in the units of `sample_weight`. The predictive variance is
            `noise_var_` * (sigma^2 + leverage). The default is 1; 0 leaves out the noise, so that `std` is that of the
            mean. With a `structure` that drops correlations, that is too small along contrasts of correlated columns:
            a warning tells where it is more than a hundredth of the variance.
        minimax : bool
            Whether to predict by the forecaster of Vovk, Azoury and Warmuth instead of the mean, for targets that may
            be chosen by an adversary. It is the fit as if the row to predict had been learned with the target m, where
            m is the mean of the targets, or 0 without an intercept: m + (mean - m) / (1 + s), s the leverage of the
            row. Predicting each row of a stream before it is learned, its squared loss exceeds that of the best fixed
            coefficients u by at most alpha |u|^2 + d Y^2 log(1 + n B^2 / (alpha d)) without an intercept, for any rows
            with |x| <= B and |y| <= Y. With an intercept, Y is the range of the targets, the first row is not counted,
            and the second term is Y^2 times the log of the ratio of the determinants of the information after the last
            and the first row. Linear models with a quadratic penalty only, and not with return_std.
        offset, exposure : array-like of shape (n,), optional
            Those of the rows to predict, if the model was fitted to rows that have them; see `fit`. For a collection of
            Dask they are such collections, and for a Spark frame the names of columns.
        time : float or date, optional
            With forget=ByTime(half_life), the time at which the rows are predicted, not before that of the last row
            learned: what is known has faded until then, so that `std` is larger. The default is the time of the last
            row.

        Returns
        -------
        mean : array of shape (n,) or (n, k)
            NaN for bad rows with missing="drop".
        std : array of the same shape, only with return_std
            The scale of the predictive distribution, including the noise: the standard deviation if the noise variance
            is given, and the scale of Student's t distribution with `noise_dof_` degrees of freedom if it is learned.
            With noise="inputs" a row has fewer degrees of freedom, which `predict_interval` uses, and a smaller scale,
            the less is known of its variance. NaN if no degrees of freedom remain.

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0.1, 0.9, 2.1, 2.9])
        >>> mean, std = KalproxRegressor(penalty=None).fit(X, y).predict([[4.0]], return_std=True)
        >>> mean.round(3), std.round(3)
        (array([3.9]), array([0.2]))
        """
        at = None if time is None else float(time_numbers(time, 1)[0])
        if minimax:
            if at is not None:
                raise ValueError("minimax=True has no time: leave it out.")
            return self._predict_minimax(X, return_std or sigma is not None)
        if type(X) is not np.ndarray and frame_kind(X) is None and is_collection(X):
            return self._predict_collection(X, return_std, sigma, offset, exposure, at)
        settings = self._fitted.settings
        if settings.is_exact and (offset is not None or exposure is not None):
            check(settings, way="offset")
        given = {"sigma": sigma, "offset": offset, "exposure": exposure, "time": at}
        if not return_std:
            whole = sigma is None and offset is None and exposure is None and (settings.is_exact or settings.structure)
            return self._read(X, _mean, whole=bool(whole), **given)
        found = self._predictive(X, **given)
        self._warn_of_structure(found.std, sigma)
        return found.mean, found.std

    def _warn_of_structure(self, std: Array, sigma: Any = None) -> None:
        """Warn if a structure drops correlations, and what is not known of the mean is part of the std of some row."""
        learner = self._fitted
        if not (learner.settings.likelihood.quadratic and learner.stream.structure_doubt):
            return
        noise = learner.stream.noise.variance * (1.0 if sigma is None else np.asarray(sigma, float)) ** 2
        if (std**2 * (1 - _SHARE) > noise).any():
            warnings.warn(learner.stream.structure_doubt, UnderstatedWarning, stacklevel=3)

    def _predict_collection(
        self, X: Any, return_std: bool, sigma: Any, offset: Any, exposure: Any, time: float | None
    ) -> Any:
        """Return lazy predictions: a Dask array or series, or with return_std two arrays or a frame; a Spark frame.

        Columns of frames are named mean and std, of several targets mean_y0 and so on.
        """
        if not (sigma is None or np.ndim(sigma) == 0):
            raise ValueError("sigma of a Dask collection or a Spark frame must be one number: predict in parts.")
        targets = [f"_{name}" for name in self._target_names()] if self._belief.coef.ndim == 2 else [""]
        results = {f"{what}{target}": float for what in ("mean", "std")[: 1 + return_std] for target in targets}
        given = {"return_std": return_std, "sigma": sigma, "time": time}
        return self._lazily("predict", X, results, {"offset": offset, "exposure": exposure}, **given)

    def _predictive(self, X: Any, **given: Any) -> Any:
        """Return the predictive distributions for rows, NaN for skipped ones; what is given is as in `predict`."""
        found = self._read(X, _prediction, **given)
        return Student(found, found.copy(), np.nan) if isinstance(found, np.ndarray) else found

    def _predict_minimax(self, X: Any, return_std: bool) -> Array:
        if return_std:
            raise ValueError(
                "minimax=True has no standard deviation: it makes no assumption on how the targets arise. Call predict "
                "twice, with minimax=True and with return_std=True."
            )
        if is_collection(X):
            raise TypeError(f"minimax=True needs an array of rows; got {type(X).__name__}. Compute it first.")
        check(self._fitted.settings, way="minimax")
        found: Array = self._read(X, lambda reader, rows: reader.minimax(rows), live=False)
        return found

    def predict_interval(
        self,
        X: Any,
        level: float = 0.95,
        sigma: Any = None,
        *,
        of: str = "target",
        method: str = "gaussian",
        offset: Any = None,
        exposure: Any = None,
        time: Any = None,
    ) -> tuple[Array, Array]:
        """Return predictive intervals, which contain the target of a new row, or its mean, with probability `level`.

        Parameters
        ----------
        X : array-like of shape (n, d)
        level : float
            Strictly between 0 and 1.
        sigma : float or array-like of shape (n,), optional
            The relative standard deviation of the noise of the new rows; see `predict`.
        of : {"target", "mean"}
            What the interval is about: the target of a new row, or its mean, which has no noise.
        method : {"gaussian", "conformal"}
            "gaussian": central intervals of the predictive distribution, right if the noise is normal with equal
            variance. "conformal": the ends are multiples of `std` that were adjusted after every batch, so that each
            side has missed its share of the rows: the intervals that were issued before each batch have covered
            `level` of a long stream, whatever the noise and the model. The levels are 0.5, 0.8, 0.9, 0.95 and 0.99.
        offset, exposure : array-like of shape (n,), optional
            See `predict`.
        time : float or date, optional
            See `predict`.

        Returns
        -------
        low, high : arrays of shape (n,) or (n, k)

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0.1, 0.9, 2.1, 2.9])
        >>> low, high = KalproxRegressor(penalty=None).fit(X, y).predict_interval([[4.0]], level=0.9)
        >>> low.round(2), high.round(2)
        (array([3.32]), array([4.48]))
        """
        check_level(level)
        sigma = _sigma_of(of, sigma, method)
        if method not in INTERVALS:
            raise ValueError(f"method must be one of {', '.join(INTERVALS)}; got {method!r}.")
        settings = self._fitted.settings
        own = settings.noise_depends_on_inputs or not settings.likelihood.quadratic or settings.is_bank
        by_row = method == "gaussian" and own
        if by_row and is_collection(X):
            raise ValueError(
                "Intervals of the predictive distribution of this model need X in memory; got a Dask collection or a "
                "Spark frame: predict in parts, or use method='conformal'."
            )
        with self._lock:  # the predictions, the noise and the quantiles are those of one moment
            noise = self._fitted.stream.noise
            given = {"sigma": sigma, "offset": offset, "exposure": exposure}
            if by_row:
                at = None if time is None else float(time_numbers(time, 1)[0])
                found = self._predictive(X, **given, time=at)
            else:
                predicted = self.predict(X, return_std=True, **given, time=time)
                if hasattr(predicted, "columns"):
                    predicted = _columns_of_interval(predicted)
                found = Student(predicted[0], predicted[1], noise.dof)
            ends = self._fitted.conformal_ends(level) if method == "conformal" else None
        if noise.reason:
            warnings.warn(noise.reason, RuntimeWarning, stacklevel=2)
        folded = self._fitted.stream.folded
        if folded is not None and folded.belief.message:  # which later rows may have ended; reading them folds them
            self._warn_of_warmup(self._belief)
        if ends is not None:
            low, high = ends
            return found.mean - low * found.std, found.mean + high * found.std
        return central_interval(found, level)

    def outliers(
        self, X: Any, y: Any, *, false_alarms: float = 1e-3, offset: Any = None, exposure: Any = None
    ) -> Outliers:
        """Return the weight of each row in a robust fit, and whether it is an outlier.

        A row is an outlier if it lies outside the central interval of the predictive distribution that contains all but
        a share `false_alarms` of good rows, those of the distribution that the likelihood assumes: normal with its
        learned scale for "gaussian", "huber" and "contaminated", Student's t for "student", which flags fewer. The
        error of the coefficients is part of the prediction. Outliers that take part in the fit make the scale larger,
        so that "huber" flags fewer good rows then, and "gaussian" may flag no row at all; "contaminated" does not
        count them.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        false_alarms : float
            The share of good rows that may be flagged, strictly between 0 and 1.
        offset, exposure : array-like of shape (n,), optional
            See `predict`.

        Returns
        -------
        weights : array of shape (n,)
        flags : array of bool, shape (n,)
            False for rows that are dropped with missing="drop".

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 2))
        >>> y = X @ [1.0, -1.0] + rng.normal(size=200)
        >>> y[3] = 100.0
        >>> model = KalproxRegressor(likelihood="huber").fit(X, y)
        >>> weights, flags = model.outliers(X, y)
        >>> weights[:5].round(2), np.flatnonzero(flags), model.n_outliers_
        (array([1.  , 1.  , 0.88, 0.01, 1.  ]), array([ 3, 78]), 2.0)
        """
        if not 0 < false_alarms < 1:
            raise ValueError(f"false_alarms must lie between 0 and 1, such as 0.001; got {false_alarms!r}.")
        if is_collection(X):
            raise TypeError(f"outliers needs X and y in memory; got {type(X).__name__}. Compute them first.")
        y = np.asarray(y, np.float64)
        with self._lock:
            found = self._predictive(X, offset=offset, exposure=exposure)
            likelihood = self._belief.posterior.likelihood
        if y.shape != found.mean.shape:
            raise ValueError(f"y must have the shape of the predictions, {found.mean.shape}; got {y.shape}.")
        low, high = (found.quantile(p) for p in (false_alarms / 2, 1 - false_alarms / 2))
        with np.errstate(invalid="ignore"):
            return Outliers(np.asarray(likelihood.row_weights(y, found)), (y < low) | (y > high))

    @property
    def n_outliers_(self) -> float:
        """The number of rows flagged as outliers, of the rows so far; with a robust likelihood only.

        A row of a stream is flagged when it comes, before it is learned, as one of a thousand good rows is. `forget`
        fades the number as it fades the rows.
        """
        found = self._belief.facts.n_outliers
        if found is None:
            raise AttributeError(
                "n_outliers_ needs a robust likelihood: likelihood='huber', 'student' or 'contaminated'."
            )
        return found


def _sigma_of(of: str, sigma: Any, method: str) -> Any:
    """Return the relative standard deviation of the noise that an interval of this kind includes."""
    if of not in ("target", "mean"):
        raise ValueError(f"of must be 'target' or 'mean'; got {of!r}.")
    if of == "target":
        if sigma is not None and not np.all(np.asarray(sigma, np.float64) > 0):
            raise ValueError(f"sigma must be > 0; got {sigma!r}. For the interval of the mean use of='mean'.")
        return sigma
    if sigma is not None or method == "conformal":
        what = "method='conformal' is" if sigma is None else "sigma is"
        raise ValueError(
            f"{what} about the targets of new rows, and of='mean' about their mean: leave one of them out."
        )
    return 0.0


def _prediction(reader: Any, rows: Any, **more: Any) -> Any:
    return reader.predict(rows, **more)


def _mean(reader: Any, rows: Any, **given: Any) -> Any:
    return reader.predict(rows, **given).mean if given else reader.mean(rows)


def _columns_of_interval(frame: Any) -> tuple[Any, Any]:
    """Return the means and the standard deviations of lazy predictions; raise a ValueError if there is no such pair."""
    if hasattr(frame, "sparkSession") or "mean" not in frame.columns:
        raise ValueError(
            "Intervals of a Spark frame, and of a Dask dataframe with several targets, are made of its columns: use "
            "predict with return_std=True."
        )
    return frame["mean"], frame["std"]


@dataclass(eq=False, repr=False)
class KalproxRegressor(Fitting, Predicting, Readings, Files, RegressorMixin, LearnerEstimator):
    """Regularised regression, in batch or streaming, with standard errors and predictive intervals.

    The estimator minimises

        sum_k 1/2 w_k (y_k - link(x_k' coef + intercept))^2 + alpha * penalty(coef),

    or the sum of another loss, see `likelihood`. The intercept is not penalised. With the identity link and the
    Gaussian likelihood the result is exact for the rows seen so far, for any batches in any order. `partial_fit` costs
    O(d^2) per row; the first access to `coef_` or the first prediction after it costs O(d^3). All computations are in
    float64.

    Parameters
    ----------
    formula : str, optional
        The target and the terms of a frame, such as "y ~ x + C(g) + a:b", in the syntax of formulaic: `fit` then takes
        a frame, and so do `predict` and `partial_fit` after it. Without a target, "~ x + C(g)", it is the y of `fit`.
        The intercept is that of the formula: 0 + leaves it out. Needs `pip install "kalprox[formula]"`.
    likelihood : Likelihood or str
        The distribution of y, whose loss takes the place of the square: a name, or an object of `kalprox.likelihoods`
        with parameters of its own. "huber", "student" and "contaminated" bound the influence of outliers, see
        `outliers`: "huber" is the safest, and "contaminated" leaves them out altogether. Their scale is learned. For
        counts, exp of the linear predictor is the mean: "poisson"; "negative-binomial", whose dispersion is learned;
        and "quasi-poisson", which learns by how much the variance exceeds the mean, as `noise_var_`. For positive
        amounts "gamma", whose std is a share of the mean; for counts of successes
        `kalprox.likelihoods.Binomial(trials)`, or shares and numbers of trials as weights. As with a nonlinear link,
        `fit` makes several passes, and `partial_fit` learns in one. For classes, use `KalproxClassifier`.
    link : {"identity", "sigmoid", "tanh", "softplus", "exp", "arctan"}
        The link, by its name in `kalprox.models.LINKS`. For every link but the identity, `fit` makes passes over the
        rows until it reaches a stationary point, and `partial_fit` learns in one pass, with a weak prior on the scale
        of the linear predictor. Targets far outside the range of the link are an error, unless the likelihood is
        `kalprox.likelihoods.Gaussian(targets="any")`.
    function : callable, optional
        A JAX function fn(theta, x) of one row, which is then the whole model: it has no link and no intercept, `coef_`
        is theta, and `start` must be given. Tables name its parameters by its attribute `parameter_names`, if it has
        one.
    start : array of shape (d,) or (1 + d,), optional
        Where the search starts: theta for a function, (intercept, coef) for a nonlinear link.
    penalty : None, a name, or an object of kalprox.penalties or kalprox.regularizers
        The penalty that alpha multiplies: "ridge" is 1/2 ||coef||^2; "l1" is ||coef||_1; "elasticnet" and "smooth_l1"
        are in between, and round the kink; "group" sets groups of coefficients to zero jointly; "box" keeps them
        between bounds, and alpha has no effect on it. The parameters of a penalty are those of its object, such as
        `kalprox.penalties.ElasticNet(l1_ratio=0.2)`, `.Group(labels)` or `.Box(low, high)`. A regulariser of
        `kalprox.regularizers` has its own weights, and alpha must then be 1. "default" is no penalty for numbers, and
        "ridge" for counts, with a `structure`, or if an alpha is given.
    alpha : float, "auto" or None
        The weight of the penalty; None is 1. It is the alpha of scikit-learn's Ridge, and n times the alpha of
        its Lasso and ElasticNet, which divide the sum of squares by n. "auto" chooses alpha, for linear models
        only, and for each column of y its own; for counts see `KalproxClassifier`. For ridge it maximises the
        evidence, times a weak prior (the share of the variance of y that X explains is uniform) if there are no
        more rows than coefficients, or if otherwise all or nothing would be taken for noise. For other
        penalties it minimises the errors of five-fold cross-validation, from sums of the rows in folds: alpha
        is c sqrt(n), and rows one after the other, an eighth of those before them, are put into the same fold.
    fit_intercept : bool
        Whether to fit an intercept. It is never penalised.
    standardize : bool
        Whether to penalise the coefficients as if the columns of X had been standardised; `coef_` stays in the units of
        X. With a nonlinear link only `fit` supports it.
    noise : "learn", "inputs" or float
        The noise variance. With "learn" it is estimated as the residual sum of squares divided by the residual degrees
        of freedom, and intervals are those of Student's t distribution. If there are no more rows than coefficients,
        that needs penalty="ridge" and alpha="auto", whose evidence determines the noise too (intervals of coefficients
        then cover on average over the coefficients); other intervals are NaN or in doubt there, and `predict_interval`
        warns. With "inputs" the variance differs from row to row: its logarithm is a linear function of the inputs and
        of the predicted mean, which is learned too, and the rows are weighted accordingly; `noise_var_` is then the
        variance at the mean of the inputs. Linear models only.
    forget : float, "auto", or an object of kalprox.forgetting
        The forgetting factor, in (0, 1]: every new row multiplies the weights of all earlier rows by it. 1 means no
        forgetting. Other kinds: `ByTime(half_life)`, for rows that have `times`; for linear models with the Gaussian
        likelihood also `Window(rows)` and `RandomWalk(q)`. See `kalprox.forgetting`.
        "auto" runs several ways to forget side by side (none, four factors, and an intercept that walks with three
        sizes of steps) and mixes them by how well each has predicted; it takes the time of all of them. Predictions,
        their intervals and their score are those of the mixture. `coef_` and `noise_var_` are its means, standard
        errors and `covariance_` those of the mixture by the law of total variance, and `coef_interval` is Student's t
        with these moments; `sample` draws from the mixture; `alpha_` is that of the way with the largest weight.
        Several targets have weights of their own. See `forget_weights_`.
    coef_cov : {"auto", "model", "robust", "clustered"}
        What the standard errors of the coefficients assume. "auto": "clustered" if `clusters` are given, else
        "model", and "robust" for classes and counts with weight_kind="precision". "model": independent rows with equal
        noise. "robust": the variance of the noise may differ from row to row (a sandwich covariance, which statsmodels
        calls HC3; in a stream, of the errors of predictions). "clustered": rows may depend on each other within
        clusters, which are the batches given to `partial_fit`, or the `clusters` given to `fit` and `partial_fit`;
        intervals use Student's t with clusters - 1 degrees of freedom. Clusters that are given are never ignored: with
        "model" and "robust" they raise an error. Predictions are not affected.
    weight_kind : {"frequency", "precision"}
        What `sample_weight` means. "frequency": how often each row counts, so that a row of weight 2 equals two equal
        rows, also in the degrees of freedom. "precision": 1 / sigma^2 of the noise of each row, up to a common factor;
        the degrees of freedom are counted from the number of rows (of positive weight), and `noise_var_` is the noise
        variance of a row of weight 1. The results are those of weighted least squares; alpha is relative to the
        weights, as the objective says. Classes and counts have no noise variance: there a precision is how much a row
        counts for, without being more than one row, and the standard errors are robust ones unless `coef_cov` says
        otherwise.
    missing : {"raise", "drop", "impute", "marginalize"}
        What to do with missing values. "raise": NaN, infinity, and values above 1e70 in size, whose powers would
        overflow, are an error, in X, in y and times the square root of the row's weight. "drop": rows with such a value
        in X are left out, and counted in `n_rows_rejected_`. "impute": a missing
        feature is replaced by the mean of its column, as known from the rows before (the first batch, and `fit`: of the
        batch itself), and learned as if it were known. "marginalize": it is replaced by its mean given the other
        features of its row, under the running mean and covariance of the features. What is left open, coef' Cov coef,
        is added to the predictive variance, and the row is learned with the precision of that larger variance. It needs
        link="identity", likelihood="gaussian" and one target.
        Both assume that features are missing independently of the target, given the features that are there (missing at
        random, with the target not among what missingness depends on), and "impute" that they are missing completely at
        random. `diagnostics_` tests it, and its verdict is "informative missingness" if the rows contradict it.
        `n_rows_with_gaps_` counts the rows that were learned with gaps.
        With all but "raise", a row whose target is NaN is counted in `n_rows_unlabelled_` and not learned.
        `prequential` predicts it. For targets that come later see `learn_late`.
    change_points : bool or float
        Whether to look for change points, where the past stops applying: `change_points_` lists them. A number is the
        expected number of rows from one to the next, 1,000 for True; if nothing changes, one is reported at most once
        in 99 times as many rows, on average, if errors are independent, symmetric and equally spread, with heavy tails
        or not. Of others more are reported: about 4 times as many with exponential errors, with AR(.5) ones or with a
        spread that follows an input, 15 times with log-normal ones. For a linear model with at most 64 columns a change
        of any coefficient and of the noise is found; for others, what shows in the level or the spread of the
        residuals. What the model learns does not depend on it: to forget the past, see `forget`. It needs rows in an
        order, of one target.
    diagnose : bool
        Whether every row is predicted before it is learned, to keep the prequential score in `diagnostics_` and the
        quantiles of conformal intervals. `fit` predicts rows in their order; with a nonlinear link, or on an engine,
        `fit` does not judge its rows. While leverage matters, each row is predicted from all rows before it. Later, a
        piece of a batch is predicted by the belief before it, and a row never by a belief that lacks more than half of
        the rows before it. The score does not depend on how the rows are cut into batches, up to 1e-3.
    structure : None, "diagonal", or an object of kalprox.structures
        For many columns, about 10^4 to 10^6: what is kept of the information about the coefficients, instead of a
        matrix of d x d numbers: its diagonal, or with `LowRank(20)` also 20 directions. `fit` still finds the
        coefficients of the objective, by conjugate gradients that stop by `tol`, and a sparse X stays sparse.
        `coef_std_` and the standard deviations of predictions come from the structure: predictions are usually within a
        few per cent of exact, and standard errors of coefficients may be too small, which a warning says. `partial_fit`
        needs one number per row, penalty "ridge" or None, and forget=1. Not with alpha="auto", several targets,
        missing="marginalize", and robust or clustered standard errors.
    engine : optional
        Where `fit` folds the rows. None is this process. Otherwise give "local" (threads), "processes", "dask",
        "spark", the address of a Dask scheduler, a `distributed.Client` or a `SparkSession`. X and y may be Dask
        arrays, a Dask dataframe and series, or a Spark frame and the name of its target column. With engine None their
        own client or session folds such collections, and `predict` of them is lazy. The engine is not saved with the
        model.
    max_passes : int
        The maximum number of passes of `fit` over the rows, with a nonlinear link.
    tol : float
        With a nonlinear link, `fit` stops when a step changes theta by less than this, relative to its size.

    Attributes
    ----------
    n_features_in_ : int
        The number d of columns of X.
    feature_names_in_ : array of str, shape (d,)
        The names of the columns of X; only if X was a frame whose columns have names.

    Notes
    -----
    The other fitted attributes (`coef_`, `coef_std_`, `noise_var_`, `diagnostics_` and so on) are properties, described
    below. `get_params`, `set_params` and `score` are those of every scikit-learn regressor. `diagnostics_.verdict()`
    states in words whether the predictive intervals can be trusted. Notebooks show a fitted model with its rows, noise,
    verdict and first coefficients; `plot`, `path().plot` and `diagnostics_.plot` draw it.

    Several threads may use one estimator. Learning (`fit`, `partial_fit`, `prequential`, `merge`) is done by one thread
    at a time, in the order in which they come, and no row is lost. Each prediction, attribute and saved file is that of
    one moment, before or after any other call; two of them may see rows that came in between. For several readings of
    one moment, read a copy: `copy.copy(model)`. Changing parameters while another thread learns is not supported.

    Examples
    --------
    >>> import numpy as np
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

    formula: str | None = None
    _: KW_ONLY
    likelihood: Any = "gaussian"
    link: str = "identity"
    function: Callable[..., Any] | None = None
    start: Any = None
    penalty: Any = "default"
    alpha: float | str | None = None
    fit_intercept: bool = True
    standardize: bool = False
    noise: float | str = "learn"
    forget: float | str | Forgetting = 1.0
    coef_cov: str = "auto"
    weight_kind: str = "frequency"
    missing: str = "raise"
    change_points: bool | float = False
    diagnose: bool = True
    structure: Any = None
    engine: Any = None
    max_passes: int = 200
    tol: float = 1e-10

    def _checked_settings(self) -> Settings:
        settings = super()._checked_settings()
        check(settings, way="numbers")
        return settings

    def __sklearn_tags__(self) -> Any:
        linear = self.link == "identity" and self.function is None
        tags, loss = super().__sklearn_tags__(), None
        with suppress(ValueError):  # which `fit` will raise
            loss = likelihood_of(self.likelihood)
        several = linear and loss is not None and loss.quadratic and self.missing != "marginalize"
        tags.target_tags.multi_output = several
        tags.target_tags.positive_only = loss is not None and loss.support[0] >= 0
        tags.regressor_tags.poor_score = not linear or (loss is not None and not loss.location)  # y may not suit them
        return tags


def predict_interval(model: Any, X: Any, level: float = 0.95, **options: Any) -> tuple[Array, Array]:
    """Return predictive intervals of a fitted model, also one inside a pipeline or a search of scikit-learn.

    The rows go through the steps of a `Pipeline` to its last one. A search, such as `GridSearchCV`, stands for its best
    estimator, and a `FrozenEstimator` for the one inside. For a `TransformedTargetRegressor` the ends of the intervals
    are transformed back, which is right for transformers that are increasing or decreasing, such as the logarithm, and
    act on each target alone: the probability that y lies inside is the same.

    Parameters
    ----------
    model : estimator
        A fitted `KalproxRegressor`, or one of these around it, in any depth.
    X : array-like of shape (n, d)
        The rows, as `model.predict` takes them.
    level : float
        The probability that an interval contains a new observation, strictly between 0 and 1.
    **options
        `sigma`, `of` and `method` of `KalproxRegressor.predict_interval`.

    Returns
    -------
    low, high : arrays of shape (n,) or (n, k)

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from kalprox import KalproxRegressor
    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0.1, 0.9, 2.1, 2.9])
    >>> pipeline = make_pipeline(StandardScaler(), KalproxRegressor(penalty=None)).fit(X, y)
    >>> low, high = predict_interval(pipeline, [[4.0]], level=0.9)
    >>> low.round(2), high.round(2)
    (array([3.32]), array([4.48]))
    """
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model)
    if hasattr(model, "predict_interval"):
        interval: tuple[Any, Any] = model.predict_interval(X, level, **options)
        return interval
    if isinstance(model, Pipeline):
        inputs = model[:-1].transform(X) if len(model) > 1 else X
        return predict_interval(model[-1], inputs, level, **options)
    if isinstance(model, TransformedTargetRegressor):
        if model.check_inverse and model.func is not None and model.inverse_func is None:
            raise TypeError("predict_interval needs the inverse of the transformation of y: give inverse_func, too.")
        ends = [_transformed_back(model, end) for end in predict_interval(model.regressor_, X, level, **options)]
        return np.minimum(*ends), np.maximum(*ends)
    if isinstance(model, FrozenEstimator):
        return predict_interval(model.estimator, X, level, **options)
    if hasattr(model, "best_estimator_"):
        return predict_interval(model.best_estimator_, X, level, **options)
    if hasattr(model, "best_params_"):
        raise TypeError(
            f"predict_interval needs the best estimator of the {type(model).__name__}: fit it with refit=True."
        )
    raise TypeError(
        "predict_interval needs a KalproxRegressor, or a Pipeline, a search or a TransformedTargetRegressor around it; "
        f"got {type(model).__name__}, for whose predictions no interval follows from those of its parts."
    )


def _transformed_back(model: Any, end: Array) -> Array:
    """Return an end of intervals in the units of y, as `TransformedTargetRegressor.predict` does it."""
    found = np.full(end.shape, np.nan)
    known = np.isfinite(end) if end.ndim == 1 else np.isfinite(end).all(axis=1)  # transformers refuse NaN
    if known.any():
        columns = end[known].reshape(int(known.sum()), -1)
        found[known] = model.transformer_.inverse_transform(columns).reshape(found[known].shape)
    return found
