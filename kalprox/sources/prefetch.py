"""Prefetching: the next blocks are read, and parsed, in threads while the current one is being learned."""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")
_END = object()
_MAX_PARSERS = 4  # more would hold more raw blocks at a time than a table's memory allows for


def prefetch(blocks: Iterator[T], depth: int = 2) -> Iterator[T]:
    """Iterate over `blocks` in a thread, up to `depth` blocks ahead.

    Parameters
    ----------
    blocks : iterator
    depth : int
        The number of blocks to read ahead.

    Yields
    ------
    block
        The same blocks in the same order. An error is raised after the blocks that came before it.

    Examples
    --------
    >>> list(prefetch(iter("abc")))
    ['a', 'b', 'c']
    """
    buffer: queue.Queue[Any] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                buffer.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            for block in blocks:
                if not put((block, None)):
                    return
            put((_END, None))
        except BaseException as error:
            put((_END, error))

    thread = threading.Thread(target=read, daemon=True, name="kalprox-prefetch")
    thread.start()
    try:
        while True:
            try:
                block, error = buffer.get(timeout=1.0)
            except queue.Empty:
                if thread.is_alive() or not buffer.empty():
                    continue
                raise MemoryError("The thread that reads ahead has ended, as it does where memory is short.") from None
            if error is not None:
                raise error
            if block is _END:
                return
            yield block
    finally:
        stop.set()
        thread.join(timeout=5)


def map_ahead(function: Callable[[S], T], items: Iterable[S], threads: int) -> Iterator[T]:
    """`map` in several threads, for functions that release the global interpreter lock; with one thread just `map`.

    Parameters
    ----------
    function : callable
    items : iterable
        At most `threads` + 1 items are taken before their results are asked for.
    threads : int

    Yields
    ------
    result
        In the order of the items. An error is raised after the results of the items that came before it.

    Examples
    --------
    >>> list(map_ahead(abs, [-1, 2, -3], threads=2))
    [1, 2, 3]
    """
    if threads < 2:
        yield from map(function, items)
        return
    waiting: deque[Future[T]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="kalprox-parse")
    try:
        for future in _submitted(pool, function, items):
            waiting.append(future)
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _submitted(pool: ThreadPoolExecutor, function: Callable[[S], T], items: Iterable[S]) -> Iterator[Future[T]]:
    """The results of a function to come; an error of the items is the last of them."""
    try:
        for item in items:
            yield pool.submit(function, item)
    except Exception as error:
        failed: Future[T] = Future()
        failed.set_exception(error)
        yield failed


def parsers() -> int:
    """The number of threads that parse the raw blocks of a text file."""
    return min(cores(), _MAX_PARSERS)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
