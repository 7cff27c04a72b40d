"""KalproxRegressor and `kalprox fit` on an engine: the model of one machine, whatever the partitions."""

import json
import pickle
import shutil
import subprocess
import sys
from contextlib import contextmanager

import cloudpickle
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from command import finish, run, start, wait_for

import kalprox as kp
from kalprox import KalproxRegressor
from kalprox.cli import main
from kalprox.engines import partitions_of
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import TableModel
from kalprox.sources.columns import Columns
from kalprox.sources.files import SourceError
from kalprox.sources.table import Table

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

NAMES = list("abcd")


def data(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, X @ [1.0, -2.0, 0.0, 0.5] + 0.5 * rng.normal(size=n)


def same(model, expected):
    for name in ("coef_", "coef_std_", "intercept_", "noise_var_"):
        np.testing.assert_allclose(getattr(model, name), getattr(expected, name), rtol=1e-10, atol=1e-12)
    assert model.n_rows_seen_ == expected.n_rows_seen_


@pytest.mark.parametrize("settings", [{"alpha": 2.0}, {"penalty": "l1", "alpha": 50.0}, {"link": "tanh"}], ids=str)
def test_arrays_on_threads(settings):
    X, y = data()
    same(KalproxRegressor(engine="local", **settings).fit(X, y), KalproxRegressor(**settings).fit(X, y))


def test_what_needs_the_order_of_the_rows_is_refused():
    X, y = data()
    with pytest.raises(ValueError, match=r"alpha='auto' needs penalty='ridge'"):
        KalproxRegressor(penalty="l1", alpha="auto", engine="local").fit(X, y)
    with pytest.raises(ValueError, match=r"needs forget=1"):
        KalproxRegressor(forget=0.99, engine="local").fit(X, y)
    same(KalproxRegressor(alpha="auto", engine="local").fit(X, y), KalproxRegressor(alpha="auto").fit(X, y))


def test_names_of_an_earlier_fit_are_forgotten():
    X, y = data()
    model = KalproxRegressor().fit(pd.DataFrame(X, columns=NAMES), y)
    assert not hasattr(model.set_params(engine="local").fit(X, y), "feature_names_in_")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"alpha": 2.0}, {"penalty": "l1", "alpha": 50.0}, {"link": "tanh", "standardize": True}], ids=str
)
def test_dask_arrays(client, settings):
    X, y = data()
    w = np.random.default_rng(1).integers(0, 3, 3000).astype(float)
    lazy = (
        da.from_array(X, chunks=((700, 1, 1299, 1000), 4)),
        da.from_array(y, chunks=500),
        da.from_array(w, chunks=999),
    )
    model = KalproxRegressor(engine=client, **settings).fit(*lazy)
    same(model, KalproxRegressor(**settings).fit(X, y, w))
    mean, std = model.predict(lazy[0], return_std=True)
    assert isinstance(mean, da.Array) and isinstance(std, da.Array)
    for found, expected in zip((mean, std), model.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-12)


@pytest.mark.slow
def test_refine_on_an_engine(client, folder):
    X, y = data()
    model = kp.models.Function(lambda theta, x: theta[0] * kp.models.GLM("tanh").value(theta[1:], x))
    y, start = np.tanh(y), np.array([1.0, 0.1, -0.1, 0.1, 0.1])
    here = kp.refine(model, kp.regularizers.Ridge(0.1), (X, y), start)
    lazy = da.from_array(X, chunks=(700, 4)), da.from_array(y, chunks=900)
    columns = Columns("y", None, tuple(NAMES), features=tuple(NAMES))
    for there in (
        kp.refine(model, kp.regularizers.Ridge(0.1), lazy, start),
        kp.refine(model, kp.regularizers.Ridge(0.1), (X, y), start, engine="local"),
    ):
        np.testing.assert_allclose(there.mean, here.mean, rtol=1e-10)
        np.testing.assert_allclose(there.cov, here.cov, rtol=1e-9)
    files = partitions_of(sorted(str(f) for f in folder.glob("*[013].parquet")), columns)
    found = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), files, np.zeros(4), engine=client)
    table = pa.concat_tables([pq.read_table(partition.files[0]) for partition in files])
    rows = np.column_stack([table[name] for name in NAMES])
    np.testing.assert_allclose(found.mean, np.linalg.lstsq(rows, np.asarray(table["y"]))[0], rtol=1e-10)


def test_dask_dataframes_go_to_their_own_client_and_keep_their_names(client, tmp_path):
    X, y = data()
    frame = pd.DataFrame(X, columns=NAMES).assign(y=y)
    lazy = dd.from_pandas(frame, npartitions=5)
    model = KalproxRegressor().fit(lazy[NAMES], lazy["y"])
    same(model, KalproxRegressor().fit(frame[NAMES], y))
    assert list(model.feature_names_in_) == NAMES
    found = model.predict(lazy[NAMES], return_std=True).compute()
    np.testing.assert_allclose(found["std"], model.predict(frame[NAMES], return_std=True)[1], rtol=1e-12)
    np.testing.assert_allclose(model.predict(lazy[NAMES]).compute(), found["mean"], rtol=1e-12)
    model.set_params(engine=client).save(tmp_path / "m")
    assert KalproxRegressor.load(tmp_path / "m").engine is None


def test_bad_rows_in_a_chunk_are_named_or_skipped(client):
    X, y = data()
    X[1234, 2] = np.nan
    lazy = da.from_array(X, chunks=(1000, 4)), da.from_array(y, chunks=1000)
    with pytest.raises(SourceError, match=r"chunk 1, row 235, column 'X\[2\]': not finite"):
        KalproxRegressor(engine=client).fit(*lazy)
    model = KalproxRegressor(engine=client, missing="drop").fit(*lazy)
    same(model, KalproxRegressor(missing="drop").fit(X, y))
    assert model.n_rows_rejected_ == 1


@pytest.mark.slow
def test_a_spark_frame(spark):
    X, y = data(600)
    frame = spark.createDataFrame([(*map(float, row), float(t)) for row, t in zip(X, y, strict=True)], [*NAMES, "y"])
    frame = frame.repartitionByRange(3, "a")
    model = KalproxRegressor().fit(frame, "y")
    same(model, KalproxRegressor().fit(X, y))
    rows = model.predict(frame, return_std=True).collect()
    mean, std = model.predict(pd.DataFrame([row[:4] for row in rows], columns=NAMES), return_std=True)
    np.testing.assert_allclose([row["mean"] for row in rows], mean, rtol=1e-12)
    np.testing.assert_allclose([row["std"] for row in rows], std, rtol=1e-12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    X, y = data(4000)
    folder = tmp_path_factory.mktemp("parts")
    y = np.tanh(X @ [1.0, -2.0, 0.0, 0.5]) + 0.1 * np.random.default_rng(5).normal(size=4000)
    for i, rows in enumerate(np.array_split(np.arange(4000), 6)):
        columns = {name: X[rows, j] for j, name in enumerate(NAMES)} | {"y": y[rows]}
        if i == 2:
            columns["y"] = np.where(np.arange(len(rows)) == 7, np.nan, columns["y"])
        pq.write_table(pa.table(columns), folder / f"part-{i}.parquet")
    return folder


def test_a_function_that_uses_the_library_goes_to_a_worker():
    fn = lambda: kp.models.GLM("tanh").name  # noqa: E731
    assert pickle.loads(cloudpickle.dumps(fn))() == "tanh"


@pytest.mark.slow
def test_the_command_in_processes(folder, tmp_path):
    """Run as a user does: its processes are started from the main module, which is the command's own."""
    common = ["fit", folder, "-y", "y", "--features", "a,b,c,d", "--link", "tanh", "--max-bad", 5, "--partitions", 3]
    for engine in ("local", "processes"):
        run(*common, "--engine", engine, "--out", tmp_path / engine)
    assert (tmp_path / "processes").read_bytes() == (tmp_path / "local").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "dask", "spark"])
def test_the_command_on_an_engine(engine, folder, tmp_path, client, request):
    where = {"dask": ["--scheduler", client.scheduler.address], "spark": ["--engine", "spark"]}
    if engine == "spark":
        request.getfixturevalue("spark")
    for name, options in (("here", []), ("there", where.get(engine, ["--engine", "local", "--partitions", "3"]))):
        for link in ("identity", "tanh"):
            files = ["--quarantine", str(tmp_path / f"{name}.csv"), "--out", str(tmp_path / f"{name}-{link}")]
            command = ["fit", str(folder), "-y", "y", "--link", link, *files, *options]
            result = CliRunner().invoke(main, command, catch_exceptions=False)
            assert result.exit_code == 0, result.output
    for link in ("identity", "tanh"):
        here, there = (TableModel.load(tmp_path / f"{name}-{link}") for name in ("here", "there"))
        same(there.model, here.model)
        mine, theirs = here.record.quality, there.record.quality
        assert (
            (mine.read, mine.bad, mine.reasons) == (theirs.read, theirs.bad, theirs.reasons) == (4000, 1, mine.reasons)
        )
        np.testing.assert_array_equal(mine.low, theirs.low)
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()


@pytest.mark.slow
def test_a_lost_run_goes_on_after_its_last_whole_pass(folder, tmp_path):
    columns = Columns("y", None, tuple(NAMES), features=tuple(NAMES))

    class Lost(Exception):
        pass

    def job(watch=lambda progress: None):
        table = Table(str(folder), columns)
        return FitJob(
            table, {"link": "tanh"}, max_bad=5, checkpoint=tmp_path / "c", engine="local", partitions=6, watch=watch
        )

    straight = job().run(tmp_path / "straight")
    seen = []

    def lose(progress):
        seen.append(progress.number)
        if progress.number == 3 and progress.share > 0.5:
            raise Lost

    with pytest.raises(Lost):
        job(lose).run(tmp_path / "lost")
    assert seen and not (tmp_path / "lost").exists()
    again = []
    found = job(lambda progress: again.append(progress.number)).run(tmp_path / "lost")
    assert min(again) == 3  # the passes before were not made again
    assert (tmp_path / "lost").read_bytes() == (tmp_path / "straight").read_bytes()
    assert found.model.n_rows_seen_ == straight.model.n_rows_seen_ == 3999
    assert not (tmp_path / "c").exists()


@contextmanager
def dask_processes(folder):
    """A scheduler and two workers, each a process of its own: its address, and the scheduler's process."""
    folder.mkdir()
    file, log = folder / "scheduler.json", (folder / "log").open("w")
    command = [sys.executable, "-m", "distributed.cli"]
    shared = ["--scheduler-file", str(file), "--no-dashboard"]
    scheduler = subprocess.Popen([*command[:2], f"{command[2]}.dask_scheduler", *shared, "--port", "0"], stderr=log)
    processes = [scheduler]
    try:
        assert wait_for(file.exists, scheduler)
        worker = [*command[:2], f"{command[2]}.dask_worker", *shared, "--nthreads", "1", "--no-nanny"]
        processes += [subprocess.Popen(worker, stderr=log) for _ in range(2)]
        yield json.loads(file.read_text())["address"], scheduler
    finally:
        for process in processes:
            process.kill()
            process.wait()
        log.close()


@pytest.mark.slow
def test_a_lost_scheduler_costs_one_pass(folder, tmp_path):
    """Killed with SIGKILL after a whole pass: the command says so, and goes on on another cluster, bit for bit."""
    common = [
        "fit",
        folder,
        "-y",
        "y",
        "--features",
        "a,b,c,d",
        "--link",
        "tanh",
        "--max-bad",
        "5",
        "--partitions",
        "12",
    ]
    run(*common, "--engine", "local", "--out", tmp_path / "straight")
    job = [*common, "--checkpoint", tmp_path / "c", "--out", tmp_path / "lost", "--events"]
    with dask_processes(tmp_path / "first") as (address, scheduler):
        process = start(*job, tmp_path / "first.events", "--scheduler", address)
        assert wait_for((tmp_path / "c").exists, process)
        scheduler.kill()
        failed = finish(process, 7)
    assert "is lost" in failed.stderr and "last complete pass" in failed.stderr
    assert (tmp_path / "c").exists() and not (tmp_path / "lost").exists()
    with dask_processes(tmp_path / "second") as (address, _):
        run(*job, tmp_path / "second.events", "--scheduler", address)
    assert (tmp_path / "lost").read_bytes() == (tmp_path / "straight").read_bytes()
    events = [json.loads(line) for line in (tmp_path / "second.events").read_text().splitlines()]
    assert next(event for event in events if event["event"] == "progress")["number"] >= 1  # not the first pass again
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_an_unreadable_partition_is_named_or_skipped(folder, tmp_path, client):
    shutil.copytree(folder, tmp_path / "parts")
    (tmp_path / "parts" / "part-4.parquet").write_bytes(b"PAR1 and then nothing")
    command = ["fit", str(tmp_path / "parts"), "-y", "y", "--features", "a,b,c,d", "--max-bad", "5"]
    command += ["--out", str(tmp_path / "m"), "--scheduler", client.scheduler.address]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 3 and "part-4.parquet" in result.output
    result = CliRunner().invoke(main, [*command, "--skip-unreadable"])
    assert result.exit_code == 0, result.output
    assert TableModel.load(tmp_path / "m").record.quality.bad == 2
