"""scikit-learn's face of kalprox.

`regressor` is the estimator, `checks` its edge. What it knows after some rows is a belief: `linear` (exact, from the
information, with `root` its covariance and `live` its short way for single rows) or `nonlinear` (the proximal
filter's, and the paper's). `penalties` turns names into regularisers, `files` a fitted estimator into a model file
and back.
"""

from kalprox.estimators.regressor import KalproxRegressor

__all__ = ["KalproxRegressor"]
