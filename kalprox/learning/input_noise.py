"""Noise whose variance depends on the inputs, learned beside the coefficients."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kalprox._arrays import Array
from kalprox.information import Information, merge
from kalprox.learning.saved import Saved, expect

__all__ = ["InputNoise"]

_SHRINKAGE = 10.0  # rows of average spread by which the coefficients of the log variance are shrunk to zero
_FLOOR = 0.03  # of the variance, added to squared innovations, whose logarithm may be anything below
_FEWEST_ROWS = 100  # rows more than columns that are learned before the variance depends on the inputs
_LARGEST = 6.0  # the largest absolute log of a relative variance


@dataclass(frozen=True, eq=False)
class InputNoise:
    """A linear model of the log variance of the noise, given the inputs and the predicted mean.

    The variance of the noise of a row is noise_var * v(x) with log v(x) = (z - z_mean)' w and z = (x, mean). The
    regression of the log of the squared innovations on z gives w, shrunk slightly; its intercept is left to noise_var.
    The innovations are those of predictions made before the rows were learned. As the information of this regression
    adds, fades and merges like that of the rows, so does the model.

    Attributes
    ----------
    information : Information
        That of the rows z with the logs of the squared innovations as targets.
    """

    information: Information

    @classmethod
    def zero(cls, d: int) -> "InputNoise":
        """Return the model of no rows with d inputs: the relative variance is 1."""
        return cls(Information.zero(d + 1))

    @cached_property
    def _weights(self) -> Array | None:
        """w, shape (d + 1,); None before there are enough rows."""
        info = self.information
        if float(info.rows) < info.d + _FEWEST_ROWS:
            return None
        equations = info.centered()
        spread = np.linalg.norm(equations.R, axis=0) / float(info.rows) ** 0.5
        return equations.with_rows(np.diag(_SHRINKAGE**0.5 * spread)).solve()

    def relative_variance(self, X: Array, mean: Array) -> Array:
        """Return v(x) for rows of X with these predicted means, shape (n,)."""
        if self._weights is None:
            return np.ones(len(X))
        center, w = self.information.x_mean, self._weights
        log = (X - center[:-1]) @ w[:-1] + (mean - center[-1]) * w[-1]
        return np.exp(np.clip(log, -_LARGEST, _LARGEST))

    def after(self, X: Array, mean: Array, squares: Array, variance: Array, counts: Array | None) -> "InputNoise":
        """Return the model after more rows.

        Parameters
        ----------
        X : array of shape (b, d)
        mean, squares, variance : arrays of shape (b,)
            The predicted mean, the square of its error less the share that the leverage has in it, and the variance of
            the noise as predicted. Rows without a finite prediction are left out.
        counts : array of shape (b,), optional
            How often each row counts; 1 by default.
        """
        known = np.isfinite(mean) & np.isfinite(squares) & np.isfinite(variance) & (variance > 0)
        if not known.any():
            return self
        target = np.log(squares[known] + _FLOOR * variance[known])
        Z = np.column_stack([X[known], mean[known]])
        return InputNoise(self.information.fold(Z, target, None if counts is None else counts[known]))

    def forget(self, left: float) -> "InputNoise":
        """Return the model with the weights of all rows multiplied by `left`."""
        return replace(self, information=self.information.forget(left)) if float(self.information.rows) else self

    def merge(self, other: "InputNoise") -> "InputNoise":
        """Return the model of the rows of both."""
        return InputNoise(merge(self.information, other.information))

    @classmethod
    def restored(cls, d: int, saved: Saved) -> "InputNoise":
        """Return the model saved as "input_noise"; raise a ValueError if its shape does not fit."""
        info = saved.value(cls, "input_noise").information
        expect(info.T.shape == (d + 3, d + 3) and info.shift.shape == (d + 2,) and info.rows >= 0)
        return cls(replace(info, rows=info.rows[()], squares=info.squares[()]))
