"""IPM, IPG and SGD: what each must equal, and the proximal step against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from data import behind_link

import kalprox as kp
from kalprox import models, regularizers
from kalprox.covariance import Dense
from kalprox.paper.pipg import exact_prox


def spd(d, seed):
    B = np.random.default_rng(seed).normal(size=(d, d))
    return B @ B.T / d + 0.2 * np.eye(d)


@pytest.mark.parametrize("seed", range(5))
def test_the_kalman_mean_is_the_proximal_step(seed):
    """Optimality of prox_{gamma f, V}(theta): -gamma x (y - x't) + V^-1 (t - theta) = 0."""
    rng = np.random.default_rng(seed)
    d, gamma = 4, 0.8
    V, theta, x, y = spd(d, seed), rng.normal(size=d), rng.normal(size=d), rng.normal()
    alg = kp.ipm(models.Linear(), gamma=gamma)
    t = alg.step(alg.init(theta, V), x, np.array(y)).mean
    residual = -gamma * x * (y - x @ t) + np.linalg.solve(V, t - theta)
    assert np.abs(residual).max() < 1e-12
    np.testing.assert_allclose(exact_prox(models.Linear(), gamma, theta, Dense(V), x, np.array(y)), t, rtol=1e-12)


@pytest.mark.parametrize("link", models.LINKS)
@pytest.mark.parametrize("seed", range(5))
def test_the_exact_prox_is_stationary_and_no_point_on_a_fine_grid_is_better(link, seed):
    rng = np.random.default_rng(seed)
    d, gamma = 4, rng.uniform(0.1, 5)
    V, theta, x = 3 * spd(d, seed), rng.normal(size=d), rng.normal(size=d)
    y = np.array(rng.normal(scale=2))
    model = models.GLM(link)
    t = exact_prox(model, gamma, theta, Dense(V), x, y)
    h, slope = model.link(x @ t)
    residual = t - theta - gamma * V @ x * (y - h) * slope
    assert np.abs(residual).max() < 1e-12 * max(1, np.abs(t).max(), np.abs(V @ x).max())
    u, s = x @ theta, x @ V @ x

    def phi(a):
        return gamma / 2 * (y - oracle.LINKS[link][0](a)) ** 2 + (a - u) ** 2 / (2 * s)

    reach = np.sqrt(s * gamma) * abs(y - oracle.LINKS[link][0](u))
    assert phi(x @ t) <= phi(np.linspace(u - reach, u + reach, 100_001)).min() + 1e-12


def test_the_exact_prox_on_identity_by_search_equals_the_closed_form_and_compiles():
    V, x, theta, y = spd(3, 0), np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.1, -1.0]), np.array(2.0)
    closed = exact_prox(models.Linear(), 0.7, theta, Dense(V), x, y)
    searched = exact_prox(models.GLM("identity"), 0.7, theta, Dense(V), x, y)
    np.testing.assert_allclose(searched, closed, rtol=1e-13)
    with jax.enable_x64(True):
        compiled = jax.jit(exact_prox)(models.GLM("identity"), 0.7, *jax.tree.map(jnp.asarray, (theta, Dense(V), x, y)))
    np.testing.assert_allclose(compiled, closed, rtol=1e-13)


def test_the_exact_prox_of_a_zero_row_stays():
    theta = np.array([1.0, 2.0])
    t = exact_prox(models.GLM("sigmoid"), 1.0, theta, Dense(np.eye(2)), np.zeros(2), np.array(3.0))
    np.testing.assert_array_equal(t, theta)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_ipg_is_variable_metric_ipg_with_the_identity(link):
    X, y, _ = behind_link(link, n=200)
    g, h = regularizers.Ridge(0.01), models.GLM(link)
    means = []
    for metric in (None, 1.0, np.ones(6), np.eye(6), lambda k: jnp.eye(6)):
        alg = kp.ipg(h, g, gamma=0.5, metric=metric)
        means.append(kp.run(alg, alg.init(np.zeros(6)), X, y).state.mean)
    for mean in means[1:]:
        np.testing.assert_allclose(mean, means[0], rtol=1e-11)


def test_ipg_with_decay_against_its_formula():
    X, y, _ = behind_link("identity", n=300)
    theta, lam, gamma = np.zeros(6), 0.05, 0.4
    for k, (x, target) in enumerate(zip(X, y, strict=True), start=1):
        step = gamma / k**0.51
        theta = theta - step * lam * theta
        theta = theta + x * (target - x @ theta) / (1 / step + x @ x)
    alg = kp.ipg(models.Linear(), regularizers.Ridge(lam), gamma=gamma)
    out = kp.run(alg, alg.init(np.zeros(6)), X, y)
    np.testing.assert_allclose(out.state.mean, theta, rtol=1e-11)
    assert out.state.rows == 300


def test_variable_metric_ipg_in_the_kalman_metrics_is_the_kalman_filter():
    """Eq. (IPM): with V_{k-1} from (KalmanUpdateCov) as the metric and g = 0, IPG is IPM."""
    X, y, _ = behind_link("identity", n=60)
    kalman = kp.ipm(models.Linear(), gamma=0.9)
    state = kalman.init(np.zeros(6), 2.0)
    metrics = [state.cov()]
    for x, target in zip(X, y, strict=True):
        state = kalman.step(state, x, target)
        metrics.append(state.cov())
    with jax.enable_x64(True):
        stacked = jnp.asarray(np.array(metrics))
        alg = kp.ipg(models.Linear(), regularizers.Zero(), gamma=0.9, decay=0.0, metric=lambda k: stacked[k - 1])
        out = kp.run(alg, alg.init(jnp.zeros(6)), X, y)
    np.testing.assert_allclose(out.state.mean, state.mean, rtol=1e-10)


def test_ipg_runs_on_the_sigmoid_and_learns():
    X, y, theta = behind_link("sigmoid", n=20_000, noise=0.1)
    alg = kp.ipg(models.GLM("sigmoid"), regularizers.Zero(), gamma=20.0)
    mean = kp.run(alg, alg.init(np.zeros(6)), X, y).state.mean
    assert np.linalg.norm(mean - theta) < 0.2 * np.linalg.norm(theta)


def test_ipm_on_a_nonlinear_model_is_the_ekf_and_gains_from_more_passes():
    X, y, _ = behind_link("tanh", n=500, noise=0.05)
    alg = kp.ipm(models.GLM("tanh"), gamma=1.0)
    once, thrice = (kp.run(alg, alg.init(np.zeros(6), 10.0), X, y, passes=p) for p in (1, 3))
    mean, V = oracle.pipg("tanh", oracle.zero(), 1.0, 0 * np.eye(6), np.zeros(6), 10 * np.eye(6), X, y)
    np.testing.assert_allclose(once.state.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(once.state.cov(), V, rtol=1e-8, atol=1e-12)

    def objective(t):
        return ((y - np.tanh(X @ t)) ** 2).sum()

    assert objective(thrice.state.mean) < objective(once.state.mean)
    assert thrice.trace.rows[-1] == 1500


def test_sgd_against_its_formula():
    X, y, _ = behind_link("sigmoid", n=300)
    theta = np.zeros(6)
    for k, (x, target) in enumerate(zip(X, y, strict=True), start=1):
        s = 1 / (1 + np.exp(-x @ theta))
        theta = theta - 1.0 / (1 + 0.01 * k) * (0.02 * theta - (target - s) * s * (1 - s) * x)
    alg = kp.sgd(models.GLM("sigmoid"), regularizers.Ridge(0.02), alpha0=1.0, alpha1=0.01)
    np.testing.assert_allclose(kp.run(alg, alg.init(np.zeros(6)), X, y).state.mean, theta, rtol=1e-11)


def test_every_algorithm_keeps_the_contract():
    """init, step and predict are pure, swap for one another, cross jit, and give NumPy for NumPy."""
    h, g = models.GLM("tanh"), regularizers.Ridge(0.01)
    algorithms = [
        kp.pipg(h, g, gamma=1.0),
        kp.ipm(h, gamma=1.0),
        kp.ipg(h, g, gamma=1.0),
        kp.sgd(h, g, alpha0=0.1, alpha1=0.0),
    ]
    x, y = np.array([1.0, 2.0]), np.array(0.5)
    for alg in algorithms:
        state = alg.init(np.zeros(2), 1.0)
        before = jax.tree.map(np.copy, state)
        new = alg.step(state, x, y)
        jax.tree.map(np.testing.assert_array_equal, state, before)
        assert isinstance(new.mean, np.ndarray) and new.mean.dtype == np.float64
        with jax.enable_x64(True):
            np.testing.assert_allclose(jax.jit(alg.step)(state, x, y).mean, new.mean, rtol=1e-13)
        predicted = alg.predict(new, x)
        np.testing.assert_allclose(predicted.mean, np.tanh(x @ new.mean), rtol=1e-13)
        assert predicted.std.dtype == np.float64 and np.isfinite(predicted.std) == hasattr(new, "var")
