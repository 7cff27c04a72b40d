"""The tables of a model that was fitted to files: an overview, the coefficients, and the calibration."""

from typing import Any

import numpy as np

from kalprox.calibration import LEVELS
from kalprox.jobs.model import TableModel
from kalprox.pages import Table

__all__ = ["MAX_ROWS", "calibration", "coefficients", "effects", "exact_zeros", "overview", "tables"]

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
    return [overview(fitted), coefficients(fitted, level=level, top=top), calibration(fitted)]


def overview(fitted: TableModel) -> Table:
    """Target, link, penalty, rows, noise and passes."""
    model, quality = fitted.model, fitted.record.quality
    rows: list[list[Any]] = [
        ["target", str(fitted.columns.target)],
        ["link", getattr(model.link, "__name__", str(model.link))],
        ["penalty", _penalty(model)],
        ["columns", f"{len(fitted.columns.names):,}"],
        ["rows learned", f"{model.n_rows_seen_:,}"],
        ["rows rejected", f"{quality.bad + model.n_rows_rejected_:,}"],
        ["noise std", _noise(model)],
        ["passes over the rows", f"{model.n_passes_:,}, {'converged' if model.converged_ else 'not converged'}"],
    ]
    if model.forget != 1:
        half_life = np.log(0.5) / np.log(model.forget)
        rows.append(["forget", f"{model.forget:g}, the weight of a row is halved after {half_life:,.0f} more rows"])
    return Table(["property", "value"], rows, "The fitted model.")


def _penalty(model: Any) -> str:
    if model.penalty is None:
        return "none"
    if not isinstance(model.penalty, str):
        return type(model.penalty).__name__
    if model.penalty == "box":
        return "box"
    auto = "auto -> " if isinstance(model.alpha, str) else ""
    return f"{model.penalty}, alpha = {auto}{float(model.alpha_):.4g}"


def _noise(model: Any) -> str:
    variance, dof = float(model.noise_var_), float(model.noise_dof_)
    if np.isnan(variance):
        return "unknown: there are no degrees of freedom left to learn it"
    how = "given" if np.isinf(dof) else f"learned, {dof:,.6g} degrees of freedom"
    return f"{variance**0.5:.4g} ({how})"


def effects(fitted: TableModel) -> np.ndarray:
    """The effect of each column: |coefficient| times the range of the column, of shape (d,).

    It is the difference between the predictions (for a nonlinear link: between the linear predictors) at the largest
    and the smallest value of the column. Where the ranges are not known, it is |coefficient|.
    """
    quality = fitted.record.quality
    span = np.subtract(quality.high, quality.low) if quality.low else 1.0
    return np.abs(fitted.model.coef_) * span


def exact_zeros(fitted: TableModel) -> np.ndarray:
    """Which coefficients the penalty sets to exactly 0, of shape (d,).

    An undetermined coefficient, which is 0 in the minimum-norm solution, is not one of them.
    """
    return (fitted.model.coef_ == 0) & (fitted.model.coef_std_ == 0)


def coefficients(fitted: TableModel, *, level: float = 0.95, top: int | None = None) -> Table:
    """The intercept and the coefficients with standard errors and intervals, in the order of the columns of X.

    With `top`, only the coefficients with the largest effects are shown; their numbers stay those of the columns.
    """
    model, columns = fitted.model, fitted.columns.names
    shown = np.sort(np.argsort(-effects(fitted), kind="stable")[:top])
    rows: list[list[Any]] = []
    if model.fit_intercept:
        std, mean = float(model.intercept_std_), float(model.intercept_)
        reach = float(model._belief.noise.quantile(level)) * std
        rows.append([0, "intercept", mean, *_uncertainty(std, mean - reach, mean + reach), None])
    low, high = fitted.intervals(level)
    std, coef, effect, zero = model.coef_std_, model.coef_, effects(fitted), exact_zeros(fitted)
    for j in shown:
        cells = _uncertainty(float(std[j]), float(low[j]), float(high[j]))
        rows.append([int(j) + 1, columns[j], float(coef[j]), *cells, "0 (exact)" if zero[j] else float(effect[j])])
    caption = (
        f"Coefficients with {100 * level:.4g}% intervals. The effect is |coefficient| times the range of the column."
    )
    if len(shown) < len(columns):
        caption += f" The {len(shown):,} with the largest effects, of {len(columns):,}, are shown."
    return Table(["#", "column", "coefficient", "std error", "low", "high", "effect"], rows, caption)


def _uncertainty(std: float, low: float, high: float) -> list[Any]:
    if np.isinf(std):
        return ["undetermined", None, None]
    if np.isnan(std) or np.isnan(low):
        return ["unknown", None, None]
    return [std, low, high]


def calibration(fitted: TableModel) -> Table:
    """The prequential scores: of rows that were predicted before they were learned."""
    score = fitted.model.diagnostics_
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
