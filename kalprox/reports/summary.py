"""A model fitted to files, in tables: what was fitted, its coefficients, and whether its intervals are true."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from kalprox.calibration import LEVELS
from kalprox.jobs.model import TableModel
from kalprox.pages import Table

__all__ = ["coefficients", "cut", "effects", "exact_zeros", "tables"]

UNDETERMINED = "undetermined"
WIDE = 60  # characters of a name on a page
NAMED = 5  # names in a sentence


def tables(found: TableModel, *, level: float = 0.95, top: int | None = None) -> list[Table]:
    """What was fitted, the coefficients (all, or the `top` with the largest effect), and the calibration."""
    return [fitted(found), coefficients(found, level=level, top=top), calibration(found)]


def fitted(found: TableModel) -> Table:
    """Target, link, penalty, rows, noise and passes."""
    model, quality = found.model, found.account.quality
    rows: list[list[Any]] = [
        ["target", str(found.columns.target)],
        ["link", getattr(model.link, "__name__", str(model.link))],
        ["penalty", _penalty(model)],
        ["columns", f"{len(found.columns.names):,}"],
        ["rows learned", f"{model.n_rows_seen_:,}"],
        ["rows refused", f"{quality.bad + model.n_rows_rejected_:,}"],
        ["noise std", _noise(model)],
        ["passes over the rows", f"{model.n_passes_:,}, {'converged' if model.converged_ else 'not converged'}"],
    ]
    if model.forget != 1:
        half = np.log(0.5) / np.log(model.forget)
        rows.append(["forget", f"{model.forget:g}, half of a row's weight after {half:,.0f} more"])
    return Table(["what", "value"], rows, "What was fitted.")


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
        return "unknown: no degrees of freedom are left to learn it"
    how = "given" if np.isinf(dof) else f"learned, {dof:,.6g} degrees of freedom"
    return f"{variance**0.5:.4g} ({how})"


def effects(found: TableModel) -> np.ndarray:
    """By how much the largest and the smallest value of each column set the prediction apart, (d,): |coef| times the
    column's range, before a link. Where the range is not known, |coef|."""
    quality = found.account.quality
    span = np.subtract(quality.high, quality.low) if quality.low else 1.0
    return np.abs(found.model.coef_) * span


def exact_zeros(found: TableModel) -> np.ndarray:
    """Which coefficients a penalty holds at 0, (d,): a minimum-norm 0 that no row determines is not one of them."""
    return (found.model.coef_ == 0) & (found.model.coef_std_ == 0)


def largest(found: TableModel, top: int | None) -> np.ndarray:
    """The numbers of the `top` columns with the largest effects, in the columns' order."""
    order = np.argsort(-effects(found), kind="stable")
    return np.sort(order[:top])


def coefficients(found: TableModel, *, level: float = 0.95, top: int | None = None) -> Table:
    """Each coefficient with its interval, the intercept first. Numbers are those of the columns, from 1."""
    model, names = found.model, found.columns.names
    shown = largest(found, top)
    rows: list[list[Any]] = []
    if model.fit_intercept:
        reach = float(model._fitted.noise.quantile(level)) * float(model.intercept_std_)
        at = float(model.intercept_)
        rows.append([0, "intercept", at, *_spread(float(model.intercept_std_), at - reach, at + reach), None])
    low, high = found.intervals(level)
    std, coef, effect, zero = model.coef_std_, model.coef_, effects(found), exact_zeros(found)
    for j in shown:
        spread = _spread(float(std[j]), float(low[j]), float(high[j]))
        rows.append([int(j) + 1, names[j], float(coef[j]), *spread, "0 (exact)" if zero[j] else float(effect[j])])
    caption = (
        f"Coefficients with their {100 * level:.4g}% intervals; effect is |coefficient| times the range of its column."
    )
    if len(shown) < len(names):
        caption += f" The {len(shown):,} with the largest effect, of {len(names):,}."
    return Table(["#", "column", "coefficient", "std", "low", "high", "effect"], rows, caption)


def _spread(std: float, low: float, high: float) -> list[Any]:
    if np.isinf(std):
        return [UNDETERMINED, None, None]
    if np.isnan(std) or np.isnan(low):
        return ["unknown", None, None]
    return [std, low, high]


def calibration(found: TableModel) -> Table:
    """The score of the rows that were predicted before they were learned."""
    score = found.model.diagnostics_
    shares = [f"{float(share):.1%}" if score.rows > 0 else None for share in score.coverage[::-1]]
    numbers = [float(score.rmse), *shares, float(score.nis)] if score.rows > 0 else [None, *shares, None]
    judged = float(score.rows)
    return Table(
        ["rows judged", "rmse", *(f"within {level:.0%}" for level in LEVELS[::-1]), "NIS", "verdict"],
        [[int(judged) if judged.is_integer() else judged, *numbers, score.verdict().word]],
        "Rows predicted before they were learned: the share of them within their intervals, and the mean squared error "
        "in units of the stated variance (NIS, 1 is right).",
    )


def cut(name: str, width: int) -> str:
    """`name` on one line, its middle left out where it is longer than `width`.

    >>> cut("a_very_long_name_of_a_column", 12)
    'a_very…olumn'
    """
    name = "".join(c if c.isprintable() else " " for c in name)
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def code(name: str) -> str:
    """`name` marked as code on a page: shown letter by letter."""
    return f"`{cut(name, WIDE).replace('`', chr(39))}`" if name.strip() else "(no name)"


def listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(map(code, names[:NAMED]))
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED:,} more"


def some_of(which: np.ndarray, noun: str) -> str:
    n = int(which.sum())
    return f"{n:,} of {counted(len(which), noun)} {'is' if n == 1 else 'are'}"


def counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def day(days: float) -> Any:
    """A date from days since 1970, where there is one."""
    try:
        return str(np.datetime64("1970-01-01") + np.timedelta64(round(days), "D"))
    except (OverflowError, ValueError):
        return days
