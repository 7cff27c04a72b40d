"""What a command says while it runs: a bar on a terminal, lines elsewhere, events in a file."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from kalprox.jobs.fit import Progress
    from kalprox.pages import Table

__all__ = ["EVENTS", "Reporter", "bar", "need_matplotlib", "show_table"]

EVENTS = {
    "start": "`command`; `total_rows`, null where the files do not say",
    "progress": "twice a second: `rows` read in this pass, `share` of the source, `number` of the pass from 1, `bad` "
    "rows, `rows_per_second`, and of the predictions so far `rmse` and the 95% intervals' `coverage`",
    "checkpoint": "one was written; the same as `progress`",
    "done": "`rows` and `bad`; of fit also `model`, `passes`, `converged`, `rmse`, `coverage`; of predict also `out`",
    "failed": "`error`",
}
_LINE_EVERY = 5.0  # seconds between two lines where there is no terminal
_EVENT_EVERY = 0.5  # and between two events of progress


class Reporter:
    """Says how a job goes on, and what came of it."""

    def __init__(self, what: str, *, quiet: bool, events: Path | None, total: int | None = None) -> None:
        self.what, self.total = what, total
        self.terminal = not quiet and sys.stderr.isatty()
        self.lines = not quiet and not self.terminal
        self._events: TextIO | None = None if events is None else events.open("w", encoding="utf-8")
        self._bar: Any = None
        self._began = self._said = self._told = time.monotonic()
        self._number, self._first = -1, 0  # the pass under way, and the rows it had when first heard of

    def __enter__(self) -> Self:
        if self.terminal:
            self._bar = _progress_bar()
            self._bar.start()
            self._task = self._bar.add_task(self.what, total=None, text="")
        self.event("start", command=self.what, total_rows=self.total)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._events is not None:
            if error is not None:
                self.event("failed", error=str(error) or type(error).__name__)
            self._events.close()

    def event(self, name: str, **values: Any) -> None:
        """One line of the events file, if there is one."""
        if self._events is None:
            return
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        plain = {"event": name, "seconds": round(time.monotonic() - self._began, 3), **plain}
        self._events.write(json.dumps(plain) + "\n")
        self._events.flush()

    def progress(self, now: "Progress") -> None:
        """After a block."""
        clock = time.monotonic()
        if now.number != self._number:
            self._first, self._number, self._pass_began = now.rows, now.number, clock
        rate = (now.rows - self._first) / max(clock - self._pass_began, 1e-9)
        if now.checkpoint or clock - self._told >= _EVENT_EVERY:
            self._told = clock
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
        elif self.lines and clock - self._said >= _LINE_EVERY:
            self._said = clock
            share = "" if now.share is None else f"{now.share:4.0%}  "
            print(f"{share}{_text(now, rate)}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line of result, unless quiet."""
        if self.terminal or self.lines:
            print(text, flush=True)


def _text(now: "Progress", rate: float) -> str:
    parts = [f"{now.rows:,} rows", f"{rate:,.0f}/s"]
    if now.number:
        parts.insert(0, f"pass {now.number + 1}")
    if not math.isnan(now.rmse):
        parts += [f"error {now.rmse:.4g}", f"95% intervals cover {now.coverage:.1%}"]
    if now.bad:
        parts.append(f"{now.bad:,} bad")
    return ", ".join(parts)


def _progress_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = BarColumn(), TaskProgressColumn(), TimeRemainingColumn(compact=True), TextColumn("{task.fields[text]}")
    return Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True))


def show_table(table: "Table") -> None:
    """A table on the terminal; plain lines where it is none."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(*map(escape, table.columns), caption=Text(table.caption) if table.caption else None)
    for row in table.rows:
        grid.add_row(*(Text(_cell(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 120).print(grid)


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def need_matplotlib() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ImportError("Figures need matplotlib: pip install 'kalprox[report]'.")


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on the terminal: the caller says (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
