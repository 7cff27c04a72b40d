"""Sources: where rows come from, block by block.

Files are in `kalprox.sources.table`, which needs pyarrow; nothing here imports it.
"""

from kalprox.sources.arrays import ArrayRows, Rows, masked

__all__ = ["ArrayRows", "Rows", "masked"]
