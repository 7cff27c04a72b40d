"""The parameters of estimators are those that scikit-learn knows; coefficients that rows leave open are said to be."""

import inspect

import numpy as np
import pytest
from sklearn.base import clone

from kalprox import KalproxClassifier, KalproxRegressor


@pytest.mark.parametrize("estimator", [KalproxRegressor, KalproxClassifier])
def test_parameters_are_still_those_of_scikit_learn(estimator):
    names = set(inspect.signature(estimator).parameters)
    assert set(estimator().get_params()) == names and len(names) <= 20
    assert clone(estimator(alpha=3.0)).alpha == 3.0
    with pytest.raises(TypeError, match="unexpected keyword argument 'penality'"):
        estimator(penality="l1")


def test_coefficients_that_rows_leave_open_are_said_to_be():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(20, 50)), rng.normal(size=20)
    notes = " ".join(KalproxRegressor().fit(X, y).summary().notes)
    assert "neither the rows nor the penalty determine 50 of the coefficients" in notes and "alpha='auto'" in notes
    notes = " ".join(KalproxRegressor().fit(np.c_[X[:, :2], X[:, 0]], y).summary().notes)
    assert "determine 2 of the coefficients" in notes
    for model in (KalproxRegressor(penalty="ridge", alpha="auto").fit(X, y), KalproxRegressor().fit(X[:, :3], y)):
        assert "Undetermined" not in " ".join(model.summary().notes)
