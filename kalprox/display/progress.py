"""Progress bars: in a terminal, in a notebook, and a last line where there is neither."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kalprox.display.tables import progress

_INTERVAL = 0.1  # seconds between two changes of a bar in a notebook


@contextmanager
def progress_bar(
    title: str, total: float | None = None, *, shown: bool = True
) -> Iterator[Callable[[float, float | None], None]]:
    """Show a progress bar as long as the context lasts.

    In a terminal, and where standard error goes to a file, it is a bar of rich on standard error. In a notebook it is
    an output of the cell, which stays; widgets need not be installed.

    Parameters
    ----------
    title : str
        What is counted, such as "rows".
    total : float, optional
        The number at the end, if it is known.
    shown : bool
        Whether there is a bar at all.

    Yields
    ------
    callable
        A function of the numbers (done, total); the total is None if it is not known.
    """
    if not shown:
        yield lambda done, total: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        with _in_notebook(title, total) as show:
            yield show
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _in_notebook(title: str, total: float | None) -> Iterator[Callable[[float, float | None], None]]:
    from IPython.display import display

    start = last = time.monotonic()
    done, end = 0.0, total

    def content() -> dict[str, str]:
        spent = time.monotonic() - start
        left = None if not done or end is None else spent * (end - done) / done
        return progress(title, done, end, spent, left)

    output = display(content(), raw=True, display_id=True)

    def show(now: float, total: float | None) -> None:
        nonlocal done, end, last
        done, end, clock = now, total, time.monotonic()
        if clock - last >= _INTERVAL:
            last = clock
            output.update(content(), raw=True)

    try:
        yield show
    finally:  # the last state stays, also of what was interrupted
        output.update(content(), raw=True)
