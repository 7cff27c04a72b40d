"""Rows of plain numbers skip the checks of scikit-learn, with the bits of arrays, and the errors of these checks."""

import copy
import fractions
import pickle
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from kalprox import KalproxRegressor
from kalprox.estimators import base, streaming
from kalprox.estimators import rows as checks

D, NAMES = 4, ["a", "b", "c", "d"]


def rows(n=64, k=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).round(3)
    return X, X @ rng.normal(size=(D, k) if k else D) + rng.normal(size=(n, k) if k else n)


def frame(X):
    return pd.DataFrame(X, columns=NAMES)


INPUTS = {
    "array": np.asarray,
    "fortran": np.asfortranarray,
    "list": lambda X: X.tolist(),
    "tuple": lambda X: tuple(map(tuple, X.tolist())),
    "list of arrays": list,
    "nameless frame": pd.DataFrame,
    "frame": frame,
    "frame of rows": lambda X: pd.DataFrame([dict(zip(NAMES, x, strict=True)) for x in X.tolist()]),
    "slice of a frame": lambda X: frame(np.vstack([X, X])).iloc[len(X) :],
    "polars": lambda X: pl.DataFrame(X, schema=NAMES, orient="row"),
    "pyarrow": lambda X: pa.Table.from_pandas(frame(X)),
    "pyarrow in pieces": lambda X: pa.concat_tables([pa.Table.from_pandas(frame(x[None])) for x in X]),
}
NAMED = [name for name in INPUTS if "frame" in name or name in ("polars", "pyarrow", "pyarrow in pieces")]
NAMED.remove("nameless frame")
BY_COLUMNS = ["fortran", *(name for name in INPUTS if "frame" in name), "polars"]  # whose numbers lie column by column
TARGETS = {
    "array": np.asarray,
    "list": lambda y: y.tolist(),
    "tuple": lambda y: tuple(y.tolist()),
    "list of scalars": list,
    "pandas": lambda y: pd.Series(y) if y.ndim == 1 else pd.DataFrame(y),
    "polars": lambda y: pl.Series(y) if y.ndim == 1 else pl.DataFrame(y),
}


def first(name, X, y, **settings):
    """A model that was fitted to the first rows, with names if the later rows have any."""
    return KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(frame(X) if name in NAMED else X, y)


def readings(model, X):
    mean, std = model.predict(X, return_std=True)
    return [model.coef_, model.coef_std_, model.intercept_, model.noise_var_, model.n_rows_seen_, mean, std]


@pytest.fixture
def checked(monkeypatch):
    """Count the calls of scikit-learn's checks."""
    calls = []
    for module, name in (
        (checks, "validate_data"),
        (checks, "_check_sample_weight"),
        (base, "check_is_fitted"),
    ):
        of = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, of=of, name=name, **k: calls.append(name) or of(*a, **k))
    return calls


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("name", INPUTS)
def test_inputs_of_any_kind_have_the_bits_of_arrays_without_checks(name, size, checked):
    X, y = rows()
    X = np.asarray(X, order="F" if name in BY_COLUMNS else "C")  # the order of sums
    models = first("array", X[:32], y[:32]), first(name, X[:32], y[:32])
    later = [slice(start, start + size) for start in range(32, 64, size)]
    convert = INPUTS[name]
    models[1].predict(convert(X[later[0]]))
    checked.clear()
    for some in later:
        expected = models[0].predict(X[some], return_std=True), models[0].predict(X[some])
        found = models[1].predict(convert(X[some]), return_std=True), models[1].predict(convert(X[some]))
        for mine, theirs in zip((*found[0], found[1]), (*expected[0], expected[1]), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        models[0].partial_fit(X[some], y[some])
        models[1].partial_fit(convert(X[some]), y[some])
    low, high = models[1].predict_interval(convert(X[:1]))
    assert low < high
    assert checked == []
    for mine, theirs in zip(readings(models[1], convert(X)), readings(models[0], X), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    scores = (vars(model.diagnostics_).items() for model in models)
    for (name, mine), (_, theirs) in zip(*scores, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=name)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("name", TARGETS)
def test_targets_and_weights_of_any_kind_have_the_bits_of_arrays_without_checks(name, k, weighted, checked):
    X, y = rows(k=k)
    weights, convert = np.random.default_rng(1).integers(1, 5, 64).astype(float), TARGETS[name]
    models = (
        KalproxRegressor(penalty="ridge").partial_fit(X[:32], y[:32]),
        KalproxRegressor(penalty="ridge").partial_fit(X[:32], y[:32]),
    )
    checked.clear()
    for start, size in [(32, 1), (33, 1), (34, 1), (35, 8), (43, 21)]:
        some = slice(start, start + size)
        w = weights[some] if weighted else None
        models[0].partial_fit(X[some], y[some], w)
        models[1].partial_fit(X[some].tolist(), convert(y[some]), convert(w) if weighted else None)
    mean, std = models[1].prequential(X[:5].tolist(), convert(y[:5]), convert(weights[:5]) if weighted else None)
    assert checked == []
    expected = models[0].prequential(X[:5], y[:5], weights[:5] if weighted else None)
    np.testing.assert_array_equal([mean, std], expected)
    for mine, theirs in zip(readings(models[1], X), readings(models[0], X), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("settings", [{"forget": 0.99}, {"penalty": "l1"}, {"link": "tanh"}, {"missing": "drop"}])
def test_other_models_skip_the_checks_too(settings, checked):
    X, y = rows(200)
    X, y = np.asfortranarray(X), np.tanh(y / 10)
    models = first("array", X[:180], y[:180], **settings), first("frame", X[:180], y[:180], **settings)
    checked.clear()
    for i in range(180, 184):
        for model, convert in zip(models, (np.asarray, frame), strict=True):
            model.predict(convert(X[i : i + 1]))
            model.partial_fit(convert(X[i : i + 1]), y[i : i + 1])
    assert checked == []
    np.testing.assert_array_equal(models[0].predict(X), models[1].predict(frame(X)))


# ---- what is not plain ------------------------------------------------------------------------------------------

GOOD = [[1.0, 2.0, 3.0, 4.0]]
BIG = 2**53 + 1


def with_cell(value, kind=list):
    """One row of which one cell is this value."""
    if kind is list:
        return [[1.0, value, 3.0, 4.0]]
    return kind({"a": [1.0], "b": [value], "c": [3.0], "d": [4.0]})


class Odd:
    """What looks like an array, and is none."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array")


ODD_INPUTS = {
    "good": GOOD,
    "NaN": with_cell(np.nan),
    "infinity": with_cell(-np.inf),
    "too large": with_cell(1e80),
    "None": with_cell(None),
    "text": with_cell("2.0"),
    "word": with_cell("two"),
    "bool": [[True, False, True, True]],
    "bool and numbers": with_cell(True),
    "big int": [[BIG, 1, 2, 3]],
    "big int and floats": with_cell(BIG),
    "huge int": with_cell(2**70),
    "huger int": with_cell(10**400),
    "uint64": [[2**64 - 1, 1, 2, 3]],
    "complex": with_cell(1j),
    "fraction": with_cell(fractions.Fraction(1, 3)),
    "decimal": with_cell(Decimal("0.1")),
    "date": with_cell(np.datetime64("2020-01-01")),
    "odd": with_cell(Odd()),
    "ragged": [[1.0, 2.0, 3.0, 4.0], [1.0]],
    "narrow": [[1.0, 2.0, 3.0]],
    "wide": [[1.0, 2.0, 3.0, 4.0, 5.0]],
    "1-d": [1.0, 2.0, 3.0, 4.0],
    "3-d": [GOOD],
    "0-d": np.array(1.0),
    "number": 3.0,
    "nothing": None,
    "a string": "rows",
    "empty list": [],
    "no rows": np.empty((0, D)),
    "no columns": np.empty((1, 0)),
    "float32": np.array(GOOD, np.float32),
    "float16": np.array(GOOD, np.float16),
    "longdouble": np.array(GOOD, np.longdouble),
    "int8": np.array(GOOD, np.int8),
    "other byte order": np.array(GOOD, ">f8"),
    "object": np.array(GOOD, object),
    "bool array": np.array([[True, False, True, True]]),
    "complex array": np.array(GOOD, complex),
    "text array": np.array(GOOD, str),
    "masked": np.ma.masked_array(GOOD, [[0, 1, 0, 0]]),
    "matrix": np.ma.masked_array(GOOD),
    "sparse": scipy.sparse.csr_array(GOOD),
    "frame": frame(GOOD),
    "frame in other order": frame(GOOD)[NAMES[::-1]],
    "frame with a name too many": frame(GOOD).assign(e=1.0),
    "frame without a name": frame(GOOD)[NAMES[1:]],
    "frame with other names": frame(GOOD).rename(columns={"b": "B"}),
    "frame with numbers as names": pd.DataFrame(GOOD),
    "frame with mixed names": pd.DataFrame(GOOD, columns=["a", 1, "c", "d"]),
    "frame with NumPy's strings": pd.DataFrame(GOOD, columns=pd.Index([np.str_(name) for name in NAMES], dtype=object)),
    "frame with a double name": pd.DataFrame(GOOD, columns=["a", "a", "c", "d"]),
    "frame with two levels of names": pd.DataFrame(GOOD, columns=pd.MultiIndex.from_product([["x", "y"], ["a", "b"]])),
    "frame of several types": frame(GOOD).astype({"a": "int64", "b": "float32", "c": "uint8"}),
    "frame of ints": frame([[BIG, 1, 2, 3]]),
    "frame with NaN": with_cell(np.nan, pd.DataFrame),
    "frame with None": with_cell(None, pd.DataFrame),
    "frame with text": with_cell("2.0", pd.DataFrame),
    "frame with a word": with_cell("two", pd.DataFrame),
    "frame with a bool": with_cell(True, pd.DataFrame),
    "frame with a date": with_cell(pd.Timestamp("2020-01-01"), pd.DataFrame),
    "frame with a category": frame(GOOD).astype({"b": "category"}),
    "frame of nullable numbers": frame(GOOD).astype("Float64"),
    "frame with a nullable number": frame(GOOD).astype({"b": "Int64"}),
    "frame with NA": frame(GOOD).astype("Float64").mask([[False, True, False, False]]),
    "frame of arrow": frame(GOOD).astype("double[pyarrow]"),
    "frame of sparse columns": frame(GOOD).astype(pd.SparseDtype(float, 0.0)),
    "frame with a sparse column": frame(GOOD).astype({"b": pd.SparseDtype(float, 0.0)}),
    "frame of objects": frame(GOOD).astype(object),
    "frame of complex": frame(GOOD).astype(complex),
    "empty frame": frame(GOOD).iloc[:0],
    "series": pd.Series(GOOD[0], index=NAMES),
    "polars frame": pl.DataFrame(GOOD, schema=NAMES, orient="row"),
    "polars frame in other order": pl.DataFrame(GOOD, schema=NAMES, orient="row")[NAMES[::-1]],
    "polars frame with null": with_cell(None, pl.DataFrame),
    "polars frame with text": with_cell("2.0", pl.DataFrame),
    "polars frame with a bool": with_cell(True, pl.DataFrame),
    "polars frame with an int": with_cell(BIG, pl.DataFrame),
    "polars frame with a decimal": with_cell(Decimal("0.1"), pl.DataFrame),
    "polars lazy frame": pl.DataFrame(GOOD, schema=NAMES, orient="row").lazy(),
    "empty polars frame": pl.DataFrame(GOOD, schema=NAMES, orient="row")[:0],
    "pyarrow table with an int": with_cell(7, pa.table),
    "pyarrow table with null": with_cell(None, pa.table),
    "pyarrow table with text": with_cell("2.0", pa.table),
    "pyarrow table with a bool": with_cell(True, pa.table),
    "empty pyarrow table": pa.Table.from_pandas(frame(GOOD))[:0],
    "pyarrow batch": pa.RecordBatch.from_pandas(frame(GOOD)),
}
ODD_INPUTS |= {
    f"two rows: {name}": [*GOOD, *ODD_INPUTS[name]] for name in ("NaN", "None", "text", "bool and numbers", "narrow")
}
ODD_TARGETS = {
    "good": [1.0],
    "NaN": [np.nan],
    "infinity": np.array([np.inf]),
    "too large": [1e80],
    "None": [None],
    "text": ["1.0"],
    "word": ["one"],
    "bool": [True],
    "bool array": np.array([True]),
    "int": [3],
    "big int": np.array([BIG]),
    "huge int": [2**70],
    "complex": [1j],
    "decimal": [Decimal("0.1")],
    "odd": [Odd()],
    "0-d": np.float64(1.0),
    "number": 1.0,
    "nothing": None,
    "too many": [1.0, 2.0],
    "none": [],
    "column": [[1.0]],
    "two targets": [[1.0, 2.0]],
    "no target": np.empty((1, 0)),
    "3-d": [[[1.0]]],
    "ragged": [[1.0], [1.0, 2.0]],
    "object": np.array([1.0], object),
    "float32": np.array([1.5], np.float32),
    "masked": np.ma.masked_array([1.0], [True]),
    "sparse": scipy.sparse.csr_array([[1.0]]),
    "series": pd.Series([1.0]),
    "series with an index": pd.Series([1.0], index=["z"], name="y"),
    "series of bool": pd.Series([True]),
    "series of text": pd.Series(["one"]),
    "series of nullable numbers": pd.Series([1], dtype="Int64"),
    "series with NA": pd.Series([pd.NA], dtype="Float64"),
    "sparse series": pd.Series([1.0], dtype=pd.SparseDtype(float, 0.0)),
    "frame": pd.DataFrame([1.0]),
    "frame of text": pd.DataFrame(["one"]),
    "polars series": pl.Series([1.0]),
    "polars series with null": pl.Series([None], dtype=pl.Int64),
    "polars series of bool": pl.Series([True]),
    "pyarrow": pa.array([1.0]),
}
ODD_WEIGHTS = {
    "good": [2.0],
    "number": 2.0,
    "NaN": [np.nan],
    "infinity": [np.inf],
    "too large": [1e80],
    "negative": [-1.0],
    "zero": [0.0],
    "int zero": np.array([0]),
    "None": [None],
    "text": ["2.0"],
    "bool": [True],
    "int": [2],
    "too many": [1.0, 2.0],
    "2-d": [[2.0]],
    "0-d": np.array(2.0),
    "object": np.array([2.0], object),
    "series": pd.Series([2.0]),
    "complex": [1j],
}


def outcome(model, call):
    """What a call returns or raises, what it warns of, and the model after it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = call(model)
            found = None if found is model else np.asarray(found).tolist()
        except Exception as error:
            found = type(error), str(error), type(error.__cause__)
    after = model.coef_.tolist(), model.n_rows_seen_, model.n_rows_rejected_, model.get_params()
    return repr((found, [(one.category, str(one.message)) for one in said], after))


@pytest.fixture(scope="module")
def fitted():
    X, y = rows()
    return {
        "array": KalproxRegressor(penalty="ridge").fit(X, y),
        "frame": KalproxRegressor(penalty="ridge").fit(frame(X), y),
        "skip": KalproxRegressor(missing="drop", penalty="ridge").fit(frame(X), y),
        "tanh": KalproxRegressor(link="tanh", penalty="ridge").fit(X, np.tanh(y / 10)),
    }


def check_same(model, call, monkeypatch):
    """Require that a call does the same whether or not plain rows are looked for."""
    models = copy.deepcopy(model), copy.deepcopy(model)
    found = outcome(models[0], call)
    with monkeypatch.context() as patch:
        patch.setattr(base, "plain_inputs", lambda *a: None)
        patch.setattr(streaming, "plain_rows", lambda *a, **k: None)
        for module in (base, streaming):
            patch.setattr(module, "is_plain_row", lambda *a: False)
        expected = outcome(models[1], call)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "frame", "skip"])
@pytest.mark.parametrize("name", ODD_INPUTS)
def test_odd_inputs_do_what_the_checks_say(name, kind, fitted, monkeypatch):
    X = ODD_INPUTS[name]
    y = [1.0] * (2 if "two rows" in name or name == "ragged" else 1)
    for call in (
        lambda model: model.predict(X, return_std=True),
        lambda model: model.partial_fit(X, y),
        lambda model: model.partial_fit(X, np.array(y)),
        lambda model: model.partial_fit(X, np.array(y), np.full(len(y), 2.0)),
        lambda model: model.prequential(X, y, [2.0] * len(y)),
    ):
        check_same(fitted[kind], call, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "skip", "tanh"])
@pytest.mark.parametrize("name", ODD_TARGETS)
def test_odd_targets_do_what_the_checks_say(name, kind, fitted, monkeypatch):
    X, y = frame(GOOD) if kind == "skip" else np.array(GOOD), ODD_TARGETS[name]
    for call in (
        lambda model: model.partial_fit(X, y),
        lambda model: model.partial_fit(X, y, [2.0]),
        lambda model: model.prequential(X, y),
    ):
        check_same(fitted[kind], call, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "skip", "tanh"])
@pytest.mark.parametrize("name", ODD_WEIGHTS)
def test_odd_weights_do_what_the_checks_say(name, kind, fitted, monkeypatch):
    X, weights = frame(GOOD) if kind == "skip" else np.array(GOOD), ODD_WEIGHTS[name]
    for call in (
        lambda model: model.partial_fit(X, [1.0], weights),
        lambda model: model.partial_fit(X, np.array([1.0]), weights),
        lambda model: model.prequential(X, [1.0], weights),
    ):
        check_same(fitted[kind], call, monkeypatch)


STREAMS = {
    "ridge": {},
    "no intercept": {"fit_intercept": False},
    "no penalty": {"penalty": None},
    "precision": {"weight_kind": "precision"},
    "no score": {"diagnose": False},
    "known noise": {"noise": 2.0},
    "l1": {"penalty": "l1"},
    "forget": {"forget": 0.99},
    "poisson": {"likelihood": "poisson"},
    "inputs": {"noise": "inputs"},
    "sandwich": {"coef_cov": "robust"},
}


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])  # every third has none
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_plain_rows_has_the_bits_of_one_that_is_checked(name, weighted, monkeypatch):
    X, y = rows(120)
    y = np.exp(np.clip(y, -3, 3)).round() if name == "poisson" else y
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], len(y))

    def stream():
        model, found = KalproxRegressor(**({"penalty": "ridge"} | STREAMS[name])).partial_fit(X[:1], y[:1]), []
        for i in range(1, len(y)):
            found.append(model.predict(X[i : i + 1])[0])
            model.partial_fit(X[i : i + 1], y[i : i + 1], weights[i : i + 1] if weighted and i % 3 else None)
        return [*readings(model, X), np.array(found), repr(model.diagnostics_)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the first rows
        fast = stream()
        for module in (base, streaming):
            monkeypatch.setattr(module, "is_plain_row", lambda *a: False)
        slow = stream()
    for a, b in zip(fast[:-1], slow[:-1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert fast[-1] == slow[-1]


def test_several_targets_are_those_of_the_first_rows(monkeypatch):
    X, y = rows(k=2)
    model = KalproxRegressor(penalty="ridge").fit(X, y)
    for target in ([1.0], [[1.0]], [[1.0, 2.0]], [[1.0, np.nan]], [[1.0, 2.0, 3.0]], pd.DataFrame([[1.0, 2.0]])):
        check_same(model, lambda model, target=target: model.partial_fit(GOOD, target), monkeypatch)
    with pytest.raises(ValueError, match=r"y must have shape \(n, 2\), as in the rows .*; got shape \(n,\)"):
        model.partial_fit(np.array(GOOD), np.array([1.0]))
    with pytest.raises(ValueError, match=r"y must have shape \(n,\), as in the rows .*; got shape \(n, 2\)"):
        KalproxRegressor(penalty="ridge").fit(X, y[:, 0]).partial_fit(X, y)


# ---- the names of columns ---------------------------------------------------------------------------------------


def test_columns_that_were_accepted_are_checked_again_after_a_new_fit(checked):
    X, y = rows()
    model, later = KalproxRegressor(penalty="ridge").fit(frame(X), y), frame(X[:1])
    model.predict(later)
    model.fit(frame(X).rename(columns={"a": "A"}), y)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(later)
    model.fit(X, y)
    with pytest.warns(UserWarning, match="fitted without feature names"):
        model.predict(later)


def test_of_names_that_only_one_side_has_the_check_of_names_warns(checked):
    X, y = rows()
    named, nameless = KalproxRegressor(penalty="ridge").fit(frame(X), y), KalproxRegressor(penalty="ridge").fit(X, y)
    checked.clear()
    for model, convert, said in ((named, np.asarray, "does not have valid"), (nameless, frame, "X has")):
        for call in (model.predict, lambda X, model=model: model.partial_fit(X, y[:1])):
            with pytest.warns(UserWarning, match=f"{said} feature names, but KalproxRegressor was fitted with") as seen:
                call(convert(X[:1]))
            assert len(seen) == 1
    assert checked == []


def test_frames_of_all_libraries_may_follow_each_other(checked):
    X, y = rows()
    model, kinds = KalproxRegressor(penalty="ridge").fit(frame(X), y), ("frame", "polars", "pyarrow")
    checked.clear()
    for before in kinds:
        for after in kinds:
            np.testing.assert_array_equal(model.predict(INPUTS[before](X[:1])), model.predict(INPUTS[after](X[:1])))
    assert checked == []


def test_what_a_model_keeps_of_frames_stays_out_of_its_copies():
    X, y = rows()
    model = KalproxRegressor(penalty="ridge").fit(frame(X), y)
    model.predict(frame(X[:1]))
    assert b"pandas." not in pickle.dumps(model)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(frame(X[:1])), model.predict(frame(X[:1])))


@pytest.mark.parametrize("learn", ["partial_fit", "prequential"])
@pytest.mark.parametrize("convert", [np.array, frame])
@pytest.mark.parametrize("settings", [{}, {"link": "tanh"}, {"penalty": "l1"}])
def test_rows_that_change_later_do_not_change_the_model(settings, convert, learn):
    X, y = rows()
    y = np.tanh(y / 10)
    model, other = (
        KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(convert(X[:8]), y[:8]) for _ in range(2)
    )
    for i in range(8, 12):
        batches = [(convert(X[i : i + 1]), y[i : i + 1].copy(), np.ones(1)) for _ in range(2)]
        for one, batch in zip((model, other), batches, strict=True):
            getattr(one, learn)(*batch)
        for a in batches[0]:
            a[:] = 1e6
    np.testing.assert_array_equal(model.coef_, other.coef_)
