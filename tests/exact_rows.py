"""Least squares in exact arithmetic: what the rows say, without any rounding."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np


class Exact(NamedTuple):
    theta: list[Fraction]  # the intercept first
    inverse: list[list[Fraction]]  # of the weighted Gram matrix of [1 | X]
    rss: Fraction
    rows: Fraction

    @property
    def coef(self):
        return np.array([float(t) for t in self.theta[1:]])

    @property
    def coef_root(self):
        """The standard errors in units of the noise."""
        return np.sqrt([float(self.inverse[i][i]) for i in range(1, len(self.theta))])

    def predict(self, x):
        """The mean and the standard deviation of a new observation at x."""
        row = [Fraction(1), *(Fraction(float(v)) for v in x)]
        mean = sum(a * b for a, b in zip(row, self.theta, strict=True))
        leverage = sum(row[i] * row[j] * self.inverse[i][j] for i in range(len(row)) for j in range(len(row)))
        variance = self.rss / (self.rows - len(self.theta))
        return float(mean), float(variance * (1 + leverage)) ** 0.5


def exact(X, y, weights=None):
    """The weighted regression of y on X with an intercept."""
    w = [Fraction(1)] * len(y) if weights is None else [Fraction(float(v)) for v in weights]
    rows = [[Fraction(1), *(Fraction(float(v)) for v in (*x, t))] for x, t in zip(X, y, strict=True)]
    p = X.shape[1] + 1
    G = [[sum(a * r[i] * r[j] for a, r in zip(w, rows, strict=True)) for j in range(p + 1)] for i in range(p + 1)]
    M = [[*G[i][:p], *(Fraction(int(i == j)) for j in range(p)), G[i][p]] for i in range(p)]
    for i in range(p):  # Gauss-Jordan; G is positive definite
        M[i] = [v / M[i][i] for v in M[i]]
        for k in range(p):
            if k != i:
                M[k] = [a - M[k][i] * b for a, b in zip(M[k], M[i], strict=True)]
    theta = [row[-1] for row in M]
    rss = G[p][p] - sum(theta[i] * G[i][p] for i in range(p))
    return Exact(theta, [row[p : 2 * p] for row in M], rss, sum(w))
