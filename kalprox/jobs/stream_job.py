"""What a stream is told to do and has counted, its state in a checkpoint, and how some of its rows are answered."""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse

from kalprox.base.tree import Saved, expect, flatten
from kalprox.jobs.model import TableModel
from kalprox.jobs.predict import output_columns, output_names
from kalprox.jobs.record import checked_state, from_json
from kalprox.jobs.run import Progress
from kalprox.learning.learner import Learner
from kalprox.learning.pending import PendingRow, PendingRows
from kalprox.model_file import Parts
from kalprox.sources import Block
from kalprox.sources.columns import TableColumns
from kalprox.sources.quarantine import BadRow, Reason
from kalprox.sources.records import Position
from kalprox.sources.row_parser import OpenedRow, ParsedRows, RowParser, Style
from kalprox.sources.weighting import TimeGoesBack, TimeJumps, check_jumps

EVERY = 10_000  # rows between two checkpoints
_WAITING = "stream.pending"


@dataclass(frozen=True)
class StreamCounts:
    """What became of the rows of a stream, and how well those were predicted whose target came.

    Attributes
    ----------
    learned, predicted, waiting, late, bad : int
        The rows of each status, see `kalprox.jobs.stream.STATUSES`.
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
        Arguments of `kalprox.jobs.stream.StreamInput`.
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


class Batch:
    """Rows of a stream, predicted from what was learned before all of them.

    Nothing that it is given is changed: what is to be learned, and which rows begin and end to wait, is read from it
    when the predictions have been written.

    Parameters
    ----------
    rows : sequence of OpenedRow
    first : int
        The number of the first of them in the stream.
    parser : RowParser
    learner : Learner
    pending : PendingRows
    job : StreamJob
        How rows are answered: the key of late targets, the level and the kind of the intervals, and jumps of the time.

    Attributes
    ----------
    keys : list of str or None
        The key of each row.
    predicted : array of shape (number of columns, rows)
        See `kalprox.jobs.predict.output_columns`; NaN where there is no prediction.
    statuses : list of str
        See `kalprox.jobs.stream.STATUSES`.
    bad : dict of int to BadRow
        The bad rows, by their positions.
    learned : Block or None
        The rows whose target is there, in the order in which the targets came.
    learned_at : list of int
        The positions of these targets.
    taken : list of str
        The keys of rows that no longer wait.
    added : dict of str to PendingRow
        The rows that begin to wait, by their keys.
    jumped : float or None
        See `kalprox.sources.records.Position`.
    """

    def __init__(
        self,
        rows: Sequence[OpenedRow],
        first: int,
        parser: RowParser,
        learner: Learner,
        pending: PendingRows,
        job: StreamJob,
    ) -> None:
        self.first, self.parser, self.pending, self.job = first, parser, pending, job
        self.jumped: float | None = None
        n, key = len(rows), job.key
        self.keys: list[str | None] = [None if key is None else parser.key(row, key) for row in rows]
        late = [] if key is None else self._late(rows)
        usual = [i for i in range(n) if i not in late] if late else list(range(n))
        numbers = [first + i for i in usual]
        parsed = parser.parse([rows[i] for i in usual] if late else rows, numbers)
        at, taught_at = ([usual[i] for i in some] for some in (parsed.at, parsed.taught_at))
        self.bad = {usual[i]: self._said(usual[i], row) for i, row in parsed.bad.items()}
        self.notes, self.taken, self.added = parsed.notes, list[str](), dict[str, PendingRow]()
        self.predicted = np.full((len(output_names(parser.columns.classes)), n), np.nan)
        if at and learner.is_fitted:
            self.predicted[:, at] = self._predict(learner, parsed.asked, alone=n == 1)
        self.statuses = ["bad"] * n
        for i in at:
            self.statuses[i] = "predicted"
        for i in taught_at:
            self.statuses[i] = "learned"
        self.issued = self.predicted[:, taught_at]
        self.learned, self.learned_at = parsed.taught, taught_at
        if key is not None:
            self._wait(rows, parsed, at, late)

    def _predict(self, learner: Learner, block: Block, *, alone: bool) -> np.ndarray:
        job, ends = self.job, None
        if job.interval == "conformal":
            known = learner.stream.quantiles.rows > 0
            ends = learner.conformal_ends(job.level) if known else (np.array(np.nan), np.array(np.nan))
        classes = self.parser.columns.classes
        with np.errstate(all="ignore"):  # before rows determine the noise, stds are infinite
            if block.times is None or not learner.settings.by_time:
                return output_columns(learner, block, classes, job.level, ends, alone=alone)
            made = []
            for i, time in enumerate(block.times):  # each row at its own time, until which what is known has faded
                row, later = block.at([i]), None
                with contextlib.suppress(ValueError):  # older than the last row: it is predicted by what is known now
                    later = learner.state.ahead(float(time)).belief
                made.append(output_columns(learner, row, classes, job.level, ends, alone=alone, later=later))
            return np.concatenate(made, axis=1)

    # ---- late targets ----------------------------------------------------------------------------------

    def _late(self, rows: Sequence[OpenedRow]) -> list[int]:
        """The positions of rows that are the target of a row that waits, or that begins to wait in this batch."""
        waiting: set[str] = set()
        late = []
        for i, (row, key) in enumerate(zip(rows, self.keys, strict=True)):
            if key is None:
                continue
            if not self.parser.has_target(row):
                waiting.add(key)
            elif key in waiting or key in self.pending:
                waiting.discard(key)
                late.append(i)
        return late

    def _said(self, i: int, row: BadRow) -> BadRow:
        """A bad row; one that has a key and lacks a feature is the target of a row that does not wait."""
        key = self.keys[i]
        if key is None or row.reason != Reason.MISSING or row.column == self.job.key:
            return row
        return self._bad(i, Reason.NOT_WAITING)

    def _bad(self, i: int, reason: Reason) -> BadRow:
        value = str(self.keys[i])[:80] if self.parser.samples else ""
        return BadRow(self.parser.name, self.first + i, str(self.job.key), reason, value)

    def _wait(self, rows: Sequence[OpenedRow], parsed: ParsedRows, at: list[int], late: list[int]) -> None:
        """Find which rows begin to wait, and which are learned with a target that came late."""
        targets, targets_at, bad = self.parser.targets([rows[i] for i in late], [self.first + i for i in late])
        self.bad |= {late[i]: row for i, row in bad.items()}
        place = {late[i]: j for j, i in enumerate(targets_at)}
        asked = {i: j for j, i in enumerate(at) if self.statuses[i] == "predicted" and self.keys[i] is not None}
        found: list[tuple[int, Block, np.ndarray]] = []
        for i in sorted([*asked, *place]):
            key = self.keys[i]
            assert key is not None
            held = key in self.added or (key in self.pending and key not in self.taken)
            if i in asked and held:
                self.bad[i], self.statuses[i], self.predicted[:, i] = self._bad(i, Reason.WAITS), "bad", np.nan
            elif i in asked:
                self.added[key], self.statuses[i] = self._pending(parsed.asked, asked[i], i), "waiting"
            elif not held:  # the row that it is the target of was bad, or another target was faster
                self.bad[i] = self._bad(i, Reason.NOT_WAITING)
            else:
                row = self.added.pop(key, None)
                if row is None:
                    row = self.pending[key]
                    self.taken.append(key)
                found.append((i, self._with_target(row, targets, place[i]), np.array(row.issued)))
                self.statuses[i] = "late"
        if not found:
            return
        usual = [] if self.learned is None else [self.learned]
        order = np.argsort([*self.learned_at, *(i for i, _, _ in found)], kind="stable")
        self.learned = Block.joined([*usual, *(block for _, block, _ in found)]).at(order)
        self.learned_at = sorted([*self.learned_at, *(i for i, _, _ in found)])
        self.issued = np.column_stack([self.issued, *(issued for _, _, issued in found)])[:, order]

    def _pending(self, asked: Block, j: int, i: int) -> PendingRow:
        def at(values: Any) -> Any:
            return None if values is None else values[j]

        weight, group, time, offset = map(at, (asked.weights, asked.groups, asked.times, asked.offset))
        return PendingRow(
            asked.X[[j]] if scipy.sparse.issparse(asked.X) else asked.X[j],
            1.0 if weight is None else float(weight),
            None if group is None else str(group),
            None if time is None else float(time),
            None if offset is None else float(offset),
            tuple(self.predicted[:, i].tolist()),
        )

    def _with_target(self, row: PendingRow, targets: Block, j: int) -> Block:
        columns = self.parser.columns
        return Block(
            row.X,
            targets.y[j : j + 1],
            None if columns.weight is None else np.array([row.weight]),
            groups=None if row.group is None else np.array([row.group]),
            offset=None if row.offset is None else np.array([row.offset]),
            times=None if row.time is None else np.array([row.time]),
        )

    # ---- what becomes of the rows ----------------------------------------------------------------------

    def learn_those_accepted(self, learner: Learner, jumped: float | None) -> None:
        """Learn the rows whose target is there. Those that the model refuses become bad rows.

        `jumped` is the time of the row before, if it was refused because it jumped ahead.
        """
        block = self.learned
        assert block is not None
        self.jumped = jumped
        try:
            self._learn_accepted(learner, block)
        except ValueError as error:
            kept, refused = [], {0: error} if len(block) == 1 else {}
            for j in range(len(block)) if len(block) > 1 else ():
                try:
                    self._learn_accepted(learner, block.part(j, j + 1))
                    kept.append(j)
                except ValueError as one:
                    refused[j] = one
            for j, why in refused.items():
                self._refuse(self.learned_at[j], why)
            self.learned = block.at(kept) if kept else None
            self.issued, self.learned_at = self.issued[:, kept], [self.learned_at[j] for j in kept]

    def _learn_accepted(self, learner: Learner, rows: Block) -> None:
        """Learn rows, of which none may jump ahead in time."""
        kind, since = learner.settings.forgetting, learner.belief.time if learner.is_fitted else None
        if kind.needs_times and since is not None:
            assert rows.times is not None
            try:
                check_jumps(rows.times, since, kind, self.job.max_jump, self.jumped)
            except TimeJumps:
                self.jumped = float(rows.times[-1]) if len(rows) == 1 else self.jumped
                raise
        learner.learn(rows)
        self.jumped = None

    def _refuse(self, i: int, why: ValueError) -> None:
        value, columns = str(why)[:80] if self.parser.samples else "", self.parser.columns
        column, reason = columns.target, Reason.REFUSED
        if isinstance(why, TimeJumps):
            column, reason = columns.time, Reason.JUMPS
        elif isinstance(why, TimeGoesBack):
            column, reason = columns.time, Reason.GOES_BACK
        self.bad[i] = BadRow(self.parser.name, self.first + i, str(column), reason, value)
        self.statuses[i], self.predicted[:, i] = "bad", np.nan

    def counts(self) -> dict[str, float]:
        """What the batch adds to `kalprox.jobs.stream_job.StreamCounts`."""
        return {**Counter(self.statuses), **self._judged()}

    def _judged(self) -> dict[str, float]:
        """How well the rows were predicted whose target is there."""
        if self.learned is None:
            return {}
        issued, y = self.issued, np.asarray(self.learned.y)
        if self.parser.columns.classes:
            known = ~np.isnan(issued[0])
            right = issued[0] == (y if y.ndim == 1 else y.argmax(axis=1))
            return {"judged": int(known.sum()), "squares": float((known & ~right).sum())}
        judged, squares, covered = 0, 0.0, 0
        for (mean, _, low, high), target in zip(
            issued.T.tolist(), y.tolist(), strict=True
        ):  # faster than arrays of one
            if math.isfinite(high - low):  # else there was no interval yet
                judged, squares, covered = judged + 1, squares + (target - mean) ** 2, covered + (low <= target <= high)
        return {"judged": judged, "squares": squares, "covered": covered}
