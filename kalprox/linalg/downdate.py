"""Taking rows out of a triangle: the triangle of T'T - S'S, where it can be had accurately."""

from typing import Any

import numpy as np
import scipy.linalg

from kalprox.linalg.rank import tolerance
from kalprox.linalg.triangle import lapack, product, solve_triangular, triangle_of


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
    left_over: np.ndarray = triangle_of(stacked)
    return left_over
