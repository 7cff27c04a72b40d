"""Covariance structures: equal where each is exact, and honest about the rest."""

import dataclasses
from fractions import Fraction

import jax
import numpy as np
import pytest
from data import behind_link

import kalprox as kp
from kalprox import covariance, models, regularizers
from kalprox.covariance import Dense, Diagonal, LowRank, SquareRoot


def diagonal_problem(n=60, d=6):
    """One input at a time: the parameters never become correlated, so a diagonal is exact."""
    rng = np.random.default_rng(0)
    X = np.eye(d)[rng.integers(d, size=n)] * rng.normal(size=(n, 1))
    return X, X @ rng.normal(size=d) + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize("q", [pytest.param(0.0, marks=pytest.mark.slow), 1e-3])
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
        np.testing.assert_allclose(low.contract(1.0, np.zeros(5)).diffuse(q).dense(), V + Q, rtol=1e-12)
    for gamma in (1e-3, 1e-4):
        H = np.linspace(0.5, 1, 5)
        exact = Dense(V).contract(gamma, H).dense()
        assert np.abs(low.contract(gamma, H).dense() - exact).max() < 5 * gamma**2


def test_low_rank_keeps_every_parameters_own_precision():
    X, _, _ = behind_link("identity", n=40)
    low = LowRank.start(1.0, d=6, rank=2)
    for x in X:
        _, low = low.condition(x, 1.5)
    np.testing.assert_allclose(np.diagonal(np.diag(low.p) + low.W @ low.W.T), 1 + 1.5 * (X**2).sum(axis=0), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "V",
    [Dense(np.eye(3)), Diagonal(np.ones(3)), LowRank.start(1.0, d=3, rank=2), SquareRoot(np.eye(3))],
    ids=lambda V: type(V).__name__,
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
    expected = np.diagonal(Dense(np.diag(v)).contract(0.5, H).diffuse(0.1).dense())
    np.testing.assert_allclose(Diagonal(v).contract(0.5, H).diffuse(0.1).diag(), expected, rtol=1e-13)


RNG = np.random.default_rng(5)
B = RNG.normal(size=(5, 5))
SAMPLES = {  # a value for each parameter of a structure of five parameters
    "V": B @ B.T / 5 + np.eye(5),
    "L": B + 3 * np.eye(5),
    "v": RNG.uniform(0.5, 2, size=5),
    "p": RNG.uniform(0.5, 2, size=5),
    "W": RNG.normal(size=(5, 2)),
}


def structures():
    """One of each structure that `kalprox.covariance` exports."""
    classes = [getattr(covariance, name) for name in covariance.__all__ if name != "Covariance"]
    return [cls(**{f.name: SAMPLES[f.name] for f in dataclasses.fields(cls)}) for cls in classes]


@pytest.mark.parametrize("V", structures(), ids=lambda V: type(V).__name__)
def test_every_structure_is_its_dense_matrix(V):
    rng = np.random.default_rng(6)
    matrix, d, D = V.dense(), rng.normal(size=5), rng.normal(size=(7, 5))
    np.testing.assert_allclose(V.apply(d), matrix @ d, rtol=1e-12)
    np.testing.assert_allclose(V.diag(), np.diagonal(matrix), rtol=1e-12)
    np.testing.assert_allclose(V.variance(D), np.diagonal(D @ matrix @ D.T), rtol=1e-12)
    np.testing.assert_allclose(V.variance(d), d @ matrix @ d, rtol=1e-12)
    np.testing.assert_allclose(V.condition(d, 1.5)[0], Dense(matrix).condition(d, 1.5)[0], rtol=1e-12)
    V.check(5)
    with pytest.raises(ValueError, match="v0 must be the covariance of 6 parameters"):
        V.check(6)


@pytest.mark.parametrize("V", structures(), ids=lambda V: type(V).__name__)
def test_the_largest_eigenvalue_that_guards_the_first_step(V):
    rng = np.random.default_rng(7)
    B = rng.normal(size=(3, 5))
    for H in (rng.uniform(0, 2, size=5), rng.uniform(-2, 2, size=5), B.T @ B, np.zeros(5)):
        true = np.linalg.eigvals(V.dense() @ (np.diag(H) if H.ndim == 1 else H)).real.max()
        if isinstance(V, LowRank):
            bounds = np.sort(H / V.p) if H.ndim == 1 else [-np.inf]
            assert true <= V.max_eigenvalue(H) + 1e-12
            assert (H < 0).any() or bounds[-3 if H.ndim == 1 else 0] <= true + 1e-12  # by interlacing, r = 2
        else:
            np.testing.assert_allclose(V.max_eigenvalue(H), true, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("V", "message"),
    [
        (Diagonal(np.ones(2)), r"v0 must be the covariance of 3 parameters, as mean0 has; got shape \(2,\)"),
        (Diagonal(np.ones((3, 3))), r"got shape \(3, 3\)"),
        (Diagonal(np.array([1.0, 0.0, 2.0])), "v0 must be positive definite; its smallest eigenvalue is 0"),
        (Diagonal(np.array([1.0, np.inf, 2.0])), "v0 must be finite"),
        (LowRank(np.ones(2), np.ones((2, 1))), r"covariance of 3 parameters.*got shape \(2,\)"),
        (LowRank(np.ones(3), np.ones((2, 1))), r"got shape \(2, 1\)"),
        (LowRank(np.ones(3), np.ones(3)), r"got shape \(3,\)"),
        (LowRank(np.array([1.0, -0.5, 1.0]), np.ones((3, 1))), "its diagonal precision p must be > 0; got -0.5"),
        (LowRank(np.ones(3), np.full((3, 1), np.nan)), "v0 must be finite"),
        (Dense(np.ones((3, 2))), r"got shape \(3, 2\)"),
    ],
)
def test_a_structure_that_is_no_covariance_is_refused(V, message):
    with pytest.raises(ValueError, match=message):
        kp.ipm(models.Linear(), gamma=1.0).init(np.zeros(3), V)


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda d: Diagonal(np.full(d, 0.5)), lambda d: LowRank.start(0.5, d, rank=3)])
def test_a_structure_of_100_000_parameters_starts_steps_predicts_and_is_read(make):
    """A matrix of 100,000 x 100,000 would need 80 GB."""
    d = 100_000
    rng = np.random.default_rng(8)
    X = rng.normal(size=(3, d)) / d**0.5
    y = X[:, :10].sum(axis=1)
    for alg in (
        kp.ipm(models.Linear(), gamma=1.0),
        kp.pipg(models.GLM("tanh"), regularizers.SmoothL1(0.01, 0.3), gamma=1.0, q=1e-4),
    ):
        state = alg.init(np.zeros(d), make(d))
        state = alg.step(state, X[0], np.array(y[0]))
        state = kp.run(alg, state, X[1:], y[1:]).state
        assert np.isfinite(state.mean).all() and (state.var() > 0).all() and (state.var() < 0.51).all()
    with pytest.raises(ValueError, match="would expand the covariance"):
        kp.pipg(models.Linear(), regularizers.SmoothL1(1.0, 0.1), gamma=1.0).init(np.zeros(d), make(d))


def exact_covariance(v0, gamma, X):
    """The posterior covariance after the rows of X in rational arithmetic, rounded once, at the end."""
    d, gamma = X.shape[1], Fraction(gamma)
    V = np.array([[Fraction(v0) if i == j else Fraction(0) for j in range(d)] for i in range(d)])
    for row in X:
        x = np.array([Fraction(v) for v in row.tolist()])
        Vx = V @ x
        V = V - np.outer(Vx, Vx) / (1 / gamma + x @ Vx)
    return V.astype(float)


@pytest.mark.parametrize("steps", ["eager", "compiled"])
@pytest.mark.parametrize(("v0", "gamma", "apart"), [(1e17, 1.0, 1.0), (1.0, 1e17, 1.0), (1e9, 1e9, 1e-3)])
def test_ipm_has_no_negative_variance_and_keeps_half_of_the_digits(v0, gamma, apart, steps):
    """A vague prior, a precise observation, rows that are nearly repeated: V - K S K' has nothing left of V here.

    An observation divides a variance by at most 1 + gamma v0 |x|^2, so that the root may lose half of its digits.
    """
    alg, negative = kp.ipm(models.Linear(), gamma=gamma), False
    for seed in range(10):
        X = 1 + apart * np.random.default_rng(seed).normal(size=(8, 3))
        y, V = X @ np.ones(3), exact_covariance(v0, gamma, X)
        for structure in (v0, Dense(v0 * np.eye(3))):
            state = alg.init(np.zeros(3), structure)
            if steps == "compiled":
                state = kp.run(alg, state, X, y).state
            else:
                for x, target in zip(X, y, strict=True):
                    state = alg.step(state, x, target)
            if isinstance(structure, Dense):
                negative |= np.linalg.eigvalsh(state.cov())[0] <= 0
                continue
            lost = np.finfo(float).eps * np.sqrt(gamma * v0 * (X**2).sum(axis=1).max())
            np.testing.assert_allclose(state.var(), np.diagonal(V), rtol=30 * lost)
            assert (state.var() > 0).all()
            assert np.isfinite(state.mean).all()
    assert negative


def test_the_square_root_follows_the_papers_recursion_as_the_matrix_does():
    """g and Q included: `contract` and `diffuse` of the root are those of the matrix."""
    X, y, _ = behind_link("tanh", n=60)
    for q in (0.0, 1e-3, np.linspace(0, 1e-3, 6), 1e-3 * (np.ones((6, 6)) + np.eye(6))):
        for g in (regularizers.SmoothL1(0.01, 0.5), regularizers.Quadratic(0.1 * np.ones((2, 6)))):
            alg = kp.pipg(models.GLM("tanh"), g, gamma=2.0, q=q)
            states = [alg.init(np.zeros(6), V) for V in (Dense(0.7 * np.eye(6)), SquareRoot(0.7**0.5 * np.eye(6)))]
            for x, target in zip(X[:20], y[:20], strict=True):
                states = [alg.step(state, x, target) for state in states]
            np.testing.assert_allclose(states[1].mean, states[0].mean, rtol=1e-10)
            np.testing.assert_allclose(states[1].cov(), states[0].cov(), rtol=1e-9, atol=1e-12)


def test_a_root_is_that_of_the_matrix_in_any_units_and_a_singular_matrix_is_refused():
    units = 10.0 ** np.array([-12, 0, 3, 9, 14])
    V = SAMPLES["V"] * np.outer(units, units)
    np.testing.assert_allclose(SquareRoot.of(V).dense() / np.outer(units, units), SAMPLES["V"], rtol=1e-13)
    with pytest.raises(ValueError, match="smallest eigenvalue is zero up to rounding"):
        SquareRoot.of(np.ones((3, 3)) + 1e-17 * np.eye(3))
    with pytest.raises(ValueError, match="smallest eigenvalue is 0"):
        kp.ipm(models.Linear(), gamma=1.0).init(np.zeros(2), SquareRoot(np.diag([1.0, 0.0])))
