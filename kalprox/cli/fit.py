"""`kalprox fit` and `kalprox refine`: fit a model to files, from scratch or from its present estimate."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kalprox.base.files import check_distinct, descriptor
from kalprox.cli.columns import ColumnOptions, recognised_dates, table_of
from kalprox.cli.options import (
    COUNT,
    EXISTING,
    FILE,
    READING,
    GroupedCommand,
    Options,
    OutputOptions,
    ReadingOptions,
    StrictOption,
    option,
    options,
    outputs,
)
from kalprox.cli.settings import ForgettingOptions, ModelOptions, TargetOptions, settings_of

_RUN = ("passes", "quarantine", "max_bad", "checkpoint", "every")  # of `FitJob`, and below those of a fit alone
_FIRST = (
    "target",
    "features",
    "formula",
    "categorical",
    "missing",
    "likelihood",
    "penalty",
    "alpha",
    "quarantine",
    "out",
)  # options that most people need
_RUN_OF_FIT = (*_RUN, "quarantine_outliers", "workers", "partitions", "timeout")


class _Checkpoints(Options):
    """Options about checkpoints.

    Attributes
    ----------
    checkpoint
        Save the state of the fit to this file; after a crash, the same command resumes from it.
    every
        Rows between two checkpoints.
    """

    group = "Running"
    checkpoint = option(type=FILE)
    every = option(type=COUNT, default=1_000_000)


class _Run(Options):
    """Options about the passes over the rows, and the file of the model.

    Attributes
    ----------
    passes
        Maximum number of passes over the rows.
        [default: 1 if one pass is exact, or with --structure, else until convergence]
    shuffle
        Shuffle the rows of all files, as rows that are sorted, and not in the order of time, need it: the same seed
        gives the same order. They are read once to do so, and stored in a temporary file.
    out
        Model file to write.
    """

    group = "Running"
    passes = option(type=COUNT)
    shuffle = option(type=click.IntRange(min=0), metavar="SEED")
    out = option(type=FILE, default=Path("model.kalprox"))


class _Engine(Options):
    """Options about engines, and about outliers.

    Attributes
    ----------
    engine
        Process the files on several cores or machines, without prequential scores.
        [default: in this process, block by block, with scores]
    scheduler
        Address of a Dask scheduler, such as tcp://host:8786.
    workers
        Number of workers to start.
        [default: one per core]
    partitions
        Number of partitions of the files, for --engine.
        [default: one per file]
    timeout
        Time to wait for a Dask scheduler to answer, and for workers while it has none.
        [default: 60]
    quarantine_outliers
        Write rows that a robust likelihood (huber, student, contaminated) flags as outliers to --quarantine too, with
        their error in standard deviations and their weight. They are learned, and are no bad rows.
    """

    group = "Running"
    engine = option(type=click.Choice(["local", "processes", "dask", "spark"]))
    scheduler = option(metavar="ADDRESS")
    workers = option(type=COUNT)
    partitions = option(type=COUNT)
    timeout = option(type=click.FloatRange(min=0, min_open=True), metavar="SECONDS")
    quarantine_outliers = option(is_flag=True)


@click.command(cls=GroupedCommand, first=_FIRST)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@options(
    ColumnOptions,
    TargetOptions,
    ModelOptions,
    ForgettingOptions,
    _Run,
    _Checkpoints,
    _Engine,
    ReadingOptions,
    OutputOptions,
    StrictOption,
)
def fit(
    sources: tuple[str, ...],
    *,
    out: Path,
    engine: str | None,
    scheduler: str | None,
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
      kalprox fit flights.csv --formula "arr_delay ~ dep_delay + C(carrier) + distance:hour"
      kalprox fit flights.csv --target late --likelihood bernoulli --positive yes
    """
    from kalprox.jobs.fit import FitJob
    from kalprox.sources.files import find

    quiet = quiet or descriptor(out) == 1  # the model is written to standard output, and nothing else
    if scheduler is not None and engine not in (None, "dask"):
        raise click.UsageError("--scheduler requires --engine dask.")
    if given["quarantine_outliers"] and given["quarantine"] is None:
        raise click.UsageError("--quarantine-outliers requires --quarantine, the file to write to.")
    files = [file for source in sources for file in find(source)]
    inputs = [("SOURCE", file) for file in files] + ([("--columns", given["like"])] if given["like"] else [])
    check_distinct(inputs, [("--out", out), *outputs(given["checkpoint"], given["quarantine"], events)])
    table = table_of(files, given | {"quiet": quiet})
    job = FitJob(
        table,
        settings_of(table.columns, given),
        sources=sources,
        engine=scheduler or engine,
        **{name: given[name] for name in _RUN_OF_FIT},
    )
    found = [*table.found(), *recognised_dates(table.columns, given)]
    _run(job, "fit", out, found, quiet=quiet, events=events, strict=strict)


class _Refine(Options):
    """Options of `kalprox refine` alone.

    Attributes
    ----------
    passes
        Maximum number of passes.
        [default: until convergence]
    out
        Model file to write.
        [default: MODEL, in place]
    """

    passes = option(type=COUNT)
    out = option(type=FILE)


@click.command()
@click.argument("model", type=EXISTING)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@options(_Refine, _Checkpoints, ReadingOptions, OutputOptions, StrictOption)
def refine(
    model: Path,
    sources: tuple[str, ...],
    *,
    out: Path | None,
    memory: int,
    quiet: bool,
    events: Path | None,
    strict: bool,
    **given: Any,
) -> None:
    """Refine MODEL by passes over all of its rows, which begin at its estimate. SOURCE is as in `kalprox fit`.

    The result is that of `kalprox fit` with the settings and the columns of MODEL, in fewer passes. It makes a model
    exact that was merged, or learned in one pass or as a stream, with a likelihood of counts, classes or outliers, or
    a link. Give all rows: those that MODEL has learned and SOURCE does not have are forgotten.

    \b
    Example:
      kalprox merge january.kalprox february.kalprox --out winter.kalprox
      kalprox refine winter.kalprox january.csv february.csv
    """
    from kalprox.jobs.fit import FitJob
    from kalprox.jobs.model import TableModel
    from kalprox.sources.files import find
    from kalprox.sources.table import Table

    files = [file for source in sources for file in find(source)]
    inputs = [("SOURCE", file) for file in files] + ([("MODEL", model)] if out is not None else [])
    written = ("MODEL" if out is None else "--out", out or model)
    check_distinct(inputs, [written, *outputs(given["checkpoint"], given["quarantine"], events)])
    start = TableModel.load(model)
    table = Table(files, start.columns, memory=memory, **{name: given[name] for name in READING})
    settings = {name: value for name, value in start.learner.settings.parameters.items() if name != "max_passes"}
    job = FitJob(table, settings, sources=sources, start=start, **{name: given[name] for name in _RUN})
    out = out or model
    quiet = quiet or descriptor(out) == 1  # the model is written to standard output, and nothing else
    _run(job, "refine", out, [], quiet=quiet, events=events, strict=strict)


def _run(
    job: Any, command: str, out: Path, found: list[str], *, quiet: bool, events: Path | None, strict: bool
) -> None:
    """Run a fit, write its model, and say what came of it, and what was `found` in the columns."""
    from kalprox.cli.terminal import Reporter, end_strictly, events_of

    with Reporter(command, quiet=quiet, events=events, total=job.table.known_rows()) as reporter:
        fitted = replace(job, watch=reporter.progress).run(out)
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
            coverage=float(score.coverage[-1]) if score.has_intervals else None,
            headline=headline.to_json(),
            **events_of(quality.notes),
        )
    reporter.say(str(headline))
    for line in found:
        reporter.say(line)
    reporter.say(str(out))
    if strict:
        end_strictly(headline)
