"""What a stream is told to do, what it has counted, how it ended, and its state in a checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from typing import Any, BinaryIO

import numpy as np

from kalprox.base.tree import Saved, expect, flatten
from kalprox.jobs.model import TableModel
from kalprox.jobs.record import checked_state, from_json
from kalprox.jobs.run import Progress
from kalprox.learning.pending import PendingRows
from kalprox.model_file import Parts
from kalprox.sources.records import Position
from kalprox.sources.row_parser import Style
from kalprox.sources.table_columns import TableColumns

EVERY = 10_000  # rows between two checkpoints
_WAITING = "stream.pending"


@dataclass(frozen=True)
class StreamCounts:
    """What became of the rows of a stream, and how well those were predicted whose target came.

    Attributes
    ----------
    learned, predicted, waiting, late, bad : int
        The rows of each status, see `kalprox.jobs.stream_io.STATUSES`.
    dropped : int
        Rows that waited for their target, and were dropped for others.
    judged : int
        Predictions, with an interval, whose target has come.
    squares : float
        The sum of their squared errors; of classes, the number of those that were wrong.
    covered : int
        How many targets lay in the interval that was issued; of classes none.
    """

    learned: int = 0
    predicted: int = 0
    waiting: int = 0
    late: int = 0
    bad: int = 0
    dropped: int = 0
    judged: int = 0
    squares: float = 0.0
    covered: int = 0

    def plus(self, **more: float) -> "StreamCounts":
        """Return the counts with these added."""
        return replace(self, **{name: getattr(self, name) + n for name, n in more.items()})

    @property
    def error(self) -> float:
        """The root mean squared error, or for classes the root of the share of wrong ones; NaN before the first one."""
        return (self.squares / self.judged) ** 0.5 if self.judged else float("nan")

    @property
    def coverage(self) -> float:
        """The share of targets in the interval that was issued; NaN before the first one."""
        return self.covered / self.judged if self.judged else float("nan")


@dataclass(frozen=True)
class StreamState:
    """The state of a stream at a moment between two batches of rows.

    Attributes
    ----------
    model : TableModel
    position : Position
        In the input, after the last row of the model and of the output.
    counts : StreamCounts
    pending : PendingRows
    quarantine : dict
        See `kalprox.sources.quarantine.Quarantine.state`.
    """

    model: TableModel
    position: Position
    counts: StreamCounts
    pending: PendingRows
    quarantine: dict[str, Any]

    def parts(self) -> Parts:
        """Return the header and the arrays of a checkpoint: those of the model, and those of the stream."""
        header, arrays = self.model.parts()
        saved: dict[str, Any] = {}
        flatten(_WAITING, self.pending.saved(), saved, arrays)
        header["stream"] = {
            "position": self.position._asdict(),
            "counts": asdict(self.counts),
            "pending": saved,
            "state": {"quarantine": self.quarantine, "account": asdict(self.model.record), "read": 0, "number": 0},
        }
        return header, arrays

    @classmethod
    def restored(
        cls, file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray], *, try_out: bool = True
    ) -> "StreamState":
        """Return the state from what `parts` returned; raise a ValueError for anything else."""
        said, own = header["stream"], {name: a for name, a in arrays.items() if name.startswith(_WAITING)}
        rest = {name: a for name, a in arrays.items() if name not in own}
        model = TableModel.from_parts(file, header, rest, try_out=try_out)
        expect(said["position"].keys() == set(Position._fields))
        expect(said["counts"].keys() == {field.name for field in fields(StreamCounts)})
        position, counts = from_json(Position, said["position"]), from_json(StreamCounts, said["counts"])
        pending = PendingRows.restored(len(model.columns.names), Saved(said["pending"], own), _WAITING)
        quarantine = checked_state(said["state"], model.columns)[3]
        return cls(model, position, counts, pending, quarantine)

    @classmethod
    def rebuilt(cls, file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Parts:
        """Return the parts of the state that these parts describe, to be compared; see `kalprox.model_file.write`."""
        parts, own = cls.restored(file, header, arrays, try_out=False).parts()
        return {**header, **parts}, own


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
        Arguments of `kalprox.jobs.stream_io.StreamInput`.
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
