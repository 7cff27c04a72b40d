"""Folding rows into a triangle, and taking them out: T becomes the R factor of [T; sqrt(w) [1 | X - c | Y - m]].

Gram matrices are used where they keep the digits, which is found out along the way, and QR elsewhere.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from kalprox.base.arrays import Array, namespace
from kalprox.base.control import compiled
from kalprox.linalg.centering import FAR, GRADED, follow_mean, graded, graded_triangle, recenter, stacked_triangle
from kalprox.linalg.gram import add_gram, cholesky, far_from_collinear, gram_in_place, joined_triangle, smallest_square
from kalprox.linalg.rank import tolerance
from kalprox.linalg.triangle import append, lapack, nonnegative_diagonal, product, solve_triangular, square, triangle_of

__all__ = ["downdate", "fold"]

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
