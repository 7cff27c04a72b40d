"""The text and the cells of a table as HTML."""

import math
import numbers
import re
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from kalprox.base.text import printable
from kalprox.display.tables import Table

__all__ = ["LONG", "MINUS", "TIMES", "cells", "marked_up", "number", "paragraphs"]

LONG = 28  # characters in a cell or a setting from which on it may be broken into lines

MINUS, TIMES, DASH = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"


def marked_up(text: str) -> Markup:
    """`text` escaped, with `code` and **bold** as HTML; text between backticks is shown literally.

    >>> print(marked_up("**a** < `**b**`"))
    <b>a</b> &lt; <code>**b**</code>
    """
    pieces = re.split(r"`([^`]+)`", str(escape(printable(text))))
    pieces[1::2] = [f"<code>{piece}</code>" for piece in pieces[1::2]]
    pieces[::2] = [re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", piece, flags=re.S) for piece in pieces[::2]]
    return Markup("".join(pieces))


def paragraphs(text: str) -> list[str]:
    """The parts of `text` between empty lines."""
    return re.split(r"\n\s*\n", text.strip()) if text.strip() else []


class Cell(NamedTuple):
    """The content of a cell and its CSS class, if it has one."""

    content: Markup
    css: str


class Cells(NamedTuple):
    """The headings and the rows of a table, ready to be shown."""

    head: list[Cell]
    rows: list[list[Cell]]


def cells(table: Table) -> Cells:
    """The cells of `table` as HTML; columns of numbers have the CSS class "n"."""
    numeric = [_is_numeric([row[j] for row in table.rows]) for j in range(len(table.columns))]
    head = [Cell(marked_up(column), "n" * right) for column, right in zip(table.columns, numeric, strict=True)]
    return Cells(head, [[_cell(*cell) for cell in zip(row, numeric, strict=True)] for row in table.rows])


def _cell(value: Any, right: bool) -> Cell:
    css = "n" * right
    if value is None:
        return Cell(Markup(DASH), css)
    if isinstance(value, (bool, np.bool_)):
        return Cell(Markup("yes" if value else "no"), css)
    if _is_number(value):
        return Cell(number(value), css)
    return Cell(marked_up(str(value)), "long" if len(str(value)) >= LONG else css)


def _is_numeric(column: list[Any]) -> bool:
    """Whether most cells of a column are numbers, including text such as "0.94 (0.91 to 0.96)" or "5%"."""
    filled = [cell for cell in column if cell is not None]
    found = [_is_number(cell) or (isinstance(cell, str) and _reads_as_number(cell)) for cell in filled]
    return 2 * sum(found) > len(filled)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _reads_as_number(text: str) -> bool:
    """Whether `text` contains digits, and no letters but those that occur in and between numbers.

    >>> [_reads_as_number(text) for text in ("0.94 (0.91 to 0.96)", "< 1e-3", "12 s", "to")]
    [True, True, False, False]
    """
    rest = re.sub(r"\bto\b|(?<=\d)e(?=[-+]?\d)", "", text)
    return re.search(r"\d", text) is not None and not re.search(r"[^\W\d]", rest)


def number(value: Any) -> Markup:
    """A number as HTML, with three significant digits, but all digits before the point; integers are shown in full.

    >>> [str(number(v)) for v in (300000, 0.05, -12.345, 1234.5, 2.5e-7)]
    ['300,000', '0.0500', '−12.3', '1,234', '2.50 × 10<sup>−7</sup>']
    >>> str(number(-1357012.3)), str(number(0.000272))
    ('−1,357,012', '0.000272')
    """
    if isinstance(value, numbers.Integral):
        text = f"{int(value):,}"
    elif not math.isfinite(value):
        text = f"{float(value)}".replace("nan", "NaN").replace("inf", "∞")
    else:
        digits, exponent = f"{float(value):.2e}".split("e")
        if value == 0:
            text = "0"
        elif -4 <= int(exponent) <= 2:
            text = f"{float(value):.{2 - int(exponent)}f}"
        elif 3 <= int(exponent) <= 9:
            text = f"{float(value):,.0f}"
        else:
            text = f"{digits} {TIMES} 10<sup>{int(exponent)}</sup>"
    return Markup(text.replace("-", MINUS))
