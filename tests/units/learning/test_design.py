"""Predictions about means of 1e12 keep the digits that the rows have about them; moments of sparse rows."""

import numpy as np
import pytest
import scipy.sparse
from exact_rows import exact

from kalprox import KalproxRegressor
from kalprox.learning.design import Moments
from kalprox.sources import Block

CENTER = np.array([1e12, -3e11])


@pytest.fixture(params=[0.0, 5e11], ids=["y-near-zero", "y-far"])
def problem(request):
    rng = np.random.default_rng(1)
    X, new = rng.normal(size=(300, 2)) + CENTER, rng.normal(size=(5, 2)) + CENTER
    y = (X - CENTER) @ [2.0, -1.0] + 0.5 * rng.normal(size=300) + request.param
    return X, y, new, exact(X, y)


def assert_predicts(model, new, truth):
    mean, std = np.transpose([truth.predict(x) for x in new])
    for predicted in (model.predict(new, return_std=True), (model.predict(new), std)):
        np.testing.assert_array_less(np.abs(predicted[0] - mean) / std, 1e-12 + 4e-16 * np.abs(mean).max() / std)
        np.testing.assert_allclose(predicted[1], std, rtol=1e-12)
    one = np.array([np.ravel(model.predict(x[None], return_std=True)) for x in new])
    np.testing.assert_allclose(one[:, 1], std, rtol=1e-12)
    np.testing.assert_array_less(np.abs(one[:, 0] - mean) / std, 1e-12 + 4e-16 * np.abs(mean).max() / std)
    assert model.intercept_ == pytest.approx(float(truth.theta[0]), rel=1e-14)


def test_fit(problem, tmp_path):
    X, y, new, truth = problem
    model = KalproxRegressor(penalty=None).fit(X, y)
    assert_predicts(model, new, truth)
    model.save(tmp_path / "model")
    assert_predicts(KalproxRegressor.load(tmp_path / "model"), new, truth)
    assert_predicts(KalproxRegressor(penalty=None, standardize=True).fit(X, y), new, truth)
    path = KalproxRegressor(alpha=1.0, penalty="ridge").fit(X, y).path([1e-13])
    assert path.intercept[0] == pytest.approx(float(truth.theta[0]), rel=1e-13)


def test_rows_one_by_one(problem):
    X, y, new, truth = problem
    model = KalproxRegressor(penalty=None)
    for i in range(300):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert_predicts(model, new, truth)


def test_several_targets(problem):
    X, y, new, _ = problem
    both = KalproxRegressor(penalty=None).fit(X, np.column_stack([y, -y]))
    for target, sign in enumerate((1, -1)):
        alone = KalproxRegressor(penalty=None).fit(X, sign * y)
        np.testing.assert_allclose(both.predict(new)[:, target], alone.predict(new), rtol=1e-12)
        np.testing.assert_allclose(both.intercept_[target], alone.intercept_, rtol=1e-14)


def test_a_nonlinear_model(problem):
    X, _, new, _ = problem
    y = np.tanh((X - CENTER) @ [0.5, -0.2])
    far, near = KalproxRegressor(link="tanh", alpha=0.1).fit(X, y), KalproxRegressor(link="tanh", alpha=0.1)
    near.fit(X - CENTER, y)
    np.testing.assert_allclose(far.predict(new), near.predict(new - CENTER), atol=1e-8)


@pytest.mark.parametrize("weights", [None, np.array([1.0, 0.0, 2.5])])
def test_sparse_rows_add_to_moments_as_dense_ones_do(weights):
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((60, 400), density=0.01, format="csr", rng=rng)
    seen = Moments.of(Block(X[:6], np.zeros(6)))
    for i in range(6, 60, 3):
        seen = seen.with_rows(Block(X[i : i + 3], np.zeros(3), weights))
    w = np.concatenate([np.ones(6), np.ones(54) if weights is None else np.tile(weights, 18)])
    whole = Moments.of(Block(X.toarray(), np.zeros(60), w))
    assert seen.rows == whole.rows and (seen.squares[X.count_nonzero(axis=0) == 0] == 0).all()
    np.testing.assert_allclose(seen.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(seen.squares, whole.squares, rtol=1e-11, atol=1e-14)
