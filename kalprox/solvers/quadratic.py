"""The minimiser of 1/2 ||R t - z||^2 + g(t) for a quadratic g = 1/2 ||A t||^2, and its derivative.

The rows of A are appended to those of R, and a QR factorisation of both solves the problem. R is never squared.
"""

from typing import Any

import numpy as np

from kalprox.base.arrays import Array, namespace
from kalprox.base.control import cond_rare, select, with_jvp
from kalprox.linalg.gram import gram_triangle
from kalprox.linalg.rank import least_squares_step, solve_and_factor
from kalprox.linalg.triangle import product, qr, rounding
from kalprox.regularizers import Regularizer
from kalprox.solvers.squares import Squares


def _jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The derivative of the minimiser with respect to R, z and the parameters of g.

    With t the minimiser, R'(R t - z) + grad g(t) = 0. Differentiated, this is the optimality condition of another
    least-squares problem with the same matrix, so that neither QR nor SVD has to be differentiated. The residual
    is rounding error, and its derivative is taken as zero.
    """
    import jax

    (R, z, g, rows), (dR, dz, dg, _) = primals, tangents
    theta, residual, P = _solve(R, z, g, rows)

    def slope(g: Regularizer) -> Array:
        return g.grad(theta) if theta.ndim == 1 else jax.vmap(g.grad, 1, 1)(theta)

    v = product(dR.T, product(R, theta) - z) + jax.jvp(slope, (g,), (dg,))[1]
    step = least_squares_step(R, P, dz - product(dR, theta), v)
    return (theta, residual), (step, 0 * residual)


@with_jvp(_jvp)
def quadratic(R: Array, z: Array, g: Regularizer, rows: Any) -> tuple[Array, Array]:
    """Return the minimiser of 1/2 ||R t - z||^2 + g(t) for a quadratic g, and its residual.

    Where [R; A] is rank deficient, by the rule of `kalprox.linalg.rank` for that weight of `rows`, the minimiser of
    minimum norm is returned. z has shape (m,) or (m, k).
    """
    theta, residual, _ = _solve(R, z, g, rows)
    return theta, residual


def _solve(R: Array, z: Array, g: Regularizer, rows: Any) -> tuple[Array, Array, Array]:
    """The minimiser, its residual, and P with P P' = (R'R + A'A)^+."""
    xp, d = namespace(R, z), R.shape[1]
    A = xp.asarray(g.root(d), R.dtype)
    data = Squares.of(R, z)
    stack = xp.concatenate([R, A])

    def by_qr() -> tuple[Array, Array]:
        U, y = qr(stack, z)
        return solve_and_factor(U, rows, y)

    if xp is np:
        theta, P = by_qr()
    else:
        _, inverse, fails = gram_triangle(stack)
        found = product(inverse, product(inverse.T, product(R.T, z)))
        theta, P = cond_rare(fails, by_qr, lambda: (found, inverse))

    def measure(t: Array) -> tuple[Array, Array]:
        """The gradient at t, and the residual."""
        r, terms = data.at(t)
        gradient = product(R.T, r) + product(A.T, product(A, t))
        size = product(xp.abs(A).T, product(xp.abs(A), xp.abs(t)))  # rows of A may cancel each other
        return gradient, data.relative(gradient, terms, size)

    gradient, residual = measure(theta)

    def corrected() -> tuple[Array, Array]:
        # Where the entries of A are much larger than those of R, QR loses the small ones. One correction with the
        # gradient itself restores them.
        new = theta - product(P, product(P.T, gradient))
        _, left = measure(new)
        return xp.where((left < residual)[None], new, theta), xp.minimum(left, residual)

    theta, residual = select((residual > rounding(d, R.dtype)).any(), corrected, lambda: (theta, residual))
    return theta, residual, P
