"""Gram matrices: their Cholesky factor is the triangle of the rows, at half the cost of QR or less, but it keeps the
digits only where the columns are far from collinear."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, namespace
from kalprox.base.control import cond_rare
from kalprox.linalg.centering import stacked_triangle
from kalprox.linalg.triangle import lapack, product, qr, solve_triangular

__all__ = [
    "add_gram",
    "cholesky",
    "far_from_collinear",
    "gram_in_place",
    "gram_triangle",
    "joined_triangle",
    "smallest_square",
    "triangle_of_rows",
]

# Entries of X in a chunk, which its products find in the cache; and bounds of the rows of a chunk.
_CACHED, _SHORTEST, _LONGEST = 1 << 17, 1024, 4096
_LONG, _FEW = 512, 2  # columns from which, and targets up to which, products by vectors pay


def cholesky(G: np.ndarray) -> np.ndarray | None:
    """Return the triangle of the Gram matrix G, given as its upper half; None where digits would be lost.

    A column that is exactly zero stays exactly zero and is left out of the factorisation.
    """
    scale = np.sqrt(G.diagonal())
    empty = np.flatnonzero(scale == 0)
    scale[empty] = 1
    G *= 1 / scale
    G *= (1 / scale)[:, None]
    G[empty, empty] = 1
    U: np.ndarray
    U, failed = lapack("potrf", G.dtype)(G, lower=0, clean=1, overwrite_a=1)
    if failed:
        return None
    size = 1 / max(lapack("pocon", U.dtype)(U, 1.0)[0], np.finfo(U.dtype).tiny)  # estimated in O(d^2)
    if not _keeps_digits(U, 1 / U.diagonal().min(), size):
        return None
    U[empty, empty] = 0
    U *= scale
    return U


def gram_triangle(M: Array) -> tuple[Array, Array, Array]:
    """Return the triangle of the JAX rows M by their Gram matrix, its inverse, and whether digits are lost.

    Where they are, QR is needed. A column that is zero stays exactly zero, and so does its row of the inverse.
    """
    return _gram_factor(product(M.T, M), (M != 0).any(axis=0))


def _gram_factor(G: Array, some: Array) -> tuple[Array, Array, Array]:
    """`gram_triangle` of the Gram matrix G of rows; `some` says in which columns an entry is not zero."""
    import jax
    import jax.numpy as jnp

    eye = jnp.eye(len(G), dtype=G.dtype)
    squares = (G * eye).sum(axis=0)
    empty = (squares == 0).astype(G.dtype)
    scale = jnp.sqrt(squares + empty)
    unit = (G + jnp.diag(empty)) / (scale[:, None] * scale[None])
    U = jax.lax.linalg.cholesky(unit, symmetrize_input=False).T
    inverse = solve_triangular(U, eye)
    # Stricter than `cholesky`: a fleet takes one Gram matrix to fold its rows, and another to read its estimates.
    keep = _keeps_digits(G, (inverse * eye).max(), (inverse**2).sum(), power=1 / 9)
    lost = some & (squares < smallest_square(G.dtype))
    known = 1 - empty
    return U * (scale * known)[None], inverse * (known / scale)[:, None], ~keep | lost.any()


def triangle_of_rows(M: Array) -> Array:
    """Return the triangle of M, of any shape (m, d): by QR, or on JAX arrays by the Gram matrix if it keeps the digits.

    A batch of small QR factorisations takes a GPU five times as long as their Gram matrices and Cholesky factors.
    """
    if namespace(M) is np:
        return qr(M)[0]
    U, _, fails = gram_triangle(M)
    return cond_rare(fails, lambda: qr(M)[0], lambda: U)


def joined_triangle(T: Array, B: Array, targets: int, triangles: bool = False) -> Array:
    """Return the triangle of the rows of T, an upper triangle, and of B, whose last `targets` columns are y.

    It is that of `stacked_triangle`, on JAX arrays by the Gram matrix of the other columns, X, where that keeps the
    digits. y may be almost a combination of the columns of X: what they leave of it is computed from the rows, and
    what is left of X in that is given back to X (the corrected semi-normal equations), so that both have the digits
    that they have by QR.

    References
    ----------
    A. Bjorck, "Stability analysis of the method of seminormal equations for linear least squares problems", Linear
    Algebra Appl. 88/89 (1987).
    """
    xp, (p, q) = namespace(T, B), (len(T), len(T) - targets)
    if xp is np:
        return stacked_triangle(T, B, triangles)
    G = product(T.T, T) + product(B.T, B)
    U, inverse, fails = _gram_factor(G[:q, :q], ((T != 0).any(axis=0) | (B != 0).any(axis=0))[:q])
    z = product(inverse.T, G[:q, q:])
    less = xp.concatenate([-product(inverse, z), xp.eye(targets, dtype=T.dtype)])
    rest = xp.concatenate([product(T, less), product(B, less)])
    z = z + product(inverse.T, (product(T.T, rest[:p]) + product(B.T, rest[p:]))[:q])
    rho, _, lost = gram_triangle(rest)
    usual = xp.concatenate([xp.concatenate([U, z], axis=1), xp.pad(rho, ((0, 0), (q, 0)))])
    return cond_rare(fails | lost, lambda: stacked_triangle(T, B, triangles), lambda: usual)


def gram_in_place(
    X: np.ndarray, Y: np.ndarray, m: np.ndarray, start: int, stop: int, visit: Callable[[int, int], None]
) -> np.ndarray:
    """Return the upper half of B'B, with B = [1 | X | Y - m], for the rows from `start` to `stop`, reading X in place.

    `visit` is called with the ends of each chunk, which is then in the cache.
    """
    d, k = X.shape[1], Y.shape[1]
    syrk, gemm, gemv = (lapack(name, X.dtype) for name in ("syrk", "gemm", "gemv"))
    chunk = min(max(_CACHED // d, _SHORTEST), _LONGEST, stop - start)
    E = np.ones((chunk, 1 + k), X.dtype)
    XX, EX, G = (np.zeros(shape, X.dtype, order="F") for shape in ((d, d), (1 + k, d), (1 + d + k, 1 + d + k)))
    by_vectors = d >= _LONG and k <= _FEW  # a product by few vectors need not copy X
    for i in range(start, stop, chunk):
        j = min(i + chunk, stop)
        visit(i, j)
        x, e, y = X[i:j].T, E[: j - i].T, np.subtract(Y[i:j].T, m[:, None], dtype=X.dtype, casting="same_kind")
        e[1:] = y
        XX = syrk(1.0, x, beta=1.0, c=XX, overwrite_c=1)
        if by_vectors:
            EX += [gemv(1.0, x, one) for one in e]
        else:
            EX = gemm(1.0, e, x, trans_b=1, beta=1.0, c=EX, overwrite_c=1)
        G[0, 1 + d :] += y.sum(axis=1)
        G[1 + d :, 1 + d :] += y @ y.T
    G[0, 0], G[1 : 1 + d, 1 : 1 + d] = stop - start, XX
    G[0, 1 : 1 + d], G[1 : 1 + d, 1 + d :] = EX[0], EX[1:].T
    return G


def add_gram(G: np.ndarray, T: np.ndarray) -> np.ndarray:
    """Return G + T'T, in place, of which only the upper half is set. The zeros of a large triangle are not touched."""
    p = len(G)
    if len(T) < p or p < _LONG // 2:
        return np.asarray(lapack("syrk", G.dtype)(1.0, T, trans=1, beta=1.0, c=G, overwrite_c=1))
    reverse = np.asfortranarray(T[::-1, ::-1])  # a lower triangle L, of which LAPACK forms L'L
    G += lapack("lauum", G.dtype)(reverse, lower=1, overwrite_c=1)[0][::-1, ::-1]
    return G


def far_from_collinear(T: np.ndarray) -> bool:
    """Whether every pivot of the triangle T, relative to its column's norm, is large enough for a Gram matrix."""
    if len(T) < T.shape[1]:
        return False
    norms = np.sqrt(np.einsum("ij,ij->j", T, T))
    return bool((np.diagonal(T) >= _least_pivot(T.dtype) * norms).all())


def _keeps_digits(G: Array, largest: Any, size: Any, power: float = 1 / 8) -> Array:
    """Whether the Cholesky factor of an equilibrated Gram matrix G is accurate enough to be kept; False for NaN.

    The test looks at the largest of its inverse pivots and at the size of G^-1, because a triangle can be close to
    singular without a small pivot. The smallest pivot is eps^power.
    """
    least = _least_pivot(G.dtype, power)
    return (largest <= 1 / least) & (size <= len(G) / least**2)


@cache
def smallest_square(dtype: Any) -> float:
    """The value below which a sum of squares that is not exactly zero has lost digits to underflow."""
    return float(np.finfo(dtype).tiny / np.finfo(dtype).eps)


@cache
def _least_pivot(dtype: Any, power: float = 1 / 8) -> float:
    """The smallest pivot of an equilibrated Gram matrix that is accepted: 0.01 in float64, 0.14 in float32.

    A pivot of the equilibrated Cholesky factor is the sine of the angle between a column and the span of those
    before it. A Gram matrix loses a factor pivot^-2 where QR loses pivot^-1, so at eps^(1/8) three quarters of the
    digits remain: 12 in float64.
    """
    return float(np.finfo(dtype).eps ** power)
