"""What the columns of a table and those of a formula share: target, weight and so on, and the way to encode rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from kalprox.base.pickling import PickledFields
from kalprox.sources.cell_parsing import parse_labels, parse_numbers
from kalprox.sources.classes import encode_classes
from kalprox.sources.encoding import (
    BadCells,
    CellNotes,
    Encoded,
    also_bad,
    encode_offset,
    encode_times,
    impossible,
    parse_weights,
    too_heavy,
    without_target,
)
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.base import Wanted

__all__ = ["TableColumns"]


class TableColumns(PickledFields, ABC):
    """How the rows of a table become rows of X: a frozen dataclass, `Columns` or `FormulaColumns`.

    `dataclasses.replace` leaves out the target, the weight and the clusters where files need not have them. See
    `Columns` for what the fields mean; here are the values of those that a class does not have.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    _OPTIONAL: ClassVar[tuple[str, ...]] = ("time_is_date", "classes", "offset", "exposure", "time")  # see `to_json`

    target: str | None = None
    weight: str | None = None
    cluster: str | None = None
    classes: tuple[str, ...] = ()
    offset: str | None = None
    exposure: str | None = None
    low: float | None = None
    high: float | None = None
    time: str | None = None
    time_is_date: bool = False
    dates: tuple[str, ...] = ()
    categorical: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    hashed: Mapping[str, int] = MappingProxyType({})
    shared: tuple[str, ...] = ()
    drop_first: bool = False
    unseen: str = "reject"
    gaps: bool = False
    unlabelled: bool = False

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The names of the columns of X."""

    @property
    @abstractmethod
    def wanted(self) -> Wanted:
        """The columns that are read from a file."""

    @property
    def features(self) -> tuple[str, ...]:
        """The features, in the order of their columns of X."""
        return tuple(self.names)

    @property
    def groups(self) -> list[int]:
        """For each column of X the number of the feature, or of the term, that it belongs to."""
        return list(range(len(self.names)))

    @property
    def row_size(self) -> int:
        """The number of numbers that a row of X takes."""
        return len(self.names)

    @property
    def references(self) -> Mapping[str, str]:
        """For each categorical or hashed feature that has one, the level that has no column: the reference level."""
        return {}

    @property
    def left(self) -> tuple[str, ...]:
        """The columns that the target uses."""
        return () if self.target is None else (self.target,)

    @property
    def _numbers(self) -> tuple[str, ...]:
        """The columns that hold a number for each row besides those of X and the target."""
        return tuple(name for name in (self.weight, self.offset, self.exposure) if name is not None)

    def _wanted(self, numbers: Iterable[str], texts: Iterable[str]) -> Wanted:
        """The columns that are read, given those of the features that are numbers, and those that are text."""
        numbers, dates = (*self._numbers, *numbers), self.dates
        labels = () if self.cluster is None else (self.cluster,)
        if self.time is not None:
            numbers, dates = (numbers, (*dates, self.time)) if self.time_is_date else ((*numbers, self.time), dates)
        if self.classes:
            return Wanted(numbers, (*texts, *self.left), dates, labels)
        return Wanted((*self.left, *numbers), tuple(texts), dates, labels)

    def _check_different(self, features: Iterable[str]) -> None:
        """Raise SourceError if one column has two uses, of which those for `features` are one."""
        others = [*self.left, *self._numbers, *(name for name in (self.cluster, self.time) if name is not None)]
        if len(set(others)) < len(others) or set(others) & set(features):
            raise SourceError(
                "The target, the weight, offset, exposure, the times, the clusters and the features must be different "
                "columns."
            )

    def to_json(self) -> dict[str, Any]:
        """The columns in JSON's types; what older versions did not have is left out unless it is used."""
        return {name: value for name, value in asdict(self).items() if value or name not in self._OPTIONAL}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The columns that `to_json` was called on."""
        return cls(**data)

    def encode(self, table: Any) -> Encoded:
        """Encode the rows of a table.

        Parameters
        ----------
        table : pyarrow.Table or RecordBatch
            Must have the columns of `wanted`.

        Returns
        -------
        Encoded
        """
        bad, notes = BadCells(table), CellNotes(table)
        y = w = groups = None
        if self.target is not None:
            y = self._encoded_target(table, bad, notes)
        if self.weight is not None:
            w, faults = parse_weights(table.column(self.weight))
            bad.note(self.weight, faults)
            notes.note_rounded(self.weight, w)
        if self.cluster is not None:
            groups, faults = parse_labels(table.column(self.cluster))
            bad.note(self.cluster, faults)
        offset = encode_offset(table, self.offset, self.exposure, bad, notes)
        times = encode_times(table, self.time, self.time_is_date, bad)
        X = self._encoded_features(table, bad, notes)
        if self.weight is not None and w is not None:
            bad.note(self.weight, too_heavy(w, *((X,) if y is None else (X, y))))
        return Encoded(X, y, w, groups, bad.in_order(), notes.notes(), offset, times)

    def _encoded_target(self, table: Any, bad: BadCells, notes: CellNotes) -> np.ndarray:
        """The target, a column of classes or numbers; bad cells, and what must be said of others, are noted."""
        (name,) = self.left
        if self.classes:
            y, faults = encode_classes(table.column(name), self.classes)
        else:
            y, faults = parse_numbers(table.column(name))
            notes.note_rounded(name, y)
        if self.unlabelled:
            faults = without_target(name, y, faults, notes)
        if not self.classes:
            faults = also_bad(faults, impossible(y, self.low, self.high), Reason.IMPOSSIBLE)
        bad.note(name, faults)
        return y

    @abstractmethod
    def _encoded_features(self, table: Any, bad: BadCells, notes: CellNotes) -> Any:
        """X; bad cells, and what must be said of others, are noted."""
