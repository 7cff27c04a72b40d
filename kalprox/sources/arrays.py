"""Arrays in memory as a source, and what every source must do."""

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any, Protocol

import numpy as np

from kalprox._arrays import Array, namespace
from kalprox._checks import check_finite, check_floating, check_positive, check_same_length

__all__ = ["ArrayRows", "Rows", "masked"]


class Rows(Protocol):
    """What refinement asks of a source: a sum over its rows, block by block.

    Arrays in memory are below; a file or a cluster is another class with this one method.
    """

    def sum(self, part: Callable[[Array, Array, Array], Any]) -> Any:
        """part(X, y, weights) of every block, added up with `+`: one pass."""


class ArrayRows:
    """Arrays as a source: X (n,) or (n, p), y (n,) or (n, m), weights (n,) or None; O(block) memory."""

    def __init__(self, X: Array, y: Array, weights: Array | None = None, *, block: int = 1 << 14) -> None:
        xp = namespace(X, y)
        self.X, self.y, self.block = xp.asarray(X), xp.asarray(y), block
        check_floating("y", self.y)
        check_same_length(self.X, self.y)
        n = len(self.y)
        self.weights = xp.ones(n, self.y.dtype) if weights is None else xp.asarray(weights, self.y.dtype)
        if self.weights.shape != (n,) or n == 0:
            raise ValueError(f"weights must have shape ({n},), one per row, and n >= 1; got {self.weights.shape}.")
        check_positive("weights", self.weights, strict=False)
        check_finite("y", masked(self.weights, self.y))

    def sum(self, part: Callable[[Array, Array, Array], Any]) -> Any:
        starts = range(0, len(self.y), self.block)
        blocks = (slice(i, i + self.block) for i in starts)
        return reduce(add, (part(self.X[b], self.y[b], self.weights[b]) for b in blocks))


def masked(weights: Array, values: Array) -> Array:
    """`values` with 0 in the rows of weight 0, which may hold anything: they are no rows."""
    xp = namespace(values)
    if xp is np and (weights > 0).all():  # the common case: no copy
        return values
    keep = (weights > 0).reshape((-1,) + (1,) * (values.ndim - 1))
    return xp.where(keep, values, xp.zeros_like(values))
