"""The proximal filter: the batch minimiser at any moment, its covariance, and a stream that cannot be poisoned."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, multivariate_normal
from sklearn.linear_model import ElasticNet as SklearnElasticNet

import kalprox as kp
from kalprox import models, regularizers
from kalprox.algorithms.state import WarmupCutShort
from kalprox.paper.problems import sparse

LINEAR = models.Linear()
GROUPS = np.array([0, 0, 1, 1])
EVERY_G = [
    regularizers.Zero(),
    regularizers.Ridge(0.7),
    regularizers.Quadratic(np.array([[1.0, -1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0]])),
    regularizers.SmoothL1(0.5, 0.2),
    regularizers.Huber(2.0, 0.3),
    regularizers.Custom(lambda t: 0.1 * (t @ t) ** 2),
    regularizers.L1(4.0),
    regularizers.ElasticNet(3.0, 0.5),
    regularizers.GroupL1(3.0, GROUPS),
    regularizers.Box(-0.5, 1.0),
    regularizers.Weighted(regularizers.L1(4.0), np.array([0.0, 1.0, 1.0, 2.0])),
]


def rows(n=60, d=4, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 0.5
    theta = rng.normal(size=d)
    return X, X @ theta + noise * rng.normal(size=n), theta


def streamed(alg, state, X, y, cuts, weights=None):
    for part in np.split(np.arange(len(y)), cuts):
        state = alg.step(state, X[part], y[part], None if weights is None else weights[part])
    return state


def scaled_difference(a, b, scale):
    return np.abs((a - b) / scale).max()


# -- linear h: exact ----------------------------------------------------------------------------------


@pytest.mark.parametrize("g", EVERY_G, ids=lambda g: type(g).__name__)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_order_any_blocks_any_moment(g, data):
    """Mean and covariance equal the one-block answer to 1e-9, relative to each coordinate's own spread."""
    n = data.draw(st.integers(12, 60))
    seed = data.draw(st.integers(0, 10**6))
    spread = 10.0 ** data.draw(st.integers(-4, 4)) if g.smooth and not isinstance(g, regularizers.Custom) else 1.0
    X, y, _ = rows(n, seed=seed)
    X = X * spread
    weights = data.draw(st.sampled_from([None, np.random.default_rng(seed).integers(0, 4, size=n).astype(float)]))
    order = np.random.default_rng(seed + 1).permutation(n)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=8)))
    alg = kp.proximal_filter(LINEAR, g, gamma=2.0)
    start = alg.init(np.zeros(4), 10.0)
    whole = alg.step(start, X, y, weights)
    parts = streamed(alg, start, X[order], y[order], cuts, None if weights is None else weights[order])
    repeated = weights if weights is None else weights.astype(int)
    twice = alg.step(start, *((X, y) if weights is None else (np.repeat(X, repeated, 0), np.repeat(y, repeated))))
    sd = np.sqrt(np.where(np.diag(whole.cov()) > 0, np.diag(whole.cov()), np.inf))
    size = np.maximum(np.abs(whole.mean), np.where(np.isinf(sd), 0, sd)) + 1e-300
    for other in (parts, twice):
        assert scaled_difference(other.mean, whole.mean, size) < 1e-9
        assert scaled_difference(other.cov(), whole.cov(), np.outer(sd, sd)) < 1e-9
        assert other.rows == whole.rows


@pytest.mark.parametrize("cuts", [[], [1, 2, 3], [10, 30], list(range(1, 60))], ids=len)
def test_ridge_is_the_closed_form_at_every_moment(cuts):
    X, y, _ = rows()
    alg = kp.proximal_filter(LINEAR, regularizers.Ridge(0.7), gamma=3.0)
    state = alg.init(np.zeros(4), None)
    seen = 0
    for part in np.split(np.arange(60), cuts):
        state = alg.step(state, X[part], y[part])
        seen += len(part)
        np.testing.assert_allclose(state.mean, oracle.ridge_solution(X[:seen], y[:seen], 0.7), rtol=1e-10)
        V = np.linalg.inv(X[:seen].T @ X[:seen] + 0.7 * np.eye(4)) / 3
        np.testing.assert_allclose(state.cov(), V, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("l1", "l2"), [(8.0, 0.0), (6.0, 3.0)])
def test_lasso_and_elastic_net_are_scikit_learns_at_every_moment_with_the_same_zeros(l1, l2):
    X, y, _ = rows(n=120, d=9, seed=3)
    alg = kp.proximal_filter(LINEAR, regularizers.ElasticNet(l1, l2), gamma=1.0)
    state = alg.init(np.zeros(9), None)
    zeros = 0
    for seen in range(20, 121, 20):
        state = alg.step(state, X[seen - 20 : seen], y[seen - 20 : seen])
        reference = SklearnElasticNet(
            alpha=(l1 + l2) / seen, l1_ratio=l1 / (l1 + l2), fit_intercept=False, tol=1e-14, max_iter=10**6
        ).fit(X[:seen], y[:seen])
        np.testing.assert_allclose(state.mean, reference.coef_, rtol=1e-8, atol=1e-10)
        np.testing.assert_array_equal(state.mean == 0, reference.coef_ == 0)
        zeros += np.sum(state.mean == 0)
    assert zeros > 0


def test_the_covariance_of_the_lasso_is_that_of_the_regression_on_its_columns():
    X, y, _ = rows(n=200, d=6, seed=1)
    alg = kp.proximal_filter(LINEAR, regularizers.L1(60.0), gamma=4.0)
    state = alg.step(alg.init(np.zeros(6), None), X, y)
    free = state.mean != 0
    assert 0 < free.sum() < 6
    expected = np.zeros((6, 6))
    expected[np.ix_(free, free)] = np.linalg.inv(X[:, free].T @ X[:, free]) / 4
    np.testing.assert_allclose(state.cov(), expected, rtol=1e-10, atol=1e-15)


def test_with_a_prior_and_no_g_it_is_the_kalman_filter():
    X, y, _ = rows()
    V0 = np.diag([0.5, 1.0, 2.0, 3.0]) + 0.1
    kalman = kp.ipm(LINEAR, gamma=2.5)
    expected = kp.run(kalman, kalman.init(np.ones(4), V0), X, y).state
    alg = kp.proximal_filter(LINEAR, regularizers.Zero(), gamma=2.5)
    state = streamed(alg, alg.init(np.ones(4), V0), X, y, [7, 20])
    np.testing.assert_allclose(state.mean, expected.mean, rtol=1e-10)
    np.testing.assert_allclose(state.cov(), expected.cov(), rtol=1e-9, atol=1e-14)


def test_before_any_row_it_knows_its_prior_and_without_one_nothing():
    alg = kp.proximal_filter(LINEAR, regularizers.Zero(), gamma=2.0)
    state = alg.init(np.array([1.0, 2.0]), 3.0)
    np.testing.assert_allclose(state.mean, [1.0, 2.0])
    np.testing.assert_allclose(state.cov(), 3 * np.eye(2), rtol=1e-14)
    nothing = alg.init(np.array([1.0, 2.0]), None)
    assert np.all(np.isinf(nothing.var()))
    assert np.isinf(nothing.predict(np.ones((1, 2))).std[0])


def test_undetermined_directions_have_minimum_norm_and_infinite_variance():
    X = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    alg = kp.proximal_filter(LINEAR, regularizers.Zero())
    state = alg.step(alg.init(np.zeros(3), None), X, np.array([2.0, 4.0, 5.0]))
    np.testing.assert_allclose(state.mean, [1.0, 1.0, 5.0], rtol=1e-12)
    assert np.isinf(state.var()).tolist() == [True, True, False]
    std = state.predict(np.array([[0.0, 0.0, 2.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])).std
    np.testing.assert_allclose(std[:2], np.sqrt([1 + 4, 1 + 1 / 5]), rtol=1e-12)  # the sum of the two is known
    assert np.isinf(std[2])


# -- forgetting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [[], [1, 2, 3], [10, 30], list(range(1, 40))], ids=len)
def test_forgetting_is_the_weighted_problem_for_any_blocks(cuts):
    X, y, _ = rows(n=40)
    rho, weights = 0.9, np.tile([1.0, 2.0, 0.0, 1.0], 10)
    repeated = np.repeat(np.arange(40), weights.astype(int))
    w = rho ** np.arange(len(repeated))[::-1]  # every repetition is a row of its own
    data, H = X[repeated].T @ (w[:, None] * X[repeated]), 0.7 * np.eye(4)
    A, c = data + H, (w**2).sum() / w.sum()
    expected = np.linalg.solve(A, X[repeated].T @ (w * y[repeated]))
    alg = kp.proximal_filter(LINEAR, regularizers.Ridge(0.7), forget=rho)
    state = streamed(alg, alg.init(np.zeros(4), None), X, y, cuts, weights)
    np.testing.assert_allclose(state.mean, expected, rtol=1e-10)
    # Of equally noisy rows, X'W^2X is about c X'WX.
    cov = np.linalg.inv(A) @ (c * data + H) @ np.linalg.inv(A)
    np.testing.assert_allclose(state.cov(), cov, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose([state.rows, state.data.squares], [w.sum(), (w**2).sum()], rtol=1e-12)


# -- noise, prediction, evidence ----------------------------------------------------------------------


def test_the_learned_noise_and_the_intervals_are_those_of_ordinary_least_squares():
    X, y, _ = rows(n=30)
    alg = kp.proximal_filter(LINEAR, regularizers.Zero(), gamma=None)
    state = streamed(alg, alg.init(np.zeros(4), None), X, y, [5, 17])
    ols = sm.OLS(y, X).fit()
    np.testing.assert_allclose(state.mean, ols.params, rtol=1e-10)
    np.testing.assert_allclose(np.sqrt(state.var()), ols.bse, rtol=1e-10)
    np.testing.assert_allclose(state.noise.variance, ols.scale, rtol=1e-10)
    new = np.random.default_rng(9).normal(size=(5, 4))
    expected = ols.get_prediction(new).conf_int(obs=True, alpha=0.1)
    np.testing.assert_allclose(np.stack(state.interval(new, 0.9), axis=1), expected, rtol=1e-9)


@pytest.mark.slow
def test_precision_weights_are_weighted_least_squares_on_numpy_and_jax():
    X, y, _ = rows(n=40)
    w = np.random.default_rng(1).uniform(0.1, 9, 40)
    w[7] = 0
    alg = kp.proximal_filter(LINEAR, regularizers.Zero(), gamma=None, weight_kind="precision")
    state = streamed(alg, alg.init(np.zeros(4), None), X, y, [5, 17], w)
    wls = sm.WLS(y[w > 0], X[w > 0], weights=w[w > 0]).fit()
    refined = kp.refine(LINEAR, regularizers.Zero(), (X, y, w), np.zeros(4), weight_kind="precision")
    for mean, cov, noise_var, dof in (
        (state.mean, state.cov(), state.noise.variance, state.noise.dof),
        (refined.mean, refined.cov, refined.noise_var, refined.dof),
    ):
        np.testing.assert_allclose(mean, wls.params, rtol=1e-10)
        np.testing.assert_allclose(cov, wls.cov_params(), rtol=1e-9)
        np.testing.assert_allclose([noise_var, dof], [wls.scale, wls.df_resid], rtol=1e-10)
    new, sigma = np.random.default_rng(9).normal(size=(5, 4)), np.linspace(0.5, 2, 5)
    expected = wls.get_prediction(new, weights=sigma**-2).conf_int(obs=True, alpha=0.1)
    np.testing.assert_allclose(np.stack(state.interval(new, 0.9, sigma), axis=1), expected, rtol=1e-9)
    with jax.enable_x64(True):
        step = jax.jit(alg.step)
        traced = alg.init(jnp.zeros(4), None)
        for part in np.split(np.arange(40), 4):
            traced = step(traced, jnp.asarray(X[part]), jnp.asarray(y[part]), jnp.asarray(w[part]))
        assert step._cache_size() == 2  # the first state holds Python numbers
        np.testing.assert_allclose(traced.cov(), wls.cov_params(), rtol=1e-9)
        np.testing.assert_allclose(
            traced.predict(jnp.asarray(new), jnp.asarray(sigma)).std, state.predict(new, sigma).std
        )
    with pytest.raises(ValueError, match="weight_kind must be"):
        kp.proximal_filter(LINEAR, regularizers.Zero(), weight_kind="sigma")


@pytest.mark.parametrize("noise", [0.1, 1.0, 5.0])
def test_predictive_intervals_cover_what_they_say(noise):
    """One new row for each of 200 data sets, 95% intervals, noise level unknown: inside 99.9% binomial bounds."""
    covered = 0
    for seed in range(200):
        X, y, _ = rows(n=31, seed=seed, noise=noise)
        alg = kp.proximal_filter(LINEAR, regularizers.Ridge(1e-2), gamma=None)
        state = alg.step(alg.init(np.zeros(4), None), X[:30], y[:30])
        low, high = state.interval(X[30:])
        covered += bool(low[0] <= y[30] <= high[0])
    few, many = binom.ppf([0.0005, 0.9995], 200, 0.95)
    assert few <= covered <= many


def test_a_prior_counts_in_the_degrees_of_freedom_as_a_ridge_would():
    X, y, _ = rows(n=20)
    prior = kp.proximal_filter(LINEAR, regularizers.Zero(), gamma=None)
    ridge = kp.proximal_filter(LINEAR, regularizers.Ridge(2.0), gamma=None)
    a = prior.step(prior.init(np.zeros(4), 0.5), X, y)
    b = ridge.step(ridge.init(np.zeros(4), None), X, y)
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-11)
    np.testing.assert_allclose(a.noise.variance, b.noise.variance, rtol=1e-11)
    np.testing.assert_allclose(a.cov(), b.cov(), rtol=1e-10, atol=1e-14)


def test_the_log_evidence_is_the_density_of_the_rows():
    X, y, _ = rows(n=12)
    alg = kp.proximal_filter(LINEAR, regularizers.Ridge(0.5), gamma=4.0)
    state = streamed(alg, alg.init(np.zeros(4), None), X, y, [3, 8])
    expected = multivariate_normal.logpdf(y, np.zeros(12), np.eye(12) / 4 + X @ X.T / (4 * 0.5))
    np.testing.assert_allclose(state.log_evidence(), expected, rtol=1e-11)
    with pytest.raises(ValueError, match="start with v0=None"):
        alg.init(np.zeros(4), 1.0).log_evidence()


# -- nothing breaks it ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda X, y: X.__setitem__((3, 1), np.nan), r"X must be finite; .* row\(s\): 3"),
        (lambda X, y: y.__setitem__(5, np.inf), r"y must be finite; .* row\(s\): 5"),
        (lambda X, y: X.__setitem__((slice(4, 7), 2), 1.7e308), r"too large for float64; row 4 has the largest"),
    ],
)
def test_a_bad_block_leaves_the_state_bit_for_bit_and_names_its_rows(spoil, message):
    X, y, _ = rows(n=20)
    alg = kp.proximal_filter(LINEAR, regularizers.Ridge(0.1))
    state = alg.step(alg.init(np.zeros(4), None), X[:10], y[:10])
    before = jax.tree.map(np.copy, state)
    X, y = X[10:].copy(), y[10:].copy()
    spoil(X, y)
    with pytest.raises(ValueError, match=message):
        alg.step(state, X, y)
    jax.tree.map(np.testing.assert_array_equal, state, before)


def test_under_jit_a_bad_block_leaves_the_state_bit_for_bit():
    X, y, _ = rows(n=20)
    alg = kp.proximal_filter(LINEAR, regularizers.Ridge(0.1))
    with jax.enable_x64(True):
        step = jax.jit(alg.step)
        state = step(alg.init(jnp.zeros(4), None), jnp.asarray(X[:10]), jnp.asarray(y[:10]))
        same = step(state, jnp.asarray(X[10:]).at[2, 1].set(jnp.nan), jnp.asarray(y[10:]))
        jax.tree.map(np.testing.assert_array_equal, same, state)


def test_rows_where_a_nonlinear_model_is_not_finite_are_named():
    h = models.Function(lambda theta, x: jnp.log(theta[0] - x))
    alg = kp.proximal_filter(h, regularizers.Ridge(0.1), warmup=0)
    state = alg.init(np.array([2.0]), 1.0)
    with pytest.raises(ValueError, match=r"no finite value or derivative .* row\(s\) 1 of the block"):
        alg.step(state, np.array([0.5, 3.0]), np.zeros(2))


def test_float32_on_near_collinear_columns_gives_the_answer_of_float64():
    """V0 = 1e6, noise variance 1e-4, two columns 1e-3 apart: Joseph's form loses definiteness here."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 5)).astype(np.float32)
    X[:, 1] = X[:, 0] + np.float32(1e-3) * X[:, 1]
    theta = np.array([1.0, -2.0, 0.5, 0.0, 1.0])
    y = (X.astype(float) @ theta + 0.01 * rng.normal(size=2000)).astype(np.float32)
    alg = kp.proximal_filter(LINEAR, regularizers.Zero(), gamma=1e4)
    single = streamed(alg, alg.init(np.zeros(5, np.float32), 1e6), X, y, range(10, 2000, 10))
    double = alg.step(alg.init(np.zeros(5), 1e6), X.astype(float), y.astype(float))
    assert single.mean.dtype == np.float32
    sd = np.sqrt(double.var())
    # a relative perturbation eps of the columns moves theta by condition * eps * |theta|, condition about 2e3
    assert np.abs(single.mean - double.mean).max() < 2e3 * np.finfo(np.float32).eps * np.abs(theta).max() * 10
    np.testing.assert_allclose(np.sqrt(single.var()), sd, rtol=2e3 * np.finfo(np.float32).eps * 10)
    assert np.linalg.eigvalsh(single.cov().astype(float)).min() > 0


# -- nonlinear h ----------------------------------------------------------------------------------------


def test_a_linear_model_taken_for_a_nonlinear_one_gives_the_same_mean_and_variance():
    """Iterated = single: the warm-up counts no row twice, however often it iterates."""
    X, y, _ = rows(n=300)
    for h in (models.GLM("identity"), models.Function(lambda theta, x: x @ theta)):
        for warmup in (0, 10**9):
            alg = kp.proximal_filter(h, regularizers.Ridge(0.7), gamma=2.0, warmup=warmup)
            state = streamed(alg, alg.init(np.zeros(4), 10.0), X, y, range(20, 300, 20))
            assert state.held is None
            V = np.linalg.inv(2 * X.T @ X + 0.1 * np.eye(4) + 2 * 0.7 * np.eye(4))
            np.testing.assert_allclose(state.cov(), V, rtol=1e-9, atol=1e-14)
            np.testing.assert_allclose(state.mean, 2 * V @ X.T @ y, rtol=1e-9)


def test_during_the_warm_up_the_answer_is_the_map_of_the_rows_held():
    X, y, _ = rows(n=25)
    y = np.tanh(y)
    h, g = models.GLM("tanh"), regularizers.Ridge(0.5)
    alg = kp.proximal_filter(h, g, gamma=4.0)
    state = streamed(alg, alg.init(np.zeros(4), None), X, y, [10])
    assert state.held is not None
    fit = kp.refine(h, g, (X, y), np.zeros(4), gamma=4.0)
    np.testing.assert_allclose(state.mean, fit.mean, rtol=1e-5)
    np.testing.assert_allclose(state.cov(), fit.cov, rtol=1e-4, atol=1e-8)


def test_the_warm_up_ends_by_itself_and_is_said_when_the_bound_cuts_it_short():
    X, y, _ = rows(n=2000, noise=0.1)
    y = np.tanh(y) + 0.3
    g = regularizers.Ridge(0.5)
    alg = kp.proximal_filter(models.GLM("tanh"), g)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = kp.run(alg, alg.init(np.zeros(4), None), X, y, record_every=100).state
    assert state.held is None
    short = kp.proximal_filter(models.GLM("tanh"), g, warmup=20 * 48)
    with pytest.warns(WarmupCutShort, match=r"cut short at 20 rows by its limit of 960 bytes.*Increase warmup"):
        state = short.step(short.init(np.zeros(4), None), X[:20], y[:20])
    assert state.held is None


def test_several_outputs_forget_by_row_not_by_output():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(30, 2, 3))
    theta = np.array([1.0, -1.0, 0.5])
    y = X @ theta + 0.1 * rng.normal(size=(30, 2))
    h = models.Function(lambda theta, x: x @ theta)
    w = np.repeat(0.9 ** np.arange(30)[::-1], 2)
    A = X.reshape(-1, 3).T @ (w[:, None] * X.reshape(-1, 3)) + 0.1 * np.eye(3)
    for warmup in (0, 10**9):
        alg = kp.proximal_filter(h, regularizers.Ridge(0.1), forget=0.9, warmup=warmup)
        state = streamed(alg, alg.init(np.zeros(3), None), X, y, [4, 11])
        np.testing.assert_allclose(state.mean, np.linalg.solve(A, X.reshape(-1, 3).T @ (w * y.ravel())), rtol=1e-6)


def stream_beside_batch(size, n, seed):
    """Relative errors of one streaming pass and of the minimiser, refined from the stream's answer and from 0."""
    X, y, theta = sparse(n, 50, size, seed)
    h, g = models.GLM("sigmoid"), regularizers.SmoothL1(1e-5, 0.1)
    alg = kp.proximal_filter(h, g)
    state = kp.run(alg, alg.init(np.zeros(50), None), X, y).state
    batch = kp.refine(h, g, (X, y), np.zeros(50), tol=1e-8)
    refined = kp.refine(h, g, (X, y), state.mean, tol=1e-8)
    assert batch.converged and refined.converged
    assert abs(refined.objective - batch.objective) <= 1e-6 * batch.objective
    np.testing.assert_allclose(refined.mean, batch.mean, atol=1e-6 * np.abs(batch.mean).max())
    inside = np.abs(refined.mean - theta) <= 2 * np.sqrt(np.diag(refined.cov))
    return np.linalg.norm(state.mean - theta) / np.linalg.norm(batch.mean - theta), inside


@pytest.mark.slow
def test_one_pass_over_the_papers_sigmoid_is_near_the_minimiser():
    ratio, _ = stream_beside_batch(1.0, 20_000, seed=0)
    assert ratio < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 3.0, 5.0])
def test_the_papers_sigmoid_over_two_seeds(size):
    """n = 100,000: one pass within 1.2 of the minimiser's error for sizes 1 and 3; refined, the same minimum."""
    results = [stream_beside_batch(size, 100_000, seed) for seed in range(2)]
    ratios = [ratio for ratio, _ in results]
    assert max(ratios) < (1.2 if size < 5 else 1.6), ratios


@pytest.mark.slow
def test_the_refined_sigmoid_is_covered_over_thirty_fits():
    """All taps pooled over 3 sizes x 10 seeds: within 93 to 97%."""
    inside = []
    for size in (1.0, 3.0, 5.0):
        for seed in range(10):
            X, y, theta = sparse(100_000, 50, size, seed)
            fit = kp.refine(models.GLM("sigmoid"), regularizers.SmoothL1(1e-5, 0.1), (X, y), np.zeros(50), tol=1e-6)
            inside.append(np.abs(fit.mean - theta) <= 2 * np.sqrt(np.diag(fit.cov)))
    assert 0.93 <= np.mean(inside) <= 0.97


# -- JAX, and runs ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_on_jax_arrays_it_compiles_and_sweeps_by_vmap():
    X, y, _ = rows()
    with jax.enable_x64(True):
        Xj, yj, lams = jnp.asarray(X), jnp.asarray(y), jnp.asarray([0.1, 1.0, 10.0])

        def fit(lam, X, y):
            alg = kp.proximal_filter(LINEAR, regularizers.SmoothL1(lam, 0.3), gamma=2.0)
            state = alg.step(alg.init(jnp.zeros(4), 5.0), X, y)
            return state.mean, state.cov()

        fleet = jax.vmap(fit, in_axes=(0, 0, 0))  # one filter for each lam and each set of rows
        means, covs = jax.jit(fleet)(lams, jnp.stack([Xj] * 3), jnp.stack([yj, yj, 2 * yj]))
    for i, lam in enumerate([0.1, 1.0, 10.0]):
        alg = kp.proximal_filter(LINEAR, regularizers.SmoothL1(lam, 0.3), gamma=2.0)
        state = alg.step(alg.init(np.zeros(4), 5.0), X, 2 * y if i == 2 else y)
        np.testing.assert_allclose(means[i], state.mean, rtol=1e-9)
        np.testing.assert_allclose(covs[i], state.cov(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("record_every", [7, 50, 1000])
def test_run_records_and_does_not_change_the_answer(record_every):
    X, y, _ = rows(n=120)
    alg = kp.proximal_filter(LINEAR, regularizers.Ridge(0.7))
    out = kp.run(alg, alg.init(np.zeros(4), None), X, y, record_every=record_every, record=lambda state: state.rows)
    assert out.trace.rows.tolist() == [*range(record_every, 120, record_every), 120]
    np.testing.assert_array_equal(out.trace.extra, out.trace.rows)
    for n, mean, var in zip(out.trace.rows, out.trace.mean, out.trace.var, strict=True):
        np.testing.assert_allclose(mean, oracle.ridge_solution(X[:n], y[:n], 0.7), rtol=1e-9)
        np.testing.assert_allclose(var, np.diag(np.linalg.inv(X[:n].T @ X[:n] + 0.7 * np.eye(4))), rtol=1e-9)


def test_run_refuses_a_second_pass_and_calibrates_a_first():
    X, y, _ = rows(n=3000, noise=2.0)
    alg = kp.proximal_filter(LINEAR, regularizers.Ridge(0.1), gamma=None)
    with pytest.raises(ValueError, match=r"rows would count twice; got 2\. Use refine"):
        kp.run(alg, alg.init(np.zeros(4), None), X, y, passes=2)
    out = kp.run(alg, alg.init(np.zeros(4), None), X, y, record_every=50, calibrate=True)
    assert out.calibration.rows + out.calibration.undetermined == 3000
    assert out.calibration.verdict().word == "calibrated"
    sure = kp.proximal_filter(LINEAR, regularizers.Ridge(0.1), gamma=1.0)
    out = kp.run(sure, sure.init(np.zeros(4), None), X, y, record_every=50, calibrate=True)
    assert out.calibration.verdict().word == "over-confident"
    sgd = kp.sgd(LINEAR, regularizers.Zero(), alpha0=0.1, alpha1=0.1)
    with pytest.raises(ValueError, match="calibrate"):
        kp.run(sgd, sgd.init(np.zeros(4)), X, y, calibrate=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": 0.0}, "gamma must be finite and > 0"),
        ({"forget": 0.0}, "forget must be finite and > 0"),
        ({"forget": 1.1}, "forget must be at most 1"),
        ({"warmup": -1}, "warmup must be a number of bytes >= 0"),
    ],
)
def test_guards(arguments, message):
    with pytest.raises(ValueError, match=message):
        kp.proximal_filter(LINEAR, regularizers.Zero(), **arguments)
