"""A row of a frame is encoded cell by cell as a table would be, and handed to the table if a cell is unusual."""

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from command import invoke

from kalprox import KalproxRegressor
from kalprox.estimators import frames
from kalprox.estimators.frames import FrameEncoder, encode
from kalprox.sources.columns import Columns

SETTINGS = {
    "reject": {"unseen": "reject", "drop_first": True},
    "zero": {"unseen": "zero", "drop_first": True},
    "full": {"drop_first": True, "full": ("g",)},
    "all": {},
}
OTHERS = ("weights", "groups", "offset", "times", "notes", "read")
GOOD = {"id": "=1", "h": "2", "y": 1.5, "a": 0.25, "g": "v", "b": 3}


def columns(target="y", **settings):
    levels = {"g": ("u", "v", "w w"), "h": ("1", "2", "2.50")}
    return Columns(target, None, ("a", "b"), levels, features=("g", "a", "h", "b"), **settings)


@pytest.mark.parametrize("target", ["y", None])
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.Table.from_pylist])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_row_is_encoded_as_a_table_is(name, frame, target, monkeypatch):
    encoder = FrameEncoder(columns(target, **SETTINGS[name]))
    tables = []
    monkeypatch.setattr(frames, "encode", lambda *args: tables.append(args) or encode(*args))
    for g in ("u", "v", "w w"):
        for h in ("1", "2", "2.50"):
            row = frame([GOOD | {"g": g, "h": h}])
            found, expected = encoder.encode(row), encode(encoder.columns, row)
            np.testing.assert_array_equal(found.X, expected.X)
            np.testing.assert_array_equal(found.y, expected.y)
            assert found.X.dtype == expected.X.dtype == np.float64
            assert all(getattr(found, name) == getattr(expected, name) for name in OTHERS)
    assert len(tables) == (9 if isinstance(row, pa.Table) else 0)


CELLS = {
    "a": [None, np.nan, np.inf, "1.5", "x", True, 2**53 + 1, 2**70, 1e80, Decimal("0.1"), -0.0, 7, np.float32(0.1)],
    "g": [None, np.nan, "", "u ", "U", "unknown", 1, 2.5, True, b"u", pd.Timestamp("2020-01-01")],
    "h": ["2.0", "2.5", 1, 2.0, "2.50 ", "02", "1"],
    "y": [None, np.nan, "1", "x", 2**53 + 1, 1e80, True],
    "id": [None, 1, [1]],
}
ODD = {f"{name}={value!r}": pd.DataFrame([GOOD | {name: value}]) for name, some in CELLS.items() for value in some}
ODD |= {f"polars {name}": pl.DataFrame([GOOD | {name: None}]) for name in GOOD}
ODD |= {
    "good": pd.DataFrame([GOOD]),
    "other order": pd.DataFrame([GOOD])[["y", "b", "a", "h", "g"]],
    "a double column": pd.DataFrame([[0.0, *GOOD.values()]], columns=["a", *GOOD]),
    "another double column": pd.DataFrame([["z", *GOOD.values()]], columns=["id", *GOOD]),
    "without the target": pd.DataFrame([GOOD]).drop(columns="y"),
    "without a feature": pd.DataFrame([GOOD]).drop(columns="h"),
    "a category": pd.DataFrame([GOOD]).astype({"g": "category", "h": "category"}),
    "an object": pd.DataFrame([GOOD]).astype(object),
    "nullable": pd.DataFrame([GOOD]).astype({"a": "Float64", "b": "Int64"}),
    "two rows": pd.DataFrame([GOOD, GOOD | {"g": "w w"}]),
    "no rows": pd.DataFrame([GOOD])[:0],
    "polars categorical": pl.DataFrame([GOOD]).with_columns(pl.col("g").cast(pl.Categorical)),
}


@pytest.fixture(scope="module", params=["reject", "zero"])
def model(request, tmp_path_factory):
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("levels")
    numbers = {name: rng.normal(size=200).round(3) for name in ("y", "a", "b")}
    texts = {"g": rng.choice(["u", "v", "w w"], 200), "h": rng.choice(["1", "2", "2.50"], 200)}
    pd.DataFrame(numbers | texts).to_csv(folder / "rows.csv", index=False)
    options = ["--target", "y", "--categorical", "h", "--unseen", request.param]
    invoke("fit", folder / "rows.csv", *options, "--out", folder / "model.kalprox", "-q")
    return KalproxRegressor.load(folder / "model.kalprox")


def outcome(model, call):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = call(model)
            found = None if found is model else np.asarray(found).tolist()
        except Exception as error:
            found = type(error), str(error)
    record = model._table.record.quality
    return repr((found, [str(one.message) for one in said], model.coef_.tolist(), model.n_rows_seen_, record))


@pytest.mark.parametrize("name", ODD)
def test_odd_cells_do_what_the_table_says(name, model, monkeypatch):
    X = ODD[name]
    for call in (
        lambda model: model.predict(X),
        lambda model: model.partial_fit(X),
        lambda model: model.partial_fit(X, [2.0]),
        lambda model: model.set_params(missing="drop").partial_fit(X),
    ):
        models = copy.deepcopy(model), copy.deepcopy(model)
        outcome(models[0], lambda model: model.predict(pd.DataFrame([GOOD])))  # the columns of another frame
        found = outcome(models[0], call)
        with monkeypatch.context() as patch:
            patch.setattr(frames.FrameEncoder, "_encode_row", lambda *args: None)
            assert outcome(models[1], call) == found


def test_threads_with_columns_in_other_orders_do_not_mix_them(model):
    orders = [["g", "h", "a", "b"], ["b", "a", "h", "g"], ["a", "g", "b", "h"]]
    frames = [pd.DataFrame([GOOD | {"a": 5.0 * i, "b": -3.0}])[order] for i, order in enumerate(orders)]
    expected = [model.predict(frame)[0] for frame in frames]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda i: model.predict(frames[i % 3])[0], range(600)))
    assert found == [expected[i % 3] for i in range(600)]
