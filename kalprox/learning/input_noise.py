"""Noise whose variance depends on the inputs, learned beside the coefficients."""

from functools import cached_property
from math import erfc, exp, pi
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import PickledFields, leaf, state
from kalprox.information import Information
from kalprox.sources.weighting import faded

_SLOPE = 1 - (pi * exp(1) / 2) ** 0.5 * erfc(0.5**0.5)  # E[u^2 / (1 + u^2)] for a standard normal u
_FEWEST_ROWS = 100  # rows more than columns that are learned before the variance depends on the inputs
_SHRINKAGES = 1.0, 1e3, 60  # the least penalty, in rows, the largest, in units of all rows, and how many are tried
_LARGEST = 6.0  # the largest absolute log of a relative variance


@state
class InputNoise(PickledFields):
    """A linear model of the log variance of the noise, given the inputs and the predicted mean.

    The variance of the noise of a row is noise_var * v(x) with log v(x) = (z - z_mean)' w and z = (mean, x). A ridge
    regression gives w; its intercept is left to noise_var. The response of a row whose log variance was predicted as
    eta is eta + log(1 + u^2) / slope, where u is the standardised innovation of a prediction made before the row was
    learned and slope = E[u^2 / (1 + u^2)]: a change of the log variance changes the mean of the response by as much, to
    first order. For normal noise its variance is 2.27. That of log(u^2), which needs no eta, is 4.93, and 2 is the
    smallest possible, that of u^2 - 1, which single outliers dominate.

    The weight of the ridge penalty has the largest evidence, so that w is about zero if the noise does not depend on
    the inputs.

    The error of w makes the predictive distribution of a row a mixture of normal distributions with uncertain variance,
    whose mean is right: noise_var, the mean of e^2 / v(x) over the rows, contains that of the errors of v. See
    `Student.with_uncertain_variance`.

    As the information of this regression adds, fades and merges like that of the rows, so does the model.

    Attributes
    ----------
    information : Information
        That of the rows z with the responses as targets.
    """

    information: Information = leaf(of="1+d")

    @cached_property
    def _found(self) -> tuple[Array, Array] | None:
        """w, shape (d + 1,), and a matrix A with A A' the covariance of w; None before there are enough rows."""
        info = self.information
        if float(info.rows) < info.d + _FEWEST_ROWS:
            return None
        equations, rows = info.centered(), float(info.effective_rows)
        R, z = np.asarray(equations.R), np.asarray(equations.z)
        spread = np.linalg.norm(R, axis=0)
        units = np.where(spread > 0, rows**0.5 / np.where(spread > 0, spread, 1.0), 0.0)  # 0 for a constant column
        U, s, Vt = np.linalg.svd(R * units)
        b = U.T @ z
        least, largest, size = _SHRINKAGES
        grid = np.geomspace(least, largest * rows, size)[:, None]
        left = grid / (s**2 + grid)
        rss = np.maximum(float(equations.rss) + (b**2 * left).sum(axis=1), np.finfo(float).tiny)
        best = np.argmax(0.5 * np.log(left).sum(axis=1) - 0.5 * (rows - 1) * np.log(rss))
        precision = s**2 + grid[best]
        A = units[:, None] * Vt.T * np.sqrt(rss[best] / (rows - 1) / precision)
        return units * (Vt.T @ (s * b / precision)), A

    def relative_variance(self, X: Array, mean: Array) -> Array:
        """Return v(x) for rows of X with these predicted means, shape (n,)."""
        if self._found is None:
            return np.ones(len(X))
        log = self._centered(X, mean) @ self._found[0]
        return np.exp(np.clip(log, -_LARGEST, _LARGEST))

    def log_uncertainty(self, X: Array, mean: Array, share: Array) -> Array:
        """Return how uncertain the logs of the predictive variances are because w is, as variances, shape (n,).

        O(d^2) per row.

        Parameters
        ----------
        X : array of shape (n, d)
        mean : array of shape (n,)
            The predicted means.
        share : array of shape (n,)
            How much of the predictive variance is noise; the rest is the variance of the mean. If log v(x) has the
            variance s, the log of the predictive variance has share^2 s, to first order.
        """
        if self._found is None:
            return np.zeros(len(X))
        return share**2 * ((self._centered(X, mean) @ self._found[1]) ** 2).sum(axis=1)

    def _centered(self, X: Array, mean: Array) -> Array:
        return np.column_stack([mean, X]) - self.information.x_mean

    def after(
        self,
        X: Array,
        mean: Array,
        variance: Array,
        squares: Array,
        counts: Array | None,
        forget: Any,
        times: Array | None = None,
    ) -> "InputNoise":
        """Return the model after more rows.

        Parameters
        ----------
        X : array of shape (b, d)
        mean, variance, squares : arrays of shape (b,)
            The predicted mean, the variance of the noise as predicted from the inputs, and the square of the
            standardised innovation. Rows without a finite prediction are left out.
        counts : array of shape (b,), optional
            How often each row counts; 1 by default.
        forget, times
            How the weight of a row fades with later rows of these; see `kalprox.sources.weighting.faded`.
        """
        known = np.isfinite(mean) & np.isfinite(squares) & np.isfinite(variance) & (variance > 0)
        if not known.any():
            return self
        response = np.log(variance[known]) + np.log1p(squares[known]) / _SLOPE
        counts = np.ones(len(X)) if counts is None else counts
        weights, counts, faded_squares, _ = faded(counts, forget, None, times)
        Z = np.column_stack([mean[known], X[known]])
        return InputNoise(self.information.fold(Z, response, weights[known], counts[known], faded_squares[known]))
