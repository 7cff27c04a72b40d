"""Pages as files."""

from collections.abc import Sequence
from pathlib import Path

from kalprox.base.extras import require
from kalprox.base.files import atomic_write
from kalprox.pages.page import Page, render, write


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
