"""Covariance structures: equal where each is exact, and honest about the rest."""

import jax
import numpy as np
import pytest
from data import behind_link

import kalprox as kp
from kalprox import models, regularizers
from kalprox.covariance import Dense, Diagonal, LowRank


def diagonal_problem(n=60, d=6):
    """One input at a time: the parameters never become correlated, so a diagonal is exact."""
    rng = np.random.default_rng(0)
    X = np.eye(d)[rng.integers(d, size=n)] * rng.normal(size=(n, 1))
    return X, X @ rng.normal(size=d) + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize("q", [0.0, 1e-3])
def test_diagonal_equals_dense_where_nothing_is_correlated(q):
    X, y = diagonal_problem()
    alg = kp.pipg(models.Linear(), regularizers.SmoothL1(0.01, 0.5), gamma=2.0, q=q)
    dense, diagonal = (kp.run(alg, alg.init(np.zeros(6), v0), X, y).state for v0 in (0.7, Diagonal(np.full(6, 0.7))))
    np.testing.assert_allclose(diagonal.mean, dense.mean, rtol=1e-10)
    np.testing.assert_allclose(diagonal.cov(), dense.cov(), rtol=1e-10, atol=1e-15)


def test_low_rank_of_full_rank_equals_dense():
    X, y, _ = behind_link("tanh", n=80)
    alg = kp.ipm(models.GLM("tanh"), gamma=2.0)
    dense, low = (kp.run(alg, alg.init(np.zeros(6), v0), X, y).state for v0 in (0.7, LowRank.start(0.7, d=6, rank=6)))
    np.testing.assert_allclose(low.mean, dense.mean, rtol=1e-9)
    np.testing.assert_allclose(low.cov(), dense.cov(), rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(low.var(), dense.var(), rtol=1e-9)


def test_low_rank_adds_process_noise_exactly_and_curvature_to_first_order():
    rng = np.random.default_rng(2)
    low = LowRank(rng.uniform(1, 2, size=5), rng.normal(size=(5, 2)))
    V = np.linalg.inv(np.diag(low.p) + low.W @ low.W.T)
    np.testing.assert_allclose(low.dense(), V, rtol=1e-12)
    x = rng.normal(size=5)
    np.testing.assert_allclose(low.apply(x), V @ x, rtol=1e-12)
    for q in (0.3, np.linspace(0.1, 0.5, 5), np.diag(np.linspace(0.1, 0.5, 5))):
        Q = q if np.ndim(q) == 2 else np.diag(np.broadcast_to(q, 5))
        np.testing.assert_allclose(low.predict(1.0, np.zeros(5), q).dense(), V + Q, rtol=1e-12)
    for gamma in (1e-3, 1e-4):
        H = np.linspace(0.5, 1, 5)
        exact = Dense(V).predict(gamma, H, 0.0).dense()
        assert np.abs(low.predict(gamma, H, 0.0).dense() - exact).max() < 5 * gamma**2


def test_low_rank_keeps_every_parameters_own_precision():
    X, _, _ = behind_link("identity", n=40)
    low = LowRank.start(1.0, d=6, rank=2)
    for x in X:
        _, low = low.condition(x, 1.5)
    np.testing.assert_allclose(np.diagonal(np.diag(low.p) + low.W @ low.W.T), 1 + 1.5 * (X**2).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    "V", [Dense(np.eye(3)), Diagonal(np.ones(3)), LowRank.start(1.0, d=3, rank=2)], ids=lambda V: type(V).__name__
)
def test_every_structure_crosses_jit_and_scan(V):
    X, y, _ = behind_link("identity", n=20, d=3)
    alg = kp.pipg(models.Linear(), regularizers.Quadratic(0.1 * np.eye(3)), gamma=1.0, q=1e-4)
    state = alg.init(np.zeros(3), V)
    out = kp.run(alg, state, X, y)
    for x, target in zip(X, y, strict=True):
        state = alg.step(state, x, target)
    np.testing.assert_allclose(out.state.mean, state.mean, rtol=1e-10)
    np.testing.assert_allclose(out.state.cov(), state.cov(), rtol=1e-9, atol=1e-12)
    assert jax.tree.structure(out.state) == jax.tree.structure(state)


def test_diagonal_of_a_dense_curvature_keeps_the_diagonal():
    rng = np.random.default_rng(4)
    v, B = rng.uniform(0.5, 1, size=4), rng.normal(size=(4, 4)) / 3
    H = B @ B.T
    expected = np.diagonal(Dense(np.diag(v)).predict(0.5, H, 0.1).dense())
    np.testing.assert_allclose(Diagonal(v).predict(0.5, H, 0.1).diag(), expected, rtol=1e-13)
