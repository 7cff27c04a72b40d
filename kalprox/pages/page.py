"""One run, one HTML page: what to conclude, figures, tables, settings, versions; no reference to anything outside."""

import html
import importlib.metadata
import math
import numbers
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from kalprox._files import replace
from kalprox.pages.figures import Figure, render, write

__all__ = ["Page", "Section", "Table", "number", "write_page"]

PACKAGES = ("kalprox", "numpy", "scipy", "jax", "matplotlib")
NAVIGATION_FROM = 4  # sections; fewer are seen at a glance
LONG = 28  # characters in a cell or a setting, from which it may be broken into lines

MINUS, TIMES, DASH = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"

# The browser itself is told to load nothing: a reference that slipped in would be refused, not fetched.
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="kalprox">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{css}</style>
</head>
<body>
"""


@dataclass(frozen=True)
class Table:
    """Rows of numbers and words. Numbers get three significant digits (see `number`); columns of them stand right."""

    columns: list[str]
    rows: list[list[Any]]
    caption: str = ""

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"each of rows must have one cell for each of the {len(self.columns)} columns; "
                    f"rows[{i}] has {len(row)}."
                )


@dataclass(frozen=True)
class Section:
    """A heading with text, then figures, then tables.

    In text, captions, conclusions and cells an empty line ends a paragraph, `code` and **bold** are marked so, and
    everything else is shown as it is written.
    """

    title: str
    text: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Page:
    """A run: its conclusions stand first, its settings (the seed among them) and the versions last."""

    title: str
    summary: str
    sections: Sequence[Section]
    settings: dict[str, Any] = field(default_factory=dict)
    conclusions: Sequence[str] = ()


def write_page(
    page: Page, path: str | Path, folder_for_figures: str | Path | None = None, formats: Sequence[str] = ("svg",)
) -> Path:
    """Write `page` as one self-contained HTML file, whole or not at all; return its path.

    With `folder_for_figures`, each figure and its numbers are also written there, in `formats`.
    """
    figures = [figure for section in page.sections for figure in section.figures]
    names = [figure.name for figure in figures]
    if len(set(names)) < len(names):
        raise ValueError(f"the figures of a page must have different names; got {', '.join(names)}. Change name.")
    svgs = []
    for figure in figures:
        written = {} if folder_for_figures is None else write(figure, folder_for_figures, formats)
        svgs.append(written["svg"].read_bytes() if "svg" in written else render(figure, "svg"))
    return replace(Path(path), _html(page, iter(svgs)).encode())


def _html(page: Page, svgs: Iterator[bytes]) -> str:
    parts = [HEAD.format(title=html.escape(page.title), css=(files(__package__) / "page.css").read_text())]
    parts += [f"<header>\n<h1>{html.escape(page.title)}</h1>\n{_paragraphs(page.summary, 'summary')}"]
    if page.conclusions:
        points = "\n".join(f"<li>{_inline(point)}</li>" for point in page.conclusions)
        parts += [
            '<section class="conclusions" aria-labelledby="conclusions">\n<h2 id="conclusions">What to conclude</h2>\n'
            f"<ul>\n{points}\n</ul>\n</section>\n"
        ]
    if len(page.sections) >= NAVIGATION_FROM:
        links = "\n".join(
            f'<li><a href="#s{i}">{html.escape(section.title)}</a></li>' for i, section in enumerate(page.sections, 1)
        )
        parts += [f'<nav aria-label="Sections">\n<ol>\n{links}\n</ol>\n</nav>\n']
    parts += ["</header>\n<main>\n"]
    figure_count = table_count = 0
    for i, section in enumerate(page.sections, 1):
        title = html.escape(section.title)
        parts += [f'<section aria-labelledby="s{i}">\n<h2 id="s{i}">{title}</h2>\n{_paragraphs(section.text)}']
        for figure in section.figures:
            figure_count += 1
            parts += [_figure(figure, next(svgs), figure_count)]
        for table in section.tables:
            table_count += 1
            parts += [_table(table, table_count)]
        parts += ["</section>\n"]
    parts += ["</main>\n<footer>\n"]
    if page.settings:
        parts += [_facts("Settings", page.settings)]
    parts += [_facts("Versions", _versions()), "</footer>\n</body>\n</html>\n"]
    return "".join(parts)


def _figure(figure: Figure, svg: bytes, count: int) -> str:
    title = html.escape(figure.title.rstrip("."))
    return (
        f'<figure id="fig{count}" style="--size: {figure.size[0] * 96:g}px">\n'
        f"{_inline_svg(figure, svg, f'fig{count}-')}\n"
        f"<figcaption><b>Figure {count}. {title}.</b> {_inline(figure.caption)}</figcaption>\n</figure>\n"
    )


def _inline_svg(figure: Figure, svg: bytes, prefix: str) -> str:
    """The SVG as HTML holds it: no namespaces, ids of its own, a name for those who cannot see it.

    Coordinates are cut to a hundredth of a point, which halves the file. Matplotlib's one style rule would reach the
    whole page; it is in the page's style sheet instead.
    """
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        parent.tag = parent.tag.rpartition("}")[2]
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
        for key, value in list(parent.attrib.items()):
            del parent.attrib[key]
            parent.set(key.rpartition("}")[2], _own(key, value, prefix))
    for key in ("width", "height", "version"):
        del root.attrib[key]
    root.attrib |= {"role": "img", "aria-labelledby": f"{prefix}title", "aria-describedby": f"{prefix}desc"}
    title = ElementTree.Element("title", id=f"{prefix}title")
    title.text = figure.title
    description = ElementTree.Element("desc", id=f"{prefix}desc")
    description.text = re.sub(r"`|\*\*", "", figure.caption)
    root[:0] = [title, description]
    return ElementTree.tostring(root, encoding="unicode").rstrip()


def _own(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return prefix + value
    if key.endswith("href"):
        return re.sub(r"^#", f"#{prefix}", value)
    if key in ("d", "x", "y"):
        return re.sub(r"-?\d+\.\d{3,}", lambda digits: f"{float(digits[0]):.2f}".rstrip("0").rstrip("."), value).strip()
    return value.replace("url(#", f"url(#{prefix}")


def _table(table: Table, count: int) -> str:
    right = [_numeric([row[j] for row in table.rows]) for j in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{_class("n" * numeric)}>{_inline(column)}</th>'
        for column, numeric in zip(table.columns, right, strict=True)
    )
    rows = "\n".join(
        "<tr>" + "".join(_cell(cell, numeric) for cell, numeric in zip(row, right, strict=True)) + "</tr>"
        for row in table.rows
    )
    # Outside the part that scrolls, so that it can be read whole on a narrow screen
    words = f"<b>Table {count}.</b> {_inline(table.caption)}".rstrip()
    return (
        f'<p class="caption" id="tab{count}">{words}</p>\n'
        f'<div class="scroll" role="region" aria-labelledby="tab{count}" tabindex="0">\n'
        f'<table aria-labelledby="tab{count}">\n<thead>\n<tr>{head}</tr>\n</thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n"
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _numeric(cells: list[Any]) -> bool:
    """Whether most of a column's cells are numbers, written ones such as "0.94 (0.91 to 0.96)" or "5%" among them."""
    there = [cell for cell in cells if cell is not None]
    return 2 * sum(_is_number(cell) or (isinstance(cell, str) and _reads_as_number(cell)) for cell in there) > len(
        there
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _reads_as_number(text: str) -> bool:
    """Whether `text` is made of digits, signs and the words that stand between numbers.

    >>> [_reads_as_number(text) for text in ("0.94 (0.91 to 0.96)", "< 1e-3", "12 s", "to")]
    [True, True, False, False]
    """
    rest = re.sub(r"\bto\b|(?<=\d)e(?=[-+]?\d)", "", text)
    return re.search(r"\d", text) is not None and not re.search(r"[^\W\d]", rest)


def _cell(value: Any, right: bool) -> str:
    if value is None:
        shown = DASH
    elif isinstance(value, (bool, np.bool_)):
        shown = "yes" if value else "no"
    elif _is_number(value):
        shown = number(value)
    else:
        shown = _inline(str(value))
        if len(str(value)) >= LONG:
            return f'<td class="long">{shown}</td>'
    return f"<td{_class('n' * right)}>{shown}</td>"


def number(value: Any) -> str:
    """A number as HTML with three significant digits; whole numbers in full.

    >>> [number(v) for v in (300000, 0.05, -12.345, 1234.5, 2.5e-7)]
    ['300,000', '0.0500', '−12.3', '1,234', '2.50 × 10<sup>−7</sup>']
    """
    if isinstance(value, numbers.Integral):
        text = f"{int(value):,}"
    elif not math.isfinite(value):
        text = f"{float(value)}".replace("nan", "NaN").replace("inf", "∞")
    else:
        digits, exponent = f"{float(value):.2e}".split("e")
        if value == 0:
            text = "0"
        elif -3 <= int(exponent) <= 2:
            text = f"{float(value):.{2 - int(exponent)}f}"
        elif 3 <= int(exponent) <= 5:
            text = f"{float(value):,.0f}"
        else:
            text = f"{digits} {TIMES} 10<sup>{int(exponent)}</sup>"
    return text.replace("-", MINUS)


def _facts(title: str, facts: Mapping[str, Any]) -> str:
    """Names and values, exactly as given: a setting is to be typed in again."""
    lines = []
    for key, value in facts.items():
        text = _setting(value)
        long = "long" if len(str(key)) + len(text) >= LONG else ""
        lines.append(f"<div{_class(long)}><dt>{html.escape(str(key))}</dt><dd>{html.escape(text)}</dd></div>")
    name = title.lower()
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n<dl class="facts">\n'
        + "\n".join(lines)
        + "\n</dl>\n</section>\n"
    )


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


def _paragraphs(text: str, name: str = "") -> str:
    pieces = re.split(r"\n\s*\n", text.strip()) if text.strip() else []
    return "".join(f"<p{_class(name)}>{_inline(piece)}</p>\n" for piece in pieces)


def _inline(text: str) -> str:
    """Escaped, then `code` and **bold**; what stands between backticks is left alone.

    >>> _inline("**a** < `**b**`")
    '<b>a</b> &lt; <code>**b**</code>'
    """
    pieces = re.split(r"`([^`]+)`", html.escape(text))
    marked = [
        f"<code>{piece}</code>" if i % 2 else re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", piece, flags=re.S)
        for i, piece in enumerate(pieces)
    ]
    return "".join(marked)
