"""Tables of numbers and text: their contents, as lines of text, and as small HTML for notebooks."""

import html
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kalprox.base.arrays import Array
from kalprox.base.text import plain_number, printable

_LEAST = 8  # columns of a terminal that a text has at least on a line of a table, however narrow the terminal is
_CAPTION = 80  # columns of a caption, unless the table is wider


@dataclass(frozen=True)
class Table:
    """A table of numbers and text.

    Parameters
    ----------
    columns : list of str
        The headings.
    rows : list of lists
        One cell per column: a number, which is shown with three significant digits, text, a boolean, or None for an
        empty cell. Columns that contain mostly numbers are aligned to the right.
    caption : str
        Its lines are shown one below the other in text, and one after the other on a page.
    """

    columns: list[str]
    rows: list[list[Any]]
    caption: str = ""

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"each row must have one cell for each of the {len(self.columns)} columns; "
                    f"rows[{i}] has {len(row)}."
                )


def as_text(table: Table, width: int) -> str:
    """Return a table as lines of this many columns of a terminal, or more where its numbers need them.

    Nothing is cut off: where there is no room, text goes on below.

    >>> print(as_text(Table(["name", "value"], [["one two three", 1.5], ["four", 1200]], "A caption."), 14))
    name     value
    ──────────────
    one two    1.5
    three
    four     1,200
    A caption.
    """
    cells = [[cell_text(value) for value in row] for row in table.rows]
    columns = [[printable(name, keep=""), *column] for name, *column in zip(table.columns, *cells, strict=True)]
    numeric = [any(not isinstance(row[j], str | None) for row in table.rows) for j in range(len(columns))]
    sizes = [max(map(width_of, column)) for column in columns]
    gap = "  " if sum(sizes) + 2 * (len(sizes) - 1) <= width else " "
    over = sum(sizes) + len(gap) * (len(sizes) - 1) - width
    for j in sorted((j for j, is_number in enumerate(numeric) if not is_number), key=lambda j: -sizes[j]):
        less = min(max(over, 0), max(sizes[j] - _LEAST, 0))
        sizes[j], over = sizes[j] - less, over - less
    head, *rows = zip(*columns, strict=True)
    total = sum(sizes) + len(gap) * (len(sizes) - 1)
    lines = [*_lines(head, sizes, numeric, gap), "─" * total]
    lines += [line for row in rows for line in _lines(row, sizes, numeric, gap)]
    if table.caption:
        widest = min(max(width, _LEAST), max(total, _CAPTION))
        for line in printable(table.caption).split("\n"):
            lines += folded(line, widest, "    " if widest > _CAPTION / 2 else "")
    return "\n".join(lines)


def cell_text(value: Any) -> str:
    """Return a cell as text: a number with four significant digits, and all digits before the point."""
    if value is None or isinstance(value, str):
        return printable(value or "", keep="")
    return f"{value:,}" if isinstance(value, int) else plain_number(value)


def width_of(text: str) -> int:
    """Return the number of columns that a terminal needs for a text."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text in lines; all but the first are indented. A word that is longer than a line is divided.

    >>> folded("one two-and-twenty 3", 8)
    ['one', 'two-and-', 'twenty 3']
    """
    lines = [""]
    for word in text.split(" "):
        blank = " " if lines[-1].strip() else ""
        if width_of(lines[-1]) + len(blank) + width_of(word) <= width:
            lines[-1] += blank + word
            continue
        if lines[-1].strip():
            lines.append(indent)
        for character in word:
            if width_of(lines[-1]) + width_of(character) > width and lines[-1].strip():
                lines.append(indent)
            lines[-1] += character
    return lines


def _lines(row: Sequence[str], sizes: list[int], numeric: list[bool], gap: str) -> list[str]:
    """Return a row as lines of text."""
    parts = [[cell] if number else folded(cell, size) for cell, size, number in zip(row, sizes, numeric, strict=True)]
    lines = []
    for i in range(max(map(len, parts))):
        cells = [part[i] if i < len(part) else "" for part in parts]
        padding = [" " * (size - width_of(cell)) for cell, size in zip(cells, sizes, strict=True)]
        line = (p + c if right else c + p for c, p, right in zip(cells, padding, numeric, strict=True))
        lines.append(gap.join(line).rstrip())
    return lines


MAX_ROWS = 8  # of the coefficients
_LEFT, _RIGHT = "text-align:left", "text-align:right"
_MARK = "border-left:3px solid #D55E00;padding-left:0.5em"


def _escaped(text: str) -> str:
    return html.escape(printable(text, keep=""))


def card(title: str, *parts: str) -> str:
    """Return a title, which may be empty, and parts of HTML below it."""
    head = f"<div style='font-weight:600'>{_escaped(title)}</div>" if title else ""
    return f"<div class='kalprox' style='overflow-x:auto;max-width:60em'>{head}{''.join(parts)}</div>"


def facts(values: Mapping[str, str], doubts: Iterable[str] = ()) -> str:
    """Return names and values as a table; those named in `doubts` are marked. Text between backticks is code."""
    marked = set(doubts)
    rows = ""
    for name, value in values.items():
        text = re.sub(r"`([^`]+)`", r"<code>\1</code>", _escaped(value))
        mark = f";{_MARK}" if name in marked else ""
        head = f"<th style='{_LEFT};vertical-align:top'>{_escaped(name)}</th>"
        rows += f"<tr>{head}<td style='{_LEFT}{mark}'>{text}</td></tr>"
    return f"<table>{rows}</table>" if rows else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of names, in the first column, and numbers. A row of one cell is as wide as the table."""
    head = "".join(f"<th style='{_RIGHT}'>{_escaped(text)}</th>" for text in heads)
    body = ""
    for name, *cells in rows:
        wide = f" colspan='{len(heads)}'" if not cells else ""
        others = "".join(f"<td>{_escaped(cell)}</td>" for cell in cells)
        body += f"<tr><th style='{_LEFT}'{wide}>{_escaped(name)}</th>{others}</tr>"
    return f"<table style='text-align:right;border-spacing:0.8em 0'><tr>{head}</tr>{body}</table>"


def first_rows(names: Sequence[str], *columns: Array, more: str = "") -> list[tuple[str, ...]]:
    """Return the first names and their numbers, with four digits, as rows of a `table`, and how many more there are."""
    few = len(names) if len(names) <= MAX_ROWS + 1 else MAX_ROWS
    rows: list[tuple[str, ...]] = [(name, *(_number(c[i]) for c in columns)) for i, name in enumerate(names[:few])]
    return rows if few == len(names) else [*rows, (f"... and {len(names) - few:,} more{more}",)]


def _number(value: float) -> str:
    return "undetermined" if math.isinf(value) else "unknown" if math.isnan(value) else f"{value:.4g}"


def whole_table(whole: Table) -> str:
    """Return a table of text and numbers with its caption."""
    rows = [[*map(cell_text, row)] for row in whole.rows]
    return table(whole.columns, rows) + f"<div>{_escaped(whole.caption)}</div>" * bool(whole.caption)


def progress(title: str, done: float, total: float | None, spent: float, left: float | None) -> dict[str, str]:
    """Return a progress bar as HTML and as text; times are in seconds.

    >>> progress("rows", 500, 2000, 61.0, 183.0)["text/plain"]
    'rows: 500 of 2,000 after 0:01:01, 0:03:03 left'
    """
    times = f"after {_time(spent)}" + ("" if left is None or done == total else f", {_time(left)} left")
    text = f"{done:,.10g}{'' if total is None else f' of {total:,.10g}'} {times}"
    ends = "" if total is None else f" value='{done:.10g}' max='{total:.10g}'"
    bar = f"<progress{ends} style='width:16em;vertical-align:middle'></progress>"
    html = f"<div class='kalprox'>{_escaped(title)} {bar} {text}</div>"
    return {"text/html": html, "text/plain": f"{title}: {text}"}


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
