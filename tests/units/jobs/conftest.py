"""A Dask cluster and a Spark session for the tests of jobs on engines."""

import importlib.util
import os
import shutil
import sys
import warnings

import pytest
from distributed import Client, LocalCluster


@pytest.fixture(scope="module")
def client():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def spark():
    if shutil.which("java") is None or importlib.util.find_spec("pyspark") is None:
        pytest.skip("Spark needs Java and pyspark")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    with warnings.catch_warnings():  # Java is started by a fork that JAX warns of, and an exec that makes it harmless
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    yield session
    session.stop()
