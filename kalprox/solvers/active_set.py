"""An active-set method for penalties with kinks or bounds: block coordinate descent finds which blocks are free, and
exact solves find the minimiser over them.

A block is a single coordinate for L1, elastic net and box penalties, and a group of them for group L1. Everything is
computed by NumPy in float64, because the shapes of arrays depend on which coordinates are free.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.linalg.triangle import column_norms, qr, rounding
from kalprox.regularizers import Pieces
from kalprox.solvers.newton import search
from kalprox.solvers.squares import default_tol, free_step

_FEW = 10  # blocks that a sweep may free; with more, another sweep is cheaper than exact solves that drop them
_MOST_TANGENTS, _SETTLED = 200, 1e-13  # of a g that is not convex; 3 to 10 are usual
_TINY, _CONVERGED = float(np.finfo(float).tiny), default_tol(float)
_MAX_ROUNDS = 200  # rounds of descent and exact solves; 2 to 10 are usual


def active_set(
    R: np.ndarray, z: np.ndarray, start: np.ndarray, regularizer: Any, rows: Any = None
) -> tuple[np.ndarray, float, int]:
    """Return the minimiser of 1/2 ||R t - z||^2 + g(t), its residual, and the number of rounds taken from `start`.

    For a g that is not convex it is a local minimum, to which its tangents lead: see `Regularizer.tangent`.
    """
    theta, rounds, change = start, 0, np.inf
    for _ in range(_MOST_TANGENTS):
        tangent = regularizer.tangent(theta)
        problem = _problem(R, z, tangent, rows)
        if not change > _SETTLED * np.abs(theta).max(initial=0):
            return theta, float(problem.judged(problem.scaled(theta))[0].max(initial=0)), rounds
        before, (theta, residual, more) = theta, _descend(problem, theta)
        rounds += more
        if tangent is regularizer:
            break
        theta = _newton_step(R, z, regularizer, theta)
        change = np.abs(theta - before).max(initial=0)
    return theta, residual, rounds


def _problem(R: np.ndarray, z: np.ndarray, g: Any, rows: Any) -> "Coordinates | Groups":
    if (groups := g.groups_of(R.shape[1])) is not None:
        labels, weights = groups
        return Groups(R, z, labels, weights, rows)
    return Coordinates(R, z, g.pieces(), rows)


def _newton_step(R: np.ndarray, z: np.ndarray, g: Any, theta: np.ndarray) -> np.ndarray:
    """Return theta after a Newton step of the free coordinates, if the objective falls: tangents alone may be slow."""
    F, new, r = np.flatnonzero(g.free(theta)), theta.copy(), R @ theta - z
    A = R[:, F].T @ R[:, F] + np.diag(g.hessian(theta)[F])
    try:
        np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        return theta
    new[F] -= np.linalg.solve(A, R[:, F].T @ r + g.grad(theta)[F])
    after = R @ new - z
    return new if after @ after / 2 + g.value(new) <= r @ r / 2 + g.value(theta) else theta


def _descend(problem: "Coordinates | Groups", theta: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Alternate descent over the blocks that violate optimality and exact solves on the free ones, down to rounding."""
    u = problem.scaled(theta)
    best, best_u, since, rounds = np.inf, u, 0, 0
    while rounds < _MAX_ROUNDS:
        violation, allowed = problem.judged(u)
        residual = violation.max(initial=0)
        if residual < best:
            best, best_u, since = residual, u.copy(), 0
        else:
            since += 1
        if residual <= allowed or since > 20:
            break
        free = problem.free_blocks(u)
        wrong = (violation > allowed) & problem.unsure(free)
        for _ in range(10):
            if not wrong.any():
                break
            problem.sweep(u, wrong.nonzero()[0])
            changed = problem.free_blocks(u) != free
            if changed.sum() <= _FEW:  # the exact solve finds the rest; a cold start needs more sweeps
                break
            free = free ^ changed
            wrong = problem.judged(u)[0] > allowed
        u = problem.solve_free(u)
        rounds += 1
    return problem.unscaled(best_u), float(best), rounds


class Blocks(ABC):
    """1/2 ||X u - z||^2 + g(u) in units where the columns of every block have norm 1 together: u = c theta."""

    w: np.ndarray  # the weight of the kink of each block
    live: np.ndarray  # whether any row says anything about the block

    def __init__(self, R: np.ndarray, z: np.ndarray, norms: np.ndarray, sizes: np.ndarray, rows: Any) -> None:
        self.rows, self.c = rows, np.where(sizes > 0, sizes, 1)  # the norms of columns, and those of their blocks
        self.X, self.z, self.size = np.asfortranarray(R / self.c), z, math.sqrt(z @ z)
        self.lengths = norms / self.c

    @abstractmethod
    def away(self, u: np.ndarray, descent: np.ndarray) -> np.ndarray:
        """Return the distance of minus the gradient of the squares from the subdifferential of g, for each block."""

    def judged(self, u: np.ndarray) -> tuple[np.ndarray, float]:
        """Return by how much each block violates optimality, relative to the size of its terms, and what rounding may.

        Rounding explains more where columns cancel, up to `default_tol`.
        """
        fit = self.X @ u
        terms = self.size + math.sqrt(fit @ fit)
        size = np.where(self.live, terms, 0) + self.w
        violation = self.away(u, self.X.T @ (self.z - fit)) / np.where(size > 0, size, 1)
        least = rounding(len(u), float)
        lost = float(self.lengths @ np.abs(u)) / (terms + _TINY)
        return violation, max(min(least * lost, _CONVERGED), least)


class Coordinates(Blocks):
    """g(u) = sum_j phi_j(u_j): every coordinate is a block. `Groups` has the same methods."""

    def __init__(self, R: np.ndarray, z: np.ndarray, pieces: Pieces, rows: Any = None) -> None:
        l1, l2, low, high = self.raw = Pieces(*(np.asarray(a, float) for a in pieces.each(R.shape[1])))
        if (l2 > 0).any():  # a quadratic penalty counts as more rows of data
            R, z = qr(np.concatenate([R, np.diag(l2**0.5)]), z)
        norms = column_norms(R)
        super().__init__(R, z, norms, norms, rows)
        self.live, self.w, self.low, self.high = norms > 0, l1 / self.c, low * self.c, high * self.c
        self.pieces = Pieces(self.w, 0.0, self.low, self.high)

    def scaled(self, theta: np.ndarray) -> np.ndarray:
        """Return theta in scaled units, moved to where g is finite."""
        u = np.where(self.live, theta * self.c, 0)  # a coordinate without data gets the smallest value that g allows
        return np.clip(u, self.low, self.high)

    def unscaled(self, u: np.ndarray) -> np.ndarray:
        """Return u in the units of theta."""
        theta = np.clip(u / self.c, self.raw.low, self.raw.high)
        theta = np.where(u == self.low, self.raw.low, theta)  # bounds are met exactly
        return np.where(u == self.high, self.raw.high, theta)

    def free_blocks(self, u: np.ndarray) -> np.ndarray:
        """Return which blocks are at no kink and no bound."""
        return np.asarray((u > self.low) & (u < self.high) & ((u != 0) | (self.w == 0)))

    def unsure(self, free: np.ndarray) -> np.ndarray:
        """Return which blocks the exact solve may wrongly leave free or held, so that descent has to look at them."""
        return ~free  # the exact solve itself stops free coordinates at their kinks

    def away(self, u: np.ndarray, descent: np.ndarray) -> np.ndarray:
        left, right = self.pieces.slopes(u)
        return np.asarray(np.maximum(np.maximum(left - descent, descent - right), 0))

    def sweep(self, u: np.ndarray, blocks: np.ndarray) -> None:
        """Minimise over each of these blocks in turn, in place. O(m) per coordinate."""
        r = self.z - self.X @ u
        for j in blocks.tolist():
            column, l1, old = self.X[:, j], self.w[j], u[j]
            v = old + column @ r
            new = min(max(v - min(max(v, -l1), l1), self.low[j]), self.high[j])
            if new != old:
                r -= (new - old) * column
                u[j] = new

    def solve_free(self, u: np.ndarray) -> np.ndarray:
        """Move to the minimiser over the free coordinates; a coordinate that reaches a kink or a bound stays there."""
        for _ in range(2 * len(u) + 10):
            F = (self.free_blocks(u) & self.live).nonzero()[0]
            if len(F) == 0:
                break
            X, r, slope = self.X[:, F], self.z - self.X @ u, self.w[F] * np.sign(u[F])
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
        t, low, high, l1 = u[F], self.low[F], self.high[F], self.w[F]
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
        return float(r @ r / 2 + self.w @ np.abs(u))


class Groups(Blocks):
    """g(u) = sum_b w_b ||u_b||. A coordinate without a penalty is a group of its own, of weight 0.

    Methods with an argument `eps` replace every norm by sqrt(||u_b||^2 + eps^2), which has no kink.
    """

    def __init__(self, R: np.ndarray, z: np.ndarray, labels: np.ndarray, weights: np.ndarray, rows: Any = None) -> None:
        d = R.shape[1]
        used = np.flatnonzero((weights > 0) & (np.bincount(labels[labels >= 0], minlength=len(weights)) > 0))
        alone = np.flatnonzero(~np.isin(labels, used))
        self.blocks = [np.flatnonzero(labels == label) for label in used] + [np.array([j]) for j in alone]
        self.block_of = np.empty(d, int)
        for b, block in enumerate(self.blocks):
            self.block_of[block] = b
        norms = column_norms(R)
        sizes = np.array([column_norms(norms[block]) for block in self.blocks])
        super().__init__(R, z, norms, sizes[self.block_of], rows)
        self.live, self.rounds = sizes > 0, 0
        self.w = np.append(weights[used], np.zeros(len(alone))) / np.where(self.live, sizes, 1)
        self.eigen: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def scaled(self, theta: np.ndarray) -> np.ndarray:
        return np.where(self.live[self.block_of], theta * self.c, 0)

    def unscaled(self, u: np.ndarray) -> np.ndarray:
        return np.asarray(u / self.c)

    def _norms(self, u: np.ndarray, eps: float = 0.0) -> np.ndarray:
        return np.hypot(np.sqrt(np.bincount(self.block_of, u**2, len(self.blocks))), eps)

    def _slope(self, u: np.ndarray, eps: float = 0.0) -> np.ndarray:
        norms = self._norms(u, eps)
        return np.asarray(u * (self.w / np.where(norms > 0, norms, 1))[self.block_of])

    def _value(self, u: np.ndarray, eps: float = 0.0) -> float:
        r = self.z - self.X @ u
        return float(r @ r / 2 + self.w @ self._norms(u, eps))

    def free_blocks(self, u: np.ndarray) -> np.ndarray:
        return np.asarray((self._norms(u) > 0) | (self.w == 0))

    def unsure(self, free: np.ndarray) -> np.ndarray:
        return np.ones_like(free)  # a Newton step never makes a free group exactly zero

    def away(self, u: np.ndarray, descent: np.ndarray) -> np.ndarray:
        away = self._norms(descent - self._slope(u))
        return np.where(self.free_blocks(u), away, np.maximum(away - self.w, 0))

    def sweep(self, u: np.ndarray, blocks: np.ndarray) -> None:
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

        return np.asarray(u + search(np, slope_and_rise, float) * p)

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
        """Move along a direction p, in which the objective falls without curvature, until a group vanishes."""
        norms, rate = self._norms(u), np.bincount(self.block_of, u * p, len(self.blocks))  # of half the squared norms
        shrinks = (self.w > 0) & (rate < 0)
        if not shrinks.any():  # the function is bounded below: a descent without end is rounding error
            return u
        at = np.where(shrinks, norms**2 / np.where(shrinks, -rate, 1), np.inf)
        first = int(np.argmin(at))
        return np.where(self.block_of == first, 0.0, u + at[first] * p)


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
    return np.asarray(target * (rho / (e * rho + w)))
