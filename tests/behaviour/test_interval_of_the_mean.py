"""The interval of the mean of new rows: of="mean" leaves their noise out, and what cannot be meant is refused."""

import numpy as np
import pytest
import statsmodels.api as sm

from kalprox import KalproxRegressor


def fitted(**settings):
    rng = np.random.default_rng(11)
    X = rng.normal(size=(60, 3))
    y = 2 + X @ [1.0, 0.0, -1.0] + rng.normal(size=60)
    return KalproxRegressor(**settings).fit(X, y), X, y


def test_it_is_that_of_least_squares():
    model, X, y = fitted()
    expected = sm.OLS(y, sm.add_constant(X)).fit().get_prediction(sm.add_constant(X[:7]))
    np.testing.assert_allclose(
        np.column_stack(model.predict_interval(X[:7], 0.9, of="mean")), expected.conf_int(alpha=0.1), rtol=1e-9
    )
    np.testing.assert_allclose(
        np.column_stack(model.predict_interval(X[:7], 0.9)), expected.conf_int(obs=True, alpha=0.1), rtol=1e-9
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"of": "row"}, "of must be 'target' or 'mean'; got 'row'"),
        ({"sigma": 0}, "sigma must be > 0; got 0. For the interval of the mean use of='mean'"),
        ({"sigma": [1.0, 0.0]}, "use of='mean'"),
        ({"of": "mean", "sigma": 2.0}, "sigma is about the targets of new rows"),
        ({"of": "mean", "method": "conformal"}, "method='conformal' is about the targets"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(given, said):
    model, X, _ = fitted()
    with pytest.raises(ValueError, match=said):
        model.predict_interval(X[:2], **given)


def test_tables_have_standard_errors():
    model, *_ = fitted()
    assert list(model.to_frame().columns) == ["name", "coef", "se", "t", "p", "low", "high"]
    np.testing.assert_allclose(model.summary().se[1:], model.coef_std_)
