"""Gram matrices: their Cholesky factor is the triangle of the rows, at half the cost of QR or less, but it keeps the
digits only where the columns are far from collinear."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kalprox._arrays import Array, namespace
from kalprox.linalg.triangle import lapack, triangular_inverse

__all__ = ["cholesky", "far_from_collinear", "gram_in_place", "keeps_digits", "smallest_square", "worth_a_try"]


def cholesky(G: np.ndarray) -> np.ndarray | None:
    """Return the triangle of the Gram matrix G, given as its upper half; None where digits would be lost.

    A column that is exactly zero stays exactly zero and is left out of the factorisation.
    """
    scale = np.sqrt(np.diagonal(G))
    empty = scale == 0
    scale = np.where(empty, 1, scale)
    G /= scale
    G /= scale[:, None]
    G[empty, empty] = 1
    U, failed = lapack("potrf", G.dtype)(G, lower=0, clean=1, overwrite_a=1)
    if failed or not keeps_digits(U):
        return None
    U[empty, empty] = 0
    U *= scale
    return U


def gram_in_place(
    X: np.ndarray, Y: np.ndarray, m: np.ndarray, chunks: list[tuple[int, int]], visit: Callable[[int, int], None]
) -> np.ndarray:
    """Return the upper half of B'B, with B = [1 | X | Y - m], for some chunks of rows, reading X in place.

    `visit` is called with the ends of each chunk, which is then in the cache.
    """
    d, k = X.shape[1], Y.shape[1]
    syrk, gemm = lapack("syrk", X.dtype), lapack("gemm", X.dtype)
    shapes = (d, d), (1 + k, d), (1 + k, 1 + k), (1 + d + k, 1 + d + k)
    XX, EX, EE, G = (np.zeros(shape, X.dtype, order="F") for shape in shapes)
    for i, j in chunks:
        visit(i, j)
        e = np.concatenate([np.ones((j - i, 1)), Y[i:j] - m], axis=1, dtype=X.dtype)
        XX = syrk(1.0, X[i:j].T, beta=1.0, c=XX, overwrite_c=1)
        EX = gemm(1.0, e.T, X[i:j].T, trans_b=1, beta=1.0, c=EX, overwrite_c=1)
        EE = syrk(1.0, e.T, beta=1.0, c=EE, overwrite_c=1)
    G[1 : 1 + d, 1 : 1 + d] = XX
    G[0, 1 : 1 + d], G[1 : 1 + d, 1 + d :] = EX[0], EX[1:].T
    G[0, 0], G[0, 1 + d :], G[1 + d :, 1 + d :] = EE[0, 0], EE[0, 1:], EE[1:, 1:]
    return G


def worth_a_try(T: np.ndarray, b: int) -> bool:
    """Whether to try a Gram matrix for b more rows: there must be enough rows, and T must not be collinear."""
    if b < 2 * T.shape[1]:
        return False
    return T[0, 0] ** 2 < b / 2 or far_from_collinear(T)  # T of few rows does not tell whether its columns are


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


def smallest_square(dtype: Any) -> float:
    """The value below which a sum of squares that is not exactly zero has lost digits to underflow."""
    return float(np.finfo(dtype).tiny / np.finfo(dtype).eps)


def _least_pivot(dtype: Any) -> float:
    """The smallest pivot of an equilibrated Gram matrix that is accepted: 0.01 in float64, 0.14 in float32.

    A pivot of the equilibrated Cholesky factor is the sine of the angle between a column and the span of those
    before it. A Gram matrix loses a factor pivot^-2 where QR loses pivot^-1, so at eps^(1/8) three quarters of the
    digits remain: 12 in float64.
    """
    return float(np.finfo(dtype).eps ** 0.125)
