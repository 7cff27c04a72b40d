"""The paper's recursion against an oracle, against what it must equal, and the facts found out about it."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from data import behind_link

import kalprox as kp
from kalprox import models, regularizers
from kalprox.base.arrays import namespace, pytree
from kalprox.covariance import Diagonal, LowRank
from kalprox.likelihoods import Likelihood

D = 6
A = np.random.default_rng(7).normal(size=(4, D)) / 8
REGULARIZERS = {
    "zero": (regularizers.Zero(), oracle.zero()),
    "ridge": (regularizers.Ridge(0.02), oracle.ridge(0.02)),
    "quadratic": (regularizers.Quadratic(A), oracle.quadratic(A)),
    "smooth_l1": (regularizers.SmoothL1(0.01, 0.3), oracle.smooth_l1(0.01, 0.3)),
    "huber": (regularizers.Huber(0.02, 0.4), oracle.huber(0.02, 0.4)),
    "cauchy": (regularizers.Cauchy(0.01, 0.5), oracle.cauchy(0.01, 0.5)),
    "custom": (regularizers.Custom(lambda t: 0.01 / 4 * (t @ t) ** 2), oracle.quartic(0.01)),
}


def close(state, mean, V, rtol):
    assert np.abs(state.mean - mean).max() <= rtol * np.abs(mean).max()
    assert np.abs(state.cov() - V).max() <= rtol * np.abs(V).max()


@pytest.mark.slow
@pytest.mark.parametrize("q", [0.0, 1e-3], ids=["q=0", "q>0"])
@pytest.mark.parametrize("name", REGULARIZERS)
@pytest.mark.parametrize("link", oracle.LINKS)
def test_agrees_with_the_oracle_over_500_rows(link, name, q):
    X, y, _ = behind_link(link)
    g, reference = REGULARIZERS[name]
    alg = kp.pipg(models.GLM(link), g, gamma=1.5, q=q)
    out = kp.run(alg, alg.init(np.full(D, 0.1), 0.8), X, y)
    mean, V = oracle.pipg(link, reference, 1.5, q * np.eye(D), np.full(D, 0.1), 0.8 * np.eye(D), X, y)
    close(out.state, mean, V, 1e-9)


def test_takes_a_full_prior_covariance_and_a_full_process_noise():
    X, y, _ = behind_link("tanh")
    B = np.random.default_rng(1).normal(size=(D, D)) / 5
    V0, Q, mean0 = B @ B.T + 0.1 * np.eye(D), 1e-4 * (B @ B.T), np.linspace(-1, 1, D)
    alg = kp.pipg(models.GLM("tanh"), regularizers.Ridge(0.1), gamma=2.0, q=Q)
    out = kp.run(alg, alg.init(mean0, V0), X, y)
    close(out.state, *oracle.pipg("tanh", oracle.ridge(0.1), 2.0, Q, mean0, V0, X, y), 1e-9)


@pytest.mark.slow
def test_general_recursion_is_the_linear_quadratic_one_when_h_is_linear_and_g_quadratic():
    """Eqs. (KFMeanPred)-(KFCovUpdate), written out here for A = sqrt(lam) I."""
    X, y, _ = behind_link("identity")
    lam, gamma, theta, V = 0.05, 0.7, np.zeros(D), np.eye(D)
    for x, target in zip(X, y, strict=True):
        M = np.eye(D) - gamma * V * lam
        theta, V = M @ theta, M @ V @ M.T
        s = 1 / gamma + x @ V @ x
        theta, V = theta + V @ x * (target - x @ theta) / s, V - np.outer(V @ x, V @ x) / s
    for g in (regularizers.Ridge(lam), regularizers.Quadratic(np.sqrt(lam) * np.eye(D))):
        for h in (models.Linear(), models.GLM("identity"), models.Function(lambda theta, x: x @ theta)):
            alg = kp.pipg(h, g, gamma=gamma)
            close(kp.run(alg, alg.init(np.zeros(D), 1.0), X, y).state, theta, V, 1e-10)


def test_without_a_regulariser_it_is_the_exact_posterior_of_a_linear_model():
    X, y, _ = behind_link("identity")
    V0 = np.diag(np.linspace(0.5, 3, D))
    mean, V = oracle.posterior(X, y, 1.3, np.ones(D), V0)
    for alg in (kp.pipg(models.Linear(), regularizers.Zero(), gamma=1.3), kp.ipm(models.Linear(), gamma=1.3)):
        close(kp.run(alg, alg.init(np.ones(D), np.diagonal(V0)), X, y).state, mean, V, 1e-10)


def test_several_outputs_are_the_joint_update():
    B = np.random.default_rng(3).normal(size=(2, 3, D))
    h = models.Function(lambda theta, x: jnp.tanh(x @ theta))
    alg = kp.ipm(h, gamma=2.0)
    state = alg.init(np.full(D, 0.3), 0.5)
    y = np.array([0.1, 0.2, -0.3])
    got = alg.step(state, B[0], y)
    u = B[0] @ state.mean
    J = (1 - np.tanh(u) ** 2)[:, None] * B[0]
    V = 0.5 * np.eye(D)
    K = V @ J.T @ np.linalg.inv(J @ V @ J.T + np.eye(3) / 2)
    close(got, state.mean + K @ (y - np.tanh(u)), V - K @ J @ V, 1e-12)
    out = kp.run(alg, state, B, np.array([y, y]))
    close(out.state, (again := alg.step(got, B[1], y)).mean, again.cov(), 1e-12)


@pytest.mark.slow
def test_sweeps_by_vmap_over_gamma_lambda_v0_and_seeds():
    X, y, _ = behind_link("sigmoid", n=200)
    values = np.linspace(0.2, 0.9, 5)

    def last(gamma, lam, v0, X, y):
        alg = kp.pipg(models.GLM("sigmoid"), regularizers.SmoothL1(lam, 0.5), gamma=gamma)
        state = kp.run(alg, alg.init(jnp.zeros(D), v0), X, y).state
        return state.mean, state.cov()

    with jax.enable_x64(True):
        X2, y2 = np.stack([X] * 5), np.stack([y + i for i in range(5)])
        sweeps = {
            "gamma": (jax.vmap(lambda v: last(v, 0.01, 1.0, X, y))(values), lambda i: (values[i], 0.01, 1.0, X, y)),
            "lam": (jax.vmap(lambda v: last(1.0, v, 1.0, X, y))(values / 9), lambda i: (1.0, values[i] / 9, 1.0, X, y)),
            "v0": (jax.vmap(lambda v: last(1.0, 0.01, v, X, y))(values), lambda i: (1.0, 0.01, values[i], X, y)),
            "data": (jax.vmap(lambda X, y: last(1.0, 0.01, 1.0, X, y))(X2, y2), lambda i: (1.0, 0.01, 1.0, X, y2[i])),
        }
        for name, ((means, covs), arguments) in sweeps.items():
            for i in range(5):
                mean, cov = last(*arguments(i))
                np.testing.assert_allclose(means[i], mean, rtol=1e-9, atol=1e-12, err_msg=name)
                np.testing.assert_allclose(covs[i], cov, rtol=1e-9, atol=1e-12, err_msg=name)


def test_step_is_jittable_and_follows_float32():
    alg = kp.pipg(models.GLM("tanh"), regularizers.SmoothL1(np.float64(0.01), 0.1), gamma=np.float64(1.0), q=1e-4)
    state = alg.init(np.zeros(3, np.float32), 1.0)
    new = jax.jit(alg.step)(state, np.ones(3, np.float32), np.float32(0.5))
    assert new.mean.dtype == new.cov().dtype == np.float32
    eager = alg.step(state, np.ones(3, np.float32), np.float32(0.5))
    assert eager.mean.dtype == np.float32
    np.testing.assert_allclose(new.mean, eager.mean, rtol=1e-6)


@pytree
class Poisson(Likelihood):
    """Counts with the logarithm of their mean f: the loss is exp(f) - y f."""

    def loss(self, y, f):
        return namespace(f).exp(f) - y * f

    def expand(self, y, f):
        mean = namespace(f).exp(f)
        return mean - y, mean

    def predict(self, f, leverage, noise):
        raise NotImplementedError


def test_a_likelihood_is_expanded_to_second_order_at_every_row():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) / 2
    y = rng.poisson(np.exp(X @ [0.5, -0.3, 1.0])).astype(float)
    lam, gamma, theta, V = 0.01, 0.8, np.zeros(3), np.eye(3)
    for x, count in zip(X, y, strict=True):
        M = np.eye(3) - gamma * V * lam
        theta, V = M @ theta, M @ V @ M.T
        rate = np.exp(x @ theta)
        s = 1 / (gamma * rate) + x @ V @ x
        theta, V = theta + V @ x * (count / rate - 1) / s, V - np.outer(V @ x, V @ x) / s
    alg = kp.pipg(models.Linear(), regularizers.Ridge(lam), gamma=gamma, likelihood=Poisson())
    close(kp.run(alg, alg.init(np.zeros(3), 1.0), X, y).state, theta, V, 1e-10)
    several = kp.ipm(models.Function(lambda theta, x: x @ theta), gamma=gamma, likelihood=Poisson())
    state = several.init(np.zeros(3), 1.0)
    P = np.eye(3) + gamma * X[:5].T @ (np.exp(0) * X[:5])
    new = several.step(state, X[:5], y[:5])
    close(new, np.linalg.solve(P, gamma * X[:5].T @ (y[:5] - 1)), np.linalg.inv(P), 1e-12)
    sgd = kp.sgd(models.Linear(), regularizers.Zero(), alpha0=0.1, alpha1=0.0, likelihood=Poisson())
    mean = sgd.step(sgd.init(np.full(3, 0.2)), X[0], np.array(y[0])).mean
    np.testing.assert_allclose(mean, 0.2 + 0.1 * (y[0] - np.exp(0.2 * X[0].sum())) * X[0], rtol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(
    "v0", [0.7, Diagonal(np.full(D, 0.7)), LowRank.start(0.7, D, 3)], ids=["dense", "diagonal", "low_rank"]
)
@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_predictions_of_a_row_and_of_a_block(link, v0):
    X, y, _ = behind_link(link, n=40)
    gamma = 3.0
    alg = kp.pipg(models.GLM(link), regularizers.Ridge(0.01), gamma=gamma)
    state = kp.run(alg, alg.init(np.zeros(D), v0), X[:30], y[:30]).state
    h, dh = oracle.LINKS[link]
    u = X[30:] @ state.mean
    J = np.broadcast_to(dh(u), u.shape)[:, None] * X[30:]
    std = np.sqrt(1 / gamma + np.einsum("ij,jk,ik->i", J, state.cov(), J))
    block = alg.predict(state, X[30:])
    np.testing.assert_allclose(block.mean, h(u), rtol=1e-12)
    np.testing.assert_allclose(block.std, std, rtol=1e-11)
    assert block.dof == np.inf
    for i, x in enumerate(X[30:]):
        row = alg.predict(state, x)
        assert row.mean.shape == row.std.shape == ()
        np.testing.assert_allclose([row.mean, row.std], [h(u)[i], std[i]], rtol=1e-11)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(alg.predict)(state, X[30:]).std, std, rtol=1e-11)
    low, high = block.interval(0.95)
    np.testing.assert_allclose(high - low, 2 * 1.959963984540054 * std, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("xp", [np, pytest.param(jnp, marks=pytest.mark.slow)], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    "v0", [0.7, Diagonal(np.full(3, 0.7)), LowRank.start(0.7, 3, 2)], ids=lambda v: type(v).__name__
)
def test_jit_over_a_parameter_with_concrete_arrays_closed_over(xp, v0):
    with jax.enable_x64(True):
        x, y, mean = xp.asarray([1.0, 2.0, -0.5]), xp.asarray(0.5), xp.zeros(3)
        h = models.GLM("tanh")

        def pipg(lam):
            alg = kp.pipg(h, regularizers.SmoothL1(lam, 0.3), gamma=1.0, q=1e-3)
            return alg.step(alg.init(mean, v0), x, y)

        def ipm(gamma):
            alg = kp.ipm(h, gamma=gamma)
            return alg.step(alg.init(mean, v0), x, y)

        def sgd(alpha0):
            alg = kp.sgd(h, regularizers.Ridge(0.1), alpha0=alpha0, alpha1=0.0)
            return alg.step(alg.init(mean), x, y)

        def ipg(gamma):
            alg = kp.ipg(h, regularizers.Ridge(0.1), gamma=gamma)
            return alg.step(alg.init(mean), x, y)

        for step in (pipg, ipm, sgd, ipg) if v0 == 0.7 else (pipg, ipm):
            compiled, eager = jax.jit(step)(0.1), step(0.1)
            assert jax.tree.structure(compiled) == jax.tree.structure(eager)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15), compiled, eager)
        gradient = jax.grad(lambda lam: pipg(lam).mean.sum())(0.1)
        difference = (pipg(0.1 + 1e-6).mean.sum() - pipg(0.1 - 1e-6).mean.sum()) / 2e-6
        np.testing.assert_allclose(gradient, difference, rtol=1e-6, atol=1e-12)
        std = jax.jit(lambda gamma: kp.ipm(h, gamma=gamma).predict(kp.ipm(h, gamma=1.0).init(mean, v0), x).std)(4.0)
        np.testing.assert_allclose(std, (0.25 + 0.7 * (x @ x)) ** 0.5, rtol=1e-12)


# What was found out about the method, pinned (the docstring of `pipg` says the first two to the user).


def test_fact_it_settles_at_the_minimiser_of_sum_f_plus_n_g():
    X, y, _ = behind_link("identity", n=20_000, d=5)
    X = X * np.sqrt(5)
    alg = kp.pipg(models.Linear(), regularizers.Ridge(0.5), gamma=1.0)
    mean = kp.run(alg, alg.init(np.zeros(5), 0.5), X, y).state.mean
    n_g, once = oracle.ridge_solution(X, y, 0.5 * len(X)), oracle.ridge_solution(X, y, 0.5)
    assert np.linalg.norm(mean - n_g) < 0.02 * np.linalg.norm(n_g)
    assert np.linalg.norm(mean - once) > 0.3 * np.linalg.norm(once)


def test_fact_the_covariance_counts_the_curvature_of_g_twice():
    X, y, _ = behind_link("identity", n=4000)
    lam, gamma, v0 = 1e-3, 1.0, 1e-2
    alg = kp.pipg(models.Linear(), regularizers.Ridge(lam), gamma=gamma)
    P = np.linalg.inv(kp.run(alg, alg.init(np.zeros(D), v0), X, y).state.cov())
    g_part = P - gamma * X.T @ X - np.eye(D) / v0
    factor = np.diagonal(g_part) / (len(X) * gamma * lam)
    # second-order terms, gamma lam eig(V) < 1e-5 a row, leave the factor within 1e-4 of 2
    np.testing.assert_allclose(factor, 2.0, atol=1e-4)


def test_fact_at_one_it_freezes():
    alg = kp.pipg(models.Linear(), regularizers.Ridge(0.01), gamma=1.0)
    with pytest.warns(RuntimeWarning, match="freezes"):
        state = alg.init(np.ones(3), 100.0)
    X, y, _ = behind_link("identity", d=3)
    assert np.abs(kp.run(alg, state, X, y).state.mean).max() == 0


def test_fact_above_two_it_diverges():
    """The guard refuses the start; the recursion itself, started anyway, leaves the finite numbers."""
    alg = kp.pipg(models.Linear(), regularizers.Ridge(0.5), gamma=1.0)
    with pytest.raises(ValueError, match=r"lower v0, gamma or the regulariser's lam"):
        alg.init(np.ones(3), 100.0)
    state = kp.ipm(models.Linear(), gamma=1.0).init(np.ones(3), 100.0)
    with pytest.raises(FloatingPointError, match="no longer finite"):
        kp.run(alg, state, np.zeros((500, 3)), np.zeros(500))
