"""Innovations: the errors of predictions that are made of each row from all rows before it."""

import math
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import all_usable
from kalprox.calibration.blocks import Given
from kalprox.sources import Block

__all__ = ["Innovations", "common", "in_stds", "innovation", "may_overflow"]


_OF_ROWS = ("mean", "std", "dof", "scale", "issued")  # what an `Innovations` has of each row, and of each target


class Innovations(NamedTuple):
    """The predictions of the rows of a block, each made before its row was learned.

    Attributes
    ----------
    mean, std, dof : arrays of shape (b,) or (b, k)
        The predictive distribution of each row, Student's t with this location, scale and degrees of freedom.
    scale : array of shape (b,) or (b, k)
        The predictive scale in units of the noise std: the square root of the row's own variance plus its leverage.
    issued : array of shape (b,) or (b, k)
        The standardised errors of the predictions that were possible before the first row of the block.
    together : int or array of shape (b,)
        The number of rows that share one estimate of the noise variance, as far as they have come; 1 if none does.
    given : Given or None
        What the mean, the std and the degrees of freedom do not say of the predictions, as of those of a mixture; None
        if they say all.
    """

    mean: Array
    std: Array
    dof: Array
    scale: Array
    issued: Array
    together: Any
    given: Given | None = None

    @classmethod
    def of(cls, y: Array, predicted: Any, scale: Array) -> "Innovations":
        """Return the innovations of a block whose rows were all predicted before its first row."""
        shape = np.shape(y)
        dof = np.broadcast_to(getattr(predicted, "dof", np.inf), shape)
        issued = in_stds(y - predicted.mean, predicted.std)
        return cls(predicted.mean, predicted.std, dof, np.broadcast_to(scale, shape), issued, len(y))

    @classmethod
    def one_by_one(cls, y: Array, *columns: Array) -> "Innovations":
        """Return the innovations of rows that were predicted one by one, given their fields in any shape that fits."""
        shape = y.reshape(len(y), -1).shape
        mean, std, dof, scale, issued = (np.broadcast_to(one, shape).reshape(y.shape) for one in columns)
        return cls(mean, std, dof, scale, issued, 1)

    def part(self, start: int, stop: int) -> "Innovations":
        """Return those of some rows, none of which shares an estimate of the noise with others."""
        parts: dict[str, Any] = {name: getattr(self, name)[start:stop] for name in _OF_ROWS}
        return Innovations(**parts, together=1)

    def standardised(self, y: Array) -> Array:
        """Return the errors of the predictions in units of their std; NaN for rows that could not be predicted."""
        return in_stds(y - self.mean, self.std)

    @classmethod
    def unknown(cls, y: Array) -> "Innovations":
        """Return the innovations of rows that could not be predicted: the mean is NaN, and the std infinite."""
        nothing, unknown = np.full(np.shape(y), np.nan), np.full(np.shape(y), np.inf)
        return cls(nothing, unknown, unknown, unknown, nothing, 1)

    @classmethod
    def joined(cls, targets: "list[Innovations]") -> "Innovations":
        """Return the innovations of several targets, as columns."""
        columns: dict[str, Any] = {name: np.column_stack([getattr(one, name) for one in targets]) for name in _OF_ROWS}
        return cls(**columns, together=targets[0].together)

    @classmethod
    def concatenated(cls, pieces: "list[Innovations]") -> "Innovations":
        """Return the innovations of the pieces of a block one after the other."""
        if len(pieces) == 1:
            return pieces[0]
        columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in pieces]) for name in _OF_ROWS}
        lengths = [np.broadcast_to(one.together, len(one.mean)) for one in pieces]
        return cls(**columns, together=np.concatenate(lengths))


def may_overflow(block: Block) -> bool:
    """Whether some rows cannot be predicted, because those of weight 0 are NaN or too large; others were checked."""
    entries = block.X.data if hasattr(block.X, "toarray") else block.X.ravel("K")
    return block.weights is not None and not all_usable(None, entries, block.y.ravel("K"))


def in_stds(error: Array, std: Array) -> Array:
    """Return errors in units of their std: NaN if the std is not finite, and 0 for no error where it is 0."""
    one = common(std)
    if np.ndim(one) == 0 and 0 < one < math.inf:
        return error / one
    with np.errstate(invalid="ignore", divide="ignore"):
        found = error / std
    if np.isfinite(std).all() and not np.isnan(found).any():
        return found
    return np.where(np.isfinite(std), np.where((error == 0) & (std == 0), 0.0, found), np.nan)


def innovation(y: Any, mean: Any, variance: Any, dof: float, s: float) -> tuple[Any, ...]:
    """Return the fields of `Innovations` for one row; s is its variance in units of the noise variance."""
    std = np.sqrt(variance * s)
    return mean, std, dof, s**0.5, in_stds(y - mean, std), 1


def common(values: Array) -> Array:
    """Return the one number that an array holds by broadcasting, which saves work on each entry, or the array."""
    return values[0] if values.strides == (0,) and len(values) else values
