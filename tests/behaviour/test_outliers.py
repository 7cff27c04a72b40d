"""Outliers: weights and flags of rows, the scale that model files keep, merging."""

import pickle
import warnings

import numpy as np
import pytest
from scipy import stats

import kalprox as kp
from kalprox import KalproxRegressor

ROBUST = ["huber", "student", "contaminated"]


def rows(n=1500, seed=0, share=0.1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    y = 5 + X @ [2.0, -1.0, 0.5] + 0.7 * rng.normal(size=n)
    bad = rng.random(n) < share
    return X, np.where(bad, y + rng.choice([-50.0, 50.0], n), y), bad


def streamed(X, y, likelihood, length=100):
    model = KalproxRegressor(likelihood=likelihood, penalty="ridge")
    for start in range(0, len(y), length):
        model.partial_fit(X[start : start + length], y[start : start + length])
    return model


@pytest.mark.parametrize("likelihood", ROBUST)
def test_outliers_are_flagged_and_good_rows_are_not(likelihood):
    X, y, bad = rows()
    for model in (KalproxRegressor(likelihood=likelihood, penalty="ridge").fit(X, y), streamed(X, y, likelihood)):
        weights, flags = model.outliers(X, y)
        assert flags[bad].all() and flags[~bad].sum() <= stats.binom.ppf(0.9999, (~bad).sum(), 1e-3)
        assert weights[bad].max() < 0.05 and np.median(weights[~bad]) > 0.8 and weights.max() <= 1
        assert model.n_outliers_ == pytest.approx(flags.sum(), abs=5)
        assert model.outliers(X, y, false_alarms=0.1).flags[~bad].mean() < 0.13
        np.testing.assert_allclose(model.coef_, [2.0, -1.0, 0.5], atol=0.15)


def test_any_likelihood_flags_rows():
    X, y, _ = rows(share=0.0)
    y[7] = 100.0
    weights, flags = KalproxRegressor(penalty=None).fit(X, y).outliers(X, y)
    assert flags[7] and flags.sum() < 5 and (weights == 1).all()
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(0.3 * X[:, 0])).astype(float)
    model = KalproxRegressor(likelihood="poisson").fit(X, counts)
    flags = model.outliers(X, counts).flags
    assert flags.sum() <= stats.binom.ppf(0.9999, len(X), 1e-3)
    assert model.outliers(X[:2], [40.0, 0.0]).flags.tolist() == [True, False]
    with pytest.raises(AttributeError, match="n_outliers_ needs a robust likelihood"):
        model.n_outliers_  # noqa: B018


def test_what_cannot_be_flagged_is_refused():
    X, y, _ = rows(100)
    model = KalproxRegressor(likelihood="huber", penalty="ridge").fit(X, y)
    with pytest.raises(ValueError, match="false_alarms must lie between 0 and 1"):
        model.outliers(X, y, false_alarms=0.0)
    with pytest.raises(ValueError, match=r"y must have the shape of the predictions, \(100,\); got \(99,\)"):
        model.outliers(X, y[:99])
    with pytest.raises(ValueError, match=r"likelihood='huber' needs noise='learn'.*got noise=2.0.*parameter `scale`"):
        KalproxRegressor(likelihood="huber", noise=2.0, penalty="ridge").fit(X, y)
    with pytest.raises(ValueError, match="weight_kind='precision' needs"):
        KalproxRegressor(likelihood="huber", weight_kind="precision", penalty="ridge").fit(X, y)


def test_rows_that_are_skipped_are_not_flagged():
    X, y, _ = rows(200)
    X[3, 0] = np.nan
    model = KalproxRegressor(likelihood="huber", missing="drop", penalty="ridge").fit(X, y)
    weights, flags = model.outliers(X, y)
    assert np.isnan(weights[3]) and not flags[3] and np.isfinite(np.delete(weights, 3)).all()


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [*ROBUST, "negative-binomial"])
def test_model_files_keep_what_was_learned_about_the_likelihood(likelihood, tmp_path):
    X, y, _ = rows()
    if likelihood == "negative-binomial":
        y = np.random.default_rng(0).negative_binomial(2, 2 / (2 + np.exp(1 + 0.3 * X[:, 0]))).astype(float)
    for n in (300, 1500):  # in the warm-up of a robust likelihood, and after it
        model = streamed(X[:n], y[:n], likelihood)
        model.save(tmp_path / "model.kalprox")
        loaded = KalproxRegressor.load(tmp_path / "model.kalprox")
        for one in (model, loaded):
            one.partial_fit(X[:100], y[:100])
        np.testing.assert_array_equal(loaded.coef_, model.coef_)
        np.testing.assert_array_equal(loaded.predict_interval(X[:5]), model.predict_interval(X[:5]))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).coef_std_, model.coef_std_)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ROBUST)
def test_merged_streams_are_near_one_fit(likelihood):
    X, y, _ = rows(3000)
    one, other = streamed(X[:1500], y[:1500], likelihood), streamed(X[1500:], y[1500:], likelihood)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the merge is approximate
        merged = one.merge(other)
    whole = KalproxRegressor(likelihood=likelihood, penalty="ridge").fit(X, y)
    assert np.abs((merged.coef_ - whole.coef_) / whole.coef_std_).max() < 0.1
    np.testing.assert_allclose(merged.coef_std_, whole.coef_std_, rtol=0.05)
    assert merged.n_outliers_ == pytest.approx(whole.n_outliers_, abs=5)


def test_a_given_scale_is_kept():
    X, y, _ = rows()
    given = kp.likelihoods.Huber(scale=0.7)
    model = KalproxRegressor(likelihood=given, penalty="ridge").fit(X, y)
    np.testing.assert_allclose(
        model.coef_, KalproxRegressor(likelihood="huber", penalty="ridge").fit(X, y).coef_, atol=0.02
    )
    narrow = KalproxRegressor(likelihood=kp.likelihoods.Huber(scale=0.07), penalty="ridge").fit(X, y)
    assert (narrow.coef_ != model.coef_).all()


def test_standard_errors_agree_with_the_sandwich():
    X, y, _ = rows(3000)
    for likelihood in ROBUST:
        plain, robust = (
            KalproxRegressor(likelihood=likelihood, coef_cov=c, penalty="ridge").fit(X, y) for c in ("model", "robust")
        )
        np.testing.assert_allclose(plain.coef_std_, robust.coef_std_, rtol=0.08)
