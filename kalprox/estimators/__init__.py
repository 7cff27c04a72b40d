"""scikit-learn estimators: `regressor` defines KalproxRegressor, `checks` validates its input."""

try:
    from kalprox.estimators.regressor import KalproxRegressor
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "sklearn":
        raise
    raise ImportError("KalproxRegressor needs scikit-learn: pip install 'kalprox[estimator]'.") from missing

__all__ = ["KalproxRegressor"]
