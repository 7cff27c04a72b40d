"""The evidence of a ridge penalty as a function of its weight alpha, and the alpha of the largest, also row by row."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrs, dtrtri

from kalprox.base.arrays import Array
from kalprox.information import Equations
from kalprox.linalg.triangle import qr, svd
from kalprox.noise import ridge_evidence_slopes, ridge_log_evidence
from kalprox.solvers.moments import factor

__all__ = ["AlphaChoice", "EvidenceSearch", "RidgeEvidence"]

_MOST_STEPS = 60  # in which the largest evidence between two alphas of a grid is looked for; 4 to 6 are usual
_CONVERGED = 1e-9  # the step of log(alpha) after which Newton's method leaves about the square of it
_MOST_FOLLOWED = 8  # steps from the alpha of the rows before; one more row needs 1 or 2
_FARTHEST = 1.0  # the farthest that log(alpha) is followed in one search
_LAST_STEP = 1e-5  # the step of log(alpha) after which about the square of it is left


class AlphaChoice(NamedTuple):
    """The alpha that was chosen.

    `limit` is 0 or infinity if the smaller, or the larger, alpha is the better. `alone` is True if it is the only
    maximum of the evidence on the grid, and no prior was needed to find it.
    """

    alpha: float
    limit: float | None = None
    alone: bool = False


class RidgeEvidence:
    """The log evidence of each alpha, for each target.

    Parameters
    ----------
    equations : Equations
        Those of the coefficients, with the intercept minimised out.
    gamma : float or None
        The precision of the noise, if it is given.
    weight : float
        The sum of the weights of the rows.
    intercept : bool
        Whether there is an intercept.
    """

    def __init__(self, equations: Equations, gamma: float | None, weight: float, *, intercept: bool) -> None:
        self.equations, self.gamma, self.weight = equations, gamma, weight
        self.rows = float(equations.rows) - intercept * float(equations.fading)  # the intercept takes one

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        """The singular values s of R = U diag(s) V', and U'z of shape (m, k). O(m^2 d) for m <= d rows of R."""
        R, z, _ = self.equations.compact()
        m, d = R.shape
        if m == 0:
            return np.zeros(0), z.reshape(0, self.equations.targets or 1)
        U, s, _ = svd(R if m == d else qr(R.T)[0].T)
        return s, U.T @ z.reshape(m, -1)

    def of(self, alpha: Any, target: int) -> Array:
        """Return the log evidence of one or several alphas for one target, shape (1,) or (a, 1)."""
        return ridge_log_evidence(*self._arguments(alpha, target))

    def _arguments(self, alpha: Any, target: int) -> tuple[Any, ...]:
        """Return the arguments of `ridge_log_evidence`."""
        (s, z), j, eq = self._spectrum, slice(target, target + 1), self.equations
        return s, z[:, j], np.atleast_1d(eq.rss)[j], self.rows, alpha, self.gamma, float(eq.fading)

    def choice(self, grid: Array, scores: Array, target: int, *, few_rows: bool) -> AlphaChoice:
        """Return the alpha of the largest evidence, given that of a descending grid.

        With few rows, or if the evidence is largest in a limit, where all or nothing is noise, a weak prior multiplies
        it: see `_log_prior`.
        """
        i, ends = int(np.argmax(scores)), (0, len(grid) - 1)
        weak, limit = few_rows or i in ends, {0: np.inf, ends[1]: 0.0}.get(i)
        if weak:
            i = int(np.argmax(scores + self._log_prior(grid)))
        if i in ends:
            return AlphaChoice(float(grid[i]), limit)
        interval = math.log(grid[i + 1]), math.log(grid[i]), math.log(grid[i - 1])
        alone = not weak and bool((np.diff(scores[: i + 1]) > 0).all() and (np.diff(scores[i:]) < 0).all())

        def slopes(log_alpha: float) -> tuple[float, float]:
            alpha = math.exp(log_alpha)
            slope, bend = ridge_evidence_slopes(*self._arguments(alpha, target))
            own = self._log_prior_slopes(alpha) if weak else (0.0, 0.0)
            return slope + own[0], bend + own[1]

        return AlphaChoice(math.exp(_falling_root(slopes, *interval)), limit, alone)

    def _log_prior(self, alpha: Any) -> Any:
        """Return the log density of log(alpha) if the share of the variance of y that X explains is uniform in (0, 1).

        With the prior N(0, noise / alpha) of the coefficients, signal and noise have the ratio u = |R|^2 / (alpha sum
        w), and the share is u / (1 + u). It keeps alpha from 0 and infinity, where the evidence of few rows is flat.
        """
        u = self._signal(alpha)
        return np.log(u) - 2 * np.log1p(u)

    def _log_prior_slopes(self, alpha: float) -> tuple[float, float]:
        """Return the first two derivatives of `_log_prior` with respect to log(alpha)."""
        u = self._signal(alpha)
        return (u - 1) / (u + 1), -2 * u / (1 + u) ** 2

    def _signal(self, alpha: Any) -> Any:
        """Return the variance of the signal for the prior N(0, noise / alpha), in units of that of the noise."""
        return (self.equations.compact()[0] ** 2).sum() / (alpha * self.weight)


def _falling_root(slopes: Callable[[float], tuple[float, float]], low: float, start: float, high: float) -> float:
    """Return where a function that falls from above to below zero between two ends is zero, by Newton's method.

    `slopes` returns its value and its derivative. Steps that leave the interval of the root are halved intervals.
    """
    u = start
    for _ in range(_MOST_STEPS):
        value, derivative = slopes(u)
        low, high = (u, high) if value > 0 else (low, u)
        new = u - value / derivative if derivative < 0 else high
        new = new if low < new < high else (low + high) / 2
        if abs(new - u) <= _CONVERGED:
            return new
        u = new
    return u


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
        for _ in range(_MOST_FOLLOWED):
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
