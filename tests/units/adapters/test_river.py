"""Models for River: its own checks, rows with features and classes that come later, pipelines, and mistakes."""

import copy
import math
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river import (
    checks,
    compose,
    datasets,
    drift,
    ensemble,
    evaluate,
    feature_extraction,
    metrics,
    preprocessing,
    stats,
    stream,
)

from kalprox import KalproxClassifier, KalproxRegressor, penalties
from kalprox.adapters.river import RiverClassifier, RiverRegressor
from kalprox.sources.labels import level_hash

SLOW = ("check_bounded_memory_growth",)


def own_checks():
    """Every check of River, for every set of parameters that the models name for it."""
    for kind in (RiverRegressor, RiverClassifier):
        for i, parameters in enumerate(kind._unit_test_params()):
            model = kind(**parameters)
            assert not model._unit_test_skips()
            for j, check in enumerate(checks.yield_checks(model)):
                slow = kind is RiverClassifier and check.__name__ in SLOW
                yield pytest.param(
                    model,
                    check,
                    id=f"{kind.__name__}{i}-{check.__name__}-{j}",
                    marks=[pytest.mark.slow] if slow or (kind is RiverClassifier and i) else [],
                )


@pytest.mark.slow
@pytest.mark.parametrize(("model", "check"), list(own_checks()))
def test_river_checks(model, check):
    check(model.clone())


def late_rows(n=300, seed=0):
    """Rows of which a feature comes at row 40, another at row 150, and one that comes and goes; dense and as dicts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    X[:40, 2] = X[:150, 4] = 0.0
    X[rng.random(n) < 0.5, 3] = 0.0
    X[:10, 3] = 0.0
    rows = [{f"x{j}": v for j, v in enumerate(x.tolist()) if v != 0} for x in X]
    y = 1 + X @ [1.0, -2.0, 0.5, 1.5, -1.0] + 0.5 * rng.normal(size=n)
    return X, y, rows


SETTINGS = {
    "ridge": {},
    "none": {"penalty": None},
    "standardize": {"standardize": True},
    "l1": {"penalty": "l1", "alpha": 5.0},
    "auto": {"alpha": "auto"},
    "forget": {"forget": 0.99},
    "robust": {"coef_cov": "robust"},
    "no intercept": {"fit_intercept": False},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_late_features_equal_columns_of_zeros(settings):
    X, y, rows = late_rows()
    model = RiverRegressor(**settings)
    for row, target in zip(rows, y, strict=True):
        model.learn_one(row, target)
    dense = KalproxRegressor(**({"penalty": "ridge"} | settings))
    for i in range(len(y)):
        dense.partial_fit(X[i : i + 1], y[i : i + 1])
    found = model.to_estimator()
    order = [list(found.feature_names_in_).index(f"x{j}") for j in range(5)]
    np.testing.assert_allclose(found.coef_[order], dense.coef_, rtol=1e-9)
    np.testing.assert_allclose(found.coef_std_[order], dense.coef_std_, rtol=1e-9)
    new = dict(zip((f"x{j}" for j in range(5)), X[0] + 1, strict=True))
    predicted = model.predict_one(new, with_dist=True)
    mean, std = dense.predict(X[:1] + 1, return_std=True)
    held = "standardize" in settings or "alpha" in settings  # scales and alpha, for a few single rows
    near = 0.02 if held else 1e-9
    assert abs(predicted.mu - mean[0]) < near * std[0] and math.isclose(predicted.scale, std[0], rel_tol=near)
    assert model.predict_one(new) == pytest.approx(predicted.mu, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["poisson", "huber"])
def test_late_features_of_other_likelihoods_end_at_the_same_estimate(likelihood):
    X, y, rows = late_rows(400)
    y = np.round(np.exp(np.clip(y / 4, -3, 3))) if likelihood == "poisson" else y
    model, dense = RiverRegressor(likelihood=likelihood), KalproxRegressor(likelihood=likelihood, penalty="ridge")
    for i, row in enumerate(rows):
        model.learn_one(row, y[i])
        dense.partial_fit(X[i : i + 1], y[i : i + 1])
    found = model.to_estimator()
    order = [list(found.feature_names_in_).index(f"x{j}") for j in range(5)]
    # The warm-ups ended at other rows: nothing but the linearisation differs, by far less than a standard error.
    assert (np.abs(found.coef_[order] - dense.coef_) < 0.05 * dense.coef_std_).all()


def test_a_feature_that_was_never_learned_is_as_uncertain_as_its_prior():
    _, y, rows = late_rows()
    known = RiverRegressor(alpha=4.0, noise=2.0)
    for row, target in zip(rows, y, strict=True):
        known.learn_one(row, target)
    here, new = known.predict_one(rows[0], with_dist=True), known.predict_one({**rows[0], "new": 3.0}, with_dist=True)
    assert new.mu == pytest.approx(here.mu, rel=1e-12)
    assert new.sigma**2 == pytest.approx(here.sigma**2 + 2.0 * 3.0**2 / 4.0, rel=1e-12)  # noise * x^2 / alpha
    assert known.predict_one({**rows[0], "new": 3.0}) == pytest.approx(here.mu, rel=1e-12)
    assert known.to_estimator().n_features_in_ == 5  # predicting adds no feature
    free = RiverRegressor(penalty=None)
    for row, target in zip(rows, y, strict=True):
        free.learn_one(row, target)
    assert free.predict_one({**rows[0], "new": 3.0}, with_dist=True).sigma == math.inf


def test_batches_and_single_rows_give_the_same_model():
    X, y, rows = late_rows()
    one, many = RiverRegressor(), RiverRegressor()
    for row, target in zip(rows, y, strict=True):
        one.learn_one(row, target)
    many.learn_many(pd.DataFrame(X[:100, :4], columns=[f"x{j}" for j in range(4)]), pd.Series(y[:100]))
    many.learn_many(pl.DataFrame(X[100:], schema=[f"x{j}" for j in range(5)]), pl.Series(y[100:]))
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(5)], index=range(7, 307))
    found = many.predict_many(frame)
    np.testing.assert_allclose(found, [one.predict_one(row) for row in rows], rtol=1e-9)
    assert isinstance(found, pd.Series) and found.index.equals(frame.index)
    assert isinstance(many.predict_many(pl.DataFrame(X[:3], schema=list(frame.columns))), pl.Series)
    assert many.predict_many(frame[:0]).empty


def test_weights_are_repetitions():
    _, y, rows = late_rows(60)
    once, twice = RiverRegressor(), RiverRegressor()
    for row, target in zip(rows, y, strict=True):
        once.learn_one(row, target, w=2.0)
        twice.learn_one(row, target)
        twice.learn_one(row, target)
    np.testing.assert_allclose(once.to_estimator().coef_, twice.to_estimator().coef_, rtol=1e-9)


def classes(n=400, m=3, seed=0, third=0):
    """Rows of m classes, of which the third and later ones come at row `third`."""
    rng = np.random.default_rng(seed)
    X, B = rng.normal(size=(n, 3)), 1.5 * rng.normal(size=(3, m))
    f = X @ B - np.log(-np.log(rng.random((n, m))))
    f[:third, 2:] = -np.inf
    return [dict(zip("abc", x, strict=True)) for x in X.tolist()], X, f.argmax(axis=1)


def test_two_classes_equal_the_estimator():
    rows, X, y = classes(m=2)
    model, dense = RiverClassifier(), KalproxClassifier()
    for i, row in enumerate(rows):
        model.learn_one(row, bool(y[i]))
        dense.partial_fit(X[i : i + 1], y[i : i + 1].astype(bool), classes=[False, True])
    np.testing.assert_allclose(model.to_estimator().coef_, dense.coef_, rtol=1e-9)
    found = model.predict_proba_one(rows[0])
    assert found[True] == pytest.approx(dense.predict_proba(X[:1])[0, 1], rel=1e-9) and sum(found.values()) == 1
    assert model.to_estimator().classes_.tolist() == [False, True]


@pytest.mark.slow
def test_classes_named_beforehand_equal_the_estimator():
    rows, X, y = classes(300)
    model, dense = RiverClassifier(classes=(0, 1, 2)), KalproxClassifier()
    for i, row in enumerate(rows):
        model.learn_one(row, y[i])
        dense.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1, 2])
    np.testing.assert_allclose(model.to_estimator().coef_, dense.coef_, rtol=1e-8)


def test_a_class_that_comes_during_the_warm_up_equals_one_that_was_known():
    rows, _, y = classes(200, third=30)
    late, known = RiverClassifier(), RiverClassifier(classes=(0, 1, 2))
    for i, row in enumerate(rows):
        late.learn_one(row, int(y[i]))
        known.learn_one(row, int(y[i]))
    found, dense = late.to_estimator(), known.to_estimator()
    order = [list(found.classes_).index(c) for c in (0, 1, 2)]
    np.testing.assert_allclose(found.coef_[order], dense.coef_, atol=0.02 * dense.coef_std_.min())


@pytest.mark.slow
def test_a_class_that_comes_later_is_learned_as_fast_as_one_that_was_known():
    """The log loss after the third class has come, over two streams, is that of a model that knew it, within 2%."""
    lost = []
    for seed in range(2):
        rows, _, y = classes(500, seed=seed, third=200)
        late, known = RiverClassifier(), RiverClassifier(classes=(0, 1, 2))
        for i, row in enumerate(rows):
            if i > 210:
                lost.append([-math.log(model.predict_proba_one(row)[y[i]]) for model in (late, known)])
            late.learn_one(row, int(y[i]))
            known.learn_one(row, int(y[i]))
    late, known = np.mean(lost, axis=0)
    assert late < 1.02 * known
    assert late < 0.95 * math.log(3)


def test_the_first_prediction_of_a_new_class_is_that_of_one_row():
    rows, _, y = classes(600, m=2)
    model = RiverClassifier()
    for i, row in enumerate(rows):
        model.learn_one(row, "ab"[y[i]])
    before = model.predict_proba_one({})
    model.learn_one(rows[0], "c")
    after = model.predict_proba_one({})
    assert set(after) == {"a", "b", "c"} and 1e-4 < after["c"] < 0.02  # one row in 601, and some uncertainty
    assert after["a"] / after["b"] == pytest.approx(before["a"] / before["b"], rel=0.1)


def test_labels_as_they_come():
    model = RiverClassifier()
    assert model.predict_proba_one({"a": 1.0}) == {} and model.predict_one({"a": 1.0}) is None
    assert model.predict_many(pd.DataFrame({"a": [1.0]})).tolist() == [None]
    model.learn_one({"a": 1.0}, "x")
    assert model.predict_proba_one({"a": 1.0}) == {"x": 1.0}
    with pytest.raises(ValueError, match=r"needs two classes; those that have come are \['x'\]"):
        model.to_estimator()
    model.learn_one({"a": 0.0}, "y")
    assert set(model.predict_proba_one({"a": 1.0})) == {"x", "y"}
    model.learn_one({"b": 1.0}, "z")
    model.learn_one({"b": 2.0}, "w")
    found = model.predict_proba_one({"a": 1.0, "new": 3.0})
    assert list(found) == ["x", "y", "z", "w"] and sum(found.values()) == pytest.approx(1)
    for label in (None, math.nan):
        with pytest.raises(ValueError, match=r"y must be the label of a class"):
            model.learn_one({"a": 1.0}, label)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_copies_go_on_as_the_model_does(kind):
    _, y, rows = late_rows(120)
    model = RiverRegressor() if kind == "regressor" else RiverClassifier()
    labels = y if kind == "regressor" else np.digitize(y, [0.0, 2.0])
    for row, target in zip(rows[:80], labels[:80], strict=True):
        model.learn_one(row, target)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for one in (model, *copies):
        for row, target in zip(rows[80:], labels[80:], strict=True):
            one.learn_one(row, target)
    estimators = [one.to_estimator() for one in (model, *copies)]
    for found in estimators[1:]:
        np.testing.assert_allclose(found.coef_, estimators[0].coef_, rtol=1e-9)


def test_pipelines_of_river():
    data = datasets.TrumpApproval().take(300)
    scaled = preprocessing.StandardScaler() | RiverRegressor()
    assert evaluate.progressive_val_score(data, scaled, metrics.MAE()).get() < 2
    chosen = compose.Select("gallup", "ipsos") + (
        compose.Select("ordinal_date") | feature_extraction.PolynomialExtender(degree=2)
    )
    model = chosen | preprocessing.StandardScaler() | RiverRegressor()
    assert evaluate.progressive_val_score(datasets.TrumpApproval().take(300), model, metrics.MAE()).get() < 2
    drifting = drift.DriftRetrainingClassifier(
        model=preprocessing.StandardScaler() | RiverClassifier(), drift_detector=drift.binary.DDM()
    )
    found = evaluate.progressive_val_score(datasets.Phishing().take(400), drifting, metrics.Accuracy())
    assert found.get() > 0.8
    bag = ensemble.BaggingRegressor(preprocessing.StandardScaler() | RiverRegressor(), n_models=2, seed=1)
    assert evaluate.progressive_val_score(datasets.TrumpApproval().take(200), bag, metrics.MAE()).get() < 5
    group = feature_extraction.TargetAgg(by="f", how=stats.Mean())
    rows = [({"f": i % 3, "x": float(i % 5)}, float(i % 3 + i % 5)) for i in range(60)]
    model = (compose.Select("x") + group) | RiverRegressor()
    assert evaluate.progressive_val_score(rows, model, metrics.MAE()).get() < 1


def test_words_that_come_as_they_are_written():
    texts = [("good fine", 1.0), ("bad", -1.0), ("good bad ugly", -0.5), ("", 0.0), ("fine fine", 1.0)] * 20
    model = feature_extraction.BagOfWords() | RiverRegressor()
    for text, y in texts:
        model.learn_one(text, y)
    assert model.predict_one("fine") > 0.2 > model.predict_one("bad")
    hashed = feature_extraction.BagOfWords() | RiverRegressor(hash_bits=6)
    for text, y in texts:
        hashed.learn_one(text, y)
    assert hashed.predict_one("fine") == pytest.approx(model.predict_one("fine"), abs=1e-6)  # no two words collide
    assert hashed["RiverRegressor"].to_estimator().n_features_in_ == 64


def test_hashed_rows_equal_a_signed_matrix():
    rows = [{"id": f"n{i % 17}", "x": i / 10, "flag": bool(i % 2)} for i in range(80)]
    y = [float(i % 17) for i in range(80)]
    model = RiverRegressor(hash_bits=4)
    X = np.zeros((80, 16))
    for i, row in enumerate(rows):
        for name, value in row.items():
            found = level_hash(f"{name}={value}" if isinstance(value, str) else name)
            X[i, found % 16] += (-1.0 if found >> 47 else 1.0) * (1.0 if isinstance(value, str) else value)
        model.learn_one(row, y[i])
    dense = KalproxRegressor(penalty="ridge").fit(X, y)
    np.testing.assert_allclose(model.to_estimator().coef_, dense.coef_, rtol=1e-8, atol=1e-10)
    batch = RiverRegressor(hash_bits=4)
    batch.learn_many(pd.DataFrame(rows), pd.Series(y))
    np.testing.assert_allclose(batch.to_estimator().coef_, dense.coef_, rtol=1e-8, atol=1e-10)
    with pytest.raises(ValueError, match=r"hash_bits must be at most 12; got 20.* 8.19e\+03 GiB"):
        RiverRegressor(hash_bits=20).learn_one({"a": 1.0}, 1.0)


def test_mistakes_are_named():
    model = RiverRegressor()
    with pytest.raises(TypeError, match=r"Feature 'c' must be a number; got 'red'. Encode text"):
        model.learn_one({"c": "red"}, 1.0)
    model.learn_one({"a": 1.0}, 1.0)
    before = model.predict_one({"a": 2.0})
    for x, y in (({"a": math.nan}, 1.0), ({"a": None}, 1.0), ({"a": 1e99}, 1.0), ({"a": 1.0, "b": math.inf}, 1.0)):
        with pytest.raises(ValueError, match=r"A row is bad and was not learned: feature '[ab]' is"):
            model.learn_one(x, y)
    with pytest.raises(ValueError, match=r"the target is nan"):
        model.learn_one({"a": 1.0}, math.nan)
    with pytest.raises(ValueError, match=r"the weight is -1"):
        model.learn_one({"a": 1.0}, 1.0, w=-1)
    with pytest.raises(ValueError, match=r"A row cannot be predicted: feature 'a' is nan"):
        model.predict_one({"a": math.nan})
    assert model.predict_one({"a": 2.0}) == before and model.to_estimator().n_features_in_ == 1
    skipping = RiverRegressor(missing="drop")
    skipping.learn_one({"a": None}, 1.0)
    skipping.learn_one({"a": 1.0}, 2.0)
    skipping.learn_one({"a": math.nan, "b": 1.0}, 2.0)
    assert skipping.n_rows_rejected == 2 and skipping.to_estimator().n_rows_seen_ == 1
    with pytest.raises(ValueError, match=r"Nothing has been learned yet"):
        RiverRegressor().to_estimator()
    for parameters, text in (
        ({"penalty": "group"}, "penalty must not be about features by their positions"),
        ({"link": lambda theta, x: x[0]}, "link must be one of"),
        ({"penalty": penalties.Box([0.0, 1.0], 2.0)}, "penalty must not be about features by their positions"),
        ({"alpha": -1.0}, "alpha"),
    ):
        with pytest.raises(ValueError, match=text):
            RiverRegressor(**parameters).learn_one({"a": 1.0}, 1.0)
    with pytest.raises(ValueError, match=r"class_weight='balanced' needs all rows"):
        RiverClassifier(class_weight="balanced").learn_one({"a": 1.0}, True)
    with pytest.raises(ValueError, match=r"classes must have at least two labels"):
        RiverClassifier(classes=("a",)).learn_one({"a": 1.0}, "a")


def test_rows_without_a_feature():
    model = RiverRegressor()
    model.learn_one({}, 3.0)
    assert model.predict_one({}) == pytest.approx(3.0)
    model.learn_one({}, 5.0)
    model.learn_one({"a": 2.0}, 4.0)
    assert model.predict_one({}) == pytest.approx(4.0, abs=1e-6)


def test_iterating_over_arrays():
    X, y, _ = late_rows(200)
    model = RiverRegressor(penalty=None)
    for x, target in stream.iter_array(X, y):
        model.learn_one(x, target)
    dense = KalproxRegressor(penalty=None).fit(X, y)
    np.testing.assert_allclose(model.to_estimator().coef_, dense.coef_, rtol=1e-8)
