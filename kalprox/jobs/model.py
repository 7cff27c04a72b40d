"""A model fitted to files: the learner, how its columns are made from a table, and the record of the fit."""

from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox import model_file
from kalprox.jobs.record import FitRecord
from kalprox.jobs.restoring import checked_columns, checked_record, conforms
from kalprox.learning.belief import Belief
from kalprox.learning.headline import Headline, RowCounts, headline
from kalprox.learning.learner import Learner
from kalprox.learning.saved import expect
from kalprox.learning.saving import from_parts, learner_parts
from kalprox.model_file import ModelFileError, Parts, refusing
from kalprox.sources.columns import Columns

if TYPE_CHECKING:
    from kalprox.estimators import KalproxRegressor

__all__ = ["TableModel"]

_ESTIMATOR = {"block_size": "auto", "on_bad_rows": "raise"}  # settings of an estimator that do not matter for files


@dataclass(frozen=True)
class TableModel:
    """A model fitted to files, as `kalprox fit` saves it.

    `KalproxRegressor.load` reads its model file too. The features then have the names of the columns of X, such as
    "distance" and, for a one-hot encoded column, "carrier=UA".

    Attributes
    ----------
    learner : Learner
    columns : Columns
        How the rows of a table become rows of X.
    record : FitRecord
    sources : tuple of str
        The files the model was fitted to, as the user named them.
    """

    learner: Learner
    columns: Columns
    record: FitRecord = field(default_factory=FitRecord)
    sources: tuple[str, ...] = ()

    @property
    def belief(self) -> Belief:
        """The belief of the learner after all rows."""
        return self.learner.belief

    @property
    def model(self) -> "KalproxRegressor":
        """The learner as an estimator without feature names, which takes X as an array."""
        from kalprox.estimators import KalproxRegressor

        return KalproxRegressor._of(self.learner, self._about() | {"feature_names": None})

    def _about(self) -> dict[str, Any]:
        names = self.columns.names
        return {"n_features": len(names), "feature_names": names, "estimator_settings": _ESTIMATOR}

    def parts(self) -> Parts:
        """Return the header and the arrays of the model file."""
        header, arrays = learner_parts(self.learner, **self._about())
        header["table"] = {
            "columns": self.columns.to_json(),
            "account": self.record.to_json(),
            "sources": list(self.sources),
        }
        return header, arrays

    @classmethod
    def from_parts(
        cls, file: str | PathLike, header: dict[str, Any], arrays: dict[str, np.ndarray], *, try_out: bool = True
    ) -> "TableModel":
        """Return the model from the header and arrays that `parts` returned; error messages name `file`.

        For `try_out` see `kalprox.learning.saving.from_parts`.
        """
        table = header.get("table")
        if not isinstance(table, dict):
            raise ModelFileError(
                f"{file} holds a model that was not fitted to files: it does not describe the columns of a table."
            )
        learner, about = from_parts(file, header, arrays, try_out=try_out)
        with refusing(f"{file} is a model file, but its description of the columns or of the rows is damaged."):
            columns = checked_columns(table["columns"])
            expect(columns.target is not None and columns.names == about["feature_names"])
            record = checked_record(table["account"], columns)
            expect(conforms(tuple[str, ...], table["sources"]))
        return cls(learner, columns, record, tuple(table["sources"]))

    @classmethod
    def rebuilt(cls, file: str | PathLike, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Parts:
        """Return the parts of the model that these parts describe, to be compared; see `kalprox.model_file.write`."""
        parts, own = cls.from_parts(file, header, arrays, try_out=False).parts()
        return {**header, **parts}, own

    def save(self, file: str | PathLike) -> None:
        """Write the model file atomically, once the model can be restored from it."""
        model_file.write(file, *self.parts(), partial(self.rebuilt, file))

    @classmethod
    def load(cls, file: str | PathLike) -> "TableModel":
        """Read a model file; anything else raises `ModelFileError`."""
        return cls.from_parts(file, *model_file.read(file))

    def merge(self, other: "TableModel") -> "TableModel":
        """Return the model of the rows of both; raise a ValueError if their columns or settings differ."""
        mine, theirs = self.columns.to_json(), other.columns.to_json()
        if mine != theirs:
            different = ", ".join(name for name in mine if mine[name] != theirs[name])
            raise ValueError(
                f"The models have different columns ({different}): fit them with the same target, features and levels; "
                "--columns uses those of another model."
            )
        learner = self.learner.copy()
        learner.merge(other.learner)
        record = FitRecord(self.record.history, self.record.quality.merge(other.record.quality))
        return TableModel(learner, self.columns, record, self.sources + other.sources)

    def headline(self, predicted: RowCounts | None = None) -> Headline:
        """Return what became of the rows, and every doubt about the numbers, in the words of the command line.

        See `kalprox.learning.headline.headline` for `predicted`.
        """
        return headline(self.learner, self.columns.names, self.record.quality, predicted).with_options()

    def intervals(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the intervals of the coefficients, each of shape (d,); see `Belief.coef_interval`."""
        return self.belief.coef_interval(level)
