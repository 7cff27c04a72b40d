"""The proximal operator of g in the metric of the data: argmin over t of 1/2 ||R t - z||^2 + g(t).

There is one solver for each kind of g: `quadratic`, `newton` for other smooth g, and `active_set` for g with kinks or
bounds. None of them forms R'R, and all scale the columns of R, so that no result depends on the units of a parameter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array, alike, cast_on_jax, is_traced, namespace
from kalprox.base.checks import check_finite, check_floating
from kalprox.base.control import call_on_host, compiled
from kalprox.linalg.rank import tolerance
from kalprox.regularizers import Regularizer
from kalprox.solvers.active_set import active_set
from kalprox.solvers.curvature import hessian_root
from kalprox.solvers.implicit import differentiable
from kalprox.solvers.newton import newton
from kalprox.solvers.quadratic import quadratic
from kalprox.solvers.squares import default_tol


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


def prox(
    R: Array,
    z: Array,
    regularizer: Regularizer,
    start: Array | None = None,
    *,
    rows: Any = None,
) -> Prox:
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
    xp = namespace(R, z, regularizer, start)
    _check(R, z, start)
    start = np.zeros(R.shape[1]) if start is None else start
    if xp is not np and (regularizer.smooth or is_traced(R, z, regularizer, start, rows)):
        R = xp.asarray(R)
        solved: Prox = compiled(_solve)(R, *alike(R, z, start), regularizer, rows)
        return solved
    # On the host, float32 is converted to float64 and the result converted back.
    out = _solve(np.asarray(R, float), np.asarray(z, float), np.asarray(start, float), regularizer, rows)
    return out._replace(theta=xp.asarray(out.theta, R.dtype), free=xp.asarray(out.free))


def posterior_root(R: Array, regularizer: Regularizer, theta: Array) -> Array:
    """Return the upper triangle U with U'U = R'R + Hess g(theta) on the free coordinates.

    Rows and columns of coordinates that are not free are zero. A direction in which the curvature is negative (g is
    not convex and theta no minimum) counts as having no curvature.

    Parameters
    ----------
    R : array of shape (m, d)
    regularizer : Regularizer
    theta : array of shape (d,)
        Usually the minimiser that `prox` found.

    Returns
    -------
    U : array of shape (d, d)
    """
    xp = namespace(R, regularizer, theta)
    if xp is not np and regularizer.smooth:  # all coordinates are free
        R = xp.asarray(R)
        return compiled(_smooth_root)(R, regularizer, *alike(R, theta))
    _check_concrete(regularizer, R, theta)
    R, theta = np.asarray(R, float), np.asarray(theta, float)
    free = np.flatnonzero(regularizer.free(theta))
    padded = np.zeros((len(theta), len(theta)))
    if len(free) > 0:
        padded[np.ix_(free, free)] = hessian_root(R, regularizer, theta, free)
    return xp.asarray(padded)


def _smooth_root(R: Array, regularizer: Regularizer, theta: Array) -> Array:
    return hessian_root(R, cast_on_jax(regularizer, R), theta, slice(None))


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
        solver = _newton if regularizer.smooth else _active_set
        theta, residual, iterations = solver(R, z, regularizer, start, rows)
    # A direction that counts as undetermined may leave a residual up to the tolerance for rank.
    tol = xp.maximum(default_tol(R.dtype), tolerance(d, rows, R.dtype))
    free = regularizer.free(theta) if root is None else xp.ones(theta.shape, bool)
    return Prox(theta, free, residual, iterations, residual <= tol)


@differentiable
def _newton(R: Array, z: Array, g: Regularizer, start: Array, rows: Any) -> tuple[Array, Array, Array]:
    return newton(R, z, g, start)


@differentiable
def _active_set(R: Array, z: Array, g: Regularizer, start: Array, rows: Any) -> tuple[Array, Array, Array]:
    """`active_set`, which on JAX arrays is called on the host, in float64."""
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
            f"The covariance with {type(regularizer).__name__} depends on concrete values and cannot be traced by JAX. "
            "Call it outside jit, vmap and grad, or use a smooth regulariser there, such as SmoothL1 or Huber."
        )
