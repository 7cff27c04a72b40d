"""Single rows under any penalty, with forgetting or standardised columns: a filter that holds what moves slowly."""

import pickle

import numpy as np
import pytest

from kalprox import KalproxRegressor, penalties
from kalprox.learning.exact import continues
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.step import Call
from kalprox.sources import Block

SETTINGS = {
    "forget": {"forget": 0.99},
    "forget, no penalty": {"forget": 0.995, "penalty": None},
    "forget, no intercept": {"forget": 0.98, "fit_intercept": False},
    "forget, known noise": {"forget": 0.99, "noise": 2.0},
    "l1": {"penalty": "l1", "alpha": 30.0},
    "l1, known noise": {"penalty": "l1", "alpha": 30.0, "noise": 2.0},
    "elastic net": {"penalty": "elasticnet", "alpha": 20.0},
    "box": {"penalty": penalties.Box(0, 1)},
    "smooth l1": {"penalty": "smooth_l1", "alpha": 5.0},
    "standardize": {"standardize": True},
    "alpha chosen": {"alpha": "auto"},
    "alpha chosen, known noise, no intercept": {"alpha": "auto", "noise": 2.0, "fit_intercept": False},
    "alpha chosen, forget, standardize": {"alpha": "auto", "forget": 0.99, "standardize": True},
    "standardize, l1, forget": {"standardize": True, "penalty": "l1", "alpha": 20.0, "forget": 0.99},
}


def table(n, seed=0):
    """Columns far from zero and of different sizes; coefficients of which some are zero or small."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, 5)) + [0, 100, -3, 5, 0]) * [1, 1, 10, 0.1, 3]
    return X, X @ [1.0, 0.0, -0.05, 2.0, 0.3] + rng.normal(size=n) + 5


def stream(settings, X, y):
    return KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X, y)


def live(model):
    return model._learner.stream._recent.following()


@pytest.mark.parametrize("first", [60, pytest.param(2300, marks=pytest.mark.slow)], ids=["exact innovations", "scorer"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_what_is_read_is_that_of_all_rows_and_the_next_row_is_predicted_nearly_so(settings, first):
    X, y = table(first + 40)
    model = stream(settings, X[:first], y[:first])
    for i in range(first, first + 40):
        found = np.ravel(model.predict(X[i : i + 1], return_std=True))
        assert isinstance(live(model), SquareRootFilter)
        if i % 13 == 0:
            belief = stream(settings, X[:i], y[:i])._learner.belief
            expected = belief.predict(X[i : i + 1])
            size = float(expected.std[0])
            np.testing.assert_allclose(found, np.ravel([expected.mean, expected.std]), atol=0.1 * size, rtol=0)
            np.testing.assert_allclose(model.noise_var_, belief.noise.variance, rtol=1e-10)
            many = belief.predict(X[:50])
            np.testing.assert_allclose(model.predict(X[:50], return_std=True), [many.mean, many.std], rtol=1e-10)
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    at_once = stream(settings, X[:first], y[:first]).partial_fit(X[first:], y[first:])
    np.testing.assert_allclose(model.coef_, at_once.coef_, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(model.coef_std_, at_once.coef_std_, rtol=1e-10)
    assert model.diagnostics_.rows == at_once.diagnostics_.rows


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_score_of_single_rows_is_that_of_the_information(settings):
    X, y = table(400, seed=1)
    model, learner = stream(settings, X[:150], y[:150]), stream(settings, X[:150], y[:150])._learner
    made = []
    for i in range(150, 400):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
        made += learner.stream._fold(Block(X[i : i + 1], y[i : i + 1]), learner.settings, Call(every_row=True))
    found, right = model.diagnostics_, learner.stream.tracking.scores[0]
    assert abs(found.log_score - right.log_score) / 250 < 2e-3
    assert found.verdict().word == right.verdict().word


@pytest.mark.parametrize(
    "settings",
    [{"alpha": 3.0, "forget": 0.9}, {"alpha": 30.0}, {"penalty": "elasticnet", "alpha": 20.0}],
    ids=["many are forgotten", "few", "elastic net"],
)
def test_a_penalty_does_not_fade_with_the_rows(settings):
    X, y = table(90, seed=9)
    core = stream({"forget": 0.99} | settings, X[:80], y[:80])._learner.state.core
    made = core.row_filter()
    for i in range(80, 84):
        made.follow(X[i], float(y[i]))
    right = core.learn(Block(X[80:84], y[80:84])).belief
    expected = right.predict(X[84:])
    np.testing.assert_allclose(made.predict(X[84:]).mean, expected.mean, rtol=1e-10)
    np.testing.assert_allclose(made.predict(X[84:]).std, expected.std, rtol=1e-10)
    np.testing.assert_allclose(made.noise(), [right.noise.variance, right.noise.dof], rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [*SETTINGS.values(), {"penalty": penalties.Group([0, 0, 1, 1, 1])}])
def test_no_bit_depends_on_reading_and_saving(settings, tmp_path):
    X, y = table(200, seed=2)
    plain, read = (KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:50], y[:50]) for _ in range(2))
    for i in range(50, 200):
        plain.partial_fit(X[i : i + 1], y[i : i + 1])
        read.predict(X[:1], return_std=True)
        read.partial_fit(X[i : i + 1], y[i : i + 1])
        if i % 40 == 0:
            _ = read.coef_std_, read.diagnostics_.rows, read.predict(X[:3])
            read.save(tmp_path / "model")
            read = KalproxRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(read.coef_, plain.coef_)
    np.testing.assert_array_equal(read.predict(X[:1], return_std=True), plain.predict(X[:1], return_std=True))
    assert read.diagnostics_.squares == plain.diagnostics_.squares


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_an_unpickled_model_goes_on_with_the_same_bits(settings):
    """Its settings are equal, but other objects: its buffer was folded at the next row."""
    X, y = table(140, seed=6)
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:80], y[:80])
    for i in range(80, 110):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    again = pickle.loads(pickle.dumps(model))
    for i in range(110, 140):
        for one in (model, again):
            one.partial_fit(X[i : i + 1], y[i : i + 1])
        np.testing.assert_array_equal(*(one.predict(X[:1], return_std=True) for one in (model, again)))
    assert len(again._learner.stream._buffer) == len(model._learner.stream._buffer) == 60


def test_prequential_learns_all_rows_or_none():
    X, y = table(100)
    model = KalproxRegressor(forget=0.99, penalty="ridge").partial_fit(X[:50], y[:50])
    before = model.coef_
    y[80] = 1e200
    with pytest.raises(ValueError, match="row 30"):
        model.prequential(X[50:], y[50:])
    assert model.n_rows_seen_ == 50 and (model.coef_ == before).all()


@pytest.mark.parametrize("forget", [0.98, pytest.param(0.9, marks=pytest.mark.slow)])
def test_a_direction_that_is_forgotten_leaves_the_filter_that_fades(forget):
    """Its variance grows without end, and would take the digits of all others."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(600, 3))
    X[60:, 1] = X[60:, 0]
    y = X @ [1.0, 2.0, 3.0] + rng.normal(size=600)
    model = KalproxRegressor(forget=forget).partial_fit(X[:50], y[:50])
    used = []
    for i in range(50, 600):
        found = model.predict(X[i : i + 1], return_std=True)
        used.append(model._learner.stream._recent.filter is not None)
        if used[-1] and i % 25 == 0:
            right = KalproxRegressor(forget=forget).partial_fit(X[:i], y[:i])._learner.belief.predict(X[i : i + 1])
            np.testing.assert_allclose(found, [right.mean, right.std], rtol=1e-9)
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert used[0] and not used[-1]


@pytest.mark.slow
def test_prequential_goes_on_where_no_filter_follows_a_fold():
    """Equal columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 5))
    X[:, 3], X[:, 4] = 1.0, X[:, 0]
    y = X @ rng.normal(size=5) + rng.normal(size=150)
    settings = {"penalty": "l1", "alpha": 5.0}
    mean, std = KalproxRegressor(**({"penalty": "ridge"} | settings)).prequential(X, y)
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:140], y[:140])
    np.testing.assert_allclose([mean[140], std[140]], np.ravel(model.predict(X[140:141], return_std=True)), rtol=1e-8)
    assert np.isfinite(mean[1:]).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_an_alpha_that_overflows_is_left_to_the_information():
    X, y = table(120, seed=8)
    model, whole = KalproxRegressor(alpha="auto"), KalproxRegressor(alpha="auto").partial_fit(X * 1e-150, y)
    for i in range(120):
        model.partial_fit(X[i : i + 1] * 1e-150, y[i : i + 1])
        if i > 40:
            model.predict(X[:1] * 1e-150, return_std=True)
    np.testing.assert_allclose(model.predict(X[:5] * 1e-150), whole.predict(X[:5] * 1e-150), rtol=1e-8)


@pytest.mark.parametrize("name", ["l1", "l1, known noise", "elastic net", "box"])
def test_a_filter_goes_on_while_the_same_coefficients_are_at_a_kink_or_a_bound(name):
    """Its estimate is then that of all rows."""
    X, y = table(400)
    kept = []
    for n in range(20, 380, 12):
        state, rows = stream(SETTINGS[name], X[:n], y[:n])._learner.state, Block(X[n : n + 8], y[n : n + 8])
        live, after = state.row_filter(), state.learn(rows)
        live.take(rows)
        pieces = state.settings.penalty.regularizer(state.settings.alpha).pieces()
        before, now = (pieces.slopes(one.belief.posterior.mean[1:]) for one in (state, after))
        kept.append(continues(after, [live]))
        assert kept[-1] == np.array_equal(before, now)
        if kept[-1]:
            ours, anew = live.predict(X[:1]), after.row_filter().predict(X[:1])
            np.testing.assert_allclose([ours.mean, ours.std], [anew.mean, anew.std], rtol=1e-9)
    assert 20 < sum(kept) < len(kept)


def test_prequential_under_a_kinked_penalty_makes_few_estimates(monkeypatch):
    X, y = table(300)
    made, make = [], SquareRootFilter.of
    monkeypatch.setattr(SquareRootFilter, "of", lambda *a: made.append(1) or make(*a))
    mean, std = KalproxRegressor(penalty="l1", alpha=30.0).prequential(X, y)
    assert len(made) < 30 and np.isfinite(mean[1:]).all() and np.isfinite(std[10:]).all()
    for n in (50, 150, 290):
        exact = stream(SETTINGS["l1"], X[:n], y[:n]).predict(X[n : n + 1], return_std=True)
        np.testing.assert_allclose([mean[n], std[n]], np.ravel(exact), rtol=1e-3)
