"""A model that was written can be read: odd fits are saved and loaded; hostile files raise `ModelFileError` only."""

import contextlib
import os
import warnings

import numpy as np
import pytest
from mutations import mutated
from odd_fits import differences, odd_fit

from kalprox import KalproxRegressor, model_file
from kalprox.calibration import Calibration
from kalprox.forgetting import Window
from kalprox.jobs.model import TableModel
from kalprox.learning import saving
from kalprox.learning.linearised import Linearised
from kalprox.learning.saving import from_parts
from kalprox.likelihoods import Gaussian
from kalprox.model_file import ModelFileError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(200, 3))
Y = np.tanh(X @ [0.5, -0.5, 0.2]) + RNG.normal(size=200)


# ---- what learning produces --------------------------------------------------------------------------


def check_odd_fit(seed, file, **fixed):
    """Save and load one odd fit, and compare; return whether there was anything to save."""
    case = odd_fit(seed, **fixed)
    model = case.run()
    if model is None:
        return False
    model.save(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that has not converged says so again
        again = KalproxRegressor.load(file)
    assert differences(model, again, case.more[0]) == [], seed
    assert case.learn_more(model) == case.learn_more(again), seed
    assert differences(model, again, case.more[0]) == [], seed
    return True


@pytest.mark.slow
def test_odd_linear_fits_are_loaded_and_learn_on_identically(tmp_path):
    seeds = (*range(10), *range(45, 60))  # others take seconds each
    saved = [check_odd_fit(seed, tmp_path / "model", link="identity") for seed in seeds]
    assert sum(saved) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("seed", [24, 52, 60, 72])
def test_odd_nonlinear_fits_are_loaded_and_learn_on_identically(seed, tmp_path):
    assert check_odd_fit(seed, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_many_odd_fits_are_loaded_and_learn_on_identically(part, tmp_path):
    saved = [check_odd_fit(seed, tmp_path / "model") for seed in range(1000 + 40 * part, 1040 + 40 * part)]
    assert sum(saved) > 20


# ---- saving reads back -------------------------------------------------------------------------------


def test_a_model_that_cannot_be_restored_is_not_written(tmp_path, monkeypatch):
    model = KalproxRegressor(link="tanh", likelihood=Gaussian(targets="any"), penalty="ridge").partial_fit(X, Y)
    model.save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()

    def strict(cls, settings, d, saved):
        raise ValueError("it must be positive definite")

    monkeypatch.setattr(Linearised, "restored", classmethod(strict))
    with pytest.raises(ModelFileError, match="not of an estimator"):
        model.partial_fit(X, Y).save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == before and os.listdir(tmp_path) == ["model"]


def test_a_model_that_is_restored_otherwise_is_not_written(tmp_path, monkeypatch):
    def forgetful(*args, **options):
        learner, about = from_parts(*args, **options)
        learner.stream.n_rows -= 1
        return learner, about

    monkeypatch.setattr(saving, "from_parts", forgetful)
    with pytest.raises(ModelFileError, match="could not be read back as it was written"):
        KalproxRegressor(penalty="ridge").fit(X, Y).save(tmp_path / "model")
    assert os.listdir(tmp_path) == []


# ---- hostile files -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Return the contents of model files."""
    file = tmp_path_factory.mktemp("models") / "model"
    found = []
    labels, streamed = np.arange(200) % 5, KalproxRegressor(penalty="ridge").fit(X[:150], Y[:150])
    for i in range(150, 180):
        streamed.partial_fit(X[i : i + 1], Y[i : i + 1])
    unit = (Y - Y.min()) / np.ptp(Y)
    for model in (
        streamed,
        KalproxRegressor(penalty="l1", alpha="auto").fit(X, Y),
        KalproxRegressor(coef_cov="clustered", penalty="ridge").fit(X, Y, clusters=labels),
        KalproxRegressor(coef_cov="robust", forget=0.99, penalty="ridge").fit(X, np.c_[Y, -Y]),
        KalproxRegressor(noise="inputs", penalty="ridge").fit(X, Y),
        KalproxRegressor(link="sigmoid", coef_cov="robust", penalty="ridge").partial_fit(X, unit),
        KalproxRegressor(link="sigmoid", penalty="ridge").partial_fit(X[:20], unit[:20]),
        KalproxRegressor(link="sigmoid", start=np.zeros(4), penalty="ridge").fit(X, unit),
    ):
        model.save(file)
        found.append(file.read_bytes())
    return found


def outcome(file, content):
    """Load a file, and use the model in every way if it can be loaded; only a `ModelFileError` may be raised."""
    file.write_bytes(content)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with contextlib.suppress(ValueError):  # a ModelFileError, or that the model has several targets
            TableModel.load(file)
        try:
            model = KalproxRegressor.load(file)
        except ModelFileError:
            return False
        model.__dict__.pop("feature_names_in_", None)
        rows = np.random.default_rng(0).normal(size=(3, model.n_features_in_))
        targets = model.coef_.ndim > 1
        for n in (3, 1):
            model.predict(rows[:n], return_std=True)
        model.coef_std_, model.coef_interval(0.9), model.diagnostics_.verdict()
        model.save(file)
        y = np.full((3, len(model.coef_)), 0.5) if targets else np.full(3, 0.5)
        with contextlib.suppress(ValueError, FloatingPointError):  # the rows cannot be learned, and it is said
            model.partial_fit(rows, y)
    return True


@pytest.mark.slow
def test_a_mutated_file_is_refused_or_predicts(contents, tmp_path):
    loaded = [outcome(tmp_path / "model", mutated(contents[seed % len(contents)], seed)) for seed in range(300)]
    assert 20 < sum(loaded) < 150


@pytest.mark.slow
def test_thousands_of_mutated_files_are_refused_or_predict(contents, tmp_path):
    for seed in range(300, 6300):
        outcome(tmp_path / "model", mutated(contents[seed % len(contents)], seed))


def of_score(**changes):
    """The sums of a score of no rows, but for some of them."""
    score = Calibration()
    for name, value in changes.items():
        score.by_name[name] = value
    return score.sums


@pytest.mark.parametrize(
    ("change", "arrays"),
    [
        ({"n_features": True}, {}),
        ({"n_features": 3.0}, {}),
        ({"n_rows": -1}, {}),
        ({"n_rows": "many"}, {}),
        ({"belief.inner.information.targets": 0}, {}),
        ({"feature_names": [1, 2, 3]}, {}),
        ({"feature_names": "abc"}, {}),
        ({"settings": {"start": {"array": ["0", "1"]}}}, {}),
        ({"settings": {"missing": "perhaps"}}, {}),
        ({"settings": {"max_passes": [1]}}, {}),
        ({"settings": {"tol": "small"}}, {}),
        ({}, {"belief.inner.information.T": np.zeros((5, 5), np.int64)}),
        ({}, {"belief.inner.information.T": np.triu(np.full((5, 5), 1e200))}),
        ({}, {"belief.inner.information.rows": np.ones(1)}),
        ({}, {"belief.inner.information.lost": np.zeros((2, 2))}),
        ({}, {"tracking.quantiles.missed": np.zeros(3)}),
        ({}, {"tracking.quantiles.rows": np.array(-1.0)}),
        ({}, {"tracking.scores.0.sums": of_score(rows=-5.0)}),
        ({}, {"tracking.scores.0.sums": of_score(segment_length=0.0)}),
        ({}, {"tracking.scores.0.sums": of_score(segment_length=-16.0)}),
        ({}, {"tracking.scores.0.sums": np.zeros(3)}),
        ({}, {"belief.sandwich.M": np.zeros((1, 9, 9))}),
        ({}, {"belief.sandwich.groups.labels": np.array([300.0])}),
    ],
)
def test_what_learning_cannot_have_produced_is_refused(change, arrays, tmp_path):
    KalproxRegressor(coef_cov="robust", penalty="ridge").fit(X, Y).save(tmp_path / "model")
    header, old = model_file.read(tmp_path / "model")
    settings = header["settings"] | change.get("settings", {})
    model_file.write(tmp_path / "model", header | change | {"settings": settings}, old | arrays)
    with pytest.raises(ModelFileError):
        KalproxRegressor.load(tmp_path / "model")


@pytest.mark.parametrize("batch", [-1.0, 0.5, 31.0, np.nan])
def test_buffered_rows_of_impossible_batches_are_refused(batch, tmp_path):
    """A batch of -1 rows made reading loop for ever."""
    model = KalproxRegressor(penalty="ridge").fit(X[:100], Y[:100])
    for i in range(100, 130):
        model.partial_fit(X[i : i + 1], Y[i : i + 1])
    model.save(tmp_path / "model")
    header, arrays = model_file.read(tmp_path / "model")
    arrays["waiting.batch"][3] = batch
    model_file.write(tmp_path / "model", header, arrays)
    with pytest.raises(ModelFileError):
        KalproxRegressor.load(tmp_path / "model")


def test_a_window_of_many_rows_and_rows_that_are_held_are_few_arrays(tmp_path):
    """One array for each field, however many blocks the rows came in: the header of a file must not grow with them."""
    rows, gaps = RNG.normal(size=(3000, 3)), RNG.normal(size=(150, 3))
    window = KalproxRegressor(forget=Window(2000), penalty="ridge").partial_fit(rows, rows[:, 0])
    gaps[::2, 1] = np.nan
    gaps[1::2, 2] = np.nan
    held = KalproxRegressor(missing="marginalize", penalty="ridge")
    for i in range(150):
        held.partial_fit(gaps[i : i + 1], gaps[i : i + 1, 0])
    for model in (window, held):
        model.save(tmp_path / "model")
        header, arrays = model_file.read(tmp_path / "model")
        assert len(arrays) < 120 and len(str(header)) < 8000
        again = KalproxRegressor.load(tmp_path / "model")
        for one in (model, again):
            one.partial_fit(rows[:50], rows[:50, 0])
        np.testing.assert_array_equal(again.coef_, model.coef_)
