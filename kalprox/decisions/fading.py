"""A fleet that forgets: with every row of an arm, or with the time that passes for all arms."""

import math
from typing import ClassVar

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, expect
from kalprox.decisions.fleet import Fleet
from kalprox.linalg.triangle import append, qr, solve_triangular, triangular_inverse

__all__ = ["FadingFleet"]

_FORGOTTEN = 1e-100  # what is left of weights below it counts as nothing
_LEAST_PIVOT = 0.01  # relative to its column: above it a Cholesky factor keeps the digits of the estimate


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
    half_life : float
        The time in which the weight of a row halves; infinite if it does not.

    Attributes
    ----------
    idle : array of shape (K,)
        The time since the triangle of each arm was last faded.
    newest : array of shape (K,)
        The time since the latest of the decisions whose rewards were learned of each arm.
    turn : array of shape (K, 2)
        How the residual sum of squares depends on the origin; see `Fleet._turn`.
    """

    _stacks: ClassVar[tuple[str, ...]] = (*Fleet._stacks, "idle", "newest", "turn")

    idle: Array
    newest: Array
    turn: Array

    def __init__(
        self,
        K: int,
        p: int,
        alpha: float,
        noise_var: float | None,
        pooling: float,
        *,
        forget: float,
        half_life: float,
    ) -> None:
        super().__init__(K, p, alpha, noise_var, pooling)
        self.forget, self.half_life = forget, half_life
        self._grams: list[Array | None] = [None] * K  # R'[R z] of each arm
        self._factors: list[Array | None] = [None] * K  # the Cholesky factor of the precision of each arm as it is now

    def _new(self, K: int) -> dict[str, Array]:
        return super()._new(K) | {"idle": np.zeros(K), "newest": np.zeros(K), "turn": np.zeros((K, 2))}

    def add(self) -> None:
        super().add()
        self._grams.append(None)
        self._factors.append(None)

    def remove(self, k: int) -> None:
        super().remove(k)
        del self._grams[k], self._factors[k]

    def pass_time(self, elapsed: float) -> None:
        if self.half_life < math.inf and elapsed > 0:
            self.idle += elapsed
            self.newest += elapsed
            self._factors = [None] * len(self)

    def _left(self, time: Array | float) -> Array:
        """Return the part of a weight that is left after this time."""
        left = np.exp2(-np.asarray(time) / self.half_life)
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
        self.idle[k], self._grams[k], self._factors[k] = 0.0, None, None
        if self.noise_var is None and self.rows[k] > 0:
            factor = 1 / max(float(self._left(self.newest[k])), _FORGOTTEN)
            U, theta, h = self._solve(k, factor)
            R, z = T[:p, :p], T[:p, p]
            self.rss[k] = float(((R @ theta - z) ** 2).sum() + T[p, p] ** 2)
            self.turn[k] = np.array([theta @ h, h[0] - self.alpha * (h @ h)]) * (self.alpha**2 / factor)
            self.edf[k] = p - self.alpha * float((triangular_inverse(U) ** 2).sum())

    def _factor(self, k: int) -> Array:
        """Return U with U'U = R'R + alpha for the rows of an arm as they are faded now, and set its estimate."""
        found = self._factors[k]
        if found is None:
            found, self.theta[k], self.h[k] = self._solve(k, float(self._left(self.idle[k])))
            self._factors[k] = found
        return found

    def _solve(self, k: int, factor: float) -> tuple[Array, Array, Array]:
        """Return U with U'U = R'R + alpha, theta and h for the rows of an arm with weights times a factor."""
        p, T = self.p, self.T[k]
        G = self._grams[k]
        if G is None:
            G = self._grams[k] = T[:p].T @ T[:p]  # R'[R z]
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

    def restore(self, saved: Saved, name: str) -> "FadingFleet":
        super().restore(saved, name)
        expect((self.idle >= 0).all() and (self.newest >= 0).all())
        return self
