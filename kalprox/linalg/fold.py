"""Folding rows into a triangle: T becomes the R factor of [T; sqrt(w) [1 | X - c | Y - m]].

Gram matrices are used where they keep the digits, which is found out along the way, and QR elsewhere.
"""

from typing import Any

import numpy as np

from kalprox._arrays import Array, namespace
from kalprox._control import compiled, cond_rare
from kalprox.linalg.gram import (
    cholesky,
    far_from_collinear,
    gram_in_place,
    keeps_digits,
    smallest_square,
    worth_a_try,
)
from kalprox.linalg.triangle import append, lapack, nonnegative_diagonal, product, triangle_of

__all__ = ["fold"]

_CHUNK = 512  # rows at a time: enough for BLAS, few enough for the cache
_FIRST_GRAM, _LONGEST_GRAM = 1024, 65536  # rows in one Gram matrix, doubled while it succeeds: a failure is cheap
_FAR = 16  # mean^2 / variance beyond which a column is shifted


def fold(T: Array, shift: Array, X: Array, Y: Array, weights: Array | None, dtype: Any) -> tuple[Array, Array]:
    """Fold the rows sqrt(w) [1 | X - c | Y - m] into the triangle T, with shift = (c, m).

    The shift is chosen here if T holds no row yet (T[0, 0] = 0). O(n d^2); measured without weights, 1.5 times the
    cost of X'X for long blocks and 2 to 4 times for 1,024 rows. NaN, infinity or overflow in the rows shows in T.

    Parameters
    ----------
    T : array of shape (1 + d + k, 1 + d + k)
        The triangle of the rows folded so far.
    shift : array of shape (d + k,)
        The vector subtracted from every row of [X | Y].
    X, Y : array of shape (n, d) and (n, k)
        The rows and their targets.
    weights : array of shape (n,) or None
        Weights >= 0, or None for weight one. A row of weight 0 changes nothing, whatever it holds.
    dtype : dtype
        What to compute in.

    Returns
    -------
    T, shift : arrays
        The triangle of all rows, and its shift.
    """
    xp = namespace(T, X, Y, weights)
    if xp is not np:
        w = xp.ones(len(X), dtype) if weights is None else weights
        return compiled(_fold_jax)(*(xp.asarray(a, dtype) for a in (T, shift, X, Y, w)))
    if weights is not None and not weights.all():
        X, Y, weights = (a[weights > 0] for a in (X, Y, weights))
    if len(X) == 0:
        return T, shift
    with np.errstate(all="ignore"):  # the caller looks at T for values that are not finite
        return _fold_numpy(T.astype(dtype), shift.astype(dtype), X, Y, weights)


def _fold_numpy(
    T: np.ndarray, shift: np.ndarray, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """`fold` for weights > 0."""
    if T[0, 0] == 0:
        shift = _first_shift(X[:_CHUNK], Y[:_CHUNK], None if weights is None else weights[:_CHUNK], T.dtype)
    n, p, d = len(X), len(T), X.shape[1]
    root_w = None if weights is None else np.sqrt(weights).astype(T.dtype)[:, None]
    shifted = shift[:d].any()
    in_place = root_w is None and not shifted and X.flags.c_contiguous and X.dtype == T.dtype
    B = np.empty((min(n, _CHUNK), p), T.dtype)
    syrk = lapack("syrk", T.dtype)

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
    if T[0, 0] ** 2 >= length and far_from_collinear(T):  # Gram matrices have done well on as many rows before
        length = max(_LONGEST_GRAM, 16 * p)
    while start < n:
        stop = n if n - start < 2 * length else start + length
        chunks = [(i, min(i + _CHUNK, stop)) for i in range(start, stop, _CHUNK)]
        factor = None
        if worth_a_try(T, stop - start):
            if in_place:
                G = gram_in_place(X[start:stop], Y[start:stop] - shift[d:], 2 * _CHUNK)
            else:
                G = np.zeros((p, p), T.dtype, order="F")
                for i, j in chunks:
                    G = syrk(1.0, rows(i, j).T, beta=1.0, c=G, overwrite_c=1)
            if T.any():
                G = syrk(1.0, T, trans=1, beta=1.0, c=G, overwrite_c=1)
            tiny = np.flatnonzero(np.diagonal(G) < smallest_square(G.dtype))
            lost = tiny.size > 0 and (T[:, tiny].any() or any(rows(i, j)[:, tiny].any() for i, j in chunks))
            factor = None if lost else cholesky(G)
        if factor is None:
            for i, j in chunks:
                T = append(T, rows(i, j))
            factor = nonnegative_diagonal(T)
        T, start, length = factor, stop, min(2 * length, max(_LONGEST_GRAM, 16 * p))
    return T, shift


def _first_shift(X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None, dtype: Any) -> np.ndarray:
    """Return the mean of the first rows where it is far from zero on the scale of their spread, and zero elsewhere.

    A shift pays only there: near zero, X is better left as it is, neither rounded nor copied. The mean is taken
    about the first row, so that the mean of a constant column is exact.
    """
    rows = np.concatenate([X, Y], axis=1, dtype=dtype)
    mean = rows[0] + np.average(rows - rows[0], axis=0, weights=weights)
    spread = np.average((rows - mean) ** 2, axis=0, weights=weights)
    return np.where(mean**2 > _FAR * spread, mean, 0).astype(dtype)


def _fold_jax(T: Array, shift: Array, X: Array, Y: Array, w: Array) -> tuple[Array, Array]:
    """`fold` at the same cost, keeping the same digits. Rows of weight 0 are masked: shapes cannot depend on values."""
    import jax.numpy as jnp

    B = jnp.concatenate([X, Y], axis=1)
    B = jnp.where(w[:, None] > 0, B, 0)
    total, first = w.sum(), B[jnp.argmax(w > 0)]
    share = (w / jnp.where(total > 0, total, 1))[:, None]
    mean = first + (share * (B - first[None])).sum(axis=0)
    spread = (share * (B - mean[None]) ** 2).sum(axis=0)
    far = (T[0, 0] == 0) & (mean**2 > _FAR * spread)  # as in _first_shift; where all weights are 0, mean is 0
    shift = jnp.where(far, mean, shift)
    B = jnp.sqrt(w)[:, None] * jnp.concatenate([jnp.ones_like(w)[:, None], B - shift[None]], axis=1)

    def by_qr() -> Array:
        return triangle_of(jnp.concatenate([T, B]))

    if len(B) < 2 * len(T):
        return by_qr(), shift
    G = product(T.T, T) + product(B.T, B)
    scale = jnp.sqrt(jnp.diagonal(G))
    empty = scale == 0
    scale = jnp.where(empty, 1, scale)
    unit = jnp.diag(empty.astype(T.dtype))
    U = jnp.linalg.cholesky(G / scale[:, None] / scale[None] + unit, upper=True)
    lost = (jnp.diagonal(G) < smallest_square(G.dtype)) & ((T != 0).any(axis=0) | (B != 0).any(axis=0))
    fails = ~keeps_digits(U) | lost.any()
    return cond_rare(fails, by_qr, lambda: (U - unit) * scale[None]), shift
