"""Forgetting: how weights fade as later rows come."""

from typing import Any, NamedTuple

import numpy as np

from kalprox._arrays import Array, asarray_like, namespace
from kalprox._checks import concrete

__all__ = ["Faded", "faded"]


class Faded(NamedTuple):
    """The rows of a block once the whole block has come, and the share that is left of everything before it."""

    weights: Array  # (b,)
    counts: Array  # (b,), the sum of the fading factors of the rows that a row stands for
    squares: Array  # (b,), the sum of the squares of these factors
    left: Array | None  # None where nothing is forgotten


def faded(weights: Array, forget: Any, counts: Array | None = None) -> Faded:
    """Multiply the weights of a block by what forgetting leaves of them. Any split into blocks gives the same.

    A row that counts n times stands for n rows one after the other, so that it is worth 1 + forget + ... =
    (1 - forget^n) / (1 - forget), and fades by `forget` for every later row.

    Parameters
    ----------
    weights : array of shape (b,)
    forget : float
        What a row's weight is multiplied by with every later row, in (0, 1].
    counts : array of shape (b,), optional
        1 for each row, and 0 for a row of weight 0, if the weights are precisions. By default the weight of a row is
        the number of rows that it stands for.

    Returns
    -------
    Faded
        A share that underflows is the smallest positive number of full precision.
    """
    number = concrete(forget)
    counts = weights if counts is None else counts
    if number is not None and number == 1:
        return Faded(weights, counts, counts, None)
    rho = asarray_like(forget, weights)
    seen = counts.cumsum()
    share = rho ** (seen[-1] - seen)
    left = share * (1 - rho**counts) / (1 - rho)
    squares = share**2 * (1 - rho ** (2 * counts)) / (1 - rho**2)
    before = namespace(rho).maximum(rho ** seen[-1], np.finfo(rho.dtype).tiny)
    return Faded(left if counts is weights else weights * share, left, squares, before)
