"""Partitions of Dask arrays and dataframes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kalprox.engines.partitions import ARRAYS, ArrayPartition, FramePartition
from kalprox.sources.base import Block
from kalprox.sources.files import SourceError, Unreadable
from kalprox.sources.quarantine import BadRow, Reason

__all__ = ["DaskPartition", "dask_partitions", "unreadable"]


@dataclass(frozen=True)
class DaskPartition:
    """A chunk of Dask arrays, or a partition of a Dask dataframe, which is computed where it is folded.

    Parameters
    ----------
    delayed : tuple
        The delayed values of X and y, and of the weights, the groups, the offset and the exposure if there are any; or
        the data frame.
    template : ArrayPartition or FramePartition
        The partition in memory that is filled with the computed values.
    skip_unreadable : bool
        Whether a partition that cannot be computed becomes a bad row instead of an error.
    names : tuple of str
        The field of the template that each value fills.
    """

    delayed: tuple[Any, ...]
    template: ArrayPartition | FramePartition
    skip_unreadable: bool = False
    names: tuple[str, ...] = ("tables",)

    @property
    def name(self) -> str:
        """The name of the partition in error messages and bad rows."""
        return self.template.name

    def blocks(self) -> Iterator[Block]:
        """The blocks, computed in this thread: for engines other than Dask's."""
        from dask.base import compute

        try:
            values = compute(*self.delayed, scheduler="synchronous")
        except Exception as error:
            if not self.skip_unreadable:
                raise unreadable(self.name, error) from error
            bad = BadRow(self.name, 0, "", Reason.UNREADABLE, str(error)[:80])
            yield Block(np.empty((0, 0)), np.empty(0), None, 0, [bad])
            return
        yield from self.loaded(*values).blocks()

    def loaded(self, *values: Any) -> ArrayPartition | FramePartition:
        """The partition in memory that has these values."""
        return replace(self.template, **dict(zip(self.names, values, strict=True)))


def unreadable(name: str, error: BaseException) -> Unreadable:
    """The error of a partition that cannot be computed, with the name of the partition."""
    return Unreadable(f"{name}: {error}")


def dask_partitions(
    source: Any, columns: Any, n: int | None, labels: bool, *, skip_unreadable: bool = False, **options: Any
) -> list[DaskPartition]:
    """One partition for each chunk of rows of arrays (see `partitions_of`), or for each partition of a dataframe."""
    if options:
        raise TypeError(f"{', '.join(options)} cannot be used with Dask collections.")
    if hasattr(source, "npartitions") and hasattr(source, "to_delayed") and hasattr(source, "columns"):
        frame = source[list(columns.wanted.names)]
        frames = (frame if n is None else frame.repartition(npartitions=n)).to_delayed()
        return [
            DaskPartition((delayed,), FramePartition(None, columns, f"partition {i}"), skip_unreadable)
            for i, delayed in enumerate(frames)
        ]
    names = tuple(name for name, a in zip(ARRAYS, source, strict=False) if a is not None)
    return [
        DaskPartition(chunks, ArrayPartition(None, None, None, f"chunk {i}", labels=labels), skip_unreadable, names)
        for i, chunks in enumerate(zip(*_aligned_chunks(source, n), strict=True))
    ]


def _aligned_chunks(source: Any, n: int | None) -> list[list[Any]]:
    """The delayed chunks of each array, divided at the same rows."""
    import dask.array as da

    X, *others = (a if isinstance(a, da.Array) else da.from_array(a) for a in source if a is not None)
    if n is not None:
        X = X.rechunk({0: max(1, -(-X.shape[0] // n))})
    X = X.rechunk({1: -1}) if X.ndim == 2 else X
    aligned = [X]
    for a in others:
        if _has_known_length(a) and _has_known_length(X):
            if len(a) != len(X):
                lengths = f"{len(X)} and {len(a)}"
                raise SourceError(f"X, y and the other arrays must have the same number of rows; got {lengths}.")
            a = a.rechunk({0: X.chunks[0]})
        a = a.rechunk({1: -1}) if a.ndim == 2 else a
        if a.numblocks[0] != X.numblocks[0]:
            raise SourceError(
                f"X, y and the other arrays must have the same number of chunks; got {X.numblocks[0]} and "
                f"{a.numblocks[0]}. Take them from one frame, or persist each of them first."
            )
        aligned.append(a)
    return [list(a.to_delayed().ravel()) for a in aligned]


def _has_known_length(a: Any) -> bool:
    return not np.isnan(a.shape[0])
