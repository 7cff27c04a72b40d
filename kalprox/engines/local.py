"""This machine as an engine: threads, or processes."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from importlib import import_module
from typing import Any

from kalprox.engines.base import Engine, Folded, Part, Seen, Tree, one_thread
from kalprox.engines.partitions import folded
from kalprox.engines.ship import Shipper

__all__ = ["LocalEngine"]


class LocalEngine(Engine):
    """Partitions in `workers` threads, by default one a core: BLAS, LAPACK and pyarrow let others run meanwhile.

    processes: in processes instead, for models written in Python, which threads would take turns on. Sums are merged
    here as they come, so memory holds a few of them a worker.
    """

    def __init__(self, workers: int | None = None, *, processes: bool = False) -> None:
        self.workers, self.processes = workers or _cores(), processes
        self._shipper: Shipper | None = None
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1; got {workers}.")

    def sum(self, partitions: Sequence[Any], part: Part, seen: Seen | None = None) -> Any:
        tree = Tree()
        results = self._processes(partitions, part) if self.processes else self._threads(partitions, part)
        with one_thread():
            for index, result in results:
                tree.put(index, Folded(result.total))
                if seen is not None:
                    seen(index, result.reports[index])
        return tree.result().total

    def _threads(self, partitions: Sequence[Any], part: Part) -> Iterator[tuple[int, Folded]]:
        """In the order in which they finish; at most twice as many as there are workers are under way or waiting."""
        with ThreadPoolExecutor(min(self.workers, len(partitions)), thread_name_prefix="kalprox-fold") as pool:
            under_way: dict[Any, int] = {}
            todo = iter(enumerate(partitions))
            try:
                while True:
                    for index, partition in todo:
                        under_way[pool.submit(folded, partition, index, part)] = index
                        if len(under_way) >= 2 * self.workers:
                            break
                    if not under_way:
                        return
                    finished, _ = wait(under_way, return_when=FIRST_COMPLETED)
                    for future in sorted(finished, key=lambda one: under_way[one]):
                        yield under_way.pop(future), future.result()
            finally:
                for future in under_way:
                    future.cancel()

    def _processes(self, partitions: Sequence[Any], part: Part) -> Iterator[tuple[int, Folded]]:
        try:
            joblib, cloudpickle = import_module("joblib"), import_module("cloudpickle")
        except ImportError as error:
            raise ImportError("engine='processes' needs joblib: pip install joblib cloudpickle") from error
        self._shipper = self._shipper or Shipper(cloudpickle.dumps)
        part = self._shipper.packed(part)
        tasks = (joblib.delayed(_indexed)(partition, i, part) for i, partition in enumerate(partitions))
        yield from joblib.Parallel(self.workers, backend="loky", return_as="generator_unordered", batch_size=1)(tasks)


def _indexed(partition: Any, index: int, part: Part) -> tuple[int, Folded]:
    return index, folded(partition, index, part)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
