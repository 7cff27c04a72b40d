"""Commands that rebuild the paper's experiments."""

from pathlib import Path

import click

from kalprox.cli.terminal import bar, need_matplotlib, show_table

__all__ = ["demo", "reproduce"]


@click.command()
@click.option("--seed", default=0, help="Seed of the data.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("kalprox-demo"), help="Folder for the page.")
def demo(seed: int, out: Path) -> None:
    """The paper's sparse sigmoid problem, small: its method, SGD and the proximal filter side by side.

    Ends with the path of one self-contained HTML page.

    \b
    Example:
      kalprox demo --out demo
    """
    need_matplotlib()
    from kalprox.pages import write_page
    from kalprox.paper import demo

    with bar("demo") as progress:
        results = demo.compute(seed, out / "cache", progress)
    page = demo.page(results)
    for section in page.sections:
        for table in section.tables:
            show_table(table)
    click.echo(write_page(page, out / "demo.html", out / "figures").resolve())


@click.command()
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

    \b
    Example:
      kalprox reproduce all --quick --out paper
    """
    need_matplotlib()
    from kalprox.pages import write_page
    from kalprox.paper import page as book

    chapters = ["ridge", "sparse", "claims"] if what == "all" else [what]
    page = book.page(chapters, seed, seeds, quick, jobs, out / "cache", bar)
    path = write_page(page, out / f"{what}.html", out / "figures", ("svg", *formats))
    for line in page.conclusions:
        click.echo(line)
    click.echo(path.resolve())
