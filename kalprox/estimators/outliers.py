"""Rows that lie: their weights in a robust fit, and flags for those that are too far from their predictions."""

from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.engines.collections import is_collection
from kalprox.estimators.predicting import Predicting

__all__ = ["FindingOutliers", "Outliers"]


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


class FindingOutliers(Predicting):
    """The method and the attribute that tell which rows lie."""

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
            found = self._predictive(*self._inputs_and_offset(X, offset, exposure), None)
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
        found = self._belief.n_outliers
        if found is None:
            raise AttributeError(
                "n_outliers_ needs a robust likelihood: likelihood='huber', 'student' or 'contaminated'."
            )
        return found
