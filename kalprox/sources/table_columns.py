"""What the columns of a table and those of a formula share: target, weight and so on, and the way to encode rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self, cast

import numpy as np

from kalprox.base.pickling import PickledFields
from kalprox.sources.base import Block
from kalprox.sources.cells import Cells, impossible, parse_days, parse_labels, parse_numbers, too_heavy
from kalprox.sources.classes import encode_classes
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.base import Wanted


@dataclass(frozen=True)
class TableColumns(PickledFields, ABC):
    """How the rows of a table become rows of X: `Columns` or `FormulaColumns`.

    Parameters
    ----------
    target, weight : str, optional
        The names of the target and of the weights.
    numeric : tuple of str
        The features that are numbers.
    booleans : tuple of str
        The numeric features that are true or false, read as 1 and 0: text may spell them so.
    dates : tuple of str
        The features that are dates: ISO 8601 text, dates or timestamps, encoded as days since 1970-01-01.
    unseen : {"zero", "reject"}
        What becomes of a level that is not listed: a row of zeros, as the reference has, or a bad row.
    cluster : str, optional
        The name of the column whose cells say which cluster a row belongs to, for clustered standard errors. Its cells
        may be of any type; they are read as text, see `kalprox.sources.labels.label_of`.
    classes : tuple of str
        The classes of the target, if its cells are classes; see `kalprox.sources.classes.encode_classes` for y.
    offset, exposure : str, optional
        A column that is added to the linear predictor, and one whose log is added to it.
    low, high : float, optional
        The least and the largest possible target, such as 0 for counts: others are bad cells.
    time : str, optional
        The column of the times of the rows, for forgetting by time.
    time_is_date : bool
        Whether its cells are dates, which count in days.
    """

    _TUPLES: ClassVar[tuple[str, ...]] = ("numeric", "booleans", "dates", "classes")

    target: str | None = None
    weight: str | None = None
    numeric: tuple[str, ...] = ()
    _: KW_ONLY
    booleans: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    unseen: str = "reject"
    cluster: str | None = None
    classes: tuple[str, ...] = ()
    offset: str | None = None
    exposure: str | None = None
    low: float | None = None
    high: float | None = None
    time: str | None = None
    time_is_date: bool = False

    # what only `Columns` may have:
    categorical = cast("Mapping[str, tuple[str, ...]]", MappingProxyType({}))
    hashed = cast("Mapping[str, int]", MappingProxyType({}))
    shared = tuple[str, ...]()
    drop_first = gaps = unlabelled = False

    intercept = True  # unless a formula says otherwise

    def __post_init__(self) -> None:
        self._set(**{name: tuple(getattr(self, name)) for name in self._TUPLES})  # lists, if they come from JSON

    def _set(self, **values: Any) -> None:
        """Set fields, in `__post_init__`."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The names of the columns of X."""

    @property
    @abstractmethod
    def texts(self) -> tuple[str, ...]:
        """The features whose cells are levels or texts."""

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

    @property
    def wanted(self) -> Wanted:
        """The columns that are read from a file."""
        numbers, dates = (*self._numbers, *(name for name in self.numeric if name not in self.booleans)), self.dates
        texts = (*self.texts, *self.booleans)
        labels = () if self.cluster is None else (self.cluster,)
        if self.time is not None:
            numbers, dates = (numbers, (*dates, self.time)) if self.time_is_date else ((*numbers, self.time), dates)
        if self.classes:
            return Wanted(numbers, (*texts, *self.left), dates, labels)
        return Wanted((*self.left, *numbers), texts, dates, labels)

    def _check_different(self, features: Iterable[str]) -> None:
        """Raise SourceError if one column has two uses, of which those for `features` are one."""
        others = [*self.left, *self._numbers, *(name for name in (self.cluster, self.time) if name is not None)]
        if len(set(others)) < len(others) or set(others) & set(features):
            raise SourceError(
                "The target, the weight, offset, exposure, the times, the clusters and the features must be different "
                "columns."
            )

    def without(self, roles: Iterable[str]) -> Self:
        """The same columns for files that need not have some of the target, the weight, the cluster and so on."""
        left_out: dict[str, Any] = dict.fromkeys(roles)
        return replace(self, **left_out)

    def to_json(self) -> dict[str, Any]:
        """The columns in JSON's types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The columns that `to_json` was called on."""
        return cls(**data)

    def encode(self, table: Any) -> Block:
        """Encode the rows of a table.

        Parameters
        ----------
        table : pyarrow.Table or RecordBatch
            Must have the columns of `wanted`.

        Returns
        -------
        Block
            All rows. Those with a bad cell are in `bad`, which has the first `Cell` of each of them.
        """
        cells = Cells(table)
        weights = groups = offset = times = None
        y = None if self.target is None else self._encoded_target(cells)
        if self.weight is not None:
            weights = cells.numbers(self.weight)
            cells.refuse_where(self.weight, weights < 0, Reason.NEGATIVE_WEIGHT)
        if self.cluster is not None:
            groups = cells.parsed(self.cluster, parse_labels)
        if self.offset is not None:
            offset = cells.numbers(self.offset)
        if self.exposure is not None:
            exposure = cells.numbers(self.exposure)
            cells.refuse_where(self.exposure, ~(exposure > 0), Reason.NO_EXPOSURE)
            added = np.log(np.where(exposure > 0, exposure, 1.0))
            offset = added if offset is None else offset + added
        if self.time is not None:
            times = cells.parsed(self.time, parse_days if self.time_is_date else parse_numbers)
        X = self._encoded_features(cells)
        if self.weight is not None and weights is not None:
            heavy = too_heavy(weights, *((X,) if y is None else (X, y)))
            cells.refuse_where(self.weight, heavy, Reason.WEIGHT_TOO_LARGE)
        return Block(X, y, weights, bad=cells.bad(), groups=groups, notes=cells.notes(), offset=offset, times=times)

    def _encoded_target(self, cells: Cells) -> np.ndarray:
        """The target, a column of classes or numbers."""
        (name,) = self.left
        column = cells.table.column(name)
        if self.classes:
            y, faults = encode_classes(column, self.classes)
        else:
            y, faults = parse_numbers(column)
            cells.note_rounded(name, y)
        if self.unlabelled:
            faults, missing = cells.without_missing(name, faults, y, target=True)
            if self.classes:
                y[missing] = np.nan
        cells.refuse(name, faults)
        if not self.classes:
            cells.refuse_where(name, impossible(y, self.low, self.high), Reason.IMPOSSIBLE)
        return y

    @abstractmethod
    def _encoded_features(self, cells: Cells) -> Any:
        """X."""
