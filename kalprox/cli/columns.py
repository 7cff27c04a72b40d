"""Options of `kalprox fit` about the columns of the files, and the table that they describe."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kalprox.cli.options import BYTES, COUNT, NAMES, READING, Kind, Options, RegistryChoice, is_given, option
from kalprox.cli.settings import target_options

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


class ColumnOptions(Options):
    """Options about the columns of the files.

    Attributes
    ----------
    target
        Column to predict; required unless --formula or --columns is given.
    formula
        Target and terms, such as 'arr_delay ~ dep_delay + C(carrier) + distance:hour', in the syntax of formulaic.
        Levels are those of all rows, against the first of them; 0 + leaves out the intercept.
    features
        Columns to predict from, separated by commas.
        [default: all other columns]
    exclude
        Columns to leave out, separated by commas.
    categorical
        One-hot encode NAME, using the listed levels (the first is the reference) or all that are found in the data.
        Repeatable.
    hashed
        Put the levels of NAME into bins by a hash, and one-hot encode the bins (1024 by default): for columns with too
        many levels. With --hash-bits, columns without BINS share one space. Repeatable.
    words
        Columns of text, separated by commas, whose words are hashed into the space of --hash-bits (10 by default).
    hash_bits
        Hash the columns of --hash, and the words of --words, into one space of 2^B columns with signs, B at most 12, or
        20 with --structure: memory does not depend on how many different levels and words there are. Some share a
        coefficient.
    dates
        Columns of dates (ISO 8601), which are read as days since 1970-01-01; others are found.
    weight
        Column of row weights.
    clusters
        Column that says which cluster a row belongs to.
    like
        Model file whose target, features, levels and clusters are used.
    infer_rows
        Rows to read to infer the types of columns. Levels are found in all rows.
    max_levels
        Maximum number of levels of a column that are found in the data; more are an error.
    spool
        Disk space for standard input, which is stored in a temporary file if levels must be found in it.
    contrast
        Encoding of levels: reference, the coefficients are differences from the most frequent level, which has none
        (without an intercept, the first categorical column keeps all its levels); full, every level has a coefficient.
        [default: full for --penalty box, else reference]
    drop_first
        Use the first level in sorted order as the reference, instead of the most frequent one.
    unseen
        What to do with a level that is not listed: reject the row as bad, or encode it as zeros, that is as the
        reference level.
    missing
        What to do with missing values: raise, the row is bad; drop, a row without a target is counted and not learned,
        and one without a feature is bad; impute, as drop, but a missing feature is the mean of its column as known from
        the rows before; marginalize, its mean given the other features, and the row is learned and predicted with the
        larger variance that follows. Both assume that features are missing independently of the target, given the
        features that are there; the headline says whether the rows contradict it.
    """

    group = "Columns"
    target = option("-y")
    formula = option(metavar="FORMULA")
    features = option(type=NAMES)
    exclude = option(type=NAMES, default=())
    categorical = option(multiple=True, metavar="NAME[=A|B|...]")
    hashed = option("--hash", multiple=True, metavar="NAME[=BINS]")
    words = option(type=NAMES, default=())
    hash_bits = option(type=int, metavar="B")
    dates = option(type=NAMES, default=())
    weight = option()
    clusters = option(metavar="COLUMN")
    like = option("--columns", type=click.Path(exists=True, dir_okay=False))
    infer_rows = option("--infer-rows", "--look", default=10_000, type=COUNT)
    max_levels = option(default=1000, type=COUNT)
    spool = option(type=BYTES, default="16GB")
    contrast = option(type=click.Choice(["reference", "full"]))
    drop_first = option(is_flag=True)
    unseen = option(type=click.Choice(["zero", "reject"]), default="reject")
    missing = option(type=RegistryChoice("kalprox.learning.settings", "MISSING"), default="raise")


def table_of(files: list[Path], given: dict[str, Any]) -> Any:
    """The table of the files, with the columns that the options say or that are inferred."""
    from kalprox.sources.files import STDIN, Snapshot, stdin
    from kalprox.sources.table import Table

    _check_formula(given)
    reading = {name: given[name] for name in READING}
    reading["stdin"] = given.get("stdin") or (stdin() if STDIN in files else None)
    snapshot = Snapshot(files)  # before the columns are inferred from them
    columns = _columns_of_model(given) if given["like"] is not None else _inferred(files, given, reading)
    if is_given("missing"):
        from kalprox.learning.gaps import FILLED

        columns = replace(columns, gaps=given["missing"] in FILLED, unlabelled=given["missing"] != "raise")
    return Table(files, columns, memory=given["memory"], shuffle=given["shuffle"], snapshot=snapshot, **reading)


def _check_formula(given: dict[str, Any]) -> None:
    """Raise an error for an option that a formula says in another way, or cannot have."""
    if given["formula"] is None:
        return
    if is_given("missing"):
        raise click.UsageError(
            "--missing cannot be used with --formula, whose terms need all cells: use --target and --features."
        )
    for name, what in _NOT_WITH_FORMULA.items():
        if is_given(name):
            option = {"like": "--columns", "hashed": "--hash"}.get(name, f"--{name.replace('_', '-')}")
            raise click.UsageError(f"{option} cannot be used with --formula, which says {what}.")


def _columns_of_model(given: dict[str, Any]) -> Any:
    """The columns of the model of --columns, with what the options change."""
    from kalprox.jobs.model import TableModel

    target_options(given)  # raises an error for options that do not go with the likelihood
    if stated := [name for name in ("classes", "positive", "offset", "exposure") if given[name]]:
        raise click.UsageError(f"--{stated[0]} cannot be used with --columns, whose model says it.")
    columns: Any = TableModel.load(given["like"]).columns
    if columns.shared:
        columns = replace(columns, sparse=given["structure"] is not None)
    if given["clusters"] is not None:
        columns = replace(columns, cluster=given["clusters"])
    elif given["coef_cov"] in ("model", "robust"):
        columns = replace(columns, cluster=None)
    if is_given("unseen"):
        columns = replace(columns, unseen=given["unseen"])
    if given["time"] is not None and given["time"] != columns.time:
        raise click.UsageError("--time cannot be used with --columns, whose model says it.")
    if given["time"] is None and not isinstance(given["forget"], Kind):
        columns = replace(columns, time=None, time_is_date=False)
    return columns


def _inferred(files: list[Path], given: dict[str, Any], reading: dict[str, Any]) -> Any:
    """The columns of a formula, or of a target and features, from the rows of the files."""
    from kalprox.cli.terminal import echo

    about = target_options(given) | {name: given[name] for name in ("dates", "weight", "time", "max_levels", "spool")}
    about |= {
        "categorical": _levels(given["categorical"]),
        "cluster": given["clusters"],
        "rows": given["infer_rows"],
        "watch": lambda text: None if given["quiet"] else echo(text, err=True),
    }
    if given["formula"] is not None:
        from kalprox.sources.formula import infer_formula

        return infer_formula(files, given["formula"], **about, **reading)
    if given["target"] is None:
        raise click.UsageError("Missing option '--target', the column to predict (or --formula).")
    from kalprox.sources.columns import Columns

    about |= {name: given[name] for name in ("features", "exclude", "words", "hash_bits", "drop_first", "unseen")}
    return Columns.infer(
        files,
        given["target"],
        contrast=_contrast(given),
        intercept=not given["no_intercept"],
        hashed=_bins(given["hashed"]),
        sparse=given["structure"] is not None,
        **about,
        **reading,
    )


def recognised_dates(columns: Any, given: dict[str, Any]) -> list[str]:
    """A line that names the columns that were recognised as dates, if there are any."""
    names = [] if given["like"] else [name for name in columns.dates if name not in given["dates"]]
    if not names:
        return []
    return [f"Read as dates, in days since 1970-01-01: {', '.join(names)}. To leave columns out, use --exclude."]


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
