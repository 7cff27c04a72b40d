"""Frames of libraries that kalprox does not know by name: whatever streams Arrow is one, also if it is lazy."""

import duckdb
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from kalprox import KalproxClassifier, KalproxRegressor


def equal(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)  # frames differ in the order of their memory


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 200))
    g = rng.choice(["a", "b", "c"], 200)
    y = x - 2 * z + (g == "b") + 0.3 * rng.normal(size=200)
    return pd.DataFrame({"x": x, "z": z, "g": g, "y": y, "late": np.where(y > 0, "yes", "no")})


KINDS = {
    "polars": pl.from_pandas,
    "lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "record batch": pa.RecordBatch.from_pandas,
    "reader": lambda frame: pa.Table.from_pandas(frame).to_reader(),
    "narwhals": nw.from_native,
    "lazy narwhals": lambda frame: nw.from_native(frame).lazy(),
    "duckdb": lambda frame: duckdb.from_df(frame).filter("x < 1e9"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_gives_the_model_of_pandas(kind, data):
    made, numbers = KINDS[kind], data[["x", "z"]]
    expected = KalproxRegressor().fit(numbers, data.y)
    model = KalproxRegressor().fit(made(numbers), data.y)
    equal(model.coef_, expected.coef_)
    assert list(model.feature_names_in_) == ["x", "z"]
    equal(model.predict(made(numbers)), expected.predict(numbers))
    for one, other in zip(model.predict_interval(made(numbers)), expected.predict_interval(numbers), strict=True):
        equal(one, other)
    equal(model.score(made(numbers), data.y), expected.score(numbers, data.y))
    stream = (
        KalproxRegressor().partial_fit(made(numbers[:100]), data.y[:100]).partial_fit(made(numbers[100:]), data.y[100:])
    )
    np.testing.assert_allclose(stream.coef_, expected.coef_, rtol=1e-10)
    mean = KalproxRegressor().prequential(made(numbers), data.y)[0]
    equal(mean, KalproxRegressor().prequential(numbers, data.y)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_text_and_targets_of_every_frame_go_through_a_formula(kind, data):
    made = KINDS[kind]
    expected = KalproxClassifier("late ~ x + bs(z, df=4) + C(g)").fit(data)
    model = KalproxClassifier("late ~ x + bs(z, df=4) + C(g)").fit(made(data))
    equal(model.coef_, expected.coef_)
    equal(model.predict_proba(made(data)), expected.predict_proba(data))
    assert (model.predict(made(data)) == expected.predict(data)).all()
    assert model.score(made(data)) == expected.score(data)
    model.partial_fit(made(data)), expected.partial_fit(data)
    equal(model.coef_, expected.coef_)


@pytest.mark.parametrize("wrong", [pl.Series([1.0, 2.0]), pd.Series([1.0, 2.0]), pa.array([1.0, 2.0])])
def test_a_column_is_no_frame(wrong):
    with pytest.raises(ValueError, match=r"Expected (2D array|a 2-dimensional container)"):
        KalproxRegressor().fit(wrong, [1.0, 2.0])
