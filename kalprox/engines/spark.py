"""The Spark engine: `mapInArrow` folds on the executors, and rounds of shuffles merge there in a fixed order."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from uuid import uuid4

from kalprox.engines.base import (
    Engine,
    ModelPickler,
    Part,
    PartialFold,
    PartitionSummary,
    Seen,
    Tree,
    fold_partition,
    one_blas_thread,
)
from kalprox.engines.partitions import FramePartition, SparkFrame
from kalprox.sources.files import SourceError

_SCHEMA = "place long, folded binary"
_BITS = 5  # 2^5 neighbours are merged in one round
_POLL = 0.2  # seconds between two looks at the accumulator


class SparkEngine(Engine):
    """Folds partitions on the executors of a Spark session.

    Each executor reads its own files, or folds the rows of a DataFrame that it holds. Totals are merged on the
    executors in rounds of 32 neighbours, by a shuffle on the index of the partition, so the driver receives at most 32
    totals, and the tree is the same as for the other engines. (Spark's own treeReduce merges in the order of arrival.)
    Summaries arrive as tasks finish, through an accumulator; with Spark Connect, which has no accumulators, they
    arrive at the end of the pass. A DataFrame must return the rows of a partition in the same order when a task is
    repeated, as a DataFrame read from files does.

    Parameters
    ----------
    session : pyspark.sql.SparkSession
    """

    def __init__(self, session: Any) -> None:
        from pyspark import cloudpickle

        self.session = session
        self._pickler = ModelPickler(cloudpickle.dumps)

    def _total(self, partitions: Sequence[Any], part: Part[Any], seen: Seen) -> Any:
        part = self._pickler.packed(part)
        context = getattr(self.session, "sparkContext", None)  # Spark Connect has none
        finished = None if context is None else context.accumulator([], _list_accumulator())
        folds, n = self._folds(partitions, part, finished)
        level = 0
        while n > 1 << _BITS:
            n = -(-n // (1 << _BITS))
            level += _BITS
            folds = _merged(folds, n)
        reported: set[int] = set()

        def report(summaries: Iterable[tuple[int, PartitionSummary]]) -> None:
            for index, summary in summaries:
                if index not in reported:  # a repeated task adds its summary again
                    reported.add(index)
                    seen(index, summary)

        tree = Tree()
        rows = folds.collect() if finished is None else _collected(self.session, folds, finished, report)
        for row in sorted(rows, key=lambda row: row.place):
            folded = pickle.loads(row.folded)
            if isinstance(folded, Exception):
                raise folded
            tree.put(row.place, folded, level)
        whole = tree.result()
        report(sorted(whole.summaries.items(), key=lambda one: one[0]))
        return whole.total

    def _folds(self, partitions: Sequence[Any], part: Part[Any], finished: Any) -> tuple[Any, int]:
        """A DataFrame with the fold of each partition, and the number of partitions."""
        if any(isinstance(partition, SparkFrame) for partition in partitions):
            if len(partitions) > 1:
                raise SourceError("A Spark DataFrame cannot be one of several partitions: unite the frames in Spark.")
            return _over_frame(partitions[0], part, finished)
        n = len(partitions)
        return self.session.range(0, n, 1, n).mapInArrow(_each(list(partitions), part, finished), _SCHEMA), n


def _collected(session: Any, frame: Any, finished: Any, report: Callable[[list[Any]], None]) -> list[Any]:
    """Collect the rows of a DataFrame in a thread, and report what has finished meanwhile in this one.

    If `report` raises, the Spark job is cancelled.
    """
    from pyspark import inheritable_thread_target

    context, group = session.sparkContext, f"kalprox-{uuid4().hex}"

    def collect() -> list[Any]:
        context.setJobGroup(group, "kalprox", interruptOnCancel=True)
        rows: list[Any] = frame.collect()
        return rows

    with ThreadPoolExecutor(1, thread_name_prefix="kalprox-spark") as pool:
        rows = pool.submit(inheritable_thread_target(session)(collect))
        heard = 0
        try:
            while not wait([rows], timeout=_POLL).done:
                new = finished.value[heard:]
                heard += len(new)
                report(new)
        except BaseException:
            context.cancelJobGroup(group)
            raise
        collected: list[Any] = rows.result()
        return collected


def _list_accumulator() -> Any:
    """The parameter of an accumulator that appends lists."""
    from pyspark.accumulators import AccumulatorParam

    class ListParam(AccumulatorParam[list[Any]]):  # type: ignore[misc, unused-ignore]  # Any without pyspark
        def zero(self, value: list[Any]) -> list[Any]:
            return []

        def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
            value1 += value2
            return value1

    return ListParam()


def _each(partitions: list[Any], part: Part[Any], finished: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for `mapInArrow` over the numbers 0 to n - 1 that folds the partitions of these numbers."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield _row(index, _reported(finished, index, _tried(fold_partition, partitions[index], index, part)))

    return run


def _over_frame(source: SparkFrame, part: Part[Any], finished: Any) -> tuple[Any, int]:
    """A DataFrame with the fold of each partition of another one, and the number of partitions."""
    columns, labels = source.columns, source.labels
    wanted = [*columns.wanted.names, *(() if labels is None else (labels,))]
    frame = source.frame.select(*(f"`{name}`" for name in wanted))

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        index = task.partitionId()
        rows = FramePartition(iter(batches), columns, f"partition {index}", labels)
        yield _row(index, _reported(finished, index, _tried(fold_partition, rows, index, part)))

    return frame.mapInArrow(run, _SCHEMA), frame.rdd.getNumPartitions()


def _merged(found: Any, n: int) -> Any:
    """One round of merges: 2^5 neighbours are brought to one executor and merged there."""
    from pyspark.sql import functions as F

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        groups: dict[int, list[tuple[int, Any]]] = {}
        for batch in batches:
            for place, found in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                groups.setdefault(place >> _BITS, []).append((place, found))
        for group in sorted(groups):
            yield _row(group, _tried(_neighbours, sorted(groups[group])))

    return found.repartition(min(n, 256), F.shiftright("place", _BITS)).mapInArrow(run, _SCHEMA)


def _neighbours(found: list[tuple[int, bytes]]) -> Any:
    """The merge of some pickled folds, or the first error among them."""
    tree = Tree()
    with one_blas_thread():
        for place, pickled in found:
            result = pickle.loads(pickled)
            if isinstance(result, Exception):
                return result
            tree.put(place, result)
        return tree.result()


def _tried(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or a ValueError as a value.

    A ValueError would be the same at the next attempt, so Spark must not repeat the task. Any other error is raised,
    and Spark repeats the task.
    """
    try:
        return function(*arguments)
    except ValueError as error:
        return error


def _reported(finished: Any, index: int, result: Any) -> Any:
    """The result; its summary is added to the accumulator, where there is one."""
    if finished is not None and isinstance(result, PartialFold):
        finished.add([(index, result.summaries[index])])
    return result


def _row(place: int, result: PartialFold | Exception) -> Any:
    from kalprox.sources.arrow import pa

    columns = [pa.array([place], pa.int64()), pa.array([pickle.dumps(result, 5)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["place", "folded"])
