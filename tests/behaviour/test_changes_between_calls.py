"""Parameters that change between calls of partial_fit: it is right, or refused, and then nothing is lost."""

import numpy as np
import pytest

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.forgetting import ByTime, Window
from kalprox.likelihoods import Student


def rows(n=80):
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, 2))
    return X, X @ [1.0, -1.0] + 0.3 * rng.normal(size=n)


REFUSED = [
    ({}, {"link": "tanh"}),
    ({}, {"likelihood": "student"}),
    ({}, {"structure": "diagonal", "penalty": "ridge"}),
    ({}, {"weight_kind": "precision"}),
    ({}, {"coef_cov": "robust"}),
    ({"coef_cov": "robust"}, {"coef_cov": "clustered"}),
    ({}, {"forget": Window(30)}),
    ({"forget": Window(30)}, {"forget": Window(40)}),
    ({}, {"forget": "auto"}),
    ({"forget": "auto"}, {"forget": 0.9}),
    ({"likelihood": "student"}, {"likelihood": Student(7.0)}),
    ({"likelihood": "student"}, {"fit_intercept": False}),
    ({"likelihood": "student"}, {"forget": ByTime(3.0)}),
    ({"structure": "diagonal", "penalty": "ridge"}, {"alpha": 3.0}),
]


@pytest.mark.parametrize(("before", "change"), REFUSED, ids=str)
def test_what_the_rows_so_far_depend_on_cannot_change(before, change):
    X, y = rows()
    model = KalproxRegressor(**before).partial_fit(X, y)
    coef, name = model.coef_.copy(), next(iter(change))
    with pytest.raises(ValueError, match=f"{name} cannot change from .* to .* because .*: use fit"):
        model.set_params(**change).partial_fit(X, y, **({"times": y} if "times" in change else {}))
    np.testing.assert_array_equal(model.coef_, coef)
    assert model.n_rows_seen_ == 80


def test_another_function_is_another_model():
    X, y = rows()
    model = KalproxRegressor(function=lambda theta, x: theta[0] * x[0] + theta[1] * x[1], start=[0.5, -0.5])
    model.partial_fit(X, y)
    with pytest.raises(ValueError, match="function cannot change"):
        model.set_params(function=lambda theta, x: theta[0] * x[0] - theta[1] * x[1]).partial_fit(X, y)


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ({}, {"penalty": "ridge", "alpha": 2.0}),
        ({}, {"fit_intercept": False}),
        ({"penalty": "l1", "alpha": 1.0}, {"penalty": "ridge"}),
        ({"coef_cov": "robust"}, {"coef_cov": "model"}),
        ({}, {"noise": 0.09}),
    ],
    ids=str,
)
def test_what_is_read_from_the_rows_may_change(before, change):
    X, y = rows()
    model = KalproxRegressor(**before).partial_fit(X[:50], y[:50]).set_params(**change).partial_fit(X[50:], y[50:])
    whole = KalproxRegressor(**{**before, **change}).fit(X, y)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-10)
    np.testing.assert_allclose(model.coef_std_, whole.coef_std_, rtol=1e-8)


def test_a_classifier_keeps_its_intercept():
    X, y = rows()
    model = KalproxClassifier().partial_fit(X, y > 0, classes=[False, True])
    with pytest.raises(ValueError, match="fit_intercept cannot change from True to False"):
        model.set_params(fit_intercept=False).partial_fit(X, y > 0)
