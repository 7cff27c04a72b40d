"""Silencing the log messages of the Dask clients and workers that this library starts.

When a scheduler is lost, distributed, tornado and asyncio log tracebacks in the thread of the client's event loop, some
of them after the client has been closed. The user learns about the loss from `EngineFailed`. Clients that the user
passes in have event loops in other threads, and log as usual.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

__all__ = ["quiet", "silence", "silence_workers"]

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
