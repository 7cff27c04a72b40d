"""The derivative of the minimiser of 1/2 ||R t - z||^2 + g(t) by R, z and the parameters of g, for every solver.

The optimality condition R'(R t - z) + grad g(t) = 0 on the free coordinates is differentiated, and not the steps of the
solver. A coordinate that is not free stays at its kink, or moves with its bound.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, namespace
from kalprox.base.control import with_jvp
from kalprox.linalg.rank import least_squares_step, solve_and_factor
from kalprox.linalg.triangle import product
from kalprox.regularizers import Regularizer
from kalprox.solvers.curvature import hessian_root

Solver = Callable[[Array, Array, Regularizer, Array, Any], tuple[Array, Array, Array]]


def differentiable(solver: Solver) -> Solver:
    """Decorate a solver with the derivative of its minimiser, forwards and backwards, to any order.

    `solver(R, z, g, start, rows)` returns the minimiser, its residual and the number of steps. The residual is rounding
    error, and its derivative is taken as zero. Where a coordinate is exactly at the threshold between held and free,
    it counts as held: the derivative is then the one towards that side.
    """

    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        import jax

        (R, z, g, start, rows), (dR, dz, dg, _, _) = primals, tangents
        theta, residual, steps = ruled(R, z, g, start, rows)
        slope = jax.jvp(lambda g: g.grad(theta), (g,), (dg,))[1]
        moved = jax.jvp(lambda g: g.held(theta), (g,), (dg,))[1]
        free = g.free(theta)
        moved = jax.numpy.where(free, 0, moved)
        w = dz - product(dR, theta) - product(R, moved)
        v = jax.numpy.where(free, product(dR.T, product(R, theta) - z) + slope, 0)
        no_tangent = np.zeros(steps.shape, jax.dtypes.float0)
        return (theta, residual, steps), (moved + _step(R, g, theta, free, rows, w, v), 0 * residual, no_tangent)

    ruled = with_jvp(rule)(solver)
    return ruled


def _step(R: Array, g: Regularizer, theta: Array, free: Array, rows: Any, w: Array, v: Array) -> Array:
    """Return argmin over p of 1/2 ||R p - w||^2 + 1/2 p' Hess g p + v'p, p zero where theta is not free.

    With r = w - R p its optimality condition is the symmetric system r + R p = w, R'r - Hess g p = v. JAX is told that
    it is one, and so differentiates the system and not the factorisation that solves it.
    """
    import jax

    xp, d = namespace(R), len(theta)
    X = xp.where(free[None], R, 0)
    held = xp.where(free, 0, 1).astype(R.dtype)  # one equation p_j = 0 for each coordinate that is held
    h = g.hessian(theta)
    h = xp.where(free if h.ndim == 1 else free[:, None] & free[None], h, 0)

    def system(unknowns: Array) -> Array:
        r, p = xp.split(unknowns, [len(R)])
        curved = h * p if h.ndim == 1 else product(h, p)
        return xp.concatenate([r + product(X, p), product(X.T, r) - curved - held * p])

    def solve(_: Callable[..., Any], sides: Array) -> Array:
        w, v = xp.split(sides, [len(R)])
        U = hessian_root(xp.concatenate([X, xp.diag(held)]), g, theta)
        _, P = solve_and_factor(U, rows, xp.zeros(d, U.dtype))
        p = least_squares_step(X, P, w, v)
        return xp.concatenate([w - product(X, p), p])

    # One vector for both sides: JAX transposes the system only where all of its right side depends on the inputs.
    return jax.lax.custom_linear_solve(system, xp.concatenate([w, v]), solve, symmetric=True)[len(R) :]
