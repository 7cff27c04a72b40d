"""What minimisation needs to know of a regulariser: roots of its Hessian; without a matrix, sums in O(d)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, is_traced, namespace
from kalprox.base.control import cond_rare
from kalprox.linalg.fold import triangle_of_rows
from kalprox.linalg.triangle import column_norms, qr, rounding
from kalprox.regularizers import Pieces, Regularizer
from kalprox.regularizers.base import per_coordinate


def diagonal_curvature(g: Regularizer, d: int) -> Array | None:
    """Return h with g = 1/2 theta' diag(h) theta, shape (d,), in O(d); None where g is not of that form."""
    pieces = g.pieces() if g.smooth else None
    return None if pieces is None else per_coordinate(pieces.l2, d, "lam")


def curvature(norms: Array, g: Regularizer, theta: Array) -> tuple[Array, Array, Array | None]:
    """Return scales c and rows A, B with Hess g(theta) = c (A'A - B'B) c on the free coordinates, zero on the others.

    Parameters
    ----------
    norms : array of shape (d,)
        The column norms of the R that the Hessian will be added to.
    g : Regularizer
        A quadratic g gives its own root A, so that no digits are lost by squaring it.
    theta : array of shape (d,)

    Returns
    -------
    c : array of shape (d,)
        The norm of each column of [R; A c], or 1 where that is zero.
    A, B : array of shape (m, d)
        B is None where g is known to have no negative curvature.
    """
    xp, d = namespace(norms, theta), len(norms)
    free = g.free(theta)
    root = g.root(d)
    if root is None:
        h = xp.asarray(g.hessian(theta), norms.dtype)
        return signed_roots(norms, xp.where(free if h.ndim == 1 else free[:, None] & free[None], h, 0))
    root = xp.where(free[None], xp.asarray(root, norms.dtype), 0)
    c = xp.hypot(norms, column_norms(root))
    c = xp.where(c > 0, c, 1)
    return c, root / c[None], None


def signed_roots(norms: Array, h: Array) -> tuple[Array, Array, Array | None]:
    """`curvature` for a Hessian h of shape (d,) or (d, d); a dense one is split by its eigenvectors, in O(d^3)."""
    xp = namespace(norms, h)
    if xp is np and not h.any():
        return np.where(norms > 0, norms, 1), np.zeros((0, len(norms))), None
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


def hessian_root(R: Array, g: Regularizer, theta: Array, columns: Any = slice(None)) -> Array:
    """Return the upper triangle U with U'U = R'R + Hess g(theta) on these columns, which must include all free ones.

    A direction in which the curvature is negative counts as having none.
    """
    xp = namespace(R)
    c, A, B = curvature(column_norms(R), g, theta)
    U = triangle_of_rows(xp.concatenate([R / c[None], A])[:, columns])
    if B is None:
        return U * c[columns][None]
    N = B[:, columns]

    def less() -> Array:
        """A root of U'U - N'N, with negative eigenvalues set to zero."""
        e, W = xp.linalg.eigh(U.T @ U - N.T @ N)
        return qr(xp.sqrt(xp.maximum(e, 0))[:, None] * W.T)[0]

    return cond_rare((N != 0).any(), less, lambda: U) * c[columns][None]


Curvature = tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]
_MOST_STEPS = 200  # of Newton's method for the norms of groups; 5 to 10 are usual
_MOST_DENSE = 4096  # parameters of a g whose Hessian is a dense matrix


def within_bounds(theta: np.ndarray, p: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """Return p, changed by rounding where theta + p would lie outside the bounds."""
    for _ in range(4):
        t = theta + p
        below, above = t < low, t > high
        if not (below | above).any():
            break
        ulp = np.spacing(np.abs(p) + np.abs(theta))
        p = np.where(below, p + ulp, np.where(above, p - ulp, p))
    return p


class Terms:
    """A regulariser g: its value, its subdifferential, its curvature, and its prox in a diagonal metric.

    This one is smooth, and its Hessian is a diagonal or a dense matrix; the others say where they differ.
    """

    smooth = True
    quadratic = False  # between kinks and bounds

    def __init__(self, g: Regularizer) -> None:
        self.g = g

    def value(self, t: np.ndarray) -> float:
        """Return g(t)."""
        return float(self.g.value(t))

    def descent(self, t: np.ndarray, r: np.ndarray) -> np.ndarray:
        """Return r less the element of the subdifferential of g at t that is nearest to it: 0 if t is optimal."""
        return np.asarray(r - np.asarray(self.g.grad(t)))

    def curvature(self, t: np.ndarray) -> Curvature:
        """Return the product with the Hessian of g at t, and its diagonal; zero where g is not smooth."""
        h = np.asarray(self.g.hessian(t), float)
        return ((lambda v: h * v), h) if h.ndim == 1 else ((lambda v: h @ v), np.diagonal(h))

    def free(self, t: np.ndarray) -> np.ndarray:
        """Return which coordinates are at no kink and no bound."""
        return np.ones(t.shape, bool)

    def prox(self, v: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return the minimiser over t of 1/2 (t - v)' diag(scale) (t - v) + g(t)."""
        raise TypeError(f"{type(self.g).__name__} is smooth: Newton steps need no prox.")

    def within_rows(self, t: np.ndarray, p: np.ndarray, W: np.ndarray) -> np.ndarray:
        """Return W (diag(p) + Hess g(t))^-1 W' on the free coordinates, where g has kinks or bounds."""
        raise TypeError(f"{type(self.g).__name__} is smooth: it has neither kinks nor bounds.")

    def stopped(self, t: np.ndarray, p: np.ndarray) -> np.ndarray | None:
        """Return t + p with each coordinate stopped at its kink or bound; None if none meets one."""
        return None

    def within(self, theta: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Return p, changed by rounding where theta + p would lie outside the bounds."""
        return p


class RootTerms(Terms):
    """g = 1/2 ||A t||^2."""

    quadratic = True

    def __init__(self, g: Regularizer, A: np.ndarray) -> None:
        super().__init__(g)
        self.A, self.squares = A, (A**2).sum(axis=0)

    def curvature(self, t: np.ndarray) -> Curvature:
        return (lambda v: self.A.T @ (self.A @ v)), self.squares


class PieceTerms(Terms):
    """A sum of `Pieces`: ridge, L1, elastic net, box, and their weighted versions; points are within its bounds."""

    quadratic = True

    def __init__(self, g: Regularizer, pieces: Pieces, d: int) -> None:
        super().__init__(g)
        self.smooth = bool(g.smooth)
        self.pieces = Pieces(*(np.asarray(a, float) for a in pieces.each(d)))

    def value(self, t: np.ndarray) -> float:
        l1, l2 = self.pieces[:2]
        return float((l1 * np.abs(t) + l2 / 2 * t**2).sum())

    def descent(self, t: np.ndarray, r: np.ndarray) -> np.ndarray:
        q: np.ndarray = r - self.pieces.l2 * t
        return q if self.smooth else q - np.clip(q, *self.pieces.slopes(t))

    def curvature(self, t: np.ndarray) -> Curvature:
        l2: np.ndarray = self.pieces.l2
        return (lambda v: l2 * v), l2

    def free(self, t: np.ndarray) -> np.ndarray:
        left, right = self.pieces.slopes(t)
        return np.asarray(left == right)

    def prox(self, v: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return np.asarray(self.pieces.prox(v, 1 / scale))

    def within_rows(self, t: np.ndarray, p: np.ndarray, W: np.ndarray) -> np.ndarray:
        free = np.flatnonzero(self.free(t))
        columns = W[:, free]
        return np.asarray((columns / (p + self.pieces.l2)[free]) @ columns.T)

    def stopped(self, t: np.ndarray, p: np.ndarray) -> np.ndarray | None:
        if self.smooth:
            return None
        l1, _, low, high = self.pieces
        new = t + p
        crosses = (l1 > 0) & (t * new < 0)
        if not crosses.any() and not ((new < low) | (new > high)).any():
            return None
        return np.clip(np.where(crosses, 0.0, new), low, high)

    def within(self, theta: np.ndarray, p: np.ndarray) -> np.ndarray:
        return p if self.smooth else within_bounds(theta, p, self.pieces.low, self.pieces.high)


class GroupTerms(Terms):
    """g = sum over groups of w_g ||t_g||; coordinates of no group are not penalised."""

    smooth = False

    def __init__(self, g: Regularizer, labels: np.ndarray, weights: np.ndarray) -> None:
        super().__init__(g)
        self.size = len(weights)
        self.of = np.where(labels >= 0, labels, self.size)  # those of no group are together in a last one of weight 0
        self.w = np.append(weights, 0.0)

    def _sums(self, values: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.bincount(self.of, values, self.size + 1)
        return found

    def _norms(self, t: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.sqrt(self._sums(t**2))
        return found

    def _per_norm(self, t: np.ndarray) -> np.ndarray:
        """w_g / ||t_g|| for each group; 0 where the norm is 0."""
        norms = self._norms(t)
        return np.where(norms > 0, self.w / np.where(norms > 0, norms, 1.0), 0.0)

    def value(self, t: np.ndarray) -> float:
        return float(self.w @ self._norms(t))

    def descent(self, t: np.ndarray, r: np.ndarray) -> np.ndarray:
        held = (self._norms(t) == 0) & (self.w > 0)
        size = self._norms(r)
        share = np.maximum(1 - self.w / np.where(size > 0, size, 1.0), 0.0)
        smooth: np.ndarray = r - t * self._per_norm(t)[self.of]
        return np.where(held[self.of], r * share[self.of], smooth)

    def curved(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return c and u of the Hessian c (I - u u') of each group, for each coordinate."""
        norms = self._norms(t)
        return self._per_norm(t)[self.of], t / np.where(norms > 0, norms, 1.0)[self.of]

    def curvature(self, t: np.ndarray) -> Curvature:
        c, unit = self.curved(t)

        def product(v: np.ndarray) -> np.ndarray:
            return np.asarray(c * (v - unit * self._sums(unit * v)[self.of]))

        return product, c * (1 - unit**2)

    def free(self, t: np.ndarray) -> np.ndarray:
        return np.asarray(((self._norms(t) > 0) | (self.w == 0))[self.of])

    def prox(self, v: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return the minimiser, whose groups have the norms n with sum (p_i v_i)^2 / (p_i n + w)^2 = 1, or 0."""
        p, w, n = scale, self.w, np.zeros(len(self.w))
        a = p * v
        active = (self._sums(a**2) > w**2) & (w > 0)
        for _ in range(_MOST_STEPS):
            below = p * n[self.of] + w[self.of]
            below = np.where(below > 0, below, 1)
            total = self._sums((a / below) ** 2)
            slope = self._sums(p * a**2 / below**3)
            # Newton's method for 1 - 1 / sqrt(total), which is convex and has its root to the right of n
            with np.errstate(all="ignore"):
                step = np.where(active, total * (np.sqrt(total) - 1) / slope, 0.0)
            step = np.where(np.isfinite(step), step, 0.0)
            n = n + np.maximum(step, 0)
            active = active & (step > 1e-15 * n)
            if not active.any():
                break
        of, penalised = self.of, w[self.of] > 0
        return np.where(penalised, a * n[of] / np.where(penalised, p * n[of] + w[of], 1), v)

    def within_rows(self, t: np.ndarray, p: np.ndarray, W: np.ndarray) -> np.ndarray:
        c, (more, unit) = self._per_norm(t), self.curved(t)
        inverse = np.where(self.free(t), 1 / (p + more), 0.0)
        whole = (W * inverse) @ W.T
        # the Hessian of a group is c (I - u u'): a rank one correction of diag(p + c) for each group
        turned = W * (inverse * unit)
        sums = np.stack([self._sums(row) for row in turned]) if len(W) else np.zeros((0, len(c)))
        left = 1 - c * self._sums(inverse * unit**2)
        return np.asarray(whole + (sums * (c / np.where(left > 0, left, 1))) @ sums.T)


def terms_of(g: Regularizer, d: int) -> Terms:
    """Return what minimisation without a matrix needs to know of g; raise a ValueError if that is a dense matrix."""
    if (pieces := g.pieces()) is not None:
        return PieceTerms(g, pieces, d)
    if (groups := g.groups_of(d)) is not None:
        return GroupTerms(g, *groups)
    if (root := g.root(d)) is not None:
        return RootTerms(g, np.asarray(root, float))
    if not g.smooth or (d > _MOST_DENSE and not g.separable):
        raise ValueError(
            f"structure needs a regulariser that is a sum over coordinates, GroupL1, or quadratic; the Hessian of "
            f"{type(g).__name__} is a dense matrix of {d:,} x {d:,} numbers. Use structure=None, or another one."
        )
    return Terms(g)
