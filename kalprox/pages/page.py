"""The contents of a page, text, figures, tables and settings, and how it is written to a file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kalprox.base.extras import require
from kalprox.base.files import atomic_write
from kalprox.pages.figures import Figure, render, write

__all__ = ["Page", "Section", "Table", "require_report_packages", "write_page"]


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


def write_page(
    page: Page, path: str | Path, folder_for_figures: str | Path | None = None, formats: Sequence[str] = ("svg",)
) -> Path:
    """Write a page as one self-contained HTML file, atomically.

    Parameters
    ----------
    page : Page
        The figures of a page must have different names.
    path : str or Path
        The HTML file.
    folder_for_figures : str or Path, optional
        If given, each figure and its numbers are also written to this folder; see `kalprox.pages.write`.
    formats : sequence of str
        The formats of the figures in this folder.

    Returns
    -------
    Path
        The path of the HTML file.
    """
    require_report_packages()
    from kalprox.pages.rendering import render_page

    figures = [figure for section in page.sections for figure in section.figures]
    names = [figure.name for figure in figures]
    if len(set(names)) < len(names):
        raise ValueError(f"the figures of a page must have different names; got {', '.join(names)}. Change name.")
    svgs: dict[str, bytes] = {}
    narrow: dict[str, bytes] = {}
    for figure in figures:
        if (size := figure.narrow_size) is not None:
            narrow[figure.name] = render(figure, "svg", size)
        written = {} if folder_for_figures is None else write(figure, folder_for_figures, formats)
        svgs[figure.name] = written["svg"].read_bytes() if "svg" in written else render(figure, "svg")
    return atomic_write(Path(path), render_page(page, svgs, narrow).encode())


def require_report_packages() -> None:
    """Raise ImportError if a package that pages and figures need is not installed."""
    require("report", "Pages and figures need")
