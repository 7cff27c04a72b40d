"""One answer by every route: streams, batches, merged models, row by row, and in other units."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from regressor_data import linear_data
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from kalprox import KalproxRegressor, penalties, regularizers

SETTINGS = [
    {"penalty": None},
    {"alpha": 5.0},
    {"penalty": "l1", "alpha": 30.0},
    {"penalty": "elasticnet", "alpha": 30.0},
    {"penalty": penalties.SmoothL1(0.1), "alpha": 5.0},
    {"penalty": penalties.Group([0, 0, 1, 1]), "alpha": 10.0},
    {"penalty": penalties.Box(0.0, 0.5)},
    {"penalty": regularizers.Quadratic(np.diff(np.eye(4), axis=0))},
    {"alpha": 5.0, "fit_intercept": False, "noise": 0.25},
    {"penalty": "l1", "alpha": 30.0, "standardize": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
def test_stream_batch_merge_and_weights_agree(settings):
    X, y = linear_data()
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 4, len(y)).astype(float)
    batch = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X, y, weights)
    again = np.repeat(np.arange(len(y)), weights.astype(int))
    repeated = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X[again], y[again])
    stream = KalproxRegressor(**({"penalty": "ridge"} | settings))
    for i in range(0, 120, 7):
        stream.partial_fit(X[i : i + 7], y[i : i + 7], weights[i : i + 7])
    parts = [
        KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X[i::3], y[i::3], weights[i::3]) for i in range(3)
    ]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    for other in (repeated, stream, merged):
        for name in ("coef_", "intercept_", "coef_std_", "intercept_std_", "noise_var_", "covariance_"):
            ours, theirs = getattr(other, name), getattr(batch, name)
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10, err_msg=name)
        for a, b in zip(other.predict_interval(X), batch.predict_interval(X), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)
    assert batch.n_rows_seen_ == stream.n_rows_seen_ == merged.n_rows_seen_ == (weights > 0).sum()


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
def test_several_targets_are_as_many_models(settings):
    X, Y = linear_data(k=3)
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X, Y)
    mean, std = model.predict(X[:5], return_std=True)
    coefs, intercepts = model.sample(4, 0)
    assert coefs.shape == (4, 3, 4) and intercepts.shape == (4, 3)
    for j in range(3):
        single = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X, Y[:, j])
        for name in ("coef_", "intercept_", "coef_std_", "intercept_std_", "noise_var_", "covariance_"):
            ours, theirs = getattr(model, name)[j], getattr(single, name)
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=name)
        for ours, theirs in zip((mean[:, j], std[:, j]), single.predict(X[:5], return_std=True), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10)


@pytest.mark.parametrize("settings", [{"penalty": None}, {"penalty": "l1", "alpha": 5.0, "standardize": True}])
def test_units_do_not_matter(settings):
    X, y = linear_data()
    units = 10.0 ** np.array([-8, 0, 3, 8])
    plain, scaled = (KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X * u, y) for u in (np.ones(4), units))
    np.testing.assert_allclose(scaled.coef_ * units, plain.coef_, rtol=1e-10)
    np.testing.assert_allclose(scaled.coef_std_ * units, plain.coef_std_, rtol=1e-10)
    far = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(
        X + 1e8, y
    )  # X + 1e8 itself is known to 8 digits only
    np.testing.assert_allclose(
        far.coef_, KalproxRegressor(**({"penalty": "ridge"} | settings)).fit((X + 1e8) - 1e8, y).coef_, rtol=1e-10
    )


@pytest.mark.parametrize("settings", [{"alpha": 20.0}, {"penalty": "l1", "alpha": 20.0}])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_standardize_is_what_a_scaler_would_give(settings, fit_intercept):
    X, y = linear_data()
    X = np.column_stack([X * [1e-3, 1, 5, 1e4], np.full(len(y), 7.0)])
    scaler = StandardScaler(with_mean=fit_intercept).fit(X)
    outside = KalproxRegressor(fit_intercept=fit_intercept, **({"penalty": "ridge"} | settings)).fit(
        scaler.transform(X), y
    )
    inside = KalproxRegressor(fit_intercept=fit_intercept, standardize=True, **({"penalty": "ridge"} | settings)).fit(
        X, y
    )
    np.testing.assert_allclose(inside.coef_, outside.coef_ / scaler.scale_, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(inside.coef_std_, outside.coef_std_ / scaler.scale_, rtol=1e-10)
    ours, theirs = inside.predict(X, return_std=True), outside.predict(scaler.transform(X), return_std=True)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_forgetting_is_a_weighted_fit_in_any_blocks():
    X, y = linear_data()
    rho, n = 0.97, len(y)
    w = rho ** np.arange(n - 1, -1, -1.0)
    whole = KalproxRegressor(alpha=2.0, forget=rho).fit(X, y)
    stream = KalproxRegressor(alpha=2.0, forget=rho)
    for i in range(0, n, 11):
        stream.partial_fit(X[i : i + 11], y[i : i + 11])
    expected = Ridge(alpha=2.0).fit(X, y, sample_weight=w)
    for model in (whole, stream):
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-10)
        assert model.n_rows_seen_ == n
    np.testing.assert_allclose(stream.coef_std_, whole.coef_std_, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"alpha": 5.0}, {"penalty": None}, {"fit_intercept": False}, {"penalty": "l1"}])
def test_rows_one_at_a_time_between_predictions(settings):
    X, y = linear_data(n=700, d=5)
    X[:, 2] *= 1e6
    stream = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X[:20], y[:20])
    for i in range(20, 700):
        predicted = stream.predict(X[i : i + 1])
        if i % 97 == 0:  # the estimate moved row by row is the batch's, and so is how sure it is
            exact = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X[:i], y[:i])
            np.testing.assert_allclose(predicted, exact.predict(X[i : i + 1]), rtol=1e-10)
            for how in (
                lambda model: model.predict(X[i : i + 1], return_std=True),  # noqa: B023
                lambda model: model.predict_interval(X[i : i + 1], 0.9),  # noqa: B023
            ):
                np.testing.assert_allclose(how(stream), how(exact), rtol=1e-9)
            np.testing.assert_allclose(stream.coef_std_, exact.coef_std_, rtol=1e-10)
        stream.partial_fit(X[i : i + 1], y[i : i + 1])
    looked_at = stream.coef_
    unread, silent = (
        KalproxRegressor(diagnose=d, **({"penalty": "ridge"} | settings)).fit(X[:20], y[:20]) for d in (True, False)
    )
    for i in range(20, 700):
        for model in (unread, silent):
            model.partial_fit(X[i : i + 1], y[i : i + 1])
    np.testing.assert_array_equal(looked_at, unread.coef_)  # reading has changed nothing, not even the last bit
    np.testing.assert_allclose(looked_at, silent.coef_, rtol=1e-10)
    assert stream.n_rows_seen_ == 700
    for bad in (np.full((1, 5), np.nan), np.full((1, 5), np.inf)):
        with pytest.raises(ValueError, match="missing='drop'"):
            stream.predict(bad)
        with pytest.raises(ValueError, match="X must be finite; got NaN or infinity in 1 row"):
            stream.partial_fit(bad, y[:1])
    with pytest.raises(ValueError, match=r"at most 1e.70 in size"):
        stream.partial_fit(np.full((2, 5), 1.7e308), y[:2])
    with pytest.raises(ValueError, match=r"y must have shape \(n,\), as in the rows learned before"):
        stream.partial_fit(X[:1], np.ones((1, 2)))
    np.testing.assert_array_equal(stream.coef_, looked_at)


def test_changed_settings_count_from_the_next_call_on():
    X, y = linear_data()
    model = KalproxRegressor(alpha=1.0, penalty="ridge").fit(X[:60], y[:60])
    before = model.coef_
    model.set_params(alpha=1e3)
    np.testing.assert_array_equal(model.coef_, before)
    model.partial_fit(X[60:], y[60:])
    np.testing.assert_allclose(model.coef_, Ridge(alpha=1e3).fit(X, y).coef_, rtol=1e-10)


def test_merge_refuses_what_it_cannot_do_exactly():
    X, y = linear_data()
    fit = KalproxRegressor(penalty="ridge").fit(X, y)
    with pytest.raises(ValueError, match=r"same settings; these differ in alpha \(1.0 and 2.0\)"):
        fit.merge(KalproxRegressor(alpha=2.0).fit(X, y))
    with pytest.raises(ValueError, match="forget=1"):
        KalproxRegressor(forget=0.9, penalty="ridge").fit(X, y).merge(
            KalproxRegressor(forget=0.9, penalty="ridge").fit(X, y)
        )
    named = [
        KalproxRegressor(penalty="ridge").fit(pd.DataFrame(X, columns=list(names)), y) for names in ("abcd", "dcba")
    ]
    with pytest.raises(ValueError, match="same features in the same order"):
        named[0].merge(named[1])
    with pytest.raises(ValueError, match="same number of coefficients"):
        fit.merge(KalproxRegressor(penalty="ridge").fit(X[:, :2], y))
    sigmoid = KalproxRegressor(link="sigmoid", penalty="ridge").fit(X, (y > y.mean()).astype(float))
    with pytest.raises(ValueError, match="rows in common"):
        sigmoid.merge(sigmoid)
    fading = KalproxRegressor(link="sigmoid", forget=0.99, penalty="ridge").fit(X, (y > y.mean()).astype(float))
    with pytest.raises(ValueError, match="merge needs forget=1"):
        fading.merge(fading)
    assert fit.n_rows_seen_ == 120


@pytest.mark.slow
def test_batch_lengths_do_not_recompile():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    y = 1 / (1 + np.exp(-X @ [1.0, -1.0, 2.0])) + 0.1 * rng.normal(size=4000)

    def stream(lengths, **settings):
        before, model, a = len(compiled), KalproxRegressor(**({"penalty": "ridge"} | settings)), 0
        for n in lengths:
            model.partial_fit(X[a : a + n], y[a : a + n]).predict(X[:n])
            a += n
        return len(compiled) - before

    lengths = [1000, 3, 17, 500, 901, 2, 44]
    fn = KalproxRegressor(function=lambda theta, x: jnp.tanh(x @ theta), start=np.zeros(3)).get_params()
    assert stream(lengths) == stream(lengths, link="sigmoid") == 0
    assert stream(lengths, **fn) > 0  # the listener hears
    assert stream([997, 4, 18, 512, 900, 3, 45], **fn) == 0  # the same few sizes, padded
