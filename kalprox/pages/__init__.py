"""A run as figures that a paper would print and one self-contained page. Takes arrays and words; knows no algorithm."""

from kalprox.pages.figures import Figure, write
from kalprox.pages.page import Page, Section, Table, write_page

__all__ = ["Figure", "Page", "Section", "Table", "write", "write_page"]
