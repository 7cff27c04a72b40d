"""The tables of a model that was fitted to files: an overview, the coefficients, and the calibration."""

from dataclasses import replace
from typing import Any

from kalprox.base.text import MAX_NAME, code, in_options, shorten
from kalprox.jobs.model import TableModel
from kalprox.learning.saving import n_held
from kalprox.learning.tracking import CONFORMAL_LEVELS
from kalprox.pages import Table
from kalprox.sources.formula import FormulaColumns

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
    roles = {name: getattr(fitted.columns, name, None) for name in ("formula", "offset", "exposure", "time")}
    more = {name: value for name, value in roles.items() if value is not None}
    table = fitted.summary().about_model(more | {"values of rows in the file": contents(fitted)})
    return replace(table, caption=f"The fitted model.\n{table.caption}".rstrip())


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
    """The coefficients with standard errors and intervals; see `kalprox.learning.summary.Summary`."""
    table = fitted.summary(level).about_coefficients(top, about_levels(fitted).rstrip())
    return replace(table, caption=in_options(table.caption))


def about_levels(fitted: TableModel) -> str:
    """What the coefficients of levels are differences from, as a sentence with a blank after it; "" without levels."""
    against = [f"{plain(name)} against {plain(level)}" for name, level in fitted.columns.references.items()]
    return f"The coefficients of levels are differences: {', '.join(against)}. " if against else ""


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
