"""`kalprox fit`: from files to a model."""

from pathlib import Path
from typing import Any

import click

from kalprox.cli.options import NAMES, output, reading

__all__ = ["fit"]


class Alpha(click.ParamType):
    name = "number|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        return value if value == "auto" else click.FLOAT.convert(value, param, ctx)


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--target", "-y", help="Column to predict; needed unless --columns says it.")
@click.option("--features", type=NAMES, help="Columns to predict from, with commas.  [default: all others]")
@click.option(
    "--categorical",
    multiple=True,
    metavar="NAME[=A|B|...]",
    help="A column of levels, each a column of 0 and 1: those given, or those of a first look. Again for more.",
)
@click.option("--dates", type=NAMES, default=(), help="Columns of dates to read as days since 1970-01-01.")
@click.option("--weight", help="Column of weights: how often a row counts.")
@click.option(
    "--columns", "like", type=click.Path(exists=True, dir_okay=False), help="Read columns as this model does."
)
@click.option("--look", default=10_000, type=click.IntRange(min=1), help="Rows of the first look.")
@click.option("--max-levels", default=1000, type=click.IntRange(min=1), help="Most levels that a first look may find.")
@click.option(
    "--drop-first",
    is_flag=True,
    help="Leave out the first level of each column: the others are then against it. Always so with --penalty none.",
)
@click.option(
    "--unseen", type=click.Choice(["zero", "reject"]), default="zero", help="A level not seen: all zeros, or a bad row."
)
@click.option(
    "--link",
    type=click.Choice(["identity", "sigmoid", "tanh", "softplus", "exp", "arctan"]),
    default="identity",
    help="What the linear predictor goes through.",
)
@click.option(
    "--penalty",
    type=click.Choice(["none", "ridge", "l1", "elasticnet", "smooth_l1", "group", "box"]),
    default="ridge",
    help="What is preferred; group takes the levels of a column together.",
)
@click.option("--alpha", type=Alpha(), default=1.0, help="Weight of the penalty; auto chooses it (identity only).")
@click.option("--l1-ratio", type=click.FloatRange(0, 1), default=0.5, help="Share of l1 in elasticnet.")
@click.option("--delta", type=float, default=1.0, help="Where smooth_l1 bends.")
@click.option(
    "--bounds", nargs=2, type=float, default=(0.0, float("inf")), help="Least and largest coefficient, for box."
)
@click.option("--noise", type=float, help="Noise variance.  [default: learned]")
@click.option("--no-intercept", is_flag=True, help="Without an intercept.")
@click.option("--standardize", is_flag=True, help="Penalise in units of the columns' standard deviations.")
@click.option(
    "--forget", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Weight kept after each later row."
)
@click.option(
    "--method", type=click.Choice(["exact", "paper"]), default="exact", help="paper: its recursion, row by row."
)
@click.option("--v0", type=float, default=1.0, help="First variance, for paper.")
@click.option("--q", type=float, default=0.0, help="Process noise, for paper.")
@click.option(
    "--passes",
    type=click.IntRange(min=1),
    help="Times to go over the rows, at most.  [default: once where that is exact; else until it stands still]",
)
@click.option("--shuffle", type=int, metavar="SEED", help="Files in random order, rows in random order within a block.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("model.kalprox"), help="Model file."
)
@click.option(
    "--checkpoint",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the state in this file; the same command goes on from it after a crash.",
)
@click.option("--every", type=click.IntRange(min=1), default=1_000_000, help="Rows between two checkpoints.")
@click.option(
    "--engine",
    type=click.Choice(["local", "processes", "dask", "spark"]),
    help="Fold the files on several cores or machines.  [default: here, block by block, keeping score]",
)
@click.option("--scheduler", metavar="ADDRESS", help="Of a Dask cluster, such as tcp://host:8786.")
@click.option("--workers", type=click.IntRange(min=1), help="Of an engine started for this.  [default: the cores]")
@click.option("--partitions", type=click.IntRange(min=1), help="Of the files, for an engine.  [default: one a file]")
@reading
@output
def fit(
    sources: tuple[str, ...],
    *,
    out: Path,
    passes: int | None,
    shuffle: int | None,
    checkpoint: Path | None,
    every: int,
    engine: str | None,
    scheduler: str | None,
    workers: int | None,
    partitions: int | None,
    quarantine: Path | None,
    max_bad: str | None,
    memory: int,
    quiet: bool,
    events: Path | None,
    **given: Any,
) -> None:
    """Fit a model to files: SOURCE is a file, a folder, a glob, or - for standard input.

    Parquet, CSV (also .gz), JSON lines and Arrow files are read block by block, in memory that does not grow with them.
    Columns of text become one column of 0 and 1 for each level found in a first look. The model, with what it says of
    its own uncertainty, is written to one file, which `kalprox predict`, `show`, `report`, `path` and `merge` take.

    \b
    Example:
      kalprox fit flights/ --target arr_delay --features dep_delay,distance,carrier \\
          --checkpoint flights.ckpt --quarantine bad.csv --out flights.kalprox
    """
    from kalprox.cli.terminal import Reporter
    from kalprox.jobs.fit import FitJob

    if scheduler is not None and engine not in (None, "dask"):
        raise click.UsageError("--scheduler goes with --engine dask.")
    table = _table(sources, memory=memory, shuffle=shuffle, given=given)
    settings = _settings(table.columns, given)
    with Reporter("fit", quiet=quiet, events=events, total=table.size().rows) as reporter:
        job = FitJob(
            table,
            settings,
            sources=sources,
            passes=passes,
            quarantine=quarantine,
            max_bad=max_bad,
            checkpoint=checkpoint,
            every=every,
            engine=scheduler or engine,
            workers=workers,
            partitions=partitions,
            watch=reporter.progress,
        )
        found = job.run(out)
        model, quality = found.model, found.record.quality
        score = model.diagnostics_
        reporter.event(
            "done",
            model=str(out),
            rows=model.n_rows_seen_,
            bad=quality.bad,
            passes=model.n_passes_,
            converged=bool(model.converged_),
            rmse=float(score.rmse),
            coverage=float(score.coverage[-1]),
        )
    bad = f", {quality.bad:,} bad" if quality.bad else ""
    reporter.say(f"{out}: {model.n_rows_seen_:,} rows{bad}, {len(table.columns.names):,} columns")
    if float(score.rows):
        reporter.say(str(score.verdict()))


def _table(sources: tuple[str, ...], *, memory: int, shuffle: int | None, given: dict[str, Any]) -> Any:
    from kalprox.jobs.model import TableModel
    from kalprox.sources.columns import Columns
    from kalprox.sources.files import STDIN, find, stdin
    from kalprox.sources.table import Table

    files = [file for source in sources for file in find(source)]
    options = {name: given[name] for name in ("format", "encoding", "delimiter", "skip_unreadable")}
    options["stdin"] = stdin() if STDIN in files else None
    if given["like"] is not None:
        columns = TableModel.load(given["like"]).columns
    elif given["target"] is None:
        raise click.UsageError("Missing option '--target': the column to predict.")
    else:
        columns = Columns.infer(
            files,
            given["target"],
            given["features"],
            _levels(given["categorical"]),
            given["dates"],
            given["weight"],
            rows=given["look"],
            max_levels=given["max_levels"],
            drop_first=given["drop_first"] or given["penalty"] == "none",  # all levels add up to the intercept
            unseen=given["unseen"],
            **options,
        )
    return Table(files, columns, memory=memory, shuffle=shuffle, **options)


def _levels(categorical: tuple[str, ...]) -> dict[str, list[str] | None]:
    found: dict[str, list[str] | None] = {}
    for text in categorical:
        name, given, levels = text.partition("=")
        if given:
            found[name] = levels.split("|")
        else:
            found |= dict.fromkeys(NAMES.convert(text, None, None))
    return found


def _settings(columns: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Of the estimator, as they are asked for."""
    penalty = None if given["penalty"] == "none" else given["penalty"]
    settings = {name: given[name] for name in ("link", "alpha", "standardize", "forget", "method")}
    settings |= {"penalty": penalty, "fit_intercept": not given["no_intercept"]}
    if penalty in (None, "box"):
        settings["alpha"] = 1.0
    if penalty == "elasticnet":
        settings["l1_ratio"] = given["l1_ratio"]
    if penalty == "smooth_l1":
        settings["delta"] = given["delta"]
    if penalty == "box":
        settings["bounds"] = list(given["bounds"])
    if penalty == "group":
        settings["groups"] = columns.groups
    if given["noise"] is not None:
        settings["noise"] = given["noise"]
    if given["method"] == "paper":
        settings |= {"v0": given["v0"], "q": given["q"]}
    return settings
