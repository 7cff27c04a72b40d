"""Dask: the single-machine fit, from workers in processes of their own, also when some of them are killed."""

import asyncio
import gc
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pandas as pd
import psutil
import pytest
from engine_data import (
    CLASS_SETTINGS,
    COLUMNS,
    KINDS,
    bits,
    check_classifier,
    check_equal,
    check_flights,
    class_sample,
    cut,
    fitted,
    information,
    sample,
    table,
    with_bad_rows,
    write,
)

from kalprox import KalproxClassifier, KalproxRegressor, engines
from kalprox.engines import EngineFailed, EngineSource, LocalEngine, partitions_of
from kalprox.information import Information
from kalprox.information.linearized import linearize
from kalprox.likelihoods import Gaussian
from kalprox.models import Function
from kalprox.sources.files import SourceError, Unreadable
from kalprox.sources.quarantine import Quarantine, TooManyBadRows
from kalprox.sources.table import Table

dask = pytest.importorskip("dask", reason="needs kalprox[dask]")
pytest.importorskip("dask.array", reason="needs kalprox[dask]")
pytest.importorskip("dask.dataframe", reason="needs kalprox[dask]")
distributed = pytest.importorskip("distributed", reason="needs kalprox[dask]")

pytestmark = pytest.mark.integration


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


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ("ridge", "l1") else [pytest.mark.slow]) for kind in KINDS]
)
@pytest.mark.parametrize(("n", "seed"), [(7, 11), pytest.param(40, 12, marks=pytest.mark.slow)])
def test_dask_gives_the_single_machine_fit(engine, kind, n, seed):
    check_equal(engine, kind, n, seed)


def test_dask_gives_the_bits_of_threads(engine):
    partitions = cut(sample(3), 13, 3)
    assert bits(information(EngineSource(engine, partitions))) == bits(
        information(EngineSource(LocalEngine(), partitions))
    )


def test_a_scheduler_by_its_address(cluster):
    with engines.open(cluster.scheduler_address) as engine:
        check_equal(engine, "ridge", 3, 0)


def test_workers_are_processes_of_their_own_that_compute_in_float64(engine):
    def seen(block):
        import jax

        found = linearize(Function(lambda theta, x: theta @ x), Gaussian(), np.ones(3), block)
        return [(os.getpid(), found.information.T.dtype.name, jax.config.jax_enable_x64)]

    found = engine.fold(cut(sample(), 6, 0), seen).total
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
            found = fitted("l1", EngineSource(engine, partitions))
            np.testing.assert_allclose(found, fitted("l1", (X, y, w)), rtol=1e-10, atol=1e-13)
    with_threads = fitted("l1", EngineSource(LocalEngine(), partitions_of(arrays)))
    np.testing.assert_allclose(with_threads, fitted("l1", (X, y, w)), rtol=1e-10, atol=1e-13)
    assert engines.engine_of(arrays[0]) is engine.client
    np.testing.assert_allclose(fitted("l1", arrays), fitted("l1", (X, y, w)), rtol=1e-10, atol=1e-13)


def test_a_dask_dataframe_names_the_partition_of_a_bad_row(engine):
    frame = with_bad_rows(table(), [30]).to_pandas()
    source = dask.dataframe.from_pandas(frame, npartitions=4)
    with pytest.raises(TooManyBadRows, match="partition 1, row 6, column 'a'"):
        information(EngineSource(engine, partitions_of(source, COLUMNS)))
    rows = EngineSource(engine, partitions_of(source, COLUMNS), quarantine=Quarantine(max_bad=1))
    good = frame[np.isfinite(frame.a)]
    expected = Information.from_rows(good[["a", "b", "c"]].to_numpy(), good.y.to_numpy(), good.w.to_numpy())
    np.testing.assert_allclose(information(rows).solve(), expected.solve(), rtol=1e-10)


def test_columns_of_one_frame_that_dask_reads_in_partitions_of_their_own(tmp_path):
    """Dask reads one narrow column in fewer and larger partitions than all the others."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(600, 8)), columns=[*"abcdefgh"]).assign(group=np.repeat(np.arange(60), 10))
    for k in range(6):
        rows[100 * k : 100 * k + 100].to_parquet(tmp_path / f"{k}.parquet")
    frame, names = dask.dataframe.read_parquet(tmp_path), [*"abcdefg"]
    X, y, groups = frame[names], frame["h"], frame["group"]
    assert X.to_dask_array().numblocks[0] != y.to_dask_array().numblocks[0]
    settings = {"penalty": None, "coef_cov": "clustered"}
    found = KalproxRegressor(**settings, engine="local").fit(X, y, clusters=groups)
    expected = KalproxRegressor(**settings).fit(rows[names], rows["h"], clusters=rows["group"])
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-10)
    assert found.n_rows_seen_ == 600
    two = dask.dataframe.from_pandas(rows["h"], npartitions=2)
    with pytest.raises(SourceError, match="Take them from one frame"):
        KalproxRegressor(engine="local").fit(X, two)


SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in ((2, "plain"), (2, "balanced"), (2, "l1"), (3, "l1"))]


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "name"), [(2, "weighted and robust"), (3, "balanced"), *SLOW])
def test_classes_of_dask_collections_equal_the_local_fit(client, classes, name):
    X, y, w = class_sample(classes)
    settings = CLASS_SETTINGS[name]
    expected = KalproxClassifier(**settings).fit(X, y, sample_weight=w)
    arrays = (dask.array.from_array(a, chunks=(250,) + (2,) * (a.ndim - 1)) for a in (X, y, w))
    check_classifier(KalproxClassifier(**settings).fit(*arrays), expected)
    frame = dask.dataframe.from_pandas(pd.DataFrame(X, columns=[*"abc"]).assign(y=y, w=w), npartitions=4)
    found = KalproxClassifier(**settings).fit(frame[[*"abc"]], frame["y"], sample_weight=frame["w"])
    check_classifier(found, expected)
    assert found.feature_names_in_.tolist() == [*"abc"]
    if name == "balanced":
        check_classifier(KalproxClassifier(**settings, engine="local").fit(X, y, sample_weight=w), expected)


@pytest.mark.slow
def test_mistakes_in_the_classes_of_a_dask_collection(client):
    X, y, _ = class_sample(2, 200)
    chunks = dask.array.from_array(X, chunks=(60, 3))
    with pytest.raises(ValueError, match="one class only"):
        KalproxClassifier().fit(chunks, dask.array.from_array(np.full(200, "yes", object), chunks=60))
    with pytest.raises(ValueError, match="continuous"):
        KalproxClassifier().fit(chunks, dask.array.from_array(X[:, 0], chunks=60))
    with pytest.raises(ValueError, match="not among the classes, 'maybe'"):
        KalproxClassifier(class_weight={"maybe": 2.0}).fit(chunks, dask.array.from_array(y, chunks=60))
    holes = y.copy()
    holes[[3, 130]] = None, np.nan
    with pytest.raises(TooManyBadRows, match="chunk 0, row 4, column 'y': missing"):
        KalproxClassifier().fit(chunks, dask.array.from_array(holes, chunks=60))
    model = KalproxClassifier(missing="drop").fit(chunks, dask.array.from_array(holes, chunks=60))
    good = np.delete(np.arange(200), [3, 130])
    check_classifier(model, KalproxClassifier().fit(X[good], y[good]))
    assert model.n_rows_rejected_ == 2


def test_a_chunk_that_cannot_be_computed_is_named(engine):
    def load(block):
        if block[0, 0] >= 4:
            raise OSError("the disk is gone")
        return block

    X = dask.array.from_array(np.arange(8.0)[:, None], chunks=(4, 1)).map_blocks(load, meta=np.empty((0, 0)))
    source = X, dask.array.ones(8, chunks=4)
    for one in (engine, LocalEngine()):
        with pytest.raises(Unreadable, match="chunk 1: the disk is gone"):
            information(EngineSource(one, partitions_of(source)))


def test_an_unreadable_chunk_can_be_skipped(engine):
    def load(block):
        if block[0, 0] >= 4:
            raise OSError("the disk is gone")
        return block

    X = dask.array.from_array(np.arange(8.0)[:, None], chunks=(4, 1)).map_blocks(load, meta=np.empty((0, 0)))
    source = X, dask.array.ones(8, chunks=4)
    for one in (engine, LocalEngine()):
        rows = EngineSource(one, partitions_of(source, skip_unreadable=True), quarantine=Quarantine(max_bad=1))
        assert float(information(rows).rows) == 4
        assert [str(row) for row in rows.summaries[1].bad] == ["chunk 1: unreadable ('the disk is gone')"]


def test_files_are_read_by_the_workers(engine, tmp_path):
    names = write(tmp_path, [table(50, seed) for seed in range(5)])
    rows = EngineSource(engine, partitions_of(names, COLUMNS))
    expected = Table(str(tmp_path), COLUMNS).fold(Information.from_block).total
    np.testing.assert_allclose(information(rows).solve(), expected.solve(), rtol=1e-10)
    (tmp_path / "003.parquet").write_bytes(b"PAR1 no longer")
    with pytest.raises(Unreadable, match=r"003\.parquet"):
        information(EngineSource(engine, partitions_of(names, COLUMNS)))


@pytest.mark.slow
def test_flights_in_48_files(engine, tmp_path):
    check_flights(engine, tmp_path)


# faults


@contextmanager
def killing(client, cluster, when):
    """A `watch` that kills a worker when one of the numbers `when` of partitions is done, and the killed processes."""
    done, killed = [], []

    def watch(number, index, summary):
        done.append(index)
        if len(done) in when:
            nannies = (nanny for nanny in cluster.workers.values() if nanny.pid and nanny.status.name == "running")
            pids = sorted(nanny.pid for nanny in nannies)  # a nanny whose worker dies as it starts gives up
            pid = random.Random(len(done)).choice(pids)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    client.wait_for_workers(2)
    yield watch, killed


def slowly(seconds):
    def part(block):
        time.sleep(seconds)
        return Information.from_block(block)

    return part


def fails(block):
    raise ValueError("no")


def kill_and_compare(kills):
    """The bits of the total are the same when `kills` workers are killed; an error of a part is raised, not logged."""
    partitions = cut(sample(5, 4000), 30, 5)
    expected = bits(information(EngineSource(LocalEngine(), partitions)))
    with engines.open("dask", workers=2, timeout=600) as engine:  # new workers start slowly on a busy machine
        client, left = engine.client, kills
        while left > 0:
            when = (4, 17)[: min(2, left)]
            with killing(client, client.cluster, when) as (watch, killed):
                found = EngineSource(engine, partitions, watch=watch).fold(slowly(0.03))
            assert bits(found.total) == expected and found.counts.read == 4000 and len(killed) == len(when)
            left -= len(when)
        with pytest.raises(ValueError, match="no"):
            engine.fold(partitions[2:4], fails)


@pytest.mark.slow
def test_two_killed_workers_change_no_bit(capfd):
    kill_and_compare(2)
    assert "Compute Failed" not in capfd.readouterr().err  # the workers do not log the error that is raised here


@pytest.mark.slow
def test_ten_killed_workers_change_no_bit():
    kill_and_compare(10)


@pytest.mark.slow
def test_a_killed_worker_in_a_refinement(client, cluster):
    arrays = sample(6)
    partitions = cut(arrays, 6, 6)
    with engines.open(client) as engine, killing(client, cluster, (15,)) as (watch, killed):
        found = fitted("sigmoid", EngineSource(engine, partitions, watch=watch))
    assert len(killed) == 1
    assert found.tobytes() == fitted("sigmoid", EngineSource(LocalEngine(), partitions)).tobytes()


def test_a_lost_scheduler_is_named():
    with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
        address = cluster.scheduler_address
        with (
            pytest.raises(EngineFailed, match=f"scheduler {address} is lost.*last complete pass"),
            engines.open(address) as engine,
        ):
            EngineSource(engine, cut(sample(), 9, 0), watch=lambda *_: cluster.close()).fold(slowly(0.03))


def test_a_scheduler_that_is_not_there_is_named(capfd):
    with (
        pytest.raises(
            EngineFailed, match=r"Cannot connect to a Dask scheduler at tcp://127\.0\.0\.1:1.*at most 0\.2 s"
        ),
        engines.open("tcp://127.0.0.1:1", timeout=0.2),
    ):
        pass
    assert capfd.readouterr().err == ""


def test_a_server_that_is_no_scheduler_is_refused(capfd):
    def answer(connection):
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: answer(server.accept()[0]), daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(EngineFailed, match="Cannot connect"), engines.open(address, timeout=1):
            pass
    assert time.monotonic() - began < 20
    assert "Traceback" not in capfd.readouterr().err


def test_a_timeout_is_positive():
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds; got 0"):
        engines.open("dask", timeout=0).__enter__()


def test_a_scheduler_without_workers_is_waited_for_as_long_as_stated(capfd):
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        engines.open(cluster.scheduler_address, timeout=1) as engine,
    ):
        began = time.monotonic()
        with pytest.raises(EngineFailed, match=r"has had no workers for 1 s\. Start workers.*larger timeout"):
            EngineSource(engine, cut(sample(), 3, 0)).fold(Information.from_block)
        assert 1 <= time.monotonic() - began < 20
        cluster.scale(1)  # workers that come in time are enough
        assert EngineSource(engine, cut(sample(), 3, 0)).fold(Information.from_block).counts.read == 600
    assert "Traceback" not in capfd.readouterr().err


def test_workers_that_die_and_do_not_come_back_end_the_pass(capfd):
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        engines.open(cluster.scheduler_address, timeout=1) as engine,
        pytest.raises(EngineFailed, match="has had no workers for 1 s"),
    ):
        EngineSource(engine, cut(sample(), 9, 0), watch=lambda *_: cluster.scale(0)).fold(slowly(0.1))
    assert "Traceback" not in capfd.readouterr().err


@contextmanager
def process(program, *arguments, has_kalprox, log):
    """A scheduler or a worker as a process of its own, with or without kalprox; its output goes to a file."""
    hide = "" if has_kalprox else "sys.modules['kalprox'] = None; "
    code = f"import sys; {hide}from distributed.cli.dask_{program} import main; main()"
    with open(log, "w") as out:
        started = subprocess.Popen([sys.executable, "-c", code, *arguments, "--no-dashboard"], stdout=out, stderr=out)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["scheduler", "worker"])
def test_a_machine_without_kalprox_is_named(missing, tmp_path, capfd):
    file = tmp_path / "scheduler.json"
    options = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
    with process("scheduler", *options, has_kalprox=missing == "worker", log=tmp_path / "scheduler.log"):
        while not file.exists() or not file.read_text():
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        worker = ("worker", address, "--no-nanny")
        with (
            process(*worker, has_kalprox=missing == "scheduler", log=tmp_path / "worker.log"),
            engines.open(address) as engine,
        ):
            engine.client.wait_for_workers(1)
            with pytest.raises(EngineFailed, match=rf"Dask {missing} .*must have kalprox .*it has none"):
                EngineSource(engine, cut(sample(), 3, 0)).fold(Information.from_block)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_worker_without_kalprox_that_comes_late_ends_the_pass(tmp_path):
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        engines.open(cluster.scheduler_address, timeout=3) as engine,
    ):
        engine._check_versions()
        worker = ("worker", cluster.scheduler_address, "--no-nanny")
        with (
            process(*worker, has_kalprox=False, log=tmp_path / "worker.log"),
            pytest.raises(EngineFailed, match=r"no workers for 3 s.*Workers that cannot import kalprox leave"),
        ):
            EngineSource(engine, cut(sample(), 3, 0)).fold(Information.from_block)


@pytest.mark.slow
def test_another_version_of_kalprox_is_refused(monkeypatch):
    with (
        distributed.LocalCluster(n_workers=1, processes=True, dashboard_address="127.0.0.1:0") as cluster,
        engines.open(cluster.scheduler_address) as engine,
    ):
        monkeypatch.setattr("kalprox.__version__", "0.0.0")  # here, and for the scheduler, which runs in this process
        with pytest.raises(EngineFailed, match=r"Dask worker tcp://.* must have kalprox 0\.0\.0.*Install the same"):
            EngineSource(engine, cut(sample(), 3, 0)).fold(Information.from_block)


def listening():
    """The addresses on which this process and its children listen."""
    this = psutil.Process()
    processes = [this, *this.children(recursive=True)]
    return {one.laddr for process in processes for one in process.net_connections() if one.status == "LISTEN"}


@pytest.mark.slow
def test_a_cluster_of_our_own_listens_on_this_machine_only():
    before = listening()
    with engines.open("dask", workers=2) as engine:
        assert len(engine.client.scheduler_info()["workers"]) == 2
        ours = listening() - before
        assert len(ours) >= 4  # of the scheduler, its pages, the nannies and the workers
        assert {address.ip for address in ours} == {"127.0.0.1"}


def test_an_error_of_the_disk_in_a_part_is_not_a_lost_scheduler(engine):
    def fails(block):
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full") as caught:
        EngineSource(engine, cut(sample(), 3, 0)).fold(fails)
    assert caught.value.__notes__[0].startswith("in rows ")


class Collected(logging.Handler):
    def __init__(self):
        super().__init__(logging.ERROR)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.mark.slow
def test_only_the_clients_that_we_open_are_silent(cluster, client):
    async def log(message):
        for name in ("distributed.client", "distributed.core", "tornado.application", "asyncio"):
            logging.getLogger(name).error(message)

    async def leave_a_failed_task():
        async def fail():
            raise RuntimeError("nobody awaits this")

        asyncio.create_task(fail())  # noqa: RUF006

    handler, loggers = Collected(), [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio")]
    loggers += [logging.getLogger(name) for name in ("distributed.client", "tornado.application")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with engines.open(cluster.scheduler_address) as engine:
            engine.client.sync(log, "ours")
            client.sync(log, "the user's")
            engine.client.sync(leave_a_failed_task)
        gc.collect()
        client.sync(log, "the user's, later")
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert set(handler.messages) == {"the user's", "the user's, later"}


@pytest.mark.slow
def test_a_partition_that_kills_every_worker_is_given_up_by_name():
    def dies(block):
        os.kill(os.getpid(), signal.SIGKILL)

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
        engines.open(client) as engine,
        pytest.raises(EngineFailed, match=r"rows 1 to 600: gave up because more workers died"),
    ):
        EngineSource(engine, partitions_of(sample(), n=1)).fold(dies)
