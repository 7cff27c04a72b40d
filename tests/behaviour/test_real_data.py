"""On real data the stream gives the numbers of the field's tools: coefficients, standard errors, zeros, intervals.

Flights: all 327,346 that left New York in 2013 and have an arrival delay, in uneven batches. Trump's approval by poll
(1,001 days) and chicks by age and diet (578 weights): row by row.
"""

from functools import cache

import data
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import statsmodels.api as sm
from sklearn.linear_model import BayesianRidge, ElasticNet, Lasso, LinearRegression, Ridge
from sklearn.preprocessing import StandardScaler

from kalprox import KalproxRegressor, penalties

NUMBERS = ["dep_delay", "distance", "air_time", "hour", "month"]
NAMES = ["origin", "carrier"]


def in_batches(model, X, y, cuts):
    for start, stop in zip([0, *cuts], [*cuts, len(y)], strict=True):
        model.partial_fit(X[start:stop], y[start:stop])
    return model


def row_by_row(model, X, y):
    return in_batches(model, X, y, range(1, len(y)))


def dummies(columns, drop_first):
    return pd.get_dummies(columns.astype(str), drop_first=drop_first).to_numpy(float)


# ---- flights ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flights():
    """The rows' numbers with every level of origin and carrier, with all but the first of each, and the delay."""
    rows = data.flights().dropna(subset=[*NUMBERS, "arr_delay"])
    assert len(rows) == 327_346
    numbers = rows[NUMBERS].to_numpy(float)
    every, most = (np.hstack([numbers, dummies(rows[NAMES], drop_first)]) for drop_first in (False, True))
    return every, most, rows["arr_delay"].to_numpy(float)


def stream_flights(model, X, y):
    """Forty batches of 1 to some 40,000 rows."""
    rng = np.random.default_rng(0)
    return in_batches(model, X, y, [1, *np.sort(rng.choice(np.arange(2, len(y)), 38, replace=False))])


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [100.0, 1e5])
def test_flights_are_scikit_learn_s_ridge(flights, alpha):
    X, _, y = flights
    ours = stream_flights(KalproxRegressor(alpha=alpha), X, y)
    # svd is more exact than cholesky: 3e-12 and 7e-11 at alpha 100, from the normal equations in long double solved in
    # fractions; ours is 1e-10 away. Dummies add up to 1, so only alpha holds that direction: error goes as 1/alpha.
    theirs = Ridge(alpha=alpha, solver="svd").fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-9)
    assert ours.n_rows_seen_ == len(y)


@pytest.mark.slow
def test_flights_are_ordinary_least_squares_with_its_standard_errors(flights):
    _, X, y = flights
    ours = stream_flights(KalproxRegressor(penalty=None), X, y)
    theirs = LinearRegression().fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-9)
    theirs = sm.OLS(y, sm.add_constant(X)).fit()
    np.testing.assert_allclose(np.r_[ours.intercept_, ours.coef_], theirs.params, rtol=1e-9)
    np.testing.assert_allclose(np.r_[ours.intercept_std_, ours.coef_std_], theirs.bse, rtol=1e-9)
    assert ours.noise_var_ == pytest.approx(theirs.scale, rel=1e-9) and ours.noise_dof_ == theirs.df_resid
    some = slice(None, None, 1000)
    expected = theirs.get_prediction(sm.add_constant(X)[some]).summary_frame(alpha=0.05)
    low, high = ours.predict_interval(X[some])
    np.testing.assert_allclose(low, expected["obs_ci_lower"], rtol=1e-9)
    np.testing.assert_allclose(high, expected["obs_ci_upper"], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("standardize", "alpha", "zeros"), [(False, 1.0, 20), (True, 0.2, 5)])
def test_flights_are_scikit_learn_s_lasso(flights, standardize, alpha, zeros):
    X, _, y = flights
    n = len(y)
    ours = stream_flights(KalproxRegressor(penalty="l1", alpha=n * alpha, standardize=standardize), X, y)
    scale = X.std(axis=0) if standardize else np.ones(X.shape[1])
    Z = (X - X.mean(axis=0)) / scale
    coef = ours.coef_ * scale

    force = Z.T @ (y - y.mean() - Z @ coef)  # the optimum, with no peer: alpha sign(coef), or less at a zero
    kept = ours.coef_ != 0
    np.testing.assert_allclose(force[kept], n * alpha * np.sign(coef[kept]), rtol=1e-8)
    assert (np.abs(force[~kept]) < n * alpha).all()

    # Theirs stops at a gap of tol var(y) = 2e-11. That bounds the objective, and the distance by its root only: 7e-5.
    # But coordinate descent comes in by 2% a sweep, and at tol 1e-10, 1e-12 and 1e-14 the distance was 0.6 of the gap.
    theirs = Lasso(alpha=alpha, tol=1e-14, max_iter=100_000, precompute=True).fit(Z, y)  # on Z'Z: 0.05 s, not 18
    np.testing.assert_allclose(coef, theirs.coef_, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(kept, theirs.coef_ != 0)
    assert (~kept).sum() == zeros
    assert ours.intercept_ == pytest.approx(y.mean() - X.mean(axis=0) @ (theirs.coef_ / scale), rel=1e-9)


# ---- small tables, row by row ----------------------------------------------------------------------


@cache
def table(name):
    from river import datasets

    rows, y = zip(*getattr(datasets, name)(), strict=True)
    return pd.DataFrame(rows), np.array(y, float)


def approval():
    """The five polls and the day, which makes the condition number 3e9."""
    X, y = table("TrumpApproval")
    assert X.shape == (1001, 6)
    return X.to_numpy(float), y


def chicks(by):
    X, y = table("ChickWeights")
    assert len(X) == 578
    return np.column_stack([X["time"], dummies(X[[by]], drop_first=True)]).astype(float), y


TABLES = {"approval": approval, "diets": lambda: chicks("diet"), "chicks": lambda: chicks("chick")}


@pytest.mark.parametrize("name", TABLES)
def test_row_by_row_is_ordinary_least_squares_with_its_standard_errors(name):
    X, y = TABLES[name]()
    ours, theirs = row_by_row(KalproxRegressor(penalty=None), X, y), sm.OLS(y, sm.add_constant(X)).fit()
    np.testing.assert_allclose(np.r_[ours.intercept_, ours.coef_], theirs.params, rtol=1e-9)
    np.testing.assert_allclose(np.r_[ours.intercept_std_, ours.coef_std_], theirs.bse, rtol=1e-9)
    assert ours.noise_var_ == pytest.approx(theirs.scale, rel=1e-9)
    assert ours.noise_dof_ == pytest.approx(theirs.df_resid, rel=1e-12)
    expected = theirs.get_prediction(sm.add_constant(X)).summary_frame(alpha=0.05)
    low, high = ours.predict_interval(X)
    np.testing.assert_allclose(low, expected["obs_ci_lower"], rtol=1e-9)
    np.testing.assert_allclose(high, expected["obs_ci_upper"], rtol=1e-9)


@pytest.mark.parametrize("name", TABLES)
def test_row_by_row_is_bayesian_ridge_given_its_alpha_and_lambda(name):
    X, y = TABLES[name]()
    theirs = BayesianRidge(tol=1e-12, max_iter=2000).fit(X, y)
    noise = 1 / theirs.alpha_
    ours = row_by_row(KalproxRegressor(alpha=theirs.lambda_ / theirs.alpha_, noise=noise), X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)
    np.testing.assert_allclose(ours.covariance_, theirs.sigma_, rtol=1e-9, atol=1e-9 * np.abs(theirs.sigma_).max())
    _, std = theirs.predict(X, return_std=True)  # leaves the intercept's uncertainty out: noise / rows
    np.testing.assert_allclose(ours.predict(X, return_std=True)[1], np.sqrt(std**2 + noise / len(y)), rtol=1e-9)


@pytest.mark.parametrize(("name", "zeros"), [("approval", 1), ("diets", 2), ("chicks", 48)])
def test_row_by_row_is_elastic_net(name, zeros):
    X, y = TABLES[name]()
    X = StandardScaler().fit_transform(X)
    n, alpha, ratio = len(y), 0.2 * y.std(), 0.7
    ours = row_by_row(KalproxRegressor(penalty=penalties.ElasticNet(ratio), alpha=n * alpha), X, y)
    theirs = ElasticNet(alpha=alpha, l1_ratio=ratio, tol=1e-14, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(
        ours.coef_, theirs.coef_, rtol=1e-9, atol=1e-10
    )  # the ridge part: few sweeps, to rounding
    np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    assert (ours.coef_ == 0).sum() == zeros
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-10)


# ---- growth curves ---------------------------------------------------------------------------------


def logistic(t, a, b, c):
    return a / (1 + np.exp(-(t - b) / c))


def logistic_slopes(t, a, b, c):
    s = logistic(t, 1.0, b, c)
    return np.column_stack([s, -a * s * (1 - s) / c, -a * s * (1 - s) * (t - b) / c**2])


def exponential(t, a, b):
    return np.exp(a + b * t)


def exponential_slopes(t, a, b):
    return exponential(t, a, b)[:, None] * np.column_stack([np.ones_like(t), t])


def least_squares(curve, slopes, t, y, start):
    """curve_fit's answer, and the same after Gauss-Newton steps to rounding: by itself it stops 2e-8 away."""
    tight = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15}
    best, cov = scipy.optimize.curve_fit(curve, t, y, start, jac=slopes, absolute_sigma=False, **tight)
    theta = best
    for _ in range(50):
        theta = theta + np.linalg.lstsq(slopes(t, *theta), y - curve(t, *theta))[0]
    R = np.linalg.qr(slopes(t, *theta), mode="r")
    noise = ((y - curve(t, *theta)) ** 2).sum() / (len(y) - len(theta))
    return best, cov, theta, noise * np.linalg.inv(R) @ np.linalg.inv(R).T


@pytest.mark.parametrize("diet", [1, 2, 3, 4])
def test_growth_curves_are_curve_fit_s(diet):
    rows, y = table("ChickWeights")
    t, y = rows["time"].to_numpy(float)[rows["diet"] == diet], y[rows["diet"] == diet]
    start = [300.0, 15.0, 6.0]

    def weight(theta, x):
        return theta[0] / (1 + jnp.exp(-(x[0] - theta[1]) / theta[2]))

    ours = KalproxRegressor(function=weight, penalty=None, start=start).fit(t[:, None], y)
    best, cov, theta, exact_cov = least_squares(logistic, logistic_slopes, t, y, start)
    assert ours.converged_
    np.testing.assert_allclose(ours.coef_, best, rtol=1e-6)
    np.testing.assert_allclose(ours.covariance_, cov, rtol=1e-5)
    np.testing.assert_allclose(ours.coef_, theta, rtol=1e-10)
    np.testing.assert_allclose(ours.covariance_, exact_cov, rtol=1e-9)
    assert ours.noise_dof_ == pytest.approx(len(y) - 3, rel=1e-12)

    ours = KalproxRegressor(link="exp", penalty=None).fit(t[:, None], y)
    best, cov, theta, exact_cov = least_squares(exponential, exponential_slopes, t, y, [4.0, 0.1])
    for (values, expected), rtol in (((best, cov), 1e-6), ((theta, exact_cov), 1e-9)):
        np.testing.assert_allclose(np.r_[ours.intercept_, ours.coef_], values, rtol=rtol)
        np.testing.assert_allclose(np.r_[ours.intercept_std_, ours.coef_std_], np.diag(expected) ** 0.5, rtol=rtol)


# ---- predicted before it is learned ----------------------------------------------------------------


def count_then_learn(X, y):
    """By hand, row by row: rows with a finite 95% interval, those without, those inside; and the squared errors."""
    model, counts, squares = KalproxRegressor(penalty=None), np.array([0, 1, 0]), 0.0
    model.partial_fit(X[:1], y[:1])
    for i in range(1, len(y)):
        row = slice(i, i + 1)
        low, high = model.predict_interval(X[row], level=0.95)
        finite = np.isfinite(low).all() and np.isfinite(high).all()
        counts += [finite, not finite, finite and (low <= y[row]).all() and (y[row] <= high).all()]
        squares += float((y[row] - model.predict(X[row]))[0] ** 2) if finite else 0.0
        model.partial_fit(X[row], y[row])
    return counts, squares


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("approval", [17, *[20, 50, 34] * 9, 48]),
        ("chicks", [17] * 34),
        pytest.param("approval", [20, *[1, 3, 16, 7, 200] * 4, 73], marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:The noise level cannot be learned")  # after the first rows
def test_coverage_of_a_table_is_what_a_count_says(name, sizes):
    X, y = TABLES[name]()
    (judged, undetermined, covered), squares = count_then_learn(X, y)
    score = in_batches(KalproxRegressor(penalty=None), X, y, np.cumsum(sizes[:-1])).diagnostics_
    assert (score.rows, score.undetermined, score.covered[-1]) == (judged, undetermined, covered)
    assert score.coverage[-1] == pytest.approx(covered / judged, rel=1e-12)
    assert score.rmse == pytest.approx((squares / judged) ** 0.5, rel=1e-9)
    if name == "chicks":  # each chick's first row has no finite interval
        assert undetermined >= len(np.unique(X, axis=1).T) - 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The noise level cannot be learned")  # after the first rows
def test_coverage_of_the_flights_is_what_a_count_says(flights):
    _, X, y = flights
    (judged, undetermined, covered), squares = count_then_learn(X[:1000], y[:1000])
    score = in_batches(KalproxRegressor(penalty=None), X[:1000], y[:1000], [400, 800]).diagnostics_
    assert (score.rows, score.undetermined, score.covered[-1]) == (judged, undetermined, covered)
    assert score.rmse == pytest.approx((squares / judged) ** 0.5, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("size", [400, 5000, 16_000])
def test_the_score_of_flights_in_batches_is_nearly_that_of_single_rows(flights, size):
    """After 2,048 rows a scorer predicts those that come until it is made afresh, which changes next to nothing."""
    _, X, y = flights
    X, y = X[:16_000], y[:16_000]
    exact = KalproxRegressor(penalty=None)
    exact.prequential(X, y)
    expected = exact.diagnostics_
    score = in_batches(KalproxRegressor(penalty=None), X, y, range(size, len(y), size)).diagnostics_
    assert (score.rows, score.undetermined) == (expected.rows, expected.undetermined)
    assert score.rmse == pytest.approx(expected.rmse, rel=1e-3)
    np.testing.assert_allclose(score.coverage, expected.coverage, atol=1e-3)
