"""Processes that compute results, each with one thread, and end with the process that started them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["workers"]

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NPROC": "1"}


@contextmanager
def workers(jobs: int) -> Iterator[Callable[..., Future[Any]]]:
    """Start a pool of `jobs` new (spawned) processes, and yield its `submit` function.

    The processes end when the `with` block ends or raises an error, and also when this process is killed. Inside the
    block the environment is theirs: NumPy and JAX read it when they are imported, before our code runs in a process.
    """
    context = get_context("spawn")
    # Only this process holds the sending end. When the process ends, for any reason, the end is closed, and the workers
    # notice.
    receiver, sender = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent, initargs=(receiver,))
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    changes = _ONE_THREAD | {"XLA_FLAGS": flags}
    before = {name: os.environ[name] for name in changes if name in os.environ}
    os.environ.update(changes)
    try:
        yield pool.submit
    except BaseException:
        sender.close()  # ends the processes now, not after their tasks
        raise
    finally:
        for name in changes:
            del os.environ[name]
        os.environ.update(before)
        pool.shutdown(cancel_futures=True)
        sender.close()
        receiver.close()


def _end_with_parent(receiver: Connection) -> None:
    """In a worker: leave interrupts to the parent process, and end when it closes the pipe or ends itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        receiver.poll(None)  # nothing is ever sent, so this returns when the other end is closed
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
