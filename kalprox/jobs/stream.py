"""A stream: every row is predicted as it comes, and learned as soon as its target is there."""

import io
import json
import math
import os
import signal
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from kalprox.base.text import csv_line
from kalprox.calibration import Changes
from kalprox.jobs.checkpoint import Checkpoint
from kalprox.jobs.model import TableModel, check_memory, rebuilt
from kalprox.jobs.predict import output_names
from kalprox.jobs.record import DataQuality, FitRecord, history_sums
from kalprox.jobs.run import Progress, check_columns
from kalprox.jobs.stream_job import Batch, StreamCounts, StreamJob, StreamState
from kalprox.learning.learner import Learner
from kalprox.learning.pending import PendingRows
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.targets import accepts_any
from kalprox.sources import Block
from kalprox.sources.columns import TableColumns
from kalprox.sources.files import STDIN, SourceError
from kalprox.sources.quarantine import Quarantine
from kalprox.sources.readers import Reading
from kalprox.sources.readers.csv import CsvReader
from kalprox.sources.readers.notation import Notation
from kalprox.sources.readers.text import BOM
from kalprox.sources.records import Position, Record, Records
from kalprox.sources.row_parser import RowParser, Style

FORMATS = ("csv", "tsv", "jsonl")
STATUSES = {
    "learned": "predicted, and then learned, since it came with its target",
    "predicted": "predicted only, since it has no target",
    "waiting": "predicted; it waits for its target, by its key",
    "late": "the target of a row that waited, which has been learned",
    "bad": "neither predicted nor learned; the quarantine says why",
}


class StreamInput:
    """A stream whose header has been read.

    Parameters
    ----------
    stream : binary stream
        See `kalprox.sources.records.Records`.
    format : {"csv", "tsv", "jsonl"}, optional
        The default is JSON lines if the first byte is a brace, else CSV.
    delimiter : str, optional
        The default is found in the header and the first row.
    max_record, is_whole, reading
        See `kalprox.sources.records.Records`.
    **marks
        Those in numbers; see `kalprox.sources.readers.notation.Notation`.

    Attributes
    ----------
    records : Records
        The records after the header.
    style : Style
    """

    def __init__(
        self,
        stream: Any,
        *,
        format: str | None = None,
        delimiter: str | None = None,
        max_record: int = 1 << 20,
        is_whole: bool = True,
        reading: Callable[[], AbstractContextManager[Any]] = nullcontext,
        **marks: Any,
    ) -> None:
        if format is not None and format not in FORMATS:
            raise SourceError(f"format must be one of {', '.join(FORMATS)} for a stream; got {format!r}.")
        self.records = Records(stream, max_record=max_record, is_whole=is_whole, reading=reading)
        self._header = b""
        first = self.records.begin().removeprefix(BOM).lstrip()
        if format == "jsonl" or (format is None and first[:1] == b"{"):
            self.style = Style(notation=Notation(**marks))
            return
        self.records.split_by(delimiter or ("\t" if format == "tsv" else ","))
        head = self.records.peek(3 if first[:4].lower() == b"sep=" else 2)  # the header, and the first row
        how = Reading(format=format or "csv", delimiter=delimiter, max_record=max_record, stdin=io.BytesIO(head))
        opened = how.open(STDIN)
        assert isinstance(opened, CsvReader)
        header, begin = opened.header
        self.style = Style(header, opened.delimiter, Notation(**marks))
        self.records.split_by(opened.delimiter)
        self._header = head[:begin]
        self.records.advance(begin)

    def head(self, rows: int) -> bytes:
        """The header and the first good rows, which stay in the stream; fewer rows if the stream has no more."""
        return self._header + b"".join(record.data for record in self.records.ahead(rows))


class StreamOutput:
    """Writes a line for each row: its number, the columns that are kept, the prediction, and what became of the row.

    Parameters
    ----------
    file : binary stream
    format : {"jsonl", "csv"}
        In JSON, what there is no number for is null; in CSV, the cell is empty.
    keep : sequence of str
        The columns that are copied from the input, the key first.
    classes : tuple of str
        Those of the target; empty if it holds numbers.
    writing : callable
        Returns a context for the times at which lines are written.
    """

    def __init__(
        self,
        file: BinaryIO,
        format: str,
        *,
        keep: Sequence[str] = (),
        classes: tuple[str, ...] = (),
        writing: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.file, self.is_json, self.keep, self.classes = file, format == "jsonl", tuple(keep), classes
        self.names, self.writing = output_names(classes), writing
        self._columns = ("row", *self.keep, *self.names, "status")
        if taken := [name for name in self.keep if name in ("row", *self.names, "status")]:
            raise ValueError(
                f"The output has a column {taken[0]!r}, so that the column {taken[0]!r} of the input cannot be kept: "
                "rename it, or keep other columns."
            )
        self._begun = self.is_json

    def header(self) -> None:
        """Write the header of CSV, if it has not been written."""
        if not self._begun:
            self._begun = True
            self._write(csv_line(self._columns))

    def rows(
        self, numbers: Sequence[int], kept: Sequence[Sequence[Any]], predicted: np.ndarray, statuses: Sequence[str]
    ) -> None:
        """Write the lines of some rows, and flush them.

        Parameters
        ----------
        numbers : sequence of int
            The numbers of the rows in the input.
        kept : sequence of sequences
            The values of the columns that are kept, of each row.
        predicted : array of shape (number of names, rows)
            See `kalprox.jobs.predict.output_columns`; NaN where there is no prediction.
        statuses : sequence of str
            See `STATUSES`.
        """
        self.header()
        made = self._json if self.is_json else self._csv
        columns = predicted.T.tolist()
        self._write("".join(map(made, numbers, kept, columns, statuses)))

    def _write(self, text: str) -> None:
        with self.writing():
            self.file.write(text.encode("utf-8", "backslashreplace"))
            self.file.flush()

    def _values(self, values: list[float]) -> list[Any]:
        shown: list[Any] = [value if math.isfinite(value) else None for value in values]
        if self.classes and shown[0] is not None:
            shown[0] = self.classes[int(shown[0])]
        return shown

    def _json(self, number: int, kept: Sequence[Any], values: list[float], status: str) -> str:
        line = (number, *kept, *self._values(values), status)
        return json.dumps(dict(zip(self._columns, line, strict=True))) + "\n"

    def _csv(self, number: int, kept: Sequence[Any], values: list[float], status: str) -> str:
        shown = ["" if value is None else str(value) for value in self._values(values)]
        if not kept and not self.classes:
            return f"{number},{','.join(shown)},{status}\n"
        texts = ["" if v is None else v if isinstance(v, str) else json.dumps(v) for v in kept]
        return csv_line((str(number), *texts, *shown, status))


_GRACE = 2.0  # seconds in which output that has begun may be finished


class Stopped(BaseException):
    """A signal asked the job to end while it was waiting."""


class Stopping:
    """Inside `with Stopping() as stopping`, SIGTERM and SIGINT do not end the process, but are noted.

    A wait for input, inside `with stopping.reading()`, is ended by `Stopped`. So is output, inside `with
    stopping.writing()`, if it takes more than two seconds from then on, since its reader has stopped reading, or if a
    second signal comes. Outside of the main thread, which receives no signals, nothing is installed.

    Attributes
    ----------
    signal : int or None
        The first signal that came.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._reads = self._writes = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._noted)
            if hasattr(signal, "SIGALRM"):  # not on Windows
                self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._too_late)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if signal.SIGINT in self._before and hasattr(signal, "SIGALRM"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Return a context in which a signal raises `Stopped`; one that has come before does so at its beginning."""
        self._reads = True
        try:
            if self.signal is not None:
                raise Stopped
            yield
        finally:
            self._reads = False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Return a context in which a signal raises `Stopped` after two seconds."""
        self._writes = True
        try:
            yield
        finally:
            self._writes = False

    def _noted(self, number: int, frame: FrameType | None) -> None:
        again, self.signal = self.signal is not None, self.signal or number
        if self._reads or (self._writes and again):
            raise Stopped
        if self._writes and signal.SIGINT in self._before and hasattr(signal, "SIGALRM"):
            signal.setitimer(signal.ITIMER_REAL, _GRACE)

    def _too_late(self, number: int, frame: FrameType | None) -> None:
        if self._writes:
            raise Stopped


_HELD = 1024  # rows after which the record of the rows is brought up to date
_HISTORY = 8192  # rows from one point of the error history to the next
_LATENCIES = 4096  # of the last rows that are kept
_MOST = 10_000  # rows that are answered together, if they are collected for some seconds
_REPORTED = 0.25  # seconds from one report of the progress to the next


def run_stream(job: StreamJob, started: Callable[["StreamRun"], Any] = lambda run: None) -> "StreamRun":
    """Answer the rows of a stream until the input ends, or a signal comes; then save the checkpoint.

    Parameters
    ----------
    job : StreamJob
    started : callable
        Called with the run once its position is known, before any row is read.

    Returns
    -------
    StreamRun

    Examples
    --------
    >>> import io
    >>> from kalprox.sources.columns import Columns
    >>> rows = io.BytesIO(b'{"x": 1, "y": 2}\\n{"x": 2, "y": 4.1}\\n{"x": 3, "y": 5.9}\\n{"x": 4}\\n')
    >>> answers = io.BytesIO()
    >>> job = StreamJob(rows, answers, lambda head, style: (Columns("y", numeric=("x",)), {}))
    >>> end = run_stream(job)
    >>> end.counts.learned, end.counts.predicted, answers.getvalue().splitlines()[-1][:23]
    (3, 1, b'{"row": 4, "mean": 7.9,')
    """
    with Checkpoint(job.checkpoint) as checkpoint, Stopping() as stopping:
        run = StreamRun(job, checkpoint, stopping)
        try:
            run.open(started)
            run.loop()
            run.save()
            run.quarantine.finish()
        except Stopped:
            run.save()
        except BaseException:
            if run.is_whole:
                run.save()
            raise
        finally:
            run.quarantine.close()
        run.seconds = time.monotonic() - run.begin
        return run


class StreamRun:
    """One run of a stream, from the start or resumed from a checkpoint.

    Attributes
    ----------
    learner : Learner
    columns : Columns or FormulaColumns
    position : Position
    counts : StreamCounts
    pending : PendingRows
    quarantine : Quarantine
    latencies : deque of float
        Of the last rows, in seconds.
    lock : Lock
        Held while the state changes, for whoever reads it in another thread.
    answered : int
        The number of rows that were answered in this run.
    seconds : float
        Its duration, once it has ended.
    saved_at : int
        The number of rows that the checkpoint has; -1 if there is none.
    """

    learner: Learner
    columns: TableColumns
    parser: RowParser
    output: StreamOutput

    def __init__(self, job: StreamJob, checkpoint: Checkpoint, stopping: Stopping) -> None:
        self.job, self.checkpoint, self.stopping = job, checkpoint, stopping
        self.lock = threading.Lock()
        self.position, self.counts, self.pending = Position(), StreamCounts(), PendingRows(job.wait)
        self._base, self.saved_at, resume = job.model, -1, None
        if (saved := checkpoint.load(job.identity)) is not None:
            with checkpoint.resuming():
                state = StreamState.restored(str(checkpoint.file), *saved)
            self.position, self.counts, self.pending = state.position, state.counts, state.pending
            self._base, self.saved_at, resume = state.model, state.position.row, state.quarantine
        limit = "100%" if job.max_bad is None else job.max_bad
        self.quarantine = Quarantine(job.quarantine, limit, resume=resume)
        self.latencies: deque[float] = deque(maxlen=_LATENCIES)
        self.begin, self.answered, self.is_open, self.is_whole = time.monotonic(), 0, False, False
        self.seconds = 0.0
        self._free = 0.0  # since when the stream has waited for the next row
        self._last: Record | None = None
        self._record, self._held, self._held_rows = FitRecord(), list[Block](), 0
        self._saved_time, self._reported = time.monotonic(), 0.0

    # ---- beginning and end -----------------------------------------------------------------------------

    def open(self, started: Callable[["StreamRun"], Any]) -> None:
        """Read the header of the input, and find the columns."""
        job, resumes = self.job, self.saved_at >= 0
        if self._base is not None:
            self.columns, self.learner, self._record = self._base.columns, self._base.learner, self._base.record
        started(self)
        is_whole = job.checkpoint is None and _is_file(job.stream)
        opened = StreamInput(job.stream, **job.reading, is_whole=is_whole, reading=self.stopping.reading)
        self.records = opened.records
        if self._base is None:
            self.columns, parameters = job.infer(opened.head(job.head), opened.style)
            settings = Settings.of(**parameters)
            self.learner = Learner(settings if self.columns.cluster is None else settings.clustered())
        self._check_settings()
        if resumes and job.resume == "skip":
            self.records.skip(self.position)
        elif resumes:
            self.records.offset = self.position.offset
        samples = job.samples
        self.parser = RowParser(self.columns, opened.style, keyed=job.key is not None, samples=samples, name=job.source)
        keep = (() if job.key is None else (job.key,)) + tuple(name for name in job.keep if name != job.key)
        self.output = StreamOutput(
            job.output,
            job.to or opened.style.format,
            keep=keep,
            classes=self.columns.classes,
            writing=self.stopping.writing,
        )
        self.output.header()
        self.quarantine.open()
        self.is_open = self.is_whole = True

    def _check_settings(self) -> None:
        settings, columns = self.learner.settings, self.columns
        check_columns(settings, columns)
        check(settings, way="one pass")
        check_memory(len(columns.names) * max(1, len(columns.classes) - 1), sys.maxsize, settings.structure)
        location = settings.likelihood.location and not settings.is_linear
        # targets, beyond those that are bad rows, or rows that are older than those before them
        self._may_refuse = (location and not accepts_any(settings)) or settings.by_time

    def loop(self) -> None:
        """Answer rows until the input ends, or a signal has come."""
        job = self.job
        rows = job.rows if job.seconds is None else _MOST
        while self.stopping.signal is None and (batch := self.records.take(rows, job.seconds)):
            self.answer(batch)
            due = job.every is not None and self.position.row - max(self.saved_at, 0) >= job.every
            if job.every_seconds is not None:
                due |= time.monotonic() - self._saved_time >= job.every_seconds
            saved = due and self.save()
            if saved or time.monotonic() - self._reported >= _REPORTED:
                self._report(saved=saved)
        self._report()  # so that a change point among the last rows is said

    def _report(self, *, saved: bool = False) -> None:
        """Tell how far the stream is, and which change points were found."""
        self._reported, counts = time.monotonic(), self.counts
        found = (self.position.row, counts.bad, None, 0, counts.error, counts.coverage, saved, self.changes())
        self.job.watch(Progress(*found))

    def save(self) -> bool:
        """Write a checkpoint, unless there is nothing to save; return whether there was."""
        file = self.checkpoint.file
        if file is None or self._last is None or not self.learner.is_fitted or self.position.row == self.saved_at:
            return False
        with self.lock:
            self.position = self.position._replace(sha256=self._last.sha256)
            if not self.job.samples and self.learner.belief.predicts:
                self.learner.release_rows()
            state = StreamState(self.model(), self.position, self.counts, self.pending, self.quarantine.state())
            self.checkpoint.save(self.job.identity, *state.parts(), partial(rebuilt, StreamState.restored, file))
        self.saved_at, self._saved_time = self.position.row, time.monotonic()
        return True

    def model(self) -> TableModel:
        """Return the model of all rows so far, of which there must be one."""
        self._bring_up_to_date()
        if self._base is not None:
            sources = tuple(dict.fromkeys((*self._base.sources, self.job.source)))
            return replace(self._base, learner=self.learner, record=self._record, sources=sources)
        return TableModel(self.learner, self.columns, self._record, (self.job.source,))

    @property
    def fitted(self) -> TableModel | None:
        """The model of all rows so far; None if no row has been learned."""
        is_known = self.is_open or self._base is not None
        return self.model() if is_known and self.learner.is_fitted else None

    @property
    def cut(self) -> int:
        """The number of bytes at the end of the input that are no row, because they may be the beginning of one."""
        return self.records.cut if self.is_open else 0

    def changes(self) -> Changes | None:
        """Return the change points so far; None if they are not looked for."""
        looked_for = self.learner.settings.change_points is not None and self.learner.is_fitted
        return self.learner.score.changes if looked_for else None

    def quality(self) -> DataQuality:
        """Return what is known of the rows that were learned or are bad."""
        self._bring_up_to_date()
        return self._record.quality

    def _bring_up_to_date(self) -> None:
        """Add the rows since the last time to the record."""
        if self._held:
            quality = self._record.quality
            quality = quality.after(Block.joined(self._held), ranges=self.job.samples)
            self._record = replace(self._record, quality=quality)
            self._held, self._held_rows = [], 0

    # ---- rows ------------------------------------------------------------------------------------------

    def answer(self, records: Sequence[Record]) -> None:
        """Predict some rows, write the predictions, and learn the rows whose target is there.

        The state changes after the predictions have been written: for a stream that ends in between, these rows have
        not come.
        """
        first, parser = self.position.row + 1, self.parser
        rows = [parser.open(record) for record in records]
        with self.lock:
            batch = Batch(rows, first, parser, self.learner, self.pending, self.job)
            trial = self.learner.copy() if self._may_refuse and batch.learned is not None else None
            if trial is not None:
                batch.learn_those_accepted(trial, self.position.jumped)
        keep = self.output.keep
        kept = [[parser.cell(row, name) for name in keep] for row in rows] if keep else [()] * len(rows)
        self.output.rows(range(first, first + len(rows)), kept, batch.predicted, batch.statuses)
        now = time.perf_counter()
        self.latencies.extend([now - max(record.came, self._free) for record in records])
        with self.lock:
            self.is_whole = False
            self._commit(batch, records, trial)
            self.is_whole = True
        self._free = time.perf_counter()

    def _commit(self, batch: Batch, records: Sequence[Record], trial: Learner | None) -> None:
        """Take over a batch whose predictions have been written."""
        points = self.learner.n_rows // _HISTORY
        if trial is not None:
            self.learner = trial
        elif batch.learned is not None:
            try:
                self.learner.learn(batch.learned)
            except ValueError as error:
                rows = f"rows {batch.first} to {batch.first + len(batch.statuses) - 1}"
                raise SourceError(f"{self.job.source}, {rows} could not be learned: {error}") from error
        dropped = self.pending.n_dropped
        for key in batch.taken:
            self.pending.take(key)
        for key, row in batch.added.items():
            self.pending.add(key, row)
        bad, learned = [batch.bad[i] for i in sorted(batch.bad)], batch.learned
        self.quarantine.take(bad, len(records))
        self.counts = self.counts.plus(dropped=self.pending.n_dropped - dropped, **batch.counts())
        if learned is not None or bad:
            block = Block(np.empty((0, len(self.columns.names))), None) if learned is None else learned
            held = replace(block, read=len(block) + len(bad), bad=bad, notes=batch.notes, place=None)
            self._held.append(held)
            self._held_rows += held.read
        self._last = last = records[-1]
        jumped = batch.jumped if trial is not None else self.position.jumped
        self.position = Position(self.position.row + len(records), last.end, last.start, jumped=jumped)
        self.answered += len(records)
        if self._held_rows >= _HELD:
            self._bring_up_to_date()
        if self.learner.n_rows // _HISTORY > points:
            history = self._record.history.after(self.learner.n_rows, history_sums(self.learner.score))
            self._record = replace(self._record, history=history)


def _is_file(stream: Any) -> bool:
    """Whether a stream has an end that no writer can move: a file, or bytes in memory, and not a pipe."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # it has no number: it is in memory
        return True
