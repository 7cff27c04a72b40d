"""Several targets on engines, and in Dask collections: the models and the predictions of rows in memory."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from kalprox import KalproxRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3))
Y = X @ RNG.normal(size=(3, 2)) + RNG.normal(size=(600, 2))
WEIGHTS = RNG.uniform(0.5, 2, 600)
LAZY, LAZY_Y = da.from_array(X, chunks=(200, 3)), da.from_array(Y, chunks=(200, 2))


@pytest.mark.parametrize("settings", [{}, {"penalty": "l1", "alpha": 20.0}, {"alpha": "auto"}, {"coef_cov": "robust"}])
def test_a_fit_on_an_engine_is_the_fit_in_memory(settings):
    expected = KalproxRegressor(**settings).fit(X, Y, WEIGHTS)
    found = KalproxRegressor(engine="local", **settings).fit(X, Y, WEIGHTS)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.coef_std_, expected.coef_std_, rtol=1e-10)
    np.testing.assert_allclose(found.noise_var_, expected.noise_var_, rtol=1e-10)


def test_collections_are_fitted_and_predicted_lazily():
    model = KalproxRegressor().fit(LAZY, LAZY_Y)
    expected = KalproxRegressor().fit(X, Y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-10)
    assert model.predict(LAZY).shape == (600, 2)
    np.testing.assert_array_equal(model.predict(LAZY).compute(), model.predict(X))
    for lazy, whole in zip(model.predict(LAZY, return_std=True), model.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(lazy.compute(), whole)
    for lazy, whole in zip(model.predict_interval(LAZY), model.predict_interval(X), strict=True):
        np.testing.assert_allclose(lazy.compute(), whole, rtol=1e-12)


def test_columns_of_a_dask_dataframe_are_named_after_the_targets():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    lazy, model = dd.from_pandas(frame, npartitions=3), KalproxRegressor().fit(frame, Y)
    found = model.predict(lazy, return_std=True).compute()
    assert list(found.columns) == ["mean_y0", "mean_y1", "std_y0", "std_y1"]
    np.testing.assert_array_equal(found.to_numpy(), np.column_stack(model.predict(frame, return_std=True)))
    with pytest.raises(ValueError, match="several targets, are made of its columns"):
        model.predict_interval(lazy)


def test_intervals_of_a_dask_dataframe():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = KalproxRegressor().fit(frame, Y[:, 0])
    found = model.predict_interval(dd.from_pandas(frame, npartitions=3))
    for lazy, whole in zip(found, model.predict_interval(frame), strict=True):
        np.testing.assert_allclose(lazy.compute(), whole, rtol=1e-12)


def test_other_likelihoods_have_one_target_on_engines_too():
    with pytest.raises(ValueError, match="A target of several columns needs likelihood='gaussian'"):
        KalproxRegressor(likelihood="poisson", engine="local").fit(X, np.abs(Y).round())
    with pytest.raises(ValueError, match=r"y \(n,\) or \(n, k\)"):
        KalproxRegressor(engine="local").fit(X, Y[:, :, None])
