"""Robust and clustered standard errors, and conformal intervals, of models fitted to files and on engines."""

import copy
import pickle
from dataclasses import replace

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import statsmodels.api as sm
from command import invoke

from kalprox import KalproxRegressor
from kalprox.jobs.fit import FitJob, can_be_saved, load_totals, save_totals
from kalprox.jobs.model import TableModel
from kalprox.learning.sandwich import Sandwich
from kalprox.learning.tracking import CONFORMAL_LEVELS, Quantiles
from kalprox.model_file import ModelFileError
from kalprox.reports import summary
from kalprox.sources import ArraySource, Counts, Folded
from kalprox.sources.columns import Columns
from kalprox.sources.table import Table

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

NAMES = ("a", "b", "c")
KINDS = ("robust", "clustered")


def rows(n=4000, seed=0, link="identity"):
    """Rows in 60 clusters, whose coefficients differ, with noise that grows with the first column: X, y, clusters."""
    rng = np.random.default_rng(seed)
    X, day = rng.normal(size=(n, 3)) + [3.0, 0.0, -1.0], rng.integers(0, 60, n)
    predictor = 1 + X @ [0.4, -0.2, 0.0] + 0.2 * rng.normal(size=60)[day] * X[:, 1]
    mean = np.exp(0.3 * predictor) if link == "exp" else predictor
    return X, mean + 0.3 * (0.1 + np.abs(X[:, 0] - 3)) * rng.normal(size=n), day


def frame(X, y, day, weights=None):
    columns = dict(zip(NAMES, X.T, strict=True)) | {"y": y, "day": day}
    return pa.table(columns | ({} if weights is None else {"w": weights}))


def reference(X, y, day, kind, weights=None):
    """Standard errors by statsmodels, the intercept first."""
    model = sm.WLS(y, sm.add_constant(X), weights=np.ones(len(y)) if weights is None else weights)
    options = {"cov_type": "HC3"} if kind == "robust" else {"cov_type": "cluster", "cov_kwds": {"groups": day}}
    return model.fit(**options).bse


def about(kind, day):
    """The clusters, for clustered standard errors: given with others, they are an error."""
    return {"clusters": day} if kind == "clustered" else {}


def errors(model):
    return np.array([model.intercept_std_, *model.coef_std_])


def sandwich(J, e, V, kind, day, rows, edf, meat=None, leverage=None):
    """The covariance V M V by hand; `meat` multiplies the scores of the rows, and `leverage` is that of robust ones."""
    scores = J * (e if meat is None else meat * e)[:, None]
    n, G = rows, len(np.unique(day))
    if kind == "robust":
        scores = scores / (1 - leverage)[:, None]
        return V @ scores.T @ scores @ V
    sums = np.array([scores[day == g].sum(axis=0) for g in np.unique(day)])
    return V @ sums.T @ sums @ V * (n - 1) / (n - edf) * G / (G - 1)


# fits without an order of rows: one more pass, at the estimate


@pytest.mark.parametrize("weights", [None, "precision", "frequency"])
@pytest.mark.parametrize("kind", KINDS)
def test_on_threads_they_are_those_of_statsmodels(kind, weights):
    X, y, day = rows()
    w = None if weights is None else np.random.default_rng(1).integers(0, 4, len(y)).astype(float)
    settings = {"penalty": None, "coef_cov": kind, "weight_kind": weights or "frequency"}
    model = KalproxRegressor(engine="local", **settings).fit(X, y, w, **about(kind, day))
    if weights == "frequency":
        repeated = [np.repeat(a, w.astype(int), axis=0) for a in (X, y, day)]
        expected = reference(*repeated, kind)
    else:
        good = slice(None) if w is None else w > 0
        expected = reference(X[good], y[good], day[good], kind, None if w is None else w[good])
    np.testing.assert_allclose(errors(model), expected, rtol=1e-9)
    if kind == "clustered":
        assert model._learner.belief.sandwich.count == 60


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_on_processes(kind):
    X, y, day = rows()
    model = KalproxRegressor(penalty=None, coef_cov=kind, engine="processes").fit(X, y, **about(kind, day))
    np.testing.assert_allclose(errors(model), reference(X, y, day, kind), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_on_dask(client, kind):
    X, y, day = rows()
    lazy = da.from_array(X, chunks=(900, 3)), da.from_array(y, chunks=1000)
    model = KalproxRegressor(penalty=None, coef_cov=kind).fit(*lazy, **about(kind, da.from_array(day, chunks=500)))
    np.testing.assert_allclose(errors(model), reference(X, y, day, kind), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_on_spark(spark, kind):
    X, y, day = rows()
    lazy = spark.createDataFrame(frame(X, y, day).to_pandas())
    lazy = lazy if kind == "clustered" else lazy.drop("day")
    groups = {"clusters": "day"} if kind == "clustered" else {}
    model = KalproxRegressor(penalty=None, coef_cov=kind).fit(lazy, "y", **groups)
    assert list(model.feature_names_in_) == list(NAMES)
    np.testing.assert_allclose(errors(model), reference(X, y, day, kind), rtol=1e-9)


@pytest.mark.parametrize("engine", [None, "local"])
@pytest.mark.parametrize("weights", [None, "precision", "frequency"])
@pytest.mark.parametrize("kind", KINDS)
def test_of_a_nonlinear_model_they_are_the_formula(kind, weights, engine):
    X, y, day = rows(1500, link="exp")
    w = np.ones(len(y)) if weights is None else np.random.default_rng(1).integers(0, 4, len(y)).astype(float)
    settings = {
        "link": "exp",
        "penalty": None,
        "coef_cov": kind,
        "weight_kind": weights or "frequency",
        "engine": engine,
    }
    model = KalproxRegressor(**settings).fit(X, y, None if weights is None else w, **about(kind, day))
    Z = sm.add_constant(X)
    mean = np.exp(Z @ [model.intercept_, *model.coef_])
    J = Z * mean[:, None]
    V = np.linalg.inv(J.T @ (J * w[:, None]))
    meat = np.sqrt(w) if (kind, weights) == ("robust", "frequency") else w
    n = w.sum() if weights == "frequency" else (w > 0).sum()
    leverage = ((J @ V) * J).sum(axis=1) * (w if weights == "precision" else 1)
    C = sandwich(J, y - mean, V, kind, day, n, 4, meat, leverage)
    np.testing.assert_allclose(errors(model), np.sqrt(np.diag(C)), rtol=1e-6)
    np.testing.assert_allclose(model.covariance_, C[1:, 1:], rtol=1e-6, atol=1e-9)


def test_with_forgetting_the_scores_fade_as_the_rows_do():
    X, y, day = rows(800, link="exp")
    model = KalproxRegressor(link="exp", penalty=None, coef_cov="robust", forget=0.99).fit(X, y)
    Z, w = sm.add_constant(X), 0.99 ** np.arange(800)[::-1]
    mean = np.exp(Z @ [model.intercept_, *model.coef_])
    J = Z * mean[:, None]
    V = np.linalg.inv(J.T @ (J * w[:, None]))
    n = w.sum() ** 2 / (w**2).sum()
    edf = np.trace(V @ (J.T @ (J * (w**2)[:, None]))) / ((w**2).sum() / w.sum())
    C = sandwich(J, y - mean, V, "robust", day, n, edf, w, w * ((J @ V) * J).sum(axis=1))
    np.testing.assert_allclose(errors(model), np.sqrt(np.diag(C)), rtol=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_several_targets_and_a_penalty(kind):
    X, y, day = rows()
    Y = np.column_stack([y, X @ [1.0, 1.0, 1.0] + np.random.default_rng(2).normal(size=len(y))])
    model = KalproxRegressor(alpha=50.0, coef_cov=kind).fit_source(
        ArrayAsSource(X, Y, day if kind == "clustered" else None), 3
    )
    for j in range(2):
        one = KalproxRegressor(alpha=50.0, coef_cov=kind, engine="local").fit(X, Y[:, j], **about(kind, day))
        np.testing.assert_allclose(model.coef_std_[j], one.coef_std_, rtol=1e-9)
        np.testing.assert_allclose(model.intercept_std_[j], one.intercept_std_, rtol=1e-9)
    Z = X - X.mean(axis=0)
    V = np.linalg.inv(Z.T @ Z + 50 * np.eye(3))
    edf = 1 + np.trace(V @ Z.T @ Z)
    e = Y[:, 0] - model.predict(X)[:, 0]
    C = sandwich(Z, e, V, kind, day, len(y), edf, leverage=1 / len(y) + ((Z @ V) * Z).sum(axis=1))
    C += model.noise_var_[0] * 50 * V @ V  # what is known before the rows
    np.testing.assert_allclose(model.coef_std_[0], np.sqrt(np.diag(C)), rtol=1e-9)


class ArrayAsSource:
    """Arrays as a source without an order of rows."""

    def __init__(self, X, y, groups=None):
        self.source = ArraySource(X, y, block_rows=700, groups=groups)

    def fold(self, part):
        return self.source.fold(part)


def test_without_clusters_fit_says_what_is_missing():
    X, y, _ = rows(200)
    for settings in ({}, {"engine": "local"}, {"link": "exp"}):
        with pytest.raises(ValueError, match="coef_cov='clustered' needs clusters, which name the cluster of each row"):
            KalproxRegressor(coef_cov="clustered", **settings).fit(X, y)
    with pytest.raises(ValueError, match="needs clusters"):
        KalproxRegressor(coef_cov="clustered").fit_source(ArrayAsSource(X, y), 3)
    KalproxRegressor(coef_cov="clustered").partial_fit(X[:100], y[:100]).partial_fit(X[100:], y[100:])
    with pytest.raises(ValueError, match="clusters must name the cluster of every row; 1 of 200 are missing"):
        KalproxRegressor(coef_cov="clustered").fit(X, y, clusters=[None] + ["u", "v"] * 99 + ["u"])


def test_without_degrees_of_freedom_they_are_unknown():
    X, y, _ = rows(4)
    model = KalproxRegressor(penalty=None, coef_cov="robust", engine="local").fit(X, y)
    assert np.isnan(model.coef_std_).all()


def test_one_cluster_tells_nothing_and_says_so():
    X, y, _ = rows(200)
    model = KalproxRegressor(coef_cov="clustered").partial_fit(X[:100], y[:100])
    one = KalproxRegressor(coef_cov="clustered").fit(X, y, clusters=["a"] * 200)
    for some in (model, one):
        for name in ("coef_std_", "intercept_std_", "covariance_"):
            with pytest.warns(RuntimeWarning, match="needs at least two clusters, got 1, .* Learn another batch"):
                assert np.isnan(getattr(some, name)).all()
        with pytest.warns(RuntimeWarning, match="at least two clusters"):
            assert np.isnan(some.coef_interval()).all()
    assert np.isfinite(model.partial_fit(X[100:], y[100:]).coef_std_).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_on_from_there(kind):
    X, y, day = rows()
    model = KalproxRegressor(penalty=None, coef_cov=kind, engine="local").fit(
        X[:2000], y[:2000], **about(kind, day[:2000])
    )
    model.partial_fit(X[2000:], y[2000:], **about(kind, day[2000:]))
    np.testing.assert_allclose(errors(model), reference(X, y, day, kind), rtol=0.02)


# files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows in two Parquet files and one CSV file, sorted by nothing."""
    folder, table = tmp_path_factory.mktemp("rows"), frame(*rows())
    (folder / "parts").mkdir()
    pq.write_table(table.slice(0, 1500), folder / "parts" / "0.parquet", row_group_size=400)
    pq.write_table(table.slice(1500), folder / "parts" / "1.parquet", row_group_size=400)
    table.to_pandas().to_csv(folder / "all.csv", index=False)
    late = frame(*rows(link="exp"))
    pq.write_table(late, folder / "exp.parquet", row_group_size=500)
    return folder


FIT = ["--target", "y", "--penalty", "none", "--quiet"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_command_on_an_engine_and_as_a_stream(folder, tmp_path, kind):
    X, y, day = rows()
    columns = ["--features", "a,b,c", "--coef-cov", kind] + (["--clusters", "day"] if kind == "clustered" else [])
    found = {}
    for name, source, options in (
        ("stream", "all.csv", []),
        ("parts", "parts", []),
        ("engine", "parts", ["--engine", "local", "--partitions", 5]),
    ):
        out = tmp_path / f"{name}.kalprox"
        invoke("fit", folder / source, *FIT, *columns, *options, "--out", out)
        found[name] = TableModel.load(out).model
    np.testing.assert_allclose(errors(found["engine"]), reference(X, y, day, kind), rtol=1e-9)
    np.testing.assert_allclose(errors(found["stream"]), reference(X, y, day, kind), rtol=0.02)
    np.testing.assert_allclose(errors(found["parts"]), errors(found["stream"]), rtol=1e-9)
    memory = KalproxRegressor(penalty=None, coef_cov=kind).fit(X, y, **about(kind, day))
    np.testing.assert_allclose(errors(memory), reference(X, y, day, kind), rtol=1e-9)  # which has the residuals


@pytest.mark.slow
def test_the_options_name_each_other(folder, tmp_path):
    source, out = folder / "all.csv", ["--out", tmp_path / "model.kalprox"]
    assert (
        "--coef-cov clustered requires --clusters"
        in invoke("fit", source, *FIT, "--coef-cov", "clustered", *out, code=2).output
    )
    wrong = invoke("fit", source, *FIT, "--coef-cov", "robust", "--clusters", "day", *out, code=2)
    assert "--clusters requires --coef-cov auto or clustered; got --coef-cov robust" in wrong.output
    table = Table(str(source), Columns("y", numeric=NAMES))
    with pytest.raises(ValueError, match=r"name its column in Columns\.cluster"):
        FitJob(table, {"coef_cov": "clustered"}).run()
    invoke("fit", source, *FIT, "--clusters", "day", *out)  # which asks for clustered standard errors
    first = TableModel.load(tmp_path / "model.kalprox")
    assert first.learner.settings.coef_cov == "clustered" and first.columns.names == list(NAMES)
    again = tmp_path / "again.kalprox"
    invoke("fit", source, *FIT, "--columns", tmp_path / "model.kalprox", "--out", again)
    assert again.read_bytes() == (tmp_path / "model.kalprox").read_bytes()
    invoke("fit", source, *FIT, "--columns", tmp_path / "model.kalprox", "--coef-cov", "model", "--out", again)
    assert TableModel.load(again).columns == replace(first.columns, cluster=None)


def test_prediction_does_not_need_the_clusters(folder, tmp_path):
    model, out = tmp_path / "model.kalprox", tmp_path / "out.csv"
    invoke("fit", folder / "all.csv", *FIT, "--clusters", "day", "--out", model)
    pd.read_csv(folder / "all.csv")[list(NAMES)].to_csv(tmp_path / "new.csv", index=False)
    invoke("predict", model, tmp_path / "new.csv", "--out", out, "--quiet")
    assert len(pd.read_csv(out).dropna()) == 4000


# resuming


class Interrupted(Exception):
    pass


def job(source, checkpoint=None, *, stop=lambda progress: False, every=500, memory=1 << 16, engine=None, **settings):
    """A fit in small blocks, which is interrupted when `stop` says so."""
    columns = Columns("y", numeric=NAMES, cluster="day" if settings["coef_cov"] == "clustered" else None)

    def watch(progress):
        if stop(progress):
            raise Interrupted

    table, settings = Table(str(source), columns, memory=memory), {"penalty": None, **settings}
    return FitJob(table, settings, checkpoint=checkpoint, every=every, engine=engine, partitions=3, watch=watch)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1, 1 << 18], ids=["blocks of 64 rows", "blocks of 409 rows"])
@pytest.mark.parametrize("link", ["identity", "exp"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_fit_goes_on_to_the_same_bytes(folder, tmp_path, kind, link, memory):
    source = folder / ("exp.parquet" if link == "exp" else "all.csv")
    settings = {"coef_cov": kind, "link": link, "memory": memory, "every": 1500 if link == "exp" else 500}
    straight, out, checkpoint = tmp_path / "straight", tmp_path / "out", tmp_path / "state"
    passes, stopped = [], []
    job(source, **settings, stop=lambda progress: passes.append(progress.number)).run(straight)
    done = False
    while not done:
        written = []

        def third(progress, written=written):
            written += [progress] * progress.checkpoint
            return len(written) == 3

        try:
            job(source, checkpoint, stop=third, **settings).run(out)
            done = True
        except Interrupted:
            stopped.append(written[-1].number)
    assert len(stopped) >= 2 and max(stopped) == max(passes)  # also in the pass that sums the scores
    assert out.read_bytes() == straight.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("link", ["identity", "exp"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_fit_on_an_engine_goes_on_to_the_same_bytes(folder, tmp_path, kind, link):
    source = folder / ("exp.parquet" if link == "exp" else "parts")
    settings, passes = {"coef_cov": kind, "link": link, "engine": "local"}, []
    straight, out, checkpoint = tmp_path / "straight", tmp_path / "out", tmp_path / "state"
    job(source, **settings, stop=lambda progress: passes.append(progress.number)).run(straight)
    assert max(passes) >= 1
    with pytest.raises(Interrupted):
        job(source, checkpoint, stop=lambda progress: progress.number == max(passes), **settings).run(out)
    again = []
    job(source, checkpoint, stop=lambda progress: again.append(progress.number), **settings).run(out)
    assert set(again) == {max(passes)}  # the passes before it are replayed
    assert out.read_bytes() == straight.read_bytes()


@pytest.mark.parametrize("labels", [None, ["é", 'a "b"', "1"]], ids=str)
def test_the_scores_of_a_pass_are_saved_bit_for_bit(labels):
    rng = np.random.default_rng(0)
    D, u = rng.normal(size=(3, 4)), rng.normal(size=3)
    for center in (rng.normal(size=3), None):
        none = Sandwich.zero(center, 4, None)
        total = (
            none.after_rows(D, u, None)
            if labels is None
            else none.after_clusters(D, u, None, np.ones(3), np.array(labels))
        )
        assert can_be_saved(total)
        (found,) = load_totals(*save_totals([Folded(total, Counts(3, 3, 0))]))
        assert found.counts == Counts(3, 3, 0) and found.total.count == 3
        assert found.total.M.tobytes() == total.M.tobytes() and list(found.total.groups) == list(total.groups)
        for name, s in total.groups.items():
            assert found.total.groups[name].tobytes() == s.tobytes()


# saving, copying, merging


@pytest.mark.parametrize("engine", [None, "local"])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_copied_and_pickled_models_go_on_bit_for_bit(tmp_path, kind, engine):
    X, y, day = rows(3000)
    model = KalproxRegressor(penalty=None, coef_cov=kind, engine=engine).fit(
        X[:2000], y[:2000], **about(kind, day[:2000])
    )
    model.partial_fit(X[2000:2400], y[2000:2400], **about(kind, day[2000:2400]))
    model.save(tmp_path / "model")
    others = [KalproxRegressor.load(tmp_path / "model"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    model.partial_fit(X[2400:], y[2400:], **about(kind, day[2400:]))
    model.save(tmp_path / "expected")
    for other in others:
        other.partial_fit(X[2400:], y[2400:], **about(kind, day[2400:]))
        assert errors(other).tobytes() == errors(model).tobytes()
        for mine, theirs in zip(*(m.predict_interval(X, 0.9, method="conformal") for m in (model, other)), strict=True):
            assert mine.tobytes() == theirs.tobytes()
        other.save(tmp_path / "found")
        assert (tmp_path / "found").read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize("kind", ["model", "robust"])
def test_rows_one_by_one_go_on_bit_for_bit_after_loading(tmp_path, kind):
    X, y, _ = rows(600)
    straight = KalproxRegressor(penalty=None, coef_cov=kind).fit(X[:100], y[:100])
    model = KalproxRegressor(penalty=None, coef_cov=kind).fit(X[:100], y[:100])
    start = 100
    for i, length in enumerate([1, 1, 5, 1, 30, 1, 1, 200, 1, 60, 1, 1]):
        batch = slice(start, start + length)
        straight.partial_fit(X[batch], y[batch])
        model.partial_fit(X[batch], y[batch])
        if i % 2:
            model.save(tmp_path / "model")
            model = KalproxRegressor.load(tmp_path / "model")
        else:
            model = copy.deepcopy(model)
        start += length
        assert np.array_equal(model.predict(X, return_std=True), straight.predict(X, return_std=True))
    model.save(tmp_path / "model")
    straight.save(tmp_path / "straight")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "straight").read_bytes()


@pytest.mark.slow
def test_labels_of_clusters_may_be_longer_than_the_header_of_a_file(tmp_path):
    X, y, _ = rows(500)
    groups = np.array([5000 * '"' + str(i) for i in range(500)])
    model = KalproxRegressor(coef_cov="clustered", diagnose=False).partial_fit(X, y, clusters=groups)
    model.save(tmp_path / "model")
    assert errors(KalproxRegressor.load(tmp_path / "model")).tobytes() == errors(model).tobytes()


@pytest.mark.parametrize("engine", [[], ["--engine", "local"]], ids=["stream", "engine"])
@pytest.mark.parametrize("kind", KINDS)
def test_merged_models_have_the_errors_of_all_rows(tmp_path, kind, engine):
    X, y, day = rows()
    columns = ["--features", "a,b,c", "--coef-cov", kind] + (["--clusters", "day"] if kind == "clustered" else [])
    models = []
    for i, part in enumerate((slice(0, 1500), slice(1500, None))):  # most clusters are in both
        pq.write_table(frame(X[part], y[part], day[part]), tmp_path / f"{i}.parquet")
        models.append(tmp_path / f"{i}.kalprox")
        invoke("fit", tmp_path / f"{i}.parquet", *FIT, *columns, *engine, "--out", models[-1])
    invoke("merge", *models, "--out", tmp_path / "both.kalprox")
    both = TableModel.load(tmp_path / "both.kalprox")
    np.testing.assert_allclose(errors(both.model), reference(X, y, day, kind), rtol=0.02)
    assert both.belief.sandwich.count == 60 if kind == "clustered" else both.belief.sandwich.count > 3900
    parts = [TableModel.load(model).learner.stream.quantiles for model in models]
    quantiles = both.learner.stream.quantiles
    assert quantiles.rows == sum(one.rows for one in parts) and (quantiles.rows == 0) == bool(engine)
    np.testing.assert_array_equal(quantiles.missed, sum(one.missed for one in parts))
    # An estimator whose clusters are numbers merges with a model of files, in which they are text.
    estimator = KalproxRegressor.load(models[0])
    del estimator.feature_names_in_
    other = KalproxRegressor(**estimator.get_params()).partial_fit(X[1500:], y[1500:], **about(kind, day[1500:]))
    estimator.merge(other)
    np.testing.assert_allclose(errors(estimator), reference(X, y, day, kind), rtol=0.02)


# conformal intervals


def test_the_command_predicts_conformal_intervals(folder, tmp_path):
    model, source = tmp_path / "model.kalprox", folder / "all.csv"
    invoke("fit", source, *FIT, "--features", "a,b,c", "--out", model)
    X, y, _ = rows()
    fitted = TableModel.load(model)
    for level in (0.9, 0.5):
        out = tmp_path / "out.parquet"
        invoke("predict", model, source, "--interval", "conformal", "--level", level, "--out", out, "--quiet")
        found = pd.read_parquet(out)
        low, high = fitted.model.predict_interval(X, level, method="conformal")
        np.testing.assert_allclose(found.lower, low, rtol=1e-12)
        np.testing.assert_allclose(found.upper, high, rtol=1e-12)
        assert np.mean((found.lower <= y) & (y <= found.upper)) == pytest.approx(level, abs=0.05)
    refused = invoke("predict", model, source, "--interval", "conformal", "--level", 0.7, code=2)
    assert "level must be one of 0.5, 0.8, 0.9, 0.95, 0.99" in refused.output
    shown = invoke("show", model).output
    assert "Conformal intervals: the share of the rows" in " ".join(shown.split())
    coverage = fitted.learner.stream.quantiles.coverage
    assert all(f"{share:.1%}" in shown for share in coverage)
    np.testing.assert_allclose(coverage, [0.5, 0.8, 0.9, 0.95, 0.99], atol=0.03)


@pytest.mark.slow
def test_they_cover_their_level_whatever_the_blocks(tmp_path):
    rng = np.random.default_rng(0)
    n = 40_000
    X = rng.normal(size=(n, 3))
    y = X @ [1.0, 2.0, 0.0] + (1 + (np.arange(n) > n / 2)) * rng.standard_t(3, size=n)
    pq.write_table(frame(X, y, np.zeros(n)), tmp_path / "rows.parquet")
    for memory in ("1GB", "2MB"):  # blocks of 32,768 and of 3,276 rows
        invoke("fit", tmp_path / "rows.parquet", *FIT, "--memory", memory, "--out", tmp_path / "model.kalprox")
        quantiles = TableModel.load(tmp_path / "model.kalprox").learner.stream.quantiles
        assert quantiles.rows > n - 10
        # With steps of one length the error is how far the quantiles moved, over step and rows; see `Quantiles`.
        moved = np.abs(quantiles.ends - Quantiles.normal(None).ends).sum(axis=1)
        error = np.abs(quantiles.coverage - CONFORMAL_LEVELS)
        assert (error < moved / (0.02 / 64**0.25 * n) + 0.005).all()  # the first steps are longer


@pytest.mark.parametrize("options", [["--engine", "local"], ["--link", "exp"]], ids=["engine", "refined"])
def test_a_model_whose_rows_were_not_predicted_has_none(folder, tmp_path, options):
    model, source = tmp_path / "model.kalprox", folder / "exp.parquet"
    invoke("fit", source, *FIT, "--features", "a,b,c", *options, "--out", model)
    refused = invoke("predict", model, source, "--interval", "conformal", code=2).output
    assert "--interval conformal needs a model whose rows were predicted before they were learned" in refused
    assert "without --engine" in refused
    assert "Conformal" not in invoke("show", model).output


# reports


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", *KINDS])
def test_the_tables_say_which_errors_they_have(folder, tmp_path, kind):
    options = ["--coef-cov", kind] + (["--clusters", "day"] if kind == "clustered" else ["--features", "a,b,c"])
    invoke("fit", folder / "all.csv", *FIT, *options, "--out", tmp_path / "model.kalprox")
    fitted = TableModel.load(tmp_path / "model.kalprox")
    words = {"model": "model (", "robust": "robust (", "clustered": "within each of 60 clusters of day"}[kind]
    assert words in dict(summary.overview(fitted).rows)["standard errors"]
    table = summary.coefficients(fitted)
    assert table.columns[2:8] == ["coef", "se", "t", "p", "2.5%", "97.5%"]
    np.testing.assert_allclose([row[3] for row in table.rows], errors(fitted.model))
    if kind == "clustered":
        invoke("report", tmp_path / "model.kalprox", "--out", tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert words in page and "from clustered standard errors" in page and "Conformal intervals" in page


@pytest.mark.slow
def test_a_damaged_sandwich_is_named(folder, tmp_path):
    from kalprox import model_file

    sums = "belief.sandwich.groups.values"
    invoke("fit", folder / "all.csv", *FIT, "--clusters", "day", "--out", tmp_path / "model.kalprox")
    header, arrays = model_file.read(tmp_path / "model.kalprox")
    model_file.write(tmp_path / "model.kalprox", header, arrays | {sums: arrays[sums][1:]})
    with pytest.raises(ModelFileError, match="not of an estimator that this version can read"):
        TableModel.load(tmp_path / "model.kalprox")
