"""The sections of a model's page about its data: the columns, the levels, and the rows that were rejected."""

from typing import Any

import numpy as np

from kalprox.base.text import MAX_NAME, count, shorten
from kalprox.jobs.model import TableModel
from kalprox.jobs.record import DataQuality
from kalprox.learning.facts import refusals
from kalprox.pages import Section, Table
from kalprox.reports.summary import MAX_ROWS, code_columns, contents


def section(fitted: TableModel) -> Section:
    """The range and mean of each column, and the levels of categorical columns."""
    quality, columns = fitted.record.quality, fitted.columns
    if not quality.total:
        return Section("Data", "There is no record of the rows of this model.")
    good = quality.good
    rows: list[list[Any]] = []
    levels: list[list[Any]] = []
    j = 0  # the column of X
    for feature in columns.features:
        if feature in columns.shared:
            continue
        if feature not in columns.categorical and feature not in columns.hashed:
            has_range = bool(quality.low) and quality.low[j] <= quality.high[j]
            ends = (quality.low[j], quality.high[j]) if has_range else (None, None)
            cells = (*map(_whole, ends), quality.total[j] / good)
            shown = [None if cell is None else _date(cell) for cell in cells] if feature in columns.dates else cells
            rows.append([feature, *shown, None])
            j += 1
            continue
        known = columns.categorical.get(feature, range(columns.hashed.get(feature, 0)))
        counts = [int(n) for n in quality.total[j : j + len(known) - (feature in columns.references)]]
        others: int | None = good - sum(counts)  # rows of zeros
        if feature in columns.references:
            told = feature in columns.hashed or columns.unseen == "reject"  # no unknown level is a row of zeros
            reference = f"{feature}={columns.references[feature]}"
            rows.append([reference, None, None, None, others if told else None])
            others = 0 if told else None
        rows += [[columns.names[j + i], None, None, None, n] for i, n in enumerate(counts)]
        j += len(counts)
        levels.append([feature, len(known), columns.references.get(feature), others])
    if columns.shared:
        levels.append([" + ".join(columns.shared), len(columns.names) - j, None, None])
    caption = f"Columns, over the {good:,} good rows. For a level of a categorical column: the number of rows with it."
    if len(rows) > MAX_ROWS:
        caption += f" The first {MAX_ROWS:,} of {len(rows):,} are shown."
    tables = [code_columns(Table(["column", "min", "max", "mean", "rows"], rows[:MAX_ROWS], caption), 0)]
    if levels:
        names = ["column", "levels", "reference", "rows with an unknown level"]
        caption = "Categorical columns."
        if columns.references:
            caption += " The coefficients of levels are differences from the reference level."
        if columns.unseen == "zero":
            as_what = ", and cannot be distinguished from the reference" if columns.references else ""
            caption += f" An unknown level is encoded as zeros{as_what}."
        tables.append(code_columns(Table(names, levels, caption), 0, 2))
    if rows_of := quality.class_rows(columns.classes):
        shares = [[name, n, f"{n / good:.3g}" if good else None] for name, n in rows_of.items()]
        tables.append(code_columns(Table(["class", "rows", "share"], shares, "Classes of the target."), 0))
    paragraphs = [
        f"{count(quality.read, 'row')} read, {good:,} of them good.",
        f"Values of rows that the model file contains, and that this page may show: {contents(fitted)}.",
        *(text.replace("`", "'").replace("**", "* *") for text in quality.notes.texts()),  # not marked up
    ]
    return Section("Data", "\n\n".join(paragraphs), [], tables)


def rejected(quality: DataQuality) -> Section:
    """The reasons for which rows were rejected, and the first rejected rows."""
    title = "Rejected rows"
    if not quality.bad:
        return Section(title, "No rows were rejected.")
    counts = quality.counted
    more = f" The {MAX_ROWS:,} most frequent of {len(counts):,} are shown." if len(counts) > MAX_ROWS else ""
    reasons = Table(["column", "reason", "rows"], [list(c) for c in counts[:MAX_ROWS]], f"Reasons.{more}")
    first = [
        [shorten(str(row["file"]), MAX_NAME), row["row"] or None, row["column"], row["reason"], row["value"]]
        for row in quality.first
    ]
    examples = Table(["file", "row", "column", "reason", "value"], first, "The first rejected rows.")
    tables = [code_columns(reasons, 0), code_columns(examples, 0, 2, 4)]
    return Section(title, f"{count(quality.read, 'row')} read, {refusals(quality)}", [], tables)


def _whole(value: float | None) -> Any:
    """A number without a fraction as an integer, so that it is shown without digits after the point."""
    return value if value is None or not value.is_integer() or abs(value) >= 1e10 else int(value)


def _date(days: float) -> Any:
    """The date of a number of days since 1970-01-01, or the number itself where there is no such date."""
    try:
        return str(np.datetime64("1970-01-01") + np.timedelta64(round(days), "D"))
    except (OverflowError, ValueError):
        return days
