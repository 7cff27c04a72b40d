"""Names, counts and dates as text."""

import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from kalprox.pages import Table
from kalprox.pages.style import STYLE

__all__ = ["MAX_NAME", "code", "code_columns", "count", "date", "figure_label", "names", "plain", "share", "shorten"]

MAX_NAME = 60  # characters of a name on a page
MAX_NAMES = 5  # names in a sentence


def shorten(name: str, width: int) -> str:
    """`name` on one line, with an ellipsis in its middle if it is longer than `width`.

    >>> shorten("a_very_long_name_of_a_column", 12)
    'a_very…olumn'
    """
    name = "".join(c if c.isprintable() else " " for c in name)
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def code(name: str) -> str:
    """`name` marked as code, so that a page shows it literally."""
    return f"`{shorten(name, MAX_NAME).replace('`', chr(39))}`" if name.strip() else "(no name)"


def plain(name: str) -> str:
    """`name` without what a page would take for marks, for text that terminals show too."""
    return shorten(name, MAX_NAME).replace("`", "'").replace("**", "* *")


def code_columns(table: Table, *columns: int) -> Table:
    """`table` with the cells of these columns, which contain text from the data, marked as code."""

    def cell(i: int, value: Any) -> Any:
        return value if i not in columns else code(value) if value else None

    return replace(table, rows=[[cell(i, value) for i, value in enumerate(row)] for row in table.rows])


def names(values: Iterable[str]) -> str:
    """The first names as a list in a sentence.

    >>> names("abcdefg")
    '`a`, `b`, `c`, `d`, `e` and 2 more'
    """
    values = list(values)
    shown = ", ".join(map(code, values[:MAX_NAMES]))
    return shown if len(values) <= MAX_NAMES else f"{shown} and {len(values) - MAX_NAMES:,} more"


def count(n: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "row"), count(12000, "row")
    ('1 row', '12,000 rows')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def share(which: np.ndarray, noun: str) -> str:
    """How many entries of a boolean array are true, as the beginning of a sentence.

    >>> share(np.array([True, False, True]), "column")
    '2 of 3 columns are'
    """
    n = int(which.sum())
    return f"{n:,} of {count(len(which), noun)} {'is' if n == 1 else 'are'}"


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
