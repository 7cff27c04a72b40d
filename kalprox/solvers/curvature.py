"""The Hessian of g by its square roots, so that it can be added to R'R without squaring R."""

from typing import Any

from kalprox.base.arrays import Array, is_traced, namespace
from kalprox.base.control import cond_rare
from kalprox.linalg.gram import triangle_of_rows
from kalprox.linalg.triangle import column_norms, qr, rounding
from kalprox.regularizers import Regularizer
from kalprox.regularizers.base import per_coordinate

__all__ = ["curvature", "diagonal_curvature", "hessian_root", "signed_roots"]


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
