"""Triangles of rows centred at different points, and of rows of very different sizes.

A triangle T of rows sqrt(w) [1 | B - c] holds the sum t^2 of the weights and the mean of B - c in its first row, and
the rows about their own mean in the others. Only the first row depends on c. A point far from the rows costs digits:
B - c is rounded relative to that distance. The point therefore follows the rows.

Householder's reflections keep the digits of small rows only where the large rows come first: an error is relative to
the largest row met so far. Below a triangle of zeros the reflections are the modified Gram-Schmidt method, in which
every row is changed by itself, in any order. Rows that differ much in size, as those of very different weights do, are
put there.

References
----------
A. Bjorck and C. C. Paige, "Loss and recapture of orthogonality in the modified Gram-Schmidt algorithm", SIAM J. Matrix
Anal. Appl. 13 (1992): the equivalence of the two.
"""

import numpy as np

from kalprox.base.arrays import Array, namespace
from kalprox.base.control import compiled_on_jax, cond_rare
from kalprox.linalg.triangle import append, append_row, nonnegative_diagonal, triangle_of

__all__ = ["FAR", "GRADED", "follow_mean", "graded", "graded_triangle", "recenter", "stacked_triangle"]

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
