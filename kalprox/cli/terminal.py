"""The output of commands: a progress bar in a terminal, lines of text elsewhere, and events in a file.

All text goes through `printable`: names and values from files cannot control the terminal.
"""

import json
import math
import sys
import time
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from shutil import get_terminal_size
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from kalprox.base.files import open_locked
from kalprox.base.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    from kalprox.display.tables import Table
    from kalprox.jobs.run import Progress
    from kalprox.learning.facts import Headline
    from kalprox.sources.quarantine import Notes


EVENTS = {
    "start": "`command`, and `total_rows`, which is null if the files do not state it",
    "position": "For stream: the number of the `row` and the byte, `offset`, after which it begins",
    "progress": "Twice a second: `rows` read in this pass, `share` of the source that has been read, `number` of the "
    "pass (from 1), number of `bad` rows, `rows_per_second`, and the `rmse` and the `coverage` of the 95% intervals of "
    "the predictions so far",
    "change": "A change point has been found, see `--change-points`: its `number` (from 1), the `row` after which it "
    "was found, the `start`, which is the first row after the change, the `probability`, and the `time` and "
    "`start_time` of these rows, which are null if rows have no times. After a checkpoint was resumed, earlier ones "
    "come first: the file has each change point once",
    "checkpoint": "A checkpoint has been written: the fields of `progress`",
    "done": "`rows` and `bad`; `headline`, a list of lines, each with `label`, `text` and `doubt`; `unknown_levels` "
    "and `rounded_numbers`, if there are any: for each column `count`, `filled` (the number of cells that are not "
    "missing) and `examples`; for fit also `model`, `passes`, `converged`, `rmse`, `coverage`; for predict also "
    "`out`; for stream also `model`, `offset`, the numbers of rows that were `learned`, were `predicted` only, are "
    "`waiting` and were `dropped`, the number of bytes after the last row that may be the beginning of a row which was "
    "`cut`, the `error` and the `coverage` of the predictions issued, `rows_per_second`, and `latency_p50` and "
    "`latency_p99` in seconds",
    "failed": "`error`, the message",
}
_LINE_INTERVAL = 5.0  # seconds between two lines of text
_WIDTH = 120  # columns of tables where there is no terminal
_EVENT_INTERVAL = 0.5  # seconds between two progress events


def echo(text: Any, *, err: bool = False) -> None:
    """Print text to standard output, or to standard error."""
    click.echo(printable(str(text)), err=err)


class Reporter:
    """Reports the progress and the result of a job, inside `with Reporter(...) as reporter`.

    Parameters
    ----------
    command : str
        The name of the command.
    quiet : bool
        Print nothing.
    events : Path or None
        The file to write events to. It is locked: another command that writes to it is not disturbed.
    total : int or None
        The number of rows to read, if it is known.
    """

    def __init__(self, command: str, *, quiet: bool, events: Path | None, total: int | None = None) -> None:
        self.command, self.total = command, total
        self.terminal = not quiet and sys.stderr.isatty()
        self.lines = not quiet and not self.terminal
        self._events = None if events is None else TextIOWrapper(open_locked(events), encoding="utf-8")
        self._bar: Any = None
        self._start = self._last_line = self._last_event = time.monotonic()
        self._changes = 0  # that were written to the events file
        self._pass, self._first_rows = -1, 0  # the current pass, and its rows when it was first reported

    def __enter__(self) -> Self:
        if self.terminal:
            from rich.console import Console

            self._bar = rows_bar(Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(self.command, total=None, text="")
        self.event("start", command=self.command, total_rows=self.total)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._events is not None:
            if error is not None:
                self.event("failed", error=str(error) or type(error).__name__)
            self._events.close()

    def event(self, name: str, **values: Any) -> None:
        """Write an event to the events file, if there is one."""
        if self._events is None:
            return
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        plain = {"event": name, "seconds": round(time.monotonic() - self._start, 3), **plain}
        self._events.write(json.dumps(plain) + "\n")
        self._events.flush()

    def progress(self, now: "Progress") -> None:
        """Report the progress of a job; called after every block of rows."""
        clock = time.monotonic()
        if now.number != self._pass:
            self._first_rows, self._pass, self._pass_start = now.rows, now.number, clock
        self._report_changes(now)
        rate = (now.rows - self._first_rows) / max(clock - self._pass_start, 1e-9)
        if now.checkpoint or clock - self._last_event >= _EVENT_INTERVAL:
            self._last_event = clock
            self.event(
                "checkpoint" if now.checkpoint else "progress",
                rows=now.rows,
                bad=now.bad,
                share=now.share,
                number=now.number + 1,
                rmse=now.rmse,
                coverage=now.coverage,
                rows_per_second=round(rate),
            )
        if self._bar is not None:
            done = None if now.share is None else round(1000 * now.share)
            total = None if now.share is None else 1000
            self._bar.update(self._task, completed=done or 0, total=total, text=_text(now, rate))
        elif self.lines and clock - self._last_line >= _LINE_INTERVAL:
            self._last_line = clock
            share = "" if now.share is None else f"{now.share:4.0%}  "
            print(f"{share}{_text(now, rate)}", file=sys.stderr, flush=True)

    def _report_changes(self, now: "Progress") -> None:
        """Write the change points that were found since the last call; of very many, those that are kept."""
        if now.changes is None or now.changes.found == self._changes:
            return
        points, found = now.changes.points, now.changes.found
        for number, point in enumerate(points, found - len(points) + 1):
            if number > self._changes:
                self.event("change", number=number, **point._asdict())
        self._changes = found

    def say(self, text: str) -> None:
        """Print a line of the result, unless quiet."""
        if self.terminal or self.lines:
            echo(text)


def events_of(notes: "Notes") -> dict[str, Any]:
    """The fields of an event about unknown levels, rounded numbers and missing values, if there are any."""
    missing, targets = ({k: v for k, v in one.items() if v.count} for one in (notes.missing, notes.unlabelled))
    found = {"unknown_levels": notes.unknown_levels, "rounded_numbers": notes.rounded}
    found |= {"missing_features": missing, "missing_targets": targets}
    return {key: {name: asdict(note) for name, note in columns.items()} for key, columns in found.items() if columns}


def end_strictly(headline: "Headline") -> None:
    """End the command with exit code 8 if the headline has doubts, and print them to standard error."""
    if headline.doubts:
        echo(headline._replace(lines=headline.doubts), err=True)
        sys.stdout.flush()
        click.get_current_context().exit(8)


def _text(now: "Progress", rate: float) -> str:
    parts = [f"{now.rows:,} rows", *([f"{rate:,.0f}/s"] if rate else [])]  # none is known at the first report
    if now.number:
        parts.insert(0, f"pass {now.number + 1}")
    if now.bad:
        parts.append(f"{now.bad:,} bad")
    if not math.isnan(now.rmse):
        parts.append(f"RMSE {now.rmse:.4g}")
    if not math.isnan(now.coverage):
        parts.append(f"95% intervals cover {now.coverage:.1%}")
    return ", ".join(parts)


def rows_bar(console: "Console") -> "RichProgress":
    """A progress bar, the time left, and a text, which is cut short where the line ends: bar and time stay."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    return Bar(
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        console=console,
        expand=True,
    )


def show_table(table: "Table") -> None:
    """Print a table after an empty line."""
    from kalprox.display.tables import as_text

    width = get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    print(f"\n{as_text(table, width)}", flush=True)
