"""Rows on an engine whose targets are labels of classes: which there are, and the targets that stand for them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from kalprox.base.arrays import Array
from kalprox.estimators.classes import class_targets
from kalprox.sources import Block, Folded, Source

__all__ = ["ClassSource", "LabelCounts", "block_rows"]

_MOST = 10_000  # labels, beyond which the target has numbers rather than classes
_BLOCK_BYTES = 1 << 25  # of the Jacobian of a block of rows with several classes
T = TypeVar("T")


def block_rows(d: int, classes: int) -> int:
    """Return the number of rows of a block of d columns: the Jacobian of m > 2 classes has m^2 d numbers for each row.

    Examples
    --------
    >>> block_rows(9, 10)
    4194
    """
    return max(16, _BLOCK_BYTES // (8 * (d + 1) * classes**2))


@dataclass(frozen=True)
class LabelCounts:
    """The sum of the weights of the rows with each label. Label counts add."""

    weights: dict[Any, float]

    @classmethod
    def of(cls, block: Block) -> "LabelCounts":
        """Return those of a block whose targets are labels."""
        labels = block.y.tolist()
        weights = [1.0] * len(labels) if block.weights is None else block.weights.tolist()
        found: dict[Any, float] = {}
        for label, weight in zip(labels, weights, strict=True):
            found[label] = found.get(label, 0.0) + weight
        return cls(found)._checked()

    def __add__(self, other: "LabelCounts") -> "LabelCounts":
        both = dict(self.weights)
        for label, weight in other.weights.items():
            both[label] = both.get(label, 0.0) + weight
        return LabelCounts(both)._checked()

    def _checked(self) -> "LabelCounts":
        if len(self.weights) > _MOST:
            raise ValueError(
                f"y must hold the labels of classes; it has more than {_MOST:,} different values. Use KalproxRegressor "
                "for numbers."
            )
        return self


@dataclass(frozen=True)
class ClassSource:
    """A source of rows with labels, as one of rows with targets of classes; see `class_targets`.

    Parameters
    ----------
    source : Source
        Its targets are labels.
    classes : array of shape (m,)
    weights : array of shape (m,), optional
        The weights of the classes, by which those of their rows are multiplied.
    """

    source: Source
    classes: Array
    weights: Array | None = None

    @property
    def groups(self) -> Any:
        """What names the clusters of the rows; None without clusters."""
        return getattr(self.source, "groups", None)

    def fold(self, part: Callable[[Block], T]) -> Folded[T]:
        """Make one pass; see `kalprox.sources.Source`."""
        return self.source.fold(partial(_through, self.classes, self.weights, part))


def _through(classes: Array, class_weights: Array | None, part: Callable[[Block], T], block: Block) -> T:
    m, known = len(classes), np.zeros(len(block), bool)
    block = replace(block, y=class_targets(block.y, known, classes))
    if class_weights is not None:
        own = class_weights[block.y.astype(int) if m == 2 else block.y.argmax(axis=1)]
        block = replace(block, weights=own if block.weights is None else own * block.weights)
    size = len(block) if m == 2 else block_rows(block.X.shape[1], m)
    total: Any = None
    for start in range(0, len(block), size):
        value: Any = part(block.part(start, start + size))
        total = value if total is None else total + value
    found: T = total
    return found
