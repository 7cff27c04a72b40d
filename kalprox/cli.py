"""The command line. What a command needs is imported inside it, so that `--help` is instant."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kalprox.report import Table

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="kalprox")
def main() -> None:
    """Streaming regularised regression that knows how sure it is."""


@main.command()
@click.option("--seed", default=0, help="Seed of the data.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("kalprox-demo"), help="Folder for the page.")
def demo(seed: int, out: Path) -> None:
    """The paper's sparse sigmoid problem, small: its method, SGD and the proximal filter side by side.

    Ends with the path of one self-contained HTML page.
    """
    _need_matplotlib()
    from kalprox.paper import demo
    from kalprox.report import write_page

    with _bar("demo") as progress:
        results = demo.compute(seed, out / "cache", progress)
    page = demo.page(results)
    for section in page.sections:
        for table in section.tables:
            _show(table)
    click.echo(write_page(page, out / "demo.html", out / "figures").resolve())


@main.command()
@click.argument("what", type=click.Choice(["ridge", "sparse", "claims", "all"]))
@click.option("--seed", default=0, help="First seed; the same seed gives the same numbers.")
@click.option(
    "--seeds", type=click.IntRange(min=1), help="How many seeds; ridge is one data set.  [default: 20, ridge 1]"
)
@click.option("--quick", is_flag=True, help="Smaller sizes, said in the captions.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, help="Processes at once.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("kalprox-paper"), help="Folder for all of it.")
@click.option(
    "formats", "--format", type=click.Choice(["pdf", "png"]), multiple=True, help="Also write each figure as this."
)
def reproduce(
    what: str, seed: int, seeds: int | None, quick: bool, jobs: int, out: Path, formats: tuple[str, ...]
) -> None:
    """Rebuild the paper's figures and check its claims.

    Every number drawn lies in a JSON file beside its figure. Results are kept in OUT/cache: an interrupted
    run goes on where it was, and a changed setting is computed anew.
    """
    _need_matplotlib()
    from kalprox.paper import book
    from kalprox.report import write_page

    chapters = ["ridge", "sparse", "claims"] if what == "all" else [what]
    page = book.page(chapters, seed, seeds, quick, jobs, out / "cache", _bar)
    path = write_page(page, out / f"{what}.html", out / "figures", ("svg", *formats))
    for line in page.conclusions:
        click.echo(line)
    click.echo(path.resolve())


def _show(table: "Table") -> None:
    """A table on the terminal; plain lines where it is none."""
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(*table.columns, caption=table.caption)
    for row in table.rows:
        grid.add_row(*(cell if isinstance(cell, str) else f"{cell:.3g}" for cell in row))
    Console().print(grid)


def _need_matplotlib() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise click.ClickException("Figures need matplotlib: pip install 'kalprox[report]'.")


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on the terminal: the caller says (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
