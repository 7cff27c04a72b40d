"""Rows far from the others, and rows far heavier than the others, keep their digits in every order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_rows import exact

from kalprox.base.control import compiled
from kalprox.information import Information, merge
from kalprox.linalg.fold import _fold_jax
from kalprox.linalg.triangle import graded_triangle, stacked_triangle

NAMESPACES = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


def assert_exact(info, truth, rtol):
    """Coefficients, their standard errors and the residual sum of squares are those of exact arithmetic."""
    equations = info.centered()
    coef, root = np.asarray(equations.solve()), np.linalg.inv(np.asarray(equations.R))
    noise = float(truth.rss / truth.rows) ** 0.5
    np.testing.assert_array_less(np.abs(coef - truth.coef) / (np.abs(truth.coef) + noise * truth.coef_root), rtol)
    np.testing.assert_allclose(np.sqrt((root**2).sum(axis=1)), truth.coef_root, rtol=rtol)
    assert float(equations.rss) == pytest.approx(float(truth.rss), rel=rtol)


def folded(xp, X, y, weights, length, rho=1.0):
    """Rows folded in blocks, each of which multiplies earlier weights by rho for every row; and their weights."""
    info = Information.zero(X.shape[1], dtype=xp.zeros(0).dtype, xp=xp)
    weights = weights.copy()
    for i in range(0, len(y), length):
        rows = slice(i, i + length)
        if rho < 1:
            info = info.forget(rho ** len(y[rows]))
            weights[:i] *= rho ** len(y[rows])
        info = info.fold(*(xp.asarray(a[rows]) for a in (X, y, weights)))
    return info, weights


@pytest.mark.slow
@pytest.mark.parametrize("then", [0.0, 3e5, -1e12])
@pytest.mark.parametrize(("xp", "length"), [(np, 1), (np, 20), (np, 200), (jnp, 20), (jnp, 200)])
def test_the_shift_follows_the_rows(xp, then, length):
    # The first rows, around 1e12, fade to nothing; rounded about them, later rows would keep 4 digits.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2)) + np.repeat([[1e12], [then]], [40, 360], axis=0)
    y = X @ [2.0, -1.0] + 0.5 * rng.normal(size=400)
    with jax.enable_x64(True):
        info, weights = folded(xp, X, y, np.ones(400), length, rho=0.8)
        assert_exact(info, exact(X, y, weights), 1e-12)


@pytest.mark.slow
@NAMESPACES
def test_a_first_row_that_is_not_representative_does_not_fix_the_shift(xp):
    rng = np.random.default_rng(1)
    X = np.concatenate([[[0.0, 0.0]], rng.normal(size=(500, 2)) + [1e12, -1e12]])
    y = np.concatenate([[0.0], (X[1:] - [1e12, -1e12]) @ [2.0, -1.0] + rng.normal(size=500)])
    with jax.enable_x64(True):
        for first in (1e-30, 1e-20):  # nearly faded
            w = np.concatenate([[first], np.ones(500)])
            first_row = Information.from_rows(*(xp.asarray(a[:1]) for a in (X, y, w)))
            others, truth = (xp.asarray(X[1:]), xp.asarray(y[1:])), exact(X, y, w)
            assert_exact(first_row.fold(*others), truth, 1e-10)
            assert_exact(merge(first_row, Information.from_rows(*others)), truth, 1e-10)


def test_the_shift_follows_rows_that_come_one_by_one():
    rng = np.random.default_rng(2)
    info = Information.zero(1)
    for x in np.concatenate([np.zeros(1), 1e8 + rng.normal(size=100)]):
        info = info.fold(np.array([[x]]), np.array([1.0]))
    assert abs(info.shift[0] - 1e8) < 1e7 and abs(info.x_mean[0] - 1e8 * 100 / 101) < 1


@pytest.mark.slow
@NAMESPACES
@pytest.mark.parametrize("length", [3, 15, 60])
@pytest.mark.parametrize("heavy", [1, 2, 4])
@pytest.mark.parametrize("where", ["first", "last", "among"])
def test_heavy_rows_in_any_order(xp, length, heavy, where):
    rng = np.random.default_rng(heavy)
    X = rng.normal(size=(60, 4)) + 3
    X[:, 0], X[:, 1] = rng.integers(0, 2, (2, 60))
    rows = {"first": np.arange(heavy), "last": np.arange(60 - heavy, 60), "among": rng.permutation(60)[:heavy]}[where]
    X[rows, 1] = 1.0  # of which the heavy rows alone say nothing
    y, weights = X @ [1.0, 2.0, -1.0, 0.5] + rng.normal(size=60), np.ones(60)
    weights[rows] = 1e16
    truth = exact(X, y, weights)
    with jax.enable_x64(True):
        assert_exact(folded(xp, X, y, weights, length)[0], truth, 1e-10)
        blocks = [slice(i, i + length) for i in range(0, 60, length)]
        parts = [Information.from_rows(*(xp.asarray(a[b]) for a in (X, y, weights))) for b in blocks]
        assert_exact(merge(*parts), truth, 1e-10)


def test_graded_triangle_has_the_gram_matrix_of_its_rows():
    rows = np.random.default_rng(3).normal(size=(7, 3)) * 10.0 ** np.arange(-3, 4)[:, None]
    T = graded_triangle(rows)
    assert not np.tril(T, -1).any() and (np.diagonal(T) >= 0).all()
    np.testing.assert_allclose(T.T @ T, rows.T @ rows, rtol=1e-12)


@pytest.mark.slow
def test_no_fold_is_compiled_twice():
    rng = np.random.default_rng(4)
    X, y = jnp.asarray(rng.normal(size=(40, 3))), jnp.asarray(rng.normal(size=40))
    info = Information.from_rows(X, y)
    merge(info, info.fold(X, y)).triangle()
    before = [compiled(f)._cache_size() for f in (_fold_jax, stacked_triangle.__wrapped__)]
    merge(info, info.fold(1e6 * X + 1e6, y)).triangle()
    assert [compiled(f)._cache_size() for f in (_fold_jax, stacked_triangle.__wrapped__)] == before
