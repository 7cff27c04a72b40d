"""Commands on model files: `kalprox show`, `report`, `path` and `merge`."""

from pathlib import Path

import click

from kalprox.base.files import check_distinct, descriptor
from kalprox.base.text import in_options
from kalprox.cli.options import COUNT, EXISTING, FILE, LEVEL, Options, StrictOption, option, options
from kalprox.cli.terminal import echo, end_strictly


class _Show(Options):
    """Options of `kalprox show`.

    Attributes
    ----------
    level
        Level of the intervals.
    top
        Maximum number of coefficients to show; those with the largest effects are shown.
    """

    level = LEVEL
    top = option(type=COUNT, default=40)


@click.command()
@click.argument("model", type=EXISTING)
@options(_Show, StrictOption)
def show(model: Path, level: float, top: int, strict: bool) -> None:
    """Print a summary of MODEL: what became of the rows and what is doubtful, settings, coefficients, calibration.

    \b
    Example:
      kalprox show flights.kalprox --top 10
    """
    from kalprox.cli.terminal import show_table
    from kalprox.jobs.model import TableModel
    from kalprox.learning.facts import verdict_of
    from kalprox.reports import summary

    fitted = TableModel.load(model)
    headline = fitted.headline()
    echo(headline)
    for table in summary.tables(fitted, level=level, top=top):
        show_table(table)
    verdict = verdict_of(fitted.learner)
    if verdict.rows or verdict.reason:
        echo(in_options(verdict.text))
    if strict:
        end_strictly(headline)


class _Report(Options):
    """Options of `kalprox report`.

    Attributes
    ----------
    level
        Level of the intervals.
    out
        HTML file to write.
        [default: MODEL with the suffix .html]
    """

    level = LEVEL
    out = option(type=FILE)


@click.command()
@click.argument("model", type=EXISTING)
@options(_Report, StrictOption)
def report(model: Path, level: float, out: Path | None, strict: bool) -> None:
    """Write an HTML page about MODEL: coefficients with intervals, calibration, running error, correlations, data.

    \b
    Example:
      kalprox report flights.kalprox --out flights.html
    """
    from kalprox.jobs.model import TableModel
    from kalprox.pages import require_report_packages, write_page

    require_report_packages()
    from kalprox.reports import model as report

    out = out or model.with_suffix(".html")
    check_distinct([("MODEL", model)], [("--out", out)])
    fitted = TableModel.load(model)
    headline = fitted.headline()
    echo(headline, err=True)
    echo(write_page(report.page(fitted, model.name, level), out).absolute(), err=descriptor(out) == 1)
    if strict:
        end_strictly(headline)


class _Path(Options):
    """Options of `kalprox path`.

    Attributes
    ----------
    alphas
        Weights of the penalty, separated by commas.
        [default: a grid]
    out
        CSV file to write all coefficients to.
    figure
        Figure of the scores to write: .svg, .png or .pdf; its numbers go to a .json file beside it.
    """

    alphas = option()
    out = option(type=FILE)
    figure = option(type=FILE)


@click.command()
@click.argument("model", type=EXISTING)
@options(_Path)
def path(model: Path, alphas: str | None, out: Path | None, figure: Path | None) -> None:
    """Compute the regularisation path of MODEL: its coefficients for each weight alpha of the penalty.

    The model file is enough; the data are not read again. Scores are relative to that of the best alpha. The grid
    extends until the best is inside, or until larger or smaller alphas change nothing.

    \b
    Example:
      kalprox path flights.kalprox --figure path.svg --out path.csv
    """
    from dataclasses import replace

    from kalprox.cli.terminal import show_table
    from kalprox.jobs.model import TableModel
    from kalprox.reports import path as report

    check_distinct([("MODEL", model)], [("--out", out), ("--figure", figure)])
    if figure is not None:
        from kalprox.pages import require_report_packages

        require_report_packages()
        if figure.suffix not in (".svg", ".png", ".pdf"):
            raise click.BadParameter(
                f"expected a name that ends in .svg, .png or .pdf; got {str(figure)!r}.", param_hint="'--figure'"
            )
    fitted = TableModel.load(model)
    try:
        chosen = None if alphas is None else [float(alpha) for alpha in alphas.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"expected numbers separated by commas, such as 1,10,100; got {alphas!r}.", param_hint="'--alphas'"
        ) from None
    computed = fitted.learner.path(chosen)
    if out is None or descriptor(out) != 1:
        show_table(report.table(fitted, computed, grid=chosen is None))
    if figure is not None:
        from kalprox.pages import write

        drawn = replace(report.figure(fitted, computed), name=figure.stem)
        echo(write(drawn, figure.parent, (figure.suffix[1:],))[figure.suffix[1:]])
    if out is not None:
        report.write(fitted, computed, out)
        echo(out, err=descriptor(out) == 1)


class _Merge(Options):
    """Options of `kalprox merge`.

    Attributes
    ----------
    out
        Model file to write.
    allow_overlap
        Merge models that have learned the same rows, which then count twice.
    """

    out = option(type=FILE, required=True)
    allow_overlap = option(is_flag=True)


@click.command()
@click.argument("models", nargs=-1, required=True, type=EXISTING, metavar="MODEL MODEL...")
@options(_Merge)
def merge(models: tuple[Path, ...], out: Path, allow_overlap: bool) -> None:
    """Merge MODELs into one, the same as if it had been fitted to all their rows.

    That is exact for linear models with the gaussian likelihood. For others the merge is approximate, and a warning
    says by about how many standard errors it is off. The models must have the same columns and levels: fit the first
    one, and the others with --columns FIRST. Models of the same rows are refused.

    \b
    Example:
      kalprox merge january.kalprox february.kalprox --out winter.kalprox
    """
    from kalprox.jobs.model import TableModel

    if len(models) < 2:
        raise click.UsageError("At least two models are needed.")
    check_distinct([("MODEL", model) for model in models], [("--out", out)], repeats=allow_overlap)
    first, *others = (TableModel.load(model) for model in models)
    for other in others:
        first = first.merge(other, allow_overlap=allow_overlap)
    first.save(out)
    echo(f"{out}: {first.learner.n_rows:,} rows of {len(models)} models", err=descriptor(out) == 1)
