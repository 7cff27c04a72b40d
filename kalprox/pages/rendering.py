"""Pages as HTML, from the Jinja templates in `templates/`. All text is escaped, by Jinja's autoescape."""

import importlib.metadata
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kalprox.base.text import printable
from kalprox.pages.figures import Figure
from kalprox.pages.formatting import LONG, cells, marked_up, paragraphs
from kalprox.pages.page import Page

__all__ = ["render_page"]

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
