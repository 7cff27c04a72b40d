"""`kalprox predict`: predictions with their uncertainty, for the rows of files."""

import warnings
from pathlib import Path
from typing import Any

import click

from kalprox.base.files import check_distinct, descriptor
from kalprox.cli.options import (
    EXISTING,
    LEVEL,
    NAMES,
    READING,
    Options,
    OutputOptions,
    ReadingOptions,
    StrictOption,
    is_given,
    option,
    options,
    outputs,
)


class _Predict(Options):
    """Options of `kalprox predict` alone.

    Attributes
    ----------
    out
        Output file, .parquet or .csv; - writes CSV to standard output.
    level
        Level of the intervals.
    interval
        Kind of the intervals: gaussian assumes normal noise of equal variance; conformal uses the errors of the
        predictions made during the fit, whatever their distribution (levels 0.5, 0.8, 0.9, 0.95 and 0.99).
    unseen
        What to do with an unknown level: encode it as zeros, as the reference level, or reject the row as bad.
        [default: that of the fit; and a column without any known level is an error]
    keep
        Columns of SOURCE to copy to the output, such as an id: names separated by commas, or all.
    at
        Predict at this time, a number or a date, if the model forgets by time: what is known has faded until then.
        [default: the time of the last row that was learned]
    missing
        What to do with missing features; see fit.
        [default: as the model was fitted]
    """

    out = option(type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), default=Path("-"))
    level = LEVEL
    interval = option(type=click.Choice(["gaussian", "conformal"]), default="gaussian")
    unseen = option(type=click.Choice(["zero", "reject"]))
    keep = option(type=NAMES, default=())
    at = option(metavar="TIME")
    missing = option(type=click.Choice(["raise", "impute", "marginalize"]))


@click.command()
@click.argument("model", type=EXISTING)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@options(_Predict, ReadingOptions, OutputOptions, StrictOption)
def predict(
    model: Path,
    sources: tuple[str, ...],
    *,
    out: Path,
    unseen: str | None,
    keep: tuple[str, ...],
    at: str | None,
    missing: str | None,
    quarantine: Path | None,
    quiet: bool,
    events: Path | None,
    strict: bool,
    **given: Any,
) -> None:
    """Predict every row of SOURCE with MODEL: mean, standard deviation and interval, in the order of the rows.

    Standard deviation and interval are those of a new observation, including the noise. For classes, predict the most
    probable one, and the probability of each with its standard deviation: the columns class, p_NAME and std_NAME. The
    columns of the target, the weights and the clusters may be missing from SOURCE; those of offset and exposure may
    not. A bad row has a line without numbers in the output. What became of the rows, and every doubt about the
    predictions, is printed at the end; on standard error if the predictions are written to standard output.

    \b
    Example:
      kalprox predict flights.kalprox new/*.parquet --keep flight,date --out predictions.parquet --level 0.9
    """
    from dataclasses import replace

    from kalprox.cli.terminal import Reporter, echo, end_strictly, events_of
    from kalprox.jobs import predict as job
    from kalprox.jobs.model import TableModel
    from kalprox.sources.files import STDIN, find, stdin
    from kalprox.sources.quarantine import Quarantine
    from kalprox.sources.table import Table

    files = [file for source in sources for file in find(source)]
    if descriptor(out) == 1:
        out = Path("-")
    written = ("--out", Path("/dev/stdout") if str(out) == "-" else out)
    inputs = [("MODEL", model), *(("SOURCE", file) for file in files)]
    check_distinct(inputs, [written, *outputs(None, quarantine, events)], repeats=True)
    fitted = TableModel.load(model)
    if fitted.columns.classes and any(map(is_given, ("level", "interval"))):
        raise click.UsageError(
            f"{model} predicts classes, which have probabilities and no intervals: leave --level and --interval out."
        )
    if given["interval"] == "conformal" and fitted.learner.stream.quantiles.rows == 0:
        raise click.UsageError(
            f"--interval conformal needs a model whose rows were predicted before they were learned; those of {model} "
            "were not. Fit it without --engine and, unless the link is identity, with --passes 1."
        )
    time = None if at is None else _time(at, fitted)
    if missing is not None:
        fitted = fitted.with_missing(missing)
    columns = fitted.columns.without(("target", "weight", "cluster", "time"))
    columns = columns if unseen is None else replace(columns, unseen=unseen)
    kept = "all" if keep == ("all",) else keep
    reading = {name: given[name] for name in (*READING, "memory")}
    table = Table(files, columns, stdin=stdin() if STDIN in files else None, keep=kept, **reading)
    if fitted.fitted_to == "array" and not quiet:
        warnings.warn(
            f"{model} was fitted to an array, whose columns have no names: those of SOURCE must be called x0, x1, ...",
            stacklevel=1,
        )
    found = table.found()
    silent = quiet or str(out) == "-"
    with Reporter("predict", quiet=silent, events=events, total=table.known_rows()) as reporter:
        bad = Quarantine(quarantine, given["max_bad"])
        quality = job.predict(
            fitted,
            table,
            out,
            level=given["level"],
            interval=given["interval"],
            time=time,
            quarantine=bad,
            allow_unknown=unseen is not None,
            watch=reporter.progress,
        )
        headline = fitted.headline(quality)
        about = {"headline": headline.to_json(), **events_of(quality.notes)}
        reporter.event("done", out=str(out), rows=quality.read, bad=bad.bad, **about)
    if not quiet:
        for line in (headline, *found):
            echo(line, err=str(out) == "-")
    reporter.say(str(out))
    if strict:
        end_strictly(headline)


def _time(text: str, fitted: Any) -> float:
    """The time of --at, in the units of the times of the model."""
    from kalprox.sources.weighting import time_numbers

    if not fitted.learner.settings.by_time:
        raise click.UsageError("--at requires a model that forgets by time: one fitted with --forget time.")
    try:
        return float(time_numbers(text if fitted.columns.time_is_date else float(text), 1)[0])
    except ValueError:
        kind = "a date such as 2026-01-31T12:00" if fitted.columns.time_is_date else "a number"
        raise click.UsageError(f"--at must be {kind}, as the times of the model are; got {text!r}.") from None
