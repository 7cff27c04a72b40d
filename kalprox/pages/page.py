"""The contents of a page: text, figures, tables and settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kalprox.display.tables import Table
from kalprox.pages.figures import Figure

__all__ = ["Page", "Section"]


@dataclass(frozen=True)
class Section:
    """A heading and text, followed by figures, followed by tables.

    In the text, in captions, conclusions and cells, `code` and **bold** are marked as in Markdown; an empty line in the
    text begins a new paragraph. All else is shown literally.
    """

    title: str
    text: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Page:
    """The contents of a page: headline and conclusions come first; the settings and the package versions come last.

    A line of the headline has a `label`, a `text`, and says whether it is a `doubt`.
    """

    title: str
    summary: str
    sections: Sequence[Section]
    settings: dict[str, Any] = field(default_factory=dict)
    conclusions: Sequence[str] = ()
    headline: Sequence[Any] = ()
