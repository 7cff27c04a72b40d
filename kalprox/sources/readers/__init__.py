"""Readers: one file per format. Each yields raw blocks of rows, from any offset where a raw block ended.

A new format is a file here with a class, and two entries in `kalprox.sources.files`: its suffix, and the class.
"""

from kalprox.sources.readers.base import RawBlock, Reader, Reading, Wanted

__all__ = ["RawBlock", "Reader", "Reading", "Wanted"]
