"""Silencing the log messages of the Dask clients and workers that this library starts.

When a scheduler is lost, distributed, tornado and asyncio log tracebacks in the thread of the client's event loop, some
of them after the client has been closed. The user learns about the loss from `EngineFailed`. Clients that the user
passes in have event loops in other threads, and log as usual.
"""

import logging
import threading
from typing import Any
from weakref import WeakSet

__all__ = ["silence", "silence_workers"]

_SILENT = ("asyncio", "distributed", "tornado")
_AUDIBLE = ("distributed.nanny", "distributed.scheduler", "distributed.worker")  # e.g. that a worker needs more memory


class _DropThreads(logging.Filter):
    """Drops the records logged in certain threads. A filter runs in the thread that logs the record."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: WeakSet[threading.Thread] = WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        return threading.current_thread() not in self.threads


_drop = _DropThreads()


def silence(client: Any) -> None:
    """Drop the log messages from the event loop of a `distributed.Client`, also those logged after it is closed."""
    client.sync(_silence_loop)
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and _is_under(name, _SILENT) and not _is_under(name, _AUDIBLE):
            logger.addFilter(_drop)


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

    _drop.threads.add(threading.current_thread())
    # The error of a task that nobody awaited is reported by the garbage collector, in whichever thread it runs.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)


def _is_under(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)
