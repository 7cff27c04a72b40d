"""Prefetching: the same blocks in the same order, and errors where they occurred."""

import threading
import time

import pytest

from kalprox.sources.prefetch import map_ahead, prefetch


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


def test_results_come_in_the_order_of_the_items_and_few_items_are_taken_ahead():
    taken, threads = [], set()

    def items():
        for i in range(50):
            taken.append(i)
            yield i

    def square(i):
        threads.add(threading.get_ident())
        time.sleep(0.001 * (i % 3))  # later items finish first
        return i * i

    found = []
    for result in map_ahead(square, items(), threads=3):
        found.append(result)
        assert len(taken) <= len(found) + 3
    assert found == [i * i for i in range(50)]
    assert len(threads) == 3 and threading.get_ident() not in threads


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_error_of_an_item_or_of_a_result_comes_after_the_results_before_it(threads):
    def items():
        yield from range(5)
        raise OSError("the disk")

    def inverse(i):
        return 1 / (3 - i)

    found = []
    with pytest.raises(ZeroDivisionError):
        found.extend(map_ahead(inverse, items(), threads))
    assert found == [1 / 3, 1 / 2, 1]
    found = []
    with pytest.raises(OSError, match="the disk"):
        found.extend(map_ahead(abs, items(), threads))
    assert found == [0, 1, 2, 3, 4]


def test_no_thread_is_left_after_an_early_stop():
    started = threading.active_count()
    results = map_ahead(abs, iter(range(1000)), threads=3)
    assert next(results) == 0
    results.close()
    assert threading.active_count() == started


def test_one_thread_takes_an_item_only_when_its_result_is_asked_for():
    items = iter(range(9))
    results = map_ahead(abs, items, threads=1)
    assert next(results) == 0 and next(items) == 1
