"""One BLAS thread per process while partitions are folded."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

__all__ = ["one_blas_thread"]


class _Limit:
    """The number of tasks in this process that need the limit, and the limits to restore after the last one."""

    lock = threading.Lock()
    tasks = 0
    original: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while any task of this process is in this context: the other cores have their own tasks.

    The limit applies to the whole process, so the first task sets it and the last one restores the original limits.
    Without threadpoolctl the context does nothing.
    """
    try:
        threadpoolctl = import_module("threadpoolctl")
    except ImportError:
        yield
        return
    with _Limit.lock:
        if _Limit.tasks == 0:
            _Limit.original = threadpoolctl.threadpool_limits(1)
        _Limit.tasks += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.tasks -= 1
            if _Limit.tasks == 0:
                _Limit.original.restore_original_limits()
