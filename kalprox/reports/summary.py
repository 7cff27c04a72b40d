"""The tables of a model that was fitted to files: an overview, the coefficients, and the calibration."""

from typing import Any

import numpy as np

from kalprox.calibration import LEVELS
from kalprox.jobs.model import TableModel
from kalprox.learning.belief import Belief
from kalprox.learning.quantiles import CONFORMAL_LEVELS
from kalprox.pages import Table

__all__ = [
    "MAX_ROWS",
    "about_intervals",
    "calibration",
    "coefficients",
    "conformal",
    "contents",
    "effects",
    "exact_zeros",
    "overview",
    "tables",
]

MAX_ROWS = 500  # of a table on a page


def tables(fitted: TableModel, *, level: float = 0.95, top: int | None = None) -> list[Table]:
    """The tables that `kalprox show` prints.

    Parameters
    ----------
    fitted : TableModel
    level : float
        The level of the intervals of the coefficients.
    top : int, optional
        Show only the `top` coefficients with the largest effects.
    """
    return [overview(fitted), coefficients(fitted, level=level, top=top), calibration(fitted), *conformal(fitted)]


def overview(fitted: TableModel) -> Table:
    """Target, link, penalty, rows, noise and passes."""
    learner, belief, quality = fitted.learner, fitted.belief, fitted.record.quality
    settings = learner.settings
    rows: list[list[Any]] = [
        ["target", str(fitted.columns.target)],
        ["link", getattr(settings.link, "__name__", str(settings.link))],
        ["penalty", _penalty(belief)],
        ["columns", f"{len(fitted.columns.names):,}"],
        ["rows learned", f"{learner.n_rows:,}"],
        ["rows rejected", f"{quality.bad + learner.n_rejected:,}"],
        ["noise std", _noise(belief)],
        ["standard errors", _kind_of_errors(fitted)],
        ["passes over the rows", f"{belief.n_passes:,}, {'converged' if belief.converged else 'not converged'}"],
    ]
    if settings.forget != 1:
        half_life = np.log(0.5) / np.log(settings.forget)
        rows.append(["forget", f"{settings.forget:g}, the weight of a row is halved after {half_life:,.0f} more rows"])
    rows.append(["values of rows in the file", contents(fitted)])
    return Table(["property", "value"], rows, "The fitted model.")


def contents(fitted: TableModel) -> str:
    """Which values of rows the model file contains, and the pages made of it show."""
    quality, columns, sandwich = fitted.record.quality, fitted.columns, fitted.belief.sandwich
    examples = sum(
        len(note.examples) for notes in (quality.notes.unknown, quality.notes.rounded) for note in notes.values()
    )
    clusters = 0 if sandwich is None or columns.cluster is None else len(sandwich.groups)
    parts = {
        "refused cells": sum(row["value"] != "" for row in quality.first),
        "examples of unknown levels or rounded numbers": examples,
        "held rows": fitted.learner.n_held,
        "ranges of columns": len(quality.low),
        "levels": sum(map(len, columns.categorical.values())),
        "labels of clusters": clusters,
    }
    return ", ".join(f"{name}: {n:,}" for name, n in parts.items() if n) or "none"


def _penalty(belief: Belief) -> str:
    penalty = belief.settings.penalty
    if penalty.kind is None:
        return "none"
    if not penalty.has_weight:
        return penalty.kind if isinstance(penalty.kind, str) else type(penalty.kind).__name__
    auto = "auto -> " if isinstance(penalty.alpha, str) else ""
    return f"{penalty.kind}, alpha = {auto}{float(belief.alpha):.4g}"


def _noise(belief: Belief) -> str:
    variance, dof = float(belief.noise.variance), float(belief.noise.dof)
    if np.isnan(variance):
        return "unknown: there are no degrees of freedom left to learn it"
    how = "given" if np.isinf(dof) else f"learned, {dof:,.6g} degrees of freedom"
    return f"{variance**0.5:.4g} ({how})"


def _kind_of_errors(fitted: TableModel) -> str:
    kind, sandwich = fitted.learner.settings.coef_cov, fitted.belief.sandwich
    if kind == "model":
        return "model (independent rows with equal noise)"
    if kind == "robust":
        return "robust (the variance of the noise may differ from row to row)"
    clusters = 0 if sandwich is None else round(sandwich.count)
    by = "" if fitted.columns.cluster is None else f" of {fitted.columns.cluster}"
    return f"clustered (rows may depend on each other within each of {clusters:,} clusters{by})"


def effects(fitted: TableModel) -> np.ndarray:
    """The effect of each column: |coefficient| times the standard deviation of the column, of shape (d,).

    It is the change of the prediction (for a nonlinear link: of the linear predictor) when the column increases by one
    standard deviation. Where the standard deviations are not known, it is |coefficient|.
    """
    std = fitted.belief.column_std
    return np.abs(fitted.belief.coef) * (1.0 if std is None else std)


def exact_zeros(fitted: TableModel) -> np.ndarray:
    """Which coefficients the penalty sets to exactly 0, of shape (d,).

    An undetermined coefficient, which is 0 in the minimum-norm solution, is not one of them.
    """
    return (fitted.belief.coef == 0) & (fitted.belief.coef_std == 0)


def coefficients(fitted: TableModel, *, level: float = 0.95, top: int | None = None) -> Table:
    """The intercept and the coefficients with standard errors and intervals, in the order of the columns of X.

    With `top`, only the coefficients with the largest effects are shown; their numbers stay those of the columns.
    """
    belief, columns = fitted.belief, fitted.columns.names
    shown = np.sort(np.argsort(-effects(fitted), kind="stable")[:top])
    rows: list[list[Any]] = []
    if fitted.learner.settings.fit_intercept:
        ends = map(float, belief.intercept_interval(level))
        cells = _uncertainty(float(belief.intercept_std), *ends)
        rows.append([0, "intercept", float(belief.intercept), *cells, None])
    low, high = fitted.intervals(level)
    std, coef, effect, zero = belief.coef_std, belief.coef, effects(fitted), exact_zeros(fitted)
    for j in shown:
        cells = _uncertainty(float(std[j]), float(low[j]), float(high[j]))
        rows.append([int(j) + 1, columns[j], float(coef[j]), *cells, "0 (exact)" if zero[j] else float(effect[j])])
    caption = f"Coefficients with {about_intervals(belief, level)} "
    if belief.debiased:
        caption += (
            "The standard errors are conditional on the coefficients that the penalty selected: a coefficient and its "
            "standard error make no confidence interval. "
        )
    caption += f"{belief.interval_doubt} " if belief.interval_doubt else ""
    if any("unbounded" in row for row in rows):
        caption += "An interval is unbounded where the rows without the penalty do not determine the coefficient. "
    caption += "The effect is |coefficient| times the standard deviation of the column."
    if len(shown) < len(columns):
        caption += f" The {len(shown):,} with the largest effects, of {len(columns):,}, are shown."
    kind = fitted.learner.settings.coef_cov
    error = "std error" if kind == "model" else f"{kind} std error"
    return Table(["#", "column", "coefficient", error, "low", "high", "effect"], rows, caption)


def about_intervals(belief: Belief, level: float) -> str:
    """What the intervals of the coefficients are, as the end of a sentence; see `Belief.coef_interval`."""
    if belief.debiased:
        return (
            f"{100 * level:.4g}% intervals of least squares on all columns. They are debiased, that is, without the "
            "penalty, so that a coefficient may lie outside of its own."
        )
    kind = belief.settings.coef_cov
    whose = "those of the posterior" if kind == "model" else f"from {kind} standard errors"
    return f"{100 * level:.4g}% intervals, {whose}, for one look at it."


def _uncertainty(std: float, low: float, high: float) -> list[Any]:
    if np.isinf(std):
        return ["undetermined", None, None]
    if np.isnan(std) or np.isnan(low):
        return ["unknown", None, None]
    return [std, "unbounded", "unbounded"] if np.isinf(low) else [std, low, high]


def calibration(fitted: TableModel) -> Table:
    """The prequential scores: of rows that were predicted before they were learned."""
    score = fitted.learner.score
    scored = float(score.rows)
    coverage = [f"{float(share):.1%}" if scored > 0 else None for share in score.coverage[::-1]]
    cells = [float(score.rmse), *coverage, float(score.nis)] if scored > 0 else [None, *coverage, None]
    return Table(
        ["rows scored", "RMSE", *(f"within {level:.0%}" for level in LEVELS[::-1]), "NIS", "verdict"],
        [[int(scored) if scored.is_integer() else scored, *cells, score.verdict().word]],
        "Scores of rows that were predicted before they were learned: the root mean squared error, the share of the "
        "rows within their intervals, and the mean squared error in units of the predicted variance (NIS; 1 if "
        "calibrated).",
    )


def conformal(fitted: TableModel) -> list[Table]:
    """How many rows the conformal intervals contained that were issued for them; no table if there were none."""
    quantiles = fitted.learner.quantiles
    if quantiles.rows == 0:
        return []
    names = [f"within {level:.0%}" for level in CONFORMAL_LEVELS[::-1]]
    shares = [f"{float(share):.1%}" for share in quantiles.coverage[::-1]]
    rows = int(quantiles.rows) if quantiles.rows.is_integer() else quantiles.rows
    caption = "Conformal intervals: the share of the rows within the intervals that were issued before the rows came."
    return [Table(["rows", *names], [[rows, *shares]], caption)]
