"""The faces of score.c and curvature.c: rows are added to sums; those of score.h are one vector of float64 each."""

import ctypes
from functools import cache

import numpy as np

from kalprox.base.arrays import Array
from kalprox.kernel.library import address_of, kernel

ROW_VALUES = 7  # arrays that `add_scores` takes of rows: mean, std, y, dof, weight, together, and the scores


def add_scores(sums: Array, rows: Array, ends: Array) -> bool:
    """Add rows to the sums of a `Calibration`, in place.

    Parameters
    ----------
    sums : array
        A vector with the sums in the order of the fields.
    rows : array of shape (ROW_VALUES, n)
        The predicted means, the std, the observations, the degrees of freedom, the weights, and how many rows were
        predicted together, NaN for all of these. The last row receives the scores. Rows that are not judged get the
        weight 0 and the score 0.
    ends : array
        The inner ends of the bins of normal scores, and the upper ends of the central intervals.

    Returns
    -------
    bool
        False, with nothing added, if some rows can be no rows, or if the kernel is not compiled.
    """
    compiled = kernel()
    if compiled is None:
        return False
    assert len(sums) == _sizes(compiled)[0]
    n = rows.shape[1]
    if n == 0:
        return True
    refused: int = compiled.kalprox_add_scores(address_of(sums), address_of(rows), n, address_of(ends))
    return refused == 0


def move_quantiles(quantiles: Array, rows: Array, steps: Array) -> bool:
    """Move tracked quantiles by rows, in place.

    Parameters
    ----------
    quantiles : array
        A vector with the fields of `Quantiles`.
    rows : array of shape (3, n)
        The standardised errors, the weights, and the lengths of the batches that the rows came in, 0 for a row without
        an interval.
    steps : array
        The share of rows that each side may miss at each level, and the constants of the step: the slowest one, the
        decay, the exponent of the rows of a batch, and the farthest.

    Returns
    -------
    bool
        False if the kernel is not compiled.
    """
    compiled = kernel()
    if compiled is None:
        return False
    assert len(quantiles) == _sizes(compiled)[1]
    if rows.shape[1]:
        compiled.kalprox_move_quantiles(address_of(quantiles), address_of(rows), rows.shape[1], address_of(steps))
    return True


def add_curvature(means: Array, squares: Array, products: Array, X: Array, predicted: Array, scores: Array) -> bool:
    """Add rows to the sums of a `Curvature`, in place; False, with nothing added, if the kernel cannot.

    Parameters
    ----------
    means, squares : arrays of shape (c,)
    products : array of shape (6, 1 + c, 1 + c)
    X : array of shape (b, c - 1)
        The columns. Its rows may lie apart.
    predicted, scores : arrays of shape (b,)
    """
    compiled = kernel()
    if compiled is None:
        return False
    if X.strides[0] < 0 or (X.shape[1] > 1 and X.strides[1] != X.itemsize):
        X = np.ascontiguousarray(X)
    predicted, scores = np.ascontiguousarray(predicted), np.ascontiguousarray(scores)
    at = [address_of(a) for a in (means, squares, products, X, predicted, scores)]
    step = X.strides[0] // X.itemsize
    refused = compiled.kalprox_add_curvature(*at[:3], len(means), at[3], step, *at[4:], len(scores))
    return not refused


@cache
def _sizes(compiled: ctypes.CDLL) -> tuple[int, int]:
    """Return the lengths of the vectors of a `Calibration` and of `Quantiles`."""
    return compiled.kalprox_scores_size(), compiled.kalprox_quantiles_size()
