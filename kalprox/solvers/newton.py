"""Smooth g: argmin over t of 1/2 ||R t - z||^2 + g(t) by a safeguarded Newton method, and g's curvature by its roots.

R is never squared, and columns are scaled inside, so that nothing depends on the units of a parameter.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from kalprox._arrays import Array, is_traced, namespace
from kalprox._control import cond, cond_rare, while_loop
from kalprox.linalg.triangle import column_norms, qr, rounding, solve_triangular
from kalprox.regularizers import Regularizer
from kalprox.solvers.squares import Squares

__all__ = ["curvature", "newton", "search"]

_MAX_NEWTON = 200  # tens are usual, the rest is for starts far out on a flat tail
_MAX_SEARCH = 60  # halvings or doublings of a step: all of float64's range


def curvature(norms: Array, g: Regularizer, theta: Array) -> tuple[Array, Array, Array | None]:
    """Scales c and rows A, B with Hess g(theta) = c (A'A - B'B) c on the free coordinates, zero on the others.

    c is the norm of each column of [R; A c], given the norms of R's. B is None where no curvature is
    seen to be negative. Quadratic g brings its own root, so that no digits are lost in squaring it.
    """
    xp, d = namespace(norms, theta), len(norms)
    free = g.free(theta)
    root = g.root(d)
    if root is None:
        h = xp.asarray(g.hessian(theta), norms.dtype)
        return _signed_roots(norms, xp.where(free if h.ndim == 1 else free[:, None] & free[None], h, 0))
    root = xp.where(free[None], xp.asarray(root, norms.dtype), 0)
    c = xp.hypot(norms, column_norms(root))
    c = xp.where(c > 0, c, 1)
    return c, root / c[None], None


def _signed_roots(norms: Array, h: Array) -> tuple[Array, Array, Array | None]:
    """`curvature` of a Hessian h, (d,) or (d, d); where it is not diagonal, by its eigenvectors, O(d^3)."""
    xp = namespace(norms, h)
    c = xp.hypot(norms, xp.sqrt(xp.abs(h if h.ndim == 1 else xp.diagonal(h))))
    c = xp.where(c > 0, c, 1)
    if h.ndim == 1:
        e, rows = h, xp.diag(xp.sqrt(xp.abs(h)) / c)
    else:
        e, W = xp.linalg.eigh(h / c[:, None] / c[None])
        e = xp.where(xp.abs(e) > rounding(len(c), e.dtype) * xp.abs(e).max(), e, 0)
        rows = xp.sqrt(xp.abs(e))[:, None] * W.T
    A = xp.where(e[:, None] > 0, rows, 0)
    if not is_traced(e) and not (e < 0).any():
        return c, A, None
    return c, A, xp.where(e[:, None] < 0, rows, 0)


class _Point(NamedTuple):
    """What is known at t: r = R t - z and the size of its terms, g's gradient and Hessian, the residual, and
    whether that is down to rounding."""

    t: Array
    r: Array
    terms: Array
    slope: Array
    h: Array
    residual: Array
    within: Array


def newton(R: Array, z: Array, g: Regularizer, start: Array) -> tuple[Array, Array, Array]:
    """theta, its residual and the number of steps, from `start`. A QR a step, O((m + d) d^2).

    A line search on the slope; one more step once the residual is down to rounding, for the last digits
    of theta. A stationary point, and the minimiser where g is convex.
    """
    xp, dtype = namespace(R, z), R.dtype
    data = Squares.of(R, z)
    one = xp.ones((), dtype)

    def measure(t: Array) -> _Point:
        r, terms = data.at(t)
        slope, h = g.grad(t), g.hessian(t)
        residual = data.relative(R.T @ r + slope, terms, xp.abs(slope) + _times(xp.abs(h), xp.abs(t)))
        return _Point(t, r, terms, slope, h, residual, residual <= data.rounded(t, terms))

    def body(state: tuple) -> tuple:
        here, k, short, _ = state
        p = _direction(xp, data, here, short)
        Rp, value = R @ p, (here.r @ here.r) / 2 + g.value(here.t)
        noise = 16 * np.finfo(dtype).eps * (xp.abs(value) + (z @ z) / 2)

        def along(alpha: Array) -> tuple[Array, Array]:
            t, r = here.t + alpha * p, here.r + alpha * Rp
            return Rp @ r + p @ g.grad(t), (r @ r) / 2 + g.value(t) - value - noise

        alpha = cond(here.within, lambda: 0 * one, lambda: search(xp, along, dtype))
        # Within the tolerance, or where slopes are rounding only: the whole step, if it loses nothing.
        last = alpha == 0
        new = measure(here.t + xp.where(last, 1, alpha) * p)
        gains = xp.where(here.within, new.within, new.residual <= here.residual)
        lower = cond(last, lambda: along(one)[1] <= 0, lambda: one > 0)
        refused = (last & ~(gains & lower)) | ~xp.isfinite(new.residual)
        new = cond(refused, lambda: here, lambda: new)
        stuck = (new.t == here.t).all() & (short | (here.h.ndim == 2))  # else the chord has not been tried
        return new, k + 1, ~short & (alpha < 0.5), here.within | stuck

    state = (measure(start), xp.asarray(0), xp.asarray(False), xp.asarray(False))
    point, k, _, _ = while_loop(xp, lambda s: (s[1] < _MAX_NEWTON) & ~s[3], body, state)
    return point.t, point.residual, k


def _times(h: Array, p: Array) -> Array:
    return h * p if h.ndim == 1 else h @ p


def _direction(xp: ModuleType, data: Squares, here: _Point, short: Array) -> Array:
    """-(R'R + h)^-1 (R' r + slope), negative curvature turned positive.

    With U'U = R'R + (the positive part of h), the Hessian is U'(I - C)U, C >= 0 from the negative part:
    its eigenvalues are changed in the metric of U, where they are of size 1, so R keeps its digits.
    """
    t, r, terms, slope, h, _, _ = here
    R, d, dtype = data.R, len(t), t.dtype
    # g's slope over t is the curvature of the parabola through t with its foot at 0. For a g that grows
    # slower than a parabola it lies above g: a step with it never goes too far. It takes over where neither
    # data nor g curve, and after a step that had to be cut short at a sharp bend of g.
    chord = xp.maximum(xp.where(t == 0, 0, slope / xp.where(t == 0, 1, t)), 0)
    if h.ndim == 1:
        h = xp.where(short, xp.maximum(h, chord), h)
    c, A, B = _signed_roots(data.norms, h)
    damping = np.finfo(dtype).eps ** 0.4

    def factor(A: Array) -> tuple[Array, Array]:
        return qr(xp.concatenate([R / c[None], A]), r)

    U, y = factor(A)
    flat = xp.abs(xp.diagonal(U)).min() < rounding(d, dtype)
    U, y = cond_rare(flat, lambda: factor(xp.concatenate([A, xp.diag(xp.sqrt(chord) / c + damping)])), lambda: (U, y))
    # In two roundings: with Q' r, which keeps the digits where R is ill-conditioned, and with R' r, where
    # g's curvature dwarfs R's entries.
    both = solve_triangular(U, xp.stack([slope / c, (R.T @ r + slope) / c], axis=1), transposed=True)
    both = -both - xp.stack([y, xp.zeros_like(y)], axis=1)

    def indefinite(B: Array) -> Array:
        C = solve_triangular(U, B.T, transposed=True)
        e, W = xp.linalg.eigh(xp.eye(d, dtype=dtype) - C @ C.T)
        return W @ ((W.T @ both) / xp.maximum(xp.abs(e), damping)[:, None])

    if B is not None:
        both = cond_rare((B != 0).any(), lambda: indefinite(B), lambda: both)
    exact, plain = (solve_triangular(U, both) / c[:, None]).T

    def left(p: Array) -> Array:  # the residual that the quadratic model leaves
        return data.relative(R.T @ (r + R @ p) + slope + _times(h, p), terms, xp.abs(slope))

    by_exact, by_plain = left(exact), left(plain)
    return xp.where((by_exact > rounding(d, dtype)) & (by_plain < by_exact), plain, exact)


def search(xp: ModuleType, along: Callable[[Array], tuple[Array, Array]], dtype: Any) -> Array:
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
