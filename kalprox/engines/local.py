"""This machine as an engine: threads, or processes."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from typing import Any

from kalprox.engines.base import Engine, EngineFailed, Folded, Part, Seen, Tree, one_thread
from kalprox.engines.partitions import folded
from kalprox.engines.pickling import Shipper

__all__ = ["LocalEngine"]

_DEATHS = 3  # of processes in a pass, before it is given up


class LocalEngine(Engine):
    """Partitions in `workers` threads, by default one a core: BLAS, LAPACK and pyarrow let others run meanwhile.

    processes: in processes instead, for models written in Python, which threads would take turns on; one that is killed
    costs the work under way. Sums are merged here as they come, so memory holds a few of them a worker.
    """

    def __init__(self, workers: int | None = None, *, processes: bool = False) -> None:
        self.workers, self.processes = workers or _cores(), processes
        self._started: tuple[ProcessPoolExecutor, Shipper] | None = None
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1; got {workers}.")

    def sum(self, partitions: Sequence[Any], part: Part, seen: Seen | None = None) -> Any:
        tree = Tree()
        with one_thread():
            for index, result in self._results(partitions, part):
                tree.put(index, Folded(result.total))
                if seen is not None:
                    seen(index, result.reports[index])
        return tree.result().total

    def _results(self, partitions: Sequence[Any], part: Part) -> Iterator[tuple[int, Folded]]:
        """In the order in which they finish. What was under way when a process was killed is done again."""
        left, deaths = dict(enumerate(partitions)), 0
        while left:
            try:
                with self._pool(part) as (pool, part_there):
                    for index, result in self._from(pool, list(left.items()), part_there):
                        del left[index]
                        yield index, result
            except BrokenProcessPool as error:
                deaths += 1
                if deaths > _DEATHS:
                    raise EngineFailed(
                        f"Given up after worker processes died {deaths} times, with {len(left)} of {len(partitions)} "
                        "partitions left. Their memory may be too small for them: more, smaller partitions need less."
                    ) from error

    @contextmanager
    def _pool(self, part: Part) -> Iterator[tuple[Executor, Part]]:
        """Threads, or processes that stay for the next pass; and the part as it goes to them."""
        if not self.processes:
            with ThreadPoolExecutor(self.workers, thread_name_prefix="kalprox-fold") as threads:
                yield threads, part
            return
        if self._started is None:
            try:
                cloudpickle = import_module("cloudpickle")
            except ImportError as error:
                raise ImportError("engine='processes' needs cloudpickle: pip install cloudpickle") from error
            # Not forks, which the threads of BLAS and JAX do not survive.
            self._started = ProcessPoolExecutor(self.workers, get_context("spawn")), Shipper(cloudpickle.dumps)
        pool, shipper = self._started
        try:
            yield pool, shipper.packed(part)
        except BrokenProcessPool:
            self.close()
            raise

    def close(self) -> None:
        """Without its processes, which it would start anew."""
        if self._started is not None:
            self._started[0].shutdown(wait=False, cancel_futures=True)
            self._started = None

    def _from(self, pool: Executor, partitions: list[tuple[int, Any]], part: Part) -> Iterator[tuple[int, Folded]]:
        """At most twice as many as there are workers are under way or waiting."""
        under_way: dict[Any, int] = {}
        todo = iter(partitions)
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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
