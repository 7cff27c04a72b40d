"""`kalprox fit` and `kalprox refine`: fit a model to files, from scratch or from its present estimate."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from kalprox.base.files import check_distinct, descriptor
from kalprox.cli.forgetting import forgetting_options, forgetting_setting
from kalprox.cli.likelihood import likelihood_options, likelihood_setting, target_options
from kalprox.cli.options import (
    BYTES,
    NAMES,
    READING,
    Kind,
    KindChoice,
    KindOption,
    NumberOr,
    RegistryChoice,
    StructureName,
    is_given,
    output_options,
    reading_options,
    strict_option,
)

__all__ = ["fit", "refine"]

_NOT_WITH_FORMULA = {
    "target": "the target on its left-hand side",
    "features": "the features as its terms",
    "exclude": "the features as its terms",
    "like": "the columns itself",
    "contrast": "by C(column, contr.sum) and the like how levels are encoded",
    "hashed": "the features as its terms",
    "words": "the features as its terms",
    "hash_bits": "the features as its terms",
    "drop_first": "by 0 + whether levels have a reference",
    "no_intercept": "by 0 + that there is no intercept",
    "unseen": "differences from a reference, so that a row with an unknown level is a bad row",
}


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--target", "-y", help="Column to predict; required unless --formula or --columns is given.")
@click.option(
    "--formula",
    metavar="FORMULA",
    help="Target and terms, such as 'arr_delay ~ dep_delay + C(carrier) + distance:hour', in the syntax of formulaic. "
    "Levels are those of all rows, against the first of them; 0 + leaves out the intercept.",
)
@click.option(
    "--features", type=NAMES, help="Columns to predict from, separated by commas.  [default: all other columns]"
)
@click.option("--exclude", type=NAMES, default=(), help="Columns to leave out, separated by commas.")
@click.option(
    "--categorical",
    multiple=True,
    metavar="NAME[=A|B|...]",
    help="One-hot encode NAME, using the listed levels (the first is the reference) or all that are found in the data. "
    "Repeatable.",
)
@click.option(
    "--hash",
    "hashed",
    multiple=True,
    metavar="NAME[=BINS]",
    help="Put the levels of NAME into bins by a hash, and one-hot encode the bins (1024 by default): for columns with "
    "too many levels. With --hash-bits, columns without BINS share one space. Repeatable.",
)
@click.option(
    "--words",
    type=NAMES,
    default=(),
    help="Columns of text, separated by commas, whose words are hashed into the space of --hash-bits (10 by default).",
)
@click.option(
    "--hash-bits",
    type=int,
    metavar="B",
    help="Hash the columns of --hash, and the words of --words, into one space of 2^B columns with signs, B at most "
    "12, or 20 with --structure: memory does not depend on how many different levels and words there are. Some share a "
    "coefficient.",
)
@click.option(
    "--structure",
    type=StructureName(),
    help="For many columns: keep of the information its diagonal, or also R directions (20 by default) instead of a "
    "matrix. Rows stay sparse, and are learned in one pass, with a ridge penalty or none. Standard errors of "
    "coefficients are then too small where columns go together; predictions with their noise are affected far less.",
)
@click.option(
    "--dates",
    type=NAMES,
    default=(),
    help="Columns of dates (ISO 8601), which are read as days since 1970-01-01; others are found.",
)
@click.option("--weight", help="Column of row weights.")
@click.option(
    "--weight-kind",
    "weight_kind",
    type=RegistryChoice("kalprox.sources.weighting", "WEIGHT_KINDS"),
    default="frequency",
    help="Meaning of the weights of --weight: frequency, a row of weight 2 counts as two rows; precision, the weight "
    "is 1 / variance of the noise of the row, up to a common factor, or for classes and counts how much the row counts "
    "for.",
)
@click.option(
    "--coef-cov",
    type=RegistryChoice("kalprox.learning.settings", "COEF_COVS"),
    help="What the standard errors of the coefficients assume: model, independent rows with equal noise; robust, noise "
    "whose variance differs from row to row; clustered, rows that depend on each other within the clusters of "
    "--clusters; auto, clustered with --clusters, robust for classes and counts with --weight-kind precision, else "
    "model.  [default: auto]",
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
    help="Rows to read to infer the types of columns. Levels are found in all rows.",
)
@click.option(
    "--max-levels",
    default=1000,
    type=click.IntRange(min=1),
    help="Maximum number of levels of a column that are found in the data; more are an error.",
)
@click.option(
    "--spool",
    type=BYTES,
    default="16GB",
    help="Disk space for standard input, which is stored in a temporary file if levels must be found in it.",
)
@click.option(
    "--contrast",
    type=click.Choice(["reference", "full"]),
    help="Encoding of levels: reference, the coefficients are differences from the most frequent level, which has none "
    "(without an intercept, the first categorical column keeps all its levels); full, every level has a coefficient.  "
    "[default: full for --penalty box, else reference]",
)
@click.option(
    "--drop-first",
    is_flag=True,
    help="Use the first level in sorted order as the reference, instead of the most frequent one.",
)
@click.option(
    "--unseen",
    type=click.Choice(["zero", "reject"]),
    default="reject",
    help="What to do with a level that is not listed: reject the row as bad, or encode it as zeros, that is as the "
    "reference level.",
)
@click.option(
    "--missing",
    type=RegistryChoice("kalprox.learning.settings", "MISSING"),
    default="raise",
    help="What to do with missing values: raise, the row is bad; drop, a row without a target is counted and not "
    "learned, and one without a feature is bad; impute, as drop, but a missing feature is the mean of its column as "
    "known from the rows before; marginalize, its mean given the other features, and the row is learned and predicted "
    "with the larger variance that follows. Both assume that features are missing independently of the target, given "
    "the features that are there; the headline says whether the rows contradict it.",
)
@likelihood_options
@click.option(
    "--link",
    type=RegistryChoice("kalprox.models", "LINKS"),
    default="identity",
    help="Function of the linear predictor that gives the mean of the target; with a likelihood of counts or classes, "
    "which has its own, identity.",
)
@click.option(
    "--targets",
    type=RegistryChoice("kalprox.likelihoods.gaussian", "TARGETS"),
    default="range",
    help="Targets to accept: range, those that lie in the range of the link, up to noise; any, all. Others are an "
    "error.",
)
@click.option(
    "--penalty",
    cls=KindOption,
    type=KindChoice("kalprox.penalties", "PENALTIES", "none"),
    help="Penalty on the coefficients: ridge by default for classes, counts and amounts, and with --alpha, else none. "
    "Parameters follow after commas, such as elasticnet,l1_ratio=0.2.",
)
@click.option(
    "--alpha",
    type=NumberOr("auto"),
    help="Weight of the penalty; auto chooses it from the data (identity link; for classes and counts: ridge).  "
    "[default: 1]",
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
@forgetting_options
@click.option(
    "--change-points",
    type=NumberOr("auto"),
    help="Look for rows at which the past stops applying, and write them to --events and the report: the expected "
    "number of rows from one to the next, or auto, 1000. If nothing changes, one is reported at most once in 99 times "
    "as many rows, on average, if errors are independent, symmetric and equally spread, and more often otherwise. The "
    "files are read in their order.",
)
@click.option(
    "--passes",
    type=click.IntRange(min=1),
    help="Maximum number of passes over the rows.  [default: 1 if one pass is exact, else until convergence]",
)
@click.option(
    "--shuffle",
    type=click.IntRange(min=0),
    metavar="SEED",
    help="Shuffle the rows of all files, as rows that are sorted, and not in the order of time, need it: the same seed "
    "gives the same order. They are read once to do so, and stored in a temporary file.",
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
@click.option(
    "--quarantine-outliers",
    is_flag=True,
    help="Write rows that a robust likelihood (huber, student, contaminated) flags as outliers to --quarantine too, "
    "with their error in standard deviations and their weight. They are learned, and do not count as bad rows.",
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
    quarantine_outliers: bool,
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
      kalprox fit flights.csv --formula "arr_delay ~ dep_delay + C(carrier) + distance:hour"
      kalprox fit flights.csv --target late --likelihood bernoulli --positive yes
    """
    from kalprox.jobs.checkpoint import Checkpoint
    from kalprox.jobs.fit import FitJob
    from kalprox.sources.files import find

    quiet = quiet or descriptor(out) == 1  # the model is written to standard output, and nothing else
    if scheduler is not None and engine not in (None, "dask"):
        raise click.UsageError("--scheduler requires --engine dask.")
    if quarantine_outliers and quarantine is None:
        raise click.UsageError("--quarantine-outliers requires --quarantine, the file to write to.")
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
    table = _table(files, memory=memory, shuffle=shuffle, quiet=quiet, given=given)
    settings = _settings(table.columns, given) | _coef_cov(table.columns, given["coef_cov"])
    settings |= forgetting_setting(table.columns, given | {"shuffle": shuffle})
    found = [*table.found(), *_found_dates(table.columns, given)]
    job = FitJob(
        table,
        settings,
        sources=sources,
        passes=passes,
        quarantine=quarantine,
        quarantine_outliers=quarantine_outliers,
        max_bad=max_bad,
        checkpoint=checkpoint,
        every=every,
        engine=scheduler or engine,
        workers=workers,
        partitions=partitions,
        timeout=timeout,
    )
    _run(job, "fit", out, found, quiet=quiet, events=events, strict=strict)


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--passes", type=click.IntRange(min=1), help="Maximum number of passes.  [default: until convergence]")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Model file to write.  [default: MODEL, in place]"
)
@click.option(
    "--checkpoint",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save the state of the fit to this file; after a crash, the same command resumes from it.",
)
@click.option("--every", type=click.IntRange(min=1), default=1_000_000, help="Rows between two checkpoints.")
@reading_options
@output_options
@strict_option
def refine(
    model: Path,
    sources: tuple[str, ...],
    *,
    out: Path | None,
    passes: int | None,
    checkpoint: Path | None,
    every: int,
    quarantine: Path | None,
    max_bad: str | None,
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
    from kalprox.jobs.checkpoint import Checkpoint
    from kalprox.jobs.fit import FitJob
    from kalprox.jobs.model import TableModel
    from kalprox.sources.files import find
    from kalprox.sources.table import Table

    files = [file for source in sources for file in find(source)]
    check_distinct(
        [*(("SOURCE", file) for file in files), *((("MODEL", model),) if out is not None else ())],
        [
            ("MODEL" if out is None else "--out", out or model),
            ("--checkpoint", checkpoint),
            ("the lock of --checkpoint", None if checkpoint is None else Checkpoint(checkpoint).lock_file),
            ("--quarantine", quarantine),
            ("--events", events),
        ],
    )
    start = TableModel.load(model)
    options = {name: given[name] for name in READING}
    table = Table(files, start.columns, memory=memory, samples=given["samples"], **options)
    settings = {name: value for name, value in start.learner.settings.parameters.items() if name != "max_passes"}
    job = FitJob(
        table,
        settings,
        sources=sources,
        passes=passes,
        quarantine=quarantine,
        max_bad=max_bad,
        checkpoint=checkpoint,
        every=every,
        start=start,
    )
    _run(job, "refine", out or model, [], quiet=quiet, events=events, strict=strict)


def _run(
    job: Any, command: str, out: Path, found: list[str], *, quiet: bool, events: Path | None, strict: bool
) -> None:
    """Run a fit, write its model, and say what came of it, and what was `found` in the columns."""
    from kalprox.cli.terminal import Reporter, end_strictly, events_of

    quiet = quiet or descriptor(out) == 1  # the model is written to standard output, and nothing else
    with Reporter(command, quiet=quiet, events=events, total=job.table.size().rows) as reporter:
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


def _coef_cov(columns: Any, coef_cov: str | None) -> dict[str, str]:
    """The parameter coef_cov of the estimator, if it is not the default."""
    if coef_cov == "clustered" and columns.cluster is None:
        raise click.UsageError("--coef-cov clustered requires --clusters, the column with the cluster of each row.")
    if coef_cov in ("model", "robust") and columns.cluster is not None:
        raise click.UsageError(f"--clusters requires --coef-cov auto or clustered; got --coef-cov {coef_cov}.")
    return {} if coef_cov in (None, "auto") else {"coef_cov": coef_cov}


def _found_dates(columns: Any, given: dict[str, Any]) -> list[str]:
    """A line that names the columns that were recognised as dates, if there are any."""
    names = [] if given["like"] else [name for name in columns.dates if name not in given["dates"]]
    if not names:
        return []
    return [f"Read as dates, in days since 1970-01-01: {', '.join(names)}. To leave columns out, use --exclude."]


def _table(files: list[Path], *, memory: int, shuffle: int | None, quiet: bool, given: dict[str, Any]) -> Any:
    from kalprox.cli.terminal import echo
    from kalprox.jobs.model import TableModel
    from kalprox.sources.columns import Columns
    from kalprox.sources.files import STDIN, Snapshot, stdin
    from kalprox.sources.table import Table

    if given["formula"] is not None and is_given("missing"):
        raise click.UsageError(
            "--missing cannot be used with --formula, whose terms need all cells: use --target and --features."
        )
    others = [name for name in _NOT_WITH_FORMULA if given["formula"] is not None and is_given(name)]
    if others:
        option = {"like": "--columns", "hashed": "--hash"}.get(others[0], f"--{others[0].replace('_', '-')}")
        raise click.UsageError(f"{option} cannot be used with --formula, which says {_NOT_WITH_FORMULA[others[0]]}.")
    options = {name: given[name] for name in READING}
    options["stdin"] = given.get("stdin") or (stdin() if STDIN in files else None)
    snapshot = Snapshot(files)  # before the columns are inferred from them
    about_target = target_options(given)
    if given["like"] is not None:
        if stated := [name for name in ("classes", "positive", "offset", "exposure") if given[name]]:
            raise click.UsageError(f"--{stated[0]} cannot be used with --columns, whose model says it.")
        columns = TableModel.load(given["like"]).columns
        if getattr(columns, "shared", ()):
            columns = replace(columns, sparse=given["structure"] is not None)
        if given["clusters"] is not None:
            columns = replace(columns, cluster=given["clusters"])
        elif given["coef_cov"] in ("model", "robust"):
            columns = replace(columns, cluster=None)
        if is_given("unseen"):
            columns = replace(columns, unseen=given["unseen"])
        if given["time"] is not None and given["time"] != columns.time:
            raise click.UsageError("--time cannot be used with --columns, whose model says it.")
        if given["half_life"] is None and not isinstance(given["forget"], Kind):
            columns = replace(columns, time=None, time_is_date=False)
    elif given["formula"] is not None:
        from kalprox.sources.formula_scan import infer_formula

        columns = infer_formula(
            files,
            given["formula"],
            categorical=_levels(given["categorical"]),
            dates=given["dates"],
            weight=given["weight"],
            cluster=given["clusters"],
            time=given["time"],
            rows=given["infer_rows"],
            max_levels=given["max_levels"],
            samples=given["samples"],
            spool=given["spool"],
            watch=lambda text: None if quiet else echo(text, err=True),
            **about_target,
            **options,
        )
    elif given["target"] is None:
        raise click.UsageError("Missing option '--target', the column to predict (or --formula).")
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
            drop_first=given["drop_first"],
            unseen=given["unseen"],
            contrast=_contrast(given),
            intercept=not given["no_intercept"],
            hashed=_bins(given["hashed"]),
            words=given["words"],
            hash_bits=given["hash_bits"],
            sparse=given["structure"] is not None,
            spool=given["spool"],
            watch=lambda text: None if quiet else echo(text, err=True),
            cluster=given["clusters"],
            time=given["time"],
            exclude=given["exclude"],
            samples=given["samples"],
            **about_target,
            **options,
        )
    if is_given("missing"):
        from kalprox.learning.gaps import FILLED

        gaps = given["missing"] in FILLED
        columns = replace(columns, gaps=gaps, unlabelled=given["missing"] != "raise")
    return Table(files, columns, memory=memory, shuffle=shuffle, samples=given["samples"], snapshot=snapshot, **options)


def _contrast(given: dict[str, Any]) -> str:
    """How levels are encoded."""
    from kalprox.likelihoods.names import LIKELIHOODS
    from kalprox.penalties import PENALTIES

    penalty = given["penalty"] and given["penalty"].name
    bounded = penalty in PENALTIES and PENALTIES[penalty].scale_free
    contrast = given["contrast"] or ("full" if bounded and not given["drop_first"] else "reference")
    if contrast == "full" and given["drop_first"]:
        raise click.UsageError("--drop-first chooses a reference level, which --contrast full does not have.")
    plain = penalty is None and LIKELIHOODS[given["likelihood"].name].location and not is_given("alpha")
    if contrast == "full" and (plain or penalty == "none") and not given["no_intercept"]:
        raise click.UsageError(
            "--contrast full needs a penalty: the columns of all levels add up to the intercept. Use --contrast "
            "reference, or --no-intercept."
        )
    return contrast


def _bins(hashed: tuple[str, ...]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for text in hashed:
        name, given, bins = text.rpartition("=")
        if given and not (bins.isascii() and bins.isdigit()):
            raise click.BadParameter(f"expected NAME or NAME=BINS; got {text!r}.", param_hint="'--hash'")
        found |= {name: int(bins)} if given else dict.fromkeys(NAMES.convert(text, None, None))
    return found


def _levels(categorical: tuple[str, ...]) -> dict[str, list[str] | None]:
    found: dict[str, list[str] | None] = {}
    for text in categorical:
        name, given, levels = text.partition("=")
        if given:
            found[name] = levels.split("|")
        else:
            found |= dict.fromkeys(NAMES.convert(text, None, None))
    return found


def _penalty(columns: Any, given: dict[str, Any]) -> Any:
    """The penalty, with the parameters that options give."""
    from kalprox.penalties import PENALTIES

    kind, options = given["penalty"], {name: given[name] for name in ("l1_ratio", "delta") if is_given(name)}
    if is_given("bounds"):
        options["low"], options["high"] = given["bounds"]
    if kind is None or kind.name == "none":
        return "default" if kind is None else None
    parameters = options | kind.parameters
    penalty = kind._replace(parameters=parameters).made(PENALTIES, "--penalty").for_terms(columns.groups)
    return penalty if fields(penalty) else kind.name


def _settings(columns: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the estimator, from the options."""
    from kalprox.likelihoods import Gaussian
    from kalprox.penalties import penalty_of
    from kalprox.sources.formula import FormulaColumns

    settings = {name: given[name] for name in ("link", "alpha", "standardize", "weight_kind")}
    intercept = not given["no_intercept"] and (not isinstance(columns, FormulaColumns) or columns.intercept)
    penalty = _penalty(columns, given)
    settings |= {"penalty": penalty, "fit_intercept": intercept} | likelihood_setting(columns, given)
    if penalty != "default" and not penalty_of(penalty).has_weight:
        settings["alpha"] = 1.0
    if is_given("targets") and "likelihood" not in settings:
        settings["likelihood"] = Gaussian(given["targets"])
    if is_given("missing"):
        settings["missing"] = given["missing"]
    if given["change_points"] is not None:
        settings["change_points"] = True if given["change_points"] == "auto" else given["change_points"]
    if given["structure"] is not None:
        settings["structure"] = given["structure"]
    if given["noise"] is not None:
        settings["noise"] = given["noise"]
    return settings
