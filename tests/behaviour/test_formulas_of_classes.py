"""A classifier fitted to a frame by a formula: labels keep their type, and classes their weights in every call."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import cross_val_score

from kalprox import KalproxClassifier


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    made = pd.DataFrame({"x": rng.normal(size=200), "w": rng.integers(1, 4, 200) * 1.0})
    score = made.x + rng.logistic(size=200)
    return made.assign(y=(score > 0).astype(int), three=(score > 0).astype(int) + (score > 1.5))


@pytest.mark.parametrize(
    "labels",
    [
        lambda y: y,
        lambda y: y == 1,
        lambda y: y.astype(float),
        lambda y: y.astype("uint8"),
        lambda y: pd.Categorical(y),
        lambda y: pd.array(y, dtype="boolean"),
        lambda y: np.where(y == 1, "yes", "no"),
    ],
    ids=["int", "bool", "float", "uint8", "category", "nullable", "text"],
)
def test_classes_are_values_of_the_column(frame, labels, tmp_path):
    data = frame.assign(y=labels(frame.y))
    y = np.asarray(data.y.tolist())
    model = KalproxClassifier(formula="y ~ x").fit(data)
    np.testing.assert_array_equal(model.classes_, np.unique(y))
    assert model.classes_.dtype.kind == y.dtype.kind and model.predict(data).dtype.kind == y.dtype.kind
    assert model.score(data, y) == model.score(data) == np.mean(model.predict(data) == y) > 0.6
    model.save(tmp_path / "m.kalprox")
    again = KalproxClassifier.load(tmp_path / "m.kalprox")
    np.testing.assert_array_equal(again.classes_, model.classes_)
    np.testing.assert_array_equal(again.predict(data), model.predict(data))
    np.testing.assert_array_equal(again.partial_fit(data[:30], y[:30]).coef_, model.partial_fit(data[:30]).coef_)


def test_a_formula_without_a_target_is_cross_validated(frame):
    found = [
        cross_val_score(KalproxClassifier(formula="~ x"), data, y, cv=3)
        for data, y in ((frame, frame.y), (frame, frame.y == 1), (frame, frame.y.map({0: "a", 1: "b"})))
    ]
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("target", ["y", "three"])
@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("way", ["frame", "polars", "labels", "late"])
def test_the_weights_of_classes_are_those_of_the_rows_in_later_calls_too(frame, target, weight, way):
    class_weight = {0: 1.0, 1: 3.0, 2: 2.0} if target == "three" else {0: 1.0, 1: 3.0}
    weights = frame[target].map(class_weight).to_numpy() * (1.0 if weight is None else frame[weight].to_numpy())
    settings = {"formula": f"{target} ~ x", "weight_kind": "precision"}
    expected = KalproxClassifier(**settings).fit(frame, sample_weight=weights)
    expected.partial_fit(frame[:100], sample_weight=weights[:100])
    model = KalproxClassifier(**settings, class_weight=class_weight, missing="drop").fit(frame, sample_weight=weight)
    later, labels = frame[:100], frame[target][:100]  # more rows than are learned one by one
    if way == "frame":
        model.partial_fit(later)
    elif way == "polars":
        model.partial_fit(pl.from_pandas(later))
    elif way == "labels":
        model.partial_fit(later.drop(columns=target), labels)
    else:
        model.partial_fit(later.drop(columns=target), np.full(100, np.nan), keys=range(100))
        model.learn_late(range(100), labels)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-10)


def test_a_target_may_be_named_like_a_keyword(frame):
    model = KalproxClassifier(formula="`class` ~ x").fit(frame.rename(columns={"y": "class"}))
    np.testing.assert_array_equal(model.classes_, [0, 1])
    np.testing.assert_array_equal(model.coef_, KalproxClassifier(formula="y ~ x").fit(frame).coef_)


def test_balanced_weights_need_all_rows(frame):
    model = KalproxClassifier(formula="y ~ x", class_weight="balanced").fit(frame)
    with pytest.raises(ValueError, match="class_weight='balanced' needs fit, which has all rows"):
        model.partial_fit(frame[:50])
