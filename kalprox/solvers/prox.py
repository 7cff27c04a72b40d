"""The proximal operator of g in the metric of the data: argmin over t of 1/2 ||R t - z||^2 + g(t).

There is one solver for each kind of g: `quadratic`, `newton` for other smooth g, and `active_set` for g with kinks or
bounds. None of them forms R'R, and all scale the columns of R, so that no result depends on the units of a parameter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array, alike, cast_on_jax, is_traced, namespace
from kalprox.base.checks import check_finite, check_floating
from kalprox.base.control import call_on_host, compiled, cond_rare, select, with_jvp
from kalprox.linalg.fold import gram_triangle
from kalprox.linalg.rank import least_squares_step, solve_and_factor, tolerance
from kalprox.linalg.triangle import product, qr, rounding
from kalprox.regularizers import Regularizer
from kalprox.solvers.active_set import active_set
from kalprox.solvers.newton import newton
from kalprox.solvers.squares import Squares, default_tol
from kalprox.solvers.terms import hessian_root


class Prox(NamedTuple):
    """The minimiser of 1/2 ||R t - z||^2 + g(t), and how accurate it is.

    Attributes
    ----------
    theta : array of shape (d,) or (d, k)
        The minimiser.
    free : array of the shape of theta, bool
        Which coordinates are at no kink and no bound of g.
    residual : scalar or array of shape (k,)
        The violation of the optimality condition: the largest distance of minus the gradient of the first term from
        the subdifferential of g, each coordinate relative to ||R_j|| (||z|| + ||R theta||) and to the terms of g. It
        has no units, and at best is near 1e-16 in float64.
    iterations : int
        The number of steps or rounds that the solver took.
    converged : bool or array of shape (k,)
        Whether the residual is within the tolerance.
    """

    theta: Array
    free: Array
    residual: Array
    iterations: Array
    converged: Array


def prox(R: Array, z: Array, regularizer: Regularizer, start: Array | None = None, *, rows: Any = None) -> Prox:
    """Minimise 1/2 ||R t - z||^2 + g(t) over t.

    Quadratic g is solved exactly, in O((m + d) d^2), by one QR factorisation of R on top of the root of g. Where
    that stack is rank deficient the minimiser of minimum norm is returned. Other smooth g is minimised by Newton's
    method, with one QR per step, to a stationary point, which is the minimiser where g is convex. For L1, elastic net,
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
    rows : scalar, optional
        The total weight of the rows folded into R, for the rule for rank in `kalprox.linalg.rank`.

    Returns
    -------
    Prox
        The minimiser, which coordinates are free, and how accurate the minimiser is. Every solver goes on until
        rounding stops it; a residual up to eps^0.575 counts as converged, 1e-9 in float64 and 1e-4 in float32.

    Notes
    -----
    With JAX arrays the function can be compiled, differentiated forwards and backwards, by R, z and the parameters of
    g, and batched. Penalties that are not smooth are solved on the host in float64. Their derivative is that of the
    coordinates that are free at the minimiser, while the others stay at their kink or move with their bound; exactly
    at the threshold between the two it is one-sided.

    Examples
    --------
    >>> R, z = np.eye(2), np.array([3.0, 0.5])
    >>> from kalprox.regularizers import L1
    >>> prox(R, z, L1(1.0)).theta
    array([2., 0.])
    """
    _check(R, z, start)
    return solve(R, z, regularizer, start, rows)


def solve(R: Array, z: Array, regularizer: Regularizer, start: Array | None, rows: Any) -> Prox:
    """Return what `prox` does for arrays that have been checked."""
    xp = namespace(R, z, regularizer, start)
    start = np.zeros(R.shape[1]) if start is None else start
    if xp is not np and (regularizer.smooth or is_traced(R, z, regularizer, start, rows)):
        R = xp.asarray(R)
        solved: Prox = compiled(_solve)(R, *alike(R, z, start), regularizer, rows)
        return solved
    # On the host, float32 is converted to float64 and the result converted back.
    out = _solve(np.asarray(R, float), np.asarray(z, float), np.asarray(start, float), regularizer, rows)
    return out._replace(theta=xp.asarray(out.theta, R.dtype), free=xp.asarray(out.free))


def posterior_root(R: Array, regularizer: Regularizer, theta: Array) -> tuple[Array, Array | None]:
    """Return the upper triangle U with U'U = R'R + Hess g(theta) on the free coordinates, and their numbers.

    A direction in which the curvature is negative (g is not convex and theta no minimum) counts as having no curvature.

    Parameters
    ----------
    R : array of shape (m, d)
    regularizer : Regularizer
    theta : array of shape (d,)
        Usually the minimiser that `prox` found.

    Returns
    -------
    U : array of shape (f, f)
    free : array of shape (f,) or None
        None on JAX arrays, where all are free.
    """
    xp = namespace(R, regularizer, theta)
    if xp is not np and regularizer.smooth:  # all coordinates are free
        R = xp.asarray(R)
        return compiled(hessian_root)(R, cast_on_jax(regularizer, R), *alike(R, theta)), None
    if is_traced(regularizer, R, theta):
        raise TypeError(
            f"The covariance with {type(regularizer).__name__} depends on concrete values and cannot be traced by JAX. "
            "Call it outside jit, vmap and grad, or use a smooth regulariser there, such as SmoothL1 or Huber."
        )
    R, theta = np.asarray(R, float), np.asarray(theta, float)
    free = np.flatnonzero(regularizer.free(theta))
    return (hessian_root(R, regularizer, theta, free) if len(free) else np.zeros((0, 0))), free


def _solve(R: Array, z: Array, start: Array, regularizer: Regularizer, rows: Any) -> Prox:
    xp, d = namespace(R, z), R.shape[1]
    regularizer = cast_on_jax(regularizer, R)
    root = regularizer.root(d)
    if root is None and z.ndim > 1:
        raise ValueError(f"z must have shape (m,) unless g is quadratic; got {z.shape}. Solve target by target.")
    if root is not None:
        theta, residual = quadratic(R, z, regularizer, rows)
        iterations: Any = xp.asarray(1)
    else:
        theta, residual, iterations = _search(R, z, regularizer, start, rows)
    # A direction that counts as undetermined may leave a residual up to the tolerance for rank.
    tol = xp.maximum(default_tol(R.dtype), tolerance(d, rows, R.dtype))
    free = regularizer.free(theta) if root is None else xp.ones(theta.shape, bool)
    return Prox(theta, free, residual, iterations, residual <= tol)


def _check(R: Array, z: Array, start: Array | None) -> None:
    if R.ndim != 2 or z.ndim not in (1, 2) or z.shape[:1] != R.shape[:1]:
        raise ValueError(f"R must have shape (m, d) and z (m,) or (m, k); got shapes {R.shape} and {z.shape}.")
    if start is not None and start.shape != R.shape[1:]:
        raise ValueError(f"start must have one entry per column of R, shape {R.shape[1:]}; got {start.shape}.")
    for name, value in (("R", R), ("z", z), ("start", start)):
        if value is not None:
            check_floating(name, value)
            check_finite(name, value)


def _quadratic_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The derivative of the minimiser with respect to R, z and the parameters of g.

    With t the minimiser, R'(R t - z) + grad g(t) = 0. Differentiated, this is the optimality condition of another
    least-squares problem with the same matrix, so that neither QR nor SVD has to be differentiated. The residual
    is rounding error, and its derivative is taken as zero.
    """
    import jax

    (R, z, g, rows), (dR, dz, dg, _) = primals, tangents
    theta, residual, P = _solve_quadratic(R, z, g, rows)

    def slope(g: Regularizer) -> Array:
        return g.grad(theta) if theta.ndim == 1 else jax.vmap(g.grad, 1, 1)(theta)

    v = product(dR.T, product(R, theta) - z) + jax.jvp(slope, (g,), (dg,))[1]
    step = least_squares_step(R, P, dz - product(dR, theta), v)
    return (theta, residual), (step, 0 * residual)


@with_jvp(_quadratic_jvp)
def quadratic(R: Array, z: Array, g: Regularizer, rows: Any) -> tuple[Array, Array]:
    """Return the minimiser of 1/2 ||R t - z||^2 + g(t) for a quadratic g, and its residual.

    Where [R; A] is rank deficient, by the rule of `kalprox.linalg.rank` for that weight of `rows`, the minimiser of
    minimum norm is returned. z has shape (m,) or (m, k).
    """
    theta, residual, _ = _solve_quadratic(R, z, g, rows)
    return theta, residual


def _solve_quadratic(R: Array, z: Array, g: Regularizer, rows: Any) -> tuple[Array, Array, Array]:
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


def _search_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The derivative of the minimiser, forwards and backwards, to any order.

    The residual is rounding error, and its derivative is taken as zero. Where a coordinate is exactly at the threshold
    between held and free, it counts as held: the derivative is then the one towards that side.
    """
    import jax

    (R, z, g, start, rows), (dR, dz, dg, _, _) = primals, tangents
    theta, residual, steps = _search(R, z, g, start, rows)
    slope = jax.jvp(lambda g: g.grad(theta), (g,), (dg,))[1]
    moved = jax.jvp(lambda g: g.held(theta), (g,), (dg,))[1]
    free = g.free(theta)
    moved = jax.numpy.where(free, 0, moved)
    w = dz - product(dR, theta) - product(R, moved)
    v = jax.numpy.where(free, product(dR.T, product(R, theta) - z) + slope, 0)
    no_tangent = np.zeros(steps.shape, jax.dtypes.float0)
    return (theta, residual, steps), (moved + _step(R, g, theta, free, rows, w, v), 0 * residual, no_tangent)


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


@with_jvp(_search_jvp)
def _search(R: Array, z: Array, g: Regularizer, start: Array, rows: Any) -> tuple[Array, Array, Array]:
    """Return the minimiser, its residual and the number of steps; with kinks, JAX calls the host, in float64."""
    if g.smooth:
        return newton(R, z, g, start)
    if namespace(R, z, g, start, rows) is np:
        theta, residual, rounds = active_set(R, z, start, g, rows)
        return theta, np.asarray(residual), np.asarray(rounds)
    import jax

    def on_host(*args: Any) -> tuple[np.ndarray, float, int]:
        R, z, g, start, rows = jax.tree_util.tree_map(lambda a: np.asarray(a, float), args)
        return active_set(R, z, start, g, rows)

    shape: Callable[..., Any] = jax.ShapeDtypeStruct
    shapes = shape(R.shape[1:], R.dtype), shape((), R.dtype), shape((), np.int32)
    return call_on_host(on_host, shapes, R, z, g, start, rows)
