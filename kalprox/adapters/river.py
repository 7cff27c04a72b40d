"""Models for River: a regressor and a classifier whose rows are dictionaries, with features that come and go."""

from kalprox.base.extras import not_installed

try:
    import river  # noqa: F401
except ModuleNotFoundError as missing:
    raise not_installed("river", "kalprox.adapters.river needs") from missing

from kalprox.adapters.classifier import RiverClassifier
from kalprox.adapters.distribution import PredictiveDistribution
from kalprox.adapters.regressor import RiverRegressor

__all__ = ["PredictiveDistribution", "RiverClassifier", "RiverRegressor"]
