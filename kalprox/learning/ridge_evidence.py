"""The evidence of a ridge penalty as a function of its weight alpha, and the alpha of the largest."""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.information import Equations
from kalprox.linalg.triangle import qr, svd
from kalprox.noise import ridge_evidence_slopes, ridge_log_evidence

__all__ = ["AlphaChoice", "RidgeEvidence"]

_MOST_STEPS = 60  # in which the largest evidence between two alphas of a grid is looked for; 4 to 6 are usual
_CONVERGED = 1e-9  # the step of log(alpha) after which Newton's method leaves about the square of it


class AlphaChoice(NamedTuple):
    """The alpha that was chosen.

    `limit` is 0 or infinity if the smaller, or the larger, alpha is the better.
    """

    alpha: float
    limit: float | None = None


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

        def slopes(log_alpha: float) -> tuple[float, float]:
            alpha = math.exp(log_alpha)
            slope, bend = ridge_evidence_slopes(*self._arguments(alpha, target))
            own = self._log_prior_slopes(alpha) if weak else (0.0, 0.0)
            return slope + own[0], bend + own[1]

        return AlphaChoice(math.exp(_falling_root(slopes, *interval)), limit)

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
