"""Single rows: each updates the estimate in O(d^2), and is buffered until the buffer is folded."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.blas import dger

from kalprox._arrays import Array
from kalprox.learning.exact import ExactBelief
from kalprox.learning.saved import expect
from kalprox.predictive import Student

__all__ = ["PotterUpdate", "RowBuffer"]

_ROUNDING = float(np.finfo(float).eps) ** 0.5


@dataclass
class PotterUpdate:
    """An estimate and a square root of its covariance, updated in O(d^2) per row.

    The coordinates are those of a design, [1 | x - center] or x. Rounding errors accumulate, so that the update is
    recomputed from the information after each fold.

    Attributes
    ----------
    theta : array of shape (p,)
        The estimate.
    L : array of shape (p, p)
        L L' is the covariance of theta in units of the noise variance.

    References
    ----------
    J. E. Potter's square-root update, in P. S. Maybeck, "Stochastic Models, Estimation, and Control", vol. 1, 1979.
    """

    theta: Array
    L: Array  # in column-major order, for BLAS
    center: Array | None  # shape (d,); None without an intercept
    center_rest: Array | None  # shape (d,); see `Design`
    offset: float  # added to predictions
    offset_rest: float
    row: Array  # shape (p,), working memory
    rows: float
    objective: float  # rss + alpha |coef|^2 at theta
    trace: float  # of L L', without the intercept
    alpha: float  # the weight of the ridge penalty; 0 without a penalty
    noise_var: float | None  # None if it is learned

    @classmethod
    def of(cls, belief: ExactBelief) -> "PotterUpdate | None":
        """Return the update of a belief; None if the belief has no O(d^2) update."""
        info, settings = belief.information, belief.settings
        penalty = settings.penalty
        if info.targets is not None or settings.standardize or settings.forget != 1 or not float(info.rows) > 0:
            return None
        if penalty.alpha == "auto" or penalty.kind not in (None, "ridge") or not belief.posterior.proper:
            return None
        posterior, design = belief.posterior, belief.design
        first, alpha = design.first, float(penalty.alpha) if penalty.has_weight else 0.0
        theta, L = np.array(posterior.mean), np.array(posterior.factor.L, order="F")
        coef = theta[first:]
        return cls(
            theta,
            L,
            design.center if first else None,
            design.center_rest,
            float(design.offset),
            float(design.offset_rest),
            np.ones(len(theta)),
            float(info.rows),
            float(posterior.rss + alpha * coef.dot(coef)),
            float((L[first:] ** 2).sum()),
            alpha,
            settings.noise_var,
        )

    def _input(self, x: Array) -> Array:
        if self.center is None:
            return x
        np.subtract(x, self.center, out=self.row[1:])
        if self.center_rest is not None:
            self.row[1:] -= self.center_rest
        return self.row

    def _inputs(self, X: Array) -> Array:
        if self.center is None:
            return X
        rows = X - self.center
        return np.column_stack([np.ones(len(X)), rows if self.center_rest is None else rows - self.center_rest])

    def move(self, x: Array, y: float) -> tuple[float, float]:
        """Update the estimate in place by a row x of shape (d,) with target y.

        With v = L'x, e = y - x'theta and s = 1 + v'v, theta becomes theta + L v e / s, and L becomes
        L - L v v' / (s + sqrt(s)), a root of L L' - L v v' L' / s. The objective increases by e^2 / s, and the trace of
        L L' decreases by |L v|^2 / s.

        Returns the prediction of y before the update: its mean x'theta, and its variance s in units of the noise
        variance.
        """
        theta, L = self.theta, self.L
        x = self._input(x)
        v = x.dot(L)
        f, s = float(x.dot(theta)) + self.offset_rest, 1 + float(v.dot(v))
        e = (y - self.offset) - f  # the digits of y about the offset
        gain = L.dot(v)
        fall = float(gain.dot(gain))
        if self.center is not None:
            fall -= float(gain[0]) ** 2
        self.objective += e * e / s
        self.trace -= fall / s
        self.rows += 1
        theta += gain * (e / s)
        dger(-1 / (s + math.sqrt(s)), gain, v, a=L, overwrite_a=1)
        return f + self.offset, s

    def mean(self, X: Array) -> Array:
        """Return the predictive means for rows of X, shape (n,)."""
        if len(X) == 1:
            return np.array([(float(self._input(X[0]).dot(self.theta)) + self.offset_rest) + self.offset])
        return (self._inputs(X) @ self.theta + self.offset_rest) + self.offset

    def predict(self, X: Array) -> Student:
        """Return the predictive distribution for rows of X, including the noise."""
        variance, dof = self.noise()
        if len(X) == 1:
            x = self._input(X[0])
            v = x.dot(self.L)
            mean = (float(x.dot(self.theta)) + self.offset_rest) + self.offset
            return Student(np.array([mean]), np.array([math.sqrt(variance * (1 + float(v.dot(v))))]), dof)
        root = self._inputs(X) @ self.L
        return Student(self.mean(X), np.sqrt(variance * (1 + np.einsum("ij,ij->i", root, root))), dof)

    def noise(self) -> tuple[float, float]:
        """Return the noise variance and its degrees of freedom, equal to those of the information up to rounding.

        The variance is rss / dof with rss = objective - alpha |coef|^2 and dof = rows - p + alpha trace.
        """
        if self.noise_var is not None:
            return self.noise_var, math.inf
        rss, dof = self.objective, self.rows - len(self.L) + self.alpha * self.trace
        if self.alpha:
            square = float(self.theta.dot(self.theta))
            rss -= self.alpha * (square if self.center is None else square - float(self.theta[0]) ** 2)
        enough = dof > _ROUNDING * self.rows  # as in Noise.learned
        return max(rss, 0.0) / dof if enough else math.nan, dof


class RowBuffer:
    """A buffer of the rows of short batches and their predictions, until they are folded together.

    Attributes
    ----------
    n : int
        The number of rows.
    columns : list of arrays
        X of shape (capacity, d); y, mean, std, dof of shape (capacity,) or (capacity, k); together of shape
        (capacity,), the number of rows that were predicted jointly with each row, 0 if it was not predicted.
    """

    NAMES = ("X", "y", "mean", "std", "dof", "together")

    def __init__(self, d: int, targets: int | None) -> None:
        of_y = (0,) if targets is None else (0, targets)
        self.n = 0
        self.columns = [np.empty(shape) for shape in ((0, d), of_y, of_y, of_y, of_y, (0,))]

    @classmethod
    def of(cls, d: int, targets: int | None, columns: list[Array]) -> "RowBuffer":
        """Return a buffer of saved rows; raise a ValueError if the shapes of the columns do not fit."""
        buffer, n = cls(d, targets), len(columns[0])
        for column, empty in zip(columns, buffer.columns, strict=True):
            expect(column.shape == (n, *empty.shape[1:]))
        buffer.n, buffer.columns = n, list(columns)
        return buffer

    def __len__(self) -> int:
        return self.n

    def fits(self, X: Array, y: Array) -> bool:
        """Whether these rows have the shapes of the buffered rows."""
        return X.shape[1:] == self.columns[0].shape[1:] and y.shape[1:] == self.columns[1].shape[1:]

    def append(self, *rows: Any) -> None:
        """Append rows, given as X, y, mean, std, dof, together. Amortised O(rows)."""
        begin, end = self.n, self.n + len(rows[0])
        if end > len(self.columns[0]):
            self.columns = [np.concatenate([a[:begin], np.empty((end, *a.shape[1:]))]) for a in self.columns]
        for a, new in zip(self.columns, rows, strict=True):
            a[begin:end] = new
        self.n = end

    @property
    def rows(self) -> tuple[Array, ...]:
        """X, y, mean, std, dof, together of the buffered rows."""
        return tuple(a[: self.n] for a in self.columns)

    def copy(self) -> "RowBuffer":
        new = object.__new__(RowBuffer)
        new.n, new.columns = self.n, [a[: self.n].copy() for a in self.columns]
        return new
