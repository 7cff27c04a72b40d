"""Newton's method with a line search for 1/2 ||R t - z||^2 + g(t), where g is smooth but not quadratic.

The Hessian is factored by QR of R and the root of Hess g, so that R is never squared.
"""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array, namespace
from kalprox.base.control import cond, cond_rare, while_loop
from kalprox.linalg.triangle import qr, rounding, solve_triangular
from kalprox.regularizers import Regularizer
from kalprox.solvers.squares import Squares
from kalprox.solvers.terms import signed_roots

_MAX_NEWTON = 200  # tens are usual; starts far out on a flat tail need more
_MAX_SEARCH = 60  # halvings or doublings of a step, enough for the whole range of float64


class _Point(NamedTuple):
    """An iterate and what has been computed there."""

    t: Array
    r: Array  # R t - z
    terms: Array  # ||z|| + ||R t||
    slope: Array  # the gradient of g
    h: Array  # the Hessian of g, (d,) or (d, d)
    residual: Array
    within: Array  # whether the residual is rounding error


def newton(R: Array, z: Array, g: Regularizer, start: Array) -> tuple[Array, Array, Array]:
    """Return a stationary point, its residual and the number of steps; one QR per step, O((m + d) d^2).

    The stationary point is the minimiser where g is convex. Steps are shortened by a line search on the slope. Once the
    residual is rounding error, one more step is taken for the last digits of theta.
    """
    xp, dtype = namespace(R, z), R.dtype
    data = Squares.of(R, z)
    one = xp.ones((), dtype)

    def measure(t: Array) -> _Point:
        r, terms = data.at(t)
        slope, h = g.grad(t), g.hessian(t)
        residual = data.relative(R.T @ r + slope, terms, xp.abs(slope) + _times(xp.abs(h), xp.abs(t)))
        return _Point(t, r, terms, slope, h, residual, residual <= data.rounded(t, terms))

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        here, k, short, _ = state
        p = _direction(xp, data, here, short)
        Rp, value = R @ p, (here.r @ here.r) / 2 + g.value(here.t)
        noise = 16 * np.finfo(dtype).eps * (xp.abs(value) + (z @ z) / 2)

        def along(alpha: Array) -> tuple[Array, Array]:
            t, r = here.t + alpha * p, here.r + alpha * Rp
            return Rp @ r + p @ g.grad(t), (r @ r) / 2 + g.value(t) - value - noise

        alpha = cond(here.within, lambda: 0 * one, lambda: search(xp, along, dtype))
        # Within the tolerance, or where slopes are rounding error, take the full step if nothing gets worse.
        last = alpha == 0
        new = measure(here.t + xp.where(last, 1, alpha) * p)
        gains = xp.where(here.within, new.within, new.residual <= here.residual)
        lower = cond(last, lambda: along(one)[1] <= 0, lambda: one > 0)
        refused = (last & ~(gains & lower)) | ~xp.isfinite(new.residual)
        new = cond(refused, lambda: here, lambda: new)
        stuck = (new.t == here.t).all() & (short | (here.h.ndim == 2))  # otherwise the chord is still to be tried
        return new, k + 1, ~short & (alpha < 0.5), here.within | stuck

    state = (measure(start), xp.asarray(0), xp.asarray(False), xp.asarray(False))
    point, k, _, _ = while_loop(xp, lambda s: (s[1] < _MAX_NEWTON) & ~s[3], body, state)
    return point.t, point.residual, k


def _times(h: Array, p: Array) -> Array:
    return h * p if h.ndim == 1 else h @ p


def _direction(xp: ModuleType, data: Squares, here: _Point, short: Array) -> Array:
    """Return the Newton direction -(R'R + h)^-1 (R'r + slope), with negative eigenvalues of the Hessian made positive.

    With U'U = R'R plus the positive part of h, the Hessian is U'(I - C)U, where C >= 0 comes from the negative part.
    Its eigenvalues are changed in the metric of U, where they are of size 1, so that the digits of R are kept.
    """
    t, r, terms, slope, h, _, _ = here
    R, d, dtype = data.R, len(t), t.dtype
    # The slope of g divided by t is the curvature of the parabola that touches g at t and has its minimum at 0. A g
    # that grows slower than a parabola lies below this one, so that a step with this curvature never goes too far. The
    # curvature is used where neither data nor g have any, and after a step that was cut short at a sharp bend of g.
    chord = xp.maximum(xp.where(t == 0, 0, slope / xp.where(t == 0, 1, t)), 0)
    if h.ndim == 1:
        h = xp.where(short, xp.maximum(h, chord), h)
    c, A, B = signed_roots(data.norms, h)
    damping = np.finfo(dtype).eps ** 0.4

    def factor(A: Array) -> tuple[Array, Array]:
        return qr(xp.concatenate([R / c[None], A]), r)

    U, y = factor(A)
    flat = xp.abs(xp.diagonal(U)).min() < rounding(d, dtype)
    U, y = cond_rare(flat, lambda: factor(xp.concatenate([A, xp.diag(xp.sqrt(chord) / c + damping)])), lambda: (U, y))
    # The direction is computed twice: with Q'r, which keeps the digits where R is ill-conditioned, and with R'r, which
    # keeps them where the curvature of g is much larger than the entries of R.
    both = solve_triangular(U, xp.stack([slope / c, (R.T @ r + slope) / c], axis=1), transposed=True)
    both = -both - xp.stack([y, xp.zeros_like(y)], axis=1)

    def indefinite(B: Array) -> Array:
        C = solve_triangular(U, B.T, transposed=True)
        e, W = xp.linalg.eigh(xp.eye(d, dtype=dtype) - C @ C.T)
        return W @ ((W.T @ both) / xp.maximum(xp.abs(e), damping)[:, None])

    if B is not None:
        both = cond_rare((B != 0).any(), lambda: indefinite(B), lambda: both)
    exact, plain = (solve_triangular(U, both) / c[:, None]).T

    def left(p: Array) -> Array:
        """The residual of the quadratic model after a step p."""
        return data.relative(R.T @ (r + R @ p) + slope + _times(h, p), terms, xp.abs(slope))

    by_exact, by_plain = left(exact), left(plain)
    return xp.where((by_exact > rounding(d, dtype)) & (by_plain < by_exact), plain, exact)


def search(xp: ModuleType, along: Callable[[Array], tuple[Array, Array]], dtype: Any) -> Array:
    """Return a step length alpha at which the slope is at most half of the first one and the value is not higher.

    `along(alpha)` returns the slope at alpha, and the value relative to the start. Steps are doubled and halved. For a
    convex function the slope decides, even where values differ by rounding only; the value guards against the others.
    """
    slope0, _ = along(xp.zeros((), dtype))

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
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
    state = (0 * one, np.inf * one, one, xp.asarray(0), slope0 >= 0)  # no descent: the direction is rounding error
    low, _, alpha, _, good = while_loop(xp, lambda s: (s[3] < _MAX_SEARCH) & ~s[4], body, state)
    return xp.where(slope0 >= 0, 0, xp.where(good, alpha, low))


def halved(
    xp: ModuleType, value: Callable[[Array], Array], one: Array, whole: Array, enough: Array, halvings: int
) -> tuple[Array, Array]:
    """Return the share of a step with which a value is at most `enough`, and the value: the step is halved until it is.

    Parameters
    ----------
    xp : module
        The library whose loop it is.
    value : callable
        Returns the value after a share of the step.
    one : scalar
        The share that is all of it, in the dtype of shares.
    whole : scalar
        The value there.
    enough : scalar
    halvings : int
        After so many the share is returned, whatever the value.
    """

    def beyond(carry: tuple[Array, Array]) -> Array:
        return ~(carry[1] <= enough) & (carry[0] > 0.5**halvings)

    def half(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        share = carry[0] / 2
        return share, value(share)

    found: tuple[Array, Array] = while_loop(xp, beyond, half, (one, whole))
    return found


def damped(
    objective: Callable[[Array], Any],
    steps: Callable[[Array], Iterable[tuple[Array, Any]]],
    at: Array,
    close: float,
    rounding: float = 1e-12,
) -> tuple[Array, float, int]:
    """Minimise a function on the host by steps of Newton's method, each halved until the function does not grow.

    Parameters
    ----------
    objective : callable
        Returns the value at a point.
    steps : callable
        Returns steps from a point, each with its length, in units in which `close` is. The first one with which the
        function does not grow is taken, and otherwise the last.
    at : array
        Where the search begins.
    close : float
        The length of the last step.
    rounding : float
        The rounding error of a value, relative to it.

    Returns
    -------
    at : array
        The minimiser, if the length is small.
    length : float
        That of the last step.
    count : int
        The number of steps.
    """

    def value(at: Array) -> float:
        found = float(objective(at))
        return found if np.isfinite(found) else np.inf

    here, count, length = value(at), 0, np.inf
    while count < _MAX_NEWTON:
        enough, count = here + rounding * abs(here), count + 1
        for move, size in steps(at):
            share, length, there = 1.0, size, value(at + move)
            if there <= enough:
                break
        while there > enough and share > 0.5**_MAX_SEARCH:
            share /= 2
            there = value(at + share * move)
        if there > enough or not np.isfinite(length):
            break
        at, here = at + share * move, there
        if share == 1 and length <= close:
            break
    return at, float(length), count
