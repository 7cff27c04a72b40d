"""Gram matrices of JAX arrays: where they are used, they keep the digits of QR."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kalprox.linalg import fold as gram
from kalprox.linalg.triangle import triangle_of


def stack(d, k, noise, seed=0, n=200):
    """A triangle of some rows [X | Y], more rows below it, and all of them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    rows = np.column_stack([X, X @ rng.normal(size=(d, k)) + noise * rng.normal(size=(n, k))])
    T = triangle_of(np.vstack([np.zeros((d + k, d + k)), rows[: n // 2]]))
    return T, rows[n // 2 :], np.vstack([T, rows[n // 2 :]])


@pytest.fixture
def no_qr(monkeypatch):
    """QR returns NaN: a finite triangle was found without it."""
    monkeypatch.setattr(gram, "stacked_triangle", lambda T, B, triangles: jnp.full_like(T, jnp.nan))
    with jax.enable_x64(True):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("k", [1, 2])
def test_targets_that_the_columns_explain_need_no_qr(no_qr, noise, k):
    """A fleet fell to QR, at a third of the rate, where one of its R^2 was above 0.9999."""
    T, B, rows = stack(6, k, noise)
    found = np.asarray(gram.joined_triangle(jnp.asarray(T), jnp.asarray(B), k))
    expected = triangle_of(np.vstack([np.zeros_like(T), rows]))
    np.testing.assert_allclose(found[:6], expected[:6], atol=1e-13 * np.abs(expected).max())
    np.testing.assert_allclose(found[6:], expected[6:], rtol=1e-12 / noise, atol=1e-12 * noise)
    assert (np.tril(found, -1) == 0).all()


@pytest.mark.slow
def test_collinear_columns_and_squares_that_underflow_need_qr(no_qr):
    T, B, _ = stack(4, 1, 1.0)
    tiny = np.array([1.0, 1.0, 1.0, 1e-170, 1.0])
    assert np.isnan(gram.joined_triangle(jnp.asarray(T * tiny), jnp.asarray(B * tiny), 1)).all()
    B = B.copy()
    B[:, 1] = B[:, 0] * (1 + 1e-5)
    assert np.isnan(gram.joined_triangle(jnp.zeros_like(jnp.asarray(T)), jnp.asarray(B), 1)).all()


@pytest.mark.slow
def test_a_column_of_zeros_stays_zero(no_qr):
    T, B, _ = stack(4, 1, 1.0)
    keep = np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    found = np.asarray(gram.joined_triangle(jnp.asarray(T * keep), jnp.asarray(B * keep), 1))
    assert (found[2] == 0).all() and (found[:, 2] == 0).all() and np.isfinite(found).all()


@pytest.mark.slow
def test_of_a_batch_only_the_collinear_member_is_left_to_qr():
    members = [stack(5, 1, 0.1, seed)[1] for seed in range(4)]
    members[2][:, 1] = members[2][:, 0] + 1e-5 * members[2][:, 1]
    B = np.stack(members)
    with jax.enable_x64(True):
        found = jax.vmap(lambda B: gram.joined_triangle(jnp.zeros((6, 6)), B, 1))(jnp.asarray(B))
        roots = jax.vmap(gram.triangle_of_rows)(jnp.asarray(B))
    for i, b in enumerate(members):
        expected = triangle_of(np.vstack([np.zeros((6, 6)), b]))
        np.testing.assert_allclose(found[i], expected, rtol=1e-9, atol=1e-12 * np.abs(expected).max())
        np.testing.assert_allclose(np.abs(roots[i]), np.abs(expected), rtol=1e-9, atol=1e-12 * np.abs(expected).max())
