"""Prefetching: the next blocks are read in a thread while the current one is being learned."""

import queue
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

__all__ = ["prefetch"]

T = TypeVar("T")
_END = object()


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
            block, error = buffer.get()
            if error is not None:
                raise error
            if block is _END:
                return
            yield block
    finally:
        stop.set()
        thread.join(timeout=5)
