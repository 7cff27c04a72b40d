"""What a learner keeps of its innovations, and the buffer of single rows: reading and saving change nothing."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from data import behind_link, linear
from scipy import special, stats
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from kalprox import Calibration, Information, KalproxClassifier, KalproxRegressor
from kalprox.calibration import FALSE_ALARMS, CategoryCalibration, ClassCalibration, CountCalibration
from kalprox.learning.innovations import Innovations
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.learning.step import Call
from kalprox.learning.tracking import Quantiles, Tracking
from kalprox.likelihoods.names import likelihood_of
from kalprox.sources import Block


def same_score(a, b, rtol=0.0):
    assert a.diagnostics_.not_judged == b.diagnostics_.not_judged
    for field in dataclasses.fields(Calibration):
        if field.metadata.get("static"):
            continue
        ours, theirs = (getattr(model.diagnostics_, field.name) for model in (a, b))
        np.testing.assert_allclose(ours, theirs, rtol=rtol, err_msg=field.name)


def same_state(a, b):
    """Bit for bit: the estimate, the score and the quantiles."""
    np.testing.assert_array_equal(a.coef_, b.coef_)
    np.testing.assert_array_equal(a.coef_std_, b.coef_std_)
    same_score(a, b)
    for name in ("ends", "rows", "missed"):
        np.testing.assert_array_equal(*(getattr(model._learner.stream.quantiles, name) for model in (a, b)))


def in_batches(model, X, y, sizes):
    start = 0
    for size in sizes:
        model.partial_fit(X[start : start + size], y[start : start + size])
        start += size
        yield model


SIZES = [1, 1, 3, 40, 1, 1, 7, 300, 1, 16, 2, 200, 1, 1, 25]


@pytest.mark.slow
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("settings", [{"alpha": 3.0}, {"penalty": None}, {"coef_cov": "robust"}, {"penalty": "l1"}])
def test_reading_saving_and_copying_change_no_bit(settings, targets, tmp_path):
    X, y = linear(600, 3)
    y = y if targets == 1 else np.column_stack([y, y**2])
    *_, plain = in_batches(KalproxRegressor(**({"penalty": "ridge"} | settings)), X, y, SIZES)
    for model in in_batches(KalproxRegressor(**({"penalty": "ridge"} | settings)), X, y, SIZES):
        model.predict(X[:1], return_std=True)
        model.predict(X[:5])
        _ = model.coef_std_, model.diagnostics_.rows, model._learner.stream.quantiles, model.noise_var_
    same_state(model, plain)
    model = KalproxRegressor(**({"penalty": "ridge"} | settings))
    for start, size in zip(np.cumsum([0, *SIZES]), SIZES, strict=False):
        model.partial_fit(X[start : start + size], y[start : start + size])
        model.save(tmp_path / "model")
        model = KalproxRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    assert model.diagnostics_.rows == plain.diagnostics_.rows
    same_score(model, plain, 1e-9)  # a restored filter starts from the information, not from its own rounding
    half = KalproxRegressor(**({"penalty": "ridge"} | settings))
    for i, model in enumerate(in_batches(half, X, y, SIZES)):
        if i == 9:
            other = copy.deepcopy(model)
    rest = int(np.sum(SIZES[:10]))
    *_, other = in_batches(other, X[rest:], y[rest:], SIZES[10:])
    np.testing.assert_array_equal(other.coef_, plain.coef_)
    same_score(other, plain, 1e-9)


@pytest.mark.parametrize("bad", ["nan", "shape", "large"])
def test_a_refused_batch_loses_nothing(bad):
    X, y = linear(200, 3)
    for size in (1, 150):
        model, plain = KalproxRegressor(penalty="ridge"), KalproxRegressor(penalty="ridge")
        for i in range(0, 200, size):
            for one in (model, plain):
                one.partial_fit(X[i : i + size], y[i : i + size])
            wrong = X[:size].copy()
            wrong[-2:] = {"nan": np.nan, "shape": 0.0, "large": 1.7e308}[bad]
            wrong = np.hstack([wrong, wrong]) if bad == "shape" else wrong
            message = {"nan": "must be finite", "shape": "has 6 features", "large": "at most 1e.70 in size"}
            for learn in (model.partial_fit, model.prequential):
                with pytest.raises(ValueError, match=message[bad]):
                    learn(wrong, y[:size])
        same_state(model, plain)


def test_without_diagnosis_nothing_is_scored_and_the_same_is_learned():
    X, y = linear(700, 3)
    for settings in ({}, {"penalty": None}, {"forget": 0.99}, {"penalty": "l1"}, {"standardize": True}):
        for sizes in ([1] * 60, SIZES, [700]):
            *_, model = in_batches(KalproxRegressor(**({"penalty": "ridge"} | settings)), X, y, sizes)
            *_, silent = in_batches(KalproxRegressor(diagnose=False, **({"penalty": "ridge"} | settings)), X, y, sizes)
            np.testing.assert_allclose(silent.coef_, model.coef_, rtol=1e-9)
            np.testing.assert_allclose(silent.coef_std_, model.coef_std_, rtol=1e-9)
            assert silent.diagnostics_.rows == silent._learner.stream.quantiles.rows == 0


def test_rows_learned_without_diagnosis_move_nothing_afterwards():
    X, y = linear(120, 3)
    model = KalproxRegressor(diagnose=False, penalty="ridge").fit(X[:100], y[:100])
    for i in range(100, 110):
        model.partial_fit(X[i : i + 1], 1e6 * y[i : i + 1])
    model.set_params(diagnose=True)
    for i in range(110, 120):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert model._learner.stream.quantiles.rows == model.diagnostics_.rows == 10


LEARNERS = {
    "ridge": {},
    "none": {"penalty": None},
    "forget": {"forget": 0.98},
    "l1": {"penalty": "l1", "alpha": 5.0},
    "smooth": {"penalty": "smooth_l1"},
    "standardize": {"standardize": True},
    "auto": {"alpha": "auto"},
    "link": {"link": "tanh"},
}


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.filterwarnings("ignore:The noise level cannot be learned", "ignore:With .* rows for")
@pytest.mark.filterwarnings("ignore:The warm-up of the stream has not ended")
def test_prequential_is_predict_then_partial_fit_row_by_row(name):
    X, y, _ = behind_link("tanh", 160, 3) if name == "link" else (*linear(160, 3), None)
    first = 100 if name == "link" else 40
    block, rows = (
        KalproxRegressor(**({"penalty": "ridge"} | LEARNERS[name])).partial_fit(X[:first], y[:first]) for _ in range(2)
    )
    mean, std = block.prequential(X[first:], y[first:])
    for i in range(first, 160):
        expected = rows.predict(X[i : i + 1], return_std=True)
        if np.isfinite(std[i - first]) or name != "link":  # the warm-up of a link predicts nothing
            np.testing.assert_allclose([mean[i - first], std[i - first]], np.ravel(expected), rtol=1e-8)
        rows.partial_fit(X[i : i + 1], y[i : i + 1])
    np.testing.assert_allclose(block.coef_, rows.coef_, rtol=1e-8)
    np.testing.assert_allclose(block.coef_std_, rows.coef_std_, rtol=1e-8)
    assert block.n_rows_seen_ == rows.n_rows_seen_ == 160


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "link"])
@pytest.mark.parametrize(("first", "diagnose"), [(40, False), (5000, True)], ids=["not asked", "long"])
def test_a_short_batch_is_predicted_where_no_filter_is_exact(name, first, diagnose):
    X, y = linear(first + 4, 3)
    block, rows = (
        KalproxRegressor(diagnose=diagnose, **({"penalty": "ridge"} | LEARNERS[name])).partial_fit(X[:first], y[:first])
        for _ in range(2)
    )
    mean, std = block.prequential(X[first:], y[first:])
    for i in range(4):
        row = slice(first + i, first + i + 1)
        expected = np.ravel(rows.predict(X[row], return_std=True))
        if name in ("l1", "smooth", "standardize", "auto"):  # zeros, scales and alpha are held for a few rows
            assert abs(mean[i] - expected[0]) < 0.05 * std[i]
            np.testing.assert_allclose(std[i], expected[1], rtol=1e-2)
        else:
            np.testing.assert_allclose([mean[i], std[i]], expected, rtol=1e-8)
        rows.partial_fit(X[row], y[row])


def test_prequential_from_nothing():
    X, y = linear(50, 2)
    mean, std = KalproxRegressor(penalty=None).prequential(X, y)
    assert np.isnan(mean[0]) and np.isinf(std[:3]).all() and np.isnan(std[3]) and np.isfinite(std[4:]).all()
    both = KalproxRegressor(penalty=None).prequential(X, np.column_stack([y, -2 * y]))
    np.testing.assert_allclose(both[0][4:], np.column_stack([mean, -2 * mean])[4:], rtol=1e-9)
    np.testing.assert_allclose(both[1][4:], np.column_stack([std, 2 * std])[4:], rtol=1e-9)


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e35, 1e69])
def test_targets_and_inputs_of_any_size_are_learned(scale):
    X, y = linear(300, 3)
    for settings in ({}, {"penalty": None}, {"alpha": "auto"}, {"coef_cov": "robust"}):
        model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X, y).partial_fit(X * scale, y)
        assert model.n_rows_seen_ == 600 and model.diagnostics_.rows + model.diagnostics_.undetermined == 600
    constant = KalproxRegressor(penalty="ridge").fit(X, np.full(300, 3.0))
    low, high = constant.predict_interval(X[:2], 0.9, method="conformal")
    np.testing.assert_allclose([low, high], 3.0, rtol=1e-12)
    assert (KalproxRegressor(coef_cov="robust", penalty="ridge").fit(X, np.full(300, 3.0)).coef_std_ < 1e-12).all()


def test_targets_are_tracked_apart():
    y = np.random.default_rng(0).normal(size=(40, 2))
    found = Innovations(np.zeros((40, 2)), np.ones((40, 2)), np.full((40, 2), np.inf), np.ones((40, 2)), y, 1)
    tracking = Tracking.none(2).scored(Settings.of(), Block(y, y), found).issued(y, np.full(40, 40))
    other = Tracking.none(2).scored(Settings.of(), Block(y, y[::-1]), found).issued(y[::-1], np.full(40, 40))
    assert tracking.score.rows == 80 and [score.rows for score in tracking.scores] == [40, 40]
    merged = tracking.merge(other)
    assert merged.score.rows == 160 and merged.quantiles.rows == 80


def test_single_rows_after_weighted_ones_are_predicted_by_the_scorer_of_these():
    """Rows that share an estimate of the noise are counted in weights, as the scorer's own rows are."""
    X, y = linear(1500, 3)
    model = KalproxRegressor(penalty="ridge").partial_fit(X[:1000], y[:1000], sample_weight=np.full(1000, 5.0))
    for i in range(1000, 1100):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert 0 < model.diagnostics_.shared < 1100  # pairs of rows per degree of freedom; it was negative, and ignored
    assert (model._learner.stream._buffer.batches == 1).all()


def test_batches_as_long_as_the_buffer_takes_have_the_score_of_single_rows():
    """A batch of 1,024 rows was predicted by an estimate that served for the first 512 of them."""
    X, y = linear(6000, 6)
    *_, single = in_batches(KalproxRegressor(penalty="ridge"), X, y, [1] * 6000)
    for size in (256, 512, 1024):
        *_, model = in_batches(KalproxRegressor(penalty="ridge"), X, y, [size] * (6000 // size + 1))
        scores = [one.diagnostics_ for one in (model, single)]
        for name in ("rows", "rmse", "nis", "coverage"):
            np.testing.assert_allclose(*(getattr(score, name) for score in scores), rtol=1e-9)


@pytest.mark.parametrize("batch", [1000, pytest.param(37, marks=pytest.mark.slow)])
def test_models_that_begin_with_fewer_rows_than_columns_are_not_called_drifting(batch):
    """The noise is not known then. A calibrated stream is called something else with a probability of 0.02 at most."""
    words = []
    for seed in range(6):
        rng = np.random.default_rng(100 + seed)
        X = rng.normal(size=(1000, 200))
        y = X @ rng.normal(size=200) + rng.normal(size=1000)
        model = KalproxRegressor(penalty="ridge")
        for start in range(0, 1000, batch):
            model.partial_fit(X[start : start + batch], y[start : start + batch])
        score = model.diagnostics_
        assert 750 < score.rows < 850 and abs(score.nis - 1) < 5 * (2 / score.rows) ** 0.5
        words.append(score.verdict().word)
    assert words.count("calibrated") >= 5


def test_long_fits_track_their_intervals_in_few_pieces(monkeypatch):
    """And in the same ones, however a source is cut into blocks of a power of two."""
    together, after = [], Quantiles.after_rows
    monkeypatch.setattr(
        Quantiles, "after_rows", lambda self, z, of, *rest: together.extend(of.tolist()) or after(self, z, of, *rest)
    )
    rng = np.random.default_rng(0)
    X = rng.normal(size=(32_768, 2))
    y = X.sum(axis=1) + rng.normal(size=32_768)
    whole = KalproxRegressor(penalty="ridge").fit(X, y)
    assert together[: 128 * 64] == [64] * 128 * 64 and len(together) == 32_768 and max(together) == 256
    ends = []
    for length in (4096, 8192):
        learner = Learner(whole._learner.settings)
        for start in range(0, 32_768, length):
            learner.learn(Block(X[start : start + length], y[start : start + length]), call=Call(in_turn=True))
        ends.append(learner.stream.tracking.quantiles.ends)
    np.testing.assert_array_equal(ends[0], ends[1])
    assert whole.diagnostics_.rows == 32_766


def test_settings_that_are_equal_leave_the_buffer_as_it_is():
    """An unpickled model has other objects for the same settings: its buffer was folded, and so gave other bits."""
    X, y = linear(8900, 6)
    model = KalproxRegressor(penalty="ridge").partial_fit(X[:8000], y[:8000]).partial_fit(X[8000:8200], y[8000:8200])
    again = pickle.loads(pickle.dumps(model))
    for one in (model, again):
        one.partial_fit(X[8200:], y[8200:])
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert again._learner.stream._buffer.n == model._learner.stream._buffer.n == 900


@pytest.mark.slow
@pytest.mark.parametrize("first", [60, 2300], ids=["exact innovations", "scorer"])
@pytest.mark.parametrize("kind", ["frequency", "precision"])
@pytest.mark.parametrize("settings", [{}, {"forget": 0.99}, {"penalty": "l1", "alpha": 5.0}], ids=str)
def test_single_rows_with_weights_are_buffered(settings, kind, first):
    """One by one, through the buffer, they give what they give in one batch, and what predictions before each give."""
    X, y = linear(first + 60, 4)
    w = np.random.default_rng(0).integers(1, 4, size=len(y)) / (1.0 if kind == "frequency" else 2.0)
    models = [
        KalproxRegressor(weight_kind=kind, **({"penalty": "ridge"} | settings)).partial_fit(
            X[:first], y[:first], sample_weight=w[:first]
        )
        for _ in range(3)
    ]
    single, batch, prequential = models
    predicted = []
    for i in range(first, first + 60):
        own = {} if kind == "frequency" else {"sigma": w[i : i + 1] ** -0.5}
        predicted.append(np.ravel(single.predict(X[i : i + 1], return_std=True, **own)))
        single.partial_fit(X[i : i + 1], y[i : i + 1], sample_weight=w[i : i + 1])
    buffer = single._learner.stream._buffer
    assert "weights" in buffer.columns and len(buffer) == 60
    batch.partial_fit(X[first:], y[first:], sample_weight=w[first:])
    np.testing.assert_allclose(single.coef_, batch.coef_, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(single.coef_std_, batch.coef_std_, rtol=1e-10)
    np.testing.assert_allclose(single.noise_var_, batch.noise_var_, rtol=1e-10)
    found = prequential.prequential(X[first:], y[first:], sample_weight=w[first:])
    if "penalty" in settings:  # what is zero is held for a few rows, but not where the std of the row is given
        predicted = np.transpose(predicted)
        assert np.max(np.abs(predicted[0] - found[0]) / predicted[1]) < 0.05
        np.testing.assert_allclose(predicted[1], found[1], rtol=2e-2)
    else:
        np.testing.assert_allclose(np.transpose(predicted), found, rtol=1e-10)
    scores = [model.diagnostics_ for model in (single, prequential)]
    np.testing.assert_allclose(*(score.rows for score in scores), rtol=1e-14)
    if first == 60:
        np.testing.assert_allclose(*(score.squares for score in scores), rtol=1e-9)
    again = pickle.loads(pickle.dumps(single))
    same_state(again, single)


def test_reading_after_each_batch_folds_each_row_a_few_times(monkeypatch):
    """Up to 2,048 rows are buffered, and a reading folds those that are."""
    folded, fold = [], Information.fold

    def counting(self, X, *args, **kwargs):
        folded.append(len(X))
        return fold(self, X, *args, **kwargs)

    X, y = linear(20_000, 4)
    model = KalproxRegressor(penalty="ridge").partial_fit(X[:11_000], y[:11_000])
    monkeypatch.setattr(Information, "fold", counting)
    for start in range(11_000, 20_000, 200):
        model.partial_fit(X[start : start + 200], y[start : start + 200])
        _ = model.coef_, model.predict(X[:3], return_std=True)
    assert sum(folded) <= 8 * 9_000  # half of 2,048 rows for each reading, and two folds of each row


def yes_or_no(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, (rng.random(n) < special.expit(X @ [1.0, -1.0, 0.5] - 0.5)) + 0.0


CALIBRATIONS = {
    "gaussian": Calibration,
    "student": Calibration,
    "poisson": CountCalibration,
    "quasi-poisson": CountCalibration,
    "negative-binomial": CountCalibration,
    "bernoulli": ClassCalibration,
    "categorical": CategoryCalibration,
}


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_the_score_is_that_of_the_likelihood(name):
    tracking = Tracking.none(3, likelihood=likelihood_of(name))
    assert type(tracking.score) is CALIBRATIONS[name] and len(tracking.scores) == (1 if name == "categorical" else 3)


@pytest.mark.slow
def test_prequential_scores_of_a_classifier_are_those_of_its_predictions(monkeypatch):
    monkeypatch.setattr("kalprox.learning.linearised._FEW", 0)  # rows of the warm-up are predicted one by one otherwise
    X, y = yes_or_no(6000)  # batches of up to 64 rows are predicted one by one
    model, made = KalproxClassifier(), []
    for start in range(0, 6000, 75):
        batch = slice(start, start + 75)
        judged = float(model.diagnostics_.rows) if start else 0.0
        p = model.predict_proba(X[batch])[:, 1] if start else np.full(75, np.nan)
        model.partial_fit(X[batch], y[batch], classes=[0, 1])
        if model.diagnostics_.rows > judged:
            made.append((p, y[batch]))
    p, came = map(np.concatenate, zip(*made, strict=True))
    score = model.diagnostics_
    assert type(score) is ClassCalibration and score.rows == len(p) > 5000
    assert float(score.log_loss) == pytest.approx(log_loss(came, p), rel=1e-9)
    assert float(score.brier) == pytest.approx(brier_score_loss(came, p), rel=1e-9)
    assert score.auc == pytest.approx(roc_auc_score(came, p), abs=1e-3)
    assert score.verdict().word == "calibrated"


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_a_saved_classifier_continues_bit_for_bit(classes, tmp_path):
    X, y = yes_or_no(3000)
    if classes == 3:
        y = np.argmax(X + np.random.default_rng(1).gumbel(size=X.shape), axis=1)
    models = []
    for saved in (False, True):
        model = KalproxClassifier()
        for start in range(0, 3000, 250):
            batch = slice(start, start + 250)
            model.partial_fit(X[batch], y[batch], classes=np.arange(classes))
            if saved and start in (500, 2000):
                model.save(tmp_path / "model")
                model = KalproxClassifier.load(tmp_path / "model")
        models.append(model)
    assert models[0].diagnostics_.rows > 500
    assert type(models[1].diagnostics_) is (ClassCalibration if classes == 2 else CategoryCalibration)
    for field in dataclasses.fields(models[0].diagnostics_)[:-1]:
        ours, theirs = (getattr(model.diagnostics_, field.name) for model in models)
        np.testing.assert_array_equal(ours, theirs, err_msg=field.name)


def test_classes_have_no_conformal_intervals_and_it_is_said():
    X, y = yes_or_no(3000)
    model = KalproxClassifier()
    for start in range(0, 3000, 500):
        model.partial_fit(X[start : start + 500], y[start : start + 500], classes=[0, 1])
    assert model._learner.stream.quantiles.rows == 0 < model.diagnostics_.rows
    with pytest.raises(ValueError, match="probabilities and no intervals"):
        model._learner.conformal_ends(0.9)


@pytest.mark.slow
def test_counts_are_scored_and_their_conformal_intervals_tracked():
    X, _ = yes_or_no(4000)
    alarms = 0
    for seed in range(6):
        y = np.random.default_rng(seed).poisson(np.exp(X @ [0.4, -0.3, 0.1])) + 0.0
        model = KalproxRegressor(likelihood="poisson")
        for start in range(0, 4000, 400):
            model.partial_fit(X[start : start + 400], y[start : start + 400])
        score = model.diagnostics_
        alarms += score.verdict().word != "calibrated"
        assert type(score) is CountCalibration and model._learner.stream.quantiles.rows == score.rows > 2000
    assert alarms <= stats.binom.ppf(0.999, 6, FALSE_ALARMS)
    rates = KalproxRegressor(likelihood="poisson")
    for start in range(0, 4000, 400):
        rates.partial_fit(X[start : start + 400], y[start : start + 400] / 2, sample_weight=np.full(400, 2.0))
    assert rates.diagnostics_.undetermined > 0 and "the target is not whole" in str(rates.diagnostics_.verdict())
