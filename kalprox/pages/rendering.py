"""Pages as HTML, from the Jinja templates in `templates/`. All text is escaped, by Jinja's autoescape."""

import importlib.metadata
import math
import numbers
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from kalprox.base.text import printable
from kalprox.display.tables import Table
from kalprox.pages.page import Figure, Page

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


PACKAGES = ("kalprox", "numpy", "scipy", "jax", "matplotlib")
NAVIGATION_FROM = 4  # sections; a page with fewer needs no navigation


def render_page(page: Page, svgs: Mapping[str, bytes], narrow: Mapping[str, bytes]) -> str:
    """Render a page as HTML that refers to nothing outside itself.

    Parameters
    ----------
    page : Page
    svgs : mapping of str to bytes
        The SVG file of each figure, by the figure's name.
    narrow : mapping of str to bytes
        The SVG files to show instead on narrow screens, of those figures that have one.
    """
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            svgs=svgs,
            narrow=narrow,
            css=Markup((files(__package__) / "page.css").read_text(encoding="utf-8")),
            navigation=len(page.sections) >= NAVIGATION_FROM,
            versions=_versions(),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cells": cells, "facts": facts, "marked_up": marked_up, "paragraphs": paragraphs}
    environment.globals |= {"inline_svg": lambda *args: Markup(_inline_svg(*args))}  # ElementTree has escaped it
    return environment


class Fact(NamedTuple):
    """The name and the value of a setting as text, and the CSS class of the line, if it has one."""

    name: str
    value: str
    css: str


def facts(values: Mapping[str, Any]) -> list[Fact]:
    """Settings or versions as text. Numbers keep all their digits, so that they can be typed in again."""
    texts = {printable(str(name)): printable(_setting(value)) for name, value in values.items()}
    return [Fact(name, text, "long" if len(name) + len(text) >= LONG else "") for name, text in texts.items()]


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_setting(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_setting, value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _inline_svg(figure: Figure, svg: bytes, prefix: str) -> str:
    """The SVG file of a figure as an element of an HTML page.

    Namespaces are removed, `prefix` makes the ids unique on the page, and the figure's title and caption describe it to
    screen readers. Coordinates are rounded to a hundredth of a point, which halves the size. Matplotlib's style
    element would apply to the whole page, so it is removed; page.css contains its one rule.
    """
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        parent.tag = parent.tag.rpartition("}")[2]
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
        for key, value in list(parent.attrib.items()):
            del parent.attrib[key]
            parent.set(key.rpartition("}")[2], _attribute(key, value, prefix))
    for key in ("width", "height", "version"):
        del root.attrib[key]
    root.attrib |= {"role": "img", "aria-labelledby": f"{prefix}title", "aria-describedby": f"{prefix}desc"}
    title = ElementTree.Element("title", id=f"{prefix}title")
    title.text = figure.title
    description = ElementTree.Element("desc", id=f"{prefix}desc")
    description.text = re.sub(r"`|\*\*", "", figure.caption)
    root[:0] = [title, description]
    return ElementTree.tostring(root, encoding="unicode").rstrip()


def _attribute(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return prefix + value
    if key.endswith("href"):
        return re.sub(r"^#", f"#{prefix}", value)
    if key in ("d", "x", "y"):
        return re.sub(r"-?\d+\.\d{3,}", _rounded, value).strip()
    return value.replace("url(#", f"url(#{prefix}")


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
