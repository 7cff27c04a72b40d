"""Refinement without a matrix: the same minimiser as the dense one, in bounded memory."""

import warnings

import numpy as np
import pytest
import scipy.sparse

import kalprox as kp
from kalprox.algorithms.descent import Point, Problem
from kalprox.large.conjugate_gradients import Operator, minimise
from kalprox.large.refinement import MatrixFreeProblem
from kalprox.likelihoods import Bernoulli, Categorical, Huber, Poisson
from kalprox.models import GLM, Function, Linear
from kalprox.regularizers import L1, Box, ElasticNet, GroupL1, Quadratic, Ridge, SmoothL1, Zero
from kalprox.solvers.prox import prox
from kalprox.sources import ArraySource
from kalprox.structures import Diagonal

N, D = 200, 12


def _tanh(theta, x):
    import jax.numpy as jnp

    return theta[D] * jnp.tanh((x * theta[:D]).sum())


def _problem(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) * np.exp(rng.normal(size=D))
    X[:, 0] = 1.0
    u = X @ (rng.normal(size=D) * (rng.random(D) < 0.5)) / 2
    if kind == "linear":
        return Linear(), None, X, u + rng.normal(size=N), np.zeros(D)
    if kind == "sigmoid":
        return GLM("sigmoid"), None, X, 1 / (1 + np.exp(-u)) + 0.1 * rng.normal(size=N), np.zeros(D)
    if kind == "function":
        return Function(_tanh), None, X, 2 * np.tanh(u) + 0.1 * rng.normal(size=N), np.full(D + 1, 0.1)
    if kind == "bernoulli":
        return Linear(), Bernoulli(), X, (rng.random(N) < 1 / (1 + np.exp(-u))).astype(float), np.zeros(D)
    if kind == "poisson":
        return Linear(), Poisson(), X, rng.poisson(np.exp(u / 3)).astype(float), np.zeros(D)
    classes = np.stack([u, -u, 0 * u], axis=1) + rng.gumbel(size=(N, 3))
    return Linear(3), Categorical(), X, np.eye(3)[classes.argmax(axis=1)], np.zeros(3 * D)


def _penalty(name, d):
    labels = np.minimum(np.arange(d) // 3, 3).astype(int)
    labels[0] = -1
    return {"ridge": Ridge(1.0), "l1": L1(3.0), "box": Box(-0.3, 0.6), "group": GroupL1(2.0, labels)}[name]


KINDS = ["linear", "sigmoid", "bernoulli", "poisson", "categorical", "function"]


SLOW = [("categorical", "box"), ("categorical", "group"), ("function", "box"), ("function", "group")]
CASES = [
    pytest.param(kind, penalty, marks=[pytest.mark.slow] if (kind, penalty) in SLOW else [])
    for kind in KINDS
    for penalty in ("ridge", "l1", "box", "group")
]


@pytest.mark.parametrize(("kind", "penalty"), CASES)
def test_the_minimiser_is_that_of_the_dense_refinement(kind, penalty):
    model, likelihood, X, y, start = _problem(kind)
    g = _penalty(penalty, len(start))
    dense = kp.refine(model, g, (X, y), start, likelihood=likelihood)
    free = kp.refine(model, g, (X, y), start, likelihood=likelihood, structure="diagonal")
    assert free.converged and dense.converged
    if (kind, penalty) != ("categorical", "box"):  # the same number added to all classes changes nothing there
        np.testing.assert_allclose(free.mean, dense.mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_array_equal(free.mean == 0, dense.mean == 0)
    np.testing.assert_allclose(free.objective, dense.objective, rtol=1e-12)
    assert free.cov is None and free.var.shape == start.shape and free.products > 0
    if np.isfinite(free.dof):
        np.testing.assert_allclose(free.noise_var, dense.noise_var, rtol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "bernoulli", "categorical", "function"])
@pytest.mark.parametrize("penalty", [pytest.param("ridge", marks=pytest.mark.slow), "l1"])
def test_a_full_rank_has_the_exact_variances(kind, penalty):
    model, likelihood, X, y, start = _problem(kind)
    g = _penalty(penalty, len(start))
    dense = kp.refine(model, g, (X, y), start, likelihood=likelihood, gamma=None)
    full = kp.refine(model, g, (X, y), start, likelihood=likelihood, structure=kp.structures.LowRank(len(start)))
    np.testing.assert_allclose(full.var / full.noise_var, np.diag(dense.cov) / dense.noise_var, rtol=1e-5)
    assert float(full.information.dropped) < 1e-8


def test_a_diagonal_is_the_diagonal_of_the_precision():
    model, _, X, y, start = _problem("linear")
    fit = kp.refine(model, Ridge(2.0), (X, y), start, gamma=4.0, structure="diagonal")
    np.testing.assert_allclose(fit.var, 0.25 / ((X**2).sum(axis=0) + 2.0), rtol=1e-12)


def test_dense_blocks_are_those_of_the_precision():
    model, _, X, y, start = _problem("linear")
    fit = kp.refine(model, Ridge(2.0), (X, y), start, gamma=1.0, structure=kp.structures.Blocks([4, 8]))
    P = X.T @ X + 2.0 * np.eye(D)
    expected = np.concatenate([np.diag(np.linalg.inv(P[:4, :4])), np.diag(np.linalg.inv(P[4:, 4:]))])
    np.testing.assert_allclose(fit.var, expected, rtol=1e-9)


def test_weights_prior_and_sparse_rows():
    model, _, X, y, start = _problem("linear")
    rng = np.random.default_rng(1)
    X = X * (rng.random(X.shape) < 0.4)
    w = rng.integers(0, 3, N).astype(float)
    bad = np.flatnonzero(w == 0)[0]
    X[bad] = np.nan
    prior = kp.Information.from_prior(np.ones(D), np.eye(D) * 2.0)
    dense = kp.refine(model, L1(2.0), (X, y, w), start, prior=prior)
    X[bad] = 0.0
    sparse = kp.refine(model, L1(2.0), (scipy.sparse.csr_matrix(X), y, w), start, prior=prior, structure="diagonal")
    np.testing.assert_allclose(sparse.mean, dense.mean, atol=1e-9)
    np.testing.assert_allclose([sparse.dof, sparse.noise_var], [dense.dof, dense.noise_var], rtol=1e-6)


def test_the_scale_of_a_robust_likelihood_is_learned():
    model, _, X, y, start = _problem("linear")
    y = y + 5 * (np.arange(N) % 17 == 0)
    dense = kp.refine(model, Ridge(1.0), (X, y), start, likelihood=Huber())
    free = kp.refine(model, Ridge(1.0), (X, y), start, likelihood=Huber(), structure="diagonal")
    np.testing.assert_allclose(free.mean, dense.mean, atol=1e-6)
    np.testing.assert_allclose(free.likelihood.scale, dense.likelihood.scale, rtol=1e-6)


@pytest.mark.parametrize("kind", ["sigmoid", "function"])
def test_the_objective_never_rises(kind, monkeypatch):
    model, likelihood, X, y, start = _problem(kind)
    found = []

    def at(self, theta):
        point = original(self, theta)
        found.append(point)
        return point

    original = MatrixFreeProblem.at
    monkeypatch.setattr(MatrixFreeProblem, "at", at)
    fit = kp.refine(model, L1(0.5), (X, y), start, likelihood=likelihood, structure="diagonal")
    assert fit.objective <= min(point.objective for point in found) * (1 + 1e-12)
    taken = [p for p in found if p is not None]
    best = np.minimum.accumulate([p.objective for p in taken])
    assert best[-1] == pytest.approx(fit.objective, rel=1e-12)


def test_products_are_those_of_the_dense_linearisation():
    for kind in KINDS:
        model, likelihood, X, y, start = _problem(kind)
        about = model, likelihood or kp.likelihoods.Gaussian(), Ridge(1.0), ArraySource(X, y), None
        theta = start + 0.05
        dense, free = Problem(*about).at(theta), MatrixFreeProblem(Diagonal(), *about).at(theta)
        assert isinstance(dense, Point) and isinstance(free, Point)
        p = np.random.default_rng(0).normal(size=len(theta))
        np.testing.assert_allclose(free.local.scales(), dense.local.scales(), rtol=1e-9)
        np.testing.assert_allclose(free.local.decrease(p), dense.local.decrease(p), rtol=1e-9)
        np.testing.assert_allclose(free.objective, dense.objective, rtol=1e-12)
        curvatures = [
            problem.curvature(theta, p) for problem in (Problem(*about), MatrixFreeProblem(Diagonal(), *about))
        ]
        size = np.abs(free.local.H.product(p)).max()  # of which half of the digits are kept
        np.testing.assert_allclose(*curvatures, rtol=1e-4, atol=1e-6 * size)


@pytest.mark.parametrize(
    "g",
    [Zero(), Ridge(2.0), L1(30.0), ElasticNet(20.0, 3.0), Box(-0.2, 0.5), SmoothL1(5.0, 0.1), "quadratic", "group"],
    ids=str,
)
def test_the_minimiser_of_a_quadratic_is_the_prox(g):
    rng = np.random.default_rng(0)
    d = 40
    X = (rng.normal(size=(120, d)) + 2 * rng.normal(size=(120, 1))) * np.exp(rng.normal(size=d))
    y = X @ (rng.normal(size=d) * (rng.random(d) < 0.3)) + rng.normal(size=120)
    g = {"quadratic": Quadratic(rng.normal(size=(5, d))), "group": GroupL1(20.0, np.arange(d) // 4 - 1)}.get(g, g)
    theta = np.zeros(d)
    p = minimise(Operator(lambda v: X.T @ (X @ v), (X**2).sum(axis=0)), X.T @ y, g, theta, 1e-11)
    expected = prox(X, y, g).theta
    np.testing.assert_allclose(p, expected, atol=1e-7 * np.abs(expected).max())
    np.testing.assert_array_equal(p == 0, expected == 0)


def test_what_needs_a_dense_matrix_is_refused():
    model = _problem("linear")[0]
    custom = kp.regularizers.Custom(lambda t: (t**4).sum())
    with pytest.raises(ValueError, match="dense matrix"):
        kp.refine(model, custom, (np.ones((2, 5000)), np.ones(2)), np.zeros(5000), structure="diagonal")


def test_the_dense_refinement_stays_within_bounds():
    model, _, X, y, start = _problem("function")  # rounding once put a step just outside a bound, where g is infinite
    fit = kp.refine(model, Box(-0.3, 0.6), (X, y), start)
    assert fit.converged and fit.mean.min() >= -0.3 and fit.mean.max() <= 0.6


@pytest.mark.slow
def test_a_function_of_20_000_parameters_in_bounded_memory():
    import tracemalloc

    import jax.numpy as jnp

    inputs, hidden, lam = 98, 200, 10.0
    d = hidden * (inputs + 2)

    def network(theta, x):
        W, v = theta[: hidden * inputs].reshape(hidden, inputs), theta[hidden * inputs :]
        return jnp.tanh(W @ x + v[:hidden]) @ v[hidden:]

    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, inputs))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=100)
    start = 0.1 * rng.normal(size=d)
    tracemalloc.start()
    fit = kp.refine(Function(network), Ridge(lam), (X, y), start, structure="diagonal", max_passes=40)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert d == 20_000 and peak < 8 * d**2 / 10  # bytes: a tenth of the matrix
    problem = MatrixFreeProblem(
        Diagonal(), Function(network), kp.likelihoods.Gaussian(), Ridge(lam), ArraySource(X, y), None
    )
    first = problem.at(start)
    # A network with more parameters than rows takes hundreds of passes to its minimum, as with the dense refinement.
    assert fit.objective < 0.01 * first.objective and "max_passes=40" in fit.message
    assert fit.var.shape == (d,) and (fit.var > 0).all() and (fit.var <= fit.noise_var / lam).all()


@pytest.mark.slow
@pytest.mark.parametrize("penalty", ["ridge", None])
@pytest.mark.parametrize("order", ["C", "F"])
def test_classes_in_a_structure_have_contrasts_as_precise_as_without(penalty, order):
    """The rows know nothing of what is added to all classes: rounding is not to grow in that direction."""
    rng = np.random.default_rng(11)
    X = np.asarray(rng.standard_normal((600, 8)) @ (np.eye(8) + 0.3) + 2, order=order)
    y = (X @ rng.standard_normal((8, 3)) / 2 + rng.gumbel(size=(600, 3))).argmax(axis=1)
    expected = kp.KalproxClassifier(penalty=penalty).fit(X, y)
    found = kp.KalproxClassifier(penalty=penalty, structure="diagonal").fit(X, y)
    assert found.converged_
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, rtol=1e-9, atol=1e-9)
    assert abs(found.intercept_.sum()) < 1e-9


def test_a_lasso_that_ends_early_says_so_and_why():
    """Columns that nearly depend on each other stop conjugate gradients, and not the model or its derivative."""
    rng = np.random.default_rng(3)
    Z = rng.normal(size=(400, 3))
    X = Z @ rng.normal(size=(3, 30)) + 1e-3 * rng.normal(size=(400, 30))
    y = X[:, 0] - X[:, 1] + Z[:, 0] + 0.1 * rng.normal(size=400)

    def objective(model):
        return ((y - X @ model.coef_ - model.intercept_) ** 2).sum() / 2 + 0.3 * np.abs(model.coef_).sum()

    least = objective(kp.KalproxRegressor(penalty="l1", alpha=0.3).fit(X, y))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = kp.KalproxRegressor(penalty="l1", alpha=0.3, structure="diagonal").fit(X, y)
    if found.converged_:
        assert objective(found) <= least * (1 + 1e-9)
    else:
        assert any("conjugate gradients" in str(one.message) for one in said)
