"""Predictive intervals of models inside scikit-learn's meta-estimators: pipelines, searches and transformed targets."""

from typing import Any

import numpy as np

from kalprox.base.arrays import Array

__all__ = ["predict_interval"]


def predict_interval(model: Any, X: Any, level: float = 0.95, **options: Any) -> tuple[Array, Array]:
    """Return predictive intervals of a fitted model, also one inside a pipeline or a search of scikit-learn.

    The rows go through the steps of a `Pipeline` to its last one. A search, such as `GridSearchCV`, stands for its best
    estimator, and a `FrozenEstimator` for the one inside. For a `TransformedTargetRegressor` the ends of the intervals
    are transformed back, which is right for transformers that are increasing or decreasing, such as the logarithm, and
    act on each target alone: the probability that y lies inside is the same.

    Parameters
    ----------
    model : estimator
        A fitted `KalproxRegressor`, or one of these around it, in any depth.
    X : array-like of shape (n, d)
        The rows, as `model.predict` takes them.
    level : float
        The probability that an interval contains a new observation, strictly between 0 and 1.
    **options
        `sigma`, `of` and `method` of `KalproxRegressor.predict_interval`.

    Returns
    -------
    low, high : arrays of shape (n,) or (n, k)

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from kalprox import KalproxRegressor
    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0.1, 0.9, 2.1, 2.9])
    >>> pipeline = make_pipeline(StandardScaler(), KalproxRegressor(penalty=None)).fit(X, y)
    >>> low, high = predict_interval(pipeline, [[4.0]], level=0.9)
    >>> low.round(2), high.round(2)
    (array([3.32]), array([4.48]))
    """
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model)
    if hasattr(model, "predict_interval"):
        interval: tuple[Any, Any] = model.predict_interval(X, level, **options)
        return interval
    if isinstance(model, Pipeline):
        inputs = model[:-1].transform(X) if len(model) > 1 else X
        return predict_interval(model[-1], inputs, level, **options)
    if isinstance(model, TransformedTargetRegressor):
        if model.check_inverse and model.func is not None and model.inverse_func is None:
            raise TypeError("predict_interval needs the inverse of the transformation of y: give inverse_func, too.")
        ends = [_transformed_back(model, end) for end in predict_interval(model.regressor_, X, level, **options)]
        return np.minimum(*ends), np.maximum(*ends)
    if isinstance(model, FrozenEstimator):
        return predict_interval(model.estimator, X, level, **options)
    if hasattr(model, "best_estimator_"):
        return predict_interval(model.best_estimator_, X, level, **options)
    if hasattr(model, "best_params_"):
        raise TypeError(
            f"predict_interval needs the best estimator of the {type(model).__name__}: fit it with refit=True."
        )
    raise TypeError(
        "predict_interval needs a KalproxRegressor, or a Pipeline, a search or a TransformedTargetRegressor around it; "
        f"got {type(model).__name__}, for whose predictions no interval follows from those of its parts."
    )


def _transformed_back(model: Any, end: Array) -> Array:
    """Return an end of intervals in the units of y, as `TransformedTargetRegressor.predict` does it."""
    found = np.full(end.shape, np.nan)
    known = np.isfinite(end) if end.ndim == 1 else np.isfinite(end).all(axis=1)  # transformers refuse NaN
    if known.any():
        columns = end[known].reshape(int(known.sum()), -1)
        found[known] = model.transformer_.inverse_transform(columns).reshape(found[known].shape)
    return found
