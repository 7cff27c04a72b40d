"""kalprox: streaming regularised regression that knows how sure it is.

Importing this package imports nothing else: each name below is loaded when it is first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kalprox import covariance, models, regularizers
    from kalprox.algorithm import Algorithm
    from kalprox.baselines import ipg, ipm, sgd
    from kalprox.calibration import Calibration
    from kalprox.estimators import KalproxRegressor
    from kalprox.information import Information, merge
    from kalprox.pipg import pipg
    from kalprox.proximal_filter import proximal_filter
    from kalprox.refine import Refined, refine
    from kalprox.run import Run, Trace, run

__version__ = "0.1.0"

_HOMES = {
    "Algorithm": "algorithm",
    "Calibration": "calibration",
    "Information": "information",
    "KalproxRegressor": "estimators",
    "Refined": "refine",
    "Run": "run",
    "Trace": "run",
    "ipg": "baselines",
    "ipm": "baselines",
    "merge": "information",
    "pipg": "pipg",
    "proximal_filter": "proximal_filter",
    "refine": "refine",
    "run": "run",
    "sgd": "baselines",
}
_MODULES = ("covariance", "models", "regularizers")

__all__ = [
    "Algorithm",
    "Calibration",
    "Information",
    "KalproxRegressor",
    "Refined",
    "Run",
    "Trace",
    "covariance",
    "ipg",
    "ipm",
    "merge",
    "models",
    "pipg",
    "proximal_filter",
    "refine",
    "regularizers",
    "run",
    "sgd",
]


class _Package(ModuleType):
    """`kalprox.pipg` is the function, also after its file of the same name has been imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return import_module(f"kalprox.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'kalprox' has no attribute {name!r}")
        value = getattr(import_module(f"kalprox.{_HOMES[name]}"), name)
        super().__setattr__(name, value)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)  # by its name, as any module: functions that use it go to workers

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *__all__})


sys.modules[__name__].__class__ = _Package
