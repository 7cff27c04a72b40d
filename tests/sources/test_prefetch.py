"""Prefetching: the same blocks in the same order, and errors where they occurred."""

import threading
import time

import pytest

from kalprox.sources.prefetch import prefetch


def test_blocks_come_in_order_and_no_more_than_depth_are_read_ahead():
    read = []

    def blocks():
        for i in range(100):
            read.append(i)
            yield i

    found = []
    for block in prefetch(blocks(), depth=3):
        found.append(block)
        assert len(read) <= len(found) + 5  # three in the buffer, one to be put there, one being read
    assert found == list(range(100))


def test_an_error_is_raised_after_the_blocks_before_it():
    def blocks():
        yield 1
        yield 2
        raise ValueError("no more")

    found = []
    with pytest.raises(ValueError, match="no more"):
        found.extend(prefetch(blocks()))
    assert found == [1, 2]


def test_the_thread_ends_when_the_caller_stops_early():
    started = threading.active_count()
    for _ in prefetch(iter(range(10_000))):
        break
    deadline = time.monotonic() + 600
    while threading.active_count() > started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == started
