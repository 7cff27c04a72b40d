"""Saving and loading of fitted estimators: `save` and `load`."""

from os import PathLike
from typing import Any, Self

import numpy as np

from kalprox.estimators.base import LearnerEstimator
from kalprox.learning.learner import Learner
from kalprox.learning.saving import learner_parts, load_learner, save_learner
from kalprox.model_file import refusing

__all__ = ["Files"]


class Files(LearnerEstimator):
    """The methods that write a fitted model to a file and read it."""

    def save(self, file: str | PathLike, *, samples: bool = True) -> None:
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
            parts = learner_parts(learner, **self._about())
        save_learner(file, *parts)

    def _about(self) -> dict[str, Any]:
        """Return what a model file contains in addition to the learner."""
        names = getattr(self, "feature_names_in_", None)
        return {
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else list(names),
            "estimator_settings": {"block_size": self.block_size, "on_bad_rows": self.on_bad_rows},
        }

    @classmethod
    def load(cls, file: str | PathLike) -> Self:
        """Read a model that `save` wrote, so that `partial_fit` can continue.

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
        """
        learner, about = load_learner(file)
        with refusing(f"{file} is a model file, but the settings of its estimator are invalid."):
            model = cls._of(learner, about)
            model._checked_settings()
        return model

    @classmethod
    def _of(cls, learner: Learner, about: dict[str, Any]) -> Self:
        model = cls(**{**learner.settings.parameters, **about["estimator_settings"]})
        model.n_features_in_ = about["n_features"]
        if about["feature_names"] is not None:
            model.feature_names_in_ = np.array(about["feature_names"], dtype=object)
        return model._keep(learner)
