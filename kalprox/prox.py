"""The read-out: theta = argmin over t of 1/2 ||R t - z||^2 + g(t), for every kind of g, and its covariance.

Quadratic g is one more QR, smooth g a safeguarded Newton method, and g with kinks or bounds descends
by coordinates (or groups) to find which of them are free, then solves for these exactly. R is never
squared, and columns are scaled inside, so that nothing depends on the units of a parameter.
"""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from kalprox._arrays import Array, cast, is_traced, namespace, register_pytrees, while_loop
from kalprox._checks import check_finite, check_floating
from kalprox.regularizers import GroupL1, Pieces, Regularizer
from kalprox.regularizers.base import per_coordinate

__all__ = ["Prox", "covariance", "posterior_root", "prox"]

_MAX_NEWTON = 200  # smooth g: tens are usual, the rest is for starts far out on a flat tail
_MAX_SEARCH = 60  # halvings or doublings of a step: all of float64's range
_FEW = 10  # coordinates or groups a sweep may free before another sweep is cheaper than solves that drop them
_MAX_ROUNDS = 200  # g with kinks: rounds of descent and exact solves; 2 to 10 are usual


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
    start = xp.zeros(d, dtype) if start is None else xp.asarray(start)
    if not regularizer.smooth:
        return _on_host(xp, R, z, regularizer, start, tol)
    if xp is np:  # float32 is taken up to float64 and, at the end, down again
        out = _smooth(np.asarray(R, float), np.asarray(z, float), np.asarray(start, float), regularizer, tol)
        return out._replace(theta=out.theta.astype(dtype))
    return _compiled(_smooth)(xp.asarray(R), xp.asarray(z, dtype), xp.asarray(start, dtype), regularizer, tol)


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


def _on_free(function: Callable[[Array, Array], Array], R: Array, regularizer: Any, theta: Array) -> Array:
    """function(R, Hess g) of the free columns, in place among all; for smooth g compiled where JAX's."""
    xp = namespace(R, regularizer, theta)
    if xp is not np:
        register_pytrees()
    if regularizer.smooth and xp is not np:
        theta = xp.asarray(theta, R.dtype)
        return _compiled(function)(xp.asarray(R), cast(regularizer, theta).hessian(theta))
    _check_concrete(regularizer, R, theta)
    R, theta = np.asarray(R, float), np.asarray(theta, float)
    free, h = regularizer.free(theta), regularizer.hessian(theta)
    whole = np.zeros((len(theta), len(theta)))
    if free.any():
        whole[np.ix_(free, free)] = function(R[:, free], h[free] if h.ndim == 1 else h[np.ix_(free, free)])
    return xp.asarray(whole)


def _posterior_root(R: Array, h: Array) -> Array:
    U, c = _root(namespace(R), R, h)
    return U * c[None]


def _inverse(R: Array, h: Array) -> Array:
    """(R'R + h)^-1, infinite where it does not exist."""
    xp = namespace(R)
    U, c = _root(xp, R, h)

    def regular(_: Any) -> Array:
        inverse = _solve(xp, U, xp.eye(len(c), dtype=U.dtype))
        return inverse @ inverse.T

    def deficient(_: Any) -> Array:
        _, s, Vt = xp.linalg.svd(U)
        positive = s > _rounding(len(c), U.dtype)
        scaled = Vt * xp.where(positive, 1 / xp.where(positive, s, 1), 0)[:, None]
        null = Vt * xp.where(positive, 0, 1)[:, None].astype(U.dtype)
        undetermined = null.T @ null
        touched = xp.abs(undetermined) > _rounding(len(c), U.dtype) ** 0.5
        return xp.where(touched, xp.where(undetermined > 0, np.inf, -np.inf), scaled.T @ scaled)

    return _branch(xp, _suspect(xp, U), deficient, regular, None) / c[:, None] / c[None]


# -- shared ------------------------------------------------------------------------------------------


def _check(R: Array, z: Array, start: Array | None) -> None:
    if R.ndim != 2 or z.shape != R.shape[:1]:
        raise ValueError(f"R must be (m, d) and z (m,); got shapes {R.shape} and {z.shape}.")
    if start is not None and start.shape != R.shape[1:]:
        raise ValueError(f"start must have one entry per column of R, shape {R.shape[1:]}; got {start.shape}.")
    for name, value in (("R", R), ("z", z), ("start", start)):
        if value is not None:
            check_floating(name, value)
            check_finite(name, value)


@cache
def _compiled(function: Callable) -> Callable:  # once for each, so that calls outside a jit find it compiled
    import jax

    return jax.jit(function)


def _rounding(d: int, dtype: Any) -> float:
    """What d terms of size 1 can leave of a zero: the bound below which a pivot or a residual is none."""
    return 4 * (10 + d) * float(np.finfo(dtype).eps)


def _branch(xp: ModuleType, predicate: Any, yes: Callable, no: Callable, operand: Any) -> Any:
    if xp is np:
        return yes(operand) if predicate else no(operand)
    import jax

    return jax.lax.cond(predicate, yes, no, operand)


def _solve(xp: ModuleType, U: Array, b: Array, *, transposed: bool = False) -> Array:
    """U^-1 b or U^-T b. U's diagonal has been looked at before."""
    if xp is np:
        return solve_triangular(U, b, trans=int(transposed), check_finite=False)
    import jax

    return jax.scipy.linalg.solve_triangular(U, b, trans=int(transposed))


def _norms(xp: ModuleType, M: Array) -> Array:
    """Column norms, without overflow or underflow."""
    if len(M) == 0:
        return xp.zeros(M.shape[1], M.dtype)
    size = xp.abs(M).max(0)
    size = xp.where(size > 0, size, 1)
    return size * xp.sqrt(((M / size[None]) ** 2).sum(0))


def _qr(xp: ModuleType, M: Array, y: Array | None = None) -> tuple[Array, Array]:
    """The triangle U, shape (d, d), and Q' y of M = Q U. M may have fewer rows than columns, y fewer
    entries than M has rows: zeros are meant. Q itself is never formed: y rides along as a column."""
    m, d = M.shape
    y = xp.zeros(0, M.dtype) if y is None else y
    column = xp.concatenate([y, xp.zeros(m - len(y), M.dtype)])
    rows = xp.concatenate([M, column[:, None]], 1)
    if m < d:
        rows = xp.concatenate([rows, xp.zeros((d - m, d + 1), M.dtype)])
    T = xp.linalg.qr(rows, mode="r")
    return T[:d, :d], T[:d, d]


def _suspect(xp: ModuleType, U: Array) -> Array:
    """Whether U, of unit columns, may be rank deficient: a diagonal understates its condition, so the
    bound is wide, and singular values decide behind it."""
    return xp.abs(xp.diag(U)).min() < np.finfo(U.dtype).eps ** 0.5


def _relative(xp: ModuleType, R: Array, z: Array, theta: Array, size: Array, gradient: Array) -> Array:
    """The largest entry of a gradient, each relative to the data's terms at theta and g's, of that size."""
    size = _norms(xp, R) * _fit(xp, R, z, theta) + size
    # Far below all that was ever measured is zero: with z = 0 all sizes shrink with theta itself.
    return (xp.abs(gradient) / xp.maximum(size, np.finfo(R.dtype).tiny ** 0.75)).max()


def _fit(xp: ModuleType, R: Array, z: Array, theta: Array) -> Array:
    return _norms(xp, xp.stack([z, R @ theta], 1)).sum()


def _enough(dtype: Any) -> float:
    return float(np.finfo(dtype).eps) ** 0.575


def _rounded(xp: ModuleType, R: Array, z: Array, theta: Array) -> Array:
    """The residual that rounding leaves: more where columns cancel, but not for that any above `_enough`."""
    terms = (_norms(xp, R) * xp.abs(theta)).sum()
    rounding = _rounding(R.shape[1], R.dtype)
    lost = terms / (_fit(xp, R, z, theta) + np.finfo(R.dtype).tiny)
    return xp.clip(rounding * lost, rounding, max(rounding, _enough(R.dtype)))


def _least_squares(xp: ModuleType, R: Array, z: Array, A: Array) -> tuple[Array, Array]:
    """argmin ||R t - z||^2 + ||A t||^2, of minimum norm where [R; A] is rank deficient; and its residual."""
    d = R.shape[1]
    M = xp.concatenate([R, A])
    c = _norms(xp, M)
    c = xp.where(c > 0, c, 1)
    U, y = _qr(xp, M / c[None], z)

    def gradient(t: Array) -> Array:
        return R.T @ (R @ t - z) + A.T @ (A @ t)

    def residual(t: Array) -> Array:
        size = xp.abs(A).T @ (xp.abs(A) @ xp.abs(t))  # rows of A may cancel among themselves
        return _relative(xp, R, z, t, size, gradient(t))

    def regular(_: Any) -> Array:
        t = _solve(xp, U, y) / c
        # Where A's entries dwarf R's, QR drowns the small ones: one correction with the gradient itself.
        corrected = t - _solve(xp, U, _solve(xp, U, gradient(t) / c, transposed=True)) / c
        before = residual(t)
        return xp.where((before > _rounding(d, U.dtype)) & (residual(corrected) < before), corrected, t)

    def shortest(_: Any) -> Array:
        W, s, Vt = xp.linalg.svd(U)
        positive = s > _rounding(d, U.dtype)
        inverse = xp.where(positive, 1 / xp.where(positive, s, 1), 0)
        t = (Vt.T @ (inverse * (W.T @ y))) / c
        # The null space in the units of theta: of all solutions, the one orthogonal to it is the shortest.
        null = Vt.T * xp.where(positive, 0, 1).astype(U.dtype)[None] / c[:, None]
        size = _norms(xp, null)
        basis, s, _ = xp.linalg.svd(null / xp.where(size > 0, size, 1)[None])
        basis = xp.where(s[None] > _rounding(d, U.dtype), basis, 0)
        t = t - basis @ (basis.T @ t)
        # What the projection moved of the fit, by its rounding in columns of very different size.
        return t - (Vt.T @ (inverse**2 * (Vt @ (gradient(t) / c)))) / c

    def doubtful(_: Any) -> Array:
        s = xp.linalg.svd(U, compute_uv=False)
        return _branch(xp, s.min() > _rounding(d, U.dtype), regular, shortest, None)

    t = _branch(xp, _suspect(xp, U), doubtful, regular, None)
    return t, residual(t)


def _curvature(xp: ModuleType, R: Array, h: Array) -> tuple[Array, Array, Array]:
    """Column scales c, and A, B with Hess g = c (A'A - B'B) c: g's curvature by sign, as rows below R."""
    diagonal = h if h.ndim == 1 else xp.diag(h)
    c = xp.hypot(_norms(xp, R), xp.sqrt(xp.abs(diagonal)))
    c = xp.where(c > 0, c, 1)
    if h.ndim == 1:
        root = xp.sqrt(xp.abs(h)) / c
        return c, xp.diag(xp.where(h > 0, root, 0)), xp.diag(xp.where(h < 0, root, 0))
    e, V = xp.linalg.eigh(h / c[:, None] / c[None])
    e = xp.where(xp.abs(e) > _rounding(len(c), e.dtype) * xp.abs(e).max(), e, 0)
    root = xp.sqrt(xp.abs(e))[:, None] * V.T
    return c, xp.where(e[:, None] > 0, root, 0), xp.where(e[:, None] < 0, root, 0)


def _root(xp: ModuleType, R: Array, h: Array) -> tuple[Array, Array]:
    """The triangle U and scales c with c U'U c = R'R + h."""
    c, A, B = _curvature(xp, R, h)
    U, _ = _qr(xp, xp.concatenate([R / c[None], A]))

    def less(_: Any) -> Array:  # the square root of U'U - B'B; what is not positive counts as zero
        e, W = xp.linalg.eigh(U.T @ U - B.T @ B)
        return _qr(xp, xp.sqrt(xp.maximum(e, 0))[:, None] * W.T)[0]

    return _branch(xp, xp.abs(B).max() > 0, less, lambda _: U, None), c


# -- smooth g ----------------------------------------------------------------------------------------


def _smooth(R: Array, z: Array, start: Array, regularizer: Regularizer, tol: Any) -> Prox:
    xp = namespace(R, z)
    if xp is not np:
        regularizer = cast(regularizer, R)
    d = R.shape[1]
    root = regularizer.root(d)
    if root is not None:
        theta, residual = _least_squares(xp, R, z, xp.asarray(root, R.dtype))
        iterations = xp.asarray(1)
    else:
        theta, residual, iterations = _newton(xp, R, z, regularizer, start)
    converged = residual <= (_enough(R.dtype) if tol is None else tol)
    return Prox(theta, regularizer.free(theta), residual, iterations, converged)


def _newton(xp: ModuleType, R: Array, z: Array, g: Regularizer, theta: Array) -> tuple[Array, Array, Array]:
    """Newton with a line search on the slope; one more step once the residual is down to rounding, for
    the last digits of theta."""
    tol = _rounding(R.shape[1], R.dtype)

    def times(h: Array, p: Array) -> Array:
        return h * p if h.ndim == 1 else h @ p

    def measure(t: Array) -> tuple[Array, Array, Array, Array]:
        slope, h = g.grad(t), g.hessian(t)
        size = xp.abs(slope) + times(xp.abs(h), xp.abs(t))
        residual = _relative(xp, R, z, t, size, R.T @ (R @ t - z) + slope)
        return slope, h, residual, residual <= _rounded(xp, R, z, t)

    def body(state: tuple) -> tuple:
        t, k, (slope_g, h, residual, within), short, _ = state
        r = R @ t - z
        # g's slope over t is the curvature of the parabola through t with its foot at 0. For a g that grows
        # slower than a parabola it lies above g: a step with it never goes too far. It takes over where neither
        # data nor g curve, and after a step that had to be cut short at a sharp bend of g.
        chord = xp.maximum(xp.where(t == 0, 0, slope_g / xp.where(t == 0, 1, t)), 0)
        h_used = xp.where(short, xp.maximum(h, chord), h) if h.ndim == 1 else h
        exact, plain = _directions(xp, R, r, slope_g, h_used, chord)

        def predicted(p: Array) -> Array:  # the residual that the quadratic model leaves
            return _relative(xp, R, z, t, xp.abs(slope_g), R.T @ (r + R @ p) + slope_g + times(h_used, p))

        p = xp.where((predicted(exact) > tol) & (predicted(plain) < predicted(exact)), plain, exact)
        Rp = R @ p
        value0 = (r @ r) / 2 + g.value(t)
        noise = 16 * np.finfo(R.dtype).eps * (xp.abs(value0) + (z @ z) / 2)

        def along(alpha: Array) -> tuple[Array, Array]:
            at, r_at = t + alpha * p, r + alpha * Rp
            return Rp @ r_at + p @ g.grad(at), (r_at @ r_at) / 2 + g.value(at) - value0 - noise

        alpha = _branch(xp, within, lambda _: xp.zeros((), R.dtype), lambda _: _search(xp, along, R.dtype), None)
        # Within the tolerance, or where slopes are rounding only: the whole step, if it loses nothing.
        last = alpha == 0
        new = t + xp.where(last, 1, alpha) * p
        after = measure(new)
        higher = ~(along(xp.ones((), R.dtype))[1] <= 0)
        worse = last & (higher | ~xp.where(within, after[3], after[2] <= residual)) | ~xp.isfinite(after[2])
        new = xp.where(worse, t, new)
        after = tuple(xp.where(worse, a, b) for a, b in zip((slope_g, h, residual, within), after, strict=True))
        stuck = (new == t).all() & (short | (h.ndim == 2))  # else the chord has not been tried
        return new, k + 1, after, ~short & (alpha < 0.5), within | stuck

    state = (theta, xp.asarray(0), measure(theta), xp.asarray(False), xp.asarray(False))
    theta, k, (_, _, residual, _), _, _ = while_loop(xp, lambda s: (s[1] < _MAX_NEWTON) & ~s[4], body, state)
    return theta, residual, k


def _directions(xp: ModuleType, R: Array, r: Array, slope: Array, h: Array, chord: Array) -> tuple[Array, Array]:
    """-(R'R + h)^-1 (R' r + slope), negative curvature turned positive, in two roundings: with Q' r, which
    keeps the digits where R is ill-conditioned, and with R' r, where g's curvature dwarfs R's entries.

    With U'U = R'R + (the positive part of h), the Hessian is U'(I - C)U, C >= 0 from the negative part:
    its eigenvalues are changed in the metric of U, where they are of size 1, so R keeps its digits.
    Where neither data nor g curve, `chord` does, and a little damping.
    """
    c, A, B = _curvature(xp, R, h)
    damping = np.finfo(R.dtype).eps ** 0.4

    def factor(A: Array) -> tuple[Array, Array]:
        return _qr(xp, xp.concatenate([R / c[None], A]), r)

    U, y = factor(A)
    flat = xp.abs(xp.diag(U)).min() < _rounding(len(c), R.dtype)
    damped = xp.concatenate([A, xp.diag(xp.sqrt(chord) / c + damping)])
    U, y = _branch(xp, flat, lambda _: factor(damped), lambda _: (U, y), None)
    both = _solve(xp, U, xp.stack([slope / c, (R.T @ r + slope) / c], 1), transposed=True)
    y = -both - xp.stack([y, xp.zeros_like(y)], 1)

    def indefinite(y: Array) -> Array:
        C = _solve(xp, U, B.T, transposed=True)
        e, W = xp.linalg.eigh(xp.eye(len(c), dtype=R.dtype) - C @ C.T)
        return W @ ((W.T @ y) / xp.maximum(xp.abs(e), damping)[:, None])

    y = _branch(xp, xp.abs(B).max() > 0, indefinite, lambda y: y, y)
    p = _solve(xp, U, y) / c[:, None]
    return p[:, 0], p[:, 1]


def _search(xp: ModuleType, along: Callable[[Array], tuple[Array, Array]], dtype: Any) -> Array:
    """A step alpha with a slope at most half the first one's and no higher value, by doubling and halving.

    `along(alpha)` gives the slope and the value above the start. On a convex function the slope alone
    decides, to the last digit, where values are equal to rounding; the value guards the others.
    """
    slope0, _ = along(xp.zeros((), dtype))

    def body(state: tuple) -> tuple:
        low, high, alpha, k, _ = state
        slope, above = along(alpha)
        higher = ~(above <= 0)
        good = (xp.abs(slope) <= xp.abs(slope0) / 2) & ~higher
        beyond = (slope > 0) | higher | xp.isnan(slope)
        high = xp.where(~good & beyond, alpha, high)
        low = xp.where(~good & ~beyond, alpha, low)
        following = xp.where(xp.isinf(high), 4 * alpha, (low + xp.where(xp.isinf(high), low, high)) / 2)
        return low, high, xp.where(good, alpha, following), k + 1, good

    one = xp.ones((), dtype)
    state = (0 * one, np.inf * one, one, xp.asarray(0), slope0 >= 0)  # no descent: only rounding is left
    low, _, alpha, _, good = while_loop(xp, lambda s: (s[3] < _MAX_SEARCH) & ~s[4], body, state)
    return xp.where(slope0 >= 0, 0, xp.where(good, alpha, low))


# -- g with kinks or bounds --------------------------------------------------------------------------


def _on_host(xp: ModuleType, R: Array, z: Array, regularizer: Any, start: Array, tol: float | None) -> Prox:
    _check_concrete(regularizer, R, z, start)
    host_R, host_z = np.asarray(R, float), np.asarray(z, float)
    if isinstance(regularizer, GroupL1):
        problem: _Coordinates | _Groups = _Groups(host_R, host_z, regularizer)
    else:
        problem = _Coordinates(host_R, host_z, regularizer.pieces())
    theta, residual, rounds = _descend(problem, np.asarray(start, float))
    converged = residual <= (_enough(float) if tol is None else tol)
    return Prox(xp.asarray(theta, R.dtype), xp.asarray(problem.free(theta)), residual, rounds, converged)


def _check_concrete(regularizer: Any, *arrays: Any) -> None:
    if is_traced(regularizer, *arrays):
        raise TypeError(
            f"prox with {type(regularizer).__name__} looks at values and cannot be traced by JAX: call it "
            "outside jit, vmap and grad, or use a smooth regulariser (SmoothL1, Huber) there."
        )


def _descend(problem: Any, theta: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Rounds of descent over the violators and exact solves on the free coordinates, down to rounding."""
    u = problem.scaled(theta)
    best, best_u = np.inf, u
    since = 0
    rounds = 0
    while rounds < _MAX_ROUNDS:
        violation = problem.violation(u)
        residual = violation.max(initial=0)
        if residual < best:
            best, best_u, since = residual, u.copy(), 0
        else:
            since += 1
        if residual <= _rounding(len(u), float):
            break
        allowed = _rounded(np, problem.X, problem.z, u)
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
            R, z = _qr(np, np.concatenate([R, np.diag(l2**0.5)]), z)
        c = _norms(np, R)
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

    def free(self, theta: np.ndarray) -> np.ndarray:
        left, right = self.raw.slopes(theta)
        return left == right

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
                return u
            r = self.z - self.X @ u
            slope = self.l1[F] * np.sign(u[F])
            X = self.X[:, F]
            p, ray = _free_step(X, np.zeros((0, len(F))), r, slope)
            u, whole = self._move(u, F, p, ray, X, r, slope)
            if whole:
                return u
        return u

    def _move(
        self, u: np.ndarray, F: np.ndarray, p: np.ndarray, ray: bool, X: np.ndarray, r: np.ndarray, slope: np.ndarray
    ) -> tuple[np.ndarray, bool]:
        """To the minimum along p, exactly: the derivative is linear between breakpoints and jumps at
        each, by 2 l1 |p_j| at a zero, without limit at a bound."""
        t, low, high, l1 = u[F], self.low[F], self.high[F], self.l1[F]
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = np.where((l1 > 0) & (t * p < 0), -t / p, np.inf)
            bound = np.where(p > 0, (high - t) / p, np.where(p < 0, (low - t) / p, np.inf))
        if not ray and min(zero.min(), bound.min()) > 1:
            new = u.copy()
            new[F] = t + p
            return new, True
        at = np.concatenate([zero, bound])
        jump = np.concatenate([2 * l1 * np.abs(p), np.full(len(F), np.inf)])
        order = np.argsort(at, kind="stable")
        at, jump = at[order], jump[order]
        Xp = X @ p
        curve = 0.0 if ray else Xp @ Xp
        first = -(Xp @ r) + slope @ p
        with np.errstate(invalid="ignore"):
            before = first + np.concatenate([[0.0], np.cumsum(jump)[:-1]]) + at * curve
        stop = int(np.argmax((before + jump >= 0) | (before >= 0)))
        if not np.isfinite(at[stop]):
            new = u.copy()
            new[F] = t if ray else t + p
            return new, True
        new = u.copy()
        if before[stop] > 0 and curve > 0:  # between two breakpoints
            alpha = at[stop] - before[stop] / curve
            new[F] = np.clip(t + alpha * p, low, high)
        else:
            alpha = at[stop]
            moved = np.clip(t + alpha * p, low, high)
            moved = np.where(zero == alpha, 0.0, moved)
            moved = np.where((bound == alpha) & (p > 0), high, moved)
            new[F] = np.where((bound == alpha) & (p < 0), low, moved)
        if ray:
            return new, False
        # Many may have to go at once: the whole step, each stopped at its own kink, if that is lower still.
        other = u.copy()
        other[F] = np.clip(np.where((l1 > 0) & (zero <= 1), 0.0, t + p), low, high)
        return (other if self._value(other) < self._value(new) else new), False

    def _value(self, u: np.ndarray) -> float:
        r = self.z - self.X @ u
        return r @ r / 2 + self.l1 @ np.abs(u)


class _Groups:
    """Groups of coordinates with a norm each, in units where every group's block has norm 1."""

    def __init__(self, R: np.ndarray, z: np.ndarray, g: GroupL1) -> None:
        d = R.shape[1]
        labels = np.asarray(g.groups)
        _, weights, _ = g.norms(np.zeros(d))
        alone = np.flatnonzero((labels < 0) | (np.append(weights, 0.0)[labels] == 0))
        used = [label for label in np.unique(labels[labels >= 0]).tolist() if weights[label] > 0]
        self.blocks = [np.flatnonzero(labels == label) for label in used] + [np.array([j]) for j in alone]
        self.block_of = np.empty(d, int)
        norms = _norms(np, R)
        self.c = np.ones(d)
        self.live = np.ones(len(self.blocks), bool)
        for b, block in enumerate(self.blocks):
            self.block_of[block] = b
            size = float(_norms(np, norms[block][:, None])[0])
            self.live[b] = size > 0
            self.c[block] = size if size > 0 else 1.0
        self.w = np.append(weights[used], np.zeros(len(alone))) / np.array([self.c[block[0]] for block in self.blocks])
        self.X = np.asfortranarray(R / self.c)
        self.z = z
        self.g = g
        self.size = np.linalg.norm(z)
        self.rounds = 0
        self.eigen: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def scaled(self, theta: np.ndarray) -> np.ndarray:
        return np.where(self.live[self.block_of], theta * self.c, 0)

    def unscaled(self, u: np.ndarray) -> np.ndarray:
        return u / self.c

    def free(self, theta: np.ndarray) -> np.ndarray:
        return self.g.free(theta)

    def _block_norms(self, u: np.ndarray) -> np.ndarray:
        return np.sqrt(np.bincount(self.block_of, u**2, len(self.blocks)))

    def free_blocks(self, u: np.ndarray) -> np.ndarray:
        return (self._block_norms(u) > 0) | (self.w == 0)

    def unsure(self, u: np.ndarray) -> np.ndarray:
        return np.ones(len(self.blocks), bool)  # Newton steps alone would never make a free group zero

    def _slope(self, u: np.ndarray) -> np.ndarray:
        norms = self._block_norms(u)
        return u * (self.w / np.where(norms > 0, norms, 1))[self.block_of]

    def violation(self, u: np.ndarray) -> np.ndarray:
        descent = self.X.T @ (self.z - self.X @ u)
        away = self._block_norms(descent - self._slope(u))
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
                self.eigen[b] = np.where(e > _rounding(len(e), float) * e.max(), e, 0), V
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
            u = self._follow(u)
        for _ in range(len(self.blocks) + 10):
            F = np.flatnonzero((self.free_blocks(u) & self.live)[self.block_of])
            if len(F) == 0:
                break
            p, ray = self._newton_step(u, F)
            new = self._to_zero(u, p) if ray else self._move(u, p)
            done = not ray and np.abs(new - u).max() <= 1e-9 * np.abs(u).max()  # the next is below rounding
            u = new
            if done:
                break
        return u

    def _follow(self, u: np.ndarray) -> np.ndarray:
        """With sqrt(||u_g||^2 + eps^2) for every norm, eps going to zero: all groups move, none has a kink.
        At the end those of size eps are made zero."""
        size = max(self._block_norms(u).max(), 1e-3 * self.size)
        F = np.flatnonzero(self.live[self.block_of])
        same = self.block_of[F][:, None] == self.block_of[F][None]
        X, block_of = self.X[:, F], self.block_of[F]
        for eps in size * 10.0 ** -np.arange(0.0, 13.0):

            def smoothed(u: np.ndarray, eps: float = eps) -> np.ndarray:
                return np.hypot(self._block_norms(u), eps)

            short = False
            for _ in range(20):
                s, norms, r = smoothed(u), self._block_norms(u), self.z - self.X @ u
                unit = u[F] / np.where(norms > 0, norms, 1)[block_of]
                # w/s (I - (1 - (eps/s)^2) unit unit') is the Hessian, w/s I lies above it: both by their roots
                flat = np.zeros(len(F)) if short else (1 - eps / s)[block_of]
                A = np.eye(len(F)) - np.where(same, flat[:, None] * unit[:, None] * unit[None], 0)
                A *= np.sqrt(self.w / s)[block_of][:, None]
                p = np.zeros_like(u)
                p[F], _ = _free_step(X, A[self.w[block_of] > 0], r, (self.w / s)[block_of] * u[F])
                Xp, start = self.X @ p, r @ r / 2 + self.w @ s

                def along(alpha: Array, u=u, p=p, Xp=Xp, r=r, start=start, smoothed=smoothed) -> tuple[Array, Array]:  # type: ignore[no-untyped-def]
                    at, left, s = u + alpha * p, r - alpha * Xp, smoothed(u + alpha * p)
                    slope = p @ (at * (self.w / s)[self.block_of]) - Xp @ left
                    return slope, np.asarray(left @ left / 2 + self.w @ s - start * (1 + 1e-15))

                alpha = _search(np, along, float)
                u = u + alpha * p
                short = not short and alpha < 0.5
                if np.abs(alpha * p).max() <= 1e-3 * eps or (alpha == 0 and not short):
                    break
        gone = (self.w > 0) & (self._block_norms(u) <= 1e3 * eps)
        return np.where(gone[self.block_of], 0, u)

    def _newton_step(self, u: np.ndarray, F: np.ndarray) -> tuple[np.ndarray, bool]:
        norms = self._block_norms(u)
        inverse = 1 / np.where(norms > 0, norms, 1)
        curvature, unit = (self.w * inverse)[self.block_of[F]], u[F] * inverse[self.block_of[F]]
        same = self.block_of[F][:, None] == self.block_of[F][None]
        # The Hessian of w ||u|| is w/||u|| times a projection, which is its own square root.
        A = np.sqrt(curvature)[:, None] * (np.eye(len(F)) - np.where(same, unit[:, None] * unit[None], 0))
        p = np.zeros_like(u)
        p[F], ray = _free_step(self.X[:, F], A[curvature > 0], self.z - self.X @ u, self._slope(u)[F])
        return p, ray

    def _to_zero(self, u: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Along p nothing curves: each group only grows or shrinks, and the objective is linear until one
        vanishes. On to the first that turns it upwards."""
        norms = self._block_norms(u)
        rate = np.bincount(self.block_of, u * p, len(self.blocks)) / np.where(norms > 0, norms, 1)
        shrinks = np.flatnonzero((self.w > 0) & (norms > 0) & (rate < 0))
        at = -norms[shrinks] / rate[shrinks]
        order = np.argsort(at, kind="stable")
        slopes = self._slope(u) @ p + np.cumsum((-2 * self.w[shrinks] * rate[shrinks])[order])
        turns = np.flatnonzero(slopes >= 0)
        if len(turns) == 0:  # only rounding falls without end
            return u
        last = shrinks[order[turns[0]]]
        new = u + at[order[turns[0]]] * p
        new[self.block_of == last] = 0
        return new

    def _move(self, u: np.ndarray, p: np.ndarray) -> np.ndarray:
        r, Xp = self.z - self.X @ u, self.X @ p
        start = self._value(u)
        noise = 16 * np.finfo(float).eps * (start + self.size**2 / 2)

        def along(alpha: Array) -> tuple[Array, Array]:
            at = u + alpha * p
            return p @ self._slope(at) - Xp @ (r - alpha * Xp), np.asarray(self._value(at) - start - noise)

        new = u + _search(np, along, float) * p
        # A group near zero would stop all the others: those the step sends through zero stay there, if that is lower.
        turned = np.bincount(self.block_of, u * (u + p), len(self.blocks)) <= 0
        turned &= self.w > 0
        if turned.any():
            other = np.where(turned[self.block_of], 0, u + p)
            if self._value(other) < self._value(new):
                return other
        return new

    def _value(self, u: np.ndarray) -> float:
        r = self.z - self.X @ u
        return r @ r / 2 + self.w @ self._block_norms(u)


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
    U, y = _qr(np, np.concatenate([X, A]), r)
    if not _suspect(np, U):
        return _solve(np, U, y - _solve(np, U, slope, transposed=True)), False
    W, s, Vt = np.linalg.svd(U)
    positive = s > _rounding(f, float)
    null = Vt[~positive]
    fall = null.T @ (null @ slope)
    if np.linalg.norm(fall) > 1e-10 * np.linalg.norm(slope):
        return -fall, True
    if positive.all():
        return _solve(np, U, y - _solve(np, U, slope, transposed=True)), False
    s, W, V = s[positive], W[:, positive], Vt[positive].T
    return V @ ((W.T @ y - (V.T @ slope) / s) / s), False
