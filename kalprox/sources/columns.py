"""The columns of a table: which are used, for what, and how rows are encoded as arrays."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, cast

import numpy as np
from scipy.sparse import csr_array, hstack

from kalprox.base.tree import PickledFields
from kalprox.sources.arrow import is_number, plain
from kalprox.sources.base import Block
from kalprox.sources.cells import (
    Cells,
    impossible,
    one_hot,
    parse_bins,
    parse_booleans,
    parse_days,
    parse_labels,
    parse_levels,
    parse_numbers,
    put_columns,
    too_heavy,
)
from kalprox.sources.files import SourceError
from kalprox.sources.hashing import BITS, HashedSpace, check_bits, hashed_rows
from kalprox.sources.inference import Inference, encode_classes, infer_features, most_frequent_first, scan_levels
from kalprox.sources.labels import LevelIndex, in_order
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
        The classes of the target, if its cells are classes; see `kalprox.sources.inference.encode_classes` for y.
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


BINS = 1024  # of a hashed feature, by default
_WORDS = 64  # of a cell, by which the memory of sparse rows is reckoned


@dataclass(frozen=True)
class Columns(TableColumns):
    """The target, weight, clusters and features of a table, and how each feature is encoded.

    Parameters
    ----------
    target, weight, numeric, booleans, dates, unseen, cluster, classes, offset, exposure, low, high, time, time_is_date
        See `TableColumns`.
    categorical : dict of str to tuple of str
        The features that are one-hot encoded, with their levels.
    drop_first : bool
        Whether the first level of every categorical feature, and the first bin of every hashed one, has no column: the
        coefficients of the others are then differences from this reference.
    features : tuple of str
        All features, in the order of their columns. The default is numeric, categorical, dates, hashed.
    hashed : dict of str to int
        The features whose levels are put into bins, which are one-hot encoded, with the number of bins: a level belongs
        to bin `kalprox.sources.labels.level_hash(level) % bins`. No level is unknown; some share a bin.
    full : tuple of str
        The categorical and hashed features that keep their first level with `drop_first`. Without an intercept, one of
        them takes its place.
    gaps : bool
        Whether features may be missing: their columns of X are then NaN. Otherwise a missing cell is a bad one.
    unlabelled : bool
        Whether the target may be missing: y is then NaN.
    shared : tuple of str
        The features whose levels are put into one hashed space of 2^hash_bits columns, "#0" and so on, which come after
        all others: a level counts 1 or -1 in the column of the key "feature=level"; see
        `kalprox.sources.hashing.HashedSpace`. No level is unknown; some share a column.
    words : tuple of str
        Those of `shared` that are texts: each of their words, in lower case, counts as often as it occurs.
    hash_bits : int
        The size of the hashed space, at most 12, or 20 if `sparse`; 0 without one.
    sparse : bool
        Whether X is a sparse matrix, for models whose information is held in a structure (see `kalprox.structures`).

    Examples
    --------
    >>> columns = Columns("delay", numeric=("distance",), categorical={"origin": ("EWR", "JFK")})
    >>> columns.names
    ['distance', 'origin=EWR', 'origin=JFK']
    """

    _TUPLES = (*TableColumns._TUPLES, "full", "shared", "words")

    categorical: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _: KW_ONLY
    unseen: str = "zero"
    drop_first: bool = False
    features: tuple[str, ...] = ()
    hashed: Mapping[str, int] = field(default_factory=dict)
    full: tuple[str, ...] = ()
    gaps: bool = False
    unlabelled: bool = False
    shared: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    hash_bits: int = 0
    sparse: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        categorical = {name: tuple(levels) for name, levels in self.categorical.items()}
        kinds = (*self.numeric, *categorical, *self.dates, *self.hashed, *self.shared)
        self._set(categorical=categorical, hashed=dict(self.hashed), features=tuple(self.features) or kinds)
        if len(set(kinds)) < len(kinds) or sorted(self.features) != sorted(kinds):
            raise SourceError("Every feature must be in exactly one of numeric, categorical, dates, hashed and shared.")
        if self.shared or self.hash_bits:
            check_bits(self.hash_bits, sparse=self.sparse)
        if not set(self.words) <= set(self.shared):
            raise SourceError("Every feature in words must be in shared.")
        if any(bins < 2 for bins in self.hashed.values()):
            raise SourceError(f"The number of bins of a hashed feature must be at least 2; got {dict(self.hashed)}.")
        if not set(self.booleans) <= set(self.numeric):
            raise SourceError("Every feature in booleans must be in numeric.")
        if self.unseen not in ("zero", "reject"):
            raise SourceError(f"unseen must be 'zero' or 'reject'; got {self.unseen!r}.")
        self._check_different(self.features)

    @cached_property
    def names(self) -> list[str]:
        """The names of the columns of X, such as "distance" and "carrier=UA"."""
        own = [name for feature in self.features for name in self.encoded_names(feature)]
        return own if self._space is None else own + self._space.names

    @property
    def row_size(self) -> int:
        """The number of numbers that a row of X takes."""
        if not self.sparse or self._space is None:
            return len(self.names)
        return len(self.names) - self._space.size + 2 * (len(self.shared) + _WORDS * len(self.words))

    @property
    def groups(self) -> list[int]:
        """For each column of X the number of its feature: all levels of a categorical feature have the same number.

        The columns that features share come after all features.
        """
        own = [i for i, feature in enumerate(self.features) for _ in self.encoded_names(feature)]
        return own if self._space is None else own + [len(self.features)] * self._space.size

    @cached_property
    def _space(self) -> HashedSpace | None:
        """The columns that features share."""
        return HashedSpace(self.hash_bits, sparse=self.sparse) if self.shared else None

    @cached_property
    def references(self) -> dict[str, str]:
        """For each categorical or hashed feature that has one, the level that has no column: the reference level."""
        features = (*self.categorical, *self.hashed) if self.drop_first else ()
        return {name: self._levels(name)[0] for name in features if name not in self.full and self._levels(name)}

    @property
    def texts(self) -> tuple[str, ...]:
        """The features whose cells are levels or texts."""
        return (*self.categorical, *self.hashed, *self.shared)

    @classmethod
    def infer(
        cls,
        files: Sequence[Path],
        target: str | None,
        features: Sequence[str] | None = None,
        *,
        drop_first: bool = False,
        unseen: str = "reject",
        contrast: str = "reference",
        intercept: bool = True,
        hashed: Mapping[str, int | None] | None = None,
        words: Sequence[str] = (),
        hash_bits: int | None = None,
        sparse: bool = False,
        **known: Any,
    ) -> "Columns":
        """Infer the types of the columns from the first rows of the first file that has any, and find all levels.

        A feature is numeric where at least half of its cells are numbers (the other cells are bad cells), one of dates
        where at least half of them are dates, otherwise categorical. Levels that are not given are those of all rows of
        all files: a first pass reads the categorical columns, and the target.

        Parameters
        ----------
        files : sequence of Path
        target : str, optional
        features : sequence of str, optional
            The default is all columns that have a name, except target, weight, cluster and `exclude`.
        drop_first : bool
            Whether the reference is the first level in sorted order, instead of the most frequent one.
        unseen : see `Columns`
        contrast : {"reference", "full"}
            How levels are encoded. "reference": the most frequent level of a feature (the first one in a tie) has no
            column, and the coefficients of the others are differences from it. "full": every level has a column.
        intercept : bool
            Whether the model has an intercept. Without one, the first categorical feature keeps all of its levels.
        hashed : dict of str to int, optional
            Features whose levels are put into bins, with the number of bins; None for 1,024 bins or, with `hash_bits`,
            for the hashed space that these features share.
        words : sequence of str
            Features that are texts, whose words are put into the hashed space.
        hash_bits : int, optional
            The size of the hashed space, 2^hash_bits columns; 10 by default, if there are `words`.
        sparse : bool
            Whether rows are sparse; see `Columns`.
        **known
            What is known of the columns, and how files are read; see `kalprox.sources.inference.Inference`.

        Returns
        -------
        Columns
        """
        inference = Inference(files=files, **known)
        if hash_bits is not None:
            check_bits(hash_bits, sparse=sparse)
        if contrast not in ("reference", "full") or (drop_first and contrast == "full"):
            raise SourceError(
                f"contrast must be 'reference' or 'full', and 'reference' with drop_first; got {contrast!r}."
            )
        targets = [] if target is None else [target]
        needed, exclude, classes = inference.needed(targets), inference.exclude, inference.classes
        first = inference.first_rows(targets, features)
        if features is None:
            features = [name for name in first.table.column_names if name not in needed]
        features = [name for name in features if name not in exclude]
        if not features:
            raise SourceError(
                f"{first.file}: there must be at least one column besides {', '.join(map(repr, needed))}."
            )
        given, bins = inference.levels, dict(hashed or {})
        if both := [name for name in given if name in bins or name in words]:
            raise SourceError(f"Column {both[0]!r} must be either categorical or hashed, not both.")
        if both := [name for name in words if name in bins]:
            raise SourceError(f"Column {both[0]!r} must be hashed either as a whole or by its words, not both.")
        hash_bits = BITS if hash_bits is None and words else hash_bits
        shared = [*(name for name, n in bins.items() if n is None and hash_bits), *words]
        if hash_bits and not shared:
            raise SourceError.worded(
                "{hash_bits} needs {hashed} features, or {words}: there is nothing to put into the columns."
            )
        bins = {name: n for name, n in bins.items() if name not in shared}
        texts = dict.fromkeys([*bins, *shared])
        kinds = infer_features(inference, first, features, given | texts, inference.dates, targets)
        if missed := [name for name in shared if name not in kinds.levels]:
            raise SourceError(f"Column {missed[0]!r} must be either hashed or a date, not both.")
        levels = {name: found for name, found in kinds.levels.items() if name not in texts}
        unknown = [name for name, found in levels.items() if found is None]
        unknown += targets if classes and not classes.listed else []
        missing = {name: is_number(plain(first.table.column(name)).type) for name in unknown}
        counts = scan_levels(inference, missing, target)
        arranged = in_order if drop_first or contrast == "full" else most_frequent_first
        encoded = [name for name in features if name in kinds.levels and name not in shared]
        columns = cls(
            target,
            categorical={name: arranged(counts[name]) if found is None else found for name, found in levels.items()},
            drop_first=contrast == "reference",
            unseen=unseen,
            features=tuple(features),
            hashed={name: n or BINS for name, n in bins.items()},
            full=() if intercept or contrast == "full" else tuple(encoded[:1]),
            classes=classes.arranged(str(target), counts.get(str(target), {})) if classes else (),
            shared=tuple(name for name in features if name in shared),
            words=tuple(words),
            hash_bits=hash_bits or 0,
            sparse=sparse,
            **kinds.fields,
        )
        if not columns.names:
            raise SourceError(
                f"There is nothing to learn from: every feature ({', '.join(map(repr, encoded))}) has one level only."
            )
        return columns

    def _encoded_features(self, cells: Cells) -> Any:
        table = cells.table
        X = np.empty((table.num_rows, len(self.names) - (0 if self._space is None else self._space.size)))
        numbers: dict[int, np.ndarray] = {}
        at = 0
        for name in self.features:
            column, width = table.column(name), len(self.encoded_names(name))
            if name in self.hashed:
                codes, faults, hashes = parse_bins(column, self.hashed[name])
                cells.note_hashed(name, self.hashed[name], hashes)
                one_hot(codes - (name in self.references), X[:, at : at + width])
            elif name in self.shared:
                continue  # all of them together, below
            elif name in self.categorical:
                codes, faults = parse_levels(column, self.level_indices[name])
                one_hot(codes, X[:, at : at + width])
                if self.unseen == "zero":
                    faults = cells.without_unknown(name, faults)
            elif name in self.dates:
                numbers[at], faults = parse_days(column)
            else:
                numbers[at], faults = (parse_booleans if name in self.booleans else parse_numbers)(column)
                cells.note_rounded(name, numbers[at])
            if self.gaps:
                faults, missing = cells.without_missing(name, faults, numbers.get(at))
                if at not in numbers:  # which are NaN where they are missing
                    X[missing, at : at + width] = np.nan
            cells.refuse(name, faults)
            at += width
        put_columns(numbers, X)
        return X if self._space is None else self._with_hashed(X, cells, self._space)

    def _with_hashed(self, own: np.ndarray, cells: Cells, space: HashedSpace) -> Any:
        """Return X: the columns of their own that features have, and the columns that features share."""
        columns = {name: cells.table.column(name) for name in self.shared}
        found = {name: hashed_rows(space, name, a, words=name in self.words) for name, a in columns.items()}
        for name, one in found.items():
            cells.refuse(name, one.faults)
        hashes = np.unique(np.concatenate([one.hashes for one in found.values()]))
        cells.note_hashed(" + ".join(self.shared), space.size, hashes)
        X = hstack([csr_array(own), sum(one.X for one in found.values())], format="csr")
        return X if self.sparse else X.toarray()

    def encoded_names(self, feature: str) -> list[str]:
        if feature in self.shared:
            return []
        if feature not in self.categorical and feature not in self.hashed:
            return [feature]
        return [f"{feature}={level}" for level in self._levels(feature)[feature in self.references :]]

    def _levels(self, feature: str) -> Sequence[str]:
        """The levels of a categorical feature, and the bins of a hashed one."""
        if feature in self.hashed:
            return [f"#{i}" for i in range(self.hashed[feature])]
        return self.categorical[feature]

    @cached_property
    def level_indices(self) -> dict[str, LevelIndex]:
        """For each categorical feature the column of each level; -1 for the reference level."""
        return {
            name: LevelIndex({level: i - (name in self.references) for i, level in enumerate(levels)})
            for name, levels in self.categorical.items()
        }
