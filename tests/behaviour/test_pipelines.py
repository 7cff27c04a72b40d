"""Intervals through pipelines, searches and transformed targets; bad rows; and functions as links."""

import jax.numpy as jnp
import nist
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from data import linear
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor, VotingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from kalprox import KalproxRegressor, predict_interval
from kalprox.likelihoods import Gaussian

X, Y = linear(80, 3, seed=4)[:2]


# ---- intervals --------------------------------------------------------------------------------------------------


def test_intervals_go_through_a_pipeline_and_a_search():
    pipeline = make_pipeline(StandardScaler(), KalproxRegressor(alpha=3.0)).fit(X, Y)
    expected = pipeline[-1].predict_interval(pipeline[0].transform(X), 0.8)
    np.testing.assert_array_equal(predict_interval(pipeline, X, 0.8), expected)
    search = GridSearchCV(pipeline, {"kalproxregressor__alpha": [3.0, 1e6]}).fit(X, Y)
    np.testing.assert_array_equal(predict_interval(search, X, level=0.8), expected)
    np.testing.assert_array_equal(predict_interval(FrozenEstimator(search), X, level=0.8), expected)
    nested = make_pipeline("passthrough", make_pipeline(StandardScaler(), KalproxRegressor(alpha=3.0))).fit(X, Y)
    np.testing.assert_array_equal(predict_interval(nested, X, 0.8), expected)
    alone = KalproxRegressor(penalty="ridge").fit(X, Y)
    for options in ({"method": "conformal"}, {"sigma": 2.0}, {"of": "mean"}):
        np.testing.assert_array_equal(
            predict_interval(alone, X, 0.9, **options), alone.predict_interval(X, 0.9, **options)
        )
    np.testing.assert_array_equal(predict_interval(make_pipeline(alone), X), alone.predict_interval(X))


def test_intervals_of_frames_with_levels_go_through_a_column_transformer():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(level=np.where(X[:, 0] > 0, "u", "v"))
    encode = ColumnTransformer([("level", OneHotEncoder(), ["level"])], remainder="passthrough")
    pipeline = make_pipeline(encode, KalproxRegressor(penalty="ridge")).fit(frame, Y)
    low, high = predict_interval(pipeline, frame, 0.9)
    assert (low < pipeline.predict(frame)).all() and (pipeline.predict(frame) < high).all()


@pytest.mark.parametrize("transformation", ["log", "scaled", "decreasing"])
def test_the_ends_of_intervals_are_transformed_back(transformation):
    y = np.exp(Y / 5)
    how = {
        "log": {"func": np.log, "inverse_func": np.exp},
        "scaled": {"transformer": StandardScaler()},
        "decreasing": {"func": lambda y: -np.log(y), "inverse_func": lambda z: np.exp(-z)},
    }[transformation]
    model = TransformedTargetRegressor(KalproxRegressor(penalty=None), **how).fit(X, y)
    low, high = predict_interval(model, X, 0.9)
    inner = model.regressor_.predict_interval(X, 0.9)
    back = [model.transformer_.inverse_transform(end[:, None])[:, 0] for end in inner]
    np.testing.assert_allclose([low, high], np.sort(back, axis=0))
    assert (low < model.predict(X)).all() and (model.predict(X) < high).all()


def test_what_has_no_interval_is_refused_in_words():
    for model, message in (
        (VotingRegressor([("a", KalproxRegressor(penalty="ridge"))]), "got VotingRegressor"),
        (BaggingRegressor(KalproxRegressor(penalty="ridge"), n_estimators=2), "got BaggingRegressor"),
        (make_pipeline(StandardScaler(), LinearRegression()), "got LinearRegression"),
        (GridSearchCV(KalproxRegressor(penalty="ridge"), {"alpha": [1.0, 2.0]}, refit=False), "fit it with refit=True"),
    ):
        with pytest.raises(TypeError, match=message):
            predict_interval(model.fit(X, Y), X)
    with pytest.raises(NotFittedError):
        predict_interval(make_pipeline(StandardScaler(), KalproxRegressor(penalty="ridge")), X)


# ---- bad rows ---------------------------------------------------------------------------------------------------


def with_bad_rows():
    bad = X.copy()
    bad[3, 1], bad[5, 0], bad[7, 2] = np.nan, np.inf, 1e80
    return bad, np.delete(np.arange(len(X)), [3, 5, 7])


@pytest.mark.parametrize("convert", [np.asarray, pd.DataFrame, scipy.sparse.csr_matrix, np.ndarray.tolist])
def test_errors_about_nan_say_how_to_skip_rows(convert):
    bad, _ = with_bad_rows()
    model = KalproxRegressor(penalty="ridge").fit(X, Y)
    for call in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=r"X must be finite.*missing='drop'"):
            call(convert(bad), Y)
        with pytest.raises(ValueError, match=r"y must be finite.*row\(s\): 3\..*missing='drop'"):
            call(convert(X), convert(bad[:, 1]) if convert is not scipy.sparse.csr_matrix else bad[:, 1])
    for call in (model.predict, model.predict_interval):
        with pytest.raises(ValueError, match=r"X must be finite.*: 3, 5\..*missing='drop'"):
            call(convert(bad))
    with pytest.raises(ValueError, match="must be at most 1e"):
        model.predict(np.full((1, 3), 1e80))


@pytest.mark.parametrize("convert", [np.asarray, scipy.sparse.csr_matrix])
@pytest.mark.parametrize(
    "settings",
    [{}, {"penalty": "l1"}, {"noise": "inputs"}, {"link": "softplus", "likelihood": Gaussian(targets="any")}],
)
def test_skipped_rows_are_predicted_as_nan(settings, convert):
    bad, good = with_bad_rows()
    model = KalproxRegressor(missing="drop", **({"penalty": "ridge"} | settings)).fit(X, Y)
    skipped = [3, 5, 7]
    for predict in (
        lambda A: (model.predict(A),),
        lambda A: model.predict(A, return_std=True),
        lambda A: model.predict(A, return_std=True, sigma=2.0),
        model.predict_interval,
    ):
        for found, expected in zip(predict(convert(bad)), predict(convert(X)), strict=True):
            assert np.isnan(found[skipped]).all()
            np.testing.assert_allclose(found[good], expected[good], rtol=1e-12)
        nothing = predict(convert(bad[skipped]))
        assert all(one.shape == (3,) and np.isnan(one).all() for one in nothing)
    assert np.isnan(model.predict(np.full((1, 3), np.nan))).all()


def test_skipped_rows_of_several_targets_and_the_minimax_forecaster_are_nan():
    bad, good = with_bad_rows()
    model = KalproxRegressor(missing="drop", penalty="ridge").fit(X, np.column_stack([Y, -Y]))
    mean, std = model.predict(bad, return_std=True)
    assert mean.shape == std.shape == (len(X), 2) and np.isnan(mean[[3, 5, 7]]).all() and np.isfinite(std[good]).all()
    one = KalproxRegressor(missing="drop", penalty="ridge").fit(X, Y)
    found = one.predict(bad, minimax=True)
    np.testing.assert_allclose(found[good], one.predict(X, minimax=True)[good], rtol=1e-12)
    assert np.isnan(found[[3, 5, 7]]).all()


# ---- functions as links -----------------------------------------------------------------------------------------


def misra(theta, x):
    return theta[0] * (1 - jnp.exp(-theta[1] * x[0]))


def test_a_function_has_no_penalty_unless_one_is_given():
    problem = nist.load("Misra1a")
    rows = problem.X[:, None]
    model = KalproxRegressor(function=misra, start=problem.starts[0]).fit(rows, problem.y)
    assert nist.digits(model.coef_, problem.certified) > 8
    np.testing.assert_allclose(model.coef_std_, problem.std, rtol=1e-6)
    assert clone(model).get_params()["penalty"] == "default" and model.summary().facts["penalty"] == "none"
    pulled = KalproxRegressor(function=misra, start=problem.starts[0], penalty="ridge").fit(rows, problem.y)
    assert pulled.coef_[0] < 60
    assert KalproxRegressor(penalty="ridge").fit(X, Y).summary().facts["penalty"] == "ridge, alpha = 1"
    merged = (
        KalproxRegressor(penalty="ridge")
        .fit(X[:40], Y[:40])
        .merge(KalproxRegressor(penalty="ridge").fit(X[40:], Y[40:]))
    )
    np.testing.assert_allclose(merged.coef_, KalproxRegressor(penalty="ridge").fit(X, Y).coef_, rtol=1e-10)


def unpacked(theta, x):
    a, b = theta
    return a * x[0] + b * x[1]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"function": lambda t, x: np.exp(t[0] * x[0])}, TypeError, "use jax.numpy instead of NumPy"),
        ({"function": lambda t, x: t[0] if x[0] > 0 else t[1]}, TypeError, r"jnp\.where instead of if"),
        (
            {"function": lambda t, x: t[0] * x[0] + t[2] * x[1]},
            ValueError,
            "index 2 is out of bounds.*Give `start` as many",
        ),
        ({"function": lambda t, x: t[0] * x[3]}, ValueError, "index 3 is out of bounds"),
        ({"function": unpacked, "start": [1.0] * 3}, ValueError, "too many values to unpack.*Give `start` as many"),
        ({"function": lambda t, x: t @ x}, ValueError, r"theta of shape \(2,\) and one row x of shape \(3,\)"),
        ({"function": lambda t, x: None}, ValueError, "must return a number or a vector; it returned None"),
        (
            {"function": lambda t, x: t[0] * x},
            ValueError,
            r"must return one number for one row x: index x, as in x\[0\]",
        ),
        ({"function": unpacked, "start": [[1.0, 1.0]]}, ValueError, "start must be a vector of finite numbers"),
        ({"function": unpacked, "start": "ab"}, ValueError, "start must be a vector of numbers; got 'ab'"),
        ({"link": "identity", "alpha": [1, 2]}, ValueError, r"alpha must be one number.*got \[1, 2\].*path\(alphas\)"),
    ],
)
def test_mistakes_are_named_in_words(settings, error, message):
    for learn in ("fit", "partial_fit"):
        with pytest.raises(error, match=message):
            getattr(KalproxRegressor(**({"penalty": "ridge"} | {"start": [1.0, 1.0]} | settings)), learn)(X, Y)


@pytest.mark.parametrize("value", [3.0, 0.1, 0.0])
@pytest.mark.parametrize("penalty", ["ridge", "l1"])
def test_a_constant_target_is_fitted_in_silence(penalty, value):
    y = np.full(len(X), value)
    model = KalproxRegressor(penalty=penalty, alpha="auto").fit(X, y)
    np.testing.assert_allclose(model.coef_, 0, atol=1e-12)
    np.testing.assert_allclose([model.predict(X), *model.predict_interval(X)], value, atol=1e-12)
    assert np.isfinite(model.alpha_) and np.isfinite(model.coef_std_).all() and str(model.summary())
    assert model.diagnostics_.verdict().word
