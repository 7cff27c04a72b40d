"""`kalprox fit`: fit a model to files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kalprox._files import check_distinct, descriptor
from kalprox.cli.options import NAMES, NumberOr, RegistryChoice, output_options, reading_options, strict_option

__all__ = ["fit"]


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--target", "-y", help="Column to predict; required unless --columns is given.")
@click.option(
    "--features", type=NAMES, help="Columns to predict from, separated by commas.  [default: all other columns]"
)
@click.option(
    "--categorical",
    multiple=True,
    metavar="NAME[=A|B|...]",
    help="One-hot encode NAME, using the listed levels or those found in the data. Repeatable.",
)
@click.option("--dates", type=NAMES, default=(), help="Columns of dates, which are read as days since 1970-01-01.")
@click.option("--weight", help="Column of row weights.")
@click.option(
    "--weights",
    type=RegistryChoice("kalprox.sources.weighting", "WEIGHTS"),
    default="frequency",
    help="Meaning of the weights of --weight: frequency, a row of weight 2 counts as two rows; precision, the weight "
    "is 1 / variance of the noise of the row, up to a common factor.",
)
@click.option(
    "--coef-cov",
    type=RegistryChoice("kalprox.learning.settings", "COEF_COVS"),
    help="What the standard errors of the coefficients assume: model, independent rows with equal noise; robust, noise "
    "whose variance differs from row to row; clustered, rows that depend on each other within the clusters of "
    "--clusters.  [default: clustered with --clusters, else model]",
)
@click.option("--clusters", metavar="COLUMN", help="Column that says which cluster a row belongs to.")
@click.option(
    "--columns",
    "like",
    type=click.Path(exists=True, dir_okay=False),
    help="Model file whose target, features, levels and clusters are used.",
)
@click.option(
    "--infer-rows",
    "--look",
    default=10_000,
    type=click.IntRange(min=1),
    help="Rows to read to infer the types of columns and to find levels.",
)
@click.option(
    "--max-levels",
    default=1000,
    type=click.IntRange(min=1),
    help="Maximum number of levels of a column that are found in the data.",
)
@click.option(
    "--drop-first",
    is_flag=True,
    help="Drop the first level of each categorical column, so that it is the reference for the other levels. Always on "
    "with --penalty none.",
)
@click.option(
    "--unseen",
    type=click.Choice(["zero", "reject"]),
    default="zero",
    help="What to do with an unknown level: encode it as zeros, or reject the row as bad.",
)
@click.option(
    "--link",
    type=RegistryChoice("kalprox.models", "LINKS"),
    default="identity",
    help="Function of the linear predictor that gives the mean of the target.",
)
@click.option(
    "--targets",
    type=RegistryChoice("kalprox.learning.settings", "TARGETS"),
    default="range",
    help="Targets to accept: range, those that lie in the range of the link, up to noise; any, all. Others are an "
    "error.",
)
@click.option(
    "--penalty",
    type=RegistryChoice("kalprox.learning.penalties", "PENALTIES", "none"),
    default="ridge",
    help="Penalty on the coefficients; group shrinks all levels of a categorical column jointly.",
)
@click.option(
    "--alpha",
    type=NumberOr("auto"),
    default=1.0,
    help="Weight of the penalty; auto chooses it from the data (identity link only).",
)
@click.option(
    "--l1-ratio", type=click.FloatRange(0, 1), default=0.5, help="Share of the L1 norm in the elasticnet penalty."
)
@click.option("--delta", type=float, default=1.0, help="Width of the rounded kink of the smooth_l1 penalty.")
@click.option(
    "--bounds",
    nargs=2,
    type=float,
    default=(0.0, float("inf")),
    help="Lower and upper bound of the coefficients, for the box penalty.",
)
@click.option(
    "--noise",
    type=NumberOr("inputs"),
    help="Noise variance; inputs lets it depend on the inputs (identity link only).  [default: learned from the data]",
)
@click.option("--no-intercept", is_flag=True, help="Fit no intercept.")
@click.option(
    "--standardize", is_flag=True, help="Apply the penalty to the coefficients of columns scaled to unit variance."
)
@click.option(
    "--forget",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Forgetting factor: every row multiplies the weights of the rows before it by this number.",
)
@click.option(
    "--method",
    type=click.Choice(["exact", "paper"]),
    default="exact",
    help="exact minimises the objective; paper runs the recursion of the paper, row by row.",
)
@click.option("--v0", type=float, default=1.0, help="Initial variance of the coefficients, for --method paper.")
@click.option("--q", type=float, default=0.0, help="Variance of the process noise, for --method paper.")
@click.option(
    "--passes",
    type=click.IntRange(min=1),
    help="Maximum number of passes over the rows.  [default: 1 if one pass is exact, else until convergence]",
)
@click.option(
    "--shuffle", type=int, metavar="SEED", help="Read the files in random order, and shuffle the rows of each block."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("model.kalprox"),
    help="Model file to write.",
)
@click.option(
    "--checkpoint",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save the state of the fit to this file; after a crash, the same command resumes from it.",
)
@click.option("--every", type=click.IntRange(min=1), default=1_000_000, help="Rows between two checkpoints.")
@click.option(
    "--engine",
    type=click.Choice(["local", "processes", "dask", "spark"]),
    help="Process the files on several cores or machines, without prequential scores.  "
    "[default: in this process, block by block, with scores]",
)
@click.option("--scheduler", metavar="ADDRESS", help="Address of a Dask scheduler, such as tcp://host:8786.")
@click.option("--workers", type=click.IntRange(min=1), help="Number of workers to start.  [default: one per core]")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="Number of partitions of the files, for --engine.  [default: one per file]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time to wait for a Dask scheduler to answer, and for workers while it has none.  [default: 60]",
)
@reading_options
@output_options
@strict_option
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
    timeout: float | None,
    quarantine: Path | None,
    max_bad: str | None,
    memory: int,
    quiet: bool,
    events: Path | None,
    strict: bool,
    **given: Any,
) -> None:
    """Fit a model to files. SOURCE is a file, a folder, a glob pattern, or - for standard input.

    Parquet, CSV (also compressed, .gz), JSON lines and Arrow files are read block by block, so that the memory does not
    grow with the files. Columns of text are one-hot encoded. The model is written to one file, together with the
    uncertainty of its coefficients; `kalprox predict`, `show`, `report`, `path` and `merge` read this file.

    \b
    Example:
      kalprox fit flights/ --target arr_delay --features dep_delay,distance,carrier \\
          --checkpoint flights.ckpt --quarantine bad.csv --out flights.kalprox
    """
    from kalprox.cli.terminal import Reporter, end_strictly, events_of
    from kalprox.jobs.checkpoint import Checkpoint
    from kalprox.jobs.fit import FitJob
    from kalprox.sources.files import find

    quiet = quiet or descriptor(out) == 1  # the model is written to standard output, and nothing else
    if scheduler is not None and engine not in (None, "dask"):
        raise click.UsageError("--scheduler requires --engine dask.")
    files = [file for source in sources for file in find(source)]
    check_distinct(
        [*(("SOURCE", file) for file in files), *((("--columns", given["like"]),) if given["like"] else ())],
        [
            ("--out", out),
            ("--checkpoint", checkpoint),
            ("the lock of --checkpoint", None if checkpoint is None else Checkpoint(checkpoint).lock_file),
            ("--quarantine", quarantine),
            ("--events", events),
        ],
    )
    table = _table(files, memory=memory, shuffle=shuffle, given=given)
    settings = _settings(table.columns, given) | _coef_cov(table.columns, given["coef_cov"])
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
            timeout=timeout,
            watch=reporter.progress,
        )
        fitted = job.run(out)
        learner, belief, quality = fitted.learner, fitted.belief, fitted.record.quality
        score, headline = learner.score, fitted.headline()
        reporter.event(
            "done",
            model=str(out),
            rows=learner.n_rows,
            bad=quality.bad,
            passes=belief.n_passes,
            converged=bool(belief.converged),
            rmse=float(score.rmse),
            coverage=float(score.coverage[-1]),
            headline=headline.to_json(),
            **events_of(quality.notes),
        )
    reporter.say(str(headline))
    reporter.say(str(out))
    if strict:
        end_strictly(headline)


def _coef_cov(columns: Any, coef_cov: str | None) -> dict[str, str]:
    """The parameter coef_cov of the estimator, if it is not the default."""
    chosen = coef_cov or ("model" if columns.cluster is None else "clustered")
    if chosen == "clustered" and columns.cluster is None:
        raise click.UsageError("--coef-cov clustered requires --clusters, the column with the cluster of each row.")
    if chosen != "clustered" and columns.cluster is not None:
        raise click.UsageError(f"--clusters requires --coef-cov clustered; got --coef-cov {chosen}.")
    return {} if chosen == "model" else {"coef_cov": chosen}


def _table(files: list[Path], *, memory: int, shuffle: int | None, given: dict[str, Any]) -> Any:
    from kalprox.jobs.model import TableModel
    from kalprox.sources.columns import Columns
    from kalprox.sources.files import STDIN, Snapshot, stdin
    from kalprox.sources.table import Table

    options = {name: given[name] for name in ("format", "encoding", "delimiter", "skip_unreadable", "max_record")}
    options["stdin"] = stdin() if STDIN in files else None
    snapshot = Snapshot(files)  # before the columns are inferred from them
    if given["like"] is not None:
        columns = TableModel.load(given["like"]).columns
        if given["clusters"] is not None:
            columns = replace(columns, cluster=given["clusters"])
        elif given["coef_cov"] not in (None, "clustered"):
            columns = replace(columns, cluster=None)
    elif given["target"] is None:
        raise click.UsageError("Missing option '--target', the column to predict.")
    else:
        columns = Columns.infer(
            files,
            given["target"],
            given["features"],
            _levels(given["categorical"]),
            given["dates"],
            given["weight"],
            rows=given["infer_rows"],
            max_levels=given["max_levels"],
            drop_first=given["drop_first"]
            or given["penalty"] == "none",  # the columns of all levels add up to the intercept
            unseen=given["unseen"],
            cluster=given["clusters"],
            **options,
        )
    return Table(files, columns, memory=memory, shuffle=shuffle, samples=given["samples"], snapshot=snapshot, **options)


def _levels(categorical: tuple[str, ...]) -> dict[str, list[str] | None]:
    found: dict[str, list[str] | None] = {}
    for text in categorical:
        name, given, levels = text.partition("=")
        if given:
            found[name] = levels.split("|")
        else:
            found |= dict.fromkeys(NAMES.convert(text, None, None))
    return found


def _is_given(option: str) -> bool:
    """Whether an option is on the command line; the defaults are those of the estimator."""
    return click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT


def _settings(columns: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the estimator, from the options."""
    from kalprox.learning.penalties import PENALTIES

    penalty = None if given["penalty"] == "none" else given["penalty"]
    settings = {name: given[name] for name in ("link", "alpha", "standardize", "forget", "method", "weights")}
    settings |= {"penalty": penalty, "fit_intercept": not given["no_intercept"]}
    if penalty is None or not PENALTIES[penalty].has_weight:
        settings["alpha"] = 1.0
    settings |= {name: given[name] for name in ("l1_ratio", "delta", "targets") if _is_given(name)}
    if _is_given("bounds"):
        settings["bounds"] = list(given["bounds"])
    if penalty == "group":
        settings["groups"] = columns.groups
    if given["noise"] is not None:
        settings["noise"] = given["noise"]
    if given["method"] == "paper":
        settings |= {"v0": given["v0"], "q": given["q"]}
    return settings
