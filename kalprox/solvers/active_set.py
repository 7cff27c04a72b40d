"""An active-set method for penalties with kinks or bounds: block coordinate descent finds which blocks are free, and
exact solves find the minimiser over them.

Everything is computed by NumPy in float64, because the shapes of arrays depend on which coordinates are free.
"""

from typing import Any, Protocol

import numpy as np

from kalprox.solvers.coordinates import Coordinates
from kalprox.solvers.groups import Groups
from kalprox.solvers.squares import Squares

_FEW = 10  # blocks that a sweep may free; with more, another sweep is cheaper than exact solves that drop them
_MOST_TANGENTS, _SETTLED = 200, 1e-13  # of a g that is not convex; 3 to 10 are usual
_MAX_ROUNDS = 200  # rounds of descent and exact solves; 2 to 10 are usual


class _Problem(Protocol):
    """The problem 1/2 ||X u - z||^2 + g in scaled units u; its blocks are single coordinates or groups of them."""

    X: np.ndarray
    z: np.ndarray

    def scaled(self, theta: np.ndarray) -> np.ndarray:
        """Return theta in scaled units, moved to where g is finite."""

    def unscaled(self, u: np.ndarray) -> np.ndarray:
        """Return u in the units of theta."""

    def violation(self, u: np.ndarray) -> np.ndarray:
        """Return the violation of the optimality condition of each block, relative to the size of its terms."""

    def free_blocks(self, u: np.ndarray) -> np.ndarray:
        """Return which blocks are at no kink and no bound."""

    def unsure(self, u: np.ndarray) -> np.ndarray:
        """Return which blocks the exact solve may wrongly leave free or held, so that descent has to look at them."""

    def sweep(self, u: np.ndarray, blocks: np.ndarray) -> None:
        """Minimise over each of these blocks in turn, in place."""

    def solve_free(self, u: np.ndarray) -> np.ndarray:
        """Return the minimiser over the free blocks."""


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
            return theta, float(problem.violation(problem.scaled(theta)).max(initial=0)), rounds
        before, (theta, residual, more) = theta, _descend(problem, theta)
        rounds += more
        if tangent is regularizer:
            break
        theta = _newton_step(R, z, regularizer, theta)
        change = np.abs(theta - before).max(initial=0)
    return theta, residual, rounds


def _problem(R: np.ndarray, z: np.ndarray, g: Any, rows: Any) -> "_Problem":
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


def _descend(problem: _Problem, theta: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Alternate descent over the blocks that violate optimality and exact solves on the free ones, down to rounding."""
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
