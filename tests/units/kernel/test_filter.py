"""The filter of rows: compiled, in blocks of BLAS, and by the definition, row by row in long arithmetic."""

import copy
import pickle

import numpy as np
import pytest

from kalprox.kernel.filter import Filter
from kalprox.kernel.library import kernel


def case(p, k, seed, *, triangle=True, curvature=None, tilt=False, weights=None, n=60):
    """Return what a filter starts from, and rows for it."""
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.uniform(-2, 2, p)
    A = rng.normal(size=(p + 5, p)) * scales
    root = np.linalg.inv(np.linalg.qr(A, mode="r"))
    if not triangle:
        root = root @ np.linalg.qr(rng.normal(size=(p, p)))[0]
    H = {None: None, "diagonal": rng.uniform(0, 2, p) * scales**2, "full": A.T @ A / len(A)}[curvature]
    slope = rng.normal(size=(p, k)) * scales[:, None] if tilt else None
    start = root, rng.normal(size=(p, k)) / scales[:, None], H, slope, rng.uniform(1, 2, k)
    w = None
    if weights is not None:
        w = rng.uniform(0.1, 3, n) * (rng.random(n) > (0.2 if weights == "some zero" else 0))
    return start, rng.normal(size=(n, p)) * scales, rng.normal(size=(n, k)), w


def by_definition(start, X, y, weights):
    """Return what `Filter.learn` does, from the covariance itself in long arithmetic."""
    root, theta, H, tilt, rss = (None if a is None else np.array(a, np.longdouble) for a in start)
    V, weights = root @ root.T, np.ones(len(X)) if weights is None else weights
    full = np.zeros_like(V) if H is None else np.diag(H) if H.ndim == 1 else H
    tilt = np.zeros_like(theta) if tilt is None else tilt
    found = []
    for x, target, w in zip(X.astype(np.longdouble), y, weights, strict=True):
        error, leverage = target - x @ theta, x @ V @ x
        found.append((error, leverage, x @ V @ full @ V @ x, rss.copy(), np.trace(V @ full)))
        if w == 0:
            found[-1] = (error * np.nan, leverage * np.nan, *found[-1][2:])
            continue
        gain = V @ x / (1 / w + leverage)
        after = theta + np.multiply.outer(gain, error)
        rss = rss + error**2 / (1 / w + leverage)
        penalties = [0.5 * np.einsum("ik,ij,jk->k", t, full, t) + (tilt * t).sum(axis=0) for t in (theta, after)]
        rss -= 2 * (penalties[1] - penalties[0])
        V, theta = V - np.multiply.outer(gain, V @ x), after
    columns = [np.array(column, float) for column in zip(*found, strict=True)]
    return columns, np.array(V, float), np.array(theta, float)


CASES = {
    "plain": {},
    "general root": {"triangle": False},
    "ridge": {"curvature": "diagonal"},
    "quadratic with a tilt": {"curvature": "full", "tilt": True},
    "several targets": {"curvature": "diagonal", "tilt": True, "k": 3},
    "weights": {"weights": "positive"},
    "rows of weight 0": {"weights": "some zero", "curvature": "diagonal", "triangle": False},
}


@pytest.fixture(params=["compiled", "blocks"])
def way(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr("kalprox.kernel.filter.kernel", lambda: None)
    elif kernel() is None:
        pytest.skip("the kernel is not compiled")
    return request.param


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("p", [1, 4, 17])
def test_rows_are_predicted_and_learned_as_the_covariance_says(way, name, p):
    options = {"k": 1, **CASES[name]}
    start, X, y, w = case(p, options.pop("k"), p, **options)
    made = Filter(*start)
    found = made.learn(X, y, w)
    expected, V, theta = by_definition(start, X, y, w)
    learned = slice(None) if w is None else w > 0
    for got, right in zip(found, expected, strict=True):
        got, right = got[learned], right[learned]
        np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-12 * np.abs(right).max(initial=0))
    if w is not None:
        assert np.isnan(found.errors[w == 0]).all() and np.isnan(found.leverages[w == 0]).all()
    size = np.sqrt(np.diagonal(V))[:, None]
    np.testing.assert_allclose(made.root @ made.root.T / size / size.T, V / size / size.T, rtol=0, atol=1e-11)
    np.testing.assert_allclose(made.theta / size, theta / size, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_one_row_at_a_time_is_the_same(way, name):
    options = {"k": 1, **CASES[name]}
    start, X, y, w = case(6, options.pop("k"), 3, **options)
    together, alone = Filter(*start), Filter(*start)
    found = together.learn(X, y, w)
    for i, x in enumerate(X):
        weight = 1.0 if w is None else w[i]
        alone.row[:] = x
        errors, leverage = alone.learn_row(y[i], weight)
        if weight > 0:
            np.testing.assert_allclose(errors, found.errors[i], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(leverage, found.leverages[i], rtol=1e-10)
    np.testing.assert_allclose(alone.theta, together.theta, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(alone.rss, together.rss, rtol=1e-10)


def test_single_rows_after_blocks_of_many_coefficients(monkeypatch):
    """A block fills the triangle, of which single rows had been told."""
    start, X, y, _ = case(8, 1, 4, curvature="diagonal")
    expected, V, _ = by_definition(start, X, y, None)
    monkeypatch.setattr("kalprox.kernel.filter._MANY", 8)
    made = Filter(*start)
    made.learn(X[:30], y[:30])
    for i in range(30, 60):
        made.row[:] = X[i]
        errors, leverage = made.learn_row(y[i], 1.0)
        np.testing.assert_allclose(errors, expected[0][i], rtol=1e-9)
        np.testing.assert_allclose(leverage, expected[1][i], rtol=1e-9)
    size = np.sqrt(np.diagonal(V))[:, None]
    np.testing.assert_allclose(made.root @ made.root.T / size / size.T, V / size / size.T, rtol=0, atol=1e-10)


def test_a_row_of_weight_0_is_predicted_and_changes_nothing(way):
    start, X, y, _ = case(5, 2, 0, curvature="diagonal")
    made = Filter(*start)
    before = made.joined.copy(), made.rss.copy(), made.trace.copy()
    made.row[:] = X[0]
    errors, leverage = made.learn_row(y[0], 0.0)
    np.testing.assert_allclose(errors, y[0] - X[0] @ start[1], rtol=1e-12)
    np.testing.assert_allclose(leverage, ((X[0] @ start[0]) ** 2).sum(), rtol=1e-12)
    for old, new in zip(before, (made.joined, made.rss, made.trace), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_row_of_enormous_leverage(way):
    start, X, y, _ = case(4, 1, 1, curvature="diagonal")
    X[3] *= 1e9
    found, (expected, *_) = Filter(*start).learn(X, y), by_definition(start, X, y, None)
    for got, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(got[:4], right[:4], rtol=1e-9)
    assert np.isfinite(found.leverages).all() and (found.leverages >= 0).all()


def test_a_copy_is_independent_and_goes_on_as_the_original(way):
    start, X, y, _ = case(5, 1, 2, curvature="full", tilt=True)
    made = Filter(*start)
    made.learn(X[:20], y[:20])
    twins = [made.copy(), copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    rest = made.learn(X[20:], y[20:])
    for twin in twins:
        for one, other in zip(twin.learn(X[20:], y[20:]), rest, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_fading_all_rows_divides_the_covariance(way):
    start, *_ = case(5, 1, 2)
    made = Filter(*start)
    V, rss = made.root @ made.root.T, made.rss.copy()
    made.fade(0.25)
    np.testing.assert_allclose(made.root @ made.root.T, 4 * V, rtol=1e-14)
    np.testing.assert_allclose(made.rss, rss / 4)


@pytest.mark.parametrize("name", ["ridge", "quadratic with a tilt", "several targets"])
@pytest.mark.parametrize("triangle", [True, False])
def test_a_penalty_stays_while_rows_fade(way, name, triangle):
    start, X, y, _ = case(5, **{"k": 1, **CASES[name], "triangle": triangle}, seed=3)
    made, H, left = Filter(*start), start[2], 0.6
    made.learn(X, y)
    made.trace[0] = np.trace(made.root @ made.root.T @ (H if H.ndim == 2 else np.diag(H)))
    H, tilt = H if H.ndim == 2 else np.diag(H), 0.0 if start[3] is None else start[3]
    V, theta, rss = made.root @ made.root.T, made.theta.copy(), made.rss.copy()
    made.fade(left)
    precision = left * np.linalg.inv(V) + (1 - left) * H
    np.testing.assert_allclose(made.root @ made.root.T, np.linalg.inv(precision), rtol=1e-9)
    moved = theta - (1 - left) * np.linalg.solve(precision, H @ theta + tilt)
    np.testing.assert_allclose(made.theta, moved, rtol=1e-9)
    np.testing.assert_allclose(made.trace, np.trace(made.root @ made.root.T @ H), rtol=1e-9)
    step = moved - theta  # the sum of squares of the rows is a parabola about the minimum with the penalty
    slope = -(H @ theta + tilt)
    parabola = np.einsum("ik,ij,jk->k", step, np.linalg.inv(V) - H, step) + 2 * (slope * step).sum(axis=0)
    np.testing.assert_allclose(made.rss, left * (rss + parabola), rtol=1e-9)


@pytest.mark.parametrize("penalty", [None, 2.0])
@pytest.mark.parametrize("triangle", [True, False])
def test_a_step_of_the_first_coordinate_leaves_its_penalty(way, penalty, triangle):
    (root, theta, _, _, rss), *_ = case(5, 2, 4, triangle=triangle)
    H = None if penalty is None else np.full(5, penalty) / (root @ root.T).diagonal()[0] / 4
    h = 0.0 if H is None else H[0]
    made = Filter(root, theta, H, None, rss)
    e = np.eye(5)[0]
    rows = np.linalg.inv(root @ root.T) - h * np.multiply.outer(e, e)  # what is known without that penalty
    b = np.linalg.solve(root @ root.T, theta)
    walked = np.linalg.inv(rows) + 0.3 * np.multiply.outer(e, e)
    V = np.linalg.inv(np.linalg.inv(walked) + h * np.multiply.outer(e, e))
    made.walk(0.3)
    np.testing.assert_allclose(made.root @ made.root.T, V, rtol=1e-8, atol=1e-12 * np.abs(V).max())
    np.testing.assert_allclose(made.theta, V @ np.linalg.solve(walked, np.linalg.solve(rows, b)), rtol=1e-8)


def test_a_filter_of_dependent_columns():
    start, X, y, _ = case(6, 1, 5)
    root = start[0] @ np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0][:, :4]
    start = (root, *start[1:])
    expected, V, _ = by_definition(start, X, y, None)
    made = Filter(*start)
    found = made.learn(X, y)
    np.testing.assert_allclose(found.errors, expected[0], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found.leverages, expected[1], rtol=1e-9)
    np.testing.assert_allclose(made.root @ made.root.T, V, rtol=0, atol=1e-11 * np.abs(V).max())
