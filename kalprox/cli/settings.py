"""Options of `kalprox fit` about the target, the model, its penalty and forgetting, and the parameters they say."""

import math
from dataclasses import fields
from datetime import timedelta
from typing import Any

import click

from kalprox.cli.options import (
    NAMES,
    Kind,
    KindChoice,
    NumberOr,
    NumberOrKind,
    Options,
    RegistryChoice,
    is_given,
    option,
)


class TargetOptions(Options):
    """Options about the target and its distribution.

    Attributes
    ----------
    likelihood
        Distribution of the target, one of these kinds. Parameters follow after commas.
    classes
        Classes of the target, separated by commas; rows of others are bad rows. Upper and lower case do not matter.
        [default: all that are found in the data]
    positive
        Which of two classes is counted as yes.
        [default: the second in sorted order]
    offset
        Column that is added to the linear predictor.
    exposure
        Column with the exposure of each row, such as the time in which its count was made: its log is added to the
        linear predictor.
    """

    group = "Target"
    likelihood = option(type=KindChoice("kalprox.likelihoods.names", "LIKELIHOODS"), default="gaussian")
    classes = option(type=NAMES, default=())
    positive = option(metavar="CLASS")
    offset = option(metavar="COLUMN")
    exposure = option(metavar="COLUMN")


class ModelOptions(Options):
    """Options about the model and its penalty.

    Attributes
    ----------
    link
        Function of the linear predictor that gives the mean of the target; with a likelihood of counts or classes,
        which has its own, identity.
    targets
        Targets to accept: range, those that lie in the range of the link, up to noise; any, all. Others are an error.
    penalty
        Penalty on the coefficients: ridge by default for classes, counts and amounts, and with --alpha, else none, and
        otherwise one of these kinds. Parameters follow after commas.
    alpha
        Weight of the penalty; auto chooses it from the data (identity link; for classes and counts: ridge).
        [default: 1]
    noise
        Noise variance; inputs lets it depend on the inputs (identity link only).
        [default: learned from the data]
    no_intercept
        Fit no intercept.
    standardize
        Apply the penalty to the coefficients of columns scaled to unit variance.
    weight_kind
        Meaning of the weights of --weight: frequency, a row of weight 2 counts as two rows; precision, the weight is 1
        / variance of the noise of the row, up to a common factor, or for classes and counts how much the row counts
        for.
    coef_cov
        What the standard errors of the coefficients assume: model, independent rows with equal noise; robust, noise
        whose variance differs from row to row; clustered, rows that depend on each other within the clusters of
        --clusters; auto, clustered with --clusters, robust for classes and counts with --weight-kind precision, else
        model.
        [default: auto]
    structure
        What to keep of the precision matrix of many columns; by default all of it. Rows of a structure stay sparse, and
        are learned in one pass, with a ridge penalty or none. Standard errors of coefficients are then too small where
        columns go together; predictions with their noise are affected far less.
    change_points
        Look for rows at which the past stops applying, and write them to --events and the report: the expected number
        of rows from one to the next, or auto, 1000. If nothing changes, one is reported at most once in 99 times as
        many rows, on average, if errors are independent, symmetric and equally spread, and more often otherwise. The
        files are read in their order.
    """

    group = "Model"
    link = option(type=RegistryChoice("kalprox.models", "LINKS"), default="identity")
    targets = option(type=RegistryChoice("kalprox.likelihoods.gaussian", "TARGETS"), default="range")
    penalty = option(type=KindChoice("kalprox.penalties", "PENALTIES", "none"))
    alpha = option(type=NumberOr("auto"))
    noise = option(type=NumberOr("inputs"))
    no_intercept = option(is_flag=True)
    standardize = option(is_flag=True)
    weight_kind = option(type=RegistryChoice("kalprox.sources.weighting", "WEIGHT_KINDS"), default="frequency")
    coef_cov = option(type=RegistryChoice("kalprox.learning.settings", "COEF_COVS"))
    structure = option(type=KindChoice("kalprox.structures", "STRUCTURES"))
    change_points = option(type=NumberOr("auto"))


class ForgettingOptions(Options):
    """Options about what becomes of old rows.

    Attributes
    ----------
    forget
        How old rows are forgotten. A number in (0, 1] is a forgetting factor: every row multiplies the weights of the
        rows before it by this number. auto mixes several ways to forget by how well each predicts. Other kinds follow.
    time
        Column of the times of the rows, numbers or dates, in order; for --forget time,half_life=7d.
    """

    group = "Forgetting"
    forget = option(type=NumberOrKind("kalprox.forgetting", "FORGETTINGS", "auto"), default=1.0)
    time = option(metavar="COLUMN")


def settings_of(columns: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the estimator, from the options."""
    from kalprox.likelihoods import Gaussian
    from kalprox.penalties import penalty_of
    from kalprox.structures import STRUCTURES

    settings = {name: given[name] for name in ("link", "alpha", "standardize", "weight_kind", "missing")}
    intercept = not given["no_intercept"] and columns.intercept
    penalty = _penalty(columns, given)
    settings |= {"penalty": penalty, "fit_intercept": intercept} | _likelihood_setting(columns, given)
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
    return settings | _coef_cov(columns, given["coef_cov"]) | _forgetting_setting(columns, given)


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


def target_options(given: dict[str, Any]) -> dict[str, Any]:
    """What `Columns.infer` is told about the target, from the options."""
    from kalprox.likelihoods.names import LIKELIHOODS
    from kalprox.sources.inference import TargetClasses

    name, most = given["likelihood"].name, most_classes()
    for asked in ("classes", "positive"):
        if given[asked] and name not in most:
            raise click.UsageError(f"--{asked} is about classes: use --likelihood {' or '.join(most)}; got {name}.")
    classes = TargetClasses(given["classes"], given["positive"], most[name]) if name in most else None
    low, high = given["likelihood"].made(LIKELIHOODS, "--likelihood").support
    return {
        "classes": classes,
        "low": low if classes is None and math.isfinite(low) else None,
        "high": high if classes is None and math.isfinite(high) else None,
        "offset": given["offset"],
        "exposure": given["exposure"],
    }


def _likelihood_setting(columns: Any, given: dict[str, Any]) -> dict[str, Any]:
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
    from kalprox.sources.inference import MOST_CLASSES

    most = {"two classes": 2, "several classes": MOST_CLASSES}
    return {name: most[kind.outcomes] for name, kind in LIKELIHOODS.items() if kind.outcomes in most}


def _forgetting_setting(columns: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The parameter `forget` of the estimator, from the options."""
    from kalprox.forgetting import FORGETTINGS

    forget = given["forget"]
    kind = forget.made(FORGETTINGS, "--forget") if isinstance(forget, Kind) else None
    if kind is None or not kind.needs_times:
        if columns.time is not None:
            raise click.UsageError("--time is for forgetting by time: give --forget time,half_life=... too.")
        return {"forget": forget if kind is None else kind}
    if columns.time is None:
        raise click.UsageError(f"--forget {forget.name} requires --time, the column of the times of the rows.")
    if given["shuffle"] is not None:
        raise click.UsageError("--shuffle changes the order of the rows, which --time needs: leave it out.")
    has_unit = any(isinstance(value, timedelta) for value in forget.parameters.values())
    if has_unit and not columns.time_is_date:
        raise click.UsageError(
            f"The time of --forget {forget.name} has a unit, and column {columns.time!r} holds numbers: give it in "
            "their units."
        )
    return {"forget": kind}
