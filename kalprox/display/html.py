"""HTML for notebooks: small, without scripts, with all text escaped, in the colours of the notebook, light or dark."""

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from kalprox.base.arrays import Array
from kalprox.base.text import printable
from kalprox.display.tables import Table, cell_text

__all__ = ["card", "facts", "first_rows", "progress", "table", "whole_table"]

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
