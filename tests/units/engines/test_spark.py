"""Spark: the single-machine fit on local[2], from rows of a DataFrame and from files, also when a task fails."""

import os
import shutil
import sys
import time
import uuid
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from engine_data import (
    CLASS_SETTINGS,
    COLUMNS,
    bits,
    check_classifier,
    check_equal,
    check_flights,
    class_sample,
    cut,
    fitted,
    information,
    polynomial,
    sample,
    table,
    with_bad_rows,
    write,
)

from kalprox import KalproxClassifier, engines
from kalprox.engines import EngineSource, LocalEngine, partitions_of
from kalprox.information import Information
from kalprox.information.linearized import linearize
from kalprox.likelihoods import Gaussian
from kalprox.sources import ArraySource
from kalprox.sources.files import SourceError, Unreadable
from kalprox.sources.quarantine import Quarantine, TooManyBadRows
from kalprox.sources.table import Table

pyspark = pytest.importorskip("pyspark", reason="needs kalprox[spark]")

pytestmark = [
    pytest.mark.slow,  # a session takes half a minute to start; CI runs these beside `make test`
    pytest.mark.integration,
    pytest.mark.skipif(not (os.environ.get("JAVA_HOME") or shutil.which("java")), reason="Spark needs Java"),
    # PySpark 4 says so of pandas 3 whenever it is asked for a DataFrame; nothing here goes through pandas.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    # Java is started with a fork that JAX, if another test has imported it, warns of.
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"),
    # Spark's driver leaves its sockets to Java to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def session():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = pyspark.sql.SparkSession.builder.master("local[2,4]")  # four attempts a task
    quiet = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    plain = quiet.config("spark.sql.adaptive.enabled", "false").config("spark.sql.codegen.wholeStage", "false")
    session = plain.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def engine(session):
    with engines.open(session) as engine:
        yield engine


def frame_of(session, one, folder, files=3):
    """A DataFrame over `files` Parquet files, one partition each."""
    n = len(one)
    write(folder, [one.slice(n * i // files, n * (i + 1) // files - n * i // files) for i in range(files)])
    return session.read.option("recursiveFileLookup", "true").parquet(str(folder))


@pytest.mark.parametrize("kind", ["ridge", "l1", "sigmoid", "function"])
def test_spark_gives_the_single_machine_fit(engine, kind):
    check_equal(engine, kind, 2, 20)


def test_spark_gives_the_bits_of_threads_also_over_a_shuffle(engine):
    partitions = cut(sample(3), 31, 3)
    assert len(partitions) > 32
    source = EngineSource(engine, partitions)
    found, expected = (one.fold(Information.from_block) for one in (source, EngineSource(LocalEngine(), partitions)))
    assert bits(found.total) == bits(expected.total) and found.counts == expected.counts
    assert sorted(source.summaries) == list(range(len(partitions)))


def test_two_passes_of_a_function(engine):
    """The parts of a refinement: a model that JAX compiles, at one theta after another, in float64."""
    arrays, model = sample(4), polynomial()
    rows, alone = EngineSource(engine, cut(arrays, 1, 4)), ArraySource(*arrays)
    for theta in (np.ones(3), np.array([0.2, 0.1, 0.5])):
        part = partial(linearize, model, Gaussian(), theta)
        found, expected = rows.fold(part).total, alone.fold(part).total
        np.testing.assert_allclose([found.rss, found.size], [expected.rss, expected.size], rtol=1e-10)
        np.testing.assert_allclose(found.information.solve(), expected.information.solve(), rtol=1e-10)


def test_flights_in_48_files(engine, tmp_path):
    check_flights(engine, tmp_path)


def slowly():
    """A part that takes 0.3 s per block; a nested function, because executors cannot import this module."""

    def part(block):
        time.sleep(0.3)
        return Information.from_block(block)

    return part


def test_partitions_are_reported_as_they_finish(engine):
    """Eight partitions of 0.3 s each, two at a time: the first one is reported long before the last one."""
    times = []
    source = EngineSource(engine, cut(sample(3), 8, 3)[:8], watch=lambda *_: times.append(time.monotonic()))
    source.fold(slowly())
    assert len(times) == len(source.partitions) and times[-1] - times[0] > 0.5
    assert sorted(source.summaries) == list(range(len(source.partitions)))


def test_what_a_watcher_raises_stops_the_job(session, engine, tmp_path):
    class Enough(Exception):
        pass

    def watch(number, index, summary):
        raise Enough

    folder = str(tmp_path)

    def part(block):
        time.sleep(0.3)
        with open(os.path.join(folder, uuid.uuid4().hex), "w"):
            return 1

    with pytest.raises(Enough):
        EngineSource(engine, partitions_of(sample(3, 4000), n=100), watch=watch).fold(part)
    while session.sparkContext.statusTracker().getActiveJobsIds():
        time.sleep(0.1)
    assert len(os.listdir(folder)) < 90  # the other partitions were cancelled


def test_a_data_frame(session, engine, tmp_path):
    one = table(300)
    frame = frame_of(session, one, tmp_path)
    rows = EngineSource(engine, partitions_of(frame, COLUMNS))
    arrays = np.column_stack([one.column(name).to_numpy() for name in "abc"]), *(one.column(n).to_numpy() for n in "yw")
    np.testing.assert_allclose(fitted("l1", rows), fitted("l1", arrays), rtol=1e-10, atol=1e-13)
    assert sum(summary.read for summary in rows.summaries.values()) == 300
    with pytest.raises(SourceError, match="engine='spark'"):
        information(EngineSource(LocalEngine(), partitions_of(frame, COLUMNS)))


@pytest.mark.parametrize(("classes", "name"), [(2, "weighted and robust"), (3, "balanced")])
def test_classes_of_a_data_frame_equal_the_local_fit(session, tmp_path, classes, name):
    X, y, w = class_sample(classes)
    columns = {**dict(zip("abc", X.T, strict=True)), "y": y.tolist(), "w": w}
    frame = frame_of(session, pa.table(columns), tmp_path)
    settings = CLASS_SETTINGS[name]
    found = KalproxClassifier(**settings).fit(frame, "y", sample_weight="w")
    check_classifier(found, KalproxClassifier(**settings).fit(X, y, sample_weight=w))
    assert found.feature_names_in_.tolist() == [*"abc"]


def test_a_bad_row_of_a_data_frame_has_its_partition(session, engine, tmp_path):
    frame = frame_of(session, with_bad_rows(table(), [7]), tmp_path, files=1)
    with pytest.raises(TooManyBadRows, match="partition 0, row 8, column 'a': not finite"):
        information(EngineSource(engine, partitions_of(frame, COLUMNS)))


def test_files_are_read_by_the_executors(engine, tmp_path):
    names = write(tmp_path, [with_bad_rows(table(50, seed), [seed]) for seed in range(3)])
    rows = EngineSource(engine, partitions_of(names, COLUMNS), quarantine=Quarantine(max_bad=3))
    expected = Table(str(tmp_path), COLUMNS).fold(Information.from_block).total
    np.testing.assert_allclose(information(rows).solve(), expected.solve(), rtol=1e-10)
    assert [row.file for i in range(3) for row in rows.summaries[i].bad] == names
    Path(names[1]).write_bytes(b"PAR1 no longer")
    with pytest.raises(Unreadable, match=r"001\.parquet"):
        information(EngineSource(engine, partitions_of(names, COLUMNS), quarantine=Quarantine(max_bad=3)))


@pytest.mark.parametrize("fault", ["dies", "raises"])
def test_a_task_that_fails_at_first_changes_no_bit(engine, tmp_path, fault):
    partitions = cut(sample(3), 3, 3)
    marker = str(tmp_path / "failed")

    def part(block):
        if len(block) > 100 and not os.path.exists(marker):
            with open(marker, "w"):
                pass
            if fault == "dies":
                os._exit(1)
            raise RuntimeError("once")
        return Information.from_block(block)

    found = EngineSource(engine, partitions).fold(part).total
    assert os.path.exists(marker)
    assert bits(found) == bits(information(EngineSource(LocalEngine(), partitions)))


def test_the_active_session_is_taken_and_left_running(session):
    with engines.open("spark") as engine:
        assert engine.session is session
    assert session.range(3).count() == 3
