"""Read a model file, whatever kind of model it has."""

from os import PathLike
from typing import Any

from kalprox import model_file
from kalprox.estimators.classifier import KalproxClassifier
from kalprox.estimators.regressor import KalproxRegressor
from kalprox.model_file import ModelFileError

__all__ = ["load"]


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

    kinds: dict[Any, Any] = {kind.__name__: kind for kind in (KalproxRegressor, KalproxClassifier, Bandit)}
    found = model_file.read(file)[0].get("estimator")
    if found not in kinds:
        raise ModelFileError(f"{file} has no model that this version can read: it is a checkpoint, or was changed.")
    return kinds[found].load(file)
