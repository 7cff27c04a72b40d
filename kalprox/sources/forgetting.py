"""Forgetting: how weights fade as later rows come."""

from typing import Any

import numpy as np

from kalprox._arrays import Array, asarray_like, namespace
from kalprox._checks import concrete

__all__ = ["faded"]


def faded(weights: Array, forget: Any) -> tuple[Array, Array | None]:
    """The weights of a block once the whole block has come, and the share that is left of everything before it.

    A row of weight w stands for w rows one after the other, so that it is worth 1 + forget + ... =
    (1 - forget^w) / (1 - forget), and fades by `forget` for every later row. Any split into blocks gives the same.

    Parameters
    ----------
    weights : array of shape (b,)
    forget : float
        What a row's weight is multiplied by with every later row, in (0, 1].

    Returns
    -------
    weights : array of shape (b,)
    left : array or None
        None where nothing is forgotten. A share that underflows is the smallest positive number of full precision.
    """
    number = concrete(forget)
    if number is not None and number == 1:
        return weights, None
    rho = asarray_like(forget, weights)
    seen = weights.cumsum()
    left = namespace(rho).maximum(rho ** seen[-1], np.finfo(rho.dtype).tiny)
    return rho ** (seen[-1] - seen) * (1 - rho**weights) / (1 - rho), left
