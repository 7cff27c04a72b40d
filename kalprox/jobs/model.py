"""A fitted model of a table: the learner, how its columns are made from a table, and the record of the fit."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np

from kalprox import model_file
from kalprox.base.memory import address_space, check_address_space, memory_of_machine, shown_bytes
from kalprox.base.text import Text, code, count, worded
from kalprox.base.tree import expect
from kalprox.jobs.record import DataQuality, FitRecord, checked_columns, checked_record, from_json
from kalprox.learning.belief import Belief
from kalprox.learning.facts import Headline, Line, RowCounts, headline
from kalprox.learning.learner import Learner
from kalprox.learning.rules import check
from kalprox.learning.saving import from_parts, learner_parts
from kalprox.learning.settings import Settings
from kalprox.learning.summary import Summary
from kalprox.model_file import Parts, refusing
from kalprox.sources import Block
from kalprox.sources.columns import Columns, TableColumns
from kalprox.sources.labels import label_of
from kalprox.sources.quarantine import BadRow
from kalprox.structures import Structure

MATRICES = 16  # of d x d numbers that a fit holds at a time, at most; measured
_SMALL = 1 << 24  # bytes that are not worth a warning: the process itself takes more


def check_memory(columns: int, memory: int, structure: Structure | None = None) -> None:
    """Warn if the matrices of a model take more than `memory` bytes, which bound the rows that are read at a time.

    Parameters
    ----------
    columns : int
        The number d of columns of X, each level of a categorical feature counted.
    memory : int
        What was asked for, in bytes.
    structure : Structure, optional
        That of the model, which has vectors instead of d x d matrices.

    Raises
    ------
    MemoryError
        If the matrices take more than the memory of this machine.
    """
    size, what = 8 * columns**2, "d x d matrices"
    fewer: str = worded(
        "Fewer columns, or fewer levels of categorical columns, need less; or set {structure='diagonal'}, which keeps "
        "no correlations of coefficients."
    )
    if structure is not None:
        size, what = 8 * columns * (getattr(structure, "rank", 0) + 1), "vectors"
        fewer = "Fewer columns, fewer levels of categorical columns, or a lower rank of the structure need less."
    need, there = MATRICES * size, memory_of_machine()
    text = f"{columns:,} columns need about {shown_bytes(need)} of memory for {what} of the model ({MATRICES} of "
    text += f"{shown_bytes(size)})"
    if there is not None and need > max(there, _SMALL):
        has = "this machine has" if address_space() is None else "the limit of this process (ulimit -v) leaves it"
        raise MemoryError(Text.of(f"{text}, and {has} {shown_bytes(there)}. ", fewer))
    if need > max(memory, _SMALL):
        bound = f"{text}; the {shown_bytes(memory)} of --memory bound only the rows that are read at a time. "
        warnings.warn(Text.of(bound, fewer), RuntimeWarning, stacklevel=2)


_FEW_LEVELS = 10  # of which a column of a few rows may have nearly as many
_MAX_CLASSES = 5  # that the headline names
_SKIPPED = BadRow("array", 0, "", "NaN, infinity or too large", "")  # a bad row of which no more is known


def rebuilt(restore: Any, file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Parts:
    """Return the parts of what is restored from these parts, to be compared; see `kalprox.model_file.write`."""
    parts, own = restore(file, header, arrays, try_out=False).parts()
    return {**header, **parts}, own


@dataclass(frozen=True)
class TableModel:
    """A fitted model with a description of the columns of its table, as commands use it.

    `kalprox fit` and `KalproxRegressor.save` write the same model files, and both sides read both. A file of `kalprox
    fit` describes the columns of a table; `KalproxRegressor.load` keeps the description, and encodes frames by it. A
    file of a model that was fitted in Python has none: its columns are numbers, by their names in the frame, or x0, x1
    and so on, and its target is y.

    Attributes
    ----------
    learner : Learner
    columns : Columns or FormulaColumns
        How the rows of a table become rows of X.
    record : FitRecord
    sources : tuple of str
        The files the model was fitted to, as the user named them.
    fitted_to : {"files", "frame", "array"}
        Whether the file describes a table, or has the names of the columns of a frame, or neither.
    reading : dict
        What an estimator has besides the settings of its learner: the weights of classes.
    """

    learner: Learner
    columns: TableColumns
    record: FitRecord = field(default_factory=FitRecord)
    sources: tuple[str, ...] = ()
    fitted_to: str = "files"
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"TableModel({self.columns.target!r} from {count(len(self.columns.names), 'column')}, "
            f"{count(self.learner.n_rows, 'row')} learned, fitted to {self.fitted_to})"
        )

    @property
    def belief(self) -> Belief:
        """The belief of the learner after all rows."""
        return self.learner.belief

    @property
    def model(self) -> Any:
        """The learner as an estimator without feature names, which takes X as an array: a classifier for classes."""
        from kalprox import KalproxClassifier, KalproxRegressor

        estimator = KalproxClassifier if self.columns.classes else KalproxRegressor
        return estimator._of(self.learner, self.about | {"feature_names": None})

    @property
    def coef_names(self) -> list[str]:
        """The names of the coefficients; see `kalprox.learning.settings.Settings.coef_names`."""
        return self.learner.settings.coef_names(self.columns.names, self.belief.coef.shape[-1])

    @property
    def about(self) -> dict[str, Any]:
        """What a model file says about the columns of X and the estimator."""
        names = self.columns.names
        feature_names = None if self.fitted_to == "array" else names
        classes = {"classes": list(self.columns.classes)} if self.columns.classes else {}
        return {
            "n_features": len(names),
            "feature_names": feature_names,
            "estimator_settings": {**classes, **self.reading},  # whose labels of classes may be numbers
        }

    def parts(self) -> Parts:
        """Return the header and the arrays of the model file."""
        header, arrays = learner_parts(self.learner, **self.about)
        if self.fitted_to == "files":
            header["table"] = {
                "columns": self.columns.to_json(),
                "account": asdict(self.record),
                "sources": list(self.sources),
            }
        return header, arrays

    @classmethod
    def from_parts(
        cls, file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray], *, try_out: bool = True
    ) -> "TableModel":
        """Return the model from the header and arrays that `parts` returned; error messages name `file`.

        For `try_out` see `kalprox.learning.saving.from_parts`.
        """
        learner, about = from_parts(file, header, arrays, try_out=try_out)
        if "table" not in header:
            return cls.of_learner(learner, **about)
        table = header["table"]
        with refusing(f"{file} is a model file, but its description of the columns or of the rows is damaged."):
            columns = checked_columns(table["columns"])
            expect(columns.target is not None and columns.names == about["feature_names"])
            labels = about["estimator_settings"].get("classes", [])
            expect(tuple(map(label_of, labels)) == tuple(map(label_of, columns.classes)))
            record = checked_record(table["account"], columns)
            sources = from_json(tuple[str, ...], table["sources"])
        return cls(learner, columns, record, sources, reading=about["estimator_settings"])

    @classmethod
    def of_learner(
        cls,
        learner: Learner,
        *,
        n_features: int,
        feature_names: list[str] | None,
        estimator_settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> "TableModel":
        """Return the model of a learner that was not fitted to files; raise a ValueError if it has several targets."""
        classes = tuple(str(label_of(label)) for label in estimator_settings.get("classes", ()))
        if learner.belief.coef.ndim > 1 and not classes:
            raise ValueError(
                f"The model has {len(learner.belief.coef)} targets, and reports and commands are about one: fit a "
                "model for each target, or use the methods of KalproxRegressor."
            )
        names = [f"x{j}" for j in range(n_features)] if feature_names is None else feature_names
        twice = [name for name, n in Counter(names).items() if n > 1]
        if twice:
            raise ValueError(f"The columns of the model must have different names; {twice[0]!r} occurs twice.")
        target = next(name for name in ("y", "target", *(f"y{i}" for i in range(n_features))) if name not in names)
        bad = learner.n_rejected
        reasons = {"": {_SKIPPED.reason: bad}} if bad else {}
        quality = DataQuality(read=learner.n_rows + bad, bad=bad, reasons=reasons)
        fitted_to = "array" if feature_names is None else "frame"
        settings = learner.settings
        gaps, unlabelled = settings.fills_gaps, settings.missing != "raise"
        columns = Columns(target, numeric=tuple(names), classes=classes, gaps=gaps, unlabelled=unlabelled)
        return cls(learner, columns, FitRecord(quality=quality), (), fitted_to, dict(estimator_settings))

    def save(self, file: str | PathLike[str]) -> None:
        """Write the model file atomically, once the model can be restored from it."""
        model_file.write(file, *self.parts(), partial(rebuilt, TableModel.from_parts, file))

    @classmethod
    def load(cls, file: str | PathLike[str]) -> "TableModel":
        """Read a model file; anything else raises `ModelFileError`."""
        check_address_space()
        return cls.from_parts(file, *model_file.read(file))

    def with_rows(self, block: Block, skipped: int = 0) -> "TableModel":
        """Return the model with a record that has one more block, which the learner has learned.

        `skipped` rows are bad, besides those of the block, and were read with it.
        """
        quality = self.record.quality
        block = replace(block, bad=[*block.bad, *[_SKIPPED] * skipped])
        known = bool(quality.low) or not quality.total  # ranges are values of rows, and may not be kept
        return replace(self, record=replace(self.record, quality=quality.after(block, ranges=known)))

    def with_missing(self, missing: str) -> "TableModel":
        """Return the model with another way to predict rows with missing features; see `KalproxRegressor`."""
        settings = Settings.of(**{**self.learner.settings.parameters, "missing": missing})
        if not isinstance(self.columns, Columns):
            check(settings, way="formula")
            return self
        learner = self.learner.copy()
        learner.configure(settings)
        return replace(self, learner=learner, columns=replace(self.columns, gaps=missing != "raise"))

    def without_samples(self) -> "TableModel":
        """Return the model without values of rows in its record."""
        quality = self.record.quality
        first = [row | {"value": ""} for row in quality.first]
        quality = replace(quality, first=first, low=[], high=[], notes=quality.notes.without_examples())
        return replace(self, record=replace(self.record, quality=quality))

    def with_record_of(self, other: "TableModel") -> "TableModel":
        """Return the model with a record of the rows of both."""
        record = FitRecord(self.record.history, self.record.quality.merge(other.record.quality))
        return replace(self, record=record, sources=self.sources + other.sources)

    def merge(self, other: "TableModel", *, allow_overlap: bool = False) -> "TableModel":
        """Return the model of the rows of both.

        Raise a ValueError if their columns or settings differ or, unless `allow_overlap` is True, if they have rows in
        common; see `Learner.merge`.
        """
        mine, theirs = self.columns.to_json(), other.columns.to_json()
        if mine != theirs:
            different = ", ".join(name for name in mine | theirs if mine.get(name) != theirs.get(name))
            raise ValueError(
                f"The models have different columns ({different}): fit them with the same target, features and levels; "
                "--columns uses those of another model."
            )
        learner = self.learner.copy()
        learner.merge(other.learner, allow_overlap=allow_overlap)
        return replace(self.with_record_of(other), learner=learner)

    def headline(self, predicted: RowCounts | None = None, *, in_time: bool = False) -> Headline:
        """Return what became of the rows, and every doubt about the numbers, in the words of the command line.

        See `kalprox.learning.facts.headline` for `predicted` and `in_time`.
        """
        quality, classes = self.record.quality, self.columns.classes
        found = headline(self.learner, self.columns.names, quality, predicted, in_time=in_time)
        first, *others = found.with_options().lines
        return Headline((first, *([self._classes] if classes else []), *self._own_levels, *others))

    @property
    def _own_levels(self) -> Iterator[Line]:
        """The lines of the headline about columns of text in which nearly every row has a level of its own."""
        rows = self.learner.n_rows
        for name, levels in {**self.columns.categorical, **getattr(self.columns, "levels", {})}.items():
            if 2 * len(levels) > rows > 0 and len(levels) > _FEW_LEVELS:
                text = f"{code(name)} has {len(levels):,} levels in {count(rows, 'row')}. Of a level that came once or "
                yield Line("Levels", f"{text}twice nothing can be learned: leave the column out.", True)

    @property
    def _classes(self) -> Line:
        """The line of the headline about the classes of the target."""
        rows, classes = self.record.quality.class_rows(self.columns.classes), self.columns.classes
        told = [f"{code(name)} ({count(rows[name], 'row')})" if rows else code(name) for name in classes]
        more = f" and {len(told) - _MAX_CLASSES:,} more" if len(told) > _MAX_CLASSES else ""
        yes = f". The coefficients are about {code(classes[1])}" if len(classes) == 2 else ""
        return Line("Classes", f"{', '.join(told[:_MAX_CLASSES])}{more}{yes}.")

    def intervals(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the intervals of the coefficients, each of shape (d,); see `Belief.coef_interval`."""
        return self.belief.coef_interval(level)

    def summary(self, level: float = 0.95) -> Summary:
        """Return the coefficients with standard errors, intervals and tests, and what describes the model."""
        quality, columns = self.record.quality, self.columns
        return Summary.of(
            self.learner,
            self.coef_names,
            level=level,
            target=columns.target,
            rejected=quality.bad if quality.read else None,
            cluster=columns.cluster,
            classes=columns.classes,
        )
