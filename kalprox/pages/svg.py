"""SVG files made ready to be part of an HTML page."""

import re
from xml.etree import ElementTree

from kalprox.pages.figures import Figure

__all__ = ["inline_svg"]


def inline_svg(figure: Figure, svg: bytes, prefix: str) -> str:
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
