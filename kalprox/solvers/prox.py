"""The read-out: theta = argmin over t of 1/2 ||R t - z||^2 + g(t), for every kind of g, and its covariance.

Quadratic g is one more QR, here; other smooth g is minimised by `newton`, and g with kinks or bounds by `active_set`.
R is never squared, and columns are scaled inside, so that nothing depends on the units of a parameter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kalprox._arrays import Array, cast, is_traced, namespace, register_pytrees
from kalprox._checks import check_finite, check_floating
from kalprox._control import compiled, cond_rare
from kalprox.linalg.rank import maybe_singular
from kalprox.linalg.triangle import column_norms, qr, rounding, solve_triangular
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


def prox(R: Array, z: Array, regularizer: Regularizer, start: Array | None = None, *, tol: float | None = None) -> Prox:
    """argmin over t of 1/2 ||R t - z||^2 + g(t), R of shape (m, d) (any m: usually a triangle), z (m,).

    Quadratic g: exact, O((m + d) d^2), of minimum norm where [R; root of g] is rank deficient (decided on
    scaled columns). Other smooth g: Newton from `start` (default 0), a QR a step; a stationary point, and
    the minimiser where g is convex. L1, elastic net, group, box: exact zeros and exact bounds, a handful of
    QRs of the free columns; where the minimiser is not unique, one of them.

    All go on until rounding stops them; `tol` is the residual at which that counts as converged, by
    default eps^0.575: 1e-9 in float64, 1e-4 in float32.

    Smooth g on JAX arrays can be compiled and vmapped. The others are solved on the host, in float64.

    >>> R, z = np.eye(2), np.array([3.0, 0.5])
    >>> from kalprox.regularizers import L1
    >>> prox(R, z, L1(1.0)).theta
    array([2., 0.])
    """
    xp = namespace(R, z, regularizer, start)
    if xp is not np:
        register_pytrees()
    _check(R, z, start)
    d, dtype = R.shape[1], R.dtype
    start = xp.zeros(d, dtype) if start is None else start
    if xp is not np and regularizer.smooth:
        arrays = (xp.asarray(R), xp.asarray(z, dtype), xp.asarray(start, dtype))
        return compiled(_solve)(*arrays, regularizer, tol)
    # On the host float32 is taken up to float64 and, at the end, down again.
    _check_concrete(regularizer, R, z, start)
    out = _solve(np.asarray(R, float), np.asarray(z, float), np.asarray(start, float), regularizer, tol)
    return out._replace(theta=xp.asarray(out.theta, dtype), free=xp.asarray(out.free))


def posterior_root(R: Array, regularizer: Regularizer, theta: Array) -> Array:
    """The upper-triangular U, shape (d, d), with U'U = R'R + Hess g(theta) on the free coordinates.

    Rows and columns of coordinates that are not free are zero. A direction in which the curvature is
    negative (g not convex, theta no minimum) counts as having none.
    """
    return _on_free(_posterior_root, R, regularizer, theta)


def covariance(R: Array, regularizer: Regularizer, theta: Array) -> Array:
    """(R'R + Hess g(theta))^-1 on the free coordinates, zero rows and columns for the others: (d, d).

    For smooth g it is the Laplace covariance in units of the noise, the posterior's own where g is quadratic.
    For g with kinks or bounds it is conditional on the active set: what regression on the free columns
    alone would say. It does not count that the data chose these columns, and the zero variance of the
    others means "held", not "known".

    Where data and g leave a direction undetermined, the variance of the coordinates it touches is
    infinite: the limit of an ever vaguer prior, covariances with their sign. O(d^3).
    """
    return _on_free(_inverse, R, regularizer, theta)


def _solve(R: Array, z: Array, start: Array, regularizer: Regularizer, tol: Any) -> Prox:
    xp = namespace(R, z)
    if xp is not np:
        regularizer = cast(regularizer, R)
    root = regularizer.root(R.shape[1])
    if root is not None:
        theta, residual = _least_squares(R, z, xp.asarray(root, R.dtype))
        iterations: Any = xp.asarray(1)
    elif regularizer.smooth:
        theta, residual, iterations = newton(R, z, regularizer, start)
    else:
        theta, residual, iterations = active_set(R, z, start, regularizer)
    converged = residual <= (default_tol(R.dtype) if tol is None else tol)
    return Prox(theta, regularizer.free(theta), residual, iterations, converged)


def _least_squares(R: Array, z: Array, A: Array) -> tuple[Array, Array]:
    """argmin ||R t - z||^2 + ||A t||^2, of minimum norm where [R; A] is rank deficient; and its residual."""
    xp, d = namespace(R, z), R.shape[1]
    data, tol = Squares.of(R, z), rounding(d, R.dtype)
    c = xp.hypot(data.norms, column_norms(A))
    c = xp.where(c > 0, c, 1)
    U, y = qr(xp.concatenate([R, A]) / c[None], z)

    def measure(t: Array) -> tuple[Array, Array]:
        """The gradient at t, and the residual."""
        r, terms = data.at(t)
        gradient = R.T @ r + A.T @ (A @ t)
        size = xp.abs(A).T @ (xp.abs(A) @ xp.abs(t))  # rows of A may cancel among themselves
        return gradient, data.relative(gradient, terms, size)

    def regular() -> tuple[Array, Array]:
        t = solve_triangular(U, y) / c
        gradient, residual = measure(t)

        def corrected() -> tuple[Array, Array]:
            # Where A's entries dwarf R's, QR drowns the small ones: one correction with the gradient itself.
            new = t - solve_triangular(U, solve_triangular(U, gradient / c, transposed=True)) / c
            _, left = measure(new)
            return xp.where(left < residual, new, t), xp.minimum(left, residual)

        return cond_rare(residual > tol, corrected, lambda: (t, residual))

    def shortest() -> tuple[Array, Array]:
        W, s, Vt = xp.linalg.svd(U)
        positive = s > tol
        inverse = xp.where(positive, 1 / xp.where(positive, s, 1), 0)
        t = (Vt.T @ (inverse * (W.T @ y))) / c
        # The null space in the units of theta: of all solutions, the one orthogonal to it is the shortest.
        null = Vt.T * xp.where(positive, 0, 1).astype(U.dtype)[None] / c[:, None]
        size = column_norms(null)
        basis, s, _ = xp.linalg.svd(null / xp.where(size > 0, size, 1)[None])
        basis = xp.where(s[None] > tol, basis, 0)
        t = t - basis @ (basis.T @ t)
        # What the projection moved of the fit, by its rounding in columns of very different size.
        t = t - (Vt.T @ (inverse**2 * (Vt @ (measure(t)[0] / c)))) / c
        return t, measure(t)[1]

    def doubtful() -> tuple[Array, Array]:
        return cond_rare(xp.linalg.svd(U, compute_uv=False).min() <= tol, shortest, regular)

    return cond_rare(maybe_singular(U), doubtful, regular)


def _on_free(function: Callable, R: Array, regularizer: Any, theta: Array) -> Array:
    """function(R, g, theta, free), in place among all coordinates; for smooth g compiled where JAX's."""
    xp = namespace(R, regularizer, theta)
    if xp is not np:
        register_pytrees()
        if regularizer.smooth:
            return compiled(function)(xp.asarray(R), regularizer, xp.asarray(theta, R.dtype))
    _check_concrete(regularizer, R, theta)
    R, theta = np.asarray(R, float), np.asarray(theta, float)
    free = np.flatnonzero(regularizer.free(theta))
    whole = np.zeros((len(theta), len(theta)))
    if len(free) > 0:
        whole[np.ix_(free, free)] = function(R, regularizer, theta, free)
    return xp.asarray(whole)


def _posterior_root(R: Array, regularizer: Regularizer, theta: Array, free: Any = slice(None)) -> Array:
    U, c = _root(R, regularizer, theta, free)
    return U * c[None]


def _inverse(R: Array, regularizer: Regularizer, theta: Array, free: Any = slice(None)) -> Array:
    """(R'R + Hess g)^-1, infinite where it does not exist."""
    xp = namespace(R)
    U, c = _root(R, regularizer, theta, free)
    tol = rounding(len(c), U.dtype)

    def regular() -> Array:
        inverse = solve_triangular(U, xp.eye(len(c), dtype=U.dtype))
        return inverse @ inverse.T

    def deficient() -> Array:
        _, s, Vt = xp.linalg.svd(U)
        positive = s > tol
        scaled = Vt * xp.where(positive, 1 / xp.where(positive, s, 1), 0)[:, None]
        null = Vt * xp.where(positive, 0, 1)[:, None].astype(U.dtype)
        undetermined = null.T @ null
        touched = xp.abs(undetermined) > tol**0.5
        return xp.where(touched, xp.where(undetermined > 0, np.inf, -np.inf), scaled.T @ scaled)

    return cond_rare(maybe_singular(U), deficient, regular) / c[:, None] / c[None]


def _root(R: Array, regularizer: Regularizer, theta: Array, free: Any) -> tuple[Array, Array]:
    """The triangle U and scales c with c U'U c = R'R + Hess g, on the free coordinates."""
    xp = namespace(R)
    if xp is not np:
        regularizer = cast(regularizer, R)
    c, A, B = curvature(column_norms(R), regularizer, theta)
    U, _ = qr(xp.concatenate([R / c[None], A])[:, free])
    if B is None:
        return U, c[free]
    N = B[:, free]

    def less() -> Array:  # the square root of U'U - N'N; what is not positive counts as zero
        e, W = xp.linalg.eigh(U.T @ U - N.T @ N)
        return qr(xp.sqrt(xp.maximum(e, 0))[:, None] * W.T)[0]

    return cond_rare((N != 0).any(), less, lambda: U), c[free]


def _check(R: Array, z: Array, start: Array | None) -> None:
    if R.ndim != 2 or z.shape != R.shape[:1]:
        raise ValueError(f"R must be (m, d) and z (m,); got shapes {R.shape} and {z.shape}.")
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
