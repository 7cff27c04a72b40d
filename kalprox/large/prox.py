"""The proximal operator of g in a structured metric: argmin over t of 1/2 (t - m)'P(t - m) + g(t), P = B + W'W.

With v = W (t - m) the problem is one in as many dimensions as W has rows: for given multipliers u, the minimiser t(u)
of 1/2 (t - m)'B(t - m) + u'W(t - m) + g(t) is found coordinate by coordinate, or group by group, for diagonal B. The
multipliers maximise a concave function whose gradient is W (t(u) - m) - u. It is piecewise smooth, so that Newton's
method with a line search finds them; for the L1 norm, the elastic net and bounds, in finitely many steps. Zeros and
bounds of t(u) are exact.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kalprox.base.arrays import Array, cast_on_jax, is_traced, namespace, tree_map
from kalprox.large.block_diagonal import BlockDiagonal, Layout
from kalprox.large.low_rank import PlusLowRank, combined
from kalprox.regularizers import Regularizer
from kalprox.regularizers.base import Pieces
from kalprox.solvers.newton import damped
from kalprox.solvers.prox import Prox
from kalprox.solvers.squares import default_tol
from kalprox.solvers.terms import GroupTerms, Terms, terms_of

_STEPS = 200  # of Newton's method; 5 to 20 are usual
_HALVINGS = 40
_SETTLED = 1e-12  # a relative change of the estimate that is rounding error
_CLOSE = 1e-9  # a relative gradient from which on a step that does not halve it is rounding
_ARMIJO = 1e-4
_TINY = float(np.finfo(float).tiny)
_DENSE_ROWS = 4096  # rows of dense blocks that a metric with kinks may have


def minimise(P: PlusLowRank, m: Array, g: Regularizer, start: Array | None = None) -> Prox:
    """Minimise 1/2 (t - m)'P(t - m) + g(t).

    A quadratic g is solved exactly. Other smooth separable g are minimised by Newton's method. L1, elastic net, bounds
    and groups are solved on the host in float64, with exact zeros and bounds.

    Parameters
    ----------
    P : PlusLowRank
    m : array of shape (d,)
    g : Regularizer
        Separable, quadratic, or a sum of norms of groups.
    start : array of shape (d,), optional
        Where the search starts; m by default.

    Returns
    -------
    Prox
    """
    xp = namespace(P, m, g)
    g, pieces = cast_on_jax(g, m), g.pieces()
    pieces = None if pieces is None else pieces.each(len(m))
    if g.is_zero:
        return Prox(m, xp.ones(m.shape, bool), xp.zeros((), m.dtype), xp.asarray(0), xp.asarray(True))
    if _is_quadratic(pieces) if pieces is not None else g.root(len(m)) is not None:
        theta = m - with_curvature(P, g, m).solve(g.grad(m))
        return _answer(P, m, g, theta, xp.asarray(1))
    if g.smooth and g.separable:
        theta, steps = _newton(P, m, g, m if start is None else start)
        return _answer(P, m, g, theta, xp.asarray(steps))
    if is_traced(P, m, g):
        raise TypeError(f"The proximal step of {type(g).__name__} depends on values and cannot be traced by JAX.")
    if g.tangent(m) is not g:
        return _by_tangents(P, m, g)
    if pieces is None and g.groups_of(len(m)) is None:
        raise TypeError(
            f"{type(g).__name__} has no proximal step in a structured metric: use a separable or quadratic "
            "regulariser, GroupL1, or structure='dense'."
        )
    host, inner = tree_map(lambda a: np.asarray(a, float), P), terms_of(g, len(m))
    at, begin = np.asarray(m, float), None if start is None else np.asarray(start, float)
    theta, steps = _root(*_diagonal_metric(host), at, inner, begin)
    found = _answer(host, at, g, theta, np.asarray(steps), inner)
    return found._replace(theta=xp.asarray(theta, m.dtype), free=xp.asarray(found.free))


def _by_tangents(P: PlusLowRank, m: Array, g: Regularizer) -> Prox:
    """Minimise for a g that is not convex, by a sequence of problems from zero on; see `Regularizer.tangent`."""
    theta = 0 * m
    for _ in range(_STEPS):
        found = minimise(P, m, g.tangent(theta), theta)
        before, theta = theta, found.theta
        if float(abs(theta - before).max()) <= _SETTLED * float(abs(theta).max()):
            break
    return found._replace(free=g.free(theta))


def with_curvature(P: PlusLowRank, g: Regularizer, theta: Array) -> PlusLowRank:
    """Return P + Hess g(theta), on the coordinates that are free at theta, and the identity on the others."""
    xp = namespace(P, theta)
    if g.is_zero:
        return P
    if (groups := g.groups_of(len(theta))) is not None:
        return _with_groups(P, GroupTerms(g, *groups), g.free(theta), theta)
    if g.pieces() is None and (A := g.root(len(theta))) is not None:
        return PlusLowRank.of(P.base, xp.concatenate([P.W, xp.asarray(A, P.W.dtype)]))
    h = diagonal_hessian(g, theta)
    free = g.free(theta)
    grown = P.base.plus_diagonal(xp.where(free, h, 0))
    if not is_traced(free) and bool(free.all()):
        return P.with_base(grown)
    return P.with_base(grown).restricted(free)


def diagonal_hessian(g: Regularizer, theta: Array) -> Array:
    """Return the Hessian of a separable g, at least 0, shape (d,)."""
    if not g.separable:
        raise TypeError(f"{type(g).__name__} has no diagonal Hessian: use structure='dense'.")
    xp = namespace(theta)
    return xp.maximum(xp.asarray(g.hessian(theta), theta.dtype), 0)


def ridge_of(g: Regularizer, d: int) -> Array | None:
    """Return the weights of g = 1/2 sum_i l_i theta_i^2, if that is what it is and all are positive, else None."""
    pieces = g.pieces()
    if pieces is None or not _is_quadratic(pieces) or is_traced(pieces.l2) or not np.all(np.asarray(pieces.l2) > 0):
        return None
    return pieces.each(d).l2


def _with_groups(P: PlusLowRank, g: GroupTerms, free: Array, theta: Array) -> PlusLowRank:
    """`with_curvature` of the group norm: its Hessian is w / n (I - t t') in each free group, with t of length 1.

    In a diagonal base each group becomes a dense block. Dense blocks of the base keep the diagonal of the Hessian only.
    """
    xp, dtype = namespace(theta), P.W.dtype
    curved, unit = g.curved(np.asarray(theta, float))
    h = curved * (1 - unit**2)
    if P.base.dense:
        return P.with_base(P.base.plus_diagonal(xp.asarray(h, dtype))).restricted(free)
    order = np.argsort(g.of, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(g.of[order])) + 1)
    layout = Layout.of(group for group in groups if g.of[group[0]] < g.size)
    for index in layout.index:
        h[index] = curved[index]
    base = BlockDiagonal.diagonal(P.base.p + xp.asarray(h, dtype), layout)
    outer = (curved[i][:, :, None] * unit[i][:, :, None] * unit[i][:, None, :] for i in layout.index)
    dense = (A - xp.asarray(more, dtype) for A, more in zip(base.dense, outer, strict=True))
    return P.with_base(replace(base, dense=tuple(dense))).restricted(free)


def _is_quadratic(pieces: Pieces) -> bool:
    if is_traced(pieces.l1, pieces.low, pieces.high):
        return False
    l1, _, low, high = map(np.asarray, pieces)
    return bool((l1 == 0).all() and (low == -np.inf).all() and (high == np.inf).all())


def _answer(P: PlusLowRank, m: Array, g: Regularizer, theta: Array, steps: Array, inner: Terms | None = None) -> Prox:
    """Return the minimiser, with its residual relative to the terms of the optimality condition."""
    xp = namespace(P, m, theta)
    move = theta - m
    slope = P.apply(move)
    descent = -slope - g.grad(theta) if inner is None else inner.descent(theta, -slope)
    size = P.base.apply(abs(move)) + combined(abs(P.coordinates(move)), abs(P.W)) + abs(slope + descent)
    residual = (abs(descent) / xp.where(size > 0, size, 1)).max()
    return Prox(theta, g.free(theta), residual, steps, residual <= default_tol(m.dtype))


def _newton(P: PlusLowRank, m: Array, g: Regularizer, start: Array) -> tuple[Array, int]:
    """Minimise for a smooth separable g, from `start` or m, whichever is better; return the number of steps, too."""
    eps = float(np.finfo(np.dtype(m.dtype)).eps)

    def value(t: Array) -> float:
        return float(((t - m) * P.apply(t - m)).sum() / 2 + g.value(t))

    def steps(t: Array) -> Iterator[tuple[Array, float]]:
        gradient = P.apply(t - m) + g.grad(t)
        p = -P.with_base(P.base.plus_diagonal(diagonal_hessian(g, t))).solve(gradient)
        slope = float((gradient * p).sum())
        yield p, (max(-slope, 0.0) / max(abs(value(t)), _TINY)) ** 0.5

    first = start if value(start) < value(m) else m
    theta, _, count = damped(value, steps, first, (4 * eps) ** 0.5, 4 * eps)
    return theta, count


def _root(
    p: np.ndarray, W: np.ndarray, m: np.ndarray, inner: Terms, start: np.ndarray | None
) -> tuple[np.ndarray, int]:
    """Return the minimiser for the metric diag(p) + W'W, and the number of steps."""
    eye, eps = np.eye(len(W)), np.finfo(float).eps

    def at(u: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """t(u), W (t(u) - m), and the concave function, in a form without cancellation."""
        t = inner.prox(m - (u @ W) / p, p)
        move = t - m
        v = W @ move
        return t, v, float((p * move**2).sum() / 2 + u @ v + inner.value(t) - u @ u / 2)

    u = np.zeros(len(W)) if start is None else W @ (start - m)
    t, v, here = at(u)
    left = np.inf
    for step in range(_STEPS):
        gradient, before = v - u, left
        left, size = float(np.linalg.norm(gradient)), float(np.linalg.norm(v) + np.linalg.norm(u))
        if left <= 4 * eps * size or (left <= _CLOSE * size and left > before / 2):  # rounding stops it
            return t, step
        p_step = np.linalg.solve(eye + inner.within_rows(t, p, W), gradient)
        slope, length = float(gradient @ p_step), 1.0
        for _ in range(_HALVINGS):
            trial = at(u + length * p_step)
            closer = np.linalg.norm(trial[1] - u - length * p_step) <= left / 2
            if closer or trial[2] >= here + _ARMIJO * length * slope:
                break
            length /= 2
        else:
            return t, step  # rounding stops it
        u, (t, v, here) = u + length * p_step, trial
    return t, _STEPS


def _diagonal_metric(P: PlusLowRank) -> tuple[np.ndarray, np.ndarray]:
    """Return p, W of P = diag(p) + W'W: a dense block is half its smallest curvature, and directions for the rest."""
    if not P.base.dense:
        return P.base.p, P.W
    rows = sum(index.size for index in P.base.layout.index)
    if rows > _DENSE_ROWS:
        raise ValueError(
            f"A regulariser with kinks or bounds can be combined with dense blocks of up to {_DENSE_ROWS:,} parameters "
            f"in all; these have {rows:,}. Use LowRank or Diagonal, or a smooth regulariser."
        )
    p, W = P.base.p.copy(), [P.W]
    for index, stack in zip(P.base.layout.index, P.base.dense, strict=True):
        for columns, A in zip(index, stack, strict=True):
            scale = np.sqrt(A.diagonal())
            values, vectors = np.linalg.eigh(A / scale / scale[:, None])
            part = values[0] / 2
            p[columns] = part * scale**2
            more = np.zeros((len(columns), len(p)))
            more[:, columns] = (np.sqrt(values - part)[:, None] * vectors.T) * scale
            W.append(more)
    return p, np.concatenate(W)
