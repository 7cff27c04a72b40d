"""Collections of Dask and Spark as X: offsets and exposures of their rows, and lazy predictions."""

import os
import shutil
import sys

import numpy as np
import pandas as pd
import pytest

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.engines import partitions_of
from kalprox.sources.quarantine import Reason

N = 600


@pytest.fixture(scope="module")
def counts():
    """Counts, their exposures and offsets, and classes of two and of three kinds."""
    rng = np.random.default_rng(8)
    X, hours, offset = rng.normal(size=(N, 2)), rng.lognormal(size=N), 0.3 * rng.normal(size=N)
    y = rng.poisson(hours * np.exp(0.3 * X[:, 0] - 0.5 + offset)).astype(float)
    late = np.where(X[:, 0] + offset + rng.logistic(size=N) > 0, "late", "in time")
    kind = np.array(["bus", "car", "train"])[np.argmax(X @ rng.normal(size=(2, 3)) + rng.gumbel(size=(N, 3)), axis=1)]
    return pd.DataFrame(X, columns=["a", "b"]).assign(y=y, hours=hours, offset=offset, late=late, kind=kind)


def values(frame, *names):
    return [frame[name].to_numpy() for name in names]


def same(one, other, rtol=1e-10):
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(one.coef_std_, other.coef_std_, rtol=rtol)


def close(found, expected):
    """The last bits of products depend on how rows are cut into blocks."""
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def of_counts(**settings):
    return KalproxRegressor(likelihood="poisson", **settings)


@pytest.fixture(scope="module")
def expected(counts):
    """The models of rows in memory."""
    X, y, hours, offset = counts[["a", "b"]], *values(counts, "y", "hours", "offset")
    return {
        "counts": of_counts().fit(X, y, offset=offset, exposure=hours),
        "late": KalproxClassifier().fit(X, counts["late"], offset=offset),
        "kind": KalproxClassifier().fit(X, counts["kind"]),
    }


# ---- arrays on an engine --------------------------------------------------------------------------------


def test_offsets_and_exposures_on_an_engine(counts, expected):
    X, y, hours, offset = counts[["a", "b"]], *values(counts, "y", "hours", "offset")
    same(of_counts(engine="local").fit(X, y, offset=offset, exposure=hours), expected["counts"])
    same(KalproxClassifier(engine="local").fit(X, counts["late"], offset=offset), expected["late"])


def test_a_partition_counts_rows_of_no_exposure_as_bad():
    y, exposure, offset = np.ones(4), np.array([1.0, 0.0, np.inf, 2.0]), np.array([0.5, 0.0, 0.0, np.nan])
    (part,) = partitions_of((np.ones((4, 1)), y, None, None, offset, exposure))
    (block,) = part.blocks()
    assert [(row.row, row.column, row.reason) for row in block.bad] == [
        (2, "exposure", Reason.NO_EXPOSURE),
        (3, "exposure", Reason.NOT_FINITE),
        (4, "offset", Reason.NOT_FINITE),
    ]
    assert len(block) == 1 and block.offset.tolist() == [0.5]
    model = of_counts(engine="local", missing="drop").fit(np.ones((4, 1)), y, exposure=[1.0, 0.0, 2.0, 2.0])
    assert model.n_rows_rejected_ == 1


# ---- Dask -----------------------------------------------------------------------------------------------


def dask_frame(counts):
    dask_dataframe = pytest.importorskip("dask.dataframe", reason="needs kalprox[dask]")
    return dask_dataframe.from_pandas(counts, npartitions=4)


@pytest.mark.slow
def test_dask_frames(counts, expected):
    frame = dask_frame(counts)
    X, memory = frame[["a", "b"]], counts[["a", "b"]]
    model = of_counts().fit(X, frame["y"], offset=frame["offset"], exposure=frame["hours"])
    same(model, expected["counts"])
    given = {"offset": counts["offset"], "exposure": counts["hours"]}
    mean, std = model.predict(memory, return_std=True, **given)
    lazy = {"offset": frame["offset"], "exposure": frame["hours"]}
    one, both = model.predict(X, **lazy).compute(), model.predict(X, return_std=True, **lazy).compute()
    close(one, mean)
    close(both[["mean", "std"]], np.column_stack([mean, std]))
    assert one.index.equals(counts.index) and one.name == "mean"
    late = KalproxClassifier().fit(X, frame["late"], offset=frame["offset"])
    same(late, expected["late"])
    proba, spread = late.predict_proba(memory, return_std=True, offset=counts["offset"])
    found = late.predict_proba(X, return_std=True, offset=frame["offset"]).compute()
    assert list(found.columns) == ["p_in time", "p_late", "std_in time", "std_late"]
    close(found, np.hstack([proba, spread]))
    labels = late.predict(X, offset=frame["offset"]).compute()
    assert labels.tolist() == late.predict(memory, offset=counts["offset"]).tolist()


def test_dask_arrays(counts, expected):
    da = pytest.importorskip("dask.array", reason="needs kalprox[dask]")
    X, y, hours, offset = counts[["a", "b"]].to_numpy(), *values(counts, "y", "hours", "offset")
    chunks, given = da.from_array(X, chunks=(170, 1)), [da.from_array(a, chunks=90) for a in (offset, hours)]
    model = of_counts().fit(chunks, da.from_array(y, chunks=170), offset=given[0], exposure=given[1])
    same(model, expected["counts"])
    mean, std = model.predict(X, return_std=True, offset=offset, exposure=hours)
    found = model.predict(chunks, return_std=True, offset=given[0], exposure=given[1])
    close([one.compute() for one in found], [mean, std])
    kinds = KalproxClassifier().fit(chunks, da.from_array(counts["kind"].to_numpy(object), chunks=170))
    proba, spread = kinds.predict_proba(X, return_std=True)
    lazy = kinds.predict_proba(chunks, return_std=True)
    close([one.compute() for one in lazy], [proba, spread])
    assert kinds.predict_proba(chunks).shape == (N, 3)
    labels = kinds.predict(chunks)
    assert labels.dtype == kinds.classes_.dtype and labels.compute().tolist() == kinds.predict(X).tolist()
    twice = KalproxRegressor().fit(chunks, da.from_array(y, chunks=170))
    close(twice.predict(chunks, True, 0.0)[1].compute(), twice.predict(X, return_std=True, sigma=0.0)[1])


def test_what_a_collection_needs(counts, expected):
    frame = dask_frame(counts)
    X, late, numbers = frame[["a", "b"]], expected["late"], expected["counts"]
    with pytest.raises(ValueError, match="exposure of a Dask collection must be one, too; got ndarray"):
        numbers.predict(X, exposure=counts["hours"].to_numpy())
    with pytest.raises(ValueError, match="sigma of a Dask collection or a Spark frame must be one number"):
        numbers.predict(X, sigma=np.ones(N))
    with pytest.raises(TypeError, match="Use predict_proba, or compute it first"):
        late.decision_function(X)
    with pytest.raises(ValueError, match="offset must be given"):
        late.predict_proba(X).compute()


# ---- Spark ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session():
    pyspark = pytest.importorskip("pyspark", reason="needs kalprox[spark]")
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        pytest.skip("Spark needs Java")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = pyspark.sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_spark_frames(session, counts, expected):
    rows = session.createDataFrame(counts.to_dict("records")).repartition(2)
    given = {"offset": "offset", "exposure": "hours"}
    model = of_counts().fit(rows.select("a", "b", "y", "hours", "offset"), "y", **given)
    same(model, expected["counts"])
    found = pd.DataFrame([row.asDict() for row in model.predict(rows, return_std=True, **given).collect()])
    memory = {name: found[column] for name, column in given.items()}
    mean, std = model.predict(found[["a", "b"]], return_std=True, **memory)
    close(found[["mean", "std"]], np.column_stack([mean, std]))
    kinds = KalproxClassifier().fit(rows.select("a", "b", "kind"), "kind")
    same(kinds, expected["kind"], rtol=1e-9)
    found = pd.DataFrame([row.asDict() for row in kinds.predict_proba(rows, return_std=True).collect()])
    proba, spread = kinds.predict_proba(found[["a", "b"]], return_std=True)
    names = [f"{what}_{label}" for what in ("p", "std") for label in ("bus", "car", "train")]
    close(found[names], np.hstack([proba, spread]))
    found = pd.DataFrame([row.asDict() for row in kinds.predict(rows).collect()])
    assert found["class"].tolist() == kinds.predict(found[["a", "b"]]).tolist()
