"""How sure a model is: standard errors, intervals, samples, and the score of its predictions."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats
import statsmodels.api as sm
from regressor_data import linear_data, link_data
from scipy.stats import binom

from kalprox import Calibration, KalproxRegressor


def sums(kind):
    """The fields of a calibration that are sums over rows."""
    return [f for f in dataclasses.fields(kind) if not f.metadata.get("static")]


def test_directions_without_data_have_infinite_std():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3))
    X = np.column_stack([X, X[:, 2] * 1e6])
    y = X[:, 0] - X[:, 2] + rng.normal(size=50)
    model = KalproxRegressor(penalty=None).fit(X, y)
    np.testing.assert_array_equal(np.isinf(model.coef_std_), [False, False, True, True])
    small = sm.OLS(y, sm.add_constant(X[:, :3])).fit()
    np.testing.assert_allclose(model.coef_std_[:2], small.bse[1:3], rtol=1e-9)
    np.testing.assert_allclose(model.predict(X), small.fittedvalues, rtol=1e-9, atol=1e-9)
    _, std = model.predict(np.vstack([X[:1], [[0.0, 0.0, 1.0, 0.0]]]), return_std=True)
    expected = small.get_prediction(sm.add_constant(X[:, :3])[:1]).summary_frame()
    reach = scipy.stats.t.ppf(0.975, 46) * std[0]
    assert expected["obs_ci_upper"][0] - expected["mean"][0] == pytest.approx(reach, rel=1e-9)
    assert np.isinf(std[1])
    with pytest.raises(ValueError, match="sample needs a posterior with finite variances"):
        model.sample(1)


def test_behind_a_link_too():
    X, y = link_data("tanh")
    twice = np.column_stack([X, X[:, 2]])
    model = KalproxRegressor(link="tanh", penalty=None).fit(twice, y)
    plain = KalproxRegressor(link="tanh", penalty=None).fit(X, y)
    np.testing.assert_array_equal(np.isinf(model.coef_std_), [False, False, True, True])
    np.testing.assert_allclose(model.coef_std_[:2], plain.coef_std_[:2], rtol=1e-6)
    np.testing.assert_allclose(model.predict(twice), plain.predict(X), rtol=1e-6)
    with pytest.raises(ValueError, match="sample needs a posterior with finite variances"):
        model.sample(1)


def test_no_degrees_of_freedom_left_is_nan():
    X, y = linear_data(n=3, d=4)
    model = KalproxRegressor(penalty=None).fit(X, y)
    assert np.isnan(model.noise_var_)
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-10)


def test_ridge_covariance_is_the_explicit_inverse():
    X, y = linear_data()
    model = KalproxRegressor(alpha=4.0).fit(X, y)
    Z = X - X.mean(0)
    P = np.linalg.inv(Z.T @ Z + 4 * np.eye(4))
    edf = np.trace(P @ Z.T @ Z) + 1
    noise = ((y - model.predict(X)) ** 2).sum() / (len(y) - edf)
    assert model.noise_var_ == pytest.approx(noise, rel=1e-10)
    np.testing.assert_allclose(model.covariance_, noise * P, rtol=1e-9, atol=1e-14)
    new = np.array([[1.0, 2.0, 3.0, 4.0]])
    variance = noise * (1 + 1 / len(y) + (new - X.mean(0)) @ P @ (new - X.mean(0)).T)
    np.testing.assert_allclose(model.predict(new, return_std=True)[1], variance[0] ** 0.5, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["learn", 0.25])
def test_intervals_cover_what_they_say(noise):
    rng = np.random.default_rng(5)
    trials, hits = 2000, 0
    for _ in range(4):  # each with 500 targets, which share X and nothing else
        X = rng.normal(size=(13, 4))
        Y = 1 + X @ rng.normal(size=(4, 500)) + 0.5 * rng.normal(size=(13, 500))
        low, high = KalproxRegressor(penalty=None, noise=noise).fit(X[:12], Y[:12]).predict_interval(X[12:], 0.9)
        hits += ((low <= Y[12:]) & (Y[12:] <= high)).sum()
    few, many = binom.ppf([0.0005, 0.9995], trials, 0.9)  # independent trials: the law is exact
    assert few <= hits <= many


@pytest.mark.parametrize("link", ["identity", "exp"])
def test_samples_have_the_posterior_s_moments(link):
    X, y = linear_data(n=40)
    if link == "exp":
        y = np.exp(0.2 * y)
    model = KalproxRegressor(link=link, alpha=1.0, noise=0.25, penalty="ridge").fit(X, y)
    n = 20_000
    coefs, intercepts = model.sample(n, random_state=0)
    error = 5 * model.coef_std_ / n**0.5  # five standard errors
    assert (np.abs(coefs.mean(0) - model.coef_) < error).all()
    assert abs(intercepts.mean() - model.intercept_) < 5 * model.intercept_std_ / n**0.5
    spread = np.r_[coefs.std(0) / model.coef_std_, intercepts.std() / model.intercept_std_]
    assert (np.abs(spread - 1) < 5 / (2 * n) ** 0.5).all()
    np.testing.assert_array_equal(coefs, model.sample(n, random_state=0)[0])


def test_samples_are_student_s_where_the_noise_is_learned():
    X, y = linear_data(n=12)
    model = KalproxRegressor(penalty=None).fit(X, y)
    u = (model.sample(20_000, 0)[0][:, 0] - model.coef_[0]) / model.coef_std_[0]
    assert scipy.stats.kstest(u, "t", args=(7,)).pvalue > 1e-3
    assert scipy.stats.kstest(u, "norm").pvalue < 1e-3


def test_diagnostics_judge_each_row_before_it_is_learned():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    y = X @ [1.0, 2.0, 3.0] + 0.5 * rng.normal(size=4000)
    honest, proud, silent = (
        KalproxRegressor(penalty="ridge"),
        KalproxRegressor(noise=0.0625, penalty="ridge"),
        KalproxRegressor(diagnose=False, penalty="ridge"),
    )
    for i in range(0, 4000, 200):
        for model in (honest, proud, silent):
            model.partial_fit(X[i : i + 200], y[i : i + 200])
    assert honest.diagnostics_.rows == 3998 and silent.diagnostics_.rows == 0
    assert honest.diagnostics_.undetermined == 2  # before them there was no line, then no noise level
    assert honest.diagnostics_.verdict().word == "calibrated"
    assert proud.diagnostics_.verdict().word == "over-confident"


def test_every_row_of_a_long_stream_is_judged(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80_000, 3))
    y = X @ [1.0, 2.0, 3.0] + 0.5 * rng.normal(size=len(X))
    straight, resumed = KalproxRegressor(penalty="ridge"), KalproxRegressor(penalty="ridge")
    for i in range(0, len(X), 4000):
        for model in (straight, resumed):
            model.partial_fit(X[i : i + 4000], y[i : i + 4000])
        resumed.save(tmp_path / "model")
        resumed = KalproxRegressor.load(tmp_path / "model")
    assert straight.diagnostics_.rows == 80_000 - 2
    assert straight.diagnostics_.verdict().word == "calibrated"
    for f in sums(Calibration):
        np.testing.assert_array_equal(getattr(resumed.diagnostics_, f.name), getattr(straight.diagnostics_, f.name))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"alpha": 5.0}, {"penalty": None}, {"noise": 2.0}, {"fit_intercept": False}])
def test_each_row_is_judged_by_what_was_known_before_it(settings):
    X, y = linear_data(n=120, d=4)
    model, expected = KalproxRegressor(**({"penalty": "ridge"} | settings)), Calibration()
    for i, size in zip(itertools.accumulate([0, *[1, 3, 1, 16, 2] * 5]), [1, 3, 1, 16, 2] * 5, strict=False):
        for j in range(i, i + size):
            mean, std, dof = np.full(1, np.nan), np.full(1, np.inf), np.inf
            if j:
                before = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X[:j], y[:j])
                mean, std = before.predict(X[j : j + 1], return_std=True)
                dof = before.noise_dof_
            expected = expected.update(mean, std, y[j : j + 1], dof, X=X[j : j + 1])
        model.partial_fit(X[i : i + size], y[i : i + size])
    for f in sums(Calibration):  # also the learned noise, moved row by row, is the information's
        np.testing.assert_allclose(getattr(model.diagnostics_, f.name), getattr(expected, f.name), rtol=1e-9)
