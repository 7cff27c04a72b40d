"""The algebra of triangles: rows folded into one, one taken out of another, rank and minimum norm.

A triangle T stands for rows B wherever only B'B = T'T matters: it is the R of B's QR, made unique by
a diagonal >= 0. NumPy arrays go to LAPACK and BLAS, SciPy's throughout (a second library's threads
would fight with them); JAX arrays stay on their device.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np
import scipy.linalg

from kalprox._arrays import Array, full_precision, namespace

__all__ = [
    "column_norms",
    "compiled",
    "compiled_fold",
    "cond",
    "downdate",
    "fold_numpy",
    "inverse",
    "minimum_norm",
    "product",
    "qr",
    "rank",
    "rarely",
    "rounding",
    "solve_triangular",
    "suspect",
    "triangle_of",
    "undetermined",
]


@cache
def _lapack(name: str, dtype: Any) -> Callable:
    """SciPy's routine for the dtype: float32 or float64. Looking it up costs as much as a short fold."""
    find = scipy.linalg.get_blas_funcs if name in ("gemm", "syrk") else scipy.linalg.get_lapack_funcs
    return find(name, dtype=dtype)


def product(A: Array, B: Array) -> Array:
    """A @ B by SciPy's BLAS, whose thread pool the fold uses, or in full precision by JAX.

    A GPU rounds the inputs of a float32 product to fewer bits unless it is told not to. Where B is a vector, NumPy
    needs no copy of A.
    """
    xp = namespace(A, B)
    if xp is not np:
        return xp.matmul(A, B, precision="highest")
    return A @ B if B.ndim == 1 else _lapack("gemm", np.result_type(A, B))(1.0, A, B)


def solve_triangular(U: Array, b: Array, *, transposed: bool = False) -> Array:
    """U^-1 b or U^-T b, U an upper triangle; b is (d,) or (d, k).

    Look at U's diagonal first: with a zero there SciPy raises, and JAX returns infinity or NaN.
    """
    if namespace(U, b) is np:
        return scipy.linalg.solve_triangular(U, b, trans=int(transposed), check_finite=False)
    import jax

    return jax.scipy.linalg.solve_triangular(U, b, trans=int(transposed))


def qr(M: Array, y: Array | None = None) -> tuple[Array, Array]:
    """The triangle U, shape (d, d), and Q' y of M = Q U, for any M of shape (m, d). O(m d^2).

    M may have fewer rows than columns, y fewer entries than M has rows: zeros are meant. Q itself is
    never formed: y rides along as a column.
    """
    xp, (m, d) = namespace(M, y), M.shape
    column = xp.zeros(m, M.dtype) if y is None else xp.concatenate([y, xp.zeros(m - len(y), M.dtype)])
    rows = xp.concatenate([M, column[:, None]], axis=1)
    if m < d:
        rows = xp.concatenate([rows, xp.zeros((d - m, d + 1), M.dtype)])
    if xp is np:
        T = np.triu(_lapack("geqrf", M.dtype)(rows, lwork=32 * (d + 1))[0][:d])  # 32 columns at a time
    else:
        T = xp.linalg.qr(rows, mode="r")
    return T[:d, :d], T[:d, d]


def column_norms(M: Array) -> Array:
    """The norm of every column of a matrix, or of a vector, without overflow or underflow."""
    xp = namespace(M)
    if len(M) == 0:
        return xp.zeros(M.shape[1:], M.dtype)
    size = xp.abs(M).max(axis=0)
    size = xp.where(size > 0, size, 1)
    return size * xp.sqrt(((M / size[None]) ** 2).sum(axis=0))


def rounding(d: int, dtype: Any) -> float:
    """What d terms of size 1 can leave of a zero: the bound below which a pivot or a residual is none."""
    return 4 * (10 + d) * float(np.finfo(dtype).eps)


def suspect(U: Array) -> Array:
    """Whether a triangle U of unit columns may be rank deficient: a diagonal understates its condition, so the
    bound is wide, and singular values decide behind it."""
    xp = namespace(U)
    return xp.abs(xp.diagonal(U)).min() < np.finfo(U.dtype).eps ** 0.5


@cache
def compiled(function: Callable) -> Callable:
    """`function` of JAX arrays, compiled once, so that calls outside a jit find it compiled.

    Its products are in full precision: a GPU would round the inputs of float32 ones.
    """
    import jax

    return jax.jit(full_precision(function))


def _compiled_on_jax(function: Callable) -> Callable:
    @wraps(function)
    def either(*arrays: Array) -> Array:
        return function(*arrays) if namespace(*arrays) is np else compiled(function)(*arrays)

    return either


def cond(predicate: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """One of two answers, only that one worked out; compiled where the arrays are JAX's."""
    if namespace(predicate) is np:
        return yes() if predicate else no()
    import jax

    return jax.lax.cond(predicate, yes, no)


def rarely(predicate: Any, rare: Callable[[], Any], usual: Callable[[], Any]) -> Any:
    """`cond` where `rare()` costs much more and is seldom needed.

    Where JAX batches (`jax.vmap`), `cond` works out both for every member. This one asks first whether any member needs
    it, which is one answer for the whole batch, and so remains a choice.
    """
    if namespace(predicate) is np:
        return rare() if predicate else usual()
    return cond(_anywhere()(predicate), lambda: cond(predicate, rare, usual), usual)


@cache
def _anywhere() -> Callable:
    """A boolean as it is; of a batch, whether it is true of any member."""
    import jax

    @jax.custom_batching.custom_vmap
    def anywhere(predicate: Array) -> Array:
        return predicate

    @anywhere.def_vmap
    def _(axis_size: int, in_batched: list[bool], predicate: Array) -> tuple[Array, bool]:
        return anywhere(predicate.any(axis=0) if in_batched[0] else predicate), False

    return anywhere


def triangle_of(stacked: Array, triangles: bool = False) -> Array:
    """The R of QR of [T; B], T a square upper triangle, B any b rows (or, if `triangles`, a triangle too).

    Backward stable. On NumPy O(b d^2), and a third of O(d^3) for two triangles: T's zeros are never touched.
    """
    xp, p = namespace(stacked), stacked.shape[1]
    if xp is not np:
        return _nonnegative(xp.linalg.qr(stacked, mode="r"))
    return _nonnegative(_append(stacked[:p], stacked[p:], triangles))


def _append(T: np.ndarray, B: np.ndarray, triangle: bool = False) -> np.ndarray:
    """The R of QR of [T; B], by LAPACK's tpqrt; B is a triangle too, or has any number of rows."""
    p = len(T)
    panel = min(p, 8 if p < 160 else 16 if p < 400 else 32)  # columns that are applied together; measured
    return _lapack("tpqrt", T.dtype)(p if triangle else 0, panel, T, B)[0]


def _nonnegative(T: Array) -> Array:
    """T with the signs of its rows such that the diagonal is >= 0: the triangle is then unique."""
    xp = namespace(T)
    return T * xp.where(xp.diagonal(T) < 0, -1, 1).astype(T.dtype)[:, None]


# ---- folding rows in: NumPy ------------------------------------------------------------------------

_CHUNK = 512  # rows at a time: long enough for BLAS, short enough for the cache
_FIRST_GRAM, _LONGEST_GRAM = 1024, 65536  # rows in one Gram matrix: doubled while it does, so that failure is cheap
_FAR = 16  # mean^2 / variance beyond which a column is shifted


def fold_numpy(
    T: np.ndarray, shift: np.ndarray, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """The triangle of T and the rows sqrt(w) [1 | X - c | Y - m], and its shift (c, m); weights > 0.

    The shift is chosen here where T has no row yet (T[0, 0] = 0). O(n d^2): by Gram matrices where they
    keep the digits, which is found out on the way, else by QR. Measured without weights: 1.5 times X'X
    for long blocks, 2 to 4 for 1,024 rows. NaN, infinity or overflow in the rows comes out in T.
    """
    if T[0, 0] == 0:
        shift = _first_shift(X[:_CHUNK], Y[:_CHUNK], None if weights is None else weights[:_CHUNK], T.dtype)
    n, p, d = len(X), len(T), X.shape[1]
    root_w = None if weights is None else np.sqrt(weights).astype(T.dtype)[:, None]
    shifted = shift[:d].any()
    as_they_are = root_w is None and not shifted and X.flags.c_contiguous and X.dtype == T.dtype
    B = np.empty((min(n, _CHUNK), p), T.dtype)
    syrk = _lapack("syrk", T.dtype)

    def rows(i: int, j: int) -> np.ndarray:
        b = B[: j - i]
        b[:, 0] = 1
        if shifted:
            np.subtract(X[i:j], shift[:d], out=b[:, 1 : 1 + d], casting="same_kind")
        else:
            b[:, 1 : 1 + d] = X[i:j]  # several times as fast
        np.subtract(Y[i:j], shift[d:], out=b[:, 1 + d :], casting="same_kind")
        return b if root_w is None else np.multiply(b, root_w[i:j], out=b)

    start, length = 0, max(_FIRST_GRAM, 4 * p)
    if T[0, 0] ** 2 >= length and _far_from_collinear(T):  # has gone well for as many rows
        length = max(_LONGEST_GRAM, 16 * p)
    while start < n:
        stop = n if n - start < 2 * length else start + length
        chunks = [(i, min(i + _CHUNK, stop)) for i in range(start, stop, _CHUNK)]
        factor = None
        if _gram_may_do(T, stop - start):
            if as_they_are:
                G = _gram_as_they_are(X[start:stop], Y[start:stop] - shift[d:])
            else:
                G = np.zeros((p, p), T.dtype, order="F")
                for i, j in chunks:
                    G = syrk(1.0, rows(i, j).T, beta=1.0, c=G, overwrite_c=1)
            if T.any():
                G = syrk(1.0, T, trans=1, beta=1.0, c=G, overwrite_c=1)
            tiny = np.flatnonzero(np.diagonal(G) < _smallest_square(G.dtype))
            lost = tiny.size > 0 and (T[:, tiny].any() or any(rows(i, j)[:, tiny].any() for i, j in chunks))
            factor = None if lost else _cholesky(G)
        if factor is None:
            for i, j in chunks:
                T = _append(T, rows(i, j))
            factor = _nonnegative(T)
        T, start, length = factor, stop, min(2 * length, max(_LONGEST_GRAM, 16 * p))
    return T, shift


def _first_shift(X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None, dtype: Any) -> np.ndarray:
    """The mean of the first rows where it is far from zero on the scale of their spread, else zero.

    Only there does it pay: near zero, X is better left as it is, unrounded and not copied. The mean
    is taken about the first row, so that a constant column's is exact.
    """
    rows = np.concatenate([X, Y], axis=1, dtype=dtype)
    mean = rows[0] + np.average(rows - rows[0], axis=0, weights=weights)
    spread = np.average((rows - mean) ** 2, axis=0, weights=weights)
    return np.where(mean**2 > _FAR * spread, mean, 0).astype(dtype)


def _gram_as_they_are(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The upper half of [1 | X | Y]'[1 | X | Y], X read where it lies."""
    d, k = X.shape[1], Y.shape[1]
    syrk, gemm = _lapack("syrk", X.dtype), _lapack("gemm", X.dtype)
    E = np.concatenate([np.ones((len(Y), 1)), Y], axis=1, dtype=X.dtype)
    XX, EX, G = (np.zeros(shape, X.dtype, order="F") for shape in ((d, d), (1 + k, d), (1 + d + k, 1 + d + k)))
    for i in range(0, len(X), 2 * _CHUNK):
        x, e = X[i : i + 2 * _CHUNK].T, E[i : i + 2 * _CHUNK].T
        XX = syrk(1.0, x, beta=1.0, c=XX, overwrite_c=1)
        EX = gemm(1.0, e, x, trans_b=1, beta=1.0, c=EX, overwrite_c=1)
    EE = syrk(1.0, E.T)
    G[1 : 1 + d, 1 : 1 + d] = XX
    G[0, 1 : 1 + d], G[1 : 1 + d, 1 + d :] = EX[0], EX[1:].T
    G[0, 0], G[0, 1 + d :], G[1 + d :, 1 + d :] = EE[0, 0], EE[0, 1:], EE[1:, 1:]
    return G


def _gram_may_do(T: np.ndarray, b: int) -> bool:
    """Whether a Gram matrix of b more rows is worth a try: enough rows, and T itself not collinear."""
    if b < 2 * len(T):
        return False
    return T[0, 0] ** 2 < b / 2 or _far_from_collinear(T)  # or too few rows to tell


def _far_from_collinear(T: np.ndarray) -> bool:
    norms = np.sqrt(np.einsum("ij,ij->j", T, T))
    return bool((np.diagonal(T) >= _least_pivot(T.dtype) * norms).all())


def _cholesky(G: np.ndarray) -> np.ndarray | None:
    """The triangle of the Gram matrix G, given as its upper half; None where that costs digits.

    A column that is zero has no part in it: it stays zero, exactly.
    """
    scale = np.sqrt(np.diagonal(G))
    empty = scale == 0
    scale = np.where(empty, 1, scale)
    G /= scale
    G /= scale[:, None]
    G[empty, empty] = 1
    U, failed = _lapack("potrf", G.dtype)(G, lower=0, clean=1, overwrite_a=1)
    if failed or not _keeps_digits(U):
        return None
    U[empty, empty] = 0
    U *= scale
    return U


def _smallest_square(dtype: Any) -> float:
    """Below this a sum of squares has lost digits to underflow, if it is not exactly zero."""
    return float(np.finfo(dtype).tiny / np.finfo(dtype).eps)


def _keeps_digits(U: Array) -> Array:
    """Whether the Cholesky factor U of an equilibrated Gram matrix G is accurate enough to be kept.

    Each pivot is looked at, and the size of G^-1, for there are triangles without a small pivot that
    are close to singular all the same: O(d^2) by LAPACK's estimate of its norm. False for NaN.
    """
    least = _least_pivot(U.dtype)
    if namespace(U) is np:
        inverse = 1 / max(_lapack("pocon", U.dtype)(U, 1.0)[0], np.finfo(U.dtype).tiny)
    else:
        inverse = _inverse_norm(U) ** 2
    return (U.diagonal().min() >= least) & (inverse <= len(U) / least**2)


def _least_pivot(dtype: Any) -> float:
    """How collinear scaled columns may be for their Gram matrix: 0.01 in float64, 0.14 in float32.

    A pivot of the equilibrated Cholesky factor is the sine of the angle between a column and those
    before it. The Gram matrix loses a factor pivot^-2 where QR loses pivot^-1, so that at eps^(1/8)
    three quarters of the digits remain: 12 in float64.
    """
    return float(np.finfo(dtype).eps ** 0.125)


# ---- folding rows in: JAX --------------------------------------------------------------------------


@cache
def compiled_fold() -> Callable:
    """`fold_numpy` for JAX, compiled once for each shape: (T, shift, rows, X, Y, w) -> (T, shift, rows).

    Same cost and same digits. A row of weight 0 is masked, whatever it holds: shapes cannot depend on weights.
    """
    import jax

    return jax.jit(_fold_jax)


def _fold_jax(T: Array, shift: Array, rows: Array, X: Array, Y: Array, w: Array) -> tuple[Array, Array, Array]:
    import jax.numpy as jnp

    B = jnp.concatenate([X, Y], axis=1)
    B = jnp.where(w[:, None] > 0, B, 0)
    total, first = w.sum(), B[jnp.argmax(w > 0)]
    share = (w / jnp.where(total > 0, total, 1))[:, None]
    mean = first + (share * (B - first[None])).sum(axis=0)
    spread = (share * (B - mean[None]) ** 2).sum(axis=0)
    far = (T[0, 0] == 0) & (mean**2 > _FAR * spread)  # as in _first_shift; without rows, mean is 0
    shift = jnp.where(far, mean, shift)
    B = jnp.sqrt(w)[:, None] * jnp.concatenate([jnp.ones_like(w)[:, None], B - shift[None]], axis=1)

    def qr(T: Array, B: Array) -> Array:
        return triangle_of(jnp.concatenate([T, B]))

    if len(B) < 2 * len(T):
        return qr(T, B), shift, rows + total
    G = product(T.T, T) + product(B.T, B)
    scale = jnp.sqrt(jnp.diagonal(G))
    empty = scale == 0
    scale = jnp.where(empty, 1, scale)
    unit = jnp.diag(empty.astype(T.dtype))
    U = jnp.linalg.cholesky(G / scale[:, None] / scale[None] + unit, upper=True)
    lost = (jnp.diagonal(G) < _smallest_square(G.dtype)) & ((T != 0).any(axis=0) | (B != 0).any(axis=0))
    fails = ~_keeps_digits(U) | lost.any()
    return rarely(fails, lambda: qr(T, B), lambda: (U - unit) * scale[None]), shift, rows + total


# ---- taking rows out -------------------------------------------------------------------------------


def downdate(T: np.ndarray, S: np.ndarray) -> np.ndarray | str:
    """The triangle of T'T - S'S, or in words why there is none. O(d^3).

    With q = T^-T S' and U'U = I - q q' it is U T. If the least eigenvalue of I - q q' is delta, its relative
    error is of order eps / delta: refused beyond sqrt(eps). Columns that depend on others in T follow them.
    """
    eps, p = np.finfo(T.dtype).eps, len(T)
    scale = np.sqrt((T**2).sum(axis=0))
    if (S[:, scale == 0] != 0).any():
        return "other says something about a column that is zero in every row of this."
    scale = np.where(scale == 0, 1, scale)
    R, order = scipy.linalg.qr(T / scale, mode="r", pivoting=True)
    r = int((np.abs(np.diagonal(R)) > p * eps * abs(R[0, 0])).sum())  # R[0, 0] = 1 or -1
    S = (S / scale)[:, order]
    dependent = solve_triangular(R[:r, :r], R[:r, r:])
    if (np.abs(S[:, r:] - product(S[:, :r], dependent)) > np.sqrt(eps) * (1 + np.abs(dependent).sum(axis=0))).any():
        return "other says something in a direction where this says nothing."
    q = solve_triangular(R[:r, :r], S[:, :r].T, transposed=True)
    U, failed = _lapack("potrf", T.dtype)(np.eye(r, dtype=T.dtype) - product(q, q.T), lower=0, clean=1)
    # the sum of the inverse eigenvalues of I - q q', so at least 1 / delta and at most r / delta
    if failed or not eps * (_lapack("trtri", T.dtype)(U)[0] ** 2).sum() < np.sqrt(eps):
        return (
            "other is not contained in this, or nearly all that this says in some direction comes from it: "
            "what is left would have less than half of its digits. Fold the rows that stay from the start instead."
        )
    left = np.zeros((2 * p, p), T.dtype)
    left[p : p + r, order] = product(U, R[:r]) * scale[order]
    return triangle_of(left)


# ---- reading: rank, and minimum norm where it is short ---------------------------------------------


@_compiled_on_jax
def rank(R: Array, rows: Array) -> Array:
    """How many singular values of R, on columns scaled to length one, count for that number of rows.

    O(d^3): a bound by the inverse settles full rank, an SVD the rest.
    """
    xp, tol = namespace(R), _rank_tolerance(R, rows)
    return rarely(~_surely_full_rank(R, tol), lambda: _singular(R, tol)[-1].sum(), lambda: xp.asarray(R.shape[1]))


@_compiled_on_jax
def undetermined(R: Array, rows: Array, A: Array) -> Array:
    """Which rows of A, divided by the column norms of R, have more than sqrt(eps) of their length in the
    null space of the scaled R. O(d^3), and none if the rank is full."""
    xp, tol = namespace(R), _rank_tolerance(R, rows)

    def by_svd() -> Array:
        _, _, Vt, scale, counts = _singular(R, tol)
        a = A / scale[None]
        along = xp.where(counts[None], 0, product(a, Vt.T))
        return (along**2).sum(axis=1) > xp.finfo(R.dtype).eps * (a**2).sum(axis=1)

    return rarely(~_surely_full_rank(R, tol), by_svd, lambda: xp.zeros(len(A), bool))


@_compiled_on_jax
def minimum_norm(R: Array, rows: Array, z: Array) -> Array:
    """The theta of least norm among those that minimise ||R theta - z||; z is (d,) or (d, k). O(d^3).

    Back-substitution, with QR's accuracy, where the rank is full. Where it is not, a solution on scaled
    columns, less its part in the null space of R. That part is found in the basis N = V2 / scale rather
    than by a projector, so that R N is zero to rounding column by column: a projector's error would be
    that of the largest coefficient.
    """
    xp, tol = namespace(R, z), _rank_tolerance(R, rows)

    def by_svd() -> Array:
        U, s, Vt, scale, counts = _singular(R, tol)
        inverse = xp.where(counts, 1 / xp.where(counts, s, 1), 0)[:, None]
        theta = product(Vt.T, product(U.T, z.reshape(len(z), -1)) * inverse) / scale[:, None]
        # The last rows of Vt span the null space: in reverse they come first, and QR of the rest, masked, is zero.
        null = xp.where(counts, 0, 1).astype(R.dtype)[::-1]
        N = (Vt / scale[None]).T[:, ::-1] * null[None]
        Q, C = scipy.linalg.qr(N) if xp is np else xp.linalg.qr(N)
        part = solve_triangular(C + xp.diag(1 - null), product(Q.T, theta) * null[:, None])
        theta = theta - product(N, part)
        full = counts.all()
        safe = xp.where(full, R, xp.eye(len(R), dtype=R.dtype))  # rank = d after all: keep QR's accuracy
        return xp.where(full, solve_triangular(safe, z), theta.reshape(z.shape))

    return rarely(~_surely_full_rank(R, tol), by_svd, lambda: solve_triangular(R, z))


def _rank_tolerance(R: Array, rows: Array) -> Array:
    """The least ratio of singular values that counts: max(d, sqrt(rows)) * eps.

    Copies of a column, folded row by row, were told apart by 15 eps after 1,000 rows and 45 eps
    after 20,000. Blocks do better, and weights may be large, so the number of rows is capped.
    """
    xp = namespace(R)
    folded = xp.sqrt(xp.clip(xp.asarray(rows, R.dtype), R.shape[1] ** 2, 1e7))
    return folded * xp.asarray(xp.finfo(R.dtype).eps, R.dtype)


def _surely_full_rank(R: Array, tol: Array) -> Array:
    """A bound that settles the common case without singular values: s_min >= 1 / ||R^-1||_F."""
    R, _ = _scaled(R)
    return tol * namespace(R).sqrt((R**2).sum()) < 1 / _inverse_norm(R)  # False for NaN


def inverse(R: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """R^-1 where the rank is surely full, by the same bound; None where singular values have to tell. NumPy only."""
    norms, diagonal = column_norms(R), R.diagonal()
    if not diagonal.all():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        found = _lapack("trtri", R.dtype)(R)[0]
        size = np.sqrt(((norms[:, None] * found) ** 2).sum())  # of the scaled R's inverse
        return found if _rank_tolerance(R, rows) * np.sqrt(len(R)) < 1 / size else None  # None for NaN


def _singular(R: Array, tol: Array) -> tuple[Array, ...]:
    """SVD of the scaled R, the scale, and which singular values count."""
    xp = namespace(R)
    scaled, scale = _scaled(R)
    U, s, Vt = scipy.linalg.svd(scaled) if xp is np else xp.linalg.svd(scaled)
    return U, s, Vt, scale, s > tol * s[0]


def _scaled(R: Array) -> tuple[Array, Array]:
    """R with columns of length one (or zero), and the lengths it was divided by."""
    norms = column_norms(R)
    scale = namespace(R).where(norms > 0, norms, 1)
    return R / scale[None], scale


def _inverse_norm(R: Array) -> Array:
    """||R^-1||_F; infinite, or NaN, where R has a zero on its diagonal."""
    xp = namespace(R)
    if xp is not np:
        inverse = solve_triangular(R, xp.eye(len(R), dtype=R.dtype))
    elif R.diagonal().all():
        inverse = _lapack("trtri", R.dtype)(R)[0]
    else:
        return np.inf
    with np.errstate(over="ignore"):  # infinite is the right answer then
        return xp.sqrt((inverse**2).sum())
