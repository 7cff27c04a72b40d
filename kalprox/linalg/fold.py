"""Folding rows into a triangle, and taking them out: T becomes the R factor of [T; sqrt(w) [1 | X - c | Y - m]].

Gram matrices are used where they keep the digits, which is found out along the way, and QR elsewhere.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg

from kalprox.base.arrays import Array, namespace
from kalprox.base.control import compiled, cond_rare
from kalprox.linalg.rank import tolerance
from kalprox.linalg.triangle import (
    FAR,
    GRADED,
    append,
    follow_mean,
    graded,
    graded_triangle,
    lapack,
    nonnegative_diagonal,
    product,
    qr,
    recenter,
    solve_triangular,
    square,
    stacked_triangle,
    triangle_of,
)

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


_CHUNK = 512  # rows at a time: enough for BLAS, few enough for the cache
# Rows in one Gram matrix, four times as many while it succeeds: a failure is cheap.
_FIRST_GRAM, _LONGEST_GRAM = 4096, 65536


def fold(
    T: Array,
    shift: Array,
    X: Array,
    Y: Array,
    weights: Array | None,
    dtype: Any,
    visit: Callable[[int, int], None] | None = None,
) -> tuple[Array, Array]:
    """Fold the rows sqrt(w) [1 | X - c | Y - m] into the triangle T, with shift = (c, m).

    The shift follows the rows: these rows decide if they have more weight than all before, and it moves to the mean of
    all rows where it is far from that. O(n d^2); measured without weights, 1.5 times the cost of X'X for long blocks
    and 2 to 4 times for 1,024 rows. NaN, infinity or overflow in the rows shows in T.

    Parameters
    ----------
    T : array of shape (1 + d + k, 1 + d + k)
        The triangle of the rows folded so far. As long as there are fewer of them than columns, it may be an upper
        trapezoid without the rows of zeros; NumPy arrays that were zero become one.
    shift : array of shape (d + k,)
        The vector subtracted from every row of [X | Y].
    X, Y : array of shape (n, d) and (n, k)
        The rows and their targets.
    weights : array of shape (n,) or None
        Weights >= 0, or None for weight one. A row of weight 0 changes nothing, whatever it holds.
    dtype : dtype
        What to compute in.
    visit : function, optional
        Called with the ends of every piece of the rows before it is folded, and perhaps again, while it is in the
        cache.

    Returns
    -------
    T, shift : arrays
        The triangle of all rows, and its shift.
    """
    xp, visit = namespace(T, X, Y, weights), visit or _no_visit
    if xp is not np:
        visit(0, len(X))
        w = xp.ones(len(X), dtype) if weights is None else weights
        folded: tuple[Array, Array] = compiled(_fold_jax)(*(xp.asarray(a, dtype) for a in (square(T), shift, X, Y, w)))
        return folded
    if weights is not None and not weights.all():
        visit(0, len(X))  # the numbers of the rows that are left are others
        visit = _no_visit
        X, Y, weights = (a[weights > 0] for a in (X, Y, weights))
    if len(X) == 0:
        return T, shift
    with np.errstate(all="ignore"):  # the caller looks at T for values that are not finite
        return _fold_numpy(T.astype(dtype, copy=False), shift.astype(dtype, copy=False), X, Y, weights, visit)


def _no_visit(start: int, stop: int) -> None:
    pass


def _fold_numpy(
    T: np.ndarray,
    shift: np.ndarray,
    X: np.ndarray,
    Y: np.ndarray,
    weights: np.ndarray | None,
    visit: Callable[[int, int], None],
) -> tuple[np.ndarray, np.ndarray]:
    """`fold` for weights > 0."""
    n, p, d = len(X), T.shape[1], X.shape[1]
    root_w = None if weights is None else np.sqrt(weights).astype(T.dtype)[:, None]
    unchanged = root_w is None and X.flags.c_contiguous and X.dtype == T.dtype
    B = np.empty((min(n, _CHUNK), p), T.dtype)
    syrk = lapack("syrk", T.dtype)

    def rows(i: int, j: int) -> np.ndarray:
        visit(i, j)
        b = B[: j - i]
        b[:, 0] = 1
        if shift[:d].any():
            np.subtract(X[i:j], shift[:d], out=b[:, 1 : 1 + d], casting="same_kind")
        else:
            b[:, 1 : 1 + d] = X[i:j]  # several times as fast
        np.subtract(Y[i:j], shift[d:], out=b[:, 1 + d :], casting="same_kind")
        return b if root_w is None else np.multiply(b, root_w[i:j], out=b)

    start, length = 0, max(_FIRST_GRAM, 4 * p)
    if n < p and not T[0, 0] and not T.any():
        T = T[:1]  # which stays as short as there are rows
    straight = n >= 2 * p and far_from_collinear(T)
    if T[0, 0] ** 2 >= length and straight:  # Gram matrices have done well on as many rows before
        length = max(_LONGEST_GRAM, 16 * p)
    while start < n:
        stop = n if n - start < 2 * length else start + length
        w = None if weights is None else weights[start:stop]
        if T[0, 0] ** 2 < (stop - start if w is None else w.sum()):
            T, shift = _chosen_shift(T, shift, X[start:stop][:_CHUNK], Y[start:stop][:_CHUNK], w)
        chunks = [(i, min(i + _CHUNK, stop)) for i in range(start, stop, _CHUNK)]
        factor = None
        # There must be enough rows. A triangle of few rows does not tell whether the columns are collinear.
        if stop - start >= 2 * p and (straight or T[0, 0] ** 2 < (stop - start) / 2):
            if unchanged and not shift[:d].any():
                G = gram_in_place(X, Y, shift[d:], start, stop, visit)
            else:
                G = np.zeros((p, p), T.dtype, order="F")
                for i, j in chunks:
                    G = syrk(1.0, rows(i, j).T, beta=1.0, c=G, overwrite_c=1)
            if T[0, 0] or T.any():
                G = add_gram(G, T)
            tiny = np.flatnonzero(G.diagonal() < smallest_square(G.dtype))
            lost = tiny.size > 0 and (T[:, tiny].any() or any(rows(i, j)[:, tiny].any() for i, j in chunks))
            factor = None if lost else cholesky(G)
        if factor is None:
            for i, j in chunks:
                b = rows(i, j)
                few = 4 * p > T[0, 0] ** 2  # otherwise a row of weight 1 is a small part of all rows
                mixed = (few or weights is not None) and _differ_in_weight(T, b, weights is not None)
                T = graded_triangle(np.concatenate([T, b])) if mixed else append(T, b)
            factor, shift = follow_mean(nonnegative_diagonal(T), shift)
            straight = far_from_collinear(factor)
        else:
            straight = True
        T, start, length = factor, stop, min(4 * length, max(_LONGEST_GRAM, 16 * p))
    return T, shift


def _chosen_shift(
    T: np.ndarray, shift: np.ndarray, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return T and the shift for more rows, which have more weight than all of T.

    Where the mean of the rows is far from zero on the scale of their spread, the shift becomes this mean, unless it is
    close to it already. Elsewhere it becomes zero: X is better left as it is, neither rounded nor copied. The mean is
    taken about the first row, so that the mean of a constant column is exact.
    """
    weights = None if weights is None else weights[: len(X)]
    rows = np.concatenate([X, Y], axis=1, dtype=T.dtype)
    mean = rows[0] + np.average(rows - rows[0], axis=0, weights=weights)
    far = FAR * np.average((rows - mean) ** 2, axis=0, weights=weights)
    moved = np.where(mean**2 > far, np.where((mean - shift) ** 2 > far, mean, shift), 0).astype(T.dtype)
    return (T if T[0, 0] == 0 else recenter(T, shift - moved)), moved


def _differ_in_weight(T: np.ndarray, B: np.ndarray, weighted: bool) -> bool:
    """Whether rows of B differ so much in weight, among themselves or from those of T, that QR would lose digits.

    The first column of B has the roots of the weights. Where a row of B is only a small part of all rows, the other
    rows are taken to be as heavy.
    """
    roots = B[:, 0]
    heaviest = roots.max() if weighted else 1.0
    if weighted and heaviest > GRADED * roots.min():
        return True
    if not T[0, 0] or 4 * T.shape[1] * heaviest**2 < T[0, 0] ** 2:
        return False
    diagonal = np.abs(T.diagonal())
    light = diagonal.min(where=diagonal > 0, initial=np.inf) * GRADED < np.abs(B).max()
    return bool(light and graded(np.concatenate([T, B])))


def _fold_jax(T: Array, shift: Array, X: Array, Y: Array, w: Array) -> tuple[Array, Array]:
    """`fold` at the same cost, keeping the same digits. Rows of weight 0 are masked: shapes cannot depend on values."""
    import jax.numpy as jnp

    B = jnp.concatenate([X, Y], axis=1)
    B = jnp.where(w[:, None] > 0, B, 0)
    total, first = w.sum(), B[jnp.argmax(w > 0)]
    share = (w / jnp.where(total > 0, total, 1))[:, None]
    mean = first + (share * (B - first[None])).sum(axis=0)
    spread = (share * (B - mean[None]) ** 2).sum(axis=0)
    far = (T[0, 0] ** 2 < total) & ((mean - shift) ** 2 > FAR * spread)  # as in _chosen_shift
    moved = jnp.where(far, jnp.where(mean**2 > FAR * spread, mean, 0), shift)
    before, T, shift = (T, shift), recenter(T, shift - moved), moved
    B = jnp.sqrt(w)[:, None] * jnp.concatenate([jnp.ones_like(w)[:, None], B - shift[None]], axis=1)

    T = stacked_triangle(T, B) if len(B) < 2 * len(T) else joined_triangle(T, B, Y.shape[1])
    T, c = follow_mean(T, shift)
    return jnp.where(total > 0, T, before[0]), jnp.where(total > 0, c, before[1])


def downdate(T: np.ndarray, S: np.ndarray, rows: Any, held: np.ndarray) -> np.ndarray | str:
    """Return the triangle of T'T - S'S, or a sentence that says why there is none. O(d^3).

    With q = T^-T S' and U'U = I - q q', the triangle is U T. Its error is of order eps T'T, and is relative to what is
    left in a direction. `held` is the triangle of T and of all triangles of earlier downdates, whose errors are still
    there: results with a sum of errors beyond sqrt(eps) in some direction are refused.
    Columns of T that depend on other columns, by the rule of `rank` for that total weight `rows`, depend on them in
    the same way in the result.
    """
    eps, p = np.finfo(T.dtype).eps, len(T)
    scale = np.sqrt((T**2).sum(axis=0))
    if (S[:, scale == 0] != 0).any():
        return "other has information about a column that is zero in every row of this information."
    scale = np.where(scale == 0, 1, scale)
    R, order = scipy.linalg.qr(T / scale, mode="r", pivoting=True)
    r = int((np.abs(np.diagonal(R)) > tolerance(p, rows, T.dtype) * abs(R[0, 0])).sum())  # R[0, 0] = 1 or -1
    S = (S / scale)[:, order]
    dependent = solve_triangular(R[:r, :r], R[:r, r:])
    if (np.abs(S[:, r:] - product(S[:, :r], dependent)) > np.sqrt(eps) * (1 + np.abs(dependent).sum(axis=0))).any():
        return "other has information in a direction in which this information has none."
    q = solve_triangular(R[:r, :r], S[:, :r].T, transposed=True)
    U, failed = lapack("potrf", T.dtype)(np.eye(r, dtype=T.dtype) - product(q, q.T), lower=0, clean=1)
    left = product(U, R[:r])
    # The square of this norm lies between the largest ratio of `held` to what is left, over all directions, and r times
    # that.
    if not failed:
        ratio = solve_triangular(left[:, :r], (held / scale)[:, order[:r]].T, transposed=True)
    if failed or not eps * (ratio**2).sum() < np.sqrt(eps):
        return (
            "other is not contained in this information, or contains nearly all of it in some direction, so that the "
            "difference, after all that was subtracted before, would have less than half of its digits. Fold the "
            "remaining rows from the start instead."
        )
    stacked = np.zeros((2 * p, p), T.dtype)
    stacked[p : p + r, order] = left * scale[order]
    return np.asarray(triangle_of(stacked))
