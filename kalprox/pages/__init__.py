"""Figures and self-contained HTML pages, from arrays and text. Nothing here knows about models or algorithms.

`page` defines the contents of a page, which `writing` writes to a file; `rendering` turns them into HTML with the
templates in `templates/`, `formatting` formats tables for them. `figures` defines a figure and its files;
`kalprox.display` has the plots that a figure may contain, and their style.
"""

from kalprox.display.tables import Table
from kalprox.pages.page import Figure, Page, Section, require_report_packages, write, write_page

__all__ = ["Figure", "Page", "Section", "Table", "require_report_packages", "write", "write_page"]
