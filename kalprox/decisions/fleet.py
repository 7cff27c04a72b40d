"""Fleets of beliefs about coefficients, one for each arm, in stacked arrays.

Roots of covariances are updated row by row if nothing is forgotten, and computed afresh now and then (`StillFleet`);
rows fade with every row of an arm, or with the time that passes for all arms (`FadingFleet`).
"""

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.linalg.blas import dger
from scipy.linalg.lapack import dpotrf, dpotrs

from kalprox.base.arrays import Array
from kalprox.base.tree import MODERATE, Saved, expect
from kalprox.linalg.triangle import append, qr, solve_triangular, triangular_inverse

_ROUNDING = float(np.finfo(float).eps) ** 0.5
_LEAST_DOF = 1.0  # tails heavier than Cauchy's would overflow
_WAITING = 64  # rows of an arm, or one per coefficient if these are more, after which its root is computed afresh
_FORGOTTEN = 1e-100  # what is left of weights below it counts as nothing
_LEAST_PIVOT = 0.01  # relative to its column: above it a Cholesky factor keeps the digits of the estimate


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
        for name in self._new(0):
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
        return {name: getattr(self, name) for name in self._new(0)}

    def restore(self, saved: Saved, name: str) -> Self:
        """Set the state to what was saved under `name`; raise a ValueError if the arrays do not fit."""
        for part, value in self._new(len(self)).items():
            found = saved[f"{name}.{part}"]
            expect(found.shape == value.shape)
            expect(np.abs(found).max(initial=0.0) <= MODERATE)
            setattr(self, part, found)
        self._check_restored()
        return self

    def _check_restored(self) -> None:
        """Raise a ValueError if this cannot be the state of a fleet."""
        expect((self.rows >= 0).all() and (self.squares >= 0).all() and ((self.rows > 0) == (self.squares > 0)).all())


class StillFleet(Fleet):
    """Beliefs of arms whose rows all count alike, however old they are.

    A row updates the estimate and a root L of the covariance in O(p^2), as `kalprox.learning.innovations` does. After
    b = max(64, p) rows of an arm, or with a longer batch, the rows are folded into its triangle, from which both are
    computed afresh, O(p^3): rounding errors do not grow with the stream. A reading of all K arms is one product,
    O(K p^2).

    Attributes
    ----------
    roots : array of shape (K, p, p)
        L_k' for every arm, where L_k L_k' is the covariance in units of the noise variance.
    objective : array of shape (K,)
        The minimum of ||R theta - z||^2 + r^2 + alpha ||theta||^2.
    waiting : array of shape (K, b, p + 1)
        The rows (x, y) since the last fold.
    held : array of shape (K,)
        How many they are.
    """

    roots: Array
    objective: Array
    waiting: Array
    held: Array

    def _new(self, K: int) -> dict[str, Array]:
        p = self.p
        roots = np.tile(np.eye(p) / math.sqrt(self.alpha), (K, 1, 1))
        more = {"roots": roots, "objective": np.zeros(K), "waiting": np.zeros((K, max(_WAITING, p), p + 1))}
        return super()._new(K) | more | {"held": np.zeros(K)}

    def learn(self, k: int, X: Array, y: Array, ages: Array) -> None:
        rows, held = np.column_stack([X, y]), int(self.held[k])
        self.rows[k] += len(rows)
        self.squares[k] += len(rows)
        if held + len(rows) > self.waiting.shape[1]:
            self._fold(k, np.concatenate([self.waiting[k, :held], rows]))
            return
        self.waiting[k, held : held + len(rows)] = rows
        self.held[k] += len(rows)
        for row in rows:
            self._move(k, row[:-1], float(row[-1]))

    def _move(self, k: int, x: Array, y: float) -> None:
        """Update the estimate and the root of an arm by a row; see `SquareRootFilter.move`."""
        theta, L = self.theta[k], self.roots[k].T  # in column-major order, so that it is updated in place
        v = self.roots[k].dot(x)
        s, e = 1 + float(v.dot(v)), y - float(x.dot(theta))
        gain = L.dot(v)
        theta += gain * (e / s)
        dger(-1 / (s + math.sqrt(s)), gain, v, a=L, overwrite_a=1)
        self.h[k] -= gain * (gain[0] / s)
        self.objective[k] += e * e / s
        self.edf[k] += self.alpha * float(gain.dot(gain)) / s  # p - alpha tr(L L')
        self.rss[k] = self.objective[k] - self.alpha * float(theta.dot(theta))

    def _fold(self, k: int, rows: Array) -> None:
        """Fold rows of an arm into its triangle, and compute everything afresh."""
        p, alpha = self.p, self.alpha
        T = self.T[k] = append(self.T[k], rows)
        R, z = T[:p, :p], T[:p, p]
        U, c = qr(np.concatenate([R, math.sqrt(alpha) * np.eye(p)]), z)
        theta = self.theta[k] = solve_triangular(U, c)
        root = triangular_inverse(U)
        self.roots[k], self.h[k] = root.T, root @ root[0]
        self.rss[k] = float(((R @ theta - z) ** 2).sum() + T[p, p] ** 2)
        self.objective[k] = self.rss[k] + alpha * float(theta @ theta)
        self.edf[k] = float(((R @ root) ** 2).sum())
        self.held[k] = 0
        self.waiting[k] = 0.0

    def leverages(self, x: Array) -> Array:
        v = (self.roots.reshape(-1, self.p) @ x).reshape(-1, self.p)
        return np.einsum("kp,kp->k", v, v)

    def root(self, k: int, X: Array) -> Array:
        return X @ self.roots[k].T

    def _check_restored(self) -> None:
        super()._check_restored()
        expect(np.isin(self.held, np.arange(self.waiting.shape[1] + 1)).all())


class FadingFleet(Fleet):
    """Beliefs of arms whose rows fade: by `forget` with every later row of the arm, and by half in every half-life.

    The prior does not fade. With the weights w that are left of the rows, c = sum w^2 / sum w and P = (R'R + alpha)^-1,
    the covariance in units of the noise variance is P (c R'R + alpha) P, as that of a regression that forgets: an arm
    that is not chosen returns to its prior. The noise variance of an arm is that at the time of its latest decision,
    since fading all rows of an arm alike does not change what their residuals say about it.

    A row costs O(p^2), and a reading O(p^3) for each arm that has changed: those with new rows, or all of them if time
    has passed.

    Parameters
    ----------
    forget : float
        What the weight of a row is multiplied by with every later row of its arm, in (0, 1].

    Attributes
    ----------
    idle : array of shape (K,)
        The time since the triangle of each arm was last faded, in half-lives.
    newest : array of shape (K,)
        The time since the latest of the decisions whose rewards were learned of each arm, in half-lives.
    turn : array of shape (K, 2)
        How the residual sum of squares depends on the origin; see `Fleet._turn`.
    """

    idle: Array
    newest: Array
    turn: Array

    def __init__(self, K: int, p: int, alpha: float, noise_var: float | None, pooling: float, *, forget: float) -> None:
        super().__init__(K, p, alpha, noise_var, pooling)
        self.forget = forget
        self._grams: dict[int, Array] = {}  # R'[R z] of arms
        self._factors: dict[int, Array] = {}  # the Cholesky factors of the precisions of arms as they are now

    def _new(self, K: int) -> dict[str, Array]:
        return super()._new(K) | {"idle": np.zeros(K), "newest": np.zeros(K), "turn": np.zeros((K, 2))}

    def remove(self, k: int) -> None:
        super().remove(k)
        self._grams.clear()
        self._factors.clear()

    def pass_time(self, elapsed: float) -> None:
        if elapsed > 0:
            self.idle += elapsed
            self.newest += elapsed
            self._factors.clear()

    def _left(self, time: Array | float) -> Array:
        """Return the part of a weight that is left after this time, in half-lives."""
        left = np.exp2(-np.asarray(time))
        return np.where(left < _FORGOTTEN, 0.0, left)

    def learn(self, k: int, X: Array, y: Array, ages: Array) -> None:
        n, p = len(X), self.p
        weights = self._left(ages) * self.forget ** np.arange(n - 1.0, -1, -1)
        left = float(self._left(self.idle[k])) * self.forget**n
        left = 0.0 if left * self.rows[k] < _FORGOTTEN else left
        rows = np.column_stack([X, y]) * np.sqrt(weights)[:, None]
        T = self.T[k] = append(self.T[k] * math.sqrt(left), rows)
        self.newest[k] = min(self.newest[k], ages.min()) if self.rows[k] > 0 else ages.min()
        self.rows[k] = left * self.rows[k] + weights.sum()
        self.squares[k] = left**2 * self.squares[k] + (weights**2).sum()
        self.idle[k] = 0.0
        self._grams.pop(k, None)
        self._factors.pop(k, None)
        if self.noise_var is None and self.rows[k] > 0:
            factor = 1 / max(float(self._left(self.newest[k])), _FORGOTTEN)
            U, theta, h = self._solve(k, factor)
            R, z = T[:p, :p], T[:p, p]
            self.rss[k] = float(((R @ theta - z) ** 2).sum() + T[p, p] ** 2)
            self.turn[k] = np.array([theta @ h, h[0] - self.alpha * (h @ h)]) * (self.alpha**2 / factor)
            self.edf[k] = p - self.alpha * float((triangular_inverse(U) ** 2).sum())

    def _factor(self, k: int) -> Array:
        """Return U with U'U = R'R + alpha for the rows of an arm as they are faded now, and set its estimate."""
        if k not in self._factors:
            self._factors[k], self.theta[k], self.h[k] = self._solve(k, float(self._left(self.idle[k])))
        return self._factors[k]

    def _solve(self, k: int, factor: float) -> tuple[Array, Array, Array]:
        """Return U with U'U = R'R + alpha, theta and h for the rows of an arm with weights times a factor."""
        p, T = self.p, self.T[k]
        if k not in self._grams:
            self._grams[k] = T[:p].T @ T[:p]
        G = self._grams[k]
        A = np.asfortranarray(factor * G[:p, :p])
        A.flat[:: p + 1] += self.alpha
        least = _LEAST_PIVOT**2 * A.diagonal()
        U, failed = dpotrf(A, lower=0, clean=1)
        first = np.eye(p, 1)[:, 0]
        if not failed and (U.diagonal() ** 2 >= least).all():
            found = dpotrs(U, np.column_stack([factor * G[:p, p], first]), lower=0)[0]
            return U, found[:, 0], found[:, 1]
        scale = math.sqrt(factor)
        U, c = qr(np.concatenate([scale * T[:p, :p], math.sqrt(self.alpha) * np.eye(p)]), scale * T[:p, p])
        return U, solve_triangular(U, c), dpotrs(U, first, lower=0)[0]

    def estimates(self) -> Array:
        for k in range(len(self)):
            self._factor(k)
        return super().estimates()

    def _turn(self) -> tuple[Array, Array]:
        return self.turn[:, 0], self.turn[:, 1]

    def leverages(self, x: Array) -> Array:
        return np.array([(self.root(k, x[None]) ** 2).sum() for k in range(len(self))])

    def root(self, k: int, X: Array) -> Array:
        U = self._factor(k)
        H = solve_triangular(U, X.T, transposed=True)  # U^-T X', so that X P = (U^-1 H)'
        c = float(self._left(self.idle[k]) * self.squares[k] / self.rows[k]) if self.rows[k] > 0 else 1.0
        if c == 1:
            return H.T
        moved = solve_triangular(U, H)
        return np.concatenate([math.sqrt(c) * H, math.sqrt((1 - c) * self.alpha) * moved]).T

    def _check_restored(self) -> None:
        super()._check_restored()
        expect((self.idle >= 0).all() and (self.newest >= 0).all())
