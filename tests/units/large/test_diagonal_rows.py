"""Single sparse rows of a diagonal that are learned in place: the same as the belief makes of them."""

import pickle

import numpy as np
import pytest
import scipy.sparse

from kalprox import KalproxRegressor
from kalprox.base.checks import check_usable
from kalprox.large.diagonal_rows import DiagonalFilter
from kalprox.large.state import StructuredState
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.sources import Block


def blocks(n=40, d=30, seed=0, *, weighted=False):
    rng = np.random.default_rng(seed)
    for i in range(n):
        X = scipy.sparse.random_array((1, d), density=0.0 if i == 7 else 0.2, rng=rng, format="csr")
        yield Block(X, rng.normal(size=1), rng.uniform(0.5, 3, 1) if weighted and i % 2 else None)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "about", [{}, {"fit_intercept": False}, {"noise": 2.0}, {"weight_kind": "precision"}, {"penalty": None}]
)
def test_the_filter_equals_the_belief(about, weighted):
    """The mean, the precision, the noise, the share that is dropped, and the moments of the columns."""
    settings = Settings.of(structure="diagonal", diagnose=False, **about)
    learner, state = Learner(settings), None
    new = next(iter(blocks(1, seed=9))).X
    for block in blocks(weighted=weighted):
        learner.learn(block)
        state = StructuredState.start(settings, [block]) if state is None else state
        state = state.learn(block)
        belief = state.belief
        found, expected = learner.predict(new), belief.predict(new)  # after every row
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.std, expected.std, rtol=1e-9)
        np.testing.assert_allclose(learner.mean(new), expected.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(learner.stream.noise.variance, belief.noise.variance, rtol=1e-9)
    rows = learner.stream._recent
    assert isinstance(rows.filter, DiagonalFilter) and len(rows) == 39  # all but the first
    after = learner.belief
    for name in ("mean", "rows", "squares", "rss", "traces", "prior_precision"):
        mine, theirs = (np.asarray(getattr(one.data, name)) for one in (after, belief))
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(after.data.precision.base.p, belief.data.precision.base.p, rtol=1e-12)
    np.testing.assert_allclose(after.facts.column_std, belief.facts.column_std, rtol=1e-9, atol=1e-12)
    batch = scipy.sparse.vstack([block.X for block in blocks(5, seed=3)], format="csr")
    np.testing.assert_allclose(learner.predict(batch).std, belief.predict(batch).std, rtol=1e-9)
    np.testing.assert_allclose(learner.predict(batch.toarray()).std, belief.predict(batch).std, rtol=1e-9)


def test_a_stream_goes_on_after_a_fit_and_is_read_without_a_change():
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((60, 12), density=0.3, rng=rng, format="csr")
    y = rng.normal(size=60)
    model, other = (
        KalproxRegressor(structure="diagonal", diagnose=one, penalty="ridge").fit(X[:30], y[:30])
        for one in (False, True)
    )
    for i in range(30, 60):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
        other.partial_fit(X[i : i + 1], y[i : i + 1])  # with diagnose=True, by the belief
        assert model.predict(X[:1]) == pytest.approx(other.predict(X[:1]), rel=1e-9)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-9)
    for one in (model, again):
        one.partial_fit(X[:1], y[:1])
    np.testing.assert_array_equal(again.coef_, model.coef_)
    held = model._learner.belief
    before = np.array(held.data.mean)
    model.partial_fit(X[5:6], y[5:6])
    np.testing.assert_array_equal(held.data.mean, before)  # a belief does not change


def test_rows_that_the_filter_leaves_to_the_belief():
    settings = Settings.of(structure="diagonal", diagnose=False)
    learner = Learner(settings)
    first, second, *_ = blocks(3)
    learner.learn(first)
    rows = learner.stream._recent
    assert rows.takes(second) and not rows.takes(Block(second.X.toarray(), second.y))
    assert not rows.takes(Block(second.X.tocsc(), second.y))
    assert not rows.takes(Block(second.X[:, :5], second.y)) and not rows.takes(Block(second.X, second.y, np.zeros(1)))
    twice = scipy.sparse.csr_array((np.ones(2), [3, 3], [0, 2]), shape=(1, 30))
    assert not rows.takes(Block(twice, second.y))
    learner.learn(Block(twice, second.y))
    other = Learner(settings)
    for block in (first, Block(scipy.sparse.csr_array(twice.toarray()), second.y)):
        other.learn(block)
    np.testing.assert_allclose(learner.belief.coef, other.belief.coef, rtol=1e-12)
    dense = Learner(settings)
    dense.learn(Block(first.X.toarray() + 1.0, first.y))  # its columns are centred
    assert dense.stream._recent is None
    lasso = KalproxRegressor(structure="diagonal", penalty="l1", diagnose=False).fit(
        first.X.toarray() + np.eye(30), np.arange(30.0)
    )
    assert lasso._learner.stream._recent is None


def test_bad_rows_change_nothing():
    learner = Learner(Settings.of(structure="diagonal", diagnose=False))
    for block in blocks(3):
        learner.learn(block)
    before = learner.belief.coef.copy()
    for value in (np.nan, np.inf, 1e80):
        bad = scipy.sparse.csr_array(([value], [2], [0, 1]), shape=(1, 30))
        with pytest.raises(ValueError, match=r"X must be finite|at most 1e\+70"):
            learner.learn(Block(bad, np.ones(1)))
    np.testing.assert_array_equal(learner.belief.coef, before)
    assert learner.n_rows == 3


def test_sparse_rows_are_checked_as_dense_ones_are():
    X = np.array([[0.0, 1.0], [0.0, 0.0], [-1e80, 0.0]])
    for rows in (X, scipy.sparse.csr_array(X)):
        with pytest.raises(ValueError, match=r"row 2 has 1e\+80"):
            check_usable(rows, np.zeros(3))
        check_usable(rows, np.zeros(3), np.array([1.0, 1.0, 0.0]))
        with pytest.raises(ValueError, match=r"y must be finite; got NaN or infinity in 1 row\(s\): 1"):
            check_usable(rows[:2], np.array([0.0, np.nan]))
