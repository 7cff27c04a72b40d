"""A Spark DataFrame as a partition."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kalprox.sources.base import Block
from kalprox.sources.files import SourceError

__all__ = ["SparkFrame"]


@dataclass(frozen=True)
class SparkFrame:
    """All partitions of a Spark DataFrame, which only `SparkEngine` can fold.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
    columns : kalprox.sources.columns.Columns
        The target, weight, clusters and features, and how the features are encoded.
    labels : str, optional
        The column with the labels of classes, if `columns` has no target.
    """

    frame: Any
    columns: Any
    labels: str | None = None

    @property
    def name(self) -> str:
        """The name in error messages."""
        return "the Spark DataFrame"

    def blocks(self) -> Iterator[Block]:
        """Raise SourceError: the rows of a Spark DataFrame stay on its executors."""
        raise SourceError("A Spark DataFrame needs its own engine: use engine='spark' or the session of the DataFrame.")
