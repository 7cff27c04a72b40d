"""A model that was fitted to files takes raw frames in Python, and one saved in Python serves the commands."""

import datetime
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from command import invoke

from kalprox import KalproxRegressor
from kalprox.jobs.model import TableModel
from kalprox.learning.step import Buffered
from kalprox.sources.labels import LevelIndex

DAY = datetime.date(2013, 1, 1)
COLUMNS = ["--target", "delay", "--features", "distance,carrier,day", "--dates", "day"]


def flights(n=300, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": [f"=id{i}" for i in range(n)],
            "delay": 0.0,
            "distance": (100 * rng.normal(size=n)).round(3),
            "carrier": rng.choice(["AA", "B6", "DL"], n),
            "day": [(DAY + datetime.timedelta(days=i % 60)).isoformat() for i in range(n)],
        }
    )
    effect = frame.carrier.map({"AA": 1.0, "B6": 2.0, "DL": -1.0})
    return frame.assign(delay=(0.1 * frame.distance + effect + rng.normal(size=n)).round(4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a file, its two parts, and a model of each."""
    here, frame = tmp_path_factory.mktemp("flights"), flights()
    for name, part in (("all", frame), ("first", frame[:200]), ("last", frame[200:])):
        part.to_csv(here / f"{name}.csv", index=False)
        columns = ["--columns", here / "first.kalprox"] if name == "last" else []
        if name == "all":
            continue
        invoke("fit", here / f"{name}.csv", *COLUMNS, *columns, "--out", here / f"{name}.kalprox", "-q")
    invoke("fit", here / "all.csv", *COLUMNS, "--columns", here / "first.kalprox", "--out", here / "all.kalprox", "-q")
    return here


def as_pandas_objects(frame):
    objects = frame.assign(day=pd.to_datetime(frame.day), carrier=frame.carrier.astype("category"))
    objects["distance"] = objects.distance.astype(object)
    objects.loc[objects.index[0], "distance"] = str(objects.distance.iloc[0])  # numbers and text in one column
    return objects


RAW = {
    "pandas": lambda frame: frame,
    "objects": as_pandas_objects,
    "polars": pl.from_pandas,
    "polars types": lambda frame: pl.from_pandas(frame).with_columns(
        pl.col("carrier").cast(pl.Categorical), pl.col("day").str.to_date()
    ),
    "pyarrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "other order": lambda frame: frame[["day", "carrier", "distance"]],
}


@pytest.mark.parametrize("kind", RAW)
def test_predictions_of_a_raw_frame_are_those_of_the_command(kind, folder, tmp_path):
    out = tmp_path / "predicted.parquet"
    invoke("predict", folder / "first.kalprox", folder / "last.csv", "--out", out, "-q")
    expected = pd.read_parquet(out)
    model, X = KalproxRegressor.load(folder / "first.kalprox"), RAW[kind](flights()[200:])
    mean, std = model.predict(X, return_std=True)
    low, high = model.predict_interval(X)
    for found, name in ((mean, "mean"), (std, "std"), (low, "lower"), (high, "upper")):
        np.testing.assert_array_equal(found, expected[name])
    np.testing.assert_allclose(model.predict(X), mean, rtol=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in RAW if kind != "other order"])
def test_partial_fit_goes_on_with_a_raw_frame_as_the_command_would(kind, folder, tmp_path):
    model, X = KalproxRegressor.load(folder / "first.kalprox"), RAW[kind](flights()[200:])
    model.partial_fit(X)
    whole = KalproxRegressor.load(folder / "all.kalprox")
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-12)
    np.testing.assert_allclose(model.covariance_, whole.covariance_, rtol=1e-10)
    given = KalproxRegressor.load(folder / "first.kalprox").partial_fit(X, flights().delay[200:])
    np.testing.assert_array_equal(given.coef_, model.coef_)
    model.save(tmp_path / "model.kalprox")
    mine, theirs = TableModel.load(tmp_path / "model.kalprox"), TableModel.load(folder / "all.kalprox")
    assert mine.columns == theirs.columns and mine.learner.n_rows == 300
    for name in ("read", "bad", "low", "high"):
        assert getattr(mine.record.quality, name) == getattr(theirs.record.quality, name)


@pytest.mark.parametrize("kind", RAW)
def test_rows_of_a_frame_are_encoded_by_what_was_made_of_the_levels_before(kind, folder, monkeypatch):
    model, raw = KalproxRegressor.load(folder / "first.kalprox"), flights()[200:]
    whole = KalproxRegressor.load(folder / "first.kalprox")
    made, folded, delays = [], [], raw.delay.to_numpy()
    for cls, name, calls in ((LevelIndex, "__init__", made), (Buffered, "after_rows", folded)):
        of = getattr(cls, name)
        monkeypatch.setattr(cls, name, lambda *a, of=of, calls=calls: calls.append(1) or of(*a))
    for i in range(20):
        row = RAW[kind](raw[i : i + 1])
        assert model.predict(row).shape == (1,)
        model.partial_fit(row, delays[i : i + 1])
    assert len(made) == 2  # one for frames without the target, weight and clusters, one for those without the target
    assert not folded
    whole.partial_fit(raw[:20])
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-12)
    assert model._table.record.quality.read == whole._table.record.quality.read == 220


def test_encoded_rows_are_still_taken(folder):
    model = KalproxRegressor.load(folder / "first.kalprox")
    raw = flights()[200:]
    columns = model._table.columns
    assert list(model.feature_names_in_) == columns.names and model.n_features_in_ == len(columns.names)
    encoded = columns.encode(pa.Table.from_pandas(raw)).X
    frame = pd.DataFrame(encoded, columns=columns.names)
    np.testing.assert_allclose(model.predict(frame), model.predict(raw), rtol=1e-12)
    model.partial_fit(frame, raw.delay.to_numpy())
    assert model._table.record.quality.read == 300
    model.partial_fit(frame[:1], raw.delay.to_numpy()[:1])
    assert model._table.record.quality.read == 301
    refitted = model.fit(encoded, raw.delay)
    assert refitted._table is None and not hasattr(refitted, "feature_names_in_")


def test_bad_rows_and_unknown_levels_of_a_frame_are_said(folder):
    model, raw = KalproxRegressor.load(folder / "first.kalprox"), flights()[200:].reset_index(drop=True)
    raw["distance"] = raw.distance.astype(object)
    raw.loc[5, "distance"], raw.loc[7, "distance"], raw.loc[8, "day"] = None, "12OO", "yesterday"
    message = (
        r"3 of 100 rows cannot be used: row 5, column 'distance': missing; row 7, .* \('12OO'\); row 8, column 'day'"
    )
    for call in (model.predict, model.partial_fit, model.predict_interval):
        with pytest.raises(ValueError, match=f"{message}.*missing='drop'"):
            call(raw)
    assert model.n_rows_seen_ == 200
    model.set_params(missing="drop")
    good = np.delete(np.arange(100), [5, 7, 8])
    with pytest.warns(UserWarning, match=f"{message}.* They were skipped"):
        mean, std = model.predict(raw, return_std=True)
    assert np.isnan(mean[[5, 7, 8]]).all() and np.isnan(std[[5, 7, 8]]).all()
    np.testing.assert_allclose(mean[good], model.predict(raw.iloc[good]), rtol=1e-12)
    with pytest.warns(UserWarning, match="They were skipped"):
        model.partial_fit(raw)
    assert (model.n_rows_seen_, model.n_rows_rejected_, model.summary().rejected) == (297, 3, 3)
    assert model._table.record.quality.bad == 3

    raw = flights()[200:].assign(carrier=["ZZ"] * 2 + ["AA"] * 98)
    message = r"2 of 100 rows cannot be used: row 0, column 'carrier': unseen level \('ZZ'\)"
    for call in (model.predict, model.partial_fit):
        with pytest.warns(UserWarning, match=message):
            call(raw)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.drop(columns="carrier"), "X: there is no column 'carrier'"),
        (lambda raw: raw.rename(columns={"distance": "Distance"}), "Did you mean 'Distance'"),
        (lambda raw: pd.concat([raw, raw[["day"]]], axis=1), "there are 2 columns 'day'"),
        (lambda raw: raw.assign(day=[[1]] * len(raw)), "column 'day' is of type list"),
    ],
)
def test_a_frame_without_the_columns_is_refused_by_name(change, message, folder):
    with pytest.raises(ValueError, match=message):
        KalproxRegressor.load(folder / "first.kalprox").predict(change(flights()))


def test_weights_clusters_and_levels_of_any_type_go_on_as_the_command_would(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "y": rng.normal(size=300).round(5),
            "a": rng.normal(size=300).round(5),
            "weight": rng.integers(1, 4, 300),
            "cluster": rng.choice(list("pqrst"), 300),
            "code": rng.choice([10, 20, 30], 300),
        }
    )
    options = ["--target", "y", "--features", "a,code", "--categorical", "code", "--weight", "weight"]
    options += ["--clusters", "cluster", "-q"]
    for name, part, more in (("part", frame[:200], []), ("all", frame, ["--columns", tmp_path / "part.kalprox"])):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
        invoke("fit", tmp_path / f"{name}.csv", *options, *more, "--out", tmp_path / f"{name}.kalprox")
    whole, rest = KalproxRegressor.load(tmp_path / "all.kalprox"), frame[200:]
    for rows in (rest, rest.assign(code=rest.code.astype(float)), pl.from_pandas(rest)):
        model = KalproxRegressor.load(tmp_path / "part.kalprox").partial_fit(rows)
        np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-12)
        np.testing.assert_allclose(model.coef_std_, whole.coef_std_, rtol=1e-9)
    again = pickle.loads(pickle.dumps(model))
    assert again._table.learner is again._learner
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))


def test_what_partial_fit_of_a_frame_needs_is_said(folder):
    model = KalproxRegressor.load(folder / "first.kalprox")
    with pytest.raises(ValueError, match="there is no column 'delay'"):
        model.partial_fit(flights().drop(columns="delay"))
    with pytest.raises(ValueError, match=r"y must have shape \(300,\)"):
        model.partial_fit(flights(), np.ones(3))
    lazy = pl.from_pandas(flights()).lazy()
    np.testing.assert_array_equal(model.predict(lazy), model.predict(pl.from_pandas(flights())))
    for mistake in (flights().iloc[0], flights().to_numpy(), {"distance": 1.0}, "last.csv"):
        with pytest.raises(
            TypeError, match=r"X must be a frame .* with the columns distance, carrier, day, or an array"
        ):
            model.predict(mistake)
    with pytest.raises(ValueError, match="requires y to be passed"):
        KalproxRegressor(penalty="ridge").partial_fit(np.ones((3, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "frame", "files"])
def test_a_model_saved_in_python_serves_every_command(kind, folder, tmp_path):
    file, X = tmp_path / "model.kalprox", np.random.default_rng(0).normal(size=(60, 2))
    names = ["x0", "x1"] if kind == "array" else ["u", "v"]
    if kind == "files":
        model, new = KalproxRegressor.load(folder / "first.kalprox"), folder / "last.csv"
        expected = model.predict(flights()[200:])
    else:
        rows = X if kind == "array" else pd.DataFrame(X, columns=names)
        model, new = KalproxRegressor(penalty="ridge").fit(rows, X @ [1.0, 2.0] + 1), tmp_path / "new.csv"
        pd.DataFrame(X, columns=names).to_csv(new, index=False)
        expected = model.predict(rows)
    model.save(file)
    shown = invoke("show", file, "--top", 5).output
    assert names[0] in shown or kind == "files"
    if kind != "files":  # these were fitted without a penalty
        invoke("path", file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        invoke("predict", file, new, "--out", tmp_path / "out.parquet", "-q")
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "out.parquet")["mean"], expected, rtol=1e-12)
    again = KalproxRegressor.load(file)
    penalty = {"penalty": "", "alpha": ""}  # a file has the penalty as an object, with its weight
    assert again.get_params() | penalty == model.get_params() | penalty
    np.testing.assert_array_equal(again.coef_, model.coef_)

    page = model.report(tmp_path / "mine.html")
    invoke("report", file, "--out", tmp_path / "command.html")
    assert page.read_text().replace(">mine<", ">model.kalprox<") == (tmp_path / "command.html").read_text()


def test_a_model_of_several_targets_is_refused_by_commands_and_says_so(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2))
    KalproxRegressor(penalty="ridge").fit(X, X).save(tmp_path / "model.kalprox")
    assert "has 2 targets" in invoke("show", tmp_path / "model.kalprox", code=2).output


def test_samples_stay_out_of_a_file_where_they_are_not_wanted(folder, tmp_path):
    model = KalproxRegressor.load(folder / "first.kalprox").set_params(missing="drop")
    raw = flights()[200:].assign(carrier=["secret"] + ["AA"] * 99)
    with pytest.warns(UserWarning, match="secret"):
        model.partial_fit(raw)
    model.save(tmp_path / "model.kalprox", samples=False)
    quality = TableModel.load(tmp_path / "model.kalprox").record.quality
    assert quality.low == [] and quality.read == 300
    assert b"secret" not in (tmp_path / "model.kalprox").read_bytes()


# ---- the rows that models have in common ------------------------------------------------------------------------


def test_a_model_is_not_merged_with_its_own_rows(folder, tmp_path):
    X, y = np.random.default_rng(0).normal(size=(90, 3)) + 5, np.random.default_rng(1).normal(size=90)
    one = KalproxRegressor(penalty="ridge").fit(X, y)
    shuffled = np.random.default_rng(2).permutation(90)
    again = KalproxRegressor(penalty="ridge")
    for rows in np.array_split(shuffled, 7):  # in another order and in other batches
        again.partial_fit(X[rows], y[rows])
    for other in (one, again):
        with pytest.raises(ValueError, match=r"rows in common.*allow_overlap=True"):
            one.merge(other)
    assert one.n_rows_seen_ == 90
    twice = KalproxRegressor(penalty="ridge").fit(X, y).merge(one, allow_overlap=True)
    np.testing.assert_allclose(
        twice.coef_, KalproxRegressor(penalty="ridge").fit(X, y, np.full(90, 2.0)).coef_, rtol=1e-10
    )


def test_a_merged_model_knows_its_parts_and_tells_its_file(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 3)), rng.normal(size=120)

    def part(i):
        return KalproxRegressor(penalty="ridge").fit(X[30 * i : 30 * i + 30], y[30 * i : 30 * i + 30])

    there, back = part(0).merge(part(1)), part(1).merge(part(0))
    np.testing.assert_array_equal(there._learner.merged, back._learner.merged)
    there.partial_fit(X[60:90], y[60:90])
    there.save(tmp_path / "model.kalprox")
    loaded = KalproxRegressor.load(tmp_path / "model.kalprox")
    for other in (part(0), part(1), back):
        with pytest.raises(ValueError, match="rows in common"):
            loaded.merge(other)
    assert loaded.merge(part(3)).n_rows_seen_ == 120
    np.testing.assert_allclose(loaded.coef_, KalproxRegressor(penalty="ridge").fit(X, y).coef_, rtol=1e-10)


def test_rows_that_are_only_alike_are_merged():
    X = np.random.default_rng(0).normal(size=(50, 2)) + 1e6
    y = X @ [1.0, 2.0]
    one = KalproxRegressor(penalty="ridge").fit(X, y)
    for other in ((X, y + 1e-3), (X + 1e-2, y), (X * [1.0, 2.0], y), (X[:-1], y[:-1])):
        assert KalproxRegressor(penalty="ridge").fit(*other).merge(one).n_rows_seen_ > 50


def test_the_command_merges_models_of_different_rows_only(folder, tmp_path):
    first, last, out = folder / "first.kalprox", folder / "last.kalprox", tmp_path / "merged.kalprox"
    invoke("merge", first, last, "--out", out)
    (tmp_path / "copy.kalprox").write_bytes(first.read_bytes())
    for other in (tmp_path / "copy.kalprox", out):
        refused = invoke("merge", first, other, "--out", tmp_path / "twice.kalprox", code=2)
        assert "rows in common" in refused.output and "--allow-overlap" in refused.output
    invoke("merge", first, tmp_path / "copy.kalprox", "--out", tmp_path / "twice.kalprox", "--allow-overlap")
    invoke("merge", first, first, "--out", tmp_path / "twice.kalprox", "--allow-overlap")
    assert TableModel.load(tmp_path / "twice.kalprox").learner.n_rows == 400
    np.testing.assert_allclose(
        KalproxRegressor.load(out).coef_, KalproxRegressor.load(folder / "all.kalprox").coef_, rtol=1e-10
    )
    merged = KalproxRegressor.load(first).merge(KalproxRegressor.load(last))
    assert merged._table.record.quality.read == 300
