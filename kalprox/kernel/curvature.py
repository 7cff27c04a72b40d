"""The face of curvature.c: scores times squares and products of columns."""

import numpy as np

from kalprox.base.arrays import Array
from kalprox.kernel.library import kernel

__all__ = ["add_curvature"]


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
    at = [a.ctypes.data for a in (means, squares, products, X, predicted, scores)]
    step = X.strides[0] // X.itemsize
    refused = compiled.kalprox_add_curvature(*at[:3], len(means), at[3], step, *at[4:], len(scores))
    return not refused
