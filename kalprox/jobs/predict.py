"""Predict the rows of a table, block by block, in their order."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kalprox._files import atomic_open, check_distinct, is_stream
from kalprox.jobs.base import Progress
from kalprox.jobs.model import TableModel
from kalprox.jobs.record import DataQuality
from kalprox.learning.quantiles import INTERVALS
from kalprox.sources.notes import Notes, check_known
from kalprox.sources.prefetch import prefetch
from kalprox.sources.quarantine import Quarantine
from kalprox.sources.table import Table

__all__ = ["Predicted", "predict"]

NAMES = ("mean", "std", "lower", "upper")


class Predicted(NamedTuple):
    """The number of rows read, what must be said about their cells, and which were refused and why."""

    rows: int
    notes: Notes
    quality: DataQuality


def predict(
    found: TableModel,
    table: Table,
    out: Path,
    *,
    level: float = 0.95,
    interval: str = "gaussian",
    quarantine: Quarantine | None = None,
    allow_unknown: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Predicted:
    """Write the predictive mean, std and interval of every row of a table to a file.

    Parameters
    ----------
    found : TableModel
    table : Table
    out : Path
        A file ending in .parquet or .csv, which is written atomically, or "-" for CSV on standard output. A device or
        pipe of another name gets CSV. A bad row has empty cells.
    level : float
        The level of the intervals, strictly between 0 and 1.
    interval : {"gaussian", "conformal"}
        The kind of the intervals; see `method` of `KalproxRegressor.predict_interval`.
    quarantine : Quarantine, optional
        Where bad rows go.
    allow_unknown : bool
        Whether a column may have no level that the model knows. Otherwise that raises UnknownLevels, and no file is
        written.
    watch : callable
        Called with a `Progress` after every block.

    Returns
    -------
    Predicted
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level!r}.")
    if interval not in INTERVALS:
        raise ValueError(f"interval must be one of {', '.join(INTERVALS)}; got {interval!r}.")
    quarantine = quarantine or Quarantine()
    check_distinct(
        [("table", file) for file in table.files],
        [("out", None if str(out) == "-" else out), ("quarantine", quarantine.path)],
        repeats=True,
    )
    quarantine.open()
    ends = found.learner.conformal_ends(level) if interval == "conformal" else None
    quality = DataQuality()
    with _writer(out) as write:
        for block in prefetch(table.blocks()):
            quarantine.take(block.bad, block.read)
            columns = np.full((len(NAMES), block.read), np.nan)
            if len(block):
                predicted = found.learner.predict(block.X, alone=False)
                mean, std = predicted.mean, predicted.std
                if ends is None:
                    low, high = predicted.quantile((1 - level) / 2), predicted.quantile((1 + level) / 2)
                else:
                    low, high = mean - ends[0] * std, mean + ends[1] * std
                columns[:, block.place.good] = mean, std, low, high
            write(columns, block.place.good)
            quality = quality.after(block, ranges=False)
            watch(Progress(quality.read, quarantine.bad, table.done(block.place.cursor), 0))
        quarantine.finish()
        if not allow_unknown:
            check_known(quality.notes, table.columns.categorical)
    return Predicted(quality.read, quality.notes, quality)


@contextmanager
def _writer(out: Path) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """Yield a function that writes the columns of a block, given which rows are good; the file appears at the end."""
    if str(out) == "-":
        with _format("csv", sys.stdout.buffer) as write:
            yield write
        return
    suffix = out.suffix.lower().lstrip(".")
    if suffix not in ("parquet", "csv") and is_stream(out):
        suffix = "csv"
    if suffix not in ("parquet", "csv"):
        raise ValueError(f"{out}: predictions are written as .parquet or .csv; change the suffix.")
    with atomic_open(out) as file, _format(suffix, file) as write:
        yield write


@contextmanager
def _format(kind: str, file: Any) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    schema = pa.schema([(name, pa.float64()) for name in NAMES])
    writer = pa.csv.CSVWriter(file, schema) if kind == "csv" else pa.parquet.ParquetWriter(file, schema)
    with writer:
        yield lambda columns, good: writer.write_batch(
            pa.record_batch([pa.array(column, mask=~good) for column in columns], schema=schema)
        )
