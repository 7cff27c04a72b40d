"""Rows that come one at a time: an estimate and a root of its covariance, moved by Potter's update in O(d^2)."""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg.blas import dger

from kalprox._arrays import Array
from kalprox.information import Information

__all__ = ["Live"]

_ROUNDING = float(np.finfo(float).eps) ** 0.5


@dataclass
class Live:
    """theta (p,) and L (p, p), L L' the covariance in units of the noise, of [1 | x - center] or x; one target.

    Good between two folds of the information, from which it is made anew: rounding adds up here. It is moved in place,
    which is why a belief hands its own on to the next one.
    """

    theta: Array
    L: Array  # column by column, as BLAS wants it
    center: Array | None  # (d,); None without an intercept
    row: Array  # (p,), scratch
    rows: float
    objective: float  # rss + alpha |coef|^2 at theta
    trace: float  # of L L', the intercept left out
    alpha: float  # of ridge; 0 without a penalty
    noise_var: float | None  # None: learned

    @classmethod
    def without_intercept(
        cls, theta: Array, L: Array, info: Information, rss: float, alpha: float, noise_var: float | None
    ) -> "Live":
        objective, trace = float(rss + alpha * theta.dot(theta)), float((L**2).sum())
        root = np.array(L, order="F")
        return cls(theta.copy(), root, None, np.empty(0), float(info.rows), objective, trace, alpha, noise_var)

    @classmethod
    def with_intercept(
        cls, theta: Array, L: Array, info: Information, rss: float, alpha: float, noise_var: float | None
    ) -> "Live":
        """From the centred reading, in which the mean of y and the coefficients are independent."""
        live = cls.without_intercept(theta, L, info, rss, alpha, noise_var)
        root = np.zeros((len(L) + 1, len(L) + 1), order="F")
        root[0, 0], root[1:, 1:] = live.rows**-0.5, L
        return replace(live, theta=np.append(info.y_mean, theta), L=root, center=info.x_mean, row=np.ones(len(root)))

    def _input(self, x: Array) -> Array:
        if self.center is None:
            return x
        np.subtract(x, self.center, out=self.row[1:])
        return self.row

    def move(self, x: Array, y: float) -> tuple[float, float]:
        """By a row x (d,) with its target: for v = L'x, e = y - x'theta and s = 1 + v'v,

        theta + L v e / s   and   L - L v v' / (s + sqrt(s)), a root of L L' - L v v' L' / s. The objective grows by
        e^2 / s, and the trace of L L' falls by |L v|^2 / s. What was predicted of y: x'theta, and s.
        """
        theta, L = self.theta, self.L
        x = self._input(x)
        v = x.dot(L)
        mean, s = float(x.dot(theta)), 1 + float(v.dot(v))
        e = y - mean
        gain = L.dot(v)
        fall = float(gain.dot(gain))
        if self.center is not None:
            fall -= float(gain[0]) ** 2
        self.objective += e * e / s
        self.trace -= fall / s
        self.rows += 1
        theta += gain * (e / s)
        dger(-1 / (s + math.sqrt(s)), gain, v, a=L, overwrite_a=1)
        return mean, s

    def predict(self, x: Array) -> float:
        return float(self._input(x).dot(self.theta))

    def predict_with_scale(self, x: Array) -> tuple[float, float]:
        """The mean, and the variance of a new observation in units of the noise."""
        x = self._input(x)
        v = x.dot(self.L)
        return float(x.dot(self.theta)), 1 + float(v.dot(v))

    def predict_with_std(self, x: Array) -> tuple[Array, Array]:
        """Mean and std of a new observation, (1,) each."""
        mean, s = self.predict_with_scale(x)
        return np.array([mean]), np.array([math.sqrt(self.noise()[0] * s)])

    def noise(self) -> tuple[float, float]:
        """Variance and degrees of freedom, as the information would say: rss = objective - alpha |coef|^2, over
        rows - p + alpha trace."""
        if self.noise_var is not None:
            return self.noise_var, math.inf
        rss, dof = self.objective, self.rows - len(self.L) + self.alpha * self.trace
        if self.alpha:
            square = float(self.theta.dot(self.theta))
            rss -= self.alpha * (square if self.center is None else square - float(self.theta[0]) ** 2)
        enough = dof > _ROUNDING * self.rows  # as in Noise.learned
        return max(rss, 0.0) / dof if enough else math.nan, dof
