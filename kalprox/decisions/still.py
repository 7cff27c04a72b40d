"""A fleet that forgets nothing: roots of covariances, updated row by row and computed afresh now and then."""

import math
from typing import ClassVar

import numpy as np
from scipy.linalg.blas import dger

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, expect
from kalprox.decisions.fleet import Fleet
from kalprox.linalg.triangle import append, qr, solve_triangular, triangular_inverse

__all__ = ["StillFleet"]

_WAITING = 64  # rows of an arm, or one per coefficient if these are more, after which its root is computed afresh


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

    _stacks: ClassVar[tuple[str, ...]] = (*Fleet._stacks, "roots", "objective", "waiting", "held")

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

    def restore(self, saved: Saved, name: str) -> "StillFleet":
        super().restore(saved, name)
        expect(np.isin(self.held, np.arange(self.waiting.shape[1] + 1)).all())
        return self
