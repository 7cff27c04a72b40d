"""Frames of a model that was fitted by a formula, in every method that takes rows: as the matrix made of them."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from formulaic import Formula

from kalprox import KalproxClassifier, KalproxRegressor

RNG = np.random.default_rng(0)
N = 240
DATA = pd.DataFrame({"x": RNG.normal(size=N), "g": RNG.choice(["a", "b", "c"], N), "w": RNG.uniform(0.5, 2, N)})
DATA["n"] = RNG.poisson(np.exp(0.4 * DATA.x + 0.3 * (DATA.g == "b"))).astype(float)
DATA["late"] = np.where(DATA.x + RNG.logistic(size=N) > 0, "yes", "no")
X = Formula("x + C(g)").get_model_matrix(DATA).drop(columns="Intercept").to_numpy()
FRAMES = {"pandas": lambda frame: frame, "lazy": lambda frame: pl.from_pandas(frame).lazy()}


@pytest.mark.parametrize("made", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("target", ["of the frame", "given"])
def test_rows_of_a_stream_are_predicted_before_they_are_learned(made, target):
    y = None if target == "of the frame" else DATA.n[100:]
    model = KalproxRegressor("n ~ x + C(g)").fit(made(DATA[:100]))
    mean, std = model.prequential(made(DATA[100:]), y, sample_weight=DATA.w[100:])
    other = KalproxRegressor().fit(X[:100], DATA.n[:100])
    expected = other.prequential(X[100:], DATA.n[100:], sample_weight=DATA.w[100:])
    np.testing.assert_allclose([mean, std], expected, rtol=1e-10)
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-10)
    assert model.n_rows_seen_ == N


@pytest.mark.parametrize("made", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("target", ["of the frame", "given"])
def test_a_stream_is_refined_with_frames(made, target):
    y = None if target == "of the frame" else DATA.n
    model = KalproxRegressor("n ~ x + C(g)", likelihood="poisson").fit(made(DATA[:100])).partial_fit(made(DATA[100:]))
    whole = KalproxRegressor(likelihood="poisson").fit(X, DATA.n, DATA.w)
    model.refine(made(DATA), y, sample_weight=DATA.w)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-8)
    np.testing.assert_allclose(model.coef_std_, whole.coef_std_, rtol=1e-6)
    found = model.path([10.0, 1.0], X=made(DATA), y=y, sample_weight=DATA.w)
    expected = whole.path([10.0, 1.0], X=X, y=DATA.n, sample_weight=DATA.w)
    np.testing.assert_allclose(found.coef, expected.coef, rtol=1e-6)


@pytest.mark.parametrize("weights", [None, {"no": 1.0, "yes": 3.0}])
@pytest.mark.parametrize("target", ["of the frame", "given"])
def test_classes_of_a_frame_are_refined_and_predicted_in_turn(target, weights):
    y = None if target == "of the frame" else DATA.late
    model = KalproxClassifier("late ~ x + C(g)", class_weight=weights).fit(DATA)
    whole = KalproxClassifier(class_weight=weights).fit(X, DATA.late)
    model.refine(DATA, y)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-8)
    stream = KalproxClassifier("late ~ x + C(g)", class_weight=weights).fit(DATA[:100])
    other = KalproxClassifier(class_weight=weights).fit(X[:100], DATA.late[:100])
    found = stream.prequential(DATA[100:], None if y is None else y[100:])
    np.testing.assert_allclose(found, other.prequential(X[100:], DATA.late[100:]), rtol=1e-9)
    np.testing.assert_allclose(stream.coef_, other.coef_, rtol=1e-9)


def test_what_is_missing_is_said():
    model = KalproxRegressor("n ~ x + C(g)").fit(DATA)
    with pytest.raises(ValueError, match="there is no column 'n'"):
        model.prequential(DATA[["x", "g"]])
    with pytest.raises(ValueError, match=r"y cannot be None|target y is None"):
        KalproxRegressor().fit(X, DATA.n).prequential(X)
    before = model.coef_.copy()
    with pytest.raises(ValueError, match="unseen level"):
        model.prequential(DATA.assign(g="new"))
    np.testing.assert_array_equal(model.coef_, before)


def test_rows_of_which_none_is_good_are_no_scan():
    with pytest.raises(ValueError, match=r"too few good rows, 0, to find what poly\(u, 2\) needs. A row is bad if"):
        KalproxRegressor(formula="n ~ poly(u, 2)").fit(DATA.assign(u=1e160 * DATA.x))
