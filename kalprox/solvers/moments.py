"""The minimiser of a penalised least-squares problem of one target, given its moments: one factorisation or a few."""

from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from kalprox.base.arrays import Array
from kalprox.regularizers import Regularizer
from kalprox.regularizers.base import Pieces

__all__ = ["ActiveSet", "constrained", "factor", "newton", "quadratic"]

_LEAST_PIVOT = 0.01  # relative to its column, as for the Gram matrices of folds: 12 digits of the estimate remain
_MOST_STEPS = 50  # of Newton's method, or changes of the active set; 1 to 3 are usual
_TOL = 1e-10  # of the optimality conditions, relative to the slopes
_STEP = 1e-9  # the relative size of a step after which Newton's method has converged to its square


def factor(A: Array, curvature: Array) -> Array | None:
    """Return the Cholesky factor of A + diag(curvature); None if digits would be lost.

    A is in column-major order, and is overwritten.
    """
    A.reshape(-1, order="F")[:: len(A) + 1] += curvature
    if not len(A):
        return A
    least = _LEAST_PIVOT**2 * A.diagonal()
    U, failed = dpotrf(A, lower=0, clean=1)
    return None if failed or not (U.diagonal() ** 2 >= least).all() or not least.all() else U


def quadratic(A: Array, b: Array, curvature: Array) -> tuple[Array, Any, Array, Array] | None:
    """Minimise 1/2 t'A t - b't + 1/2 t'diag(curvature) t."""
    U = factor(np.array(A, order="F"), curvature)
    return None if U is None else (dpotrs(U, b, lower=0)[0], slice(None), U, curvature)


def newton(A: Array, b: Array, g: Regularizer, theta: Array) -> tuple[Array, Any, Array, Array] | None:
    """Minimise 1/2 t'A t - b't + g(t) for a smooth g by Newton's method; None if it does not converge."""
    for _ in range(_MOST_STEPS):
        curvature = g.hessian(theta)
        U = factor(np.array(A, order="F"), curvature)
        if U is None:
            return None
        step = dpotrs(U, A @ theta - b + g.grad(theta), lower=0)[0]
        theta = theta - step
        if np.abs(step).max() <= _STEP * np.abs(theta).max():
            return theta, slice(None), U, curvature
    return None


class ActiveSet:
    """Which coordinates are free of kinks and bounds, and between which ends each may move until that changes.

    Attributes
    ----------
    free, held : arrays of int
        The numbers of the free coordinates, and of the others.
    slope : array of shape (f,)
        The derivative of l1 |t| at the free coordinates.
    least, most : arrays of shape (f,)
        The ends of their intervals.
    left, right : arrays of shape (d - f,)
        The subdifferentials of the held coordinates.
    """

    def __init__(self, pieces: Pieces, theta: Array, sign: Array, free: Array) -> None:
        l1, l2, low, high = pieces
        self.theta, self.sign, self.is_free = theta, sign, free
        self.free, self.held = np.flatnonzero(free), np.flatnonzero(~free)
        self.block, self.fixed = np.ix_(self.free, self.free), theta[self.held]
        self.slope, self.curvature, self.held_curvature = (l1 * sign)[self.free], l2[self.free], l2[self.held]
        kink = l1 > 0
        self.least = np.maximum(low, np.where(kink & (sign > 0), 0, -np.inf))[self.free]
        self.most = np.minimum(high, np.where(kink & (sign < 0), 0, np.inf))[self.free]
        left, right = pieces.slopes(theta)
        self.left, self.right = left[self.held], right[self.held]
        self.largest = l1.max(initial=0)

    @classmethod
    def at(cls, pieces: Pieces, theta: Array) -> "ActiveSet":
        """Return the active set of an estimate."""
        left, right = pieces.slopes(theta)
        return cls(pieces, theta, np.sign(theta), left == right)

    def holding(self, pieces: Pieces, number: int, theta: Array) -> "ActiveSet":
        """Return the active set with one more coordinate held, at the estimate theta on the way."""
        free = self.is_free.copy()
        free[number] = False
        return ActiveSet(pieces, theta, self.sign, free)

    def releasing(self, pieces: Pieces, number: int, theta: Array, *, upwards: bool) -> "ActiveSet":
        """Return the active set with one more coordinate free to move."""
        free, sign = self.is_free.copy(), self.sign.copy()
        free[number], sign[number] = True, np.sign(theta[number]) or (1.0 if upwards else -1.0)
        return ActiveSet(pieces, theta, sign, free)


def constrained(
    A: Array, b: Array, pieces: Pieces, active: ActiveSet
) -> tuple[tuple[Array, Any, Array, Array], ActiveSet] | None:
    """Minimise 1/2 t'A t - b't + g(t) for a g of `pieces`, starting from an active set; return that of the minimiser.

    The minimiser over the free coordinates is found by one factorisation. A coordinate that would cross its kink or a
    bound is held there, and the held coordinate that violates its optimality condition most is set free. None if there
    are too many changes.
    """
    tol = _TOL * (np.abs(b).max(initial=0) + active.largest)
    for _ in range(_MOST_STEPS):
        theta, free, held = active.theta.copy(), active.free, active.held
        U = factor(np.asfortranarray(A[active.block]), active.curvature)
        if U is None:
            return None
        if len(free):
            push = b - A[:, held].dot(active.fixed) if active.fixed.any() else b
            goal = dpotrs(U, push[free] - active.slope, lower=0)[0]
            beyond = (goal < active.least) | (goal > active.most)
            if beyond.any():
                now, ends = theta[free], np.where(goal < active.least, active.least, active.most)
                with np.errstate(invalid="ignore", divide="ignore"):
                    part = np.where(beyond, (ends - now) / (goal - now), np.inf)
                first = int(np.argmin(part))
                theta[free] = now + min(float(part[first]), 1.0) * (goal - now)
                theta[free[first]] = ends[first]
                active = active.holding(pieces, int(free[first]), theta)
                continue
            theta[free] = goal
        if len(held):
            rest = (b - A.dot(theta))[held] - active.held_curvature * active.fixed
            violation = np.maximum(active.left - rest, rest - active.right)
            worst = int(violation.argmax())
            if violation[worst] > tol:
                upwards = bool(rest[worst] > active.right[worst])
                active = active.releasing(pieces, int(held[worst]), theta, upwards=upwards)
                continue
        active.theta = theta
        return (theta, free, U, active.curvature), active
    return None
