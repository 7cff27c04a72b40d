"""Dask as an engine: a graph of folds and merges, so that what a lost worker held is computed again elsewhere."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from operator import attrgetter
from typing import Any
from uuid import uuid4

from kalprox.engines.base import Engine, EngineFailed, Folded, Part, Piece, Seen, add, fold, one_thread
from kalprox.engines.partitions import ArrayPartition, FramePartition, folded, skipped, unreadable
from kalprox.engines.pickling import Shipper
from kalprox.sources.files import SourceError

__all__ = ["DaskEngine", "DaskPartition", "dask_partitions"]


@dataclass(frozen=True)
class DaskPartition:
    """A chunk of dask arrays, or a partition of a dask dataframe, that is computed where it is folded.

    delayed: X, y and perhaps weights; or the frame. within: the partition in memory whose fields these become.
    skip_unreadable: not for collections that are persisted, whose rows have been read.
    """

    delayed: tuple[Any, ...]
    within: ArrayPartition | FramePartition
    skip_unreadable: bool = False

    @property
    def name(self) -> str:
        return self.within.name

    def pieces(self) -> Iterator[Piece]:
        """On an engine that is not Dask's: computed in the thread that asks."""
        import dask

        try:
            values = dask.compute(*self.delayed, scheduler="synchronous")
        except Exception as error:
            if not self.skip_unreadable:
                raise unreadable(self.name, error) from error
            yield skipped(self.name, error)
            return
        yield from self.loaded(*values).pieces()

    def loaded(self, *values: Any) -> ArrayPartition | FramePartition:
        if isinstance(self.within, FramePartition):
            return replace(self.within, tables=values[0])
        return replace(self.within, X=values[0], y=values[1], weights=values[2] if len(values) > 2 else None)


def dask_partitions(
    source: Any, columns: Any, n: int | None, *, skip_unreadable: bool = False, **options: Any
) -> list[DaskPartition]:
    """One for each chunk of rows of (X, y[, weights]), or for each partition of a dataframe."""
    if options:
        raise TypeError(f"{', '.join(options)}: not an option of a source that is in Dask.")
    if hasattr(source, "npartitions") and hasattr(source, "to_delayed") and hasattr(source, "columns"):
        frame = source[list(columns.wanted.names)]
        blocks = (frame if n is None else frame.repartition(npartitions=n)).to_delayed()
        return [
            DaskPartition((block,), FramePartition(None, columns, f"partition {i}"), skip_unreadable)
            for i, block in enumerate(blocks)
        ]
    chunks = _chunks(source, n)
    names = [f"chunk {i}" for i in range(len(chunks[0]))]
    return [
        DaskPartition(blocks, ArrayPartition(None, None, None, name), skip_unreadable)
        for name, blocks in zip(names, zip(*chunks, strict=True), strict=True)
    ]


def _chunks(source: Any, n: int | None) -> list[list[Any]]:
    """The delayed chunks of each array, cut at the same rows."""
    import dask.array as da

    X, *others = (a if isinstance(a, da.Array) else da.from_array(a) for a in source if a is not None)
    if n is not None:
        X = X.rechunk({0: max(1, -(-X.shape[0] // n))})
    X = X.rechunk({1: -1}) if X.ndim == 2 else X
    aligned = [X]
    for a in others:
        if _known(a) and _known(X):
            if len(a) != len(X):
                raise SourceError(f"X, y and the weights must have as many rows; got {len(X)} and {len(a)}.")
            a = a.rechunk({0: X.chunks[0]})
        a = a.rechunk({1: -1}) if a.ndim == 2 else a
        if a.numblocks[0] != X.numblocks[0]:
            raise SourceError(f"X, y and the weights must have as many chunks; got {X.numblocks[0]}, {a.numblocks[0]}.")
        aligned.append(a)
    return [list(a.to_delayed().ravel()) for a in aligned]


def _known(a: Any) -> bool:
    return a.shape[0] == a.shape[0]  # NaN where the length of a chunk is not known


class DaskEngine(Engine):
    """A `distributed.Client`. Folds run where Dask puts them, merges on the workers that hold what they merge.

    A worker that dies takes its sums with it: Dask folds those partitions again, and since the tree is in the graph the
    result is the same, bit for bit. A partition on which more than `distributed.scheduler.allowed-failures` workers
    died is given up.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._shipper = Shipper(_dumps)

    def sum(self, partitions: Sequence[Any], part: Part, seen: Seen | None = None) -> Any:
        from concurrent.futures import CancelledError

        from dask import delayed
        from distributed import KilledWorker, as_completed

        part = self._shipper.packed(part)
        run = f"kalprox-{uuid4().hex}"
        task, report, join = (delayed(f, pure=False, traverse=False) for f in (_fold, attrgetter("reports"), _merge))
        leaves = []
        for i, partition in enumerate(partitions):
            bare, needed = _apart(partition)
            leaves.append(task(bare, i, part, *needed, dask_key_name=f"fold-{run}-{i}"))
        reports = [report(leaf, dask_key_name=f"report-{run}-{i}") for i, leaf in enumerate(leaves)]
        level, height = leaves, 0
        while len(level) > 1:
            height += 1
            pairs = zip(level[::2], level[1::2], strict=False)
            joined = [join(a, b, dask_key_name=f"merge-{run}-{height}-{i}") for i, (a, b) in enumerate(pairs)]
            level = joined + level[len(level) // 2 * 2 :]
        root, *told = self.client.compute([level[0], *reports], optimize_graph=False)
        index = {future.key: i for i, future in enumerate(told)}
        try:
            for future in as_completed(told):
                self._tell(index[future.key], future, partitions, seen)
            return root.result().total
        except KilledWorker as error:
            raise _gave_up(error) from error
        except CancelledError as error:
            raise self._lost() from error
        finally:
            if self.client.status == "running":
                self.client.cancel([root, *told], force=True)

    def _lost(self) -> EngineFailed:
        return EngineFailed(
            f"The Dask scheduler {self.client.scheduler.address} is gone, and with it this pass. Start it again, or "
            "another one: with a checkpoint the same job goes on after its last whole pass."
        )

    def _tell(self, index: int, future: Any, partitions: Sequence[Any], seen: Seen | None) -> None:
        from distributed import KilledWorker

        if future.status == "error":
            error, name = future.exception(), partitions[index].name
            if isinstance(error, KilledWorker):
                raise _gave_up(error, name) from error
            if isinstance(partitions[index], DaskPartition) and not getattr(error, "__notes__", None):
                raise unreadable(name, error) from error  # what computes its rows failed, not the fold
            raise error
        if seen is not None:
            seen(index, future.result()[index])


def _dumps(value: Any) -> bytes:
    return import_module("cloudpickle").dumps(value)


def _gave_up(error: Any, name: str = "A merge") -> EngineFailed:
    return EngineFailed(
        f"{name}: given up after more workers died on it than distributed.scheduler.allowed-failures allows. Their "
        f"memory may be too small for it: more, smaller partitions need less. ({error})"
    )


def _apart(partition: Any) -> tuple[Any, tuple[Any, ...]]:
    """A partition, and the tasks whose values the worker is to be given with it.

    A task that fails takes with it all that need its value. So a chunk that may be skipped is no task: it goes as
    bytes, which Dask does not look into, to be computed inside the fold.
    """
    if not isinstance(partition, DaskPartition):
        return partition, ()
    if partition.skip_unreadable:
        return _dumps(partition), ()
    return replace(partition, delayed=()), partition.delayed


def _fold(partition: Any, index: int, part: Part, *values: Any) -> Folded:
    """On a worker: a partition that it opens, or the values of one that Dask has computed."""
    if isinstance(partition, bytes):
        partition = pickle.loads(partition)
    if values:
        within = partition.loaded(*values)
        return fold(within.name, index, within.pieces(), part)
    return folded(partition, index, part)


def _merge(left: Folded, right: Folded) -> Folded:
    """On a worker. Reports went to the client from the leaves."""
    with one_thread():
        return add(Folded(left.total), Folded(right.total))
