"""Single rows of other likelihoods than the Gaussian: a filter that is updated in place, and folds of its rows."""

import copy
import pickle

import numpy as np
import pytest

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.algorithms import proximal_filter, state
from kalprox.algorithms.state import refine_held
from kalprox.learning.learner import Learner
from kalprox.learning.matched import MatchingFilter
from kalprox.learning.saving import n_held
from kalprox.learning.settings import Settings
from kalprox.sources import ArraySource, Block


def rows_of(n=400, d=4, seed=0, size=0.6, intercept=0.0, likelihood="bernoulli"):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 3.0
    f = (X - 3.0) @ rng.normal(scale=size, size=d) + intercept
    y = rng.poisson(np.exp(f)) if likelihood == "poisson" else rng.random(n) < 1 / (1 + np.exp(-f))
    return X, y.astype(float)


def one(X, y, i, weights=None):
    return Block(X[i : i + 1], y[i : i + 1], None if weights is None else weights[i : i + 1])


def learned(X, y, weights=None, **settings):
    learner = Learner(Settings.of(**{"likelihood": "bernoulli"} | settings))
    for i in range(len(y)):
        learner.learn(one(X, y, i, weights))
    return learner


def exactly(a, b):
    """Whether two learners agree in every bit, what they have buffered included."""
    for mine, theirs in ((a, b), (a.copy(), pickle.loads(pickle.dumps(b)))):
        np.testing.assert_array_equal(mine.belief.coef, theirs.belief.coef)
        np.testing.assert_array_equal(mine.belief.posterior.cov(), theirs.belief.posterior.cov())
        assert mine.n_rows == theirs.n_rows and n_held(mine) == n_held(theirs)
        assert str(mine.score.verdict()) == str(theirs.score.verdict())


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson"])
@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_rows_after_a_fit_end_where_steps_of_the_filter_end(likelihood, weighted):
    """Each row is linearised at the same belief, so that only rounding differs."""
    X, y = rows_of(3000, likelihood=likelihood)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(y)) if weighted else None
    settings = Settings.of(likelihood=likelihood)
    learner = Learner(settings)
    learner.fit(ArraySource(X[:2900], y[:2900], None, block_rows=1000))
    state = learner.state
    for i in range(2900, 3000):
        state = state.learn(one(X, y, i, weights))
        learner.learn(one(X, y, i, weights))
    assert isinstance(learner.stream._rows.filter, MatchingFilter) and len(learner.stream._rows) == 100
    belief = state.belief
    assert state.n_held == 0
    np.testing.assert_allclose(learner.belief.coef, belief.coef, rtol=1e-10)
    np.testing.assert_allclose(learner.belief.posterior.cov(), belief.posterior.cov(), rtol=1e-9, atol=1e-12)
    live = learner.stream._rows.followed()
    np.testing.assert_allclose(live.predict(X[:50]).mean, belief.predict(X[:50]).mean, rtol=1e-9)
    np.testing.assert_allclose(learner.predict(X[:1]).mean, learner.predict(X[:50]).mean[:1], rtol=1e-12)


@pytest.mark.parametrize("likelihood", ["bernoulli", pytest.param("poisson", marks=pytest.mark.slow)])
def test_a_shuffled_stream_ends_near_the_batch_and_all_rows_but_the_first_few_are_scored(likelihood):
    X, y = rows_of(2000, likelihood=likelihood)
    stream, batch = learned(X, y, likelihood=likelihood), Learner(Settings.of(likelihood=likelihood))
    batch.fit(ArraySource(X, y, None, block_rows=1000))
    off = (stream.belief.coef - batch.belief.coef) / batch.belief.coef_estimate(penalised=True).std
    assert np.abs(off).max() < 0.1
    assert stream.n_rows == 2000 and 2000 - 10 * (X.shape[1] + 1) < float(stream.score.rows) < 2000


@pytest.mark.slow
def test_rare_events_end_near_the_batch():
    X, y = rows_of(4000, seed=3, intercept=-4.0)
    assert 40 < y.sum() < 200
    stream, batch = learned(X, y), Learner(Settings.of(likelihood="bernoulli"))
    batch.fit(ArraySource(X, y, None, block_rows=1000))
    off = (stream.belief.coef - batch.belief.coef) / batch.belief.coef_estimate(penalised=True).std
    assert np.abs(off).max() < 0.1


def test_rows_of_a_warm_up_are_predicted_before_it_ends_and_held_for_its_checks():
    X, y = rows_of(30)
    learner = learned(X, y)
    assert not learner.belief.predicts and n_held(learner) == 30
    mean = learner.predict(X[:5]).mean
    assert ((mean > 0.02) & (mean < 0.98)).all()  # 30 rows leave much open
    whole = Learner(Settings.of(likelihood="bernoulli"))
    whole.learn(Block(X, y))
    np.testing.assert_allclose(learner.belief.coef, whole.belief.coef, rtol=1e-6)  # that of the rows held
    np.testing.assert_allclose(mean, whole.predict(X[:5]).mean, atol=0.05)


@pytest.mark.slow
def test_reading_saving_and_copying_change_nothing(tmp_path):
    X, y = rows_of(500)
    plain, model = KalproxClassifier(), KalproxClassifier()
    for i in range(len(y)):
        plain.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1])
        model.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1])
        if i % 37 == 0:
            model.coef_, model.diagnostics_, model.predict_proba(X[:3])
            model.save(tmp_path / "model")
            model = (KalproxClassifier.load(tmp_path / "model"), copy.copy(model), copy.deepcopy(model))[i % 3]
    exactly(plain._learner, model._learner)
    np.testing.assert_array_equal(plain.predict_proba(X), model.predict_proba(X))


def test_a_row_that_is_refused_changes_nothing():
    X, y = rows_of(25)
    model, same = (KalproxRegressor(likelihood="poisson") for _ in range(2))
    for i in range(25):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
        same.partial_fit(X[i : i + 1], y[i : i + 1])
        for bad_x, bad_y in ((np.nan, 1.0), (1.0, np.nan), (1.0, -1.0), (1e200, 1.0)):
            with pytest.raises(ValueError, match=r"NaN|at least 0|too large|finite"):
                model.partial_fit(np.full((1, 4), bad_x), [bad_y])
    exactly(model._learner, same._learner)


@pytest.mark.slow
def test_rows_and_batches_may_alternate():
    X, y = rows_of(1500)
    model, start, rng = KalproxClassifier(), 0, np.random.default_rng(0)
    while start < len(y):
        stop = start + int(rng.choice([1, 1, 1, 2, 30]))
        model.partial_fit(X[start:stop], y[start:stop], classes=[0, 1])
        start = stop
    batch = KalproxClassifier().fit(X, y)
    assert model.n_rows_seen_ == 1500
    assert (np.abs(model.coef_ - batch.coef_) / batch.coef_std_).max() < 0.1


@pytest.mark.slow
def test_rows_with_the_weights_of_their_classes_end_near_the_batch():
    X, y = rows_of(600)
    model, batch = (KalproxClassifier(class_weight={0: 1.0, 1: 3.0}) for _ in range(2))
    for i in range(len(y)):
        model.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1])
    assert isinstance(model._learner.stream._rows.filter, MatchingFilter)
    assert (np.abs(model.coef_ - batch.fit(X, y).coef_) / batch.coef_std_).max() < 0.1


@pytest.mark.parametrize(
    "settings", [{"penalty": "l1"}, {"forget": 0.99}, {"coef_cov": "clustered"}, {"likelihood": "student"}]
)
def test_settings_that_the_filter_does_not_know_take_the_steps_of_the_belief(settings):
    X, y = rows_of(60)
    learner = learned(X, y, **settings)
    assert learner.stream._rows is None and learner.n_rows == 60


def test_prequential_predictions_are_those_of_rows_one_by_one():
    X, y = rows_of(120)
    model, alone = KalproxClassifier(), KalproxClassifier()
    found, expected = model.prequential(X, y, classes=[0, 1]), []
    for i in range(len(y)):
        expected.append(alone.predict_proba(X[i : i + 1])[0] if i else [np.nan, np.nan])
        alone.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    exactly(model._learner, alone._learner)


def test_labels_of_single_rows_are_checked():
    X, y = rows_of(5)
    model = KalproxClassifier().partial_fit(X, np.where(y == 1, "yes", "no"), classes=["no", "yes"])
    for given in (["yes"], ("no",), np.array(["yes"])):
        model.partial_fit(X[:1], given)
    assert model.n_rows_seen_ == 8
    for bad in (["maybe"], [1.0], [None], "yes"):
        with pytest.raises((ValueError, TypeError)):
            model.partial_fit(X[:1], bad)
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        model.partial_fit(X[:1], ["yes"], classes=["yes", "zzz"])
    assert model.n_rows_seen_ == 8


def test_single_rows_of_rare_events_are_not_refined_one_by_one(monkeypatch):
    """The filter begins at the mean of a skewed posterior: to be away from its mode is not to have moved."""
    refined = []

    def counted(*args, **options):
        refined.append(1)
        return refine_held(*args, **options)

    for module in (proximal_filter, state):
        monkeypatch.setattr(module, "refine_held", counted)
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 6))
    y = (rng.random(300) < 0.01).astype(int)
    model = KalproxClassifier()
    for i in range(300):
        model.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1])
    assert y.any() and len(refined) < 60
