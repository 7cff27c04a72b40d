"""The sums over squares and products of columns: compiled, and by the definition, row by row."""

import numpy as np
import pytest

from kalprox.calibration.curvature import Curvature
from kalprox.kernel.library import kernel

NONE = Curvature(np.zeros(()), np.zeros(0), np.zeros(0), np.zeros((6, 1, 1)))


@pytest.fixture(params=["compiled", "NumPy"])
def way(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr("kalprox.kernel.scores.kernel", lambda: None)
    elif kernel() is None:
        pytest.skip("the kernel is not compiled")
    return request.param


def rows(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-3, 3, d) + 10.0 ** rng.uniform(-3, 3, d)
    return X, X @ rng.normal(size=d), rng.standard_t(4, size=n)


def by_definition(X, mean, u):
    """Return the sums of products of all rows, each standardised by the rows before it."""
    V, sums = np.column_stack([mean, X]), 0.0
    for i in range(len(V)):
        z = np.zeros(V.shape[1])
        if i >= 16:
            spread = V[:i].std(axis=0)
            varies = spread > 1e-5 * np.abs(V[:i] - V[0]).max(axis=0)
            z[varies] = ((V[i] - V[:i].mean(axis=0)) / np.where(spread > 0, spread, 1))[varies]
        z = np.append(1.0, np.clip(z, -3, 3))
        q, s = z * z, np.clip(u[i], -4, 4)
        pairs = (z, z), (q, z), (q, q), (z, s * z), (q, s**2 * q), (q * q, s**4 * q * q)
        sums = sums + np.array([np.multiply.outer(a, b) for a, b in pairs])
    return sums, V.mean(axis=0), ((V - V.mean(axis=0)) ** 2).sum(axis=0)


@pytest.mark.parametrize("d", [1, 6, 7, 14, 15, 20])
def test_the_sums_are_those_of_the_definition_however_the_rows_are_cut(way, d):
    X, mean, u = rows(150, d)
    X[:, 0] = 3.25  # constant
    products, means, squares = by_definition(X, mean, u)
    for cut in (150, 37, 1):
        found = NONE
        for i in range(0, 150, cut):
            some = slice(i, i + cut)
            found = found.after(X[some], mean[some], u[some], np.ones(len(u[some])))
        assert found.columns_seen == 150
        np.testing.assert_allclose(found.column_means, means, rtol=1e-12)
        np.testing.assert_allclose(found.column_squares, squares, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.column_products, products, rtol=1e-8, atol=1e-8)


def test_only_the_first_20_columns_are_looked_at(way):
    X, mean, u = rows(100, 30)
    found = NONE.after(X, mean, u, np.ones(100))
    some = NONE.after(X[:, :20].copy(), mean, u, np.ones(100))
    for one, other in zip(found, some, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("layout", ["C", "F", "every second", "backwards", "float32"])
def test_rows_in_any_layout(way, layout):
    X, mean, u = rows(100, 5)
    laid = {
        "C": X,
        "F": np.asfortranarray(X),
        "every second": np.repeat(X, 2, axis=0)[::2],
        "backwards": X[::-1].copy()[::-1],
        "float32": X.astype(np.float32),
    }[layout]
    expected = NONE.after(np.array(laid, float, order="C"), mean, u, np.ones(100))
    for one, other in zip(NONE.after(laid, mean, u, np.ones(100)), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_later_rows_are_thinned_and_rows_that_are_not_judged_left_out(way):
    X, mean, u = rows(9000, 3)
    weights = np.ones(9000)
    weights[::7] = 0.0
    whole = NONE.after(X, mean, u, weights)
    judged = np.flatnonzero(weights)
    number = np.arange(len(judged))
    assert whole.columns_seen == len(judged)
    alone = NONE
    for i in range(0, 9000, 900):
        alone = alone.after(X[i : i + 900], mean[i : i + 900], u[i : i + 900], weights[i : i + 900])
    kept = (number < 8192) | (number % 8 == 0)
    assert whole.column_products[0, 0, 0] == alone.column_products[0, 0, 0] == kept.sum()
    for one, other in zip(whole, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    later = whole.after(X, mean, u, np.ones(9000))
    assert later.columns_seen == len(judged) + 9000


def test_values_that_are_not_finite_or_enormous_leave_the_sums_finite(way):
    X, mean, u = rows(60, 3)
    X[20, 0], X[30, 1], X[40, 2], u[50] = np.nan, np.inf, 1e300, 1e200
    found = NONE.after(X, mean, u, np.ones(60))
    assert all(np.isfinite(a).all() for a in found)
