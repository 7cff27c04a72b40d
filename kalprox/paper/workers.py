"""Processes that compute results, each with one thread, and end with the process that started them."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["workers"]

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NPROC": "1"}


@contextlib.contextmanager
def workers(jobs: int) -> Iterator[Callable[..., Future[Any]]]:
    """Start a pool of `jobs` new (spawned) processes, and yield its `submit` function.

    The processes end when the `with` block ends or raises an error, and also when this process is killed.
    """
    context = get_context("spawn")
    # Only this process holds the sending end. When the process ends, for any reason, the end is closed, and the workers
    # notice.
    receiver, sender = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent, initargs=(receiver,))
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()

    def submit(function: Callable[..., Any], *args: Any) -> Future[Any]:
        # NumPy and JAX read these variables when they are imported, which is before our code runs in the process
        with _environment({**_ONE_THREAD, "XLA_FLAGS": flags}):
            return pool.submit(function, *args)

    try:
        yield submit
    except BaseException:
        sender.close()  # ends the processes now, not after their tasks
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        sender.close()
        receiver.close()


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _end_with_parent(receiver: Connection) -> None:
    """In a worker: leave interrupts to the parent process, and end when it closes the pipe or ends itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        receiver.poll(None)  # nothing is ever sent, so this returns when the other end is closed
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
