"""What a stream is told to do, and how it ended."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, BinaryIO

from kalprox.jobs.base import Progress
from kalprox.jobs.model import TableModel
from kalprox.jobs.stream_state import StreamCounts
from kalprox.sources.records import Position
from kalprox.sources.row_parser import Style
from kalprox.sources.table_columns import TableColumns

__all__ = ["StreamEnd", "StreamJob"]

EVERY = 10_000  # rows between two checkpoints


@dataclass(frozen=True)
class StreamEnd:
    """How a stream ended.

    Attributes
    ----------
    model : TableModel or None
        None if no row has been learned.
    position : Position
    counts : StreamCounts
    waiting : int
        The number of rows that wait for their target.
    signal : int or None
        The signal that ended it; None at the end of the input.
    seconds : float
        Its duration.
    rows : int
        The number of rows that were answered in this run.
    latencies : tuple of float
        The median and the 99th percentile of the time, in seconds, from the arrival of a row to its answer, of the last
        4,096 rows; NaN if there were none.
    cut : int
        The number of bytes at the end of the input that are no row, because they may be the beginning of one.
    """

    model: TableModel | None
    position: Position
    counts: StreamCounts
    waiting: int
    signal: int | None
    seconds: float
    rows: int
    latencies: tuple[float, float]
    cut: int = 0


@dataclass(frozen=True)
class StreamJob:
    """A stream of rows that are predicted, and learned if they have a target.

    Parameters
    ----------
    stream, output : binary streams
        The input, see `kalprox.sources.records.Records`, and the output.
    infer : callable
        Called with the first rows, as bytes, and their format; returns the columns and the parameters of
        `kalprox.learning.settings.Settings`. Not called if there is a model or a checkpoint.
    model : TableModel, optional
        The model to begin with.
    head : int
        The number of rows from which columns are inferred. None is answered before they have come.
    reading : dict
        Arguments of `kalprox.jobs.stream_input.StreamInput`.
    to : {"jsonl", "csv"}, optional
        The format of the output. The default is that of the input.
    rows, seconds
        The number of rows that are answered at a time, or the time in which rows are collected.
    key : str, optional
        The column by which a target that comes later finds its row.
    wait : int
        The largest number of rows that wait for their target.
    keep : sequence of str
        The columns that are copied to the output.
    level, interval
        See `kalprox.jobs.predict.predict`.
    quarantine, max_bad
        See `kalprox.sources.quarantine.Quarantine`; there is no limit by default.
    max_jump : float
        A row that comes more than so many half-lives after the row before it, for a model that forgets by time, is bad,
        unless the row before it was so, too, and is not later.
    samples : bool
        See `kalprox.sources.table.Table`.
    checkpoint : path, optional
        The checkpoint file. If it exists, the stream resumes from it.
    resume : {"skip", "continue"}
        Whether the input of a stream that resumes begins with its first row again, and the rows that the checkpoint has
        are skipped, or with the first row after them.
    every, every_seconds
        Rows, or seconds, between two checkpoints.
    identity : dict
        What a checkpoint and a stream that resumes from it must have in common, in JSON types.
    source : str
        The name of the input.
    watch : callable
        Called with a `Progress` after every batch of rows.
    """

    stream: Any
    output: BinaryIO
    infer: Callable[[bytes, Style], tuple[TableColumns, dict[str, Any]]]
    model: TableModel | None = None
    head: int = 100
    reading: dict[str, Any] = field(default_factory=dict)
    to: str | None = None
    rows: int = 1
    seconds: float | None = None
    key: str | None = None
    wait: int = 100_000
    keep: Sequence[str] = ()
    level: float = 0.95
    interval: str = "gaussian"
    quarantine: str | PathLike[str] | None = None
    max_bad: int | str | None = None
    max_jump: float = 50.0
    samples: bool = True
    checkpoint: str | PathLike[str] | None = None
    resume: str = "skip"
    every: int | None = EVERY
    every_seconds: float | None = None
    identity: dict[str, Any] = field(default_factory=dict)
    source: str = "-"
    watch: Callable[[Progress], None] = field(default=lambda progress: None)
