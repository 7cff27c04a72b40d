"""Cells and dates as text."""

from dataclasses import replace
from typing import Any

import numpy as np

from kalprox.base.text import MAX_NAME, code, shorten
from kalprox.pages import Table

__all__ = ["code_columns", "date", "plain"]


def plain(name: str) -> str:
    """`name` without what a page would take for marks, for text that terminals show too."""
    return shorten(name, MAX_NAME).replace("`", "'").replace("**", "* *")


def code_columns(table: Table, *columns: int) -> Table:
    """`table` with the cells of these columns, which contain text from the data, marked as code."""

    def cell(i: int, value: Any) -> Any:
        return value if i not in columns else code(value) if value else None

    return replace(table, rows=[[cell(i, value) for i, value in enumerate(row)] for row in table.rows])


def date(days: float) -> Any:
    """The date of a number of days since 1970-01-01, or the number itself where there is no such date."""
    try:
        return str(np.datetime64("1970-01-01") + np.timedelta64(round(days), "D"))
    except (OverflowError, ValueError):
        return days
