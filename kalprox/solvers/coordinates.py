"""The active-set problem of L1, elastic net and box penalties, whose blocks are single coordinates.

Everything is computed by NumPy in float64, because the shapes of arrays depend on which coordinates are free.
"""

from typing import Any

import numpy as np

from kalprox.linalg.triangle import column_norms, qr
from kalprox.regularizers import Pieces
from kalprox.regularizers.base import per_coordinate
from kalprox.solvers.squares import free_step


class Coordinates:
    """1/2 ||X u - z||^2 + sum_j phi_j(u_j) in units where every column has norm 1: u = c theta.

    The methods are those of the protocol in `active_set`.
    """

    def __init__(self, R: np.ndarray, z: np.ndarray, pieces: Pieces, rows: Any = None) -> None:
        d, self.rows = R.shape[1], rows
        l1, l2, low, high = (per_coordinate(np.asarray(v, float), d, name) for name, v in pieces._asdict().items())
        if (l2 > 0).any():  # a quadratic penalty counts as more rows of data
            R, z = qr(np.concatenate([R, np.diag(l2**0.5)]), z)
        c = column_norms(R)
        self.live = c > 0
        self.c = np.where(self.live, c, 1)
        self.X = np.asfortranarray(R / self.c)
        self.z = z
        self.l1, self.low, self.high = l1 / self.c, low * self.c, high * self.c
        self.raw = Pieces(l1, l2, low, high)
        self.pieces = Pieces(self.l1, 0.0, self.low, self.high)
        self.size = np.linalg.norm(z)

    def scaled(self, theta: np.ndarray) -> np.ndarray:
        u = np.where(self.live, theta * self.c, 0)  # a coordinate without data gets the smallest value that g allows
        return np.clip(u, self.low, self.high)

    def unscaled(self, u: np.ndarray) -> np.ndarray:
        theta = np.clip(u / self.c, self.raw.low, self.raw.high)
        theta = np.where(u == self.low, self.raw.low, theta)  # bounds are met exactly
        return np.where(u == self.high, self.raw.high, theta)

    def free_blocks(self, u: np.ndarray) -> np.ndarray:
        free: np.ndarray = (u > self.low) & (u < self.high) & ((u != 0) | (self.l1 == 0))
        return free

    def unsure(self, u: np.ndarray) -> np.ndarray:
        return ~self.free_blocks(u)  # the exact solve itself stops free coordinates at their kinks

    def violation(self, u: np.ndarray) -> np.ndarray:
        descent = self.X.T @ (self.z - self.X @ u)
        left, right = self.pieces.slopes(u)
        size = np.where(self.live, self.size + np.linalg.norm(self.X @ u), 0) + self.l1
        violation: np.ndarray = np.maximum(np.maximum(left - descent, descent - right), 0) / np.where(size > 0, size, 1)
        return violation

    def sweep(self, u: np.ndarray, coordinates: np.ndarray) -> None:
        """Minimise over each of these coordinates in turn, in place. O(m) per coordinate."""
        r = self.z - self.X @ u
        for j in coordinates.tolist():
            column, l1, old = self.X[:, j], self.l1[j], u[j]
            v = old + column @ r
            new = min(max(v - min(max(v, -l1), l1), self.low[j]), self.high[j])
            if new != old:
                r -= (new - old) * column
                u[j] = new

    def solve_free(self, u: np.ndarray) -> np.ndarray:
        """Move to the minimiser over the free coordinates; a coordinate that reaches a kink or a bound stays there."""
        for _ in range(2 * len(u) + 10):
            F = np.flatnonzero(self.free_blocks(u) & self.live)
            if len(F) == 0:
                break
            X, r, slope = self.X[:, F], self.z - self.X @ u, self.l1[F] * np.sign(u[F])
            p, ray = free_step(X, np.zeros((0, len(F))), r, slope, self.rows)
            Xp = X @ p
            u, done = self._move(u, F, p, slope @ p - Xp @ r, 0.0 if ray else Xp @ Xp)
            if done:
                break
        return u

    def _move(self, u: np.ndarray, F: np.ndarray, p: np.ndarray, first: float, curve: float) -> tuple[np.ndarray, bool]:
        """Move the coordinates F to the exact minimum along p; also return whether no breakpoint was met.

        The derivative along p starts at `first` and grows at the rate `curve` between breakpoints. At a zero of
        coordinate j it jumps by 2 l1_j |p_j|, and at a bound it becomes infinite.
        """
        t, low, high, l1 = u[F], self.low[F], self.high[F], self.l1[F]
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = np.where((l1 > 0) & (t * p < 0), -t / p, np.inf)
            bound = np.where(p > 0, (high - t) / p, np.where(p < 0, (low - t) / p, np.inf))
        new, other = u.copy(), u.copy()
        if curve > 0 and min(zero.min(), bound.min()) > 1:
            new[F] = t + p
            return new, True
        at = np.concatenate([zero, bound])
        order = np.argsort(at, kind="stable")
        at, jump = at[order], np.concatenate([2 * l1 * np.abs(p), np.full(len(F), np.inf)])[order]
        base = first + np.concatenate([[0.0], np.cumsum(jump)[:-1]])
        with np.errstate(invalid="ignore"):
            before = base + at * curve
            stop = int(np.argmax((before >= 0) | (before + jump >= 0)))
        alpha = -base[stop] / curve if before[stop] > 0 and curve > 0 else at[stop]
        if not np.isfinite(alpha):  # the function is bounded below: a descent without end is rounding error
            return u, True
        moved = np.where(zero == alpha, 0.0, np.clip(t + alpha * p, low, high))
        new[F] = np.where(bound == alpha, np.where(p > 0, high, low), moved)
        if curve == 0:
            return new, False
        # Many coordinates may have to become zero at once: try the full step, each stopped at its own kink.
        other[F] = np.clip(np.where(zero <= 1, 0.0, t + p), low, high)
        return (other if self._value(other) < self._value(new) else new), False

    def _value(self, u: np.ndarray) -> float:
        r = self.z - self.X @ u
        return float(r @ r / 2 + self.l1 @ np.abs(u))
