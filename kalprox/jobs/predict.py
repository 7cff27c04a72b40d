"""Predict the rows of a table, block by block, in their order."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from kalprox.base.files import atomic_open, check_distinct, is_stream
from kalprox.base.text import csv_cell
from kalprox.jobs.model import TableModel
from kalprox.jobs.record import DataQuality
from kalprox.jobs.run import Progress
from kalprox.learning.belief import Belief
from kalprox.learning.learner import Learner
from kalprox.learning.tracking import INTERVALS
from kalprox.predictive import Predictive
from kalprox.sources import Block
from kalprox.sources.arrow import from_bytes, from_numpy, load, pa, plain
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Quarantine, check_known
from kalprox.sources.table import Place, Table

_csv, _parquet = load("pyarrow.csv"), load("pyarrow.parquet")
NAMES = ("mean", "std", "lower", "upper")


def predict(
    found: TableModel,
    table: Table,
    out: Path,
    *,
    level: float = 0.95,
    interval: str = "gaussian",
    time: float | None = None,
    quarantine: Quarantine | None = None,
    allow_unknown: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> DataQuality:
    """Write the predictive mean, std and interval of every row of a table to a file, or the probabilities of classes.

    Parameters
    ----------
    found : TableModel
    table : Table
    out : Path
        A file ending in .parquet or .csv, which is written atomically, or "-" for CSV on standard output. A device or
        pipe of another name gets CSV. A bad row has empty cells. The columns that the table keeps come first, those of
        bad rows included. In CSV a text that a spreadsheet would take for a formula has an apostrophe in front, see
        `kalprox.base.text.csv_cell`.
        For classes the columns are the class that is most probable, the probability p_NAME of each class, averaged over
        the posterior, and its standard deviation std_NAME, which the rows leave.
    level : float
        The level of the intervals, strictly between 0 and 1.
    interval : {"gaussian", "conformal"}
        The kind of the intervals; see `method` of `KalproxRegressor.predict_interval`.
    time : float, optional
        The time at which the rows are predicted, if the model forgets by time; see `KalproxRegressor.predict`.
    quarantine : Quarantine, optional
        Where bad rows go.
    allow_unknown : bool
        Whether a column may have no level that the model knows. Otherwise that raises UnknownLevels, and no file is
        written.
    watch : callable
        Called with a `Progress` after every block.

    Returns
    -------
    DataQuality
        The number of rows read, what must be said about their cells, and which were refused and why.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level!r}.")
    if interval not in INTERVALS:
        raise ValueError(f"interval must be one of {', '.join(INTERVALS)}; got {interval!r}.")
    classes = found.columns.classes
    if classes and interval == "conformal":
        raise ValueError("interval must be 'gaussian', the default, for classes, which have no intervals.")
    if taken := [name for name in table.keep if name in output_names(classes)]:
        raise ValueError(
            f"The output has a column {taken[0]!r} of predictions, so that the column {taken[0]!r} of the source "
            "cannot be kept: rename it, or keep other columns."
        )
    quarantine = quarantine or Quarantine()
    check_distinct(
        [("table", file) for file in table.files],
        [("out", None if str(out) == "-" else out), ("quarantine", quarantine.path)],
        repeats=True,
    )
    quarantine.open()
    ends = found.learner.conformal_ends(level) if interval == "conformal" else None
    quality, later = DataQuality(), None if time is None else found.learner.state.ahead(time).belief
    with _writer(out, table.keep, classes) as write:
        for block in table.blocks_ahead():
            quarantine.take(block.bad, block.read)
            columns = np.full((len(output_names(classes)), block.read), np.nan)
            if len(block):
                made = output_columns(found.learner, block, classes, level, ends, alone=False, later=later)
                columns[:, block.place.good] = made
            write(columns, block.place)
            quality = quality.after(block, ranges=False)
            watch(Progress(quality.read, quarantine.bad, table.done(block.place.cursor), 0))
        quarantine.finish()
        if not allow_unknown:
            check_known(quality.notes, table.columns.categorical)
    return quality


def output_names(classes: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the columns of predictions."""
    if not classes:
        return NAMES
    return ("class", *(f"{what}_{name}" for what in ("p", "std") for name in classes))


def output_columns(
    learner: Learner,
    block: Block,
    classes: tuple[str, ...],
    level: float,
    ends: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    alone: bool,
    later: Belief | None = None,
) -> np.ndarray:
    """The columns of `output_names` for the rows of a block; the number of the class in place of its name.

    `ends` are those of conformal intervals, see `Learner.conformal_ends`. For `alone` see `Learner.predict`. `later` is
    what is known at a later time, if the rows are predicted then.
    """
    predicted = (
        learner.predict(block.X, offset=block.offset, alone=alone)
        if later is None
        else later.predict(block.X, offset=block.offset)
    )
    if classes:
        return _class_columns(predicted, later or learner.reader(block.X, live=False), block)
    mean, std = predicted.mean, predicted.std
    if ends is None:
        low, high = predicted.quantile((1 - level) / 2), predicted.quantile((1 + level) / 2)
    else:
        low, high = mean - ends[0] * std, mean + ends[1] * std
    return np.array([mean, std, low, high])


def _class_columns(predicted: Predictive, reader: Any, block: Block) -> np.ndarray:
    """The number of the most probable class, the probabilities of all classes and their standard deviations."""
    p, std = np.asarray(predicted.mean), reader.probability_std(block.X, block.offset)
    if p.ndim == 1:
        p, std = np.column_stack([1 - p, p]), np.column_stack([std, std])
    return np.vstack([p.argmax(axis=1), p.T, std.T])


@contextmanager
def _writer(
    out: Path, keep: tuple[str, ...], classes: tuple[str, ...]
) -> Iterator[Callable[[np.ndarray, Place], None]]:
    """Yield a function that writes the predictions of the rows of a place; the file appears at the end."""
    suffix = out.suffix.lower().lstrip(".")
    if str(out) == "-" or (suffix not in ("parquet", "csv") and is_stream(out)):
        suffix = "csv"
    if suffix not in ("parquet", "csv"):
        raise ValueError(f"{out}: predictions are written as .parquet or .csv; change the suffix.")
    with nullcontext(sys.stdout.buffer) if str(out) == "-" else atomic_open(out) as file:
        output = _Output(suffix, file, keep, classes)
        try:
            yield output.write
            output.begin([pa.string()] * len(keep))  # no rows: the header only
        finally:
            output.close()


class _Output:
    """Writes predictions, and the columns that are kept, whose types are those of the first block."""

    def __init__(self, kind: str, file: Any, keep: tuple[str, ...], classes: tuple[str, ...]) -> None:
        self.kind, self.file, self.keep, self.classes = kind, file, keep, classes
        self._writer: Any = None

    def close(self) -> None:
        """Write what is left, if anything was written."""
        if self._writer is not None:
            self._writer.close()

    def begin(self, types: list[Any]) -> None:
        """Write the header, if it has not been written; the columns that are kept have these types."""
        if self._writer is not None:
            return
        names = [csv_cell(name) for name in self.keep] if self.kind == "csv" else list(self.keep)
        kept = list(zip(names, types, strict=True))
        made = [(name, pa.string() if name == "class" else pa.float64()) for name in output_names(self.classes)]
        self.schema = pa.schema([*kept, *made])
        if self.kind == "csv":
            self._writer = _csv.CSVWriter(self.file, self.schema)
        else:  # predictions are hardly ever the same number twice, so that dictionaries of them cost time alone
            self._writer = _parquet.ParquetWriter(self.file, self.schema, use_dictionary=names)

    def write(self, columns: np.ndarray, place: Place) -> None:
        """Write the predictions of the rows of a place."""
        kept = [] if place.kept is None else [self._shown(place.kept.column(name)) for name in self.keep]
        if not len(place.good):
            return
        self.begin([column.type for column in kept])
        for i, (name, column) in enumerate(zip(self.keep, kept, strict=True)):
            try:
                kept[i] = column.cast(self.schema.field(i).type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise SourceError(
                    f"{place.file}: column {name!r}, which is to be kept, is of type {column.type}, and of type "
                    f"{self.schema.field(i).type} in the rows before. Predict the files one by one."
                ) from None
        predicted = [from_numpy(column, ~place.good) for column in columns]
        if self.classes:
            texts = pa.array([csv_cell(name) if self.kind == "csv" else name for name in self.classes])
            numbers = from_numpy(np.nan_to_num(columns[0]).astype(np.int64), ~place.good)
            predicted[0] = pa.DictionaryArray.from_arrays(numbers, texts).cast(pa.string())
        self._writer.write_batch(pa.record_batch([*kept, *predicted], schema=self.schema))

    def _shown(self, column: Any) -> Any:
        """A column as one array; text as strings which, in CSV, are no formulas."""
        column = plain(column)
        if column.type != pa.binary():
            return column
        coded = column.dictionary_encode()
        texts = [cell.decode("utf-8", "backslashreplace") for cell in coded.dictionary.to_pylist()]
        safe = from_bytes([(csv_cell(text) if self.kind == "csv" else text).encode() for text in texts])
        return pa.DictionaryArray.from_arrays(coded.indices, safe.cast(pa.string())).cast(pa.string())
