"""Intervals cover what they say: after forgetting, and where rows do not outnumber coefficients."""

import warnings

import numpy as np
import pytest
from scipy.stats import binom

from kalprox import KalproxRegressor
from kalprox.noise import log_evidence
from kalprox.regularizers import Ridge


def dense(rng, d):
    return rng.normal(size=d) / d**0.5


def sparse(rng, d):
    return np.r_[1.0, -1.0, 0.5, np.zeros(d - 3)]


def covered(seeds, n, d, coef, noise, **settings):
    """Return in how many data sets the 95% intervals of one new row and of the first coefficient cover.

    The third number is the sum over data sets of the share of all coefficients that are covered.
    """
    found = np.zeros(3)
    for seed in range(seeds):
        rng = np.random.default_rng([seed, n, d])
        X, b = rng.normal(size=(n + 1, d)), coef(rng, d)
        y = 1 + X @ b + noise * rng.normal(size=n + 1)
        model = KalproxRegressor(diagnose=False, **({"penalty": "ridge"} | settings)).fit(X[:n], y[:n])
        (low,), (high,) = model.predict_interval(X[n:])
        lows, highs = model._belief.coef_interval(0.95)
        inside = (lows < b) & (b < highs)
        found += low < y[n] < high, inside[0], inside.mean()
    return found


def inside(found, seeds):
    """Whether all are between the 0.05% and the 99.95% quantile of the number of 95% intervals that cover."""
    low, high = binom.ppf([0.0005, 0.9995], seeds, 0.95)
    return bool(((low <= found) & (found <= high)).all())


# ---- forgetting ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("forget", "d"), [(0.9, 1), (0.9, 3), (0.95, 5), (0.98, 5)])
def test_after_forgetting_intervals_of_a_stationary_stream_cover(forget, d):
    """With the degrees of freedom of sum w instead of (sum w)^2 / sum w^2 rows, 99.4% were covered at 0.9."""
    found = covered(200, int(5 / (1 - forget)), d, dense, 2.0, penalty=None, forget=forget)
    assert inside(found[:2], 200), found


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("forget", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("penalty", [None, "ridge"])
def test_after_forgetting_intervals_cover_nearly_everywhere(forget, d, penalty):
    """Where forgetting leaves fewer than eight effective rows for each coefficient, they may be too wide."""
    found = covered(500, int(6 / (1 - forget)), d, dense, 2.0, penalty=penalty, forget=forget)
    few = (1 + forget) / (1 - forget) < 8 * (1 + d)
    assert inside(np.minimum(found[:2], 0.95 * 500) if few else found[:2], 500), found


def test_forgetting_does_not_make_sure_of_what_no_row_has_said():
    """A penalty is not faded: the variance of a column that was always zero remains that of the prior."""
    rng = np.random.default_rng(0)
    X = np.c_[rng.normal(size=300), np.zeros(300)]
    model = KalproxRegressor(alpha=4.0, noise=1.0, forget=0.9).fit(X, X[:, 0])
    assert model.coef_std_[1] == pytest.approx(0.5, rel=1e-12)


def test_after_forgetting_noise_and_covariance_are_those_of_the_effective_rows():
    rng = np.random.default_rng(1)
    X, rho = rng.normal(size=(80, 2)), 0.9
    y = X @ [1.0, 2.0] + rng.normal(size=80)
    f = rho ** np.arange(80)[::-1]
    c = (f**2).sum() / f.sum()
    D = np.c_[np.ones(80), X]
    A = D.T @ (f[:, None] * D)
    rss = f @ (y - D @ np.linalg.solve(A, D.T @ (f * y))) ** 2
    model = KalproxRegressor(penalty=None, forget=rho).fit(X, y)
    assert model.noise_dof_ == pytest.approx(f.sum() / c - 3, rel=1e-10)
    assert model.noise_var_ == pytest.approx(rss / (f.sum() - 3 * c), rel=1e-10)
    np.testing.assert_allclose(
        model.coef_std_, np.sqrt(c * model.noise_var_ * np.diag(np.linalg.inv(A))[1:]), rtol=1e-9
    )
    x = np.array([[0.5, -1.0]])
    leverage = c * np.r_[1, x[0]] @ np.linalg.solve(A, np.r_[1, x[0]])
    assert model.predict(x, return_std=True)[1][0] == pytest.approx(
        np.sqrt(model.noise_var_ * (1 + leverage)), rel=1e-9
    )
    # At the best alpha the evidence has the same noise variance: S / rows = rss / (rows - edf), of the effective rows.
    auto = KalproxRegressor(alpha="auto", forget=rho).fit(X, y)
    S = float(auto._belief.posterior.rss) + auto.alpha_ * auto.coef_ @ auto.coef_
    assert S / c / (f.sum() / c - 1) == pytest.approx(auto.noise_var_, rel=1e-5)


def test_the_evidence_of_faded_rows_is_that_of_the_objective_divided():
    R, z, alpha, c = np.array([[3.0, 1.0], [0.0, 2.0]]), np.array([1.0, -2.0]), 0.7, 0.6
    faded = log_evidence(R, z, 1.5, 12.0, Ridge(alpha), 2.0, c)
    divided = log_evidence(R / c**0.5, z / c**0.5, 1.5 / c, 12.0 / c, Ridge(alpha / c), 2.0)
    assert faded == pytest.approx(divided, rel=1e-12)


# ---- few rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d", "coef"), [(3, 5, dense), (10, 20, sparse)])
def test_ridge_covers_with_fewer_rows_than_coefficients(n, d, coef):
    """Half of the noise variances were NaN."""
    found = covered(40, n, d, coef, 0.5, alpha="auto")
    assert inside(found[:1], 40), found
    assert found[2] / 40 > 0.85, found


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.5, 1.5])
@pytest.mark.parametrize("coef", [dense, sparse])
@pytest.mark.parametrize(("n", "d"), [(3, 5), (5, 5), (7, 5), (15, 5), (3, 20), (10, 20), (20, 20), (30, 20), (60, 20)])
def test_ridge_covers_with_few_rows(n, d, coef, noise):
    """Coefficients are covered on average: the few large ones of a sparse truth are shrunk like the others."""
    found = covered(200, n, d, coef, noise, alpha="auto")
    assert inside(found[:1], 200), found
    assert found[2] / 200 > 0.85, found  # given an alpha that is an estimate


def test_with_few_rows_the_noise_is_that_of_the_evidence():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(8, 12))
    Y = np.c_[X @ rng.normal(size=12), X[:, 0]] + 0.5 * rng.normal(size=(8, 2))
    model = KalproxRegressor(alpha="auto").fit(X, Y)
    S = ((Y - model.predict(X)) ** 2).sum(axis=0) + model.alpha_ * (model.coef_**2).sum(axis=1)
    np.testing.assert_allclose(model.noise_var_, S / 7, rtol=1e-9)
    np.testing.assert_array_equal(model.noise_dof_, 7)
    more = np.r_[X, rng.normal(size=(30, 12))]
    many = KalproxRegressor(alpha="auto").fit(more, more[:, 0] + rng.normal(size=38))
    assert many.noise_dof_ == pytest.approx(38 - many._belief.posterior.edf, rel=1e-12)  # as with any other penalty


def test_without_a_sign_of_signal_the_coefficients_are_not_surely_zero():
    """The evidence of this noise is largest at alpha = infinity, where the std of every coefficient is zero."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    model = KalproxRegressor(alpha="auto").fit(X, y)
    path = model.path()
    assert path.score.argmax() == 0 and path.alphas[0] > 1e3 * model.alpha_
    ols = KalproxRegressor(penalty=None).fit(X, y)
    assert (model.coef_std_ > 0.1 * ols.coef_std_).all()


@pytest.mark.parametrize(
    ("settings", "says"), [({"alpha": 1.0}, "only if alpha=1 is right"), ({"penalty": None}, "cannot be learned")]
)
def test_where_few_rows_cannot_tell_the_noise_it_says_so(settings, says):
    rng = np.random.default_rng(6)
    X, y = rng.normal(size=(5, 8)), rng.normal(size=5)
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X, y)
    assert says in model._belief.noise.reason
    with pytest.warns(RuntimeWarning, match=says):
        model.predict_interval(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KalproxRegressor(noise=1.0, **({"penalty": "ridge"} | settings)).fit(X, y).predict_interval(X)
        KalproxRegressor(alpha="auto").fit(X, y).predict_interval(X)
