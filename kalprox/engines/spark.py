"""Spark as an engine: `mapInArrow` folds on the executors, and rounds of a shuffle merge there in a fixed order."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from kalprox.engines.base import Engine, Folded, Part, Piece, Report, Seen, Tree, one_thread
from kalprox.engines.partitions import FramePartition, folded
from kalprox.engines.pickling import Shipper
from kalprox.sources.files import SourceError

__all__ = ["SparkEngine", "SparkFrame"]

_SCHEMA = "place long, folded binary"
_BITS = 5  # 2^5 neighbours are merged in one round
_POLL = 0.2  # seconds between looks at what has finished


@dataclass(frozen=True)
class SparkFrame:
    """All partitions of a Spark DataFrame, read as `columns` say; they are not opened one by one."""

    frame: Any
    columns: Any

    @property
    def name(self) -> str:
        return "the Spark DataFrame"

    def pieces(self) -> Iterator[Piece]:
        raise SourceError("A Spark DataFrame is folded where it is: use engine='spark' or its session.")


class SparkEngine(Engine):
    """A `SparkSession`. Each executor reads its own files, or folds the rows of a DataFrame that it holds.

    Sums are merged in rounds of 32 neighbours by a shuffle on the partition's index, so that at most 32 of them come
    to the driver, and the tree is that of the other engines whichever task ends first (Spark's own treeReduce merges
    in the order of arrival). Reports come as tasks end, by an accumulator; over Spark Connect, which has none, at the
    end of the pass. A DataFrame must give the rows of a partition in the same order when a task is run again, as one
    read from files does.
    """

    def __init__(self, session: Any) -> None:
        from pyspark import cloudpickle

        self.session = session
        self._shipper = Shipper(cloudpickle.dumps)

    def sum(self, partitions: Sequence[Any], part: Part, seen: Seen | None = None) -> Any:
        part = self._shipper.packed(part)
        context = getattr(self.session, "sparkContext", None)  # not over Spark Connect
        finished = None if context is None or seen is None else context.accumulator([], _listed())
        if any(isinstance(partition, SparkFrame) for partition in partitions):
            if len(partitions) > 1:
                raise SourceError("A Spark DataFrame cannot be one of several sources: unite them in Spark.")
            found, n = _over_frame(partitions[0], part, finished)
        else:
            n = len(partitions)
            found = self.session.range(0, n, 1, n).mapInArrow(_each(list(partitions), part, finished), _SCHEMA)
        level = 0
        while n > 1 << _BITS:
            n = -(-n // (1 << _BITS))
            level += _BITS
            found = _merged(found, n, level)
        told: set[int] = set()

        def tell(reports: Iterable[tuple[int, Report]]) -> None:
            for index, report in reports:
                if seen is not None and index not in told:  # a task that is run again reports again
                    told.add(index)
                    seen(index, report)

        tree = Tree()
        rows = found.collect() if finished is None else _collected(self.session, found, finished, tell)
        for row in sorted(rows, key=lambda row: row.place):
            result = pickle.loads(row.folded)
            if isinstance(result, Exception):
                raise result
            tree.put(row.place, result, level)
        whole = tree.result()
        tell(sorted(whole.reports.items(), key=lambda one: one[0]))
        return whole.total


def _collected(session: Any, frame: Any, finished: Any, tell: Callable[[list[Any]], None]) -> list[Any]:
    """The rows of a frame, collected in a thread; meanwhile what has finished is told here. Should that raise, the job
    is cancelled."""
    from pyspark import inheritable_thread_target

    context, group = session.sparkContext, f"kalprox-{uuid4().hex}"

    def collect() -> list[Any]:
        context.setJobGroup(group, "kalprox", interruptOnCancel=True)
        return frame.collect()

    with ThreadPoolExecutor(1, thread_name_prefix="kalprox-spark") as pool:
        rows = pool.submit(inheritable_thread_target(session)(collect))
        heard = 0
        try:
            while not wait([rows], timeout=_POLL).done:
                new = finished.value[heard:]
                heard += len(new)
                tell(new)
        except BaseException:
            context.cancelJobGroup(group)
            raise
        return rows.result()


def _listed() -> Any:
    """Lists that tasks add to: what Spark calls the parameter of an accumulator."""
    from pyspark.accumulators import AccumulatorParam

    class Listed(AccumulatorParam):
        def zero(self, value: list[Any]) -> list[Any]:
            return []

        def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
            value1 += value2
            return value1

    return Listed()


def _each(partitions: list[Any], part: Part, finished: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Of an executor's share of the numbers 0 to n - 1, what the partitions of these numbers come to."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield _row(index, _reported(finished, index, _tried(folded, partitions[index], index, part)))

    return run


def _over_frame(source: SparkFrame, part: Part, finished: Any) -> tuple[Any, int]:
    """Each partition of a DataFrame folded, and how many there are."""
    columns = source.columns
    frame = source.frame.select(*(f"`{name}`" for name in columns.wanted.names))

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        index = task.partitionId()
        rows = FramePartition(iter(batches), columns, f"partition {index}")
        yield _row(index, _reported(finished, index, _tried(folded, rows, index, part)))

    return frame.mapInArrow(run, _SCHEMA), frame.rdd.getNumPartitions()


def _merged(found: Any, n: int, level: int) -> Any:
    """One round: the sums of 2^5 neighbours, together on one executor, become one."""
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
    tree = Tree()
    with one_thread():
        for place, pickled in found:
            result = pickle.loads(pickled)
            if isinstance(result, Exception):
                return result
            tree.put(place, result)
        return tree.result()


def _tried(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it gives, or the ValueError that says why not: it would be no other the next time, and so is not tried
    again. Any other error is Spark's to see to."""
    try:
        return function(*arguments)
    except ValueError as error:
        return error


def _reported(finished: Any, index: int, result: Any) -> Any:
    """The result; its report goes ahead, if anyone listens."""
    if finished is not None and isinstance(result, Folded):
        finished.add([(index, result.reports[index])])
    return result


def _row(place: int, result: Folded | Exception) -> Any:
    from kalprox.sources._arrow import pa

    columns = [pa.array([place], pa.int64()), pa.array([pickle.dumps(result, 5)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["place", "folded"])
