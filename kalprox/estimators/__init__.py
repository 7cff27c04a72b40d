"""The faces of a learner for scikit-learn: `regressor` has the estimator, `checks` validates the rows it is given."""

try:
    from kalprox.estimators.regressor import KalproxRegressor
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "sklearn":
        raise
    raise ImportError("KalproxRegressor needs scikit-learn: pip install 'kalprox[estimator]'.") from missing

__all__ = ["KalproxRegressor"]
