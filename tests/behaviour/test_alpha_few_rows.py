"""penalty="l1" and its relatives with alpha="auto": as good as cross-validation with few rows, and without a jump."""

import numpy as np
import pytest
from sklearn.linear_model import ElasticNetCV, LassoCV

from kalprox import KalproxRegressor, penalties

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def rows(n, d, seed, size=1.5, true=3):
    """Rows of which the first columns matter: X, y, the coefficients."""
    rng = np.random.default_rng([seed, n, d])
    X, theta = rng.normal(size=(n, d)), np.r_[np.full(true, size), np.zeros(d - true)]
    return X, X @ theta - 2 + rng.normal(size=n), theta


def risks(n, d, seeds, theirs, **settings):
    """The mean squared errors of the coefficients of kalprox and of another estimator."""
    found = []
    for seed in range(1000, 1000 + seeds):
        X, y, theta = rows(n, d, seed)
        ours = KalproxRegressor(alpha="auto", **settings).fit(X, y)
        found.append([np.sum((model.coef_ - theta) ** 2) for model in (ours, theirs.fit(X, y))])
    return np.mean(found, axis=0)


@pytest.mark.slow
def test_twenty_rows_are_enough_for_what_cross_validation_finds():
    ours, theirs = risks(20, 6, 12, LassoCV(cv=5), penalty="l1")
    assert ours < 1.3 * theirs


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d"), [(15, 8), (22, 12), (39, 12), (40, 12), (70, 20)])
def test_the_risk_is_that_of_cross_validation(n, d):
    ours, theirs = risks(n, d, 25, LassoCV(cv=5), penalty="l1")
    assert ours < 1.3 * theirs


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 40, 60])
def test_the_risk_is_that_of_cross_validation_with_twice_as_many_columns_as_rows(n):
    ours, theirs = risks(n, 2 * n, 15, LassoCV(cv=5), penalty="l1")
    assert ours < 1.3 * theirs


@pytest.mark.slow
@pytest.mark.parametrize("n", [18, 36, 80])
def test_the_risk_of_an_elastic_net_is_that_of_cross_validation(n):
    ours, theirs = risks(n, 10, 15, ElasticNetCV(l1_ratio=0.7, cv=5), penalty=penalties.ElasticNet(0.7))
    assert ours < 1.3 * theirs


NETS = [{"penalty": "elasticnet"}, {"penalty": penalties.Group([0, 0, 0, 1, 1, 1])}]


@pytest.mark.parametrize("settings", [{"penalty": "l1"}, *(pytest.param(one, marks=pytest.mark.slow) for one in NETS)])
def test_one_more_row_makes_no_jump(settings):
    """The mean risk of four streams as rows come one by one, from 31 rows to 43: none halves or doubles it."""
    found = np.zeros(13)
    for seed in range(4):
        X, y, theta = rows(43, 6, seed)
        model = KalproxRegressor(alpha="auto", diagnose=False, **settings).fit(X[:30], y[:30])
        for n in range(30, 43):
            model.partial_fit(X[n : n + 1], y[n : n + 1])
            found[n - 30] += np.sum((model.coef_ - theta) ** 2)
    assert (np.abs(np.diff(np.log(found))) < np.log(2)).all()


def test_large_effects_of_few_rows_are_seen():
    """With 18 to 30 rows these have t-values of about 6 to 9 in least squares."""
    for n in range(18, 31, 3):
        for seed in range(2000, 2005):
            X, y, _ = rows(n, 5, seed, size=1.8)
            assert (KalproxRegressor(penalty="l1", alpha="auto").fit(X, y).coef_[:3] > 0.5).all()


def test_a_stream_chooses_what_fit_chooses():
    X, y, _ = rows(90, 7, 5)
    fitted, stream = (KalproxRegressor(penalty="l1", alpha="auto") for _ in range(2))
    fitted.fit(X, y)
    for start, stop in ((0, 1), (1, 14), (14, 60), (60, 90)):
        stream.partial_fit(X[start:stop], y[start:stop])
    assert stream.alpha_ == pytest.approx(fitted.alpha_, rel=1e-9)


def test_models_of_two_parts_are_merged_and_go_on(tmp_path):
    X, y, theta = rows(400, 10, 6)
    whole = KalproxRegressor(penalty="l1", alpha="auto").fit(X, y)
    left, right = (
        KalproxRegressor(penalty="l1", alpha="auto").fit(X[some], y[some]) for some in (slice(150), slice(150, 400))
    )
    left.merge(right).save(tmp_path / "model.kalprox")
    again = KalproxRegressor.load(tmp_path / "model.kalprox")
    assert 0.5 < left.alpha_ / whole.alpha_ < 2 and again.alpha_ == left.alpha_
    more = rows(100, 10, 7)
    for model in (left, again):
        model.partial_fit(*more[:2])
    assert again.alpha_ == left.alpha_
    assert np.sum((left.coef_ - theta) ** 2) < 1.5 * np.sum((whole.coef_ - theta) ** 2)
