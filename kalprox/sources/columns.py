"""Which columns of a table are used, and the rows of a table as arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from kalprox.sources.cell_parsing import parse_booleans, parse_days, parse_labels, parse_numbers
from kalprox.sources.encoding import BadCells, CellNotes, one_hot, parse_weights, too_heavy, without_unseen
from kalprox.sources.files import MAX_RECORD, Replay, SourceError
from kalprox.sources.inference import first_rows, infer_features
from kalprox.sources.levels import LevelIndex
from kalprox.sources.notes import Notes
from kalprox.sources.readers.base import Cell, Wanted

__all__ = ["Columns", "Encoded"]

Levels = Mapping[str, Sequence[str] | None]


class Encoded(NamedTuple):
    """The rows of a table as arrays.

    Attributes
    ----------
    X : array of shape (n, d), float64
    y, weights : array of shape (n,), or None
    groups : array of str of shape (n,), or None
        The label of the cluster of each row.
    bad : list of Cell
        The first bad cell of each bad row.
    notes : Notes
        What must be said about the cells of all rows, bad rows included.
    """

    X: np.ndarray
    y: np.ndarray | None
    weights: np.ndarray | None
    groups: np.ndarray | None
    bad: list[Cell]
    notes: Notes

    def rows(self, which: np.ndarray) -> "Encoded":
        """Return some rows, by a mask or by their positions."""
        X, y, weights, groups = (None if a is None else a[which] for a in self[:4])
        return Encoded(X, y, weights, groups, self.bad, self.notes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Columns:
    """The target, weight, clusters and features of a table, and how each feature is encoded.

    Parameters
    ----------
    target, weight : str, optional
        The names of the target and of the weights.
    numeric : tuple of str
        The features that are used as they are.
    categorical : dict of str to tuple of str
        The features that are one-hot encoded, with their levels.
    dates : tuple of str
        The features that are dates: ISO 8601 text, dates or timestamps, encoded as days since 1970-01-01.
    drop_first : bool
        Whether the first level of every categorical feature has no column.
    unseen : {"zero", "reject"}
        What becomes of a level that is not listed: a row of zeros, or a bad row.
    features : tuple of str
        All features, in the order of their columns. The default is numeric, categorical, dates.
    cluster : str, optional
        The name of the column whose cells say which cluster a row belongs to, for clustered standard errors. Its cells
        may be of any type; they are read as text, see `kalprox.sources.labels.label_of`.
    booleans : tuple of str
        The numeric features that are true or false, read as 1 and 0: text may spell them so.

    Examples
    --------
    >>> columns = Columns("delay", numeric=("distance",), categorical={"origin": ("EWR", "JFK")})
    >>> columns.names
    ['distance', 'origin=EWR', 'origin=JFK']
    """

    target: str | None = None
    weight: str | None = None
    numeric: tuple[str, ...] = ()
    categorical: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: tuple[str, ...] = ()
    drop_first: bool = False
    unseen: str = "zero"
    features: tuple[str, ...] = ()
    cluster: str | None = None
    booleans: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("numeric", tuple(self.numeric))
        put("dates", tuple(self.dates))
        put("booleans", tuple(self.booleans))
        put("categorical", {name: tuple(levels) for name, levels in self.categorical.items()})
        put("features", tuple(self.features) or (*self.numeric, *self.categorical, *self.dates))
        kinds = (*self.numeric, *self.categorical, *self.dates)
        if len(set(kinds)) < len(kinds) or sorted(self.features) != sorted(kinds):
            raise SourceError("Every feature must be in exactly one of numeric, categorical and dates.")
        if not set(self.booleans) <= set(self.numeric):
            raise SourceError("Every feature in booleans must be in numeric.")
        if self.unseen not in ("zero", "reject"):
            raise SourceError(f"unseen must be 'zero' or 'reject'; got {self.unseen!r}.")
        others = [name for name in (self.target, self.weight, self.cluster) if name is not None]
        if len(set(others)) < len(others) or set(others) & set(self.features):
            raise SourceError("The target, the weight, the clusters and the features must be different columns.")

    @property
    def names(self) -> list[str]:
        """The names of the columns of X, such as "distance" and "carrier=UA"."""
        return [name for feature in self.features for name in self._encoded_names(feature)]

    @property
    def groups(self) -> list[int]:
        """For each column of X the number of its feature: all levels of a categorical feature have the same number."""
        return [i for i, feature in enumerate(self.features) for _ in self._encoded_names(feature)]

    @property
    def wanted(self) -> Wanted:
        """The columns that are read from a file."""
        numbers = tuple(name for name in (self.target, self.weight) if name is not None)
        labels = () if self.cluster is None else (self.cluster,)
        numeric = tuple(name for name in self.numeric if name not in self.booleans)
        return Wanted(numbers + numeric, (*self.categorical, *self.booleans), self.dates, labels)

    def to_json(self) -> dict[str, Any]:
        """The columns as a dictionary of JSON's types."""
        data = asdict(self)
        if not self.booleans:
            del data["booleans"]  # as in the files of version 0.1
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Columns":
        """The columns that `to_json` was called on."""
        return cls(**data)

    @classmethod
    def infer(
        cls,
        files: Sequence[Path],
        target: str | None,
        features: Sequence[str] | None = None,
        categorical: Sequence[str] | Levels | None = None,
        dates: Sequence[str] = (),
        weight: str | None = None,
        rows: int = 10_000,
        max_levels: int = 1000,
        drop_first: bool = False,
        unseen: str = "zero",
        *,
        format: str | None = None,
        encoding: str = "utf-8",
        delimiter: str | None = None,
        stdin: BinaryIO | Replay | None = None,
        skip_unreadable: bool = False,
        cluster: str | None = None,
        max_record: int = MAX_RECORD,
        decimal: str = ".",
        thousands: str | None = None,
        exclude: Sequence[str] = (),
        samples: bool = True,
    ) -> "Columns":
        """Infer the columns from the first rows of the first file that has any.

        A feature is numeric where at least half of its cells are numbers (the other cells are bad cells), one of dates
        where at least half of them are dates, otherwise categorical.

        Parameters
        ----------
        files : sequence of Path
        target, weight : str, optional
        features : sequence of str, optional
            The default is all columns that have a name, except target, weight, cluster and `exclude`.
        categorical : sequence of str, or dict of str to levels, optional
            Features to one-hot encode even if their cells are numbers. Levels that are not given are those of the
            first rows, sorted.
        dates : sequence of str
            Features that are dates, also where most of their cells are not.
        rows : int
            The number of rows to look at.
        max_levels : int
            The largest number of levels of a categorical feature.
        drop_first, unseen, cluster : see `Columns`
        format, encoding, delimiter, stdin, skip_unreadable, max_record, decimal, thousands
            See `kalprox.sources.table.Table`.
        exclude : sequence of str
            Columns to leave out.
        samples : bool
            Whether error messages may contain values of cells.

        Returns
        -------
        Columns
        """
        options: dict[str, Any] = {"format": format, "encoding": encoding, "delimiter": delimiter}
        options |= {"stdin": stdin, "max_record": max_record, "decimal": decimal, "thousands": thousands}
        numbers = [name for name in (target, weight) if name is not None]
        needed = numbers if cluster is None else [*numbers, cluster]
        names = None if features is None else list(dict.fromkeys([*needed, *features]))
        first = first_rows(files, names, needed, rows, options, skip_unreadable=skip_unreadable, exclude=exclude)
        first = replace(first, samples=samples)
        if features is None:
            features = [name for name in first.table.column_names if name not in needed]
        features = [name for name in features if name not in exclude]
        if not features:
            raise SourceError(
                f"{first.file}: there must be at least one column besides the target, the weight and the clusters."
            )
        given = dict(categorical) if isinstance(categorical, Mapping) else dict.fromkeys(categorical or ())
        kinds = infer_features(first, numbers, features, given, dates, max_levels)
        return cls(
            target,
            weight,
            kinds.numeric,
            kinds.levels,
            kinds.dates,
            drop_first,
            unseen,
            tuple(features),
            cluster,
            kinds.booleans,
        )

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
            y, faults = parse_numbers(table.column(self.target))
            bad.note(self.target, faults)
            notes.note_rounded(self.target, y)
        if self.weight is not None:
            w, faults = parse_weights(table.column(self.weight))
            bad.note(self.weight, faults)
            notes.note_rounded(self.weight, w)
        if self.cluster is not None:
            groups, faults = parse_labels(table.column(self.cluster))
            bad.note(self.cluster, faults)
        X = np.empty((table.num_rows, len(self.names)))
        at = 0
        for name in self.features:
            column, width = table.column(name), len(self._encoded_names(name))
            if name in self.categorical:
                faults = one_hot(column, self._level_indices[name], X[:, at : at + width])
                if self.unseen == "zero":
                    notes.note_unknown(name, faults)
                    faults = without_unseen(faults)
            elif name in self.dates:
                X[:, at], faults = parse_days(column)
            else:
                X[:, at], faults = (parse_booleans if name in self.booleans else parse_numbers)(column)
                notes.note_rounded(name, X[:, at])
            bad.note(name, faults)
            at += width
        if self.weight is not None and w is not None:
            bad.note(self.weight, too_heavy(w, *((X,) if y is None else (X, y))))
        return Encoded(X, y, w, groups, bad.in_order(), notes.notes())

    def _encoded_names(self, feature: str) -> list[str]:
        if feature not in self.categorical:
            return [feature]
        return [f"{feature}={level}" for level in self.categorical[feature][self.drop_first :]]

    @cached_property
    def _level_indices(self) -> dict[str, LevelIndex]:
        """For each categorical feature the column of each level; -1 for the level that is dropped."""
        return {
            name: LevelIndex({level: i - self.drop_first for i, level in enumerate(levels)})
            for name, levels in self.categorical.items()
        }
