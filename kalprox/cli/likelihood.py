"""Options of `kalprox fit` about the distribution of the target: likelihood, classes, offset and exposure."""

import math
from typing import TYPE_CHECKING, Any

import click

from kalprox.cli.grouped import grouped
from kalprox.cli.kinds import KindChoice, KindOption
from kalprox.cli.options import NAMES

if TYPE_CHECKING:
    from kalprox.sources.table_columns import TableColumns

__all__ = ["likelihood_options", "likelihood_setting", "most_classes", "target_options"]


likelihood_options = grouped(
    "Target",
    click.option(
        "--likelihood",
        type=KindChoice("kalprox.likelihoods.names", "LIKELIHOODS"),
        default="gaussian",
        cls=KindOption,
        help="Distribution of the target, one of these kinds. Parameters follow after commas.",
    ),
    click.option(
        "--classes",
        type=NAMES,
        default=(),
        help="Classes of the target, separated by commas; rows of others are bad rows. Upper and lower case do not "
        "matter.  [default: all that are found in the data]",
    ),
    click.option(
        "--positive",
        metavar="CLASS",
        help="Which of two classes is counted as yes.  [default: the second in sorted order]",
    ),
    click.option("--offset", metavar="COLUMN", help="Column that is added to the linear predictor."),
    click.option(
        "--exposure",
        metavar="COLUMN",
        help="Column with the exposure of each row, such as the time in which its count was made: its log is added "
        "to the linear predictor.",
    ),
)


def target_options(given: dict[str, Any]) -> dict[str, Any]:
    """What `Columns.infer` is told about the target, from the options."""
    from kalprox.likelihoods.names import LIKELIHOODS
    from kalprox.sources.classes import TargetClasses

    name, most = given["likelihood"].name, most_classes()
    for option in ("classes", "positive"):
        if given[option] and name not in most:
            raise click.UsageError(f"--{option} is about classes: use --likelihood {' or '.join(most)}; got {name}.")
    classes = TargetClasses(given["classes"], given["positive"], most[name]) if name in most else None
    low, high = given["likelihood"].made(LIKELIHOODS, "--likelihood").support
    return {
        "classes": classes,
        "low": low if classes is None and math.isfinite(low) else None,
        "high": high if classes is None and math.isfinite(high) else None,
        "offset": given["offset"],
        "exposure": given["exposure"],
    }


def likelihood_setting(columns: "TableColumns", given: dict[str, Any]) -> dict[str, Any]:
    """The parameter likelihood of the estimator, if it is not the default."""
    from kalprox.likelihoods.names import LIKELIHOODS

    name, parameters = given["likelihood"]
    most, m = most_classes(), len(columns.classes)
    if bool(m) is not (name in most):
        holds = f"classes, for --likelihood {' or '.join(most)}" if m else "numbers"
        raise click.UsageError(f"The target of the model of --columns holds {holds}; got --likelihood {name}.")
    if m and m > most[name]:
        other = next(other for other in most if most[other] >= m)
        raise click.UsageError(f"The target of the model of --columns has {m} classes: use --likelihood {other}.")
    if m == 2 < most[name]:
        name = next(other for other in most if most[other] == 2)  # which is what one of several classes then is
    if not parameters:
        return {} if LIKELIHOODS[name]().quadratic else {"likelihood": name}
    return {"likelihood": given["likelihood"]._replace(name=name).made(LIKELIHOODS, "--likelihood")}


def most_classes() -> dict[str, int]:
    """The likelihoods of classes, and the largest number of classes of each."""
    from kalprox.likelihoods.names import LIKELIHOODS
    from kalprox.sources.classes import MOST_CLASSES

    most = {"two classes": 2, "several classes": MOST_CLASSES}
    return {name: most[kind.outcomes] for name, kind in LIKELIHOODS.items() if kind.outcomes in most}
