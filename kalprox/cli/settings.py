"""Options of `kalprox fit` about the model and its penalty, and the parameters of the estimator that they say."""

from dataclasses import fields
from typing import Any

import click

from kalprox.cli.forgetting import forgetting_setting
from kalprox.cli.grouped import grouped
from kalprox.cli.kinds import KindChoice, KindOption, RegistryChoice
from kalprox.cli.likelihood import likelihood_setting
from kalprox.cli.options import NumberOr, is_given

__all__ = ["settings_of", "settings_options"]


settings_options = grouped(
    "Model",
    click.option(
        "--link",
        type=RegistryChoice("kalprox.models", "LINKS"),
        default="identity",
        help="Function of the linear predictor that gives the mean of the target; with a likelihood of counts or "
        "classes, which has its own, identity.",
    ),
    click.option(
        "--targets",
        type=RegistryChoice("kalprox.likelihoods.gaussian", "TARGETS"),
        default="range",
        help="Targets to accept: range, those that lie in the range of the link, up to noise; any, all. Others are "
        "an error.",
    ),
    click.option(
        "--penalty",
        cls=KindOption,
        type=KindChoice("kalprox.penalties", "PENALTIES", "none"),
        help="Penalty on the coefficients: ridge by default for classes, counts and amounts, and with --alpha, "
        "else none, and otherwise one of these kinds. Parameters follow after commas.",
    ),
    click.option(
        "--alpha",
        type=NumberOr("auto"),
        help="Weight of the penalty; auto chooses it from the data (identity link; for classes and counts: "
        "ridge).  [default: 1]",
    ),
    click.option(
        "--noise",
        type=NumberOr("inputs"),
        help="Noise variance; inputs lets it depend on the inputs (identity link only).  [default: learned from "
        "the data]",
    ),
    click.option("--no-intercept", is_flag=True, help="Fit no intercept."),
    click.option(
        "--standardize",
        is_flag=True,
        help="Apply the penalty to the coefficients of columns scaled to unit variance.",
    ),
    click.option(
        "--weight-kind",
        "weight_kind",
        type=RegistryChoice("kalprox.sources.weighting", "WEIGHT_KINDS"),
        default="frequency",
        help="Meaning of the weights of --weight: frequency, a row of weight 2 counts as two rows; precision, the "
        "weight is 1 / variance of the noise of the row, up to a common factor, or for classes and counts how much "
        "the row counts for.",
    ),
    click.option(
        "--coef-cov",
        type=RegistryChoice("kalprox.learning.settings", "COEF_COVS"),
        help="What the standard errors of the coefficients assume: model, independent rows with equal noise; "
        "robust, noise whose variance differs from row to row; clustered, rows that depend on each other within "
        "the clusters of --clusters; auto, clustered with --clusters, robust for classes and counts with "
        "--weight-kind precision, else model.  [default: auto]",
    ),
    click.option(
        "--structure",
        cls=KindOption,
        type=KindChoice("kalprox.structures", "STRUCTURES"),
        help="What to keep of the precision matrix of many columns; by default all of it. Rows of a structure stay "
        "sparse, and are learned in one pass, with a ridge penalty or none. Standard errors of coefficients are then "
        "too small where columns go together; predictions with their noise are affected far less.",
    ),
    click.option(
        "--change-points",
        type=NumberOr("auto"),
        help="Look for rows at which the past stops applying, and write them to --events and the report: the "
        "expected number of rows from one to the next, or auto, 1000. If nothing changes, one is reported at most "
        "once in 99 times as many rows, on average, if errors are independent, symmetric and equally spread, and "
        "more often otherwise. The files are read in their order.",
    ),
)


def settings_of(columns: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the estimator, from the options."""
    from kalprox.likelihoods import Gaussian
    from kalprox.penalties import penalty_of
    from kalprox.sources.formula import FormulaColumns
    from kalprox.structures import STRUCTURES

    settings = {name: given[name] for name in ("link", "alpha", "standardize", "weight_kind", "missing")}
    intercept = not given["no_intercept"] and (not isinstance(columns, FormulaColumns) or columns.intercept)
    penalty = _penalty(columns, given)
    settings |= {"penalty": penalty, "fit_intercept": intercept} | likelihood_setting(columns, given)
    if penalty != "default" and not penalty_of(penalty).has_weight:
        settings["alpha"] = 1.0
    if is_given("targets") and "likelihood" not in settings:
        settings["likelihood"] = Gaussian(given["targets"])
    if given["change_points"] is not None:
        settings["change_points"] = True if given["change_points"] == "auto" else given["change_points"]
    if given["structure"] is not None:
        structure = given["structure"].made(STRUCTURES, "--structure")
        settings["structure"] = structure if fields(structure) else given["structure"].name
    if given["noise"] is not None:
        settings["noise"] = given["noise"]
    return settings | _coef_cov(columns, given["coef_cov"]) | forgetting_setting(columns, given)


def _penalty(columns: Any, given: dict[str, Any]) -> Any:
    """The penalty, as a name if it has no parameters."""
    from kalprox.penalties import PENALTIES

    kind = given["penalty"]
    if kind is None or kind.name == "none":
        return "default" if kind is None else None
    penalty = kind.made(PENALTIES, "--penalty").for_terms(columns.groups)
    return penalty if fields(penalty) else kind.name


def _coef_cov(columns: Any, coef_cov: str | None) -> dict[str, str]:
    """The parameter coef_cov of the estimator, if it is not the default."""
    if coef_cov == "clustered" and columns.cluster is None:
        raise click.UsageError("--coef-cov clustered requires --clusters, the column with the cluster of each row.")
    if coef_cov in ("model", "robust") and columns.cluster is not None:
        raise click.UsageError(f"--clusters requires --coef-cov auto or clustered; got --coef-cov {coef_cov}.")
    return {} if coef_cov in (None, "auto") else {"coef_cov": coef_cov}
