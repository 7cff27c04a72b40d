"""Commands that reproduce the paper's experiments: `kalprox demo` and `kalprox reproduce`."""

from pathlib import Path

import click

from kalprox.cli.options import Options, option, options
from kalprox.cli.terminal import echo, show_table


class _Demo(Options):
    """Options of `kalprox demo`.

    Attributes
    ----------
    seed
        Seed of the data.
    out
        Folder for the page and its figures.
    """

    seed = option(default=0)
    out = option(type=click.Path(path_type=Path), default=Path("kalprox-demo"))


@click.command()
@options(_Demo)
def demo(seed: int, out: Path) -> None:
    """Show a stream with intervals, and then the paper's sparse problem by its method, SGD and the proximal filter.

    Prints tables, and the path of a self-contained HTML page.

    \b
    Example:
      kalprox demo --out demo
    """
    from kalprox.pages import require_report_packages

    require_report_packages()
    from kalprox.pages import write_page
    from kalprox.paper import demo

    page = demo.page(seed, out / "cache")
    for section in page.sections:
        for table in section.tables:
            show_table(table)
    echo(write_page(page, out / "demo.html", out / "figures").resolve())


class _Reproduce(Options):
    """Options of `kalprox reproduce`.

    Attributes
    ----------
    seed
        First seed; the same seed gives the same numbers.
    seeds
        Number of seeds; the ridge experiment has one.
        [default: 20; 3 for sparse with --quick]
    quick
        Use smaller problems; the captions state their sizes.
    jobs
        Number of processes.
    out
        Folder for the page, its figures and the cached results.
    formats
        Write the figures in this format too. Repeatable.
    """

    seed = option(default=0)
    seeds = option(type=click.IntRange(min=1))
    quick = option(is_flag=True)
    jobs = option(type=click.IntRange(min=1), default=2)
    out = option(type=click.Path(path_type=Path), default=Path("kalprox-paper"))
    formats = option("--format", type=click.Choice(["pdf", "png"]), multiple=True)


@click.command()
@click.argument("what", type=click.Choice(["ridge", "sparse", "claims", "all"]))
@options(_Reproduce)
def reproduce(
    what: str, seed: int, seeds: int | None, quick: bool, jobs: int, out: Path, formats: tuple[str, ...]
) -> None:
    """Reproduce the paper's figures, and check its claims.

    The numbers of each figure are written to a JSON file beside it. Results are cached in OUT/cache, so that an
    interrupted run resumes; what depends on a changed setting is computed again.

    \b
    Example:
      kalprox reproduce all --quick --out paper
    """
    from kalprox.base.extras import require
    from kalprox.pages import require_report_packages

    require("jax", "Reproducing the paper needs")  # compiled loops, and programs whose cost is counted
    require_report_packages()
    from kalprox.pages import write_page
    from kalprox.paper import page as paper

    chapters = ["ridge", "sparse", "claims"] if what == "all" else [what]
    page = paper.page(chapters, seed, seeds, quick, jobs, out / "cache")
    path = write_page(page, out / f"{what}.html", out / "figures", ("svg", *formats))
    for line in page.conclusions:
        echo(line)
    echo(path.resolve())
