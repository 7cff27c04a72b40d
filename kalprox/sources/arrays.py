"""Arrays in memory as a source."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from kalprox.base.arrays import Array, masked, namespace
from kalprox.base.checks import check_finite, check_floating, check_positive, check_same_length, check_usable
from kalprox.forgetting import Forgetting
from kalprox.sources.base import Block, Folded, Source, fold_blocks
from kalprox.sources.weighting import counts_of, faded, in_order

T = TypeVar("T")


class ArraySource:
    """Arrays as a source, in blocks of at most `block_rows` rows.

    Parameters
    ----------
    X : array of shape (n,) or (n, p), or sparse matrix with rows that can be sliced
        The rows of a sparse matrix are made dense block by block, unless `keep_sparse` is True.
    y : array of shape (n,) or (n, m)
    weights : array of shape (n,), optional
        The weights of the rows. Rows of weight 0 may hold anything.
    block_rows : int
    gaps : bool
        Whether X may have NaN, for features that are missing.
    keep_sparse : bool
        Whether blocks of a sparse matrix stay sparse, in the format CSR. All rows are then one block: a pass takes
        little more than they do.
    **of_rows : arrays of shape (n,), missing of shape (n, d)
        The counts, squares, groups, offset, times, noise and missing features of the rows; see `Block`.
    """

    def __init__(
        self,
        X: Any,
        y: Array,
        weights: Array | None = None,
        *,
        block_rows: int = 1 << 14,
        gaps: bool = False,
        keep_sparse: bool = False,
        **of_rows: Array | None,
    ) -> None:
        self.sparse, self.keep_sparse = hasattr(X, "toarray"), keep_sparse and hasattr(X, "toarray")
        X = X.tocsr() if self.keep_sparse else X
        xp = namespace(X, y)
        self.X, self.y, self.block_rows = X if self.sparse else xp.asarray(X), xp.asarray(y), block_rows
        check_floating("y", self.y)
        check_same_length(self.X, self.y)
        n = len(self.y)
        self.weights = None if weights is None else xp.asarray(weights, self.y.dtype)
        if n == 0 or (self.weights is not None and self.weights.shape != (n,)):
            shape = (n,) if self.weights is None else self.weights.shape
            raise ValueError(f"weights must have shape ({n},), one per row, and n >= 1; got {shape}.")
        if self.weights is not None:
            check_positive("weights", self.weights, strict=False)
        check_finite("y", masked(self.weights, self.y))
        if xp is np and not self.sparse and not gaps:
            check_usable(self.X, self.y, self.weights)
        self.rows = rows = Block(self.X, self.y, self.weights, **of_rows)  # type: ignore[arg-type]
        self.groups, self.offset, self.times, self.noise = rows.groups, rows.offset, rows.times, rows.noise

    def __iter__(self) -> Iterator[Block]:
        return self.blocks_in_order()

    def blocks_in_order(self, *, whole: bool = False) -> Iterator[Block]:
        """The blocks, in the order of the rows; with `whole`, all rows of a dense X as one block."""
        n = len(self.y)
        size = n if self.keep_sparse or (whole and not self.sparse) else self.block_rows
        for i in range(0, n, size):
            rows = self.rows.part(i, i + size)
            yield replace(rows, X=rows.X.toarray()) if self.sparse and not self.keep_sparse else rows

    def faded(self, forget: Forgetting, kind: str) -> "ArraySource":
        """The same rows with their weights as they are once all rows have come, each fading those before it.

        `kind` is what the weights mean, one of `kalprox.sources.weighting.WEIGHT_KINDS`.
        """
        weights = np.ones(len(self.y)) if self.weights is None else self.weights
        times = in_order(self.times, None, weights) if forget.needs_times else None
        weights, counts, squares, _ = faded(weights, forget, counts_of(weights, kind), times)
        about: dict[str, Any] = {"block_rows": self.block_rows, "groups": self.groups, "offset": self.offset}
        about |= {"keep_sparse": self.keep_sparse}
        return ArraySource(self.X, self.y, weights, counts=counts, squares=squares, **about)

    def sample(self, rows: int, least: int) -> "ArraySource | None":
        """As many rows drawn at random, always the same ones, with weights that make their sums those of all rows.

        None if there are not even `least` rows.
        """
        n = len(self.y)
        if n < least:
            return None
        drawn = np.sort(np.random.default_rng(0).integers(n, size=rows))
        found, scale = self.rows.at(drawn), n / rows
        weights, counts, squares = (
            None if a is None else a * scale for a in (found.weights, found.counts, found.squares)
        )
        weights = np.full(rows, scale) if weights is None else weights
        about: dict[str, Any] = {"offset": found.offset, "keep_sparse": self.keep_sparse}
        return ArraySource(found.X, found.y, weights, counts=counts, squares=squares, **about)

    def fold(self, part: Callable[[Block], T]) -> Folded[T]:
        """One pass; see `Source`."""
        return fold_blocks(self, part)


def as_source(source: Source | Sequence[Any], *, keep_sparse: bool = False) -> Source:
    """`source` itself, or (X, y) or (X, y, weights) as an `ArraySource`."""
    if hasattr(source, "fold"):
        return source
    given: Any = source  # callers may ignore types
    if not isinstance(given, Sequence) or not 2 <= len(given) <= 3:
        raise TypeError(
            "source must be (X, y) or (X, y, weights), arrays of NumPy or JAX, or an object with the method `fold` of "
            f"`kalprox.sources.Source`; got {type(source).__name__}."
        )
    return ArraySource(*source, keep_sparse=keep_sparse)
