"""Fits of classes and counts to files: the estimates of statsmodels, on any engine, streamed, resumed and loaded."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import statsmodels.api as sm
from command import invoke

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import TableModel
from kalprox.likelihoods import NegativeBinomial
from kalprox.model_file import ModelFileError
from kalprox.sources.columns import Columns
from kalprox.sources.inference import TargetClasses
from kalprox.sources.table import Table

pytestmark = pytest.mark.integration

N = 6000
FEATURES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(19)
    X = rng.standard_normal((N, 3))
    hours = rng.lognormal(0, 1, N)
    kinds = np.array(["red", "green", "blue"])[(X @ rng.standard_normal((3, 3)) + rng.gumbel(size=(N, 3))).argmax(1)]
    late = rng.random(N) < 1 / (1 + np.exp(1 - X @ [1.0, -0.5, 0.0]))
    made = pd.DataFrame(X, columns=FEATURES)
    made["hours"] = hours
    made["n"] = rng.poisson(hours * np.exp(0.2 + X @ [0.3, -0.1, 0.0]))
    made["kind"] = kinds
    made["late"] = np.where(late, "yes", "no")
    return made


@pytest.fixture(scope="module")
def data(frame, tmp_path_factory):
    """The rows in one file, sorted by class in another, and in two parts."""
    folder = tmp_path_factory.mktemp("likelihoods")
    frame.to_csv(folder / "all.csv", index=False)
    frame.sort_values(["late", "kind"]).to_parquet(folder / "sorted.parquet", row_group_size=500)
    (folder / "parts").mkdir()
    for i, part in enumerate((frame[:2500], frame[2500:])):
        part.to_csv(folder / "parts" / f"{i}.csv", index=False)
    return folder


def fitted(data, source, target, likelihood, *options, code=0):
    arguments = ["-y", target, "--features", "a,b,c", "--likelihood", likelihood, "--penalty", "none", *options]
    done = invoke("fit", data / source, "-q", "--out", data / "m.kalprox", *arguments, code=code)
    return TableModel.load(data / "m.kalprox") if code == 0 else done.output


def estimates(belief):
    return np.r_[belief.intercept, belief.coef], np.r_[belief.intercept_std, belief.coef_std]


ENGINES = {
    "local": ("--engine", "local"),
    "processes": ("--engine", "processes", "--workers", 2),
    "none": (),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_counts_with_an_exposure_are_statsmodels_offset(data, frame, engine):
    peer = sm.GLM(frame.n, sm.add_constant(frame[FEATURES]), sm.families.Poisson(), offset=np.log(frame.hours))
    peer = peer.fit(tol=1e-14)
    model = fitted(data, "parts", "n", "poisson", "--exposure", "hours", *ENGINES[engine])
    coef, std = estimates(model.belief)
    np.testing.assert_allclose(coef, peer.params, rtol=0, atol=1e-8)
    np.testing.assert_allclose(std, peer.bse, rtol=1e-8)


def test_offset_and_exposure_add(data, frame, tmp_path):
    frame.assign(level=np.log(frame.hours) - 1, e=np.e).to_csv(tmp_path / "a.csv", index=False)
    one = fitted(data, "all.csv", "n", "poisson", "--exposure", "hours")
    both = fitted(data, tmp_path / "a.csv", "n", "poisson", "--offset", "level", "--exposure", "e")
    np.testing.assert_allclose(both.belief.coef, one.belief.coef, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_two_classes_of_a_sorted_file_are_statsmodels_logit(data, frame, engine):
    peer = sm.Logit(frame.late == "yes", sm.add_constant(frame[FEATURES])).fit(disp=0, tol=1e-14, method="newton")
    coef, std = estimates(fitted(data, "sorted.parquet", "late", "bernoulli", *ENGINES[engine]).belief)
    np.testing.assert_allclose(coef, peer.params, rtol=0, atol=1e-8)
    np.testing.assert_allclose(std, peer.bse, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_several_classes_are_statsmodels_mnlogit(data, frame, engine):
    codes = pd.Categorical(frame.kind, ["blue", "green", "red"]).codes
    peer = sm.MNLogit(codes, sm.add_constant(frame[FEATURES])).fit(disp=0, tol=1e-14, method="newton")
    model = fitted(data, "sorted.parquet", "kind", "categorical", *ENGINES[engine])
    assert model.columns.classes == ("blue", "green", "red")
    found = np.column_stack([model.belief.intercept, model.belief.coef])
    np.testing.assert_allclose((found[1:] - found[0]).T, peer.params, rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "likelihood", "options"),
    [("n", "poisson", ("--exposure", "hours")), ("late", "bernoulli", ()), ("kind", "categorical", ())],
)
def test_a_stream_is_near_its_batch_and_scored(data, target, likelihood, options):
    batch = fitted(data, "all.csv", target, likelihood, *options).belief
    model = fitted(data, "all.csv", target, likelihood, *options, "--passes", 1)
    assert np.max(np.abs(model.belief.coef - batch.coef) / batch.coef_std) < 0.1
    assert float(model.learner.score.rows) > 0.5 * N


def test_two_classes_of_a_categorical_are_bernoulli(data):
    one, other = (fitted(data, "all.csv", "late", name) for name in ("bernoulli", "categorical"))
    assert other.learner.settings.parameters["likelihood"] == "bernoulli"
    assert np.array_equal(one.belief.coef, other.belief.coef)


class Stop(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "settings", "options", "stop"),
    [
        ("kind", {"likelihood": "categorical"}, {}, 5),
        ("late", {"likelihood": "bernoulli"}, {"passes": 1}, 2),
        ("kind", {"likelihood": "categorical"}, {"passes": 1}, 5),
        ("n", {"likelihood": "poisson"}, {}, 2),
        ("n", {"likelihood": "poisson"}, {"passes": 1}, 5),
        ("n", {"likelihood": NegativeBinomial(0.5)}, {"engine": "local", "partitions": 2}, 2),
    ],
    ids=str,
)
def test_a_fit_that_was_interrupted_resumes(data, tmp_path, target, settings, options, stop):
    files = sorted((data / "parts").iterdir())
    classes = None if target == "n" else TargetClasses()
    about = {"classes": classes, "exposure": None if classes else "hours", "low": None if classes else 0.0}
    columns = Columns.infer(files, target, FEATURES, **about)
    saves = 0

    def watch(progress):
        nonlocal saves
        saves += progress.checkpoint
        if saves == stop or ("engine" in options and progress.number == stop):
            raise Stop

    def job(**more):
        table = Table(files, columns, memory=1 << 16)
        return FitJob(table, settings, checkpoint=tmp_path / "c", every=700, **options, **more)

    with pytest.raises(Stop):
        job(watch=watch).run()
    assert (tmp_path / "c").exists()
    resumed, whole = job().run(), FitJob(Table(files, columns, memory=1 << 16), settings, **options).run()
    assert np.array_equal(resumed.belief.coef, whole.belief.coef)
    assert np.array_equal(resumed.belief.coef_std, whole.belief.coef_std)
    assert resumed.record.quality == whole.record.quality


@pytest.mark.parametrize("target", ["late", "kind"])
def test_predictions_are_probabilities_and_those_of_the_loaded_classifier(data, frame, target, tmp_path):
    fitted(data, "all.csv", target, "categorical")
    columns = frame.drop(columns=["late", "kind"])
    columns[:300].to_csv(tmp_path / "new.csv", index=False)
    invoke("predict", data / "m.kalprox", tmp_path / "new.csv", "-q", "--keep", "a", "--out", tmp_path / "p.parquet")
    found = pq.read_table(tmp_path / "p.parquet").to_pandas()
    classes = sorted(frame[target].unique())
    p, std = (found[[f"{what}_{name}" for name in classes]].to_numpy() for what in ("p", "std"))
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)
    assert (std > 0).all() and (found["class"] == np.array(classes)[p.argmax(axis=1)]).all()
    model = KalproxClassifier.load(data / "m.kalprox")
    expected, errors = model.predict_proba(columns[:300], return_std=True)
    np.testing.assert_allclose(p, expected, rtol=1e-12)
    np.testing.assert_allclose(std, errors, rtol=1e-9)
    assert model.predict(columns[:300]).tolist() == found["class"].tolist()
    with pytest.raises(ModelFileError, match=r"use KalproxClassifier\.load"):
        KalproxRegressor.load(data / "m.kalprox")


def test_a_classifier_that_was_saved_predicts_files(data, frame, tmp_path):
    model = KalproxClassifier().fit(frame[FEATURES], np.where(frame.late == "yes", 7, 3))
    model.save(tmp_path / "m")
    invoke("predict", tmp_path / "m", data / "all.csv", "-q", "--out", tmp_path / "p.csv")
    found = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_allclose(found[["p_3", "p_7"]], model.predict_proba(frame[FEATURES]), rtol=1e-12)
    assert set(found["class"]) == {3, 7}


def test_counts_predict_with_the_exposure_of_new_rows(data, frame, tmp_path):
    model = fitted(data, "all.csv", "n", "poisson", "--exposure", "hours")
    new = frame[:100].assign(hours=10 * frame.hours[:100])
    for name, rows in (("old", frame[:100]), ("new", new)):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        invoke("predict", data / "m.kalprox", tmp_path / f"{name}.csv", "-q", "--out", tmp_path / f"{name}.parquet")
    old, new = (pq.read_table(tmp_path / f"{name}.parquet").to_pandas() for name in ("old", "new"))
    np.testing.assert_allclose(new["mean"], 10 * old["mean"])
    assert (old["lower"] == old["lower"].round()).all()
    assert "exposure" in str(invoke("show", data / "m.kalprox").output)
    with pytest.raises(ValueError, match="offset must be given: the model was fitted to rows with an offset"):
        model.learner.predict(frame[FEATURES].to_numpy())


def test_a_class_without_a_good_row_is_an_error(tmp_path):
    (tmp_path / "a.csv").write_text("y,x\n" + "no,1\nyes,2\n" * 20 + "perhaps,\n")
    arguments = ["fit", tmp_path / "a.csv", "-y", "y", "--likelihood", "categorical", "--max-bad", 1]
    said = invoke(*arguments, "--out", tmp_path / "m", code=3).output
    assert "No good row has the class 'perhaps' of column 'y'" in " ".join(said.split())
    said = invoke(*arguments, "--classes", "no,yes", "--out", tmp_path / "m").output
    assert "unseen class (1)" in " ".join(said.split())
    assert "'no' (20 rows), 'yes' (20 rows)" in " ".join(said.split())


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["-y", "late"], 3, "use --likelihood bernoulli for two of them"),
        (["-y", "late", "--likelihood", "poisson"], 3, "must hold numbers; it holds text"),
        (["-y", "kind", "--likelihood", "bernoulli"], 3, "Use --likelihood categorical for several classes"),
        (["-y", "late", "--likelihood", "logit"], 2, "'logit' is not one of 'gaussian', 'student'"),
        (["-y", "a", "--likelihood", "categorical"], 3, "Did you mean a regression?"),
        (["-y", "n", "--exposure", "hours"], 2, "needs a likelihood of counts, outliers or two classes"),
        (["-y", "kind", "--likelihood", "categorical", "--offset", "a"], 2, "An offset, or an exposure, needs"),
        (["-y", "n", "--likelihood", "huber,width=2"], 2, "huber has the parameters threshold, scale"),
        (["-y", "n", "--likelihood", "huber,scale=x"], 2, "expected PARAMETER=NUMBER, such as scale=2, after 'huber'"),
        (["-y", "n", "--positive", "1"], 2, "--positive is about classes"),
        (["-y", "late", "--likelihood", "bernoulli", "--positive", "ja"], 3, "--positive must be one of the classes"),
        (["-y", "n", "--likelihood", "huber", "--alpha", "auto"], 2, "--alpha auto needs --likelihood gaussian"),
        (["-y", "n", "--likelihood", "poisson", "--exposure", "b"], 4, "exposure not positive"),
        (["-y", "c", "--likelihood", "poisson"], 4, "not possible for the likelihood"),
    ],
)
def test_mistakes_are_named_in_the_words_of_the_command_line(data, arguments, code, says):
    said = invoke("fit", data / "all.csv", *arguments, "--exclude", "n" if "n" not in arguments else "late", code=code)
    assert says in " ".join(said.output.split())


def test_the_columns_of_another_model_say_the_classes(data, tmp_path):
    fitted(data, "all.csv", "late", "bernoulli", "--positive", "no")
    arguments = ["fit", data / "all.csv", "--columns", data / "m.kalprox", "--out", tmp_path / "m", "-q"]
    invoke(*arguments, "--likelihood", "bernoulli")
    assert TableModel.load(tmp_path / "m").columns.classes == ("yes", "no")
    said = invoke(*arguments, code=2).output
    assert "holds classes, for --likelihood bernoulli or categorical; got --likelihood gaussian" in said
    said = invoke(*arguments, "--likelihood", "bernoulli", "--positive", "yes", code=2).output
    assert "--positive cannot be used with --columns" in said


def test_intervals_of_classes_are_refused(data):
    fitted(data, "all.csv", "late", "bernoulli")
    said = invoke("predict", data / "m.kalprox", data / "all.csv", "--level", 0.9, code=2).output
    assert "probabilities and no intervals" in said
