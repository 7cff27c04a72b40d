"""Single rows in a filter, and in a bank of filters: by the compiled kernel, and by the references in NumPy."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from kalprox import KalproxRegressor
from kalprox.forgetting import ByRow, ByTime, RandomWalk
from kalprox.kernel.library import kernel
from kalprox.learning.bank import BankFilter
from kalprox.learning.live_rows import RecentRows
from kalprox.learning.mixed import Odds
from kalprox.learning.square_root import SquareRootFilter
from kalprox.sources import Block

pytestmark = pytest.mark.skipif(kernel() is None, reason="the kernel is not compiled")
D, FIRST = 4, 30
WAYS = [
    {},
    {"penalty": "ridge", "alpha": 3.0},
    {"fit_intercept": False},
    {"noise": 1.5},
    {"forget": 0.9},
    {"forget": 0.97, "noise": 0.5, "weight_kind": "precision"},
    {"forget": 0.9, "penalty": "ridge"},
    {"forget": 0.97, "penalty": "elasticnet", "alpha": 5.0, "weight_kind": "precision"},
    {"forget": RandomWalk(0.0, intercept=0.3)},
    {"forget": RandomWalk(0.0, intercept=0.3), "penalty": "ridge", "weight_kind": "precision"},
]


def rows(n=FIRST, targets=None, seed=0, far=1e3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)) + [0, far, 1, 5]
    y = X @ rng.normal(size=(D, targets or 1)) + rng.normal(size=(n, targets or 1))
    return X, y if targets else y[:, 0]


def filter_of(**settings):
    """A filter that the compiled kernel follows, and one that follows rows in NumPy."""
    X, y = rows(targets=settings.pop("targets", None))
    made = KalproxRegressor(**settings).fit(X, y)._learner.state.core.row_filter()
    assert isinstance(made, SquareRootFilter) and made.compiled is not None
    return made, in_numpy(made)


def in_numpy(made):
    reference = made.copy()
    reference.__dict__["compiled"] = None
    return reference


def assert_equal(one, other):
    assert len(one) == len(other)
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def assert_same(one, other):
    for name in ("rows", "squares", "elapsed", "width"):
        assert getattr(one.counts, name) == pytest.approx(getattr(other.counts, name), rel=1e-12)
    for ours, theirs in ((one.theta, other.theta), (one.L @ one.L.T, other.L @ other.L.T), (one.sizes, other.sizes)):
        if theirs is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("settings", "targets"), [*((way, None) for way in WAYS), *((way, 3) for way in WAYS if "forget" not in way)]
)
def test_rows_of_any_weight(settings, targets):
    compiled, reference = filter_of(**settings, targets=targets)
    X, y = rows(60, targets, seed=1)
    for i, weight in enumerate(np.random.default_rng(2).choice([0.25, 1.0, 3.0], 60).tolist()):
        target = y[i] if targets else float(y[i])
        about = (weight, 1.0 if settings.get("weight_kind") == "precision" else weight)
        own = 1 / weight if settings.get("weight_kind") == "precision" else 1.0
        predict = i % 7 > 0
        found = [one.follow(X[i], target, *about, own=own, predict=predict) for one in (compiled, reference)]
        assert_equal(*found)
        assert bool(found[0]) is predict
    assert_same(compiled, reference)
    ours, theirs = (one.predict(X[:1]) for one in (compiled, reference))
    np.testing.assert_allclose(ours.std, theirs.std, rtol=1e-10)
    assert compiled.compiled is not None and reference.compiled is None


@pytest.mark.parametrize("targets", [None, 2])
@pytest.mark.parametrize("settings", [{}, {"weight_kind": "precision"}, {"diagnose": False}, {"noise": 1.5}])
def test_rows_are_checked_and_written_and_followed_in_one_call(settings, targets, monkeypatch):
    X, y = rows(120, targets, far=10.0)
    weights = np.random.default_rng(3).choice([0.5, 1.0, 3.0], 120)

    def stream():
        model = KalproxRegressor(penalty="ridge", **settings).partial_fit(X[:FIRST], y[:FIRST])
        for i in range(FIRST, 120):
            model.partial_fit(X[i : i + 1], y[i : i + 1], weights[i : i + 1] if i > 60 else None)
            for bad in (np.nan, 1e80):
                with pytest.raises(ValueError, match=r"NaN|too large|at most"):
                    model.partial_fit(X[i : i + 1] * bad, y[i : i + 1])
        mean, std = model.predict(X[:1], return_std=True)
        return model.coef_, model.intercept_, model.noise_var_, mean, std, *vars(model.diagnostics_).values()

    compiled = stream()
    taken = []
    monkeypatch.setattr(RecentRows, "_at_once", lambda self, rows: taken.append(1) and False)
    monkeypatch.setattr(SquareRootFilter, "compiled", None)
    reference = stream()
    assert len(taken) > 60
    for ours, theirs in zip(compiled, reference, strict=True):
        if isinstance(theirs, (float, np.ndarray)) and np.asarray(theirs).dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_rows_that_fade_by_time():
    X, y = rows()
    model = KalproxRegressor(forget=ByTime(5.0)).partial_fit(X, y, times=np.arange(FIRST))
    compiled = model._learner.state.core.row_filter()
    reference = in_numpy(compiled)
    for i, time in enumerate([FIRST, FIRST + 4.5, FIRST + 4.5, FIRST + 20]):
        for one in (compiled, reference):
            one.advance(float(time))
        assert_equal(*(one.follow(X[i], float(y[i])) for one in (compiled, reference)))
    assert_same(compiled, reference)


def test_nothing_is_known_of_the_noise_without_degrees_of_freedom():
    X, y = rows(D + 1, far=0.0)
    made = KalproxRegressor().fit(X, y)._learner.state.core.row_filter()
    found = [one.follow(X[0], float(y[0])) for one in (made, in_numpy(made))]
    assert np.isnan(found[0][1]) and np.isnan(found[0][4])
    assert_equal(*found)


def test_a_copy_and_a_pickle_follow_on_their_own():
    compiled, _ = filter_of(forget=0.95)
    X, y = rows(seed=3)
    compiled.follow(X[0], float(y[0]))
    others = [compiled.copy(), pickle.loads(pickle.dumps(compiled)), replace(compiled.copy())]
    before = compiled.theta.copy(), compiled.counts.rows
    for one in others:
        one.follow(X[1], float(y[1]))
        np.testing.assert_array_equal(one.theta, others[0].theta)
    np.testing.assert_array_equal(compiled.theta, before[0])
    assert compiled.counts.rows == before[1] < others[0].counts.rows + 1
    compiled.follow(X[1], float(y[1]))
    np.testing.assert_array_equal(compiled.theta, others[0].theta)


def bank_of(ways):
    X, y = rows(far=0.0)
    cores = [KalproxRegressor(forget=way).fit(X, y)._learner for way in ways]
    filters = [one.state.core.row_filter() for one in cores]
    return BankFilter(cores[0].settings, filters, Odds.equal(len(ways), None))


def test_a_bank_of_filters():
    ways = [ByRow(1.0), ByRow(0.99), ByRow(0.9), RandomWalk(0.0, intercept=0.1)]
    compiled, reference = bank_of(ways), bank_of(ways)
    reference.__dict__["_compiled"] = None
    for one in reference.filters:
        one.__dict__["compiled"] = None
    assert compiled._compiled is not None
    X, y = rows(80, seed=4, far=0.0)
    y[40:] += 5
    kept = compiled.copy()
    for i, weight in enumerate(np.random.default_rng(5).choice([1.0, 1.0, 2.0], 80).tolist()):
        block = Block(X[i : i + 1], y[i : i + 1], np.array([weight]))
        np.testing.assert_allclose(compiled.learn_rows(block), reference.learn_rows(block), rtol=1e-10)
        np.testing.assert_allclose(compiled.odds.joint, reference.odds.joint, rtol=1e-9)
        assert compiled.keeps_digits
    assert compiled.odds.weights.argmax() == 2 or compiled.odds.weights.argmax() == 3
    np.testing.assert_array_equal(kept.odds.joint, Odds.equal(4, None).joint)


def test_a_bank_where_a_member_says_nothing():
    """The probabilities are then those of the reference: what is not said is no claim."""
    X, y = rows(D + 1, far=0.0)
    ways = [ByRow(1.0), ByRow(0.9)]
    cores = [KalproxRegressor(forget=way).fit(X, y)._learner for way in ways]
    filters = [one.state.core.row_filter() for one in cores]
    bank = BankFilter(cores[0].settings, filters, Odds.equal(2, None))
    X, y = rows(10, seed=6, far=0.0)
    said = [bank.learn_rows(Block(X[i : i + 1], y[i : i + 1]))[0] for i in range(10)]
    assert np.isnan(said[0][:, 1]).any() and np.isfinite(said[-1]).all()
    assert bank.odds.weights.sum() == pytest.approx(1) and np.isfinite(bank.odds.joint).all()
