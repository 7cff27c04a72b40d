"""Dask: the single-machine fit, from workers in processes of their own, also when some of them are killed."""

import os
import random
import signal
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from test_engines import (
    COLUMNS,
    KINDS,
    bits,
    check_equal,
    check_flights,
    cut,
    fitted,
    information,
    sample,
    table,
    with_bad_rows,
    write,
)

import kalprox as kp
from kalprox import engines
from kalprox.engines.local import LocalEngine
from kalprox.engines.partitions import partitions_of
from kalprox.engines.source import EngineRows
from kalprox.information import Information
from kalprox.information.linearized import linearize
from kalprox.models import Function
from kalprox.sources.files import Unreadable
from kalprox.sources.quarantine import Quarantine, TooManyBadRows
from kalprox.sources.table import Table

dask = pytest.importorskip("dask", reason="needs kalprox[dask]")
pytest.importorskip("dask.array", reason="needs kalprox[dask]")
pytest.importorskip("dask.dataframe", reason="needs kalprox[dask]")
distributed = pytest.importorskip("distributed", reason="needs kalprox[dask]")


@pytest.fixture(scope="module")
def cluster():
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with distributed.LocalCluster(**settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def engine(client):
    with engines.open(client) as engine:
        yield engine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "seed"), [(7, 11), pytest.param(40, 12, marks=pytest.mark.slow)])
def test_dask_gives_the_single_machine_fit(engine, kind, n, seed):
    check_equal(engine, kind, n, seed)


def test_dask_gives_the_bits_of_threads(engine):
    partitions = cut(sample(3), 13, 3)
    assert bits(information(EngineRows(engine, partitions))) == bits(information(EngineRows(LocalEngine(), partitions)))


def test_a_scheduler_by_its_address(cluster):
    with engines.open(cluster.scheduler_address) as engine:
        check_equal(engine, "ridge", 3, 0)


def test_workers_are_processes_of_their_own_that_compute_in_float64(engine):
    def seen(X, y, weights):
        import jax

        found = linearize(Function(lambda theta, x: theta @ x), np.ones(3), X, y, weights)
        return [(os.getpid(), found.information.T.dtype.name, jax.config.jax_enable_x64)]

    found = engine.sum(cut(sample(), 6, 0), seen)
    pids, dtypes, flags = (set(column) for column in zip(*found, strict=True))
    assert os.getpid() not in pids and dtypes == {"float64"} and flags == {False}


# sources


def test_dask_arrays(engine):
    X, y, w = sample(4)
    arrays = dask.array.from_array(X, chunks=(100, 2)), dask.array.from_array(y, chunks=77), dask.array.from_array(w)
    for source in (arrays, tuple(a.persist() for a in arrays)):
        for n, count in ((None, 6), (2, 2)):
            partitions = partitions_of(source, n=n)
            assert len(partitions) == count
            found = fitted("l1", EngineRows(engine, partitions))
            np.testing.assert_allclose(found, fitted("l1", None, (X, y, w)), rtol=1e-10, atol=1e-13)
    with_threads = fitted("l1", EngineRows(LocalEngine(), partitions_of(arrays)))
    np.testing.assert_allclose(with_threads, fitted("l1", None, (X, y, w)), rtol=1e-10, atol=1e-13)


def test_a_dask_dataframe_names_the_partition_of_a_bad_row(engine):
    frame = with_bad_rows(table(), [30]).to_pandas()
    source = dask.dataframe.from_pandas(frame, npartitions=4)
    with pytest.raises(TooManyBadRows, match="partition 1, row 6, column 'a'"):
        information(EngineRows(engine, partitions_of(source, COLUMNS)))
    rows = EngineRows(engine, partitions_of(source, COLUMNS), quarantine=Quarantine(max_bad=1))
    good = frame[np.isfinite(frame.a)]
    expected = kp.Information.from_rows(good[["a", "b", "c"]].to_numpy(), good.y.to_numpy(), good.w.to_numpy())
    np.testing.assert_allclose(information(rows).solve(), expected.solve(), rtol=1e-10)


def test_a_chunk_that_cannot_be_computed_is_named(engine):
    def load(block):
        if block[0, 0] >= 4:
            raise OSError("the disk is gone")
        return block

    X = dask.array.from_array(np.arange(8.0)[:, None], chunks=(4, 1)).map_blocks(load, meta=np.empty((0, 0)))
    source = X, dask.array.ones(8, chunks=4)
    for one in (engine, LocalEngine()):
        with pytest.raises(Unreadable, match="chunk 1: the disk is gone"):
            information(EngineRows(one, partitions_of(source)))


def test_an_unreadable_chunk_can_be_skipped(engine):
    def load(block):
        if block[0, 0] >= 4:
            raise OSError("the disk is gone")
        return block

    X = dask.array.from_array(np.arange(8.0)[:, None], chunks=(4, 1)).map_blocks(load, meta=np.empty((0, 0)))
    source = X, dask.array.ones(8, chunks=4)
    for one in (engine, LocalEngine()):
        rows = EngineRows(one, partitions_of(source, skip_unreadable=True), quarantine=Quarantine(max_bad=1))
        assert float(information(rows).rows) == 4
        assert [str(row) for row in rows.reports[1].bad] == ["chunk 1: unreadable ('the disk is gone')"]


def test_files_are_read_by_the_workers(engine, tmp_path):
    names = write(tmp_path, [table(50, seed) for seed in range(5)])
    rows = EngineRows(engine, partitions_of(names, COLUMNS))
    expected = Table(str(tmp_path), COLUMNS).sum(kp.Information.from_rows)
    np.testing.assert_allclose(information(rows).solve(), expected.solve(), rtol=1e-10)
    (tmp_path / "003.parquet").write_bytes(b"PAR1 no longer")
    with pytest.raises(Unreadable, match=r"003\.parquet"):
        information(EngineRows(engine, partitions_of(names, COLUMNS)))


def test_flights_in_48_files(engine, tmp_path):
    check_flights(engine, tmp_path)


# faults


@contextmanager
def killing(client, cluster, when):
    """A `watch` that kills a worker (SIGKILL) when it has been told of so many partitions, and how many it killed."""
    told, killed = [], []

    def watch(number, index, report):
        told.append(index)
        if len(told) in when:
            pids = sorted(nanny.pid for nanny in cluster.workers.values() if nanny.pid)
            pid = random.Random(len(told)).choice(pids)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    client.wait_for_workers(2)
    yield watch, killed


def slowly(seconds):
    def part(X, y, weights):
        time.sleep(seconds)
        return Information.from_rows(X, y, weights)

    return part


def kill_and_compare(kills):
    """`kills` workers killed in as many moments: the bits are those of a run in peace."""
    partitions = cut(sample(5, 4000), 30, 5)
    expected = bits(information(EngineRows(LocalEngine(), partitions)))
    with engines.open("dask", workers=2) as engine:
        client, left = engine.client, kills
        while left > 0:
            when = (4, 17)[: min(2, left)]
            with killing(client, client.cluster, when) as (watch, killed):
                rows = EngineRows(engine, partitions, watch=watch)
                assert bits(rows.sum(slowly(0.03))) == expected
            assert len(killed) == len(when) and rows.read == 4000
            left -= len(when)


def test_two_killed_workers_change_no_bit():
    kill_and_compare(2)


@pytest.mark.slow
def test_ten_killed_workers_change_no_bit():
    kill_and_compare(10)


def test_a_killed_worker_in_a_refinement(client, cluster):
    arrays = sample(6)
    partitions = cut(arrays, 6, 6)
    with engines.open(client) as engine, killing(client, cluster, (15,)) as (watch, killed):
        found = fitted("sigmoid", EngineRows(engine, partitions, watch=watch))
    assert len(killed) == 1
    assert found.tobytes() == fitted("sigmoid", EngineRows(LocalEngine(), partitions)).tobytes()


def test_a_partition_that_kills_every_worker_is_given_up_by_name():
    def dies(X, y, weights):
        os.kill(os.getpid(), signal.SIGKILL)

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
        engines.open(client) as engine,
        pytest.raises(RuntimeError, match=r"rows 1 to 600: given up after more workers died"),
    ):
        EngineRows(engine, partitions_of(sample(), n=1)).sum(partial(dies))
