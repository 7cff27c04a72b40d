"""A fleet of beliefs about coefficients, one for each arm, in stacked arrays."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import MODERATE, Saved, expect

__all__ = ["Fleet", "FleetNoise"]

_ROUNDING = float(np.finfo(float).eps) ** 0.5
_LEAST_DOF = 1.0  # tails heavier than Cauchy's would overflow


class FleetNoise(NamedTuple):
    """The noise variance of each arm and its degrees of freedom, arrays of shape (K,)."""

    variance: Array
    dof: Array


class Fleet(ABC):
    """K beliefs about coefficients theta_k of length p, with the prior N(m, sigma_k^2 / alpha) for each of them.

    In units of the noise variance sigma_k^2, rows of the arm k have the information [R z; 0 r], a triangle T_k with
    sum w (y - x'theta)^2 = ||R theta - z||^2 + r^2. The estimate is the minimiser of that plus alpha ||theta - m||^2.
    For m = 0 it is that of a `KalproxRegressor` with this alpha, no intercept of its own, and the rows of the arm. Only
    the first entry of m may differ from zero, c = `origin`: with theta and P = (R'R + alpha)^-1 of m = 0 and h = P e_0,
    the estimate is theta + c alpha h, in O(p), whatever c is when it is read.

    Parameters
    ----------
    K, p : int
        The number of arms, and of coefficients.
    alpha : float
    noise_var : float or None
        None if it is learned.
    pooling : float
        The number of rows for which the residuals of all other arms count, at most, in the noise variance of an arm.

    Attributes
    ----------
    T : array of shape (K, p + 1, p + 1)
        The triangles.
    theta : array of shape (K, p)
        The estimates for m = 0.
    h : array of shape (K, p)
        The first columns of the covariances in units of the noise variance.
    origin : float
        The prior mean of the first coefficient.
    least_noise : float
        The smallest noise variance, lest rounding errors decide between arms whose rewards have no noise.
    rows, squares : arrays of shape (K,)
        The sums of the weights, and of the squared weights, that forgetting has left of the rows.
    rss, edf : arrays of shape (K,)
        The residual sum of squares at `theta`, and the effective degrees of freedom of the fit.
    """

    _stacks: ClassVar[tuple[str, ...]] = ("T", "theta", "h", "rows", "squares", "rss", "edf")

    def __init__(self, K: int, p: int, alpha: float, noise_var: float | None, pooling: float) -> None:
        self.p, self.alpha, self.noise_var, self.pooling = p, alpha, noise_var, pooling
        self.origin = self.least_noise = 0.0
        for name, value in self._new(K).items():
            setattr(self, name, value)

    T: Array
    theta: Array
    h: Array
    rows: Array
    squares: Array
    rss: Array
    edf: Array

    def _new(self, K: int) -> dict[str, Array]:
        """Return the stacks of K arms without rows."""
        p, zeros = self.p, np.zeros(K)
        stacks = {"T": np.zeros((K, p + 1, p + 1)), "theta": np.zeros((K, p)), "h": np.eye(1, p).repeat(K, axis=0)}
        stacks["h"] /= self.alpha
        return stacks | {name: zeros.copy() for name in ("rows", "squares", "rss", "edf")}

    def __len__(self) -> int:
        return len(self.theta)

    # ---- arms ------------------------------------------------------------------------------------------

    def add(self) -> None:
        """Add an arm without rows, after the others."""
        for name, value in self._new(1).items():
            setattr(self, name, np.concatenate([getattr(self, name), value]))

    def remove(self, k: int) -> None:
        """Remove an arm, and what was learned of it."""
        for name in self._stacks:
            setattr(self, name, np.delete(getattr(self, name), k, axis=0))

    # ---- learning and reading --------------------------------------------------------------------------

    @abstractmethod
    def learn(self, k: int, X: Array, y: Array, ages: Array) -> None:
        """Learn rows of an arm in place.

        Parameters
        ----------
        k : int
            The number of the arm.
        X : array of shape (n, p)
        y : array of shape (n,)
        ages : array of shape (n,)
            How long ago the decision of each row was taken, in half-lives.
        """

    def pass_time(self, elapsed: float) -> None:  # noqa: B027  (nothing fades in a fleet that does not forget by time)
        """Let all arms fade by this time, in half-lives."""

    @abstractmethod
    def leverages(self, x: Array) -> Array:
        """Return the variance of x'theta_k for every arm in units of its noise variance, shape (K,)."""

    @abstractmethod
    def root(self, k: int, X: Array) -> Array:
        """Return a root of the covariance of X theta_k in units of the noise variance.

        Parameters
        ----------
        k : int
        X : array of shape (m, p)

        Returns
        -------
        array W of shape (m, q)
            W W' is the covariance.
        """

    def estimates(self) -> Array:
        """Return the estimates as they are now, shape (K, p)."""
        return self.theta + (self.origin * self.alpha) * self.h

    def _turn(self) -> tuple[Array, Array]:
        """Return a and b of shape (K,): the residual sum of squares is rss - 2 c a + c^2 b for the origin c.

        It is ||R (theta + c alpha h) - z||^2 + r^2, where R'(R theta - z) = -alpha theta and R'R h = e_0 - alpha h.
        """
        theta, h, alpha = self.theta, self.h, self.alpha
        a, b = np.einsum("kp,kp->k", theta, h), h[:, 0] - alpha * np.einsum("kp,kp->k", h, h)
        return alpha**2 * a, alpha**2 * b

    # ---- noise -----------------------------------------------------------------------------------------

    def noise(self) -> FleetNoise:
        """Return the noise variances, each learned from the residuals of the arm and, for a few rows, of the others.

        With the residual sum of squares S_k and the degrees of freedom n_k = rows - edf of an arm alone, as of
        `kalprox.noise.Noise.learned`, and the same sums S and n over all other arms, w = min(pooling, n) and

            sigma_k^2 = (S_k + w S / n) / (n_k + w)     with n_k + w degrees of freedom, at least 1.

        Without it, an arm whose few rewards were equal would be taken for one without noise, and never tried again. One
        arm alone has the noise of a regression. As long as nothing is known, the variance is 1: every arm is then as
        uncertain as any other, whatever it is.
        """
        K = len(self)
        if self.noise_var is not None:
            return FleetNoise(np.full(K, self.noise_var), np.full(K, np.inf))
        some = self.rows > 0
        fading = np.where(some, self.squares, 1.0) / np.where(some, self.rows, 1.0)
        rows = self.rows / fading
        dof = rows - self.edf
        dof = np.where(dof > _ROUNDING * rows, dof, 0.0)
        a, b = self._turn()
        rss = self.rss + self.origin * (self.origin * b - 2 * a)
        rss = np.where(dof > 0, np.maximum(rss, 0.0) / fading, 0.0)
        n, S = np.maximum(dof.sum() - dof, 0.0), np.maximum(rss.sum() - rss, 0.0)
        w = np.minimum(self.pooling, n)
        total = dof + w
        known = total > 0
        S = rss + S * (w / np.where(n > 0, n, 1.0))
        variance = np.where(known, S / np.where(known, total, 1.0), 1.0)
        return FleetNoise(np.maximum(variance, self.least_noise), np.maximum(total, _LEAST_DOF))

    # ---- saving ----------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """Return the state as values that can be saved; see `kalprox.base.tree`."""
        return {name: getattr(self, name) for name in self._stacks}

    def restore(self, saved: Saved, name: str) -> Self:
        """Set the state to what was saved under `name`; raise a ValueError if the arrays do not fit."""
        for part, value in self._new(len(self)).items():
            found = saved[f"{name}.{part}"]
            expect(found.shape == value.shape)
            expect(np.abs(found).max(initial=0.0) <= MODERATE)
            setattr(self, part, found)
        expect((self.rows >= 0).all() and (self.squares >= 0).all() and ((self.rows > 0) == (self.squares > 0)).all())
        return self
