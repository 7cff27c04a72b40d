"""Engines: the same fold on this machine, on Dask and on Spark.

Information adds, so a model fitted to rows on many machines is the model fitted on one machine: each partition is
folded where its rows are, and the totals are merged as a tree whose shape depends on the order of the partitions alone.

>>> import numpy as np
>>> from kalprox.information import Information
>>> rng = np.random.default_rng(0)
>>> X = rng.normal(size=(100, 2))
>>> y = X @ [1.0, 2.0]
>>> with open("local") as engine:
...     source = EngineSource(engine, partitions_of((X, y), n=4))
...     folded = source.fold(Information.from_block)
>>> folded.counts.good, folded.total.solve().round(6)
(100, array([1., 2.]))
"""

from kalprox.engines.base import Engine, EngineFailed, EngineSource, Partition, PartitionSummary
from kalprox.engines.opening import LocalEngine, engine_of, open
from kalprox.engines.partitions import ArrayPartition, FilePartition, partitions_of

__all__ = [
    "ArrayPartition",
    "Engine",
    "EngineFailed",
    "EngineSource",
    "FilePartition",
    "LocalEngine",
    "Partition",
    "PartitionSummary",
    "engine_of",
    "open",
    "partitions_of",
]
