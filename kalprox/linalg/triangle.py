"""Triangles: products, QR factors and solves under one name for NumPy and JAX; triangles of rows centred elsewhere."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
import scipy.linalg

from kalprox.base.arrays import Array, namespace
from kalprox.base.control import compiled_on_jax, cond_rare, unrolling

_BLAS = "gemm", "gemv", "syrk", "trsm"
_SAFE = 1e-20, 1e20  # between these a sum of squares keeps its digits, in float32 too
_WIDE = 32  # columns from which the test whether a matrix is a triangle pays


@cache
def lapack(name: str, dtype: Any) -> Callable[..., Any]:
    """SciPy's BLAS or LAPACK routine for float32 or float64. Cached: the look-up costs as much as a short fold."""
    find = scipy.linalg.get_blas_funcs if name in _BLAS else scipy.linalg.get_lapack_funcs
    routine: Callable[..., Any] = find(name, dtype=dtype)
    return routine


def product(A: Array, B: Array) -> Array:
    """Return A @ B by SciPy's BLAS, or in full precision by JAX.

    Without being told otherwise a GPU rounds the inputs of a float32 product to fewer bits. Where B is a vector
    NumPy's own product is used, because it needs no copy of A.
    """
    xp = namespace(A, B)
    if xp is not np:
        return xp.matmul(A, B, precision="highest")
    return A @ B if B.ndim == 1 else lapack("gemm", np.result_type(A, B))(1.0, A, B)


def solve_triangular(U: Array, b: Array, *, transposed: bool = False) -> Array:
    """Return U^-1 b, or U^-T b if `transposed`, for an upper triangle U and b of shape (d,) or (d, k).

    Check the diagonal of U first: with a zero on it NumPy arrays raise LinAlgError, and JAX returns infinity or NaN.
    """
    if namespace(U, b) is np:
        return _solve_numpy(U, b, transposed)
    import jax

    return jax.scipy.linalg.solve_triangular(U, b, trans=int(transposed))


def _solve_numpy(U: np.ndarray, b: np.ndarray, transposed: bool) -> np.ndarray:
    """Call BLAS's trsm directly; for few columns `scipy.linalg.solve_triangular` takes ten times as long.

    LAPACK's trtrs is no better: OpenBLAS starts its threads for triangles of any size, which wait for each other. If
    both of two cores are busy, 10 coefficients then take 8 ms instead of 2 us.
    """
    if b.size == 0:
        return np.zeros_like(b)
    diagonal = U.diagonal()
    if not diagonal.all():
        zero = int(np.argmin(np.abs(diagonal)))
        raise np.linalg.LinAlgError(f"The triangle is singular: entry {zero} of its diagonal is zero.")
    columns = b[:, None] if b.ndim == 1 else b
    trsm = lapack("trsm", np.result_type(U, b))
    x: np.ndarray
    if U.flags.f_contiguous:
        x = trsm(1.0, U, columns, lower=0, trans_a=int(transposed))
    else:  # the transpose of a C-ordered U needs no copy
        x = trsm(1.0, U.T, columns, lower=1, trans_a=int(not transposed))
    return x[:, 0] if b.ndim == 1 else x


def qr(M: Array, y: Array | None = None) -> tuple[Array, Array]:
    """Return the triangle U, shape (d, d), and Q'y of M = Q U, for M of any shape (m, d). O(m d^2).

    On NumPy arrays one triangle above another, such as R above the root of a ridge penalty, takes a third of that, and
    a triangle alone is returned as it is.

    M may have fewer rows than columns, and y fewer entries than M has rows: the missing ones count as zeros. Q is
    never formed; y, of shape (m,) or (m, k), is factored along as more columns of M.
    """
    xp, (m, d) = namespace(M, y), M.shape
    y = xp.zeros(m, M.dtype) if y is None else y
    columns = y[:, None] if y.ndim == 1 else y
    columns = xp.concatenate([columns, xp.zeros((m - len(y), columns.shape[1]), M.dtype)])
    rows = xp.concatenate([M, columns], axis=1)
    if m < d:
        rows = xp.concatenate([rows, xp.zeros((d - m, rows.shape[1]), M.dtype)])
    T = _qr_numpy(rows, d) if xp is np else xp.linalg.qr(rows, mode="r")
    return T[:d, :d], T[:d, d] if y.ndim == 1 else T[:d, d:]


def _qr_numpy(M: np.ndarray, d: int) -> np.ndarray:
    """Return the first d rows, or more, of the R factor of M."""
    m, p = M.shape
    if d >= _WIDE and m <= 2 * d and not (M[:d, :d] * _below(d)).any():
        if m == d:
            return M
        square = np.zeros((2, p, p), M.dtype)
        square[0, :d], square[1, : m - d] = M[:d], M[d:]
        return append(square[0], square[1], triangle=not (square[1] * _below(p)).any())
    return np.triu(lapack("geqrf", M.dtype)(M, lwork=32 * p)[0][:p])  # blocks of 32 columns


@lru_cache(maxsize=4)  # of few sizes: the active sets of a penalty have as many sizes as there are columns
def _below(d: int) -> np.ndarray:
    """The mask of the entries of a (d, d) matrix below its diagonal."""
    return np.tri(d, k=-1, dtype=bool)


def qr_factors(M: Array) -> tuple[Array, Array]:
    """Return the factors Q, with orthonormal columns, and R of M = Q R, for M of shape (m, d) with m >= d."""
    xp = namespace(M)
    Q, R = scipy.linalg.qr(M, mode="economic", check_finite=False) if xp is np else xp.linalg.qr(M)
    return Q, R


def svd(M: Array) -> tuple[Array, Array, Array]:
    """Return U, s and V' of M = U diag(s) V', for a square M."""
    xp = namespace(M)
    U, s, Vt = scipy.linalg.svd(M) if xp is np else xp.linalg.svd(M)
    return U, s, Vt


def triangle_of(stacked: Array, triangles: bool = False) -> Array:
    """Return the R factor of [T; B], where T is a square upper triangle and B has any number b of rows.

    With `triangles`, B is an upper triangle too. Backward stable. On NumPy arrays the zeros of T are never
    touched: O(b d^2), or a third of a full QR for two triangles.
    """
    xp, p = namespace(stacked), stacked.shape[1]
    if xp is not np:
        return nonnegative_diagonal(xp.linalg.qr(stacked, mode="r"))
    return nonnegative_diagonal(append(stacked[:p], stacked[p:], triangles))


def append(T: np.ndarray, B: np.ndarray, triangle: bool = False) -> np.ndarray:
    """Return the R factor of [T; B] by LAPACK's tpqrt, with rows of either sign; B is as in `triangle_of`.

    T may have fewer rows than columns, m of p: the result then has up to b more, in O(b m p). One row of zeros
    stands for no row.
    """
    m, p = T.shape
    if m < 2 and not T.any():
        return _qr_numpy(B, min(B.shape))
    panel = min(m, 8 if m < 160 else 16 if m < 400 else 32)  # columns applied together; measured
    if m == p:
        return np.asarray(lapack("tpqrt", T.dtype)(min(B.shape) if triangle else 0, panel, T, B)[0])
    left, reflections, t, _ = lapack("tpqrt", T.dtype)(0, panel, T[:, :m], B[:, :m])
    right, below, _ = lapack("tpmqrt", T.dtype)(0, reflections, t, T[:, m:], B[:, m:], trans="T")
    below = _qr_numpy(below, min(below.shape))
    stacked = np.zeros((m + len(below), p), T.dtype)
    stacked[:m, :m], stacked[:m, m:], stacked[m:, m:] = left, right, below
    return stacked


def square(T: Array) -> Array:
    """Return the triangle T with the rows of zeros that it lacks where it has fewer rows than columns."""
    missing = T.shape[1] - len(T)
    return T if missing == 0 else namespace(T).pad(T, ((0, missing), (0, 0)))


def append_row(T: Array, b: Array) -> Array:
    """Return the triangle of the rows of T, an upper triangle of JAX arrays, and one more row b. O(d^2).

    One rotation for each row of T: a row of any size leaves the digits of the others, and a batch of triangles is only
    a batch of rows in each step.
    """
    import jax
    import jax.numpy as jnp

    def rotate(b: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        t, i = row
        size = jnp.maximum(jnp.abs(t[i]), jnp.abs(b[i]))
        some = size > 0
        x, y = t[i] / jnp.where(some, size, 1), b[i] / jnp.where(some, size, 1)
        norm = jnp.sqrt(jnp.where(some, x**2 + y**2, 1))
        c, s = jnp.where(some, x, 1) / norm, y / norm
        return c * b - s * t, c * t + s * b

    T = jax.lax.scan(rotate, b, (T, jnp.arange(len(T))), unroll=unrolling())[1]
    return nonnegative_diagonal(jnp.triu(T))


def nonnegative_diagonal(T: Array) -> Array:
    """Return T with the signs of its rows chosen such that its diagonal is >= 0, which makes the triangle unique."""
    xp = namespace(T)
    if xp is np:  # a third of the time, which is felt where single rows are folded
        return T * np.copysign(1, T.diagonal())[:, None]
    return T * xp.where(xp.diagonal(T) < 0, -1, 1).astype(T.dtype)[:, None]


def column_norms(M: Array) -> Array:
    """Return the norm of every column of a matrix, or of a vector, without overflow or underflow."""
    xp = namespace(M)
    if len(M) == 0:
        return xp.zeros(M.shape[1:], M.dtype)
    if xp is np:  # several times as fast where nothing overflows or underflows
        squares = np.einsum("i...,i...->...", M, M)
        if squares.size and squares.min() > _SAFE[0] and squares.max() < _SAFE[1]:
            return np.sqrt(squares)
    size = xp.abs(M).max(axis=0)
    size = xp.where(size > 0, size, 1)
    return size * xp.sqrt(((M / size[None]) ** 2).sum(axis=0))


def sum_of_squares(a: Array, weights: Array | None = None) -> float:
    """Return the weighted sum of squares; JAX arrays are not multiplied as matrices, which a GPU rounds in float32."""
    if namespace(a) is np:
        return float(np.vdot(a, a if weights is None else weights * a))
    return float((a**2 if weights is None else weights * a**2).sum())


def triangular_inverse(R: Array) -> Array:
    """Return R^-1 for an upper triangle R; infinite or NaN where the diagonal of R has a zero."""
    xp = namespace(R)
    if xp is not np:
        return solve_triangular(R, xp.eye(len(R), dtype=R.dtype))
    return lapack("trtri", R.dtype)(R)[0] if R.diagonal().all() else np.full_like(R, np.inf)


def rounding(d: int, dtype: Any) -> float:
    """A bound on the rounding error of a sum of d terms of size 1: below it a pivot or a residual counts as zero."""
    return 4 * (10 + d) * float(np.finfo(dtype).eps)


FAR = 16  # mean^2 / variance beyond which a column is shifted
GRADED = 1e4  # the ratio of the sizes of two rows beyond which QR loses more than four digits of the smaller


def recenter(T: Array, change: Array) -> Array:
    """Return T for the point c reduced by `change`; only the first row, that of the means, differs."""
    xp = namespace(T)
    top = T[:1] + T[0, 0] * xp.concatenate([xp.zeros(1, T.dtype), change])[None]
    return xp.concatenate([top, T[1:]])


def follow_mean(T: Array, c: Array) -> tuple[Array, Array]:
    """Move c to the mean of the rows in the columns in which it is far from it, on the scale of their spread."""
    xp = namespace(T)
    if xp is np and len(T) == T.shape[1] and (np.abs(T[0]) <= FAR**0.5 * T.diagonal())[1:].all():
        return T, c  # the diagonal is a lower bound of the spread, in O(d)
    far = T[0, 1:] ** 2 > FAR * (T[1:, 1:] ** 2).sum(axis=0)
    if xp is np and not far.any():
        return T, c
    moved = xp.where(far, c + T[0, 1:] / xp.where(T[0, 0] > 0, T[0, 0], 1), c)
    return recenter(T, c - moved), moved


@compiled_on_jax
def stacked_triangle(T: Array, B: Array, triangles: bool = False) -> Array:
    """Return the triangle of the rows of T, an upper triangle, and of B, whatever their sizes; see `triangle_of`."""
    xp = namespace(T, B)
    if xp is not np and len(B) == 1:
        return append_row(T, B[0])
    rows = xp.concatenate([T, B])

    def by_qr() -> Array:
        return nonnegative_diagonal(append(T, B, triangles)) if xp is np else triangle_of(rows, triangles)

    return cond_rare(graded(rows), lambda: graded_triangle(rows), by_qr)


def graded(rows: Array) -> Array:
    """Whether rows that are not zero differ much in their size: the largest entry, on the scale of the columns."""
    xp = namespace(rows)
    size = xp.abs(rows)
    largest = size.max(axis=0)
    size = (size / xp.where(largest > 0, largest, 1)[None]).max(axis=1)
    return size.max() > GRADED * size.min(where=size > 0, initial=np.inf)


def graded_triangle(rows: Array) -> Array:
    """Return the triangle of rows that differ much in size, in any order. O(n d^2)."""
    xp, p = namespace(rows), rows.shape[1]
    return triangle_of(xp.concatenate([xp.zeros((p, p), rows.dtype), rows]))
