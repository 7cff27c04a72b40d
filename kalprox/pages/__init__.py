"""Figures and self-contained HTML pages, from arrays and text. Nothing here knows about models or algorithms.

`page` defines the contents of a page, figures and their files among them; `writing` writes a page to a file, and
`rendering` turns it into HTML with the templates in `templates/`. `kalprox.display` has the plots that a figure may
contain, and their style.
"""

from kalprox.display.tables import Table
from kalprox.pages.page import Figure, Page, Section, write
from kalprox.pages.writing import require_report_packages, write_page

__all__ = ["Figure", "Page", "Section", "Table", "require_report_packages", "write", "write_page"]
