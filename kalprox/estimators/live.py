"""Rows that come one at a time: an estimate and a root of its covariance, moved by Potter's update in O(d^2)."""

from dataclasses import dataclass

import numpy as np

from kalprox._arrays import Array

__all__ = ["Live"]


@dataclass(frozen=True)
class Live:
    """theta (p, k) and L (p, p), L L' the covariance in units of the noise, of [1 | x - center] or x.

    Good between two folds of the information, from which it is made anew: rounding adds up here.
    """

    theta: Array
    L: Array
    center: Array | None  # (d,); None without an intercept

    @classmethod
    def of(cls, theta: Array, L: Array, x_mean: Array, y_mean: Array, rows: float, intercept: bool) -> "Live":
        """From the centred reading: the mean of y and the coefficients are independent."""
        if not intercept:
            return cls(theta, L, None)
        root = np.zeros((len(L) + 1, len(L) + 1))
        root[0, 0], root[1:, 1:] = rows**-0.5, L
        return cls(np.vstack([np.reshape(y_mean, (1, -1)), theta]), root, x_mean)

    def _rows(self, X: Array) -> Array:
        if self.center is None:
            return X
        rows = np.empty((len(X), X.shape[1] + 1))
        rows[:, 0] = 1
        np.subtract(X, self.center, out=rows[:, 1:])
        return rows

    def moved(self, X: Array, Y: Array) -> "Live":
        """After the rows X (b, d) with targets Y (b, k): for v = L'x and s = 1 + v'v,

        theta + L v (y - x'theta) / s   and   L - L v v' / (s + sqrt(s)), a root of L L' - L v v' L' / s.
        """
        theta, L = self.theta, self.L
        for x, y in zip(self._rows(X), Y, strict=True):
            v = x @ L
            s = 1 + v @ v
            gain = L @ v
            theta = theta + gain[:, None] * ((y - x @ theta) / s)
            L = L - gain[:, None] * (v / (s + s**0.5))
        return Live(theta, L, self.center)

    def predict(self, X: Array) -> Array:
        """(b, k)."""
        return self._rows(X) @ self.theta
