"""The ridge penalty of the largest evidence, followed from row to row."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrs, dtrtri

from kalprox.base.arrays import Array
from kalprox.solvers.moments import factor

__all__ = ["EvidenceSearch"]

_MOST_STEPS = 8  # of Newton's method; one more row needs 1 or 2
_FARTHEST = 1.0  # the farthest that log(alpha) is followed in one search
_LAST_STEP = 1e-5  # the step of log(alpha) after which about the square of it is left


@dataclass
class EvidenceSearch:
    """Newton's method for the log(alpha) of the largest evidence, which starts from the alpha that was found before.

    With u = log(alpha), V = (A + alpha I)^-1, t = V b and S = (yy - b't) / fading, the log evidence has the slope
    1/2 (d - alpha tr V) - rows/2 alpha t't / (fading S) in u; see `kalprox.noise.ridge_log_evidence`. One row costs
    one or two factorisations of A + alpha I; the evidence of a whole grid needs a singular value decomposition.

    Attributes
    ----------
    alpha : float
        The alpha that was found last.
    gamma : float or None
        The noise precision, if it is given.
    """

    alpha: float
    gamma: float | None

    def find(self, A: Array, b: Array, yy: float, rows: float, fading: float) -> float | None:
        """Return the alpha of the maximum for the moments A, b and yy.

        `rows` are the effective rows without one for the intercept. None if the maximum is far away, or if A + alpha I
        does not keep the digits.
        """
        u = begin = math.log(self.alpha)
        for _ in range(_MOST_STEPS):
            alpha = math.exp(u)
            U = factor(np.array(A, order="F"), alpha)
            if U is None:
                return None
            theta = dpotrs(U, b, lower=0)[0]
            moved = dpotrs(U, theta, lower=0)[0]
            S = (yy - float(b.dot(theta))) / fading
            with np.errstate(all="ignore"):  # numbers that overflow are not followed
                slope, curvature = self._derivatives(U, theta, moved, alpha, S, rows, fading)
            step = -slope / curvature if curvature < 0 else math.inf
            u += step
            if not abs(u - begin) <= _FARTHEST:
                return None
            if abs(step) <= _LAST_STEP:
                self.alpha = math.exp(u)
                return self.alpha
        return None

    def _derivatives(
        self, U: Array, theta: Array, moved: Array, alpha: float, S: float, rows: float, fading: float
    ) -> tuple[float, float]:
        """Return twice the first and twice the second derivative of the log evidence with respect to log(alpha)."""
        V = dsyrk(1.0, dtrtri(U, lower=0)[0])  # the upper triangle
        diagonal = V.diagonal()
        trace, of_square = float(diagonal.sum()), 2 * float(np.vdot(V, V)) - float(diagonal.dot(diagonal))
        size, inner = alpha * float(theta.dot(theta)) / fading, alpha**2 * float(theta.dot(moved)) / fading
        weight, bend = (rows / S, size**2 / S) if self.gamma is None else (self.gamma, 0.0)
        slope = len(theta) - alpha * trace - weight * size
        return slope, alpha**2 * of_square - alpha * trace - weight * (size - 2 * inner - bend)
