"""alpha="auto" of several targets, and what is said of the intervals of shrunken coefficients."""

import warnings

import numpy as np
import pytest
import scipy.stats

from kalprox import KalproxRegressor, penalties


def three_targets(n=120, d=8, seed=31):
    """Targets that want alphas from far below 1 to far above it."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ np.diag(np.linspace(0.5, 2, d))
    Y = np.column_stack([40 * X @ rng.normal(size=d), X @ rng.normal(size=d), 0.02 * X @ rng.normal(size=d)])
    return X, Y + rng.normal(size=(n, 3)) * [1.0, 1.0, 2.0]


SETTINGS = [
    {},
    {"standardize": True},
    {"fit_intercept": False},
    {"forget": 0.99},
    {"noise": 1.0},
    {"penalty": "l1"},
    {"penalty": penalties.ElasticNet(0.8)},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: " ".join(one) or "ridge")
def test_each_target_has_the_alpha_that_it_would_have_alone(settings):
    X, Y = three_targets()
    both = KalproxRegressor(**({"penalty": "ridge"} | {"alpha": "auto", **settings})).fit(X, Y)
    assert both.alpha_.shape == (3,) and both.alpha_[2] > 30 * both.alpha_[0]
    mean, std = both.predict(X[:4], return_std=True)
    for j in range(3):
        alone = KalproxRegressor(**({"penalty": "ridge"} | {"alpha": "auto", **settings})).fit(X, Y[:, j])
        np.testing.assert_allclose(both.alpha_[j], alone.alpha_, rtol=1e-6)
        np.testing.assert_allclose(both.coef_[j], alone.coef_, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(both.coef_std_[j], alone.coef_std_, rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(both.intercept_[j], alone.intercept_, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(both.noise_var_[j], alone.noise_var_, rtol=1e-6)
        np.testing.assert_allclose([mean[:, j], std[:, j]], alone.predict(X[:4], return_std=True), rtol=1e-6)
        if "penalty" not in settings:
            np.testing.assert_allclose(both.log_evidence_[j], alone.log_evidence_, rtol=1e-9)


def test_a_stream_of_targets_is_read_saved_and_goes_on(tmp_path):
    X, Y = three_targets(200)
    model, alone = KalproxRegressor(alpha="auto"), [KalproxRegressor(alpha="auto") for _ in range(3)]
    for start in range(0, 200, 50):
        model.partial_fit(X[start : start + 50], Y[start : start + 50])
        for j, one in enumerate(alone):
            one.partial_fit(X[start : start + 50], Y[start : start + 50, j])
        model.save(tmp_path / "model.kalprox")
        model = KalproxRegressor.load(tmp_path / "model.kalprox")
    np.testing.assert_allclose(model.alpha_, [one.alpha_ for one in alone], rtol=1e-6)
    np.testing.assert_allclose(model.predict(X[:1]).ravel(), [one.predict(X[:1])[0] for one in alone], rtol=1e-6)
    mean, std = model.prequential(X[:30], Y[:30])
    expected = [one.prequential(X[:30], Y[:30, j]) for j, one in enumerate(alone)]  # which hold alpha for a few rows
    size = np.column_stack([std for _, std in expected])
    np.testing.assert_allclose(mean / size, np.column_stack([mean for mean, _ in expected]) / size, rtol=0, atol=0.05)
    np.testing.assert_allclose(std, size, rtol=1e-2)
    text = str(model.summary())
    assert all(f"{alpha:.3g}"[:3] in text for alpha in model.alpha_)
    assert model.sample(5, random_state=0)[0].shape == (5, 3, 8)
    assert model.path([1.0, 10.0]).coef.shape == (2, 3, 8)


def one_large(n, d, seed):
    """Coefficients of about 0.1 of which the last is 1."""
    rng = np.random.default_rng([seed, n])
    theta = np.append(0.1 * rng.normal(size=d - 1), 1.0)
    X = rng.normal(size=(n, d))
    return X, X @ theta + rng.normal(size=n), theta


@pytest.mark.parametrize("n", [40, 90])
def test_a_large_coefficient_that_is_shrunk_is_said_to_cover_less(n):
    """Either the interval covers, or a warning, the summary and the headline say that it may not."""
    missed = silent = 0
    for seed in range(40):
        X, y, theta = one_large(n, 12, seed)
        model = KalproxRegressor(alpha="auto", diagnose=False).fit(X, y)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            low, high = model.coef_interval(0.95)
        misses = not low[-1] <= theta[-1] <= high[-1]
        missed, silent = missed + misses, silent + (misses and not said)
        if said:
            assert "largest coefficient" in str(said[0].message) and "penalty=None" in str(said[0].message)
            assert "on average over the coefficients" in " ".join(str(model.summary()).split())
    assert missed > scipy.stats.binom(40, 0.05).ppf(0.99)  # so that there is something to say
    assert silent <= scipy.stats.binom(40, 0.05).ppf(0.99)


def test_nothing_is_said_where_the_penalty_moves_nothing():
    X, y, _ = one_large(5000, 6, 1)
    model = KalproxRegressor(alpha="auto").fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.coef_interval()
    assert "on average over the coefficients" not in " ".join(str(model.summary()).split())
