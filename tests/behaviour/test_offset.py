"""Offset and exposure of the rows of an estimator: those of statsmodels' GLM, in passes, in streams, from frames."""

import pickle

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from command import invoke

from kalprox import KalproxClassifier, KalproxRegressor

N = 4000


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((N, 2))
    hours = rng.lognormal(size=N)
    return X, rng.poisson(hours * np.exp(0.3 * X[:, 0] - 0.5)).astype(float), hours


def peer(X, y, hours, family=None):
    family = sm.families.Poisson() if family is None else family
    return sm.GLM(y, sm.add_constant(X), family, offset=np.log(hours)).fit(tol=1e-14)


@pytest.mark.parametrize(
    ("likelihood", "family"),
    [("poisson", sm.families.Poisson()), ("quasi-poisson", sm.families.Poisson())],
)
def test_the_fit_is_that_of_statsmodels(data, likelihood, family):
    X, y, hours = data
    model = KalproxRegressor(penalty=None, likelihood=likelihood).fit(X, y, exposure=hours)
    other = KalproxRegressor(penalty=None, likelihood=likelihood).fit(X, y, offset=np.log(hours))
    expected = peer(X, y, hours, family)
    np.testing.assert_allclose(np.append(model.intercept_, model.coef_), expected.params, rtol=0, atol=1e-8)
    np.testing.assert_allclose(other.coef_, model.coef_, rtol=1e-12)
    dispersion = 1.0 if likelihood == "poisson" else expected.pearson_chi2 / expected.df_resid
    np.testing.assert_allclose(model.coef_std_, dispersion**0.5 * expected.bse[1:], rtol=1e-6)


def test_predictions_scale_with_the_exposure(data):
    X, y, hours = data
    model = KalproxRegressor(likelihood="poisson").fit(X, y, exposure=hours)
    once, tenfold = (model.predict(X[:50], exposure=times * hours[:50]) for times in (1, 10))
    np.testing.assert_allclose(tenfold, 10 * once, rtol=1e-12)
    low, high = model.predict_interval(X[:50], exposure=hours[:50])
    assert (low <= once).all() and (once <= high).all()
    low, high = model.predict_interval(X, level=0.95, exposure=hours)
    assert 0.93 < ((low <= y) & (y <= high)).mean() < 1  # counts are discrete: at least 95%, up to noise
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copy.predict(X[:5], exposure=hours[:5]), once[:5])


def test_a_stream_of_rows_with_exposures_ends_near_the_batch_and_can_be_refined(data, tmp_path):
    X, y, hours = data
    batch = KalproxRegressor(penalty=None, likelihood="poisson").fit(X, y, exposure=hours)
    stream = KalproxRegressor(penalty=None, likelihood="poisson")
    for start in range(0, N, 250):
        rows = slice(start, start + 250)
        stream.partial_fit(X[rows], y[rows], exposure=hours[rows])
        if start == 500:
            stream.save(tmp_path / "m")  # in its warm-up
            stream = KalproxRegressor.load(tmp_path / "m")
    assert np.max(np.abs(stream.coef_ - batch.coef_) / batch.coef_std_) < 0.1
    assert stream.diagnostics_.verdict().word == "calibrated"
    refined = stream.refine(X, y, exposure=hours)
    np.testing.assert_allclose(refined.coef_, batch.coef_, rtol=1e-8)


@pytest.mark.parametrize(
    ("settings", "n"),
    [
        ({"likelihood": "poisson"}, 300),
        pytest.param({"likelihood": "huber", "forget": 0.99}, 290, marks=pytest.mark.slow),
    ],
)
def test_prequential_predicts_each_row_with_its_offset(data, settings, n):
    X, y, hours = (values[:n] for values in data)
    offset = np.log(hours)
    mean, std = KalproxRegressor(**({"penalty": "ridge"} | settings)).prequential(X, y, offset=offset)
    model, expected = KalproxRegressor(**({"penalty": "ridge"} | settings)), np.full((2, n), np.nan)
    for i in range(n):
        row = slice(i, i + 1)
        if np.isfinite(mean[i]):
            expected[:, row] = model.predict(X[row], return_std=True, offset=offset[row])
        model.partial_fit(X[row], y[row], offset=offset[row])
    assert np.isfinite(mean[-50:]).all()  # after the warm-up
    known = np.isfinite(mean)
    np.testing.assert_allclose([mean[known], std[known]], expected[:, known], rtol=1e-9)
    if settings["likelihood"] == "poisson":
        exposed, _ = KalproxRegressor(**({"penalty": "ridge"} | settings)).prequential(X, y, exposure=hours)
        np.testing.assert_allclose(exposed, mean, rtol=1e-12)


def test_single_rows_with_exposures_are_learned_and_saved(data, tmp_path):
    X, y, hours = data
    model = KalproxRegressor(likelihood="poisson").partial_fit(X[:3000], y[:3000], exposure=hours[:3000])
    one, other = model, pickle.loads(pickle.dumps(model))
    for i in range(3000, 3200):
        row = slice(i, i + 1)
        one.partial_fit(X[row], y[row], exposure=hours[row])
        other.predict(X[row], exposure=hours[row])
        other.partial_fit(X[row], y[row], exposure=hours[row])
        if i == 3100:
            other.save(tmp_path / "m")
            other = KalproxRegressor.load(tmp_path / "m")
    for found in (one.coef_, one.predict(X[:1], return_std=True, exposure=hours[:1])):
        assert np.isfinite(found).all()
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.diagnostics_.log_score == other.diagnostics_.log_score
    for call in (one.predict, one.predict_interval):
        with pytest.raises(ValueError, match="offset must be given"):
            call(X[:1])
    with pytest.raises(ValueError, match="offset must be given"):
        one.partial_fit(X[:1], y[:1])
    batch = KalproxRegressor(likelihood="poisson").fit(X[:3200], y[:3200], exposure=hours[:3200])
    assert np.max(np.abs(one.coef_ - batch.coef_) / batch.coef_std_) < 0.1


@pytest.fixture(scope="module")
def classes(data):
    X, _, hours = data
    late = X[:, 0] + np.log(hours) + np.random.default_rng(6).logistic(size=N) > 0.5
    return X, np.where(late, "yes", "no"), np.log(hours)


def test_classes_with_an_offset_are_those_of_statsmodels(classes):
    X, y, offset = classes
    model = KalproxClassifier(penalty=None).fit(X, y, offset=offset)
    one = sm.GLM(y == "yes", sm.add_constant(X), sm.families.Binomial(), offset=offset).fit(tol=1e-14)
    np.testing.assert_allclose([*model.intercept_, *model.coef_[0]], one.params, rtol=1e-8)
    np.testing.assert_allclose(model.coef_std_[0], one.bse[1:], rtol=1e-6)
    moved = model.decision_function(X[:5], offset=offset[:5] + 1) - model.decision_function(X[:5], offset=offset[:5])
    np.testing.assert_allclose(moved, 1, atol=0.01)  # the averaging over the posterior leaves a little less
    p = model.predict_proba(X, offset=offset)
    assert (model.predict(X, offset=offset) == model.classes_[p.argmax(axis=1)]).all()
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X, offset=offset)), p, rtol=1e-12)
    for call in (model.predict, model.predict_proba, model.decision_function):
        with pytest.raises(ValueError, match="offset must be given"):
            call(X[:2])
    with pytest.raises(ValueError, match="An offset, or an exposure, needs"):
        KalproxClassifier().fit(X, np.arange(N) % 3, offset=offset)


@pytest.mark.slow
def test_a_stream_of_classes_with_an_offset_ends_near_the_batch_and_can_be_refined(classes):
    X, y, offset = classes
    batch = KalproxClassifier().fit(X, y, offset=offset)
    stream = KalproxClassifier()
    for start in range(0, N, 250):
        rows = slice(start, start + 250)
        stream.partial_fit(X[rows], y[rows], classes=["no", "yes"], offset=offset[rows])
    assert np.max(np.abs(stream.coef_ - batch.coef_) / batch.coef_std_) < 0.1
    np.testing.assert_allclose(stream.refine(X, y, offset=offset).coef_, batch.coef_, rtol=1e-8)
    path = stream.path([1.0], X=X, y=y, offset=offset)
    np.testing.assert_allclose(path.coef[0], batch.coef_, rtol=1e-8)
    proba = KalproxClassifier().prequential(X[:400], y[:400], classes=["no", "yes"], offset=offset[:400])
    single = KalproxClassifier()
    for i in range(399):
        row = slice(i, i + 1)
        single.partial_fit(X[row], y[row], classes=["no", "yes"], offset=offset[row])
    np.testing.assert_allclose(single.predict_proba(X[399:400], offset=offset[399:400]), proba[399:], rtol=1e-9)


def test_bad_exposures(data):
    X, y, hours = data
    wrong = hours.copy()
    wrong[[3, 10]] = 0.0, -1.0
    with pytest.raises(ValueError, match=r"exposure must be positive; got 0 in row 3, and 2 such row\(s\) in all"):
        KalproxRegressor(likelihood="poisson").fit(X, y, exposure=wrong)
    model = KalproxRegressor(likelihood="poisson", missing="drop").fit(X, y, exposure=wrong)
    good = wrong > 0
    whole = KalproxRegressor(likelihood="poisson").fit(X[good], y[good], exposure=hours[good])
    assert model.n_rows_rejected_ == 2 and np.array_equal(model.coef_, whole.coef_)
    with pytest.raises(
        ValueError, match=r"offset must have shape \(4000,\), one number per row of X; got shape \(1,\)"
    ):
        model.fit(X, y, offset=[1.0])
    with pytest.raises(ValueError, match=r"offset must be finite; got NaN or infinity in 1 row\(s\): 0"):
        KalproxRegressor(likelihood="poisson").fit(X, y, offset=np.r_[np.nan, hours[1:]])


def test_rows_with_and_without_an_offset_do_not_mix(data):
    X, y, hours = data
    model = KalproxRegressor(likelihood="poisson").fit(X, y, exposure=hours)
    for call in (model.predict, model.predict_interval):
        with pytest.raises(ValueError, match="offset must be given: the model was fitted to rows with an offset"):
            call(X[:2])
    with pytest.raises(ValueError, match="offset must be given"):
        model.partial_fit(X, y)
    without = KalproxRegressor(likelihood="poisson").fit(X, y)
    with pytest.raises(ValueError, match="offset must be left out"):
        without.predict(X[:2], exposure=hours[:2])
    for settings in ({}, {"link": "exp"}):
        with pytest.raises(ValueError, match=r"An offset, or an exposure, needs .*likelihood of counts"):
            KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X, y, exposure=hours)
    with pytest.raises(ValueError, match="An offset, or an exposure, needs"):
        KalproxRegressor(penalty="ridge").fit(X, y).predict(X[:1], offset=[1.0])


@pytest.mark.integration
def test_frames_have_the_columns_of_the_files(data, tmp_path):
    X, y, hours = data
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "n": y, "hours": hours})
    frame[:3000].to_csv(tmp_path / "a.csv", index=False)
    options = ["-y", "n", "--likelihood", "poisson", "--exposure", "hours", "--passes", 1, "-q"]
    invoke("fit", tmp_path / "a.csv", *options, "--out", tmp_path / "m")
    model = KalproxRegressor.load(tmp_path / "m")
    found = model.predict(frame[3000:])
    numbers = frame[["a", "b"]][3000:]
    np.testing.assert_allclose(found, model.predict(numbers, exposure=hours[3000:]), rtol=1e-12)
    ten = model.predict(frame[3000:].drop(columns="hours"), exposure=10 * hours[3000:])
    np.testing.assert_allclose(ten, 10 * found, rtol=1e-12)
    model.partial_fit(frame[3000:])
    whole = KalproxRegressor(likelihood="poisson").fit(X, y, exposure=hours)
    assert model.n_rows_seen_ == N
    assert np.max(np.abs(model.coef_ - whole.coef_) / whole.coef_std_) < 0.1


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("m", [2, 3])
def test_a_classifier_of_files_learns_frames_with_their_text(tmp_path, m):
    rng = np.random.default_rng(m)
    X = rng.standard_normal((3000, 2))
    names = np.array(["blue", "red", "green"][:m])
    kinds = names[(X @ rng.standard_normal((2, m)) + rng.gumbel(size=(3000, m))).argmax(1)]
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": kinds})
    frame[:2000].to_csv(tmp_path / "a.csv", index=False)
    options = ["-y", "kind", "--likelihood", "categorical", "--passes", 1, "-q"]
    invoke("fit", tmp_path / "a.csv", *options, *(["--positive", "blue"] if m == 2 else []), "--out", tmp_path / "m")
    model = KalproxClassifier.load(tmp_path / "m")
    model.partial_fit(frame[2000:])
    again = KalproxClassifier.load(tmp_path / "m").partial_fit(frame[["a", "b"]][2000:], kinds[2000:])
    assert model.n_rows_seen_ == 3000
    np.testing.assert_allclose(again.coef_, model.coef_, rtol=1e-12)
    whole, numbers = KalproxClassifier().fit(X, kinds), frame[["a", "b"]]
    order = [list(whole.classes_).index(name) for name in model.classes_]
    assert np.max(np.abs(model.predict_proba(numbers) - whole.predict_proba(X)[:, order])) < 0.01


@pytest.mark.integration
def test_two_classes_with_an_offset_are_statsmodels_glm(tmp_path):
    rng = np.random.default_rng(8)
    X, level = rng.standard_normal((3000, 2)), rng.standard_normal(3000)
    late = rng.random(3000) < 1 / (1 + np.exp(-level - X @ [1.0, -0.5]))
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "level": level, "late": np.where(late, "yes", "no")})
    frame.to_csv(tmp_path / "a.csv", index=False)
    options = ["-y", "late", "--likelihood", "bernoulli", "--offset", "level", "--penalty", "none", "-q"]
    invoke("fit", tmp_path / "a.csv", *options, "--out", tmp_path / "m")
    model = KalproxClassifier.load(tmp_path / "m")
    expected = sm.GLM(late, sm.add_constant(X), sm.families.Binomial(), offset=level).fit(tol=1e-14)
    np.testing.assert_allclose(np.append(model.intercept_, model.coef_), expected.params, rtol=0, atol=1e-8)
    odds, p = model.decision_function(frame[:9]), model.predict_proba(frame[:9])
    np.testing.assert_allclose(odds, np.log(p[:, 1] / p[:, 0]), rtol=1e-6)
    at_estimate = sm.add_constant(X) @ expected.params + level
    np.testing.assert_allclose(odds, at_estimate[:9], atol=0.02)  # which is averaged over the posterior


def test_formulas_of_classes_and_of_counts():
    rng = np.random.default_rng(9)
    frame = pd.DataFrame({"x": rng.standard_normal(1500), "g": rng.choice(list("ab"), 1500)})
    frame["hours"] = rng.lognormal(size=1500)
    odds = frame.x + (frame.g == "b") - 0.5
    frame["late"] = np.where(rng.random(1500) < 1 / (1 + np.exp(-odds)), "yes", "no")
    frame["n"] = rng.poisson(frame.hours * np.exp(0.3 * frame.x))
    model = KalproxClassifier("late ~ x + C(g)", penalty=None).fit(frame)
    design = np.column_stack([np.ones(1500), frame.x, frame.g == "b"]).astype(float)
    expected = sm.Logit(frame.late == "yes", design).fit(disp=0, tol=1e-14, method="newton")
    np.testing.assert_allclose(np.append(model.intercept_, model.coef_), expected.params, rtol=0, atol=1e-8)
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(frame[["x", "g"]])) <= {"no", "yes"}
    counts = KalproxRegressor("n ~ x", penalty=None, likelihood="poisson").fit(frame, exposure="hours")
    expected = peer(frame[["x"]].to_numpy(), frame.n, frame.hours)
    np.testing.assert_allclose(np.append(counts.intercept_, counts.coef_), expected.params, rtol=0, atol=1e-8)
    np.testing.assert_allclose(counts.predict(frame), expected.fittedvalues, rtol=1e-2)
