"""What weights mean: how often a row counts, or how precise it is."""

import numpy as np
import pytest
import scipy.optimize
import statsmodels.api as sm
from regressor_data import linear_data

from kalprox import KalproxRegressor


def weighted_data(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X, sigma = rng.normal(size=(n, 3)) + 2, rng.uniform(0.2, 3, n)
    return X, X @ [1.0, -2.0, 0.5] + 3 + sigma * rng.normal(size=n), sigma


@pytest.mark.parametrize("factor", [1.0, 1e-6])
def test_precision_weights_are_weighted_least_squares(factor):
    """Coefficients, standard errors, noise and intervals of statsmodels' WLS and of SciPy's curve_fit."""
    X, y, sigma = weighted_data()
    w = factor / sigma**2
    whole = KalproxRegressor(penalty=None, weight_kind="precision").fit(X, y, w)
    stream = KalproxRegressor(penalty=None, weight_kind="precision")
    parts = []
    for i in range(0, 60, 13):
        stream.partial_fit(X[i : i + 13], y[i : i + 13], w[i : i + 13])
        parts.append(
            KalproxRegressor(penalty=None, weight_kind="precision").fit(X[i : i + 13], y[i : i + 13], w[i : i + 13])
        )
    for part in parts[1:]:
        parts[0].merge(part)
    engine = KalproxRegressor(penalty=None, weight_kind="precision", engine="local").fit(X, y, w)
    wls = sm.WLS(y, sm.add_constant(X), weights=w).fit()
    mean, cov = scipy.optimize.curve_fit(lambda X, a, *b: a + X @ np.array(b), X, y, np.ones(4), sigma=w**-0.5)
    new, relative = X[:5] + 1, np.linspace(0.5, 2, 5)
    expected = wls.get_prediction(sm.add_constant(new), weights=relative**-2).summary_frame(alpha=0.1)
    for model in (whole, stream, parts[0], engine):
        np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], wls.params, rtol=1e-9)
        np.testing.assert_allclose(np.r_[model.intercept_std_, model.coef_std_], wls.bse, rtol=1e-9)
        np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], mean, rtol=1e-6)
        np.testing.assert_allclose(np.r_[model.intercept_std_, model.coef_std_], np.sqrt(np.diag(cov)), rtol=1e-5)
        assert model.noise_var_ == pytest.approx(wls.scale, rel=1e-10)
        assert model.noise_dof_ == pytest.approx(wls.df_resid, rel=1e-12)
        low, high = model.predict_interval(new, 0.9, sigma=relative)
        np.testing.assert_allclose(low, expected["obs_ci_lower"], rtol=1e-9)
        np.testing.assert_allclose(high, expected["obs_ci_upper"], rtol=1e-9)
        low, high = model.predict_interval(new, 0.9, of="mean")
        np.testing.assert_allclose(low, expected["mean_ci_lower"], rtol=1e-9)
        np.testing.assert_allclose(high, expected["mean_ci_upper"], rtol=1e-9)


@pytest.mark.filterwarnings("ignore:The warm-up of the stream has not ended")
def test_precision_weights_of_a_nonlinear_model_are_those_of_curve_fit():
    rng = np.random.default_rng(1)
    x, sigma = rng.normal(size=(80, 1)), rng.uniform(0.1, 1, 80)
    y = np.tanh(0.5 + 0.8 * x[:, 0]) + 0.3 * sigma * rng.normal(size=80)
    mean, cov = scipy.optimize.curve_fit(lambda x, a, b: np.tanh(a + b * x[:, 0]), x, y, sigma=sigma, gtol=1e-15)
    model = KalproxRegressor(link="tanh", penalty=None, weight_kind="precision").fit(x, y, sigma**-2)
    np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], mean, rtol=1e-6)
    np.testing.assert_allclose([model.intercept_std_, model.coef_std_[0]], np.sqrt(np.diag(cov)), rtol=1e-5)
    assert model.noise_dof_ == pytest.approx(78)
    streamed = KalproxRegressor(link="tanh", penalty=None, weight_kind="precision").partial_fit(x, y, sigma**-2)
    np.testing.assert_allclose(streamed.coef_std_, model.coef_std_, rtol=0.02)


def test_a_row_of_precision_zero_is_no_row_and_ones_are_repetitions_of_one():
    X, y, sigma = weighted_data()
    w = np.where(np.arange(60) % 4, sigma**-2, 0)
    for settings in ({"alpha": 2.0}, {"alpha": "auto"}, {"penalty": "l1"}, {"forget": 0.9}, {"standardize": True}):
        model, fewer = (
            KalproxRegressor(weight_kind="precision", **({"penalty": "ridge"} | settings)) for _ in range(2)
        )
        model.fit(X, y, w)
        fewer.fit(X[w > 0], y[w > 0], w[w > 0])
        np.testing.assert_allclose(model.coef_std_, fewer.coef_std_, rtol=1e-9)
        assert model.noise_dof_ == pytest.approx(fewer.noise_dof_, rel=1e-10)
        one, plain = (
            KalproxRegressor(weight_kind="precision", **({"penalty": "ridge"} | settings)),
            KalproxRegressor(**({"penalty": "ridge"} | settings)),
        )
        np.testing.assert_array_equal(one.fit(X, y, np.ones(60)).coef_std_, plain.fit(X, y, np.ones(60)).coef_std_)


def test_precision_weights_are_saved_and_scored(tmp_path):
    X, y, sigma = weighted_data(n=2000)
    w = sigma**-2
    model = KalproxRegressor(weight_kind="precision", penalty="ridge")
    for i in range(0, 2000, 100):
        model.partial_fit(X[i : i + 100], y[i : i + 100], w[i : i + 100])
    # Each row was predicted with its own noise.
    assert model.diagnostics_.nis == pytest.approx(1, abs=4 * (2 / 1900) ** 0.5)
    assert model.diagnostics_.coverage[-1] == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 1900) ** 0.5)
    model.save(tmp_path / "m.kalprox")
    again = KalproxRegressor.load(tmp_path / "m.kalprox")
    assert again.weight_kind == "precision" and again.noise_dof_ == model.noise_dof_
    again.partial_fit(X[:50], y[:50], w[:50])
    assert again.n_rows_seen_ == 2050


def test_a_relative_noise_std_of_new_rows():
    X, y = linear_data(k=2)
    model = KalproxRegressor(penalty=None).fit(X, y)
    (mean, one), (_, none) = (model.predict(X, return_std=True, sigma=s) for s in (None, 0))
    sigma = np.linspace(0, 3, len(X))
    expected = np.sqrt(none**2 + sigma[:, None] ** 2 * model.noise_var_)
    np.testing.assert_allclose(model.predict(X, return_std=True, sigma=sigma)[1], expected, rtol=1e-12)
    np.testing.assert_allclose(model.predict(X, return_std=True, sigma=1)[1], one, rtol=1e-15)
    np.testing.assert_allclose(model.predict(X, sigma=2.0), mean, rtol=1e-14)  # in other blocks
    row = KalproxRegressor(penalty="ridge").fit(X, y[:, 0])
    with_noise, without = (row.predict(X[:1], return_std=True, sigma=s)[1] for s in (1.0, 0.0))
    assert with_noise[0] ** 2 - without[0] ** 2 == pytest.approx(row.noise_var_, rel=1e-9)
    for bad in (-1.0, np.nan, [1.0, 2.0]):
        with pytest.raises(ValueError, match="sigma must"):
            model.predict(X, return_std=True, sigma=bad)


def test_what_weights_mean_is_checked_and_cannot_change():
    X, y = linear_data()
    with pytest.raises(ValueError, match=r"weight_kind must be 'frequency' .* or 'precision' .*; got 'inverse'"):
        KalproxRegressor(weight_kind="inverse", penalty="ridge").fit(X, y)
    for link in ("identity", "softplus"):
        model = KalproxRegressor(link=link, penalty="ridge").partial_fit(X, np.abs(y))
        with pytest.raises(ValueError, match="weight_kind cannot change"):
            model.set_params(weight_kind="precision").partial_fit(X, np.abs(y))


@pytest.mark.parametrize("batch", [1, 7, 60])
def test_a_weight_is_as_many_rows_under_forgetting_where_noise_may_depend_on_the_inputs(batch):
    """The first rows say nothing of the noise's variance: they are learned as with one noise variance."""
    rng = np.random.default_rng(21)
    X = rng.normal(size=(60, 2))
    y, repeats = X @ [1.0, -2.0] + rng.normal(size=60), rng.integers(1, 4, 60).astype(float)
    models = []
    for noise in ("learn", "inputs"):
        model = KalproxRegressor(forget=0.97, noise=noise)
        for start in range(0, 60, batch):
            rows = slice(start, start + batch)
            model.partial_fit(X[rows], y[rows], sample_weight=repeats[rows])
        models.append(model)
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, rtol=1e-10)
