"""Saving and loading of fitted estimators: `save` and `load`, and `load` of any model."""

import warnings
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kalprox import model_file
from kalprox.estimators.base import LearnerEstimator
from kalprox.learning.learner import Learner
from kalprox.learning.saving import from_parts, learner_parts, save_learner
from kalprox.model_file import ModelFileError, refusing

if TYPE_CHECKING:
    from kalprox.jobs.model import TableModel


class Files(LearnerEstimator):
    """The methods that write a fitted model to a file and read it."""

    def save(self, file: str | PathLike[str], *, samples: bool = True) -> None:
        """Write the fitted model to a file, atomically and without pickle.

        The file is read back, and the model restored from it and compared, before it replaces another file. A model
        whose link is a function or whose penalty is a `Custom` regulariser cannot be saved.

        Parameters
        ----------
        file : str or path-like
        samples : bool
            Whether the file may contain rows as they came: those of short batches that wait to be folded together, and
            those of a nonlinear stream that its warm-up needs. If False, the rows are folded first, and a model whose
            warm-up has not ended is refused. The labels of clusters remain.

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> import tempfile, pathlib
        >>> model = KalproxRegressor().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(pathlib.Path(folder) / "model.kalprox")
        ...     same_model = KalproxRegressor.load(pathlib.Path(folder) / "model.kalprox")
        >>> bool((same_model.coef_ == model.coef_).all())
        True
        """
        with self._lock:
            if changed := self._checked_settings().changed(self._fitted.settings):
                names = ", ".join(changed)
                raise ValueError(f"{names} changed since the last fit: call fit or partial_fit before save.")
            learner = self._learner
            if not samples:
                learner = learner.copy()  # which may go on as if it had not been saved
                learner.release_rows()
            table = None if self._table is None else self._as_table(learner.copy())
            parts = learner_parts(learner, **self._about()) if table is None else None
        if parts is not None:
            save_learner(file, *parts)
        elif table is not None:
            (table if samples else table.without_samples()).save(file)

    def _as_table(self, learner: Learner) -> "TableModel":
        """Return a learner with the description of its table, as commands and reports use it; needs pyarrow."""
        from kalprox.jobs.model import TableModel

        about = self._about()
        if self._table is None:
            return TableModel.of_learner(learner, **about)
        return replace(self._table, learner=learner, reading=about["estimator_settings"])

    def report(self, file: str | PathLike[str], level: float = 0.95) -> Path:
        """Write an HTML page about the model, the page of `kalprox report`: one file that needs no others.

        Parameters
        ----------
        file : str or path-like
            The file to write.
        level : float
            The level of the intervals of the coefficients.

        Returns
        -------
        Path
            The file.

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> import tempfile, pathlib
        >>> model = KalproxRegressor().fit([[0.0], [1.0], [2.0], [3.0]], [1.0, 2.0, 4.0, 4.5])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.report(pathlib.Path(folder) / "model.html").name
        'model.html'
        """
        from kalprox.pages import require_report_packages, write_page

        require_report_packages()
        from kalprox.reports.model import page

        with self._lock:
            fitted = self._as_table(self._fitted.copy())
        return write_page(page(fitted, Path(file).stem, level), Path(file))

    def _about(self) -> dict[str, Any]:
        """Return what a model file contains in addition to the learner."""
        names = getattr(self, "feature_names_in_", None)
        return {
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else list(names),
            "estimator_settings": {},
        }

    @classmethod
    def load(cls, file: str | PathLike[str]) -> Self:
        """Read a model that `save` or `kalprox fit` wrote, so that `partial_fit` can continue.

        A model that was fitted to files keeps the description of their columns: `predict` and `partial_fit` take frames
        with these columns, and encode them as the files were.

        The estimate and its covariance continue bit for bit. The score in `diagnostics_` continues to rounding: where
        rows come one at a time, their predictions are made from an estimate that is computed afresh after loading.

        Parameters
        ----------
        file : str or path-like

        Returns
        -------
        KalproxRegressor

        Raises
        ------
        ModelFileError
            If the file is not a model file.

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     KalproxRegressor().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0]).save(pathlib.Path(folder) / "model")
        ...     KalproxRegressor.load(pathlib.Path(folder) / "model").partial_fit([[3.0]], [5.0]).n_rows_seen_
        4
        """
        header, arrays = model_file.read(file)
        table = _table_of(file, header, arrays)
        learner, about = from_parts(file, header, arrays) if table is None else (table.learner, table.about)
        if (name := header["estimator"]) != cls.__name__:
            raise ModelFileError(f"{file} is the file of a {name}, not of a {cls.__name__}: use {name}.load.")
        with refusing(f"{file} is a model file, but the settings of its estimator are invalid."):
            model = cls._of(learner, about | {"formula": getattr(table and table.columns, "formula", None)})
            model._table = table
            model._checked_settings()
        return model

    @classmethod
    def _of(cls, learner: Learner, about: dict[str, Any]) -> Self:
        """Return an estimator with the parameters, the learner and the columns of a file."""
        given = {**learner.settings.parameters, **about["estimator_settings"], "formula": about.get("formula")}
        model = cls(**{name: given[name] for name in cls._get_param_names() if name in given})
        if cls._has_labels:
            model.classes_, model._balanced = np.array(given["classes"]), learner.settings.class_weights or ()
        model.n_features_in_ = about["n_features"]
        if about["feature_names"] is not None:
            model.feature_names_in_ = np.array(about["feature_names"], dtype=object)
        return model._keep(learner)


def _table_of(file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray]) -> "TableModel | None":
    """Return the model with the description of its columns, if the file has one."""
    if "table" not in header:
        return None
    try:
        from kalprox.jobs.model import TableModel
    except ImportError:
        message = f"{file} describes the columns of files, which needs pyarrow: without it, only arrays are predicted."
        warnings.warn(message, UserWarning, stacklevel=3)
        return None
    return TableModel.from_parts(file, header, arrays)


def load(file: str | PathLike[str]) -> Any:
    """Read the model of a model file: a regressor, a classifier or a bandit.

    Parameters
    ----------
    file : str or path-like
        What `save` of a model, or `kalprox fit`, has written.

    Returns
    -------
    KalproxRegressor, KalproxClassifier or Bandit

    Raises
    ------
    ModelFileError
        If the file is no model file, is damaged, or is of another version.

    Examples
    --------
    >>> import kalprox as kp, pathlib, tempfile
    >>> model = kp.KalproxRegressor().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(pathlib.Path(folder) / "model.kalprox")
    ...     same = kp.load(pathlib.Path(folder) / "model.kalprox")
    >>> type(same).__name__, bool(same.coef_ == model.coef_)
    ('KalproxRegressor', True)
    """
    from kalprox.decisions import Bandit
    from kalprox.estimators import KalproxClassifier, KalproxRegressor

    kinds: dict[Any, Any] = {kind.__name__: kind for kind in (KalproxRegressor, KalproxClassifier, Bandit)}
    found = model_file.read(file)[0].get("estimator")
    if found not in kinds:
        raise ModelFileError(f"{file} has no model that this version can read: it is a checkpoint, or was changed.")
    return kinds[found].load(file)
