"""Tables of numbers and text: their contents, and how they are written in lines of text."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kalprox.base.text import plain_number, printable

__all__ = ["Table", "as_text", "cell_text", "folded", "width_of"]

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
