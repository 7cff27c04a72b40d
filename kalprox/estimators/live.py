"""Rows that come one at a time: an estimate and a root of its covariance, moved by Potter's update in O(d^2)."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dger

from kalprox._arrays import Array

__all__ = ["Live"]


@dataclass(frozen=True)
class Live:
    """theta (p, k) and L (p, p), L L' the covariance in units of the noise, of [1 | x - center] or x.

    Good between two folds of the information, from which it is made anew: rounding adds up here. It is moved in place,
    which is why a belief hands its own on to the next one.
    """

    theta: Array
    L: Array  # column by column, as BLAS wants it
    center: Array | None  # (d,); None without an intercept
    row: Array  # (p,), scratch

    @classmethod
    def of(cls, theta: Array, L: Array, x_mean: Array, y_mean: Array, rows: float, intercept: bool) -> "Live":
        """From the centred reading: the mean of y and the coefficients are independent."""
        if not intercept:
            return cls(theta.copy(), np.array(L, order="F"), None, np.empty(0))
        root = np.zeros((len(L) + 1, len(L) + 1), order="F")
        root[0, 0], root[1:, 1:] = rows**-0.5, L
        return cls(np.vstack([np.reshape(y_mean, (1, -1)), theta]), root, x_mean, np.ones(len(root)))

    def _input(self, x: Array) -> Array:
        if self.center is None:
            return x
        np.subtract(x, self.center, out=self.row[1:])
        return self.row

    def move(self, X: Array, Y: Array) -> None:
        """By the rows X (b, d) with targets Y (b, k): for v = L'x and s = 1 + v'v,

        theta + L v (y - x'theta) / s   and   L - L v v' / (s + sqrt(s)), a root of L L' - L v v' L' / s.
        """
        theta, L = self.theta, self.L
        for x, y in zip(X, Y, strict=True):
            x = self._input(x)
            v = x.dot(L)
            s = 1 + float(v.dot(v))
            gain = L.dot(v)
            theta += gain[:, None] * ((y - x.dot(theta)) / s)
            dger(-1 / (s + s**0.5), gain, v, a=L, overwrite_a=1)

    def predict(self, X: Array) -> Array:
        """(b, k)."""
        return np.array([self._input(x).dot(self.theta) for x in X])
