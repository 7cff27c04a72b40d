"""The read-out: theta = argmin over t of 1/2 ||R t - z||^2 + g(t), for every kind of g, and its covariance.

Quadratic g is one more QR, here; other smooth g is minimised by `newton`, and g with kinks or bounds by `active_set`.
R is never squared, and columns are scaled inside, so that nothing depends on the units of a parameter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kalprox._arrays import Array, alike, cast_on_jax, is_traced, namespace
from kalprox._checks import check_finite, check_floating
from kalprox._control import compiled, cond_rare, select, with_jvp
from kalprox.linalg.factor import Factor
from kalprox.linalg.rank import least_squares_step, solve_and_factor, tolerance
from kalprox.linalg.triangle import column_norms, product, qr, rounding
from kalprox.regularizers import Regularizer
from kalprox.solvers.active_set import active_set
from kalprox.solvers.newton import curvature, newton
from kalprox.solvers.squares import Squares, default_tol

__all__ = ["Prox", "covariance", "posterior_root", "prox"]


class Prox(NamedTuple):
    """The minimiser and how far to trust it.

    residual is the largest distance of minus the gradient from g's subdifferential, each coordinate
    relative to ||R_j|| (||z|| + ||R theta||) and g's own terms: free of all units, near 1e-16 at best.
    converged says whether it is within the tolerance asked for.
    """

    theta: Array
    free: Array
    residual: Array
    iterations: Array
    converged: Array


def prox(
    R: Array,
    z: Array,
    regularizer: Regularizer,
    start: Array | None = None,
    *,
    tol: float | None = None,
    rows: Any = None,
) -> Prox:
    """Minimise 1/2 ||R t - z||^2 + g(t) over t.

    Quadratic g is solved exactly, in O((m + d) d^2), by one QR factorisation of R on top of the root of g. Where
    that stack is rank deficient the minimiser of minimum norm is returned. Other smooth g is minimised by Newton's
    method, one QR a step, to a stationary point, which is the minimiser where g is convex. For L1, elastic net,
    group and box penalties an active-set method finds exact zeros and exact bounds in a handful of QR factorisations
    of the free columns; where the minimiser is not unique, one of the minimisers is returned.

    Parameters
    ----------
    R : array of shape (m, d)
        Usually the triangle of an `Information`, but any number of rows will do.
    z : array of shape (m,), or (m, k) for a quadratic g
        The right-hand side, or k of them.
    regularizer : Regularizer
        The penalty g.
    start : array of shape (d,), optional
        Where an iteration starts; zero by default. Quadratic g needs no start.
    tol : float, optional
        The residual up to which the answer counts as converged. Every solver goes on until rounding stops it; by
        default eps^0.575 is allowed, which is 1e-9 in float64 and 1e-4 in float32.
    rows : scalar, optional
        The total weight of the rows folded into R, for the rule for rank in `kalprox.linalg.rank`.

    Returns
    -------
    Prox
        The minimiser, which coordinates are free, and how accurate the minimiser is.

    Notes
    -----
    With smooth g and JAX arrays the function can be compiled, differentiated and batched. The other penalties are
    solved on the host in float64.

    Examples
    --------
    >>> R, z = np.eye(2), np.array([3.0, 0.5])
    >>> from kalprox.regularizers import L1
    >>> prox(R, z, L1(1.0)).theta
    array([2., 0.])
    """
    xp = namespace(R, z, regularizer, start)
    _check(R, z, start)
    start = np.zeros(R.shape[1]) if start is None else start
    if xp is not np and regularizer.smooth:
        R = xp.asarray(R)
        return compiled(_solve)(R, *alike(R, z, start), regularizer, tol, rows)
    # On the host float32 is taken up to float64 and, at the end, down again.
    _check_concrete(regularizer, R, z, start)
    out = _solve(np.asarray(R, float), np.asarray(z, float), np.asarray(start, float), regularizer, tol, rows)
    return out._replace(theta=xp.asarray(out.theta, R.dtype), free=xp.asarray(out.free))


def posterior_root(R: Array, regularizer: Regularizer, theta: Array, *, rows: Any = None) -> Array:
    """Return the upper triangle U with U'U = R'R + Hess g(theta) on the free coordinates.

    Rows and columns of coordinates that are not free are zero. A direction in which the curvature is negative (g is
    not convex and theta no minimum) counts as having no curvature.

    Parameters
    ----------
    R : array of shape (m, d)
    regularizer : Regularizer
    theta : array of shape (d,)
        Usually the minimiser that `prox` found.
    rows : scalar, optional
        Accepted so that `prox`, `covariance` and this function are called alike; no rank is decided here.

    Returns
    -------
    U : array of shape (d, d)
    """
    return _on_free(_posterior_root, R, regularizer, theta, rows)


def covariance(R: Array, regularizer: Regularizer, theta: Array, *, rows: Any = None) -> Array:
    """Return (R'R + Hess g(theta))^-1 on the free coordinates, with zero rows and columns for the others. O(d^3).

    For smooth g it is the Laplace covariance in units of the noise, the posterior's own where g is quadratic. For g
    with kinks or bounds it is conditional on the active set: the covariance of a regression on the free columns
    alone. It does not count that the data chose these columns, and the zero variance of the other coordinates means
    that they are held, not that they are known.

    Where data and g leave a direction undetermined, by the rule of `kalprox.linalg.rank`, the variance of the
    coordinates it touches is infinite: the limit of an ever vaguer prior, covariances with their sign.

    Parameters
    ----------
    R : array of shape (m, d)
    regularizer : Regularizer
    theta : array of shape (d,)
        Usually the minimiser that `prox` found.
    rows : scalar, optional
        The total weight of the rows folded into R, for the rule for rank.

    Returns
    -------
    C : array of shape (d, d)
    """
    return _on_free(_covariance, R, regularizer, theta, rows)


def _solve(R: Array, z: Array, start: Array, regularizer: Regularizer, tol: Any, rows: Any) -> Prox:
    xp, d = namespace(R, z), R.shape[1]
    regularizer = cast_on_jax(regularizer, R)
    root = regularizer.root(d)
    if root is None and z.ndim > 1:
        raise ValueError(f"z must have shape (m,) unless g is quadratic; got {z.shape}. Solve target by target.")
    if root is not None:
        theta, residual = _quadratic(R, z, regularizer, rows)
        iterations: Any = xp.asarray(1)
    elif regularizer.smooth:
        theta, residual, iterations = newton(R, z, regularizer, start)
    else:
        theta, residual, iterations = active_set(R, z, start, regularizer, rows)
    if tol is None:  # what is dropped with an undetermined direction is no lack of convergence
        tol = xp.maximum(default_tol(R.dtype), tolerance(d, rows, R.dtype))
    free = regularizer.free(theta) if root is None else xp.ones(theta.shape, bool)
    return Prox(theta, free, residual, iterations, residual <= tol)


def _quadratic_jvp(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    """How the minimiser moves with R, z and g. The residual has no derivative of use: it is rounding."""
    import jax

    (R, z, g, rows), (dR, dz, dg, _) = primals, tangents
    theta, residual, P = _quadratic_and_factor(R, z, g, rows)

    def slope(g: Regularizer) -> Array:
        return g.grad(theta) if theta.ndim == 1 else jax.vmap(g.grad, 1, 1)(theta)

    v = product(dR.T, product(R, theta) - z) + jax.jvp(slope, (g,), (dg,))[1]
    step = least_squares_step(R, P, dz - product(dR, theta), v)
    return (theta, residual), (step, 0 * residual)


@with_jvp(_quadratic_jvp)
def _quadratic(R: Array, z: Array, g: Regularizer, rows: Any) -> tuple[Array, Array]:
    """argmin over t of 1/2 ||R t - z||^2 + g(t) for a quadratic g, and its residual."""
    return _quadratic_and_factor(R, z, g, rows)[:2]


def _quadratic_and_factor(R: Array, z: Array, g: Regularizer, rows: Any) -> tuple[Array, Array, Array]:
    """The minimiser, of minimum norm where [R; A] is rank deficient; its residual; and P with P P' = (R'R + A'A)^+."""
    xp, d = namespace(R, z), R.shape[1]
    A = xp.asarray(g.root(d), R.dtype)
    data = Squares.of(R, z)
    U, y = qr(xp.concatenate([R, A]), z)
    theta, P = solve_and_factor(U, rows, y)

    def measure(t: Array) -> tuple[Array, Array]:
        """The gradient at t, and the residual."""
        r, terms = data.at(t)
        gradient = product(R.T, r) + product(A.T, product(A, t))
        size = product(xp.abs(A).T, product(xp.abs(A), xp.abs(t)))  # rows of A may cancel among themselves
        return gradient, data.relative(gradient, terms, size)

    gradient, residual = measure(theta)

    def corrected() -> tuple[Array, Array]:
        # Where A's entries dwarf R's, QR drowns the small ones: one correction with the gradient itself.
        new = theta - product(P, product(P.T, gradient))
        _, left = measure(new)
        return xp.where((left < residual)[None], new, theta), xp.minimum(left, residual)

    theta, residual = select((residual > rounding(d, R.dtype)).any(), corrected, lambda: (theta, residual))
    return theta, residual, P


def _on_free(function: Callable, R: Array, regularizer: Any, theta: Array, rows: Any) -> Array:
    """function(R, g, theta, rows, free), placed among all coordinates; compiled for smooth g on JAX arrays."""
    xp = namespace(R, regularizer, theta)
    if xp is not np and regularizer.smooth:
        R = xp.asarray(R)
        return compiled(function)(R, regularizer, *alike(R, theta), rows)
    _check_concrete(regularizer, R, theta)
    R, theta = np.asarray(R, float), np.asarray(theta, float)
    free = np.flatnonzero(regularizer.free(theta))
    whole = np.zeros((len(theta), len(theta)))
    if len(free) > 0:
        whole[np.ix_(free, free)] = function(R, regularizer, theta, rows, free)
    return xp.asarray(whole)


def _covariance(R: Array, regularizer: Regularizer, theta: Array, rows: Any, free: Any = slice(None)) -> Array:
    return Factor.of(_posterior_root(R, regularizer, theta, rows, free), rows).covariance()


def _posterior_root(R: Array, regularizer: Regularizer, theta: Array, rows: Any, free: Any = slice(None)) -> Array:
    xp = namespace(R)
    regularizer = cast_on_jax(regularizer, R)
    c, A, B = curvature(column_norms(R), regularizer, theta)
    U, _ = qr(xp.concatenate([R / c[None], A])[:, free])
    if B is None:
        return U * c[free][None]
    N = B[:, free]

    def less() -> Array:  # the square root of U'U - N'N; what is not positive counts as zero
        e, W = xp.linalg.eigh(U.T @ U - N.T @ N)
        return qr(xp.sqrt(xp.maximum(e, 0))[:, None] * W.T)[0]

    return cond_rare((N != 0).any(), less, lambda: U) * c[free][None]


def _check(R: Array, z: Array, start: Array | None) -> None:
    if R.ndim != 2 or z.ndim not in (1, 2) or z.shape[:1] != R.shape[:1]:
        raise ValueError(f"R must have shape (m, d) and z (m,) or (m, k); got shapes {R.shape} and {z.shape}.")
    if start is not None and start.shape != R.shape[1:]:
        raise ValueError(f"start must have one entry per column of R, shape {R.shape[1:]}; got {start.shape}.")
    for name, value in (("R", R), ("z", z), ("start", start)):
        if value is not None:
            check_floating(name, value)
            check_finite(name, value)


def _check_concrete(regularizer: Any, *arrays: Any) -> None:
    if is_traced(regularizer, *arrays):
        raise TypeError(
            f"prox with {type(regularizer).__name__} looks at values and cannot be traced by JAX: call it "
            "outside jit, vmap and grad, or use a smooth regulariser (SmoothL1, Huber) there."
        )
