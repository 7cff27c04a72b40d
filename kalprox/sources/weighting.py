"""What the weights of rows mean: how often a row counts, or how precise it is."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from kalprox.base.arrays import Array
from kalprox.sources.base import Block, MappedSource, Source

WEIGHT_KINDS = ("frequency", "precision")


def check_weight_kind(kind: str) -> None:
    """Raise a ValueError if `kind` is not one of `WEIGHT_KINDS`."""
    if kind not in WEIGHT_KINDS:
        raise ValueError(
            f"weight_kind must be 'frequency' (how often each row counts) or 'precision' (1 / sigma^2 up to a common "
            f"factor); got {kind!r}."
        )


def counts_of(weights: Array | None, kind: str) -> Array | None:
    """Return how many rows each row is: 1, or 0 if its weight is 0, for precisions; None if it is the weight itself."""
    return None if weights is None or kind == "frequency" else (weights > 0).astype(weights.dtype)


def relative_precision(block: Block, kind: str, class_weights: Sequence[float] | None) -> Array | None:
    """Return what multiplies the score of each row beside the number of times that it counts; None if that is 1.

    A row that counts twice has two equal scores. A precision, or the weight of a class, makes one score larger: an
    outer product of scores has its square.

    Parameters
    ----------
    block : Block
    kind : {"frequency", "precision"}
        What the weights of the rows mean.
    class_weights : sequence of numbers, optional
        The weight of each class, by which those of its rows have been multiplied.
    """
    if block.weights is None or (kind == "frequency" and class_weights is None):
        return None
    if kind == "precision":
        own = block.weights
    else:
        own = np.asarray(class_weights)[block.y.argmax(axis=1) if block.y.ndim == 2 else block.y.astype(int)]
    return np.where(own > 0, own, 1.0)


def counted(block: Block, kind: str) -> Block:
    """Return the block with the counts of its rows, unless it has them already."""
    counts = counts_of(block.weights, kind) if block.counts is None else None
    return block if counts is None else replace(block, counts=counts)


def counted_source(source: Source, kind: str) -> Source:
    """Return the source with the counts of its rows."""
    return MappedSource(source, partial(counted, kind=kind))
