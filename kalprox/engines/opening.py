"""Opening an engine: the one on this machine, threads or processes, or one from the address or client of a cluster."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from multiprocessing import get_context
from typing import Any

from kalprox.base.extras import load
from kalprox.engines.base import (
    Engine,
    EngineFailed,
    EngineSource,
    ModelPickler,
    Part,
    PartialFold,
    Seen,
    Tree,
    fold_partition,
    one_blas_thread,
)
from kalprox.engines.dask import TIMEOUT, DaskEngine, quiet, silence, silence_workers
from kalprox.engines.partitions import comes_from, is_collection, partitions_of
from kalprox.engines.spark import SparkEngine
from kalprox.sources.prefetch import cores

_MAX_DEATHS = 3  # of worker processes in one pass; after one more the pass fails


class LocalEngine(Engine):
    """Folds partitions in threads or processes of this machine, and merges their totals in this process.

    Threads are enough for arrays and files, because BLAS, LAPACK and pyarrow release the global interpreter lock.
    Processes also run models written in Python in parallel. When a process is killed, the partitions that it was
    folding are folded again.

    Parameters
    ----------
    workers : int, optional
        The number of threads or processes. The default is the number of cores.
    processes : bool
        Whether to start processes instead of threads.
    """

    def __init__(self, workers: int | None = None, *, processes: bool = False) -> None:
        self.workers, self.processes = workers or cores(), processes
        self._started: tuple[ProcessPoolExecutor, ModelPickler] | None = None
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1; got {workers}.")

    def _total(self, partitions: Sequence[Any], part: Part[Any], seen: Seen) -> Any:
        tree = Tree()
        with one_blas_thread():
            for index, folded in self._as_completed(partitions, part):
                tree.put(index, PartialFold(folded.total))
                seen(index, folded.summaries[index])
        return tree.result().total

    def _as_completed(self, partitions: Sequence[Any], part: Part[Any]) -> Iterator[tuple[int, PartialFold]]:
        """The folds in the order in which they finish. The work of a killed process is repeated."""
        left, deaths = dict(enumerate(partitions)), 0
        while left:
            try:
                with self._pool(part) as (pool, packed):
                    for index, folded in self._submit(pool, list(left.items()), packed):
                        del left[index]
                        yield index, folded
            except BrokenProcessPool as error:
                deaths += 1
                if deaths > _MAX_DEATHS:
                    raise EngineFailed(
                        f"Gave up after worker processes died {deaths} times, with {len(left)} of {len(partitions)} "
                        "partitions left. The processes may have run out of memory; smaller partitions need less."
                    ) from error

    @contextmanager
    def _pool(self, part: Part[Any]) -> Iterator[tuple[Executor, Part[Any]]]:
        """Threads for one pass, or processes that are kept for the next one; and the part as it is sent to them."""
        if not self.processes:
            with ThreadPoolExecutor(self.workers, thread_name_prefix="kalprox-fold") as threads:
                yield threads, part
            return
        if self._started is None:
            cloudpickle = load("cloudpickle", "processes", "engine='processes' needs")
            # Spawned, because the threads of BLAS and JAX do not survive a fork.
            self._started = ProcessPoolExecutor(self.workers, get_context("spawn")), ModelPickler(cloudpickle.dumps)
        pool, pickler = self._started
        try:
            yield pool, pickler.packed(part)
        except BrokenProcessPool:
            self.close()
            raise

    def close(self) -> None:
        """Stop the processes. The next pass would start new ones."""
        if self._started is not None:
            self._started[0].shutdown(wait=False, cancel_futures=True)
            self._started = None

    def _submit(
        self, pool: Executor, partitions: list[tuple[int, Any]], part: Part[Any]
    ) -> Iterator[tuple[int, PartialFold]]:
        """Submit partitions, at most two per worker at a time, and yield their folds as they finish."""
        submitted: dict[Any, int] = {}
        queue = iter(partitions)
        try:
            while True:
                for index, partition in queue:
                    submitted[pool.submit(fold_partition, partition, index, part)] = index
                    if len(submitted) >= 2 * self.workers:
                        break
                if not submitted:
                    return
                finished, _ = wait(submitted, return_when=FIRST_COMPLETED)
                for future in sorted(finished, key=lambda one: submitted[one]):
                    yield submitted.pop(future), future.result()
        finally:
            for future in submitted:
                future.cancel()


# Whoever can connect to a cluster can run code on it: only this machine can, also to the pages of the scheduler.
_CLUSTER = {"threads_per_worker": 1, "processes": True, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
_ALLOWED_FAILURES = 10  # workers that may die while folding one partition, in a cluster started here
_SCHEMES = ("tcp://", "tls://", "ucx://", "ws://", "wss://", "inproc://")


@contextmanager
def open(engine: Any = None, *, workers: int | None = None, timeout: float | None = None) -> Iterator[Engine]:
    """Open an engine. What is started for the engine is stopped at the end of the context.

    "processes" and "dask" start processes that import the main module, so a script that uses them needs
    `if __name__ == "__main__":`.

    Parameters
    ----------
    engine : str, distributed.Client, pyspark.sql.SparkSession or Engine, optional
        None or "local": threads of this process. "processes": processes of this machine. "dask": a Dask cluster on
        this machine. The address of a Dask scheduler, such as "tcp://host:8786", or a `distributed.Client`: that
        cluster. "spark": the active Spark session, or a new one on this machine. A `SparkSession`: that session. An
        `Engine` is returned as it is.
    workers : int, optional
        The number of workers to start. The default is one per core.
    timeout : float, optional
        The number of seconds to wait for the answer of a Dask scheduler, and, in a pass, while it has no workers. The
        default is 60.

    Yields
    ------
    Engine

    Examples
    --------
    >>> import numpy as np
    >>> from kalprox.engines import partitions_of
    >>> with open("local", workers=2) as engine:
    ...     engine.fold(partitions_of((np.ones((6, 2)), np.ones(6)), n=3), len).total
    6
    """
    timeout = TIMEOUT if timeout is None else timeout
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds; got {timeout!r}.")
    if isinstance(engine, Engine):
        yield engine
    elif engine is None or engine in ("local", "threads", "processes"):
        with closing(LocalEngine(workers, processes=engine == "processes")) as local:
            yield local
    elif engine == "dask" or (isinstance(engine, str) and engine.startswith(_SCHEMES)):
        with _client(None if engine == "dask" else engine, workers, timeout) as client:
            yield DaskEngine(client, timeout)
    elif engine == "spark":
        with _session(workers) as session:
            yield SparkEngine(session)
    elif comes_from(engine, "distributed"):
        yield DaskEngine(engine, timeout)
    elif comes_from(engine, "pyspark"):
        yield SparkEngine(engine)
    else:
        raise ValueError(
            "engine must be None, 'local', 'processes', 'dask', a scheduler's address (tcp://...), 'spark', a "
            f"distributed.Client or a SparkSession; got {engine!r}."
        )


@contextmanager
def opened_source(source: Any, engine: Any) -> Iterator[Any]:
    """Open the engine on which a model is refined, if there is one, and yield the rows: a source, or arrays.

    By default arrays and sources are folded in this thread, partitions in threads, and Dask arrays by the current
    client.
    """
    if hasattr(source, "fold"):
        if engine is not None:
            raise ValueError("engine must be None where source is a Source, which folds its rows itself.")
        yield source
        return
    items = source if isinstance(source, Sequence) else ()
    in_dask = any(map(is_collection, items))
    partitioned = len(items) > 0 and not in_dask and hasattr(items[0], "blocks")
    if not items or (engine is None and not in_dask and not partitioned):
        yield source
        return
    with open(engine_of(items[0]) if engine is None else engine) as opened:
        yield EngineSource(opened, items if partitioned else partitions_of(tuple(items)))


def engine_of(X: Any) -> Any:
    """The engine for a collection, in a form that `open` takes.

    Parameters
    ----------
    X : Any
        An array or data frame of Dask, Spark, NumPy, ...

    Returns
    -------
    distributed.Client, pyspark.sql.SparkSession or "local"
        The current Dask client, "local" where there is none; the session of a Spark DataFrame; "local" otherwise.
    """
    if comes_from(X, "pyspark"):
        return X.sparkSession
    if comes_from(X, "dask"):
        try:
            return _load("distributed", "dask").get_client()
        except ValueError:
            return "local"
    return "local"


@contextmanager
def _client(address: str | None, workers: int | None, timeout: float) -> Iterator[Any]:
    """A client of the scheduler at an address, or of a cluster that is started here."""
    distributed = _load("distributed", "dask")
    if address is not None:
        with quiet():
            try:
                client = distributed.Client(address, timeout=timeout)
            except Exception as error:  # of any kind, where what answers is no scheduler
                raise EngineFailed(
                    f"Cannot connect to a Dask scheduler at {address}: waited for its answer, at most {timeout:g} s. "
                    f"({error}) Check that it runs and that this machine reaches it, or wait longer, with a larger "
                    "timeout."
                ) from error
        silence(client)
        try:
            yield client
        finally:
            with suppress(Exception):  # the scheduler may be lost
                client.close()
        return
    from dask import config

    settings = _CLUSTER | {"n_workers": workers}
    with (
        config.set({"distributed.scheduler.allowed-failures": _ALLOWED_FAILURES}),
        distributed.LocalCluster(**settings) as cluster,
        distributed.Client(cluster) as client,
    ):
        silence(client)
        silence_workers(client)
        yield client


@contextmanager
def _session(workers: int | None) -> Iterator[Any]:
    """The active Spark session, or one that is started here."""
    sql = _load("pyspark.sql", "spark")
    active = sql.SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    attempts = 4  # per task, as on a cluster
    builder = sql.SparkSession.builder.master(f"local[{workers or '*'},{attempts}]").appName("kalprox")
    quiet = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    with warnings.catch_warnings():  # Java is started by a fork and an exec; JAX warns about the fork
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        session = quiet.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _load(name: str, extra: str) -> Any:
    return load(name, extra, f"engine={extra!r} needs")
