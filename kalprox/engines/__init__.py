"""Engines: the same fold on this machine, on Dask and on Spark.

Information adds, so that a model fitted to rows on many machines is the model of one machine: each partition is folded
where its rows are, and the sums are merged as a tree whose shape follows from the partitions' order alone.

>>> import numpy as np
>>> from kalprox.information import Information
>>> rng = np.random.default_rng(0)
>>> X = rng.normal(size=(100, 2))
>>> y = X @ [1.0, 2.0]
>>> with open("local") as engine:
...     rows = EngineRows(engine, partitions_of((X, y), n=4))
...     total = rows.sum(Information.from_rows)
>>> rows.good, total.solve().round(6)
(100, array([1., 2.]))
"""

from kalprox.engines.base import Engine, EngineFailed, Report
from kalprox.engines.opening import home_of, open
from kalprox.engines.partitions import ArrayPartition, FilePartition, Partition, partitions_of
from kalprox.engines.source import EngineRows

__all__ = [
    "ArrayPartition",
    "Engine",
    "EngineFailed",
    "EngineRows",
    "FilePartition",
    "Partition",
    "Report",
    "home_of",
    "open",
    "partitions_of",
]
