"""Gram matrices: their Cholesky factor is the triangle of the rows, at half the cost of QR or less, but it keeps the
digits only where the columns are far from collinear."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from kalprox._arrays import Array, namespace
from kalprox.linalg.triangle import lapack, triangular_inverse

__all__ = ["add_gram", "cholesky", "far_from_collinear", "gram_in_place", "keeps_digits", "smallest_square"]

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
    U, failed = lapack("potrf", G.dtype)(G, lower=0, clean=1, overwrite_a=1)
    if failed or not keeps_digits(U):
        return None
    U[empty, empty] = 0
    U *= scale
    return U


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
        return lapack("syrk", G.dtype)(1.0, T, trans=1, beta=1.0, c=G, overwrite_c=1)
    reverse = np.asfortranarray(T[::-1, ::-1])  # a lower triangle L, of which LAPACK forms L'L
    G += lapack("lauum", G.dtype)(reverse, lower=1, overwrite_c=1)[0][::-1, ::-1]
    return G


def far_from_collinear(T: np.ndarray) -> bool:
    """Whether every pivot of the triangle T, relative to its column's norm, is large enough for a Gram matrix."""
    if len(T) < T.shape[1]:
        return False
    norms = np.sqrt(np.einsum("ij,ij->j", T, T))
    return bool((np.diagonal(T) >= _least_pivot(T.dtype) * norms).all())


def keeps_digits(U: Array) -> Array:
    """Whether the Cholesky factor U of an equilibrated Gram matrix G is accurate enough to be kept; False for NaN.

    The test looks at each pivot and at the size of G^-1, because a triangle can be close to singular without a
    small pivot. LAPACK estimates that size in O(d^2).
    """
    least = _least_pivot(U.dtype)
    if namespace(U) is np:
        inverse = 1 / max(lapack("pocon", U.dtype)(U, 1.0)[0], np.finfo(U.dtype).tiny)
    else:
        inverse = (triangular_inverse(U) ** 2).sum()
    return (U.diagonal().min() >= least) & (inverse <= len(U) / least**2)


@cache
def smallest_square(dtype: Any) -> float:
    """The value below which a sum of squares that is not exactly zero has lost digits to underflow."""
    return float(np.finfo(dtype).tiny / np.finfo(dtype).eps)


@cache
def _least_pivot(dtype: Any) -> float:
    """The smallest pivot of an equilibrated Gram matrix that is accepted: 0.01 in float64, 0.14 in float32.

    A pivot of the equilibrated Cholesky factor is the sine of the angle between a column and the span of those
    before it. A Gram matrix loses a factor pivot^-2 where QR loses pivot^-1, so at eps^(1/8) three quarters of the
    digits remain: 12 in float64.
    """
    return float(np.finfo(dtype).eps ** 0.125)
