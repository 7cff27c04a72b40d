"""The overhead of engines: the time of empty partitions, and of a million rows of Parquet from start to finish.

Run it: OPENBLAS_NUM_THREADS=1 python benchmarks/engines.py [local processes dask spark job spark-ml dask-ml]
Each runs in its own process. dask-ml runs in the Python interpreter named by the environment variable DASK_ML.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROWS, D, FILES = 1_000_000, 20, 16
THETA = np.linspace(-1, 1, D)
NAMES = [f"x{i}" for i in range(D)]


def write(folder: Path) -> None:
    """Write the files, and the ridge solution for alpha = 1 by QR of all rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, D))
    y = X @ THETA + rng.normal(size=ROWS)
    folder.mkdir()
    for i, rows in enumerate(np.split(np.arange(ROWS), FILES)):
        table = pa.table([*X[rows].T.copy(), y[rows]], names=[*NAMES, "y"])
        pq.write_table(table, folder / f"{i:02}.parquet", compression="lz4")
    X, y = np.vstack([X - X.mean(axis=0), np.eye(D)]), np.append(y - y.mean(), np.zeros(D))
    np.save(folder.with_suffix(".npy"), np.linalg.lstsq(X, y)[0])


def say(name: str, folder: str, start: float, ready: float, coef: np.ndarray, empty: float | None = None) -> None:
    end = time.perf_counter()
    error = np.abs(np.ravel(coef) - np.load(Path(folder).with_suffix(".npy"))).max()
    task = "" if empty is None else f", {1e3 * empty:.1f} ms an empty partition"
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{name:10} {end - start:6.2f} s in all, {end - ready:6.2f} s once started{task}; error {error:.1e}; {load}")


def engine(kind: str, folder: str) -> None:
    """Fit `KalproxRegressor` on an engine of kalprox."""
    start = time.perf_counter()
    from kalprox import KalproxRegressor, engines
    from kalprox.engines import EngineSource, partitions_of
    from kalprox.information import Information
    from kalprox.sources.columns import Columns

    columns = Columns(target="y", numeric=tuple(NAMES))
    with engines.open(kind) as one:
        ready = time.perf_counter()
        source = EngineSource(one, partitions_of(folder, columns))
        model = KalproxRegressor(penalty="ridge", alpha=1.0).fit_source(source, D)
        done = time.perf_counter()
        row = np.ones((1, D)), np.ones(1)
        nothing = [p for _ in range(64) for p in partitions_of(row)]
        EngineSource(one, nothing).fold(Information.from_block)
        empty = (time.perf_counter() - done) / 64
        say(
            kind, folder, start + (time.perf_counter() - done), ready + (time.perf_counter() - done), model.coef_, empty
        )


def job(folder: str) -> None:
    """Run the job of `kalprox fit`."""
    start = time.perf_counter()
    from kalprox.jobs.fit import FitJob
    from kalprox.sources.columns import Columns
    from kalprox.sources.table import Table

    columns = Columns(target="y", numeric=tuple(NAMES))
    model = FitJob(Table(folder, columns), {"penalty": "ridge", "alpha": 1.0}).run().model
    say("job", folder, start, start, model.coef_)


def spark_ml(folder: str) -> None:
    start = time.perf_counter()
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.regression import LinearRegression

    from kalprox import engines

    with engines.open("spark") as one:
        ready = time.perf_counter()
        frame = VectorAssembler(inputCols=NAMES, outputCol="x").transform(one.session.read.parquet(folder))
        found = LinearRegression(featuresCol="x", labelCol="y", regParam=1.0 / ROWS, standardization=False).fit(frame)
        say("spark-ml", folder, start, ready, found.coefficients.toArray())


def dask_ml(folder: str) -> None:
    start = time.perf_counter()
    import dask.dataframe as dd
    from dask_ml.wrappers import Incremental
    from distributed import Client, LocalCluster
    from sklearn.linear_model import SGDRegressor

    with LocalCluster(threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        ready = time.perf_counter()
        table = dd.read_parquet(folder).to_dask_array(lengths=[ROWS // FILES] * FILES)
        model = Incremental(SGDRegressor(random_state=0), random_state=0).fit(table[:, :D], table[:, D])
        say("dask-ml", folder, start, ready, model.estimator_.coef_)


def main() -> None:
    asked = sys.argv[1:]
    if asked[:1] == ["--in"]:
        _, folder, kind = asked
        if kind in ("local", "processes", "dask", "spark"):
            engine(kind, folder)
        else:
            {"job": job, "spark-ml": spark_ml, "dask-ml": dask_ml}[kind](folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = f"{temporary}/rows"
        write(Path(folder))
        for kind in asked or ["job", "local", "processes", "dask", "dask-ml", "spark", "spark-ml"]:
            python = os.environ.get("DASK_ML", sys.executable) if kind == "dask-ml" else sys.executable
            subprocess.run([python, "-W", "ignore", __file__, "--in", folder, kind], check=False)


if __name__ == "__main__":
    main()
