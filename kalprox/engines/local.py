"""The engine on this machine: threads or processes."""

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from kalprox.base.extras import load
from kalprox.engines.base import Engine, EngineFailed, Part, PartialFold, Seen, Tree, fold_partition, one_blas_thread
from kalprox.engines.pickling import ModelPickler
from kalprox.sources.prefetch import cores

__all__ = ["LocalEngine"]

_MAX_DEATHS = 3  # of worker processes in one pass; after one more the pass fails


class LocalEngine(Engine):
    """Folds partitions in threads or processes of this machine, and merges their totals in this process.

    Threads are enough for arrays and files, because BLAS, LAPACK and pyarrow release the global interpreter lock.
    Processes also run models written in Python in parallel. When a process is killed, the partitions that it was
    folding are folded again.

    Parameters
    ----------
    workers : int, optional
        The number of threads or processes. The default is the number of cores.
    processes : bool
        Whether to start processes instead of threads.
    """

    def __init__(self, workers: int | None = None, *, processes: bool = False) -> None:
        self.workers, self.processes = workers or cores(), processes
        self._started: tuple[ProcessPoolExecutor, ModelPickler] | None = None
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1; got {workers}.")

    def _total(self, partitions: Sequence[Any], part: Part[Any], seen: Seen) -> Any:
        tree = Tree()
        with one_blas_thread():
            for index, folded in self._as_completed(partitions, part):
                tree.put(index, PartialFold(folded.total))
                seen(index, folded.summaries[index])
        return tree.result().total

    def _as_completed(self, partitions: Sequence[Any], part: Part[Any]) -> Iterator[tuple[int, PartialFold]]:
        """The folds in the order in which they finish. The work of a killed process is repeated."""
        left, deaths = dict(enumerate(partitions)), 0
        while left:
            try:
                with self._pool(part) as (pool, packed):
                    for index, folded in self._submit(pool, list(left.items()), packed):
                        del left[index]
                        yield index, folded
            except BrokenProcessPool as error:
                deaths += 1
                if deaths > _MAX_DEATHS:
                    raise EngineFailed(
                        f"Gave up after worker processes died {deaths} times, with {len(left)} of {len(partitions)} "
                        "partitions left. The processes may have run out of memory; smaller partitions need less."
                    ) from error

    @contextmanager
    def _pool(self, part: Part[Any]) -> Iterator[tuple[Executor, Part[Any]]]:
        """Threads for one pass, or processes that are kept for the next one; and the part as it is sent to them."""
        if not self.processes:
            with ThreadPoolExecutor(self.workers, thread_name_prefix="kalprox-fold") as threads:
                yield threads, part
            return
        if self._started is None:
            cloudpickle = load("cloudpickle", "processes", "engine='processes' needs")
            # Spawned, because the threads of BLAS and JAX do not survive a fork.
            self._started = ProcessPoolExecutor(self.workers, get_context("spawn")), ModelPickler(cloudpickle.dumps)
        pool, pickler = self._started
        try:
            yield pool, pickler.packed(part)
        except BrokenProcessPool:
            self.close()
            raise

    def close(self) -> None:
        """Stop the processes. The next pass would start new ones."""
        if self._started is not None:
            self._started[0].shutdown(wait=False, cancel_futures=True)
            self._started = None

    def _submit(
        self, pool: Executor, partitions: list[tuple[int, Any]], part: Part[Any]
    ) -> Iterator[tuple[int, PartialFold]]:
        """Submit partitions, at most two per worker at a time, and yield their folds as they finish."""
        submitted: dict[Any, int] = {}
        queue = iter(partitions)
        try:
            while True:
                for index, partition in queue:
                    submitted[pool.submit(fold_partition, partition, index, part)] = index
                    if len(submitted) >= 2 * self.workers:
                        break
                if not submitted:
                    return
                finished, _ = wait(submitted, return_when=FIRST_COMPLETED)
                for future in sorted(finished, key=lambda one: submitted[one]):
                    yield submitted.pop(future), future.result()
        finally:
            for future in submitted:
                future.cancel()
