"""kalprox: streaming regularised regression that knows how sure it is.

Importing this package does not import its dependencies: each public name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kalprox import covariance, decisions, forgetting, likelihoods, models, penalties, regularizers, structures
    from kalprox.algorithms.base import Algorithm
    from kalprox.algorithms.proximal_filter import proximal_filter
    from kalprox.algorithms.refine import Refined, refine
    from kalprox.calibration import Calibration
    from kalprox.estimators import KalproxClassifier, KalproxRegressor, load, predict_interval
    from kalprox.information import Information, merge
    from kalprox.large import KalproxNetClassifier, KalproxNetRegressor
    from kalprox.paper.pipg import ipg, ipm, pipg, sgd
    from kalprox.paper.run import Run, Trace, run

__version__ = "0.2.0"

_HOMES = {
    "Algorithm": "algorithms.base",
    "Calibration": "calibration",
    "Information": "information",
    "KalproxClassifier": "estimators",
    "KalproxNetClassifier": "large",
    "KalproxNetRegressor": "large",
    "KalproxRegressor": "estimators",
    "Refined": "algorithms.refine",
    "Run": "paper.run",
    "Trace": "paper.run",
    "ipg": "paper.pipg",
    "ipm": "paper.pipg",
    "load": "estimators",
    "merge": "information",
    "pipg": "paper.pipg",
    "predict_interval": "estimators",
    "proximal_filter": "algorithms.proximal_filter",
    "refine": "algorithms.refine",
    "run": "paper.run",
    "sgd": "paper.pipg",
}

__all__ = [
    "Algorithm",
    "Calibration",
    "Information",
    "KalproxClassifier",
    "KalproxNetClassifier",
    "KalproxNetRegressor",
    "KalproxRegressor",
    "Refined",
    "Run",
    "Trace",
    "covariance",
    "decisions",
    "forgetting",
    "ipg",
    "ipm",
    "likelihoods",
    "load",
    "merge",
    "models",
    "penalties",
    "pipg",
    "predict_interval",
    "proximal_filter",
    "refine",
    "regularizers",
    "run",
    "sgd",
    "structures",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kalprox' has no attribute {name!r}")
    if name not in _HOMES:
        return import_module(f"kalprox.{name}")
    value = getattr(import_module(f"kalprox.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
