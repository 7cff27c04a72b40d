"""Sources: where rows come from, block by block.

Files are in `kalprox.sources.table`, which needs pyarrow; nothing here imports it.
"""

from kalprox.sources.arrays import ArraySource, as_source
from kalprox.sources.base import Block, Counts, Folded, Source, fold_blocks

__all__ = ["ArraySource", "Block", "Counts", "Folded", "Source", "as_source", "fold_blocks"]
