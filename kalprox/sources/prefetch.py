"""Read ahead: the next blocks are read in a thread of their own while this one learns."""

import queue
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

__all__ = ["prefetch"]

T = TypeVar("T")
_END = object()


def prefetch(blocks: Iterator[T], depth: int = 2) -> Iterator[T]:
    """The same blocks in the same order, up to `depth` of them waiting. An error is raised where it would have been."""
    waiting: queue.Queue[Any] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                waiting.put(item, timeout=0.1)
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

    thread = threading.Thread(target=read, daemon=True, name="kalprox-reading")
    thread.start()
    try:
        while True:
            block, error = waiting.get()
            if error is not None:
                raise error
            if block is _END:
                return
            yield block
    finally:
        stop.set()
        thread.join(timeout=5)
