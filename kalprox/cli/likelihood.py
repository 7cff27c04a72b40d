"""Options of `kalprox fit` about the distribution of the target: likelihood, classes, offset and exposure."""

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kalprox.cli.options import NAMES, RegistryChoice

if TYPE_CHECKING:
    from kalprox.sources.classes import TargetClasses
    from kalprox.sources.table_columns import TableColumns

__all__ = ["Distribution", "likelihood_options", "likelihood_setting", "target_options"]


class Distribution(NamedTuple):
    """The name of a likelihood, and the parameters that were given."""

    name: str
    parameters: dict[str, float]


class LikelihoodChoice(RegistryChoice):
    """The name of a likelihood, followed by parameters, such as huber,threshold=2."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, Distribution):
            return value
        name, *pairs = value.split(",")
        name = super().convert(name, param, ctx)
        parameters: dict[str, float] = {}
        for pair in pairs:
            key, given, number = pair.partition("=")
            try:
                parameters[key.strip()] = float(number) if given else float("nan")
            except ValueError:
                given = ""
            if not given:
                self.fail(f"expected a parameter such as scale=2 after {name!r}; got {pair!r}.", param, ctx)
        return Distribution(name, parameters)


def likelihood_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about the distribution of the target."""
    for option in (
        click.option(
            "--exposure",
            metavar="COLUMN",
            help="Column with the exposure of each row, such as the time in which its count was made: its log is added "
            "to the linear predictor.",
        ),
        click.option("--offset", metavar="COLUMN", help="Column that is added to the linear predictor."),
        click.option(
            "--positive",
            metavar="CLASS",
            help="Which of two classes is counted as yes.  [default: the second in sorted order]",
        ),
        click.option(
            "--classes",
            type=NAMES,
            default=(),
            help="Classes of the target, separated by commas; rows of others are bad rows. Upper and lower case do not "
            "matter.  [default: all that are found in the data]",
        ),
        click.option(
            "--likelihood",
            type=LikelihoodChoice("kalprox.likelihoods.names", "LIKELIHOODS"),
            default="gaussian",
            help="Distribution of the target: gaussian for numbers, and huber, student and contaminated, which bound "
            "the influence of outliers; poisson, quasi-poisson and negative-binomial for counts; bernoulli for two "
            "classes, categorical for several, which may be text. Parameters follow after commas, such as "
            "huber,threshold=2.",
        ),
    ):
        command = option(command)
    return command


def target_options(given: dict[str, Any]) -> dict[str, Any]:
    """What `Columns.infer` is told about the target, from the options."""
    from kalprox.likelihoods.names import LIKELIHOODS

    name = given["likelihood"].name
    _check_classes(name, given)
    return {
        "classes": _classes(name, given),
        "counts": LIKELIHOODS[name].support[0] == 0 and name not in _class_likelihoods(),
        "offset": given["offset"],
        "exposure": given["exposure"],
    }


def likelihood_setting(columns: "TableColumns", given: dict[str, Any]) -> dict[str, Any]:
    """The parameter likelihood of the estimator, if it is not the default."""
    from kalprox.likelihoods.names import LIKELIHOODS

    name, parameters = given["likelihood"]
    if bool(columns.classes) is not (name in _class_likelihoods()):
        holds = f"classes, for --likelihood {' or '.join(_class_likelihoods())}" if columns.classes else "numbers"
        raise click.UsageError(f"The target of the model of --columns holds {holds}; got --likelihood {name}.")
    if len(columns.classes) == 2:
        name = "bernoulli"  # which is what a categorical likelihood of two classes is
    elif name == "bernoulli":
        raise click.UsageError(
            f"The target of the model of --columns has {len(columns.classes)} classes: use --likelihood categorical."
        )
    if not parameters:
        return {} if name == "gaussian" else {"likelihood": name}
    kind = LIKELIHOODS[name]
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in parameters:
        if key not in known:
            has = f"has the parameters {', '.join(known)}" if known else "has no parameters"
            raise click.BadParameter(f"{name} {has}; got {key!r}.", param_hint="'--likelihood'")
    return {"likelihood": kind(**parameters)}


def _class_likelihoods() -> dict[str, int]:
    """The likelihoods of classes, and the largest number of classes of each."""
    from kalprox.sources.classes import MOST_CLASSES

    return {"bernoulli": 2, "categorical": MOST_CLASSES}


def _classes(name: str, given: dict[str, Any]) -> "TargetClasses | None":
    from kalprox.sources.classes import TargetClasses

    most = _class_likelihoods().get(name)
    return None if most is None else TargetClasses(given["classes"], given["positive"], most)


def _check_classes(name: str, given: dict[str, Any]) -> None:
    """Raise UsageError for options about classes where there are none."""
    for option in ("classes", "positive"):
        if given[option] and name not in _class_likelihoods():
            raise click.UsageError(
                f"--{option} is about classes: use --likelihood {' or '.join(_class_likelihoods())}; got {name}."
            )
