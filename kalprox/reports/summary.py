"""The tables of a model that was fitted to files: an overview, the coefficients, and the calibration."""

from dataclasses import replace
from typing import Any

import numpy as np

from kalprox.base.text import MAX_NAME, code, shorten
from kalprox.jobs.model import TableModel
from kalprox.learning.quantiles import CONFORMAL_LEVELS
from kalprox.learning.saving import n_held
from kalprox.learning.summary import DEBIASED, TINY
from kalprox.pages import Table
from kalprox.sources.formula import FormulaColumns

__all__ = [
    "MAX_ROWS",
    "about_levels",
    "calibration",
    "code_columns",
    "coefficients",
    "conformal",
    "contents",
    "overview",
    "plain",
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
    """The facts of the summary, the columns with a role, and what the model file holds of rows."""
    columns, found = fitted.columns, fitted.summary()
    roles = {name: getattr(columns, name, None) for name in ("formula", "offset", "exposure", "time")}
    told = {"target": str(columns.target), **{name: value for name, value in roles.items() if value is not None}}
    told |= found.facts | {"values of rows in the file": contents(fitted)}
    about = ("R2", "The effective", "There is no log evidence", "The noise is integrated")
    notes = [note for note in found.notes if note.startswith(about)]
    return Table(["property", "value"], list(map(list, told.items())), " ".join(["The fitted model.", *notes]))


def contents(fitted: TableModel) -> str:
    """Which values of rows the model file contains, and the pages made of it show."""
    quality, columns, sandwich = fitted.record.quality, fitted.columns, fitted.belief.sandwich
    levels = columns.levels if isinstance(columns, FormulaColumns) else columns.categorical
    examples = sum(
        len(note.examples) for notes in (quality.notes.unknown, quality.notes.rounded) for note in notes.values()
    )
    clusters = 0 if sandwich is None or columns.cluster is None else len(sandwich.groups)
    parts = {
        "refused cells": sum(row["value"] != "" for row in quality.first),
        "examples of unknown levels or rounded numbers": examples,
        "held rows": n_held(fitted.learner),
        "ranges of columns": len(quality.low),
        "levels": sum(map(len, levels.values())),
        "classes": len(columns.classes),
        "labels of clusters": clusters,
    }
    return ", ".join(f"{name}: {n:,}" for name, n in parts.items() if n) or "none"


def coefficients(fitted: TableModel, *, level: float = 0.95, top: int | None = None) -> Table:
    """The intercept and the coefficients with standard errors and intervals, in the order of the columns of X.

    With `top`, only the coefficients with the largest effects are shown; their numbers stay those of the columns.
    """
    belief, columns, cov = fitted.belief, fitted.coef_names, fitted.learner.settings.coef_cov
    found, effect, zero = fitted.summary(level), np.ravel(belief.effects), np.ravel(belief.exact_zeros)
    shown = np.sort(np.argsort(-effect, kind="stable")[:top])
    outputs, d = effect.size // len(columns), len(columns)
    first = len(found.names) // outputs - d  # 1 with an intercept
    kinds = [[name] for name in fitted.columns.classes] if outputs > 1 else [[]]

    def cells(i: int) -> list[Any]:
        tests: list[Any] = [None if np.isnan(value) else _three_digits(value) for value in (found.t[i], found.p[i])]
        tests[1] = f"<{TINY:.0e}" if found.p[i] < TINY else tests[1]
        se, low, high = _uncertainty(*(float(a[i]) for a in (found.se, found.low, found.high)))
        return [float(found.coef[i]), se, *tests, low, high]

    rows: list[list[Any]] = []
    for c, kind in enumerate(kinds):
        start = c * (first + d)
        rows += [[0, *kind, "intercept", *cells(start), None]] if first else []
        for at in shown[shown // d == c]:
            j = int(at) % d
            size = "0 (exact)" if zero[at] else _three_digits(effect[at])
            rows.append([j + 1, *kind, columns[j], *cells(start + first + j), size])
    caption = f"Coefficients with {100 * level:.4g}% intervals"
    if not belief.debiased:
        whose = "those of the posterior" if cov == "model" else f"from {cov} standard errors"
        caption += f", {whose}, for one look at it"
    caption += ". "
    about = "t and p are empty", DEBIASED
    notes = [note for note in found.notes if note == belief.interval_doubt or note.startswith(about)]
    caption += "".join(f"{note} " for note in notes)
    if any("unbounded" in row for row in rows):
        caption += "An interval is unbounded where the rows without the penalty do not determine the coefficient. "
    own = belief.settings.function is not None  # a function, whose parameters have no columns
    caption += about_levels(fitted)
    caption += "" if own else "The effect is |coefficient| times the standard deviation of the column."
    if outputs > 1:
        caption += " The coefficients of a class move its own linear predictor; over all classes they add up to 0."
    if len(shown) < effect.size:
        caption += f" The {len(shown):,} with the largest effects, of {effect.size:,}, are shown."
    of = "parameter" if own else "column"
    header = ["#", *(["class"] if outputs > 1 else []), of, *found.heads, "effect"]
    return Table(header[:-1], [row[:-1] for row in rows], caption) if own else Table(header, rows, caption)


def about_levels(fitted: TableModel) -> str:
    """What the coefficients of levels are differences from, as a sentence with a blank after it; "" without levels."""
    against = [f"{plain(name)} against {plain(level)}" for name, level in fitted.columns.references.items()]
    return f"The coefficients of levels are differences: {', '.join(against)}. " if against else ""


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def _uncertainty(std: float, low: float, high: float) -> list[Any]:
    if np.isinf(std):
        return ["undetermined", None, None]
    if np.isnan(std) or np.isnan(low):
        return ["unknown", None, None]
    return [std, "unbounded", "unbounded"] if np.isinf(low) else [std, low, high]


def calibration(fitted: TableModel) -> Table:
    """The prequential scores: of rows that were predicted before they were learned."""
    score = fitted.learner.score
    rows, scores = float(score.rows), score.scores
    number: Any = int(rows) if rows.is_integer() else rows
    cells = [None if not rows > 0 or value != value else value for value in scores.values()]
    caption = f"Scores of rows that were predicted before they were learned: {score.about_scores}."
    return Table(["rows scored", *scores, "verdict"], [[number, *cells, score.verdict().word]], caption)


def conformal(fitted: TableModel) -> list[Table]:
    """How many rows the conformal intervals contained that were issued for them; no table if there were none."""
    quantiles = fitted.learner.stream.quantiles
    if quantiles.rows == 0:
        return []
    names = [f"within {level:.0%}" for level in CONFORMAL_LEVELS[::-1]]
    shares = [f"{float(share):.1%}" for share in quantiles.coverage[::-1]]
    rows = int(quantiles.rows) if quantiles.rows.is_integer() else quantiles.rows
    caption = "Conformal intervals: the share of the rows within the intervals that were issued before the rows came."
    return [Table(["rows", *names], [[rows, *shares]], caption)]


def plain(name: str) -> str:
    """`name` without what a page would take for marks, for text that terminals show too."""
    return shorten(name, MAX_NAME).replace("`", "'").replace("**", "* *")


def code_columns(table: Table, *columns: int) -> Table:
    """`table` with the cells of these columns, which contain text from the data, marked as code."""

    def cell(i: int, value: Any) -> Any:
        return value if i not in columns else code(value) if value else None

    return replace(table, rows=[[cell(i, value) for i, value in enumerate(row)] for row in table.rows])
