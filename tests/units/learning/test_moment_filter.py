"""Single rows under any penalty, with forgetting or standardised columns: moments give what the information does."""

import pickle

import numpy as np
import pytest
from data import linear

from kalprox import KalproxRegressor, penalties
from kalprox.learning import moment_filter
from kalprox.learning.exact import Exact
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.step import Call
from kalprox.posterior import InformationPosterior
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


def by_moments(model):
    return isinstance(model._learner.stream._recent.filter, moment_filter.MomentFilter)


def by_fading(model):
    """Without a penalty the root of the covariance fades, and no moments are needed."""
    live = model._learner.stream._recent.filter
    return isinstance(live, SquareRootFilter) and live.forgetting is not None


@pytest.mark.slow
@pytest.mark.parametrize("first", [60, 2300], ids=["exact innovations", "scorer"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_predictions_are_those_of_all_rows_learned_at_once(settings, first):
    X, y = table(first + 40)
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:first], y[:first])
    for i in range(first, first + 40):
        found = model.predict(X[i : i + 1], return_std=True)
        assert by_fading(model) if settings.get("penalty", "") is None else by_moments(model)
        if i % 13 == 0:
            belief = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:i], y[:i])._learner.belief
            expected = belief.predict(X[i : i + 1])
            np.testing.assert_allclose(found, [expected.mean, expected.std], rtol=1e-10)
            np.testing.assert_allclose(model.noise_var_, belief.noise.variance, rtol=1e-10)
            many = belief.predict(X[:50])
            np.testing.assert_allclose(model.predict(X[:50], return_std=True), [many.mean, many.std], rtol=1e-10)
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    at_once = (
        KalproxRegressor(**({"penalty": "ridge"} | settings))
        .partial_fit(X[:first], y[:first])
        .partial_fit(X[first:], y[first:])
    )
    np.testing.assert_allclose(model.coef_, at_once.coef_, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(model.coef_std_, at_once.coef_std_, rtol=1e-10)
    assert model.diagnostics_.rows == at_once.diagnostics_.rows


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_innovations_are_those_of_the_information(settings):
    X, y = table(120, seed=1)
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:50], y[:50])
    predicted = []
    for i in range(50, 120):
        predicted.append(np.ravel(model.predict(X[i : i + 1], return_std=True)))
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    learner, made = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:50], y[:50])._learner, []
    for i in range(50, 120):  # each row by a belief of its own
        made += learner.stream._fold(Block(X[i : i + 1], y[i : i + 1]), learner.settings, Call(every_row=True))
    mean, std = np.ravel([mean for mean, _ in made]), np.ravel([std for _, std in made])
    np.testing.assert_allclose(np.transpose(predicted), [mean, std], rtol=1e-10)
    both = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:50], y[:50]).prequential(X[50:], y[50:])
    np.testing.assert_allclose(both, [mean, std], rtol=1e-10)
    found = model._learner.stream._buffer.innovations
    np.testing.assert_allclose([found.mean, found.std], np.array([mean, std])[:, -len(found.mean) :], rtol=1e-10)


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


@pytest.mark.parametrize("settings", [{"forget": 0.99}, {"penalty": "l1", "alpha": 5.0}])
def test_prequential_makes_no_belief_for_each_row(settings, monkeypatch):
    X, y = table(400)
    made, learn = [], Exact.learn
    monkeypatch.setattr(Exact, "learn", lambda self, block: made.append(1) or learn(self, block))
    KalproxRegressor(**({"penalty": "ridge"} | settings)).prequential(X, y)
    assert len(made) < 20  # one for each doubling of the rows, and for the first of them


def test_prequential_learns_all_rows_or_none():
    X, y = table(100)
    model = KalproxRegressor(forget=0.99, penalty="ridge").partial_fit(X[:50], y[:50])
    before = model.coef_
    y[80] = 1e200
    with pytest.raises(ValueError, match="row 30"):
        model.prequential(X[50:], y[50:])
    assert model.n_rows_seen_ == 50 and (model.coef_ == before).all()


@pytest.mark.slow
def test_rows_are_solved_without_a_new_posterior(monkeypatch):
    """A posterior takes a millisecond; a row of the filter a twentieth of that."""
    made, begin = [], InformationPosterior.__init__

    def count(self, *args, **kwargs):
        made.append(1)
        begin(self, *args, **kwargs)

    monkeypatch.setattr(InformationPosterior, "__init__", count)
    X, y = table(2600, seed=3)
    for settings in SETTINGS.values():
        model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:2200], y[:2200])
        model.predict(X[:1])
        made.clear()
        for i in range(2200, 2600):
            model.predict(X[i : i + 1], return_std=True)
            model.partial_fit(X[i : i + 1], y[i : i + 1])
        assert len(made) <= 4, settings


@pytest.mark.slow
def test_coefficients_that_enter_and_leave():
    """The coefficient of a column goes from 1 to 0 and to -1 along a stream that forgets."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(900, 4))
    slope = np.repeat([1.0, 0.0, -1.0], 300)
    y = X[:, 0] + slope * X[:, 1] + 0.1 * rng.normal(size=900)
    settings = {"penalty": "l1", "alpha": 5.0, "forget": 0.97}
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:50], y[:50])
    signs = set()
    for i in range(50, 900):
        model.predict(X[i : i + 1])
        model.partial_fit(X[i : i + 1], y[i : i + 1])
        estimate = model._learner.stream._recent.filter.estimate()
        signs.add(tuple(np.sign(estimate.coef[:2])))
        if i % 100 == 0:
            expected = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[: i + 1], y[: i + 1]).coef_
            np.testing.assert_allclose(estimate.coef, expected, atol=1e-12)
            assert ((estimate.coef == 0) == (expected == 0)).all()
    assert signs >= {(1.0, 1.0), (1.0, 0.0), (1.0, -1.0)}


@pytest.mark.parametrize("kind", ["collinear", "no noise", "alpha of no maximum", "alpha by predictions"])
def test_what_moments_cannot_do_is_left_to_the_information(kind):
    X, y = linear(140, 3)
    settings = {"forget": 0.99, "penalty": "ridge"}
    if kind == "collinear":
        X = np.column_stack([X, X[:, 0] + 1e-6 * np.random.default_rng(0).normal(size=140)])
        settings["alpha"] = 1e-12
    elif kind == "no noise":
        y, settings["alpha"] = X @ [1.0, 2.0, 3.0], 1e-9
    elif kind == "alpha of no maximum":  # the columns explain nothing
        noise, inputs = np.random.default_rng(3).normal(size=140), np.column_stack([np.ones(140), X])
        y, settings = noise - inputs @ np.linalg.lstsq(inputs, noise)[0], {"alpha": "auto"}
    else:
        settings = {"penalty": "l1", "alpha": "auto"}
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:100], y[:100])
    assert kind != "alpha of no maximum" or model._learner.belief.facts.alpha_limit == np.inf
    for i in range(100, 140):
        mean, std = model.predict(X[i : i + 1], return_std=True)
        assert not by_moments(model)
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    belief = (
        KalproxRegressor(**({"penalty": "ridge"} | settings))
        .partial_fit(X[:139], y[:139])
        ._learner.belief.predict(X[139:])
    )
    # Without noise the std itself is rounding of y.
    np.testing.assert_allclose([mean, std], [belief.mean, belief.std], rtol=1e-6, atol=1e-14)


@pytest.mark.slow
def test_a_stream_that_becomes_collinear_leaves_the_moments():
    """Rows of one direction only, while the others are forgotten."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(700, 2))
    X[100:, 1] = X[100:, 0] + 1e-9 * X[100:, 1]
    y = X.sum(axis=1) + rng.normal(size=700)
    settings = {"forget": 0.9, "alpha": 1e-10}
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:50], y[:50])
    used = []
    for i in range(50, 400):
        model.predict(X[i : i + 1], return_std=True)
        used.append(by_moments(model))
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert used[0] and not used[-1]
    belief = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:400], y[:400])._learner.belief
    np.testing.assert_allclose(model.predict(X[400:401]), belief.mean(X[400:401]), rtol=1e-6)


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
        used.append(by_fading(model))
        if used[-1] and i % 25 == 0:
            right = KalproxRegressor(forget=forget).partial_fit(X[:i], y[:i])._learner.belief.predict(X[i : i + 1])
            np.testing.assert_allclose(found, [right.mean, right.std], rtol=1e-9)
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert used[0] and not used[-1]


@pytest.mark.slow
def test_prequential_goes_on_where_no_filter_follows_a_fold():
    """Equal columns: moments serve until the first fold, after which both have a coefficient."""
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
