"""Triangles: a row below one, against QR of all rows in long double, and solving."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kalprox.linalg import triangle
from kalprox.linalg.triangle import append_row, lapack


def reference(rows):
    """The triangle of the rows by reflections in long double, the largest rows first."""
    A = np.array(rows, np.longdouble)
    A = A[np.argsort(-np.abs(A).max(axis=1))]
    for j in range(A.shape[1]):
        v = A[j:, j].copy()
        if not v.any():
            continue
        v[0] += np.copysign(np.sqrt((v**2).sum()), v[0])
        A[j:] -= 2 * np.outer(v, v @ A[j:]) / (v @ v)
    T = np.triu(A[: A.shape[1]])
    return (T * np.where(np.diagonal(T) < 0, -1, 1)[:, None]).astype(float)


def error(T, R):
    """The largest error, relative to the largest entry of its row."""
    size = np.abs(R).max(axis=1, keepdims=True)
    return float((np.abs(np.asarray(T) - R) / np.where(size > 0, size, 1)).max())


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e6, 1e12])
@pytest.mark.parametrize("d", [1, 6, 30])
def test_a_row_of_any_size_leaves_the_digits_of_the_others(size, d):
    """Householder's reflections lose them below a row that is 1e12 times as large: 1e-5 is left."""
    rng = np.random.default_rng(d)
    T, b = reference(rng.normal(size=(3 * d, d))), size * rng.normal(size=d)
    with jax.enable_x64(True):
        found = append_row(jnp.asarray(T), jnp.asarray(b))
    assert error(found, reference(np.vstack([T, b]))) < 1e-14
    assert (np.tril(found, -1) == 0).all() and (np.diagonal(found) >= 0).all()


def test_a_row_under_zeros_and_a_row_of_zeros():
    with jax.enable_x64(True):
        b = jnp.asarray([0.0, -3.0, 4.0])
        np.testing.assert_array_equal(append_row(jnp.zeros((3, 3)), b), [[0, 0, 0], [0, 3, -4], [0, 0, 0]])
        T = jnp.asarray([[2.0, 1.0], [0.0, 0.0]])
        np.testing.assert_array_equal(append_row(T, jnp.zeros(2)), T)


@pytest.mark.slow
def test_a_batch_of_triangles_and_its_derivative():
    rng = np.random.default_rng(0)
    T, b = np.triu(rng.normal(size=(4, 5, 5))), rng.normal(size=(4, 5))
    with jax.enable_x64(True):
        found = jax.vmap(append_row)(jnp.asarray(T), jnp.asarray(b))
        slope = jax.grad(lambda b: (append_row(jnp.asarray(T[0]), b) ** 2).sum())(jnp.asarray(b[0]))
    np.testing.assert_allclose(
        np.einsum("nij,nik->njk", found, found),
        np.einsum("nij,nik->njk", T, T) + b[:, :, None] * b[:, None],
        atol=1e-13,
    )
    np.testing.assert_allclose(slope, 2 * b[0], rtol=1e-12)  # the squares of the entries are those of all rows


def test_small_triangles_are_solved_without_threads(monkeypatch):
    """OpenBLAS starts its threads in trtrs for a triangle of any size; where cores are busy that costs milliseconds."""
    asked = []
    monkeypatch.setattr(triangle, "lapack", lambda name, dtype: asked.append(name) or lapack(name, dtype))
    U, b = np.triu(np.ones((3, 3))), np.arange(6.0).reshape(3, 2)
    for right in (b, b[:, 0]):
        np.testing.assert_allclose(U @ triangle.solve_triangular(U, right), right, atol=1e-14)
        np.testing.assert_allclose(U.T @ triangle.solve_triangular(U, right, transposed=True), right, atol=1e-14)
        np.testing.assert_allclose(U @ triangle.solve_triangular(np.asfortranarray(U), right), right, atol=1e-14)
    assert set(asked) == {"trsm"}


def test_a_singular_triangle_is_named():
    with pytest.raises(np.linalg.LinAlgError, match="entry 1 of its diagonal is zero"):
        triangle.solve_triangular(np.triu(np.ones((3, 3))) * [1.0, 0.0, 1.0], np.ones(3))
