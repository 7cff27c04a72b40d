"""Commands on model files: show, report, path, merge."""

from pathlib import Path

import click

__all__ = ["merge", "path", "report", "show"]

MODEL = click.Path(exists=True, dir_okay=False, path_type=Path)
LEVEL = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.command()
@click.argument("model", type=MODEL)
@click.option("--level", type=LEVEL, default=0.95, help="Of the intervals.")
@click.option(
    "--top", type=click.IntRange(min=1), default=40, help="Coefficients to show, those of the largest effect."
)
def show(model: Path, level: float, top: int) -> None:
    """What MODEL has learned, in the terminal.

    \b
    Example:
      kalprox show flights.kalprox --top 10
    """
    from kalprox.cli.terminal import show_table
    from kalprox.jobs.model import TableModel
    from kalprox.reports import summary

    found = TableModel.load(model)
    for table in summary.tables(found, level=level, top=top):
        show_table(table)
    score = found.model.diagnostics_
    if float(score.rows):
        click.echo(str(score.verdict()))


@click.command()
@click.argument("model", type=MODEL)
@click.option("--level", type=LEVEL, default=0.95, help="Of the intervals.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page.  [default: MODEL with .html for its suffix]",
)
def report(model: Path, level: float, out: Path | None) -> None:
    """One HTML page about MODEL: coefficients with intervals, calibration, running error, correlations, data quality.

    \b
    Example:
      kalprox report flights.kalprox --out flights.html
    """
    from kalprox.cli.terminal import need_matplotlib
    from kalprox.jobs.model import TableModel

    need_matplotlib()
    from kalprox.pages import write_page
    from kalprox.reports import model as report

    page = report.page(TableModel.load(model), model.name, level)
    click.echo(write_page(page, out or model.with_suffix(".html")).resolve())


@click.command()
@click.argument("model", type=MODEL)
@click.option("--alphas", help="Weights of the penalty, with commas.  [default: a grid]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="CSV file with all coefficients.")
def path(model: Path, alphas: str | None, out: Path | None) -> None:
    """The whole regularisation path of MODEL, without its data: for each alpha what is left of the coefficients.

    \b
    Example:
      kalprox path flights.kalprox --alphas 1,10,100 --out path.csv
    """
    from kalprox.cli.terminal import show_table
    from kalprox.jobs.model import TableModel
    from kalprox.reports.path import table, write

    found = TableModel.load(model)
    try:
        chosen = None if alphas is None else [float(alpha) for alpha in alphas.split(",")]
    except ValueError:
        raise click.BadParameter(f"expected numbers with commas, such as 1,10,100; got {alphas!r}.") from None
    traced = found.model.path(chosen)
    show_table(table(found, traced))
    if out is not None:
        write(found, traced, out)
        click.echo(out)


@click.command()
@click.argument("models", nargs=-1, required=True, type=MODEL, metavar="MODEL MODEL...")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Model file.")
def merge(models: tuple[Path, ...], out: Path) -> None:
    """One model of all the rows that linear MODELs were fitted to, exactly as if they had been fitted together.

    They must have read their columns alike: fit the first, and the others with --columns FIRST.

    \b
    Example:
      kalprox merge january.kalprox february.kalprox --out winter.kalprox
    """
    from kalprox.jobs.model import TableModel

    if len(models) < 2:
        raise click.UsageError("merge needs two models or more.")
    first, *others = (TableModel.load(model) for model in models)
    for other in others:
        first = first.merge(other)
    first.save(out)
    click.echo(f"{out}: {first.model.n_rows_seen_:,} rows of {len(models)} models")
