"""The active-set problem of group L1 penalties, whose blocks are groups of coordinates.

Everything is computed by NumPy in float64, because the shapes of arrays depend on which coordinates are free.
"""

from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.linalg.triangle import column_norms, rounding
from kalprox.solvers.newton import search
from kalprox.solvers.squares import free_step


class Groups:
    """1/2 ||X u - z||^2 + sum_b w_b ||u_b|| in units where the columns of every group have norm 1 together.

    A coordinate without a penalty is a group of its own, of weight 0. Methods with an argument `eps` replace every norm
    by sqrt(||u_b||^2 + eps^2), which has no kink. The public methods are those of the protocol in `active_set`.
    """

    def __init__(self, R: np.ndarray, z: np.ndarray, labels: np.ndarray, weights: np.ndarray, rows: Any = None) -> None:
        d, self.rows = R.shape[1], rows
        used = np.flatnonzero((weights > 0) & (np.bincount(labels[labels >= 0], minlength=len(weights)) > 0))
        alone = np.flatnonzero(~np.isin(labels, used))
        self.blocks = [np.flatnonzero(labels == label) for label in used] + [np.array([j]) for j in alone]
        self.block_of = np.empty(d, int)
        for b, block in enumerate(self.blocks):
            self.block_of[block] = b
        norms = column_norms(R)
        sizes = np.array([column_norms(norms[block]) for block in self.blocks])
        self.live = sizes > 0
        sizes = np.where(self.live, sizes, 1)
        self.c = sizes[self.block_of]
        self.w = np.append(weights[used], np.zeros(len(alone))) / sizes
        self.X = np.asfortranarray(R / self.c)
        self.z, self.size = z, np.linalg.norm(z)
        self.rounds = 0
        self.eigen: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def scaled(self, theta: np.ndarray) -> np.ndarray:
        return np.where(self.live[self.block_of], theta * self.c, 0)

    def unscaled(self, u: np.ndarray) -> np.ndarray:
        theta: np.ndarray = u / self.c
        return theta

    def _norms(self, u: np.ndarray, eps: float = 0.0) -> np.ndarray:
        return np.hypot(np.sqrt(np.bincount(self.block_of, u**2, len(self.blocks))), eps)

    def _slope(self, u: np.ndarray, eps: float = 0.0) -> np.ndarray:
        norms = self._norms(u, eps)
        slope: np.ndarray = u * (self.w / np.where(norms > 0, norms, 1))[self.block_of]
        return slope

    def _value(self, u: np.ndarray, eps: float = 0.0) -> float:
        r = self.z - self.X @ u
        return float(r @ r / 2 + self.w @ self._norms(u, eps))

    def free_blocks(self, u: np.ndarray) -> np.ndarray:
        free: np.ndarray = (self._norms(u) > 0) | (self.w == 0)
        return free

    def unsure(self, u: np.ndarray) -> np.ndarray:
        return np.ones(len(self.blocks), bool)  # a Newton step never makes a free group exactly zero

    def violation(self, u: np.ndarray) -> np.ndarray:
        descent = self.X.T @ (self.z - self.X @ u)
        away = self._norms(descent - self._slope(u))
        away = np.where(self.free_blocks(u), away, np.maximum(away - self.w, 0))
        size = np.where(self.live, self.size + np.linalg.norm(self.X @ u), 0) + self.w
        return away / np.where(size > 0, size, 1)

    def sweep(self, u: np.ndarray, blocks: np.ndarray) -> None:
        """Minimise over each of these groups in turn, in place."""
        r = self.z - self.X @ u
        for b in blocks.tolist():
            block = self.blocks[b]
            X, old = self.X[:, block], u[block]
            if b not in self.eigen:
                e, V = np.linalg.eigh(X.T @ X)
                self.eigen[b] = np.where(e > rounding(len(e), float) * e.max(), e, 0), V
            e, V = self.eigen[b]
            target = np.where(e > 0, V.T @ (X.T @ r) + e * (V.T @ old), 0)  # where e is 0, the rest is rounding error
            new = V @ _shrink(e, target, self.w[b])
            r -= X @ (new - old)
            u[block] = new

    def solve_free(self, u: np.ndarray) -> np.ndarray:
        """Minimise over the free groups by Newton's method, O(m f^2) per step for f coordinates.

        Groups near zero can slow it down, each at its own kink. Every fourth round therefore starts with a path of
        smoothed problems.
        """
        self.rounds += 1
        if self.rounds % 4 == 0:
            u = self._smoothed_path(u)
        for _ in range(len(self.blocks) + 10):
            p, ray = self._step(u, self.free_blocks(u))
            new = self._to_zero(u, p) if ray else self._through_zero(u, p)
            done = not ray and np.abs(new - u).max() <= 1e-9 * np.abs(u).max()  # the next step would be rounding error
            u = new
            if done:
                break
        return u

    def _smoothed_path(self, u: np.ndarray) -> np.ndarray:
        """Minimise over all groups with smoothed norms, eps decreasing to zero; then set groups of size eps to zero."""
        everywhere = np.ones(len(self.blocks), bool)
        size = max(self._norms(u).max(), 1e-3 * self.size)
        for eps in size * 10.0 ** -np.arange(0.0, 13.0):
            for _ in range(20):
                p, _ = self._step(u, everywhere, eps)
                new = self._along(u, p, eps)
                done = np.abs(new - u).max() <= 1e-3 * eps
                u = new
                if done:
                    break
        gone = (self.w > 0) & (self._norms(u) <= 1e3 * eps)
        return np.where(gone[self.block_of], 0, u)

    def _step(self, u: np.ndarray, blocks: np.ndarray, eps: float = 0.0) -> tuple[np.ndarray, bool]:
        """Return the Newton step over these groups and False, or a direction of unbounded descent and True."""
        F = np.flatnonzero((blocks & self.live)[self.block_of])
        p = np.zeros_like(u)
        if len(F) == 0:
            return p, False
        block_of, norms, smoothed = self.block_of[F], self._norms(u), self._norms(u, eps)
        smoothed = np.where(smoothed > 0, smoothed, 1)
        unit = u[F] / np.where(norms > 0, norms, 1)[block_of]
        # The Hessian of w s, with s = sqrt(||u||^2 + eps^2), is w/s (I - (1 - (eps/s)^2) unit unit'). A is its root.
        flat = (1 - eps / smoothed)[block_of] * unit
        A = np.eye(len(F)) - np.where(block_of[:, None] == block_of[None], flat[:, None] * unit[None], 0)
        A *= np.sqrt(self.w / smoothed)[block_of][:, None]
        r = self.z - self.X @ u
        p[F], ray = free_step(self.X[:, F], A[self.w[block_of] > 0], r, self._slope(u, eps)[F], self.rows)
        return p, ray

    def _along(self, u: np.ndarray, p: np.ndarray, eps: float = 0.0) -> np.ndarray:
        """Move from u along p by a line search."""
        r, Xp = self.z - self.X @ u, self.X @ p
        start = self._value(u, eps)
        noise = 16 * np.finfo(float).eps * (start + self.size**2 / 2)

        def slope_and_rise(alpha: Array) -> tuple[Array, Array]:
            at = u + alpha * p
            slope = p @ self._slope(at, eps) - Xp @ (r - alpha * Xp)
            return slope, np.asarray(self._value(at, eps) - start - noise)

        moved: np.ndarray = u + search(np, slope_and_rise, float) * p
        return moved

    def _through_zero(self, u: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Move along p, or by the full step with groups that it sends through zero set to zero, whichever is lower.

        Without the second candidate a group near zero would stop all the others.
        """
        new = self._along(u, p)
        turned = (self.w > 0) & (np.bincount(self.block_of, u * (u + p), len(self.blocks)) <= 0)
        if turned.any():
            other = np.where(turned[self.block_of], 0, u + p)
            if self._value(other) < self._value(new):
                return other
        return new

    def _to_zero(self, u: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Move along a direction p without curvature to the first group that makes the objective rise by vanishing.

        Along p each group only grows or shrinks, and the objective is linear between the points where groups vanish.
        """
        norms = self._norms(u)
        rate = np.bincount(self.block_of, u * p, len(self.blocks)) / np.where(norms > 0, norms, 1)
        shrinks = np.flatnonzero((self.w > 0) & (norms > 0) & (rate < 0))
        at = -norms[shrinks] / rate[shrinks]
        order = np.argsort(at, kind="stable")
        slopes = self._slope(u) @ p + np.cumsum((-2 * self.w[shrinks] * rate[shrinks])[order])
        turns = np.flatnonzero(slopes >= 0)
        if len(turns) == 0:  # the function is bounded below: a descent without end is rounding error
            return u
        last = order[turns[0]]
        new: np.ndarray = u + at[last] * p
        new[self.block_of == shrinks[last]] = 0
        return new


def _shrink(e: np.ndarray, target: np.ndarray, w: float) -> np.ndarray:
    """Return the t that minimises 1/2 t' diag(e) t - target't + w ||t||.

    It is zero if ||target|| <= w. Otherwise t = target / (e + w / rho), where rho = ||t|| solves
    1 / ||target / (e rho + w)|| = 1. The left side is concave and increasing in rho, so that Newton's method started
    to the left of the root stays there and converges.
    """
    size = np.sqrt(target @ target)
    if size <= w:
        return np.zeros_like(target)
    if w == 0:
        return np.where(e > 0, target / np.where(e > 0, e, 1), 0)
    rho = (size - w) / e.max()
    for _ in range(100):
        bent = e * rho + w
        q = target / bent
        square = q @ q
        step = (np.sqrt(square) - 1) * square / (q @ (q * e / bent))
        rho += step
        if step <= 1e-12 * rho:
            break
    t: np.ndarray = target * (rho / (e * rho + w))
    return t
