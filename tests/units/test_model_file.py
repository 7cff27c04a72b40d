"""Model files: what is written is what is read, and anything else raises `ModelFileError` at little cost."""

import json
import os
import pickle
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy

from kalprox import KalproxRegressor, model_file, penalties, regularizers
from kalprox.model_file import ModelFileError, read, write

HEADER = {"name": "a", "numbers": [1, 0.1, float("inf")], "none": None}
ARRAYS = {
    "matrix": np.arange(12.0).reshape(3, 4),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),  # not C-contiguous
    "strided": np.arange(10.0)[::3],
    "swapped": np.arange(3.0).astype(">f8"),
    "scalar": np.array(0.1),
    "empty": np.zeros((0, 3)),
    "count": np.array([2**62]),
    "flag": np.array([True, False]),
}

OLD = Path(__file__).parents[1] / "files" / "model-0.1.0.kalprox"


@pytest.fixture
def file(tmp_path):
    write(tmp_path / "model", HEADER, ARRAYS)
    return tmp_path / "model"


def test_what_is_written_is_read(file):
    header, arrays = read(file)
    assert header == HEADER and set(arrays) == set(ARRAYS)
    for name, a in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], a)
        assert arrays[name].shape == a.shape and arrays[name].flags.writeable
    assert os.listdir(file.parent) == ["model"]
    assert set(safetensors.numpy.load_file(file)) == set(ARRAYS)  # anybody's safetensors reads it


def test_the_same_model_gives_the_same_bytes(file):
    before = file.read_bytes()
    for arrays in (ARRAYS, dict(reversed(ARRAYS.items()))):
        write(file, dict(reversed(HEADER.items())), arrays)
        assert file.read_bytes() == before


def test_a_file_of_an_earlier_version_is_refused_by_its_version(tmp_path):
    with pytest.raises(ModelFileError, match=r"written by kalprox 0\.1 or 0\.2, .*: fit the model again"):
        read(OLD)


def test_a_file_that_is_truncated_while_it_is_read_is_refused(tmp_path, monkeypatch):
    file, unpack = tmp_path / "model", model_file._unpack
    write(file, HEADER, {"a": np.zeros(100_000)})

    def then_truncate(*args):
        found = unpack(*args)
        os.truncate(file, 4096)
        return found

    monkeypatch.setattr(model_file, "_unpack", then_truncate)
    with pytest.raises(ModelFileError, match="changed while it was read"):
        read(file)


@pytest.mark.integration
def test_why_the_layout_is_not_left_to_the_safetensors_library(tmp_path):
    """See `kalprox.model_file`. Where one of these fails, a newer safetensors may be worth another look."""
    contents = {safetensors.numpy.save({"a": np.zeros(1)}, {"kalprox": "", "sha256": ""}) for _ in range(64)}
    assert len(contents) > 1  # not the same bytes for the same model
    assert set(safetensors.numpy.load(contents.pop())) == {"a"}  # no metadata
    safetensors.numpy.save_file({"a": np.zeros(100_000)}, tmp_path / "model")
    code = (
        "import os, safetensors, sys\n"
        "file = safetensors.safe_open(sys.argv[1], 'numpy')\n"
        "os.truncate(sys.argv[1], 4096)\n"
        "file.get_tensor('a').sum()"
    )
    if os.name == "posix":
        assert subprocess.run([sys.executable, "-c", code, tmp_path / "model"]).returncode == -signal.SIGBUS


def test_a_failed_write_leaves_what_was_there(file, monkeypatch):
    before = file.read_bytes()
    with pytest.raises(TypeError, match="'a' must be float64, int64 or bool; got float32"):
        write(file, HEADER, {"a": np.zeros(2, np.float32)})
    with pytest.raises(TypeError, match="not JSON serializable"):
        write(file, {"a": object()}, ARRAYS)

    def garbled(path):
        header, arrays = read(path)
        return header, arrays | {"matrix": arrays["matrix"].T.copy()}

    monkeypatch.setattr(model_file, "read", garbled)
    with pytest.raises(ModelFileError, match="could not be read back"):
        write(file, HEADER, ARRAYS)
    assert file.read_bytes() == before and os.listdir(file.parent) == ["model"]


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 11])
def test_every_truncation_and_every_flipped_bit_is_found(file, step):
    good = file.read_bytes()
    for n in [*range(0, len(good), 7 * step), len(good) - 1]:
        file.write_bytes(good[:n])
        with pytest.raises(ModelFileError):
            read(file)
    file.write_bytes(good + b"\0")
    with pytest.raises(ModelFileError):
        read(file)
    rng = np.random.default_rng(0)
    for i in range(0, len(good), step):
        bad = bytearray(good)
        bad[i] ^= 1 << rng.integers(8)
        file.write_bytes(bad)
        with pytest.raises(ModelFileError):
            read(file)


def layout(body, data=b"", length=None):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape, start, stop, dtype="F64"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def signed(header):
    """Return a file without arrays that has this header, and a valid checksum."""
    text = '{"format": "kalprox-model", "version": 1, "header": ' + header + "}"
    return layout({"__metadata__": {"kalprox": text, "sha256": model_file._digest(text, {})}})


TEXTS = {"kalprox": json.dumps({"format": "kalprox-model", "version": 1, "header": {}}), "sha256": "0"}
HOSTILE = {
    "empty": b"",
    "text": b"coefficients: 1, 2, 3\n" * 100,
    "pickle": pickle.dumps({"coef": np.ones(100)}),
    "long header": layout({}, length=2**63),
    "header longer than allowed": layout({}, b" " * 100, length=2**25),
    "list": layout([1, 2]),
    "number": layout(b"1e400"),
    "digits": layout(b"[" + b"9" * 10_000 + b"]"),
    "nested": layout(b"[" * 100_000),
    "not unicode": layout(b'{"\xff": 1}'),
    "another safetensors": safetensors.numpy.save({"a": np.ones(3)}, {"format": "pt"}),
    "huge shape": layout({"__metadata__": TEXTS, "a": entry([2**40], 0, 2**43)}, bytes(64)),
    "overflowing shape": layout({"__metadata__": TEXTS, "a": entry([2**32, 2**32, 2**32], 0, 0)}, bytes(64)),
    "many dimensions": layout({"__metadata__": TEXTS, "a": entry([64] * 100_000, 0, 64)}, bytes(64)),
    "negative shape": layout({"__metadata__": TEXTS, "a": entry([-1, -8], 0, 64)}, bytes(64)),
    "overlap": layout({"__metadata__": TEXTS, "a": entry([8], 0, 64), "b": entry([8], 0, 64)}, bytes(64)),
    "hole": layout({"__metadata__": TEXTS, "a": entry([4], 32, 64)}, bytes(64)),
    "objects": layout({"__metadata__": TEXTS, "a": entry([8], 0, 64, "O")}, bytes(64)),
    "no checksum": layout({"__metadata__": {"kalprox": TEXTS["kalprox"]}}),
    "wrong checksum": layout({"__metadata__": TEXTS}),
    "surrogate": layout({"__metadata__": TEXTS | {"kalprox": "\ud800"}}),
    "surrogate in a name": layout({"__metadata__": TEXTS, "\ud800": entry([8], 0, 64)}, bytes(64)),
    "surrogate in the header": signed('{"name": "\\ud800"}'),
    "key that occurs twice": signed('{"a": 1, "a": 2}'),
    "not a number": signed('{"a": NaN}'),
    "huge integer": signed('{"a": 9223372036854775808}'),
    "nested header": signed('{"a": ' + "[" * 40 + "]" * 40 + "}"),
    "deeply nested header": signed('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}"),
    "header that is a list": signed("[]"),
    "nothing about a model": signed("{}"),
    "shape that is text": layout({"__metadata__": TEXTS, "a": entry("88", 0, 64)}, bytes(64)),
    "offsets that cannot be sorted": layout(
        {"__metadata__": TEXTS, "a": entry([8], 0, "64"), "b": {"dtype": "F64", "shape": [0], "data_offsets": 0}},
        bytes(64),
    ),
    "text that is a number": layout({"__metadata__": TEXTS | {"sha256": 1}}),
    "later version": layout({"__metadata__": TEXTS | {"kalprox": TEXTS["kalprox"].replace("1", "2")}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_other_files_are_refused_and_allocate_nothing_large(name, tmp_path):
    file = tmp_path / "model"
    file.write_bytes(HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError) as error:
            KalproxRegressor.load(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(file) in str(error.value)
    assert peak < 20 * len(HOSTILE[name]) + 2**20


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "model")
    for file in (tmp_path / "model", tmp_path):
        with pytest.raises(ModelFileError, match="a folder, a pipe or a device"):
            KalproxRegressor.load(file)


@pytest.mark.parametrize("header", [{"name": "\ud800"}, {"n": 2**63}, {"x": float("nan")}])
def test_a_header_that_could_not_be_read_is_not_written(header, tmp_path):
    with pytest.raises(ModelFileError):
        write(tmp_path / "model", header, {})
    assert os.listdir(tmp_path) == []


def test_a_missing_file_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        KalproxRegressor.load(tmp_path / "model")


# ---- estimators ------------------------------------------------------------------------------------


def rows(link="identity", n=300):
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(n, 3))
    X, u = Z + np.array([0.0, 5.0, -3.0]), Z @ [0.7, -1.0, 0.3]
    return X, (u if link == "identity" else 1 / (1 + np.exp(-u))) + 0.1 * rng.normal(size=n)


SETTINGS = [
    {},
    {"penalty": None, "standardize": True, "forget": 0.99},
    {"penalty": "l1", "alpha": "auto", "noise": 0.01},
    {"penalty": penalties.Group([0, 0, 1]), "fit_intercept": False},
    {"penalty": penalties.Box(np.array([0.0, -np.inf, 0.1]), np.inf)},
    {"penalty": regularizers.Weighted(regularizers.L1(3.0), np.array([0.0, 1.0, 2.0]))},
    {"penalty": regularizers.GroupL1(2.0, [0, 0, 1])},
    {"link": "sigmoid"},
    {"link": "sigmoid", "penalty": "l1", "noise": 0.01, "start": [0.0, 0.1, 0.1, 0.1]},
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The warm-up of the stream has not ended")
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("begun_with", ["fit", "partial_fit"])
def test_a_loaded_model_goes_on_bit_for_bit(settings, begun_with, tmp_path):
    X, y = rows(settings.get("link", "identity"))
    model = KalproxRegressor(**({"penalty": "ridge"} | settings))
    getattr(model, begun_with)(X[:20], y[:20])  # 20 rows: a stream behind a link still holds them
    for start, stop in ((20, 150), (150, 300)):
        model.save(tmp_path / "model")
        again = KalproxRegressor.load(tmp_path / "model")
        for name in ("coef_", "intercept_", "coef_std_", "covariance_", "noise_var_", "n_rows_seen_", "converged_"):
            np.testing.assert_array_equal(getattr(again, name), getattr(model, name), err_msg=name)
        np.testing.assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))
        for one in (model, again):
            one.partial_fit(X[start:stop], y[start:stop])
        np.testing.assert_array_equal(again.coef_, model.coef_)
        np.testing.assert_array_equal(again.covariance_, model.covariance_)
        assert again.diagnostics_.nis == model.diagnostics_.nis or model.diagnostics_.rows == 0
        model = again


@pytest.mark.parametrize("targets", [None, 2])
def test_rows_that_wait_to_be_folded_are_saved(targets, tmp_path):
    X, y = rows()
    y = y if targets is None else np.c_[y, -y]
    model = KalproxRegressor(diagnose=False, penalty="ridge").fit(X[:10], y[:10])
    for i in range(10, 290):
        if i in (20, 100, 277):
            model.save(tmp_path / "model")
            model = KalproxRegressor.load(tmp_path / "model")
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    straight = KalproxRegressor(diagnose=False, penalty="ridge").fit(X[:10], y[:10])
    for i in range(10, 290):
        straight.partial_fit(X[i : i + 1], y[i : i + 1])
    assert straight._learner.stream._buffer
    np.testing.assert_array_equal(model.coef_, straight.coef_)
    np.testing.assert_array_equal(model.covariance_, straight.covariance_)


def test_the_score_of_single_rows_continues_to_rounding(tmp_path):
    X, y = rows()
    models = KalproxRegressor(penalty="ridge"), KalproxRegressor(penalty="ridge")
    for i in range(290):
        for model in models:
            model.partial_fit(X[i : i + 1], y[i : i + 1])
        if i in (20, 100, 277):
            models[1].save(tmp_path / "model")
            models = models[0], KalproxRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    scores = [model.diagnostics_ for model in models]
    assert scores[0].rows == scores[1].rows > 200
    np.testing.assert_allclose([s.rmse for s in scores], float(scores[0].rmse), rtol=1e-12)
    np.testing.assert_allclose([s.nis for s in scores], float(scores[0].nis), rtol=1e-12)


def test_names_targets_and_counts_survive(tmp_path):
    X, y = rows()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame.iloc[3, 1] = np.nan
    model = KalproxRegressor(missing="drop", penalty="ridge").fit(frame, np.c_[y, -y])
    model.save(str(tmp_path / "model"))
    again = KalproxRegressor.load(str(tmp_path / "model"))
    assert list(again.feature_names_in_) == ["a", "b", "c"]
    assert (again.n_rows_seen_, again.n_rows_rejected_, again.n_features_in_) == (299, 1, 3)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert again.coef_.shape == (2, 3)


def test_what_cannot_be_saved_is_said(tmp_path):
    X, y = rows()
    for model in (
        KalproxRegressor(function=lambda theta, x: x @ theta, start=np.zeros(3)),
        KalproxRegressor(penalty=regularizers.Custom(lambda t: (t**2).sum())),
    ):
        with pytest.raises(TypeError, match="cannot be saved without pickle"):
            model.fit(X, y).save(tmp_path / "model")
    model = KalproxRegressor(penalty="ridge").fit(X, y).set_params(alpha=2.0)
    with pytest.raises(ValueError, match="alpha changed since the last fit"):
        model.save(tmp_path / "model")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "arrays"),
    [
        ({"estimator": "Other"}, {}),
        ({"n_features": 2}, {}),
        ({"n_features": 10**9}, {}),
        ({"n_features": None}, {}),
        ({"sizes.k": 2}, {}),
        ({"sizes.p": 5}, {}),
        ({"belief.information.targets": 2}, {}),
        ({"feature_names": ["a"]}, {}),
        ({"settings": {"penalty": "unknown"}}, {}),
        ({"settings": {"surprise": 1}}, {}),
        ({"settings": {"penalty": {"penalty": "SmoothL1", "fields": {"delta": "wide"}}}}, {}),
        ({"settings": {"link": "sigmoid"}}, {}),
        ({"settings": {"penalty": {"regularizer": "Custom", "fields": {"fn": "os.system"}}}}, {}),
        ({"settings": {"penalty": {"regularizer": "__loader__", "fields": {}}}}, {}),
        ({"settings": {"penalty": {"regularizer": "Pieces", "fields": {}}}}, {}),
        ({"settings": {"penalty": {"regularizer": "L1", "fields": {"lam": "much"}}}}, {}),
        ({"settings": {"penalty": {"penalty": "Group", "fields": {"labels": [0, 0]}}}}, {}),
        ({}, {"belief.information.T": np.full((5, 5), np.nan)}),
        ({}, {"belief.information.T": np.ones((5, 5))}),
        ({}, {"belief.information.T": np.zeros((4, 4))}),
        ({}, {"belief.information.rows": np.array(-1.0)}),
        ({}, {"tracking.scores.0.sums": np.zeros(3)}),
    ],
)
def test_a_whole_file_that_makes_no_sense_is_refused(change, arrays, tmp_path):
    KalproxRegressor(penalty="ridge").fit(*rows()).save(tmp_path / "model")
    header, old = read(tmp_path / "model")
    write(tmp_path / "model", header | change, old | arrays)
    with pytest.raises(ModelFileError, match="not of an estimator"):
        KalproxRegressor.load(tmp_path / "model")
