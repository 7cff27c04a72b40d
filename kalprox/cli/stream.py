"""`kalprox stream`: a process that stays on, and answers every row as it comes."""

import gc
import io
import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kalprox.base.files import check_distinct
from kalprox.cli.columns import table_of
from kalprox.cli.errors import end_output
from kalprox.cli.fit import fit
from kalprox.cli.options import (
    BYTES,
    COUNT,
    EXISTING,
    FILE,
    LEVEL,
    MAX_BAD,
    NAMES,
    PACE,
    GroupedCommand,
    Options,
    Pace,
    is_given,
    option,
    options,
    outputs,
)
from kalprox.cli.settings import most_classes, settings_of

if TYPE_CHECKING:
    from kalprox.jobs.stream import StreamRun
    from kalprox.sources.columns import TableColumns
    from kalprox.sources.row_parser import Style


# Options of fit that a stream has too: not those of a run over files.
_OF_FIT = [
    option
    for option in fit.params
    if getattr(option, "group", "Running") != "Running"
    and option.name not in ("infer_rows", "spool", "encoding", "memory", "skip_unreadable", "strict")
]
# Options that are needed first.
_FIRST = ("model", "target", "features", "likelihood", "forget", "key", "level", "quarantine", "checkpoint", "out")
_SWITCH = 0.0005  # seconds after which a thread that serves the page of --watch lets the stream go on
_READING = ("format", "max_record", "delimiter", "decimal", "thousands", "units")  # of `StreamInput`
# Options that are parameters of the job.
_OF_JOB = ("to", "key", "wait", "keep", "level", "interval", "quarantine", "max_bad", "max_jump", "samples")
# Of the options of a stream alone, those about the rows and the model that a checkpoint holds.
_OF_MODEL = ("model", "format", "key")


class _Stream(Options):
    """Options that only a stream has.

    Attributes
    ----------
    model
        Model file to begin with; its target, columns and settings are used.
    out
        Model file to write when the input ends, or SIGTERM or SIGINT comes.
        [default: none]
    format
        Format of the input.
        [default: jsonl if its first byte is a brace, else csv]
    to
        Format of the output.
        [default: that of the input]
    flush
        Rows to answer at a time, or a time such as 0.5s in which rows are collected. The rows that are answered
        together are predicted from the rows before all of them.
    key
        Column by which a target that comes later finds its row: a row without a target waits, and a later row with the
        same key and a target teaches it.
    wait
        Maximum number of rows that wait for their target; then the oldest is dropped.
    keep
        Columns of the input to copy to the output, separated by commas.
    level
        Level of the intervals.
    interval
        Kind of the intervals; see kalprox predict.
    infer_rows
        Rows from which types of columns, and levels, are inferred; they are answered once all of them have come. With
        --model or --columns, none is waited for.
    checkpoint
        Save the state of the stream to this file; after a crash, the same command resumes from it.
    every
        Rows between two checkpoints, or a time such as 30s.
    resume
        Input of a stream that resumes: skip, it begins with the first row again, and the rows that the checkpoint has
        are passed over; continue, it begins with the row after them (after the header, for csv).
    position
        Print the number of rows and bytes that the checkpoint has, as JSON, and end.
    port
        Serve a page on http://127.0.0.1:PORT that shows the stream; 0 picks a port, and says it.
    max_record
        Longest record (line); a longer one is a bad row.
    max_jump
        With --forget time: a row that comes more than so many half-lives after the row before it is bad, or a wrong
        time would make bad rows of all that follow and are earlier. If the next row is as late, it is learned.
    max_bad
        Maximum number (or percentage) of bad rows before stopping.
        [default: no limit]
    """

    group = "Stream"
    model = option(type=EXISTING)
    out = option(type=FILE)
    format = option(type=click.Choice(["jsonl", "csv", "tsv"]))
    to = option(type=click.Choice(["jsonl", "csv"]))
    flush = option(type=PACE, default="1")
    key = option(metavar="COLUMN")
    wait = option(type=COUNT, default=100_000)
    keep = option(type=NAMES, default=())
    level = LEVEL
    interval = option(type=click.Choice(["gaussian", "conformal"]), default="gaussian")
    infer_rows = option("--infer-rows", "--look", default=100, type=COUNT)
    checkpoint = option(type=FILE)
    every = option("--every", "--checkpoint-every", type=PACE, default="10000")
    resume = option(type=click.Choice(["skip", "continue"]), default="skip")
    position = option(is_flag=True)
    port = option("--watch", type=click.IntRange(0, 65535), metavar="PORT")
    max_record = option(type=BYTES, default="1MB")
    max_jump = option(type=click.FloatRange(min=0, min_open=True), default=50.0, metavar="HALF-LIVES")
    max_bad = option(type=MAX_BAD)


@click.command(cls=GroupedCommand, first=_FIRST)
@click.argument("source", default="-", metavar="[SOURCE]")
@options(_Stream)
def stream(
    source: str,
    *,
    model: Path | None,
    out: Path | None,
    flush: Pace,
    infer_rows: int,
    checkpoint: Path | None,
    every: Pace,
    resume: str,
    position: bool,
    port: int | None,
    quiet: bool,
    events: Path | None,
    **given: Any,
) -> None:
    """Predict every row of standard input as it comes, and learn it as soon as its target is there.

    The input is JSON lines or CSV: SOURCE is a file, or - for standard input. Each row gets one line on standard
    output: its number, the mean, standard deviation and interval (for classes, their probabilities), and a status:
    learned; predicted, if it has no target; waiting or late, with --key; bad. The model is that of --model, or the one
    that `kalprox fit` with the same options would fit to these rows.

    Rows are read no faster than the output is, and the memory does not grow. With --checkpoint, every row is in the
    model exactly once, whatever happens, if the input is sent again from the position of the checkpoint. SIGTERM and
    SIGINT save the checkpoint and --out.

    \b
    Example:
      tail -f rides.jsonl | kalprox stream --target rides --checkpoint rides.ckpt --quarantine bad.csv
      kalprox stream --model flights.kalprox --key flight --out flights.kalprox --watch 8080 < flights.csv
    """
    from kalprox.cli.stream_summary import cut_short, event_of, say_position, summary
    from kalprox.cli.terminal import Reporter, echo
    from kalprox.jobs.stream import run_stream
    from kalprox.jobs.stream_job import StreamJob
    from kalprox.sources.files import open_stdin

    key, files = given["key"], outputs(checkpoint, given["quarantine"], events)
    streams = [("--out", out), ("standard output", Path("/dev/stdout")), *files]
    check_distinct([("SOURCE", source)] if source != "-" else [], streams)
    if position:
        say_position(checkpoint)
        return
    if key is not None and given["formula"] is not None:
        raise click.UsageError("--key cannot be used with --formula, whose target is computed from columns.")
    if key is not None and given["time"] is not None:
        raise click.UsageError("--key cannot be used with --time: a row whose target is late is older than others.")
    if key is not None and not given["samples"]:
        raise click.UsageError("--key cannot be used with --no-samples: rows that wait are values of rows.")
    begin = None if model is None else _model(model, given)
    with ExitStack() as stack:
        file = open_stdin() if source == "-" else stack.enter_context(_opened(source))
        reporter = stack.enter_context(Reporter("stream", quiet=quiet, events=events))

        def started(run: "StreamRun") -> None:
            gc.collect()
            gc.freeze()  # what has been imported stays: looking through it again would hold up rows
            at = run.position
            reporter.event("position", row=at.row, offset=at.offset)
            if at.row and not quiet:
                what = "the first rows are skipped" if resume == "skip" else "the input begins after them"
                echo(f"Resumed after row {at.row:,}, byte {at.offset:,}: {what}.", err=True)
            if port is not None:
                from kalprox.jobs.stream_view import StreamView
                from kalprox.pages.live import LivePage

                sys.setswitchinterval(_SWITCH)
                view = stack.enter_context(StreamView(run))
                page = stack.enter_context(LivePage(view.state, port))
                echo(f"Watch the stream at {page.address}", err=True)

        job = StreamJob(
            file,
            sys.stdout.buffer,
            partial(_inferred, rows=infer_rows, given=given),
            begin,
            head=infer_rows,
            reading={name: given[name] for name in _READING},
            rows=flush.rows or 1,
            seconds=flush.seconds,
            checkpoint=checkpoint,
            resume=resume,
            every=every.rows,
            every_seconds=every.seconds,
            identity=_identity(),
            source=source,
            watch=reporter.progress,
            **{name: given[name] for name in _OF_JOB},
        )
        end = run_stream(job, started)
        saved = None if end.fitted is None else out
        if end.fitted is not None and saved is not None:
            end.fitted.save(saved)
        reporter.event("done", **event_of(end), model=None if saved is None else str(saved))
    if end.cut:
        echo(cut_short(end, checkpoint), err=True)
    if not quiet:
        for line in summary(end, given["level"], out, checkpoint):
            echo(line, err=True)
    if end.stopping.signal is not None:
        end_output()
        click.get_current_context().exit(128 + end.stopping.signal)


stream.params += [option for option in _OF_FIT if option.name not in [own.name for own in stream.params]]


def _opened(source: str) -> Any:
    """A file of rows, and not a folder or a pattern: a stream has one input."""
    from kalprox.sources.files import SourceError

    try:
        return open(source, "rb")
    except OSError as error:
        raise SourceError(
            f"{source}: {error.strerror}. A stream has one input, a file or - for standard input."
        ) from None


def _model(file: Path, given: dict[str, Any]) -> Any:
    """The model to begin with, whose columns and settings no option changes."""
    from dataclasses import replace

    from kalprox.jobs.model import TableModel

    found = TableModel.load(file)
    about_rows = (*_READING, "quarantine", "max_bad", "samples", "quiet", "events")
    for one in _OF_FIT:
        if one.name not in ("target", *about_rows) and is_given(str(one.name)):
            raise click.UsageError(f"{max(one.opts, key=len)} cannot be used with --model, whose model says it.")
    target = given["target"]
    if found.fitted_to == "files" and target not in (None, found.columns.target):
        raise click.UsageError(f"--target must be {found.columns.target!r}, that of {file}; got {target!r}.")
    return found if target is None else replace(found, columns=replace(found.columns, target=target))


def _inferred(
    head: bytes, style: "Style", *, rows: int, given: dict[str, Any]
) -> "tuple[TableColumns, dict[str, Any]]":
    """The columns and the parameters of the estimator, from the options of fit and the first rows."""
    from kalprox.sources.files import STDIN, Replay

    options: dict[str, Any] = {"encoding": "utf-8", "skip_unreadable": False, "max_record": max(len(head) + 1, 1 << 20)}
    options |= {"format": style.format, "infer_rows": rows + 1, "spool": 1 << 40}
    options |= {"memory": 1 << 28, "shuffle": None, "quiet": True}
    if given["key"] is not None:
        head = _with_target(head, style, given)
        options["exclude"] = (*given["exclude"], given["key"])
    given = given | options | {"stdin": Replay(io.BytesIO(head))}
    if style.header is not None:
        given["delimiter"] = style.delimiter
    table = table_of([STDIN], given)
    return table.columns, settings_of(table.columns, given)


def _with_target(head: bytes, style: "Style", given: dict[str, Any]) -> bytes:
    """The first rows, with a target in one more of them if all targets of numbers are still to come."""
    target = given["target"]
    lines = head.splitlines()
    if style.header is not None or target is None or not lines or given["likelihood"].name in most_classes():
        return head
    try:
        rows = [json.loads(line) for line in lines if line.strip()]
    except ValueError:
        return head  # which is said by whoever reads it
    if any(not isinstance(row, dict) or row.get(target) is not None for row in rows):
        return head
    return head.rstrip() + b"\n" + json.dumps({target: 0.0}).encode() + b"\n"


def _identity() -> dict[str, Any]:
    """What a checkpoint and a stream that resumes from it have in common: the options about rows and model."""
    context = click.get_current_context()
    groups = {parameter.name: getattr(parameter, "group", "Stream") for parameter in context.command.params}
    options = {
        name: value
        for name, value in context.params.items()
        if is_given(name) and (name in _OF_MODEL or groups[name] not in ("Stream", "Output"))
    }
    plain: dict[str, Any] = json.loads(json.dumps({"command": "stream", "options": options}, default=str))
    return plain
