"""Predictions of new observations, intervals for them, and rows that lie outside: `outliers`."""

import warnings
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_level
from kalprox.engines.collections import is_collection
from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.frames import frame_kind
from kalprox.learning.quantiles import INTERVALS
from kalprox.learning.rules import check
from kalprox.predictive import Student, central_interval
from kalprox.sources.times import time_numbers
from kalprox.structures import UnderstatedWarning

__all__ = ["Outliers", "Predicting"]

_SHARE = 0.01  # of the variance of a prediction: what a structure drops of less than that does not matter


class Outliers(NamedTuple):
    """The weights of rows, and which of them are outliers.

    Parameters
    ----------
    weights : array of shape (n,)
        The weight of each row in a robust fit, from 1 for a row that is exactly as predicted to 0 for one that has no
        influence; 1 for all rows if the likelihood is not robust.
    flags : array of bool, shape (n,)
        Whether the row is an outlier.
    """

    weights: Array
    flags: Array


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
