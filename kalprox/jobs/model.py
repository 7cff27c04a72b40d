"""A model fitted to files: the estimator, how its columns come from a table, and an account of the rows."""

from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np

from kalprox import model_file
from kalprox.estimators import KalproxRegressor, files
from kalprox.jobs.record import FitRecord
from kalprox.model_file import ModelFileError
from kalprox.sources.columns import Columns

__all__ = ["TableModel"]


@dataclass(frozen=True)
class TableModel:
    """All that `kalprox fit` leaves. The file is one that `KalproxRegressor.load` reads too, with names for the
    columns of X as they were made: "distance", "carrier=UA"."""

    model: KalproxRegressor
    columns: Columns
    record: FitRecord = field(default_factory=FitRecord)
    sources: tuple[str, ...] = ()  # as they were named

    def parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Header and arrays of its file."""
        header, arrays = files.parts(self.model)
        header["feature_names"] = self.columns.names
        header["table"] = {
            "columns": self.columns.to_json(),
            "account": self.record.to_json(),
            "sources": list(self.sources),
        }
        return header, arrays

    @classmethod
    def from_parts(cls, file: str | PathLike, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> "TableModel":
        table = header.get("table")
        if not isinstance(table, dict):
            raise ModelFileError(f"{file} is a model that was not fitted to files: what its columns are is not in it.")
        model = files.from_parts(KalproxRegressor, file, header, arrays)
        try:
            columns = Columns.from_json(table["columns"])
            found = cls(model, columns, FitRecord.from_json(table["account"]), tuple(map(str, table["sources"])))
            if columns.names != list(model.feature_names_in_):
                raise ValueError("names")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{file} is a model file, but what it says of its columns is not whole.") from error
        del model.feature_names_in_  # the table gives X as an array, its columns found by name
        return found

    def save(self, file: str | PathLike) -> None:
        """Whole or not at all."""
        model_file.write(file, *self.parts())

    @classmethod
    def load(cls, file: str | PathLike) -> "TableModel":
        """What `save` wrote; anything else raises `ModelFileError`."""
        return cls.from_parts(file, *model_file.read(file))

    def merge(self, other: "TableModel") -> "TableModel":
        """Of the rows of both, in place; refused where their columns or settings differ."""
        mine, theirs = self.columns.to_json(), other.columns.to_json()
        if mine != theirs:
            different = ", ".join(name for name in mine if mine[name] != theirs[name])
            raise ValueError(
                f"The models read their tables differently ({different}): fit them with the same target, features and "
                "levels; --columns takes those of another model."
            )
        self.model.merge(other.model)
        record = FitRecord(self.record.history, self.record.quality.merge(other.record.quality))
        return TableModel(self.model, self.columns, record, self.sources + other.sources)

    def intervals(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """The central intervals of the coefficients, (d,) each."""
        reach = self.model._fitted.noise.quantile(level) * self.model.coef_std_
        return self.model.coef_ - reach, self.model.coef_ + reach
