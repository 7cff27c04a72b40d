"""The Dask engine: folds and merges are one task graph, so Dask recomputes what a lost worker held."""

import logging
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from time import monotonic
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from kalprox.engines.base import (
    Engine,
    EngineFailed,
    ModelPickler,
    Part,
    PartialFold,
    PartitionSummary,
    Seen,
    fold_partition,
    one_blas_thread,
)
from kalprox.engines.partitions import DaskPartition, unreadable

_SILENT = ("asyncio", "distributed", "tornado")
_AUDIBLE = ("distributed.nanny", "distributed.scheduler", "distributed.worker")  # e.g. that a worker needs more memory


class _DropThreads(logging.Filter):
    """Drops the records logged in certain threads. A filter runs in the thread that logs the record."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: WeakSet[threading.Thread] = WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        return threading.current_thread() not in self.threads


class _DropTracebacks(_DropThreads):
    """Drops only the records with a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None or super().filter(record)


_drop, _drop_tracebacks = _DropThreads(), _DropTracebacks()


def silence(client: Any) -> None:
    """Drop the log messages from the event loop of a `distributed.Client`, also those logged after it is closed.

    Of a cluster that runs in the same thread, the messages of the scheduler and the nannies remain, without tracebacks.
    """
    client.sync(_silence_loop)
    for name, logger in _loggers():
        logger.addFilter(_drop_tracebacks if _is_under(name, _AUDIBLE) else _drop)


@contextmanager
def quiet() -> Iterator[None]:
    """Drop the log messages of threads that start in this context, such as the event loop of a client that fails."""
    before = set(threading.enumerate())

    def is_old(record: logging.LogRecord) -> bool:
        return threading.current_thread() in before

    loggers = _loggers()
    for _, logger in loggers:
        logger.addFilter(is_old)
    try:
        yield
    finally:
        for _, logger in loggers:
            logger.removeFilter(is_old)


def _loggers() -> list[tuple[str, logging.Logger]]:
    """The loggers of distributed, tornado and asyncio by name."""
    known = list(logging.root.manager.loggerDict.items())
    return [(name, logger) for name, logger in known if isinstance(logger, logging.Logger) and _is_under(name, _SILENT)]


def silence_workers(client: Any) -> None:
    """Drop the tracebacks that workers log when a task fails, on a cluster of our own: the error is raised here.

    All other messages of the workers, and all messages of clusters that the user started, are logged as usual.
    """
    from distributed import WorkerPlugin

    class Silence(WorkerPlugin):
        def setup(self, worker: Any) -> None:
            logging.getLogger("distributed.worker").addFilter(
                lambda record: not str(record.msg).startswith("Compute Failed")
            )

    client.register_plugin(Silence(), name="kalprox-silence")


async def _silence_loop() -> None:
    import asyncio

    for drop in (_drop, _drop_tracebacks):
        drop.threads.add(threading.current_thread())
    # The error of a task that nobody awaited is reported by the garbage collector, in whichever thread it runs.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)


def _is_under(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


TIMEOUT = 60.0  # seconds to wait for a scheduler, and for a first worker
_POLL = 1.0  # seconds between two questions whether there are workers


class DaskEngine(Engine):
    """Folds partitions on the workers of a Dask cluster, and merges the totals there.

    The totals of a worker that dies are lost with it. Dask then folds those partitions again, and because the tree is
    part of the task graph, the result is the same bit for bit. A partition is given up when more than
    `distributed.scheduler.allowed-failures` workers have died while they folded it.

    Parameters
    ----------
    client : distributed.Client
    timeout : float
        The number of seconds that a pass waits while the cluster has no workers.
    """

    def __init__(self, client: Any, timeout: float = TIMEOUT) -> None:
        self.client, self.timeout = client, timeout
        self._checked = False  # whether the versions of kalprox have been compared
        self._address = client.scheduler.address  # a client that has lost its scheduler forgets the address
        self._pickler = ModelPickler(_dumps)

    def _total(self, partitions: Sequence[Any], part: Part[Any], seen: Seen) -> Any:
        from distributed import as_completed

        with self._connected():
            self._check_versions()
            root, *summaries = self._submit(partitions, self._pickler.packed(part))
            completed = as_completed([root, *summaries], loop=self.client.loop)
        index = {future.key: i for i, future in enumerate(summaries)}
        try:
            while (future := self._next(completed)) is not None:
                if future is not root:
                    i = index[future.key]
                    seen(i, self._summary(i, future, partitions[i]))
            return self._result(root).total
        finally:
            with suppress(Exception):  # the scheduler may be lost
                if self.client.status == "running":
                    self.client.cancel([root, *summaries], force=True)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Turn the errors of a lost scheduler, and of a merge on which too many workers died, into EngineFailed."""
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        try:
            yield
        except KilledWorker as error:
            raise _gave_up(error) from error
        except (CancelledError, OSError) as error:  # the errors of connections and timeouts are OSErrors
            raise EngineFailed(
                f"The connection to the Dask scheduler {self._address} is lost, and this pass with it. Start a "
                "scheduler and run the job again: with a checkpoint, it resumes after the last complete pass."
            ) from error

    def _next(self, completed: Any) -> Any:
        """The next future that has finished; None after the last one. An error, if there are no workers for long."""
        with self._connected():
            asked, check_workers = monotonic(), self._patience()
            while not completed.has_ready() and not completed.is_empty():
                with completed.thread_condition:
                    completed.thread_condition.wait(0.1)
                if monotonic() >= asked + min(_POLL, self.timeout):
                    asked = monotonic()
                    check_workers()
            return next(completed, None)

    def _result(self, future: Any) -> Any:
        """The result of a finished future: it is computed again if the worker that held it has died since."""
        with self._connected():
            check_workers = self._patience()
            while True:
                try:
                    return future.result(timeout=min(_POLL, self.timeout))
                except TimeoutError:
                    check_workers()

    def _patience(self) -> Callable[[], None]:
        """A function to be called again and again, which raises EngineFailed if there are no workers for `timeout`."""
        last_seen = monotonic()

        def check() -> None:
            nonlocal last_seen
            now = monotonic()
            if self.client.scheduler_info(n_workers=1).get("workers") or self.client.status != "running":
                last_seen = now
            elif now - last_seen > self.timeout:
                raise EngineFailed(
                    f"The Dask scheduler {self._address} has had no workers for {self.timeout:g} s. Start workers, "
                    f"for example with `dask worker {self._address}`, or wait longer, with a larger timeout. "
                    "Workers that cannot import kalprox leave as soon as they get a task: see their logs."
                )

        return check

    def _check_versions(self) -> None:
        """Raise EngineFailed unless the scheduler and its workers have the kalprox of this process. Done once."""
        if self._checked:
            return
        here = import_module("kalprox").__version__

        def version(dask_scheduler: Any = None) -> str:  # sent by value, so that it also runs where kalprox is missing
            try:
                there: str = __import__("kalprox").__version__
                return there
            except ImportError as error:
                return f"none ({error})"

        workers = self.client.run(version)
        for address, there in {self._address: self.client.run_on_scheduler(version), **workers}.items():
            if there != here:
                who = "scheduler" if address == self._address else "worker"
                raise EngineFailed(
                    f"The Dask {who} {address} must have kalprox {here}, as this process has; it has {there}. Install "
                    "the same version of kalprox for the scheduler and all workers."
                )
        self._checked = len(workers) > 0

    def _summary(self, index: int, future: Any, partition: Any) -> PartitionSummary:
        """The summary of a partition; raises the partition's error."""
        from distributed import KilledWorker

        with self._connected():
            error = future.exception() if future.status == "error" else None
        if error is None:
            summary: PartitionSummary = self._result(future)[index]
            return summary
        if isinstance(error, KilledWorker):
            raise _gave_up(error, partition.name) from error
        if isinstance(partition, DaskPartition) and not getattr(error, "__notes__", None):
            raise unreadable(partition.name, error) from error  # computing the rows failed, not the fold
        raise error

    def _submit(self, partitions: Sequence[Any], part: Any) -> list[Any]:
        """The futures of the total and of each partition's summary."""
        from dask.delayed import delayed

        run = f"kalprox-{uuid4().hex}"
        fold, summary, merge = (
            delayed(function, pure=False, traverse=False) for function in (_fold, attrgetter("summaries"), _merge)
        )
        leaves = []
        for i, partition in enumerate(partitions):
            bare, tasks = _without_tasks(partition)
            leaves.append(fold(bare, i, part, *tasks, dask_key_name=f"fold-{run}-{i}"))
        summaries = [summary(leaf, dask_key_name=f"summary-{run}-{i}") for i, leaf in enumerate(leaves)]
        level, height = leaves, 0
        while len(level) > 1:
            height += 1
            pairs = zip(level[::2], level[1::2], strict=False)
            merged = [merge(a, b, dask_key_name=f"merge-{run}-{height}-{i}") for i, (a, b) in enumerate(pairs)]
            level = merged + level[len(level) // 2 * 2 :]
        futures: list[Any] = self.client.compute([level[0], *summaries], optimize_graph=False)
        return futures


def _dumps(value: Any) -> bytes:
    pickled: bytes = import_module("cloudpickle").dumps(value)
    return pickled


def _gave_up(error: Any, name: str = "A merge") -> EngineFailed:
    return EngineFailed(
        f"{name}: gave up because more workers died than distributed.scheduler.allowed-failures permits. The workers "
        f"may have run out of memory; smaller partitions need less. ({error})"
    )


def _without_tasks(partition: Any) -> tuple[Any, tuple[Any, ...]]:
    """A partition, and the tasks whose values it needs on the worker.

    A task that fails makes all tasks that depend on it fail. A chunk that may be skipped is therefore not a task: it
    is sent as bytes, which Dask does not look into, and is computed inside the fold.
    """
    if not isinstance(partition, DaskPartition):
        return partition, ()
    if partition.skip_unreadable:
        return _dumps(partition), ()
    return replace(partition, delayed=()), partition.delayed


def _fold(partition: Any, index: int, part: Part[Any], *values: Any) -> PartialFold:
    """Fold, on a worker, a partition that the worker opens or whose `values` Dask has computed."""
    if isinstance(partition, bytes):
        partition = pickle.loads(partition)
    return fold_partition(partition.loaded(*values) if values else partition, index, part)


def _merge(left: PartialFold, right: PartialFold) -> PartialFold:
    """Merge two totals on a worker. The client gets the summaries from the leaves."""
    with one_blas_thread():
        return PartialFold(left.total) + PartialFold(right.total)
