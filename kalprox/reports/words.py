"""Cells, dates and labels of figures as text."""

import unicodedata
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from kalprox._text import MAX_NAME, code, shorten
from kalprox.pages import Table
from kalprox.pages.style import STYLE

__all__ = ["code_columns", "date", "figure_label", "plain"]


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


def figure_label(name: str, otherwise: str, width: int = 32) -> str:
    """`name` for a figure, or `otherwise` if the font of the figures has no glyphs for it."""
    short = shorten(name, width)
    drawable = all(ord(c) in _glyphs() and unicodedata.bidirectional(c) not in ("R", "AL") for c in short)
    return short if short.strip() and drawable else otherwise


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(findfont(STYLE["font.family"])).get_charmap())
