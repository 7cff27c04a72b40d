"""What a table, model files and reports need of columns: those of a table (`Columns`), or of a formula."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from kalprox.sources.encoding import Encoded
from kalprox.sources.readers.base import Wanted

__all__ = ["TableColumns"]


class TableColumns(Protocol):
    """How the rows of a table become rows of X: a frozen dataclass, `Columns` or `FormulaColumns`.

    `dataclasses.replace` leaves out the target, the weight and the clusters where files need not have them.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def target(self) -> str | None:
        """The target, for reports; None where no target is read."""

    @property
    def weight(self) -> str | None:
        """The column of the weights."""

    @property
    def cluster(self) -> str | None:
        """The column of the clusters."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the target; empty if it holds numbers."""

    @property
    def offset(self) -> str | None:
        """The column that is added to the linear predictor."""

    @property
    def exposure(self) -> str | None:
        """The column whose log is added to the linear predictor."""

    @property
    def time(self) -> str | None:
        """The column of the times."""

    @property
    def time_is_date(self) -> bool:
        """Whether the times are dates."""

    @property
    def names(self) -> list[str]:
        """The names of the columns of X."""

    @property
    def row_size(self) -> int:
        """The number of numbers that a row of X takes."""

    @property
    def groups(self) -> list[int]:
        """For each column of X the number of the feature, or of the term, that it belongs to."""

    @property
    def features(self) -> tuple[str, ...]:
        """The features, in the order of their columns of X."""

    @property
    def categorical(self) -> Mapping[str, tuple[str, ...]]:
        """The features that are one-hot encoded, with their levels. The others have one column each."""

    @property
    def hashed(self) -> Mapping[str, int]:
        """The features whose levels are put into bins, with the number of bins."""

    @property
    def shared(self) -> tuple[str, ...]:
        """The features whose levels or words are put into one hashed space, whose columns come after all others."""

    @property
    def references(self) -> Mapping[str, str]:
        """For each categorical or hashed feature that has one, the level without a column."""

    @property
    def dates(self) -> tuple[str, ...]:
        """The columns that are dates."""

    @property
    def drop_first(self) -> bool:
        """Whether the first level of every categorical feature has no column."""

    @property
    def unseen(self) -> str:
        """What becomes of a level that is not listed."""

    @property
    def wanted(self) -> Wanted:
        """The columns that are read."""

    def encode(self, table: Any) -> Encoded:
        """The rows of a pyarrow table as arrays."""

    def to_json(self) -> dict[str, Any]:
        """The columns in JSON's types."""
