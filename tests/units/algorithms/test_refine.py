"""Refinement: certified answers, optimality, invariances, and no datum counted twice."""

import jax
import jax.numpy as jnp
import nist
import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.special import expit

from kalprox.algorithms.descent import Problem
from kalprox.algorithms.refine import refine
from kalprox.information import Information
from kalprox.models import GLM, Function, Linear
from kalprox.regularizers import L1, Box, Quadratic, Ridge, SmoothL1, Zero
from kalprox.solvers.prox import prox
from kalprox.sources import ArraySource, Folded

# -- NIST's reference problems ------------------------------------------------------------------------

CERTIFIED = [
    pytest.param(name, start, id=f"{name}-{start + 1}", marks=[pytest.mark.slow] if start or name == "MGH10" else [])
    for name in nist.MODELS
    for start in (0, 1)  # the near one among the slow tests
]


@pytest.mark.parametrize(("name", "start"), CERTIFIED)
def test_nist(name, start):
    """Parameters, standard errors and residual deviation, from both of NIST's starts, the far one first.

    Certified values have eleven digits, and rounding theirs costs half of one: ten are asked for.
    """
    problem = nist.load(name)
    fit = refine(Function(problem.fn), Zero(), (problem.X, problem.y), problem.starts[start], max_passes=2000)
    assert fit.converged, fit.message
    assert nist.digits(fit.mean, problem.certified) > 10
    assert fit.dof == pytest.approx(problem.dof, abs=1e-9)
    # A residual is known to a few roundings of y, so Lanczos1, exact to 13 digits, has two left for its size.
    roundings = 10 * np.finfo(float).eps * np.linalg.norm(problem.y) / problem.rss**0.5
    least = min(9.5, -np.log10(roundings))
    assert nist.digits(np.sqrt(np.diag(fit.cov)), problem.std) > least
    assert nist.digits(np.array([fit.noise_var**0.5]), np.array([problem.residual_std])) > least


# -- hard families from far starts --------------------------------------------------------------------


def _rational(b, x):
    return (b[0] + b[1] * x) / (1 + b[2] * x + b[3] * x**2)


def _exponentials(b, x):
    return b[0] * jnp.exp(-b[1] * x) + b[2] * jnp.exp(-b[3] * x)


def _peaks(b, x):
    return b[0] * jnp.exp(-(((x - b[1]) / b[2]) ** 2)) + b[3] * jnp.exp(-(((x - b[4]) / b[5]) ** 2))


def _saturation(b, x):
    return b[0] * x ** b[2] / (b[1] ** b[2] + x ** b[2])


def _power(b, x):
    return b[0] * (x + b[1]) ** b[2]


def _badly_scaled(b, x):
    return 1e-8 * b[0] * jnp.exp(-1e8 * b[1] * x) + b[2]


FAMILIES = {  # fn, truth, a far start
    "rational": (_rational, [2.0, -0.7, 0.4, 0.3], [0.5, 0.5, 2.0, 2.0]),
    "exponentials": (_exponentials, [5.0, 0.3, 3.0, 2.0], [1.0, 0.05, 1.0, 6.0]),
    "peaks": (_peaks, [3.0, 2.0, 0.7, 2.0, 4.0, 1.2], [1.0, 1.2, 2.0, 1.0, 5.2, 0.5]),
    "saturation": (_saturation, [10.0, 1.5, 2.5], [100.0, 20.0, 1.0]),
    "power": (_power, [2.0, 0.5, -1.3], [50.0, 5.0, -0.1]),
    "badly scaled": (_badly_scaled, [3e8, 7e-9, 0.2], [1e9, 1e-7, 10.0]),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_exact_data_are_recovered_from_afar(family):
    fn, truth, start = FAMILIES[family]
    x = np.linspace(0.1, 6.0, 40)
    y = Function(fn).linearize_rows(np.array(truth), x)[0]
    fit = refine(Function(fn), Zero(), (x, y), np.array(start))
    assert fit.converged, fit.message
    assert nist.digits(fit.mean, np.array(truth)) > 8


@pytest.mark.parametrize("family", FAMILIES)
def test_noisy_data_reach_a_stationary_point_below_the_truth(family):
    """The residual is orthogonal to every column of J, and no worse than the truth's."""
    fn, truth, start = FAMILIES[family]
    x = np.linspace(0.1, 6.0, 40)
    y = Function(fn).linearize_rows(np.array(truth), x)[0]
    y = y + 0.02 * np.abs(y).max() * np.random.default_rng(3).standard_normal(40)
    fit = refine(Function(fn), Zero(), (x, y), np.array(start), max_passes=400)
    assert fit.converged, fit.message
    e, D = _residual(fn, fit.mean, x, y)
    assert 2 * fit.objective == pytest.approx(e @ e, rel=1e-13)
    assert e @ e < ((y - Function(fn).linearize_rows(np.array(truth), x)[0]) ** 2).sum()
    cosines = D.T @ e / np.linalg.norm(D, axis=0) / np.linalg.norm(e)
    assert np.abs(cosines).max() < 1e-9


def _residual(fn, theta, x, y):
    h, D = Function(fn).linearize_rows(theta, x)
    return y - h, D


def test_units_of_the_parameters_do_not_matter():
    """Powers of two scale without rounding, so the whole path is the same, pass by pass."""
    fn, _, start = FAMILIES["exponentials"]
    x, y = _noisy("exponentials")
    units = np.array([2.0**30, 2.0**-25, 2.0**-20, 2.0**27])
    fit = refine(Function(fn), Zero(), (x, y), np.array(start))
    scaled = refine(Function(lambda b, x: fn(b * jnp.asarray(units), x)), Zero(), (x, y), np.array(start) / units)
    assert scaled.passes == fit.passes
    np.testing.assert_allclose(scaled.mean * units, fit.mean, rtol=1e-11)
    np.testing.assert_allclose(scaled.cov * np.outer(units, units), fit.cov, rtol=1e-9)


def _noisy(family, n=40, seed=5, sd=0.05):
    fn, truth, _ = FAMILIES[family]
    x = np.linspace(0.1, 6.0, n)
    y = Function(fn).linearize_rows(np.array(truth), x)[0]
    return x, y + sd * np.random.default_rng(seed).standard_normal(n)


# -- exact where it must be ---------------------------------------------------------------------------


@pytest.mark.parametrize("regularizer", [Zero(), Ridge(2.5), Quadratic(np.diff(np.eye(6), axis=0))])
def test_a_linear_model_takes_one_pass_and_is_the_closed_form(regularizer):
    X, y, _ = _linear()
    A = np.asarray(regularizer.root(6))
    fit = refine(Linear(), regularizer, (X, y), np.full(6, 1e6))
    P = X.T @ X + A.T @ A
    mean = np.linalg.solve(P, X.T @ y)
    rss = ((y - X @ mean) ** 2).sum()
    dof = len(y) - np.trace(np.linalg.solve(P, X.T @ X))
    assert (fit.passes, fit.converged) == (1, True)
    np.testing.assert_allclose(fit.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(fit.dof, dof, rtol=1e-10)
    np.testing.assert_allclose(fit.noise_var, rss / dof, rtol=1e-10)
    np.testing.assert_allclose(fit.cov, rss / dof * np.linalg.inv(P), rtol=1e-9, atol=1e-12 * np.abs(fit.cov).max())
    # One pass knows the residuals from the triangle of [X y]: to rounding of y'y, not of their own sum.
    np.testing.assert_allclose(
        fit.objective, rss / 2 + ((A @ mean) ** 2).sum() / 2, rtol=0, atol=100 * np.finfo(float).eps * (y @ y)
    )


def _linear(n=60, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ np.diag([1.0, 10.0, 0.1, 1.0, 3.0, 1.0][:d])
    return X, X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(n), rng


def test_iterated_is_single_on_a_linear_problem():
    """The same linear model as a function is iterated; its variance must not shrink with the passes."""
    X, y, _ = _linear()
    once = refine(Linear(), Ridge(2.5), (X, y), np.zeros(6))
    iterated = refine(Function(lambda theta, x: x @ theta), Ridge(2.5), (X, y), np.full(6, 50.0))
    assert iterated.passes > 1
    np.testing.assert_allclose(iterated.mean, once.mean, rtol=1e-10)
    np.testing.assert_allclose(iterated.cov, once.cov, rtol=1e-9, atol=1e-12 * once.cov.max())
    assert iterated.information.rows == once.information.rows == 60


@pytest.mark.parametrize("regularizer", [Ridge(0.5), SmoothL1(0.3, 0.2)])
def test_covariance_is_the_inverse_of_the_curvature_at_the_mean(regularizer):
    x, y = _noisy("rational")
    fn, _, start = FAMILIES["rational"]
    fit = refine(Function(fn), regularizer, (x, y), np.array(start))
    e, D = _residual(fn, fit.mean, x, y)
    H = np.diag(regularizer.hessian(fit.mean))
    dof = len(y) - np.trace(np.linalg.solve(D.T @ D + H, D.T @ D))
    np.testing.assert_allclose(fit.dof, dof, rtol=1e-10)
    np.testing.assert_allclose(fit.noise_var, e @ e / dof, rtol=1e-10)
    np.testing.assert_allclose(fit.cov, e @ e / dof * np.linalg.inv(D.T @ D + H), rtol=1e-8)
    np.testing.assert_allclose(D.T @ e, regularizer.grad(fit.mean), atol=1e-9 * np.linalg.norm(D) * np.linalg.norm(e))


def test_known_noise_scales_the_covariance_only():
    x, y = _noisy("rational")
    fn, _, start = FAMILIES["rational"]
    learned = refine(Function(fn), Ridge(0.5), (x, y), np.array(start))
    known = refine(Function(fn), Ridge(0.5), (x, y), np.array(start), gamma=16.0)
    assert known.noise_var == 1 / 16
    np.testing.assert_array_equal(known.mean, learned.mean)
    np.testing.assert_allclose(known.cov, learned.cov / learned.noise_var / 16, rtol=1e-12)
    assert known.dof == learned.dof


def test_the_information_is_about_theta():
    """Its least squares plus g has its minimum at the mean, and its residual there is the rows' own."""
    x, y = _noisy("rational")
    fn, _, start = FAMILIES["rational"]
    fit = refine(Function(fn), Ridge(0.5), (x, y), np.array(start))
    e, D = _residual(fn, fit.mean, x, y)
    np.testing.assert_allclose(prox(fit.information.R, fit.information.z, Ridge(0.5)).theta, fit.mean, rtol=1e-9)
    np.testing.assert_allclose(fit.information.residual(fit.mean), e @ e, rtol=1e-12)
    np.testing.assert_allclose(fit.information.precision(), D.T @ D, rtol=1e-11)
    assert fit.information.rows == len(y)


@pytest.mark.parametrize("model", [Linear(), Function(lambda theta, x: x @ theta)])
def test_a_prior_is_a_penalty_that_is_no_rows(model):
    """||root (theta - mean)||^2 of prior and Quadratic g together, against the closed form; data counted alone."""
    X, y, rng = _linear()
    root, center = rng.standard_normal((6, 6)), rng.standard_normal(6)
    A = np.diff(np.eye(6), axis=0)
    fit = refine(model, Quadratic(A), (X, y), np.zeros(6), prior=Information.from_prior(center, root))
    P = X.T @ X + root.T @ root + A.T @ A
    mean = np.linalg.solve(P, X.T @ y + root.T @ root @ center)
    rss = ((y - X @ mean) ** 2).sum()
    dof = len(y) - np.trace(np.linalg.solve(P, X.T @ X))
    np.testing.assert_allclose(fit.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(fit.dof, dof, rtol=1e-10)
    np.testing.assert_allclose(fit.cov, rss / dof * np.linalg.inv(P), rtol=1e-9, atol=1e-12 * fit.cov.max())
    whole = rss + ((root @ (mean - center)) ** 2).sum() + ((A @ mean) ** 2).sum()
    np.testing.assert_allclose(fit.objective, whole / 2, rtol=1e-10)
    np.testing.assert_allclose(fit.information.precision(), X.T @ X, rtol=1e-10, atol=1e-10)


# -- rows, blocks, weights, outputs -------------------------------------------------------------------


def test_weights_are_repetitions_and_weight_zero_is_no_row():
    x, y = _noisy("rational")
    fn, _, start = FAMILIES["rational"]
    weights = np.random.default_rng(0).integers(0, 4, len(y)).astype(float)
    assert (weights == 0).any()
    spoiled_x, spoiled_y = np.where(weights > 0, x, np.nan), np.where(weights > 0, y, np.inf)
    weighted = refine(Function(fn), Ridge(0.1), (spoiled_x, spoiled_y, weights), np.array(start))
    times = weights.astype(int)
    repeated = refine(Function(fn), Ridge(0.1), (np.repeat(x, times), np.repeat(y, times)), np.array(start))
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-10)
    np.testing.assert_allclose(weighted.cov, repeated.cov, rtol=1e-8)
    assert weighted.dof == pytest.approx(repeated.dof, rel=1e-10)


@pytest.mark.parametrize("block", [1, 7, 39, 40, 1000])
def test_blocks_do_not_matter(block):
    x, y = _noisy("rational")
    fn, _, start = FAMILIES["rational"]
    whole = refine(Function(fn), Ridge(0.1), (x, y), np.array(start))
    blocks = refine(Function(fn), Ridge(0.1), ArraySource(x, y, block_rows=block), np.array(start))
    np.testing.assert_allclose(blocks.mean, whole.mean, rtol=1e-10)
    np.testing.assert_allclose(blocks.cov, whole.cov, rtol=1e-8)


def test_vector_outputs_are_scalar_rows():
    x, y = _noisy("rational")
    fn, _, start = FAMILIES["rational"]
    pairs = Function(lambda b, x: jnp.stack([fn(b, x[0]), fn(b, x[1])]))
    weights = np.linspace(0.5, 2.0, 20)
    scalar = refine(Function(fn), Ridge(0.1), (x, y, np.repeat(weights, 2)), np.array(start))
    vector = refine(pairs, Ridge(0.1), (x.reshape(20, 2), y.reshape(20, 2), weights), np.array(start))
    np.testing.assert_allclose(vector.mean, scalar.mean, rtol=1e-10)
    np.testing.assert_allclose(vector.cov, scalar.cov, rtol=1e-8)
    assert vector.dof == pytest.approx(scalar.dof, rel=1e-10)


class Counted:
    """A source of another kind: two shards, summed in the other order, that counts its passes."""

    def __init__(self, x, y, weights=()):
        parts = [(x, y, weights) if len(weights) else (x, y)] * 2
        self.shards = [ArraySource(*(a[i::2] for a in arrays)) for i, arrays in enumerate(parts)]
        self.passes = 0

    def fold(self, part):
        self.passes += 1
        first, second = self.shards[1].fold(part), self.shards[0].fold(part)
        return Folded(first.total + second.total, first.counts + second.counts)


def test_any_source_with_a_sum_will_do_and_every_pass_is_counted():
    x, y = _noisy("exponentials")
    fn, _, start = FAMILIES["exponentials"]
    source = Counted(x, y)
    fit = refine(Function(fn), Zero(), source, np.array(start))
    assert source.passes == fit.passes
    np.testing.assert_allclose(fit.mean, refine(Function(fn), Zero(), (x, y), np.array(start)).mean, rtol=1e-9)


# -- JAX arrays and float32 ---------------------------------------------------------------------------


@pytest.mark.slow
def test_jax_arrays_give_the_answer_of_numpy_arrays():
    X, y, _ = _sigmoid(1.0, 500, seed=0, d=5)
    expected = refine(GLM("sigmoid"), Ridge(1.0), (X, y), np.zeros(5))
    with jax.enable_x64(True):
        fit = refine(GLM("sigmoid"), Ridge(1.0), (jnp.asarray(X), jnp.asarray(y)), np.zeros(5))
        assert isinstance(fit.information.T, jax.Array)
        np.testing.assert_allclose(fit.mean, expected.mean, rtol=1e-9)
        np.testing.assert_allclose(fit.cov, expected.cov, rtol=1e-8, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("xp", [np, jnp])
def test_float32_gives_the_answer_of_float64(xp):
    X, y, _ = _sigmoid(1.0, 500, seed=0, d=5)
    expected = refine(GLM("sigmoid"), Ridge(1.0), (X, y), np.zeros(5))
    fit = refine(GLM("sigmoid"), Ridge(1.0), (xp.asarray(X, "f4"), xp.asarray(y, "f4")), np.zeros(5, "f4"), tol=1e-4)
    assert fit.converged, fit.message
    assert fit.mean.dtype == np.float32
    np.testing.assert_allclose(fit.mean, expected.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fit.cov, expected.cov, rtol=1e-3, atol=1e-5)


# -- the paper's sigmoid, smooth and not --------------------------------------------------------------


def _sigmoid(size, n, seed, d=50):
    """Rows [x_{k-d+1} .. x_k] of an AR(0.8) input, circulant; five taps of one size; noise variance 1."""
    rng = np.random.default_rng(seed)
    x = np.zeros(n)
    for k, drive in enumerate(rng.standard_normal(n)):
        x[k] = 0.8 * x[k - 1] * (k > 0) + drive
    X = x[(np.arange(n)[:, None] + np.arange(d)[None] - (d - 1)) % n]
    theta = np.zeros(d)
    theta[np.linspace(0, d - 1, 5).astype(int)] = size * np.array([1, -1, 1, -1, 1])
    return X, 1 / (1 + np.exp(-X @ theta)) + rng.standard_normal(n), theta


def _smooth_l1_as_residuals(X, y, lam, delta):
    """(1) as a sum of squares for an independent solver: r_i = u sqrt(2 lam / (1 + sqrt(1 + u^2)))."""

    def residuals(theta):
        u = theta / delta
        return np.concatenate([expit(X @ theta) - y, u * np.sqrt(2 * lam / (1 + np.sqrt(1 + u**2)))])

    def jacobian(theta):
        h, u = expit(X @ theta), theta / delta
        q = np.sqrt(1 + u**2)
        slope = np.sqrt(2 * lam / (1 + q)) * (1 - u**2 / (2 * q * (1 + q))) / delta
        return np.concatenate([(h * (1 - h))[:, None] * X, np.diag(slope)])

    return residuals, jacobian


@pytest.mark.slow
@pytest.mark.parametrize(("size", "n"), [(1.0, 5_000), (3.0, 20_000)])
def test_the_papers_sigmoid_reaches_an_independent_minimum(size, n):
    X, y, _ = _sigmoid(size, n, seed=1)
    fit = refine(GLM("sigmoid"), SmoothL1(1e-5, 0.1), (X, y), np.zeros(50))
    residuals, jacobian = _smooth_l1_as_residuals(X, y, 1e-5, 0.1)
    other = least_squares(residuals, np.zeros(50), jacobian, xtol=1e-15, ftol=1e-15, gtol=1e-12, max_nfev=300)
    assert fit.converged, fit.message
    assert fit.passes <= 60
    assert fit.objective == pytest.approx(other.cost, rel=1e-11)
    gradient = jacobian(fit.mean).T @ residuals(fit.mean)
    scale = np.linalg.norm(jacobian(fit.mean), axis=0) * np.linalg.norm(residuals(fit.mean))
    assert np.abs(gradient / scale).max() < 1e-12


def test_one_pass_for_the_hessian_saves_several(monkeypatch):
    X, y, _ = _sigmoid(1.0, 20_000, seed=2)
    fit = refine(GLM("sigmoid"), Ridge(1.0), (X, y), np.zeros(50))
    monkeypatch.setattr(Problem, "curvature_left_out", lambda *_: None)
    slow = refine(GLM("sigmoid"), Ridge(1.0), (X, y), np.zeros(50))
    assert fit.converged and slow.converged
    assert fit.passes <= slow.passes - 3
    np.testing.assert_allclose(fit.mean, slow.mean, atol=1e-9 * np.abs(slow.mean).max())


def _many(n=8 * 16384):
    rng = np.random.default_rng(3)
    X, theta = rng.standard_normal((n, 4)), np.array([2.0, -1.0, 0.5, 0.0])
    return X, expit(X @ theta) + 0.3 * rng.standard_normal(n)


@pytest.mark.parametrize("weights", [None, 1.5])
def test_very_many_rows_start_from_a_sample(weights):
    X, y = _many()
    rows = (X, y) if weights is None else (X, y, np.full(len(y), weights))
    fit = refine(GLM("sigmoid"), L1(3.0), rows, np.zeros(4))
    few = refine(GLM("sigmoid"), L1(3.0), Counted(X, y, rows[2:] and rows[2]), np.zeros(4))  # which has no sample
    assert fit.converged and few.converged
    assert fit.passes <= few.passes - 3
    np.testing.assert_allclose(fit.mean, few.mean, atol=1e-10)
    np.testing.assert_allclose(fit.cov, few.cov, rtol=1e-8)
    assert fit.dof == pytest.approx(few.dof)


def test_a_good_start_is_better_than_a_sample():
    X, y = _many()
    best = refine(GLM("sigmoid"), Zero(), (X, y), np.zeros(4)).mean
    again = refine(GLM("sigmoid"), Zero(), (X, y), best * (1 + 1e-9))
    assert again.converged and again.passes <= 3
    np.testing.assert_allclose(again.mean, best, rtol=1e-10)


def test_a_sample_that_leads_nowhere_is_not_the_start():
    """Rows that only a few of all say anything about: the sample has none of them, and its objective is flat."""
    X, y = _many()
    X[:], y[:] = 0.0, 0.0
    at = np.arange(7, len(y), len(y) // 40)
    X[at] = np.random.default_rng(0).standard_normal((len(at), 4))
    y[at] = expit(X[at] @ np.ones(4))
    fit = refine(GLM("sigmoid"), Zero(), (X, y), np.zeros(4))
    assert fit.converged, fit.message
    np.testing.assert_allclose(fit.mean, np.ones(4), atol=1e-6)


@pytest.mark.parametrize("regularizer", [Zero(), Ridge(1.0), L1(1.0)])
def test_residuals_so_large_that_undamped_steps_lead_away(regularizer):
    """Targets four times beyond tanh's reach: the neglected curvature outweighs J'J, and still (1) is minimised."""
    X = np.random.default_rng(0).standard_normal((100, 3))
    y = 4 * X.sum(axis=1)
    fit = refine(GLM("tanh"), regularizer, (X, y), np.zeros(3))
    assert fit.converged, fit.message
    h = np.tanh(X @ fit.mean)
    D = (1 - h**2)[:, None] * X
    gradient = D.T @ (h - y) + regularizer.grad(fit.mean)
    assert np.abs(gradient).max() < 1e-11 * np.linalg.norm(D) * np.linalg.norm(y)


@pytest.mark.slow
def test_the_papers_sigmoid_is_covered():
    """+-2 sigma, noise level learned, covers 93 to 97% of all taps: 3 sizes, 10 seeds, 50 taps, 100,000 rows."""
    inside = []
    for size in (1.0, 3.0, 5.0):
        for seed in range(10):
            X, y, theta = _sigmoid(size, 100_000, seed)
            fit = refine(GLM("sigmoid"), SmoothL1(1e-5, 0.1), (X, y), np.zeros(50), tol=1e-6)
            assert fit.converged, fit.message
            inside.append(np.abs(fit.mean - theta) < 2 * np.sqrt(np.diag(fit.cov)))
    assert 0.93 <= np.mean(inside) <= 0.97


def test_l1_is_stationary_with_exact_zeros():
    X, y, _ = _sigmoid(2.0, 4_000, seed=2, d=20)
    lam = 25.0
    fit = refine(GLM("sigmoid"), L1(lam), (X, y), np.zeros(20))
    assert fit.converged, fit.message
    h = expit(X @ fit.mean)
    slope = X.T @ ((h * (1 - h)) * (y - h))
    zero = fit.mean == 0
    assert 3 <= zero.sum() <= 17
    assert np.abs(slope[zero]).max() < lam
    np.testing.assert_allclose(slope[~zero], lam * np.sign(fit.mean[~zero]), rtol=1e-8)
    assert not fit.cov[zero].any()
    assert not fit.cov[:, zero].any()
    D = ((h * (1 - h))[:, None] * X)[:, ~zero]
    assert fit.dof == pytest.approx(len(y) - (~zero).sum())
    np.testing.assert_allclose(fit.cov[np.ix_(~zero, ~zero)] / fit.noise_var, np.linalg.inv(D.T @ D), rtol=1e-8)


def test_bounds_are_kept_and_met_exactly():
    x, y = _noisy("exponentials")
    fn, _, _ = FAMILIES["exponentials"]
    low, high = np.array([0.0, 0.0, 0.0, 1.0]), np.array([np.inf, 0.9, np.inf, 1.5])  # the rates are 0.3 and 2
    fit = refine(Function(fn), Box(low, high), (x, y), np.array([1.0, 0.05, 1.0, 1.2]))
    assert fit.converged, fit.message
    assert fit.mean[3] == 1.5
    e, D = _residual(fn, fit.mean, x, y)
    cosines = D.T @ e / np.linalg.norm(D, axis=0) / np.linalg.norm(e)
    assert np.abs(cosines[:3]).max() < 1e-9
    assert cosines[3] > 1e-3  # it would go on


# -- stops, and what cannot be done -------------------------------------------------------------------


def test_it_says_when_the_passes_ran_out():
    problem = nist.load("MGH10")
    fit = refine(Function(problem.fn), Zero(), (problem.X, problem.y), problem.starts[0], max_passes=20)
    assert not fit.converged
    assert fit.passes == 20
    assert "max_passes=20" in fit.message


def test_it_says_when_no_step_descends():
    """A derivative of the wrong sign sends every step uphill: nothing is accepted, and nothing claimed."""
    wrong = Function(lambda b, x: 2 * jax.lax.stop_gradient(b[0] * x) - b[0] * x)
    x = np.linspace(1.0, 2.0, 9)
    fit = refine(wrong, Zero(), (x, 3 * x), np.array([1.0]))
    assert not fit.converged
    assert "no step decreases the objective" in fit.message
    np.testing.assert_array_equal(fit.mean, [1.0])


@pytest.mark.parametrize("passes", [1, 2, 3, 5, 8])
def test_more_passes_are_never_worse(passes):
    """Only descent is accepted, whenever it is cut short; the covariance is of the point it stopped at."""
    problem = nist.load("Misra1a")
    source, start = (problem.X, problem.y), problem.starts[0]
    fit = refine(Function(problem.fn), Zero(), source, start, max_passes=passes)
    more = refine(Function(problem.fn), Zero(), source, start, max_passes=passes + 1)
    assert fit.passes <= passes
    assert more.objective <= fit.objective
    e, D = _residual(problem.fn, fit.mean, *source)
    assert 2 * fit.objective == pytest.approx(e @ e, rel=1e-13)
    np.testing.assert_allclose(fit.information.precision(), D.T @ D, rtol=1e-10)


def test_a_start_where_the_model_is_not_finite_is_refused_by_row():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match=r"2 row\(s\): 2, 3\. Change start"):
        refine(Function(lambda b, x: jnp.log(b[0] - x)), Zero(), ArraySource(x, x, block_rows=3), np.array([2.5]))


def test_a_trial_that_is_not_finite_is_refused_and_nothing_is_warned_of():
    """From here the first steps of exp overflow, in NumPy: the fit goes round them."""
    X = np.linspace(0.0, 100.0, 50)[:, None]
    y = np.exp(0.1 * X[:, 0])
    fit = refine(GLM("exp"), Zero(), (X, y), np.array([-0.5]))
    assert fit.converged, fit.message
    np.testing.assert_allclose(fit.mean, 0.1, rtol=1e-10)


def test_no_degrees_of_freedom_left_is_said():
    x = np.array([1.0, 2.0])
    fit = refine(Function(lambda b, x: b[0] / (1 + b[1] * x)), Zero(), (x, 3 / (1 + 2 * x)), np.array([1.0, 1.0]))
    np.testing.assert_allclose(fit.mean, [3.0, 2.0], rtol=1e-9)
    assert np.isnan(fit.noise_var)
    assert "noise" in fit.message


def test_an_undetermined_parameter_stays_at_its_start_with_infinite_variance():
    x, y = _noisy("rational")
    fn, _, start = FAMILIES["rational"]
    free = refine(Function(lambda b, x: fn(b, x) + 0 * b[4]), Zero(), (x, y), np.array([*start, 7.0]))
    alone = refine(Function(fn), Zero(), (x, y), np.array(start))
    assert free.converged, free.message
    np.testing.assert_allclose(free.mean, [*alone.mean, 7.0], rtol=1e-9)
    assert free.cov[4, 4] == np.inf
    np.testing.assert_allclose(free.cov[:4, :4], alone.cov, rtol=1e-8)
    assert free.dof == pytest.approx(alone.dof)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"start": np.array([1, 2, 3, 4])}, TypeError, "start must have a floating dtype"),
        ({"start": np.ones((2, 2))}, ValueError, "start must be a vector"),
        ({"start": np.array([1.0, np.nan, 1.0, 1.0])}, ValueError, "start must be finite"),
        ({"gamma": 0.0}, ValueError, "gamma must be finite and > 0"),
        ({"tol": -1.0}, ValueError, "tol must be finite and > 0"),
        ({"max_passes": 0}, ValueError, "max_passes must be at least 1"),
        ({"source": (np.ones(3), np.ones(4))}, ValueError, "one row per observation"),
        ({"source": (np.ones(3), np.ones(3), np.ones(2))}, ValueError, "weights must have shape"),
        ({"source": (np.ones(3), np.ones(3), -np.ones(3))}, ValueError, "weights must be finite and >= 0"),
        ({"source": (np.ones(3), np.ones(3), np.zeros(3))}, ValueError, "at least one row of positive weight"),
        ({"source": (np.ones(3), np.ones(3, int))}, TypeError, "y must have a floating dtype"),
        ({"source": (np.ones(3), np.array([1.0, np.nan, 2.0]))}, ValueError, r"1 row\(s\): 1"),
        ({"source": (np.ones(3), np.ones((3, 2)))}, ValueError, "shape of the model's output"),
        ({"regularizer": Box(5.0, 6.0)}, ValueError, "start must lie where g is finite"),
    ],
)
def test_bad_arguments_are_named(change, error, words):
    fn, _, start = FAMILIES["rational"]
    x, y = _noisy("rational")
    arguments = {"regularizer": Zero(), "source": (x, y), "start": np.array(start)} | change
    with pytest.raises(error, match=words):
        refine(Function(fn), **arguments)


# -- what is not convergence ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [20.0, 40.0, 800.0])
def test_a_plateau_is_not_convergence(size):
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(200), rng.normal(size=(200, 2))])
    y = 1 / (1 + np.exp(-X @ [0.0, 1.0, -1.0])) + 0.1 * rng.normal(size=200)
    fit = refine(GLM("sigmoid"), Zero(), (X, y), np.array([size, 0.0, 0.0]))
    assert not fit.converged
    assert "plateau" in fit.message and "Choose another start" in fit.message


@pytest.mark.parametrize("link", ["sigmoid", "tanh"])
def test_a_separable_problem_is_not_convergence(link):
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = np.where(X[:, 0] > 0, 1.0, 0.0 if link == "sigmoid" else -1.0)
    fit = refine(GLM(link), Zero(), (X, y), np.zeros(2))
    assert not fit.converged
    assert "runs to infinity" in fit.message and "Add a penalty" in fit.message
    assert refine(GLM(link), Ridge(0.1), (X, y), np.zeros(2)).converged
