"""The face of score.c: rows are added to sums that are laid out as one vector of float64 each; see score.h."""

import ctypes
from functools import cache

from kalprox.base.arrays import Array
from kalprox.kernel.library import kernel

__all__ = ["ROW_VALUES", "add_scores", "move_quantiles"]

ROW_VALUES = 7  # arrays that `add_scores` takes of rows: mean, std, y, dof, weight, together, and the scores

_number = ctypes.c_double.from_buffer  # where the numbers of an array begin


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
    refused: int = compiled.kalprox_add_scores(_number(sums), _number(rows), n, _number(ends))
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
        compiled.kalprox_move_quantiles(_number(quantiles), _number(rows), rows.shape[1], _number(steps))
    return True


@cache
def _sizes(compiled: ctypes.CDLL) -> tuple[int, int]:
    """Return the lengths of the vectors of a `Calibration` and of `Quantiles`."""
    return compiled.kalprox_scores_size(), compiled.kalprox_quantiles_size()
