"""g with kinks or bounds: descent by coordinates or groups finds which of them are free, exact solves do the rest.

Everything here is NumPy's, in float64: which columns are free decides the shapes.
"""

from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.linalg.triangle import column_norms, qr, rounding, solve_triangular, suspect
from kalprox.regularizers import GroupL1, Pieces
from kalprox.regularizers.base import per_coordinate
from kalprox.solvers.newton import Squares, search

__all__ = ["solve"]

_FEW = 10  # coordinates or groups a sweep may free before another sweep is cheaper than solves that drop them
_MAX_ROUNDS = 200  # rounds of descent and exact solves; 2 to 10 are usual


def solve(R: np.ndarray, z: np.ndarray, start: np.ndarray, regularizer: Any) -> tuple[np.ndarray, float, int]:
    """theta, its residual and the number of rounds, from `start`."""
    if isinstance(regularizer, GroupL1):
        return _descend(_Groups(R, z, regularizer), start)
    return _descend(_Coordinates(R, z, regularizer.pieces()), start)


def _descend(problem: Any, theta: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Rounds of descent over the violators and exact solves on the free coordinates, down to rounding."""
    u = problem.scaled(theta)
    data = Squares.of(problem.X, problem.z)
    best, best_u, since, rounds = np.inf, u, 0, 0
    while rounds < _MAX_ROUNDS:
        violation = problem.violation(u)
        residual = violation.max(initial=0)
        if residual < best:
            best, best_u, since = residual, u.copy(), 0
        else:
            since += 1
        allowed = data.rounded(u, data.at(u)[1])
        if residual <= allowed or since > 20:
            break
        free = problem.free_blocks(u)
        wrong = (violation > allowed) & problem.unsure(u)
        for _ in range(10):
            problem.sweep(u, np.flatnonzero(wrong))
            changed = problem.free_blocks(u) != free
            if changed.sum() <= _FEW:  # the exact solve finds the rest; a cold start needs more sweeps
                break
            free = free ^ changed
            wrong = problem.violation(u) > allowed
        u = problem.solve_free(u)
        rounds += 1
    return problem.unscaled(best_u), float(best), rounds


class _Coordinates:
    """Separable pieces, in units where every column has norm 1: u = c theta."""

    def __init__(self, R: np.ndarray, z: np.ndarray, pieces: Pieces) -> None:
        d = R.shape[1]
        l1, l2, low, high = (per_coordinate(np.asarray(v, float), d, name) for name, v in pieces._asdict().items())
        if (l2 > 0).any():  # the quadratic part is more rows of data
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
        u = np.where(self.live, theta * self.c, 0)  # a column without data: the shortest that g allows
        return np.clip(u, self.low, self.high)

    def unscaled(self, u: np.ndarray) -> np.ndarray:
        theta = np.clip(u / self.c, self.raw.low, self.raw.high)
        theta = np.where(u == self.low, self.raw.low, theta)  # exactly at the bound
        return np.where(u == self.high, self.raw.high, theta)

    def free_blocks(self, u: np.ndarray) -> np.ndarray:
        return (u > self.low) & (u < self.high) & ((u != 0) | (self.l1 == 0))

    def unsure(self, u: np.ndarray) -> np.ndarray:
        return ~self.free_blocks(u)  # the exact solve stops the others at their kinks by itself

    def violation(self, u: np.ndarray) -> np.ndarray:
        descent = self.X.T @ (self.z - self.X @ u)
        left, right = self.pieces.slopes(u)
        size = np.where(self.live, self.size + np.linalg.norm(self.X @ u), 0) + self.l1
        return np.maximum(np.maximum(left - descent, descent - right), 0) / np.where(size > 0, size, 1)

    def sweep(self, u: np.ndarray, coordinates: np.ndarray) -> None:
        """Minimise over each coordinate in turn, in place. O(m) each."""
        r = self.z - self.X @ u
        for j in coordinates.tolist():
            column, l1, old = self.X[:, j], self.l1[j], u[j]
            v = old + column @ r
            new = min(max(v - min(max(v, -l1), l1), self.low[j]), self.high[j])
            if new != old:
                r -= (new - old) * column
                u[j] = new

    def solve_free(self, u: np.ndarray) -> np.ndarray:
        """To the minimiser over the free coordinates; those that reach a kink or a bound stay there."""
        for _ in range(2 * len(u) + 10):
            F = np.flatnonzero(self.free_blocks(u) & self.live)
            if len(F) == 0:
                break
            X, r, slope = self.X[:, F], self.z - self.X @ u, self.l1[F] * np.sign(u[F])
            p, ray = _free_step(X, np.zeros((0, len(F))), r, slope)
            Xp = X @ p
            u, done = self._move(u, F, p, slope @ p - Xp @ r, 0.0 if ray else Xp @ Xp)
            if done:
                break
        return u

    def _move(self, u: np.ndarray, F: np.ndarray, p: np.ndarray, first: float, curve: float) -> tuple[np.ndarray, bool]:
        """To the minimum along p, exactly: the derivative starts at `first`, grows with `curve` between
        breakpoints and jumps at each, by 2 l1 |p_j| at a zero, without limit at a bound. And whether none was met."""
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
        if not np.isfinite(alpha):  # only rounding falls without end
            return u, True
        moved = np.where(zero == alpha, 0.0, np.clip(t + alpha * p, low, high))
        new[F] = np.where(bound == alpha, np.where(p > 0, high, low), moved)
        if curve == 0:
            return new, False
        # Many may have to go at once: the whole step, each stopped at its own kink, if that is lower still.
        other[F] = np.clip(np.where(zero <= 1, 0.0, t + p), low, high)
        return (other if self._value(other) < self._value(new) else new), False

    def _value(self, u: np.ndarray) -> float:
        r = self.z - self.X @ u
        return r @ r / 2 + self.l1 @ np.abs(u)


class _Groups:
    """Groups of coordinates with a norm each, in units where every group's block has norm 1.

    A coordinate without a penalty is a group of its own, of weight 0. Where `eps` is an argument,
    sqrt(||u_g||^2 + eps^2) stands for every norm: no kink.
    """

    def __init__(self, R: np.ndarray, z: np.ndarray, g: GroupL1) -> None:
        d = R.shape[1]
        labels = np.asarray(g.groups)
        _, weights, _ = g.norms(np.zeros(d))
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
        return u / self.c

    def _norms(self, u: np.ndarray, eps: float = 0.0) -> np.ndarray:
        return np.hypot(np.sqrt(np.bincount(self.block_of, u**2, len(self.blocks))), eps)

    def _slope(self, u: np.ndarray, eps: float = 0.0) -> np.ndarray:
        norms = self._norms(u, eps)
        return u * (self.w / np.where(norms > 0, norms, 1))[self.block_of]

    def _value(self, u: np.ndarray, eps: float = 0.0) -> float:
        r = self.z - self.X @ u
        return r @ r / 2 + self.w @ self._norms(u, eps)

    def free_blocks(self, u: np.ndarray) -> np.ndarray:
        return (self._norms(u) > 0) | (self.w == 0)

    def unsure(self, u: np.ndarray) -> np.ndarray:
        return np.ones(len(self.blocks), bool)  # Newton steps alone would never make a free group zero

    def violation(self, u: np.ndarray) -> np.ndarray:
        descent = self.X.T @ (self.z - self.X @ u)
        away = self._norms(descent - self._slope(u))
        away = np.where(self.free_blocks(u), away, np.maximum(away - self.w, 0))
        size = np.where(self.live, self.size + np.linalg.norm(self.X @ u), 0) + self.w
        return away / np.where(size > 0, size, 1)

    def sweep(self, u: np.ndarray, blocks: np.ndarray) -> None:
        """Minimise over each group in turn, in place."""
        r = self.z - self.X @ u
        for b in blocks.tolist():
            block = self.blocks[b]
            X, old = self.X[:, block], u[block]
            if b not in self.eigen:
                e, V = np.linalg.eigh(X.T @ X)
                self.eigen[b] = np.where(e > rounding(len(e), float) * e.max(), e, 0), V
            e, V = self.eigen[b]
            target = np.where(e > 0, V.T @ (X.T @ r) + e * (V.T @ old), 0)  # where e is 0, only rounding
            new = V @ _shrink(e, target, self.w[b])
            r -= X @ (new - old)
            u[block] = new

    def solve_free(self, u: np.ndarray) -> np.ndarray:
        """Newton over the free groups, O(m f^2) a step for f coordinates. Groups near zero can hold it up for
        long, each at its own kink: every few rounds, come down to them on a smoothed path instead."""
        self.rounds += 1
        if self.rounds % 4 == 0:
            u = self._smoothed_path(u)
        for _ in range(len(self.blocks) + 10):
            p, ray = self._step(u, self.free_blocks(u))
            new = self._to_zero(u, p) if ray else self._through_zero(u, p)
            done = not ray and np.abs(new - u).max() <= 1e-9 * np.abs(u).max()  # the next is below rounding
            u = new
            if done:
                break
        return u

    def _smoothed_path(self, u: np.ndarray) -> np.ndarray:
        """Newton over all groups with eps going to zero. At the end those of size eps are made zero."""
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
        """The Newton step over these groups; or a direction in which nothing curves and all falls, and True."""
        F = np.flatnonzero((blocks & self.live)[self.block_of])
        p = np.zeros_like(u)
        if len(F) == 0:
            return p, False
        block_of, norms, smoothed = self.block_of[F], self._norms(u), self._norms(u, eps)
        smoothed = np.where(smoothed > 0, smoothed, 1)
        unit = u[F] / np.where(norms > 0, norms, 1)[block_of]
        # The Hessian of w s, s = sqrt(||u||^2 + eps^2), is w/s (I - (1 - (eps/s)^2) unit unit'): by its root.
        flat = (1 - eps / smoothed)[block_of] * unit
        A = np.eye(len(F)) - np.where(block_of[:, None] == block_of[None], flat[:, None] * unit[None], 0)
        A *= np.sqrt(self.w / smoothed)[block_of][:, None]
        r = self.z - self.X @ u
        p[F], ray = _free_step(self.X[:, F], A[self.w[block_of] > 0], r, self._slope(u, eps)[F])
        return p, ray

    def _along(self, u: np.ndarray, p: np.ndarray, eps: float = 0.0) -> np.ndarray:
        """From u along p, by a line search."""
        r, Xp = self.z - self.X @ u, self.X @ p
        start = self._value(u, eps)
        noise = 16 * np.finfo(float).eps * (start + self.size**2 / 2)

        def slope_and_rise(alpha: Array) -> tuple[Array, Array]:
            at = u + alpha * p
            slope = p @ self._slope(at, eps) - Xp @ (r - alpha * Xp)
            return slope, np.asarray(self._value(at, eps) - start - noise)

        return u + search(np, slope_and_rise, float) * p

    def _through_zero(self, u: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Along p; but a group near zero would stop all the others: those the step sends through zero stay
        there, if that is lower."""
        new = self._along(u, p)
        turned = (self.w > 0) & (np.bincount(self.block_of, u * (u + p), len(self.blocks)) <= 0)
        if turned.any():
            other = np.where(turned[self.block_of], 0, u + p)
            if self._value(other) < self._value(new):
                return other
        return new

    def _to_zero(self, u: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Along p nothing curves: each group only grows or shrinks, and the objective is linear until one
        vanishes. On to the first that turns it upwards."""
        norms = self._norms(u)
        rate = np.bincount(self.block_of, u * p, len(self.blocks)) / np.where(norms > 0, norms, 1)
        shrinks = np.flatnonzero((self.w > 0) & (norms > 0) & (rate < 0))
        at = -norms[shrinks] / rate[shrinks]
        order = np.argsort(at, kind="stable")
        slopes = self._slope(u) @ p + np.cumsum((-2 * self.w[shrinks] * rate[shrinks])[order])
        turns = np.flatnonzero(slopes >= 0)
        if len(turns) == 0:  # only rounding falls without end
            return u
        last = order[turns[0]]
        new = u + at[last] * p
        new[self.block_of == shrinks[last]] = 0
        return new


def _shrink(e: np.ndarray, target: np.ndarray, w: float) -> np.ndarray:
    """argmin over t of 1/2 t' diag(e) t - target' t + w ||t||.

    Zero if ||target|| <= w; else t = target / (e + w / rho), where rho = ||t|| solves
    1 / ||target / (e rho + w)|| = 1: concave and increasing in rho, so that Newton from the left of the
    root stays there and converges.
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
    return target * (rho / (e * rho + w))


def _free_step(X: np.ndarray, A: np.ndarray, r: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, bool]:
    """p = argmin 1/2 ||X p - r||^2 + 1/2 ||A p||^2 + slope' p; where that has no minimum, the direction
    in which it falls without end, and True."""
    f = len(slope)
    U, y = qr(np.concatenate([X, A]), r)
    if not suspect(U):
        return solve_triangular(U, y - solve_triangular(U, slope, transposed=True)), False
    W, s, Vt = np.linalg.svd(U)
    positive = s > rounding(f, float)
    null = Vt[~positive]
    fall = null.T @ (null @ slope)
    if np.linalg.norm(fall) > 1e-10 * np.linalg.norm(slope):
        return -fall, True
    if positive.all():
        return solve_triangular(U, y - solve_triangular(U, slope, transposed=True)), False
    s, W, V = s[positive], W[:, positive], Vt[positive].T
    return V @ ((W.T @ y - (V.T @ slope) / s) / s), False
