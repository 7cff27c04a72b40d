"""Which engine: by name, by address, or a client or session that is there already."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

from kalprox.engines.base import Engine, EngineFailed
from kalprox.engines.local import LocalEngine

__all__ = ["home_of", "open"]

_CLUSTER = {"n_workers": None, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
_FAILURES = 10  # workers that may die on one partition of a cluster of ours
_SCHEMES = ("tcp://", "tls://", "ucx://", "ws://", "wss://", "inproc://")


@contextmanager
def open(engine: Any = None, *, workers: int | None = None) -> Iterator[Engine]:
    """An engine, for as long as the context lasts; what was started for it is stopped then.

    engine: None or "local", threads; "processes"; "dask", a cluster of processes on this machine; the address of a
    Dask scheduler, tcp://...; a `distributed.Client`; "spark", the active session, or one on this machine; a
    `SparkSession`; an `Engine`, which is handed on. workers: of those started here; one a core where None.

    "processes" and "dask" start theirs anew from the main module, so a script needs `if __name__ == "__main__":`.
    """
    if isinstance(engine, Engine):
        yield engine
    elif engine is None or engine in ("local", "threads", "processes"):
        with closing(LocalEngine(workers, processes=engine == "processes")) as here:
            yield here
    elif engine == "dask" or (isinstance(engine, str) and engine.startswith(_SCHEMES)):
        with _client(None if engine == "dask" else engine, workers) as client:
            yield _dask(client)
    elif engine == "spark":
        with _session(workers) as session:
            yield _spark(session)
    elif _comes_from(engine, "distributed"):
        yield _dask(engine)
    elif _comes_from(engine, "pyspark"):
        yield _spark(engine)
    else:
        raise ValueError(
            "engine must be None, 'local', 'processes', 'dask', a scheduler's address (tcp://...), 'spark', a "
            f"distributed.Client or a SparkSession; got {engine!r}."
        )


def home_of(X: Any) -> Any:
    """The engine for a collection that none was given for: Dask's client, or a cluster of its own; Spark's session."""
    if _comes_from(X, "pyspark"):
        return X.sparkSession
    if _comes_from(X, "dask") or _comes_from(X, "dask_expr"):
        try:
            return _load("distributed", "dask").get_client()
        except ValueError:
            return "local"
    return "local"


def _dask(client: Any) -> Engine:
    from kalprox.engines.dask import DaskEngine

    return DaskEngine(client)


def _spark(session: Any) -> Engine:
    from kalprox.engines.spark import SparkEngine

    return SparkEngine(session)


@contextmanager
def _client(address: str | None, workers: int | None) -> Iterator[Any]:
    distributed = _load("distributed", "dask")
    if address is not None:
        client, log = distributed.Client(address), logging.getLogger("distributed.client")
        before = log.disabled
        try:
            yield client
        except EngineFailed:
            log.disabled = True  # it would say the same of a scheduler that is gone, with tracebacks
            raise
        finally:
            client.close()
            log.disabled = before
        return
    from dask import config

    settings = _CLUSTER | {"n_workers": workers}
    with (
        config.set({"distributed.scheduler.allowed-failures": _FAILURES}),
        distributed.LocalCluster(**settings) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@contextmanager
def _session(workers: int | None) -> Iterator[Any]:
    sql = _load("pyspark.sql", "spark")
    active = sql.SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = sql.SparkSession.builder.master(f"local[{workers or '*'},4]").appName("kalprox")  # four attempts a task
    quiet = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    with warnings.catch_warnings():  # Java is started by a fork that JAX warns of, and an exec that makes it harmless
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        session = quiet.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _load(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"engine={extra!r} needs {name.split('.')[0]}: pip install 'kalprox[{extra}]'") from error


def _comes_from(value: Any, package: str) -> bool:
    return any(kind.__module__.split(".")[0] == package for kind in type(value).__mro__)
