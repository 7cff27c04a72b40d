"""scikit-learn estimators.

`regressor` defines KalproxRegressor and its parameters, `classifier` KalproxClassifier and its. Their methods are in
`fitting` (fits of all rows), `streaming` (of some after others), `predicting` (of a regressor), `readings` (fitted
attributes, intervals, draws, plots) and `files` (saving, loading and reports, and `load` of any model file). `base`
holds the learner, `rows` checks the rows, and `frames` encodes those of frames. `pipelines` predicts intervals through
pipelines.
"""

from kalprox.base.extras import not_installed

try:
    from kalprox.estimators.classifier import KalproxClassifier
    from kalprox.estimators.files import load
    from kalprox.estimators.regressor import KalproxRegressor, predict_interval
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "sklearn":
        raise
    raise not_installed("estimator", "KalproxRegressor needs") from missing

__all__ = [
    "KalproxClassifier",
    "KalproxRegressor",
    "load",
    "predict_interval",
]
