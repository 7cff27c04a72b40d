"""Threads and processes give the fit of one machine, whatever the partitions, also when a process is killed."""

from functools import partial

import numpy as np
import pytest
from engine_data import KINDS, bits, check_equal, cut, information, sample
from kills import killed, killed_once

from kalprox import engines
from kalprox.engines import EngineFailed, EngineSource, LocalEngine, partitions_of
from kalprox.engines.base import one_blas_thread
from kalprox.information import Information


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "seed"), [(1, 0), (5, 1), (64, 2)])
def test_threads_give_the_single_machine_fit(kind, n, seed):
    check_equal(LocalEngine(3), kind, n, seed)


def test_any_number_of_threads_gives_the_same_bits():
    partitions = cut(sample(), 20, 0)
    found = {bits(information(EngineSource(LocalEngine(n), partitions))) for n in (1, 2, 5)}
    assert len(found) == 1


def test_partitions_longer_than_a_block_and_y_with_columns():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20_000, 2)), rng.normal(size=(20_000, 2))
    found = information(EngineSource(LocalEngine(), partitions_of((X, Y), n=2)))
    np.testing.assert_allclose(found.solve(), np.linalg.lstsq(X, Y)[0], rtol=1e-10)


def test_an_error_of_the_model_names_the_partition():
    def fails(block):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        EngineSource(LocalEngine(), cut(sample(), 3, 0)).fold(fails)
    assert caught.value.__notes__[0].startswith("in rows ")


def test_one_blas_thread_for_as_long_as_any_task_runs():
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads():
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    with threadpoolctl.threadpool_limits(2):
        before = threads()
        with one_blas_thread():
            with one_blas_thread():
                assert set(threads()) <= {1}
            assert set(threads()) <= {1}
        assert threads() == before


# processes


@pytest.fixture(scope="module")
def processes():
    with engines.open("processes", workers=2) as engine:
        yield engine


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["l1", pytest.param("function", marks=pytest.mark.slow)])
def test_processes_give_the_single_machine_fit(processes, kind):
    check_equal(processes, kind, 5, 3)


@pytest.mark.slow
@pytest.mark.integration
def test_a_killed_process_changes_no_bit(processes, tmp_path):
    partitions = cut(sample(5), 9, 5)
    expected = EngineSource(LocalEngine(), partitions).fold(Information.from_block)
    found = EngineSource(processes, partitions).fold(partial(killed_once, str(tmp_path / "killed")))
    assert (tmp_path / "killed").exists()
    assert bits(found.total) == bits(expected.total) and found.counts == expected.counts


@pytest.mark.slow
@pytest.mark.integration
def test_processes_that_are_always_killed_are_given_up():
    with pytest.raises(EngineFailed, match=r"died 4 times, with 3 of 3 partitions left"):
        EngineSource(LocalEngine(1, processes=True), partitions_of(sample(5), n=3)).fold(killed)
