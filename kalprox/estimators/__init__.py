"""scikit-learn's face of kalprox.

`regressor` is the estimator, `checks` its edge. What it knows after some rows is a belief: `linear` (exact, from the
information, with `root` its covariance and `live` its short way for single rows) or `nonlinear` (the proximal
filter's, and the paper's). `penalties` turns names into regularisers, `files` a fitted estimator into a model file
and back.
"""

try:
    from kalprox.estimators.regressor import KalproxRegressor
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("sklearn", "safetensors"):
        raise
    raise ImportError("KalproxRegressor needs scikit-learn: pip install 'kalprox[estimator]'.") from missing

__all__ = ["KalproxRegressor"]
