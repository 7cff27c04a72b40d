"""The noise level, its degrees of freedom and the evidence, against statsmodels, SciPy and naive formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm
from laplace import covariance, dof
from scipy import integrate, special, stats

from kalprox import regularizers as rg
from kalprox.information import Information
from kalprox.likelihoods import Gaussian
from kalprox.noise import Noise, log_evidence, ridge_evidence_slopes, ridge_log_evidence
from kalprox.solvers.prox import prox

RNG = np.random.default_rng(0)
A_WIDE, A_TALL = RNG.normal(size=(3, 5)), RNG.normal(size=(7, 5))
REGULARIZERS = {
    "zero": rg.Zero(),
    "ridge": rg.Ridge(3.0),
    "quadratic": rg.Quadratic(A_WIDE),
    "smooth_l1": rg.SmoothL1(2.0, 0.3),
    "huber": rg.Huber(2.0, 0.3),
    "cauchy": rg.Cauchy(2.0, 0.5),
    "custom": rg.Custom(lambda t: (t**4).sum() + (t[0] - t[1]) ** 2),
    "l1": rg.L1(6.0),
    "elastic_net": rg.ElasticNet(6.0, 2.0),
    "group": rg.GroupL1(4.0, [0, 1, 0, 1, -1]),
    "box": rg.Box(-0.3, 0.8),
    "weighted": rg.Weighted(rg.Ridge(4.0), np.array([0.0, 1.0, 2.0, 3.0, 4.0])),
}


def interval(noise, mean, leverage, level=0.95):
    """The central interval for a new observation."""
    return Gaussian().predict(mean, leverage, noise).interval(level)


def rows(n=40, d=5, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ np.array([1.0, 0.0, -0.7, 0.05, 0.4])[:d] + 0.5 * rng.normal(size=n)


def hat_trace(X, g, theta):
    """trace((X'X + H)^-1 X'X) on the free coordinates, by the textbook formula."""
    free = np.asarray(g.free(theta))
    H = np.asarray(g.hessian(theta))
    H = (np.diag(H) if H.ndim == 1 else H)[np.ix_(free, free)]
    G = X[:, free].T @ X[:, free]
    return np.trace(np.linalg.solve(G + H, G))


@pytest.mark.parametrize("name", REGULARIZERS)
def test_effective_dof_is_the_trace_of_the_hat_matrix(name):
    X, y = rows()
    g = REGULARIZERS[name]
    info = Information.from_rows(X, y)
    theta = prox(info.R, info.z, g).theta
    assert dof(info.R, g, theta) == pytest.approx(hat_trace(X, g, theta), rel=1e-12)
    assert dof(X, g, theta) == pytest.approx(hat_trace(X, g, theta), rel=1e-12)  # any root will do


@pytest.mark.parametrize("name", REGULARIZERS)
def test_effective_dof_is_the_divergence_of_the_fit(name):
    """sum_i d(fit_i)/d(y_i): what degrees of freedom mean, found by moving each y."""
    X, y = rows()
    g, step = REGULARIZERS[name], 1e-5

    def fit(y):
        return X @ prox(X, y, g).theta

    divergence = sum((fit(y + e) - fit(y - e))[i] / (2 * step) for i, e in enumerate(step * np.eye(len(y))))
    theta = prox(X, y, g).theta
    # Each difference is good to (error of the fit, 1e-12) / step + step^2; there are 40 of them.
    assert dof(X, g, theta) == pytest.approx(divergence, abs=40 * (1e-12 / step))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ridge", "custom", "cauchy"])  # quadratic, dense, concave
def test_effective_dof_on_jax_arrays(name):
    X, y = rows()
    g = REGULARIZERS[name]
    theta = prox(X, y, g).theta
    expected = dof(X, g, theta)
    with jax.enable_x64(True):
        edf = jax.jit(lambda R, t: dof(R, g, t))(jnp.asarray(X), jnp.asarray(theta))
        assert edf.dtype == "float64"
        assert float(edf) == pytest.approx(expected, rel=1e-12)
        edf = jax.jit(lambda R, t: dof(R, g, t))(jnp.asarray(X, "float32"), jnp.asarray(theta, "float32"))
        assert edf.dtype == "float32"
        assert float(edf) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_effective_dof_over_a_batch_of_penalties():
    X, _ = rows()
    lams = np.array([0.0, 0.1, 10.0, 1e6])
    with jax.enable_x64(True):
        edf = jax.vmap(lambda lam: dof(jnp.asarray(X), rg.Ridge(lam), jnp.zeros(5)))(jnp.asarray(lams))
    s2 = np.linalg.svd(X, compute_uv=False) ** 2
    np.testing.assert_allclose(edf, [(s2 / (s2 + lam)).sum() for lam in lams], rtol=1e-11)


def test_effective_dof_counts_the_rank_whatever_the_units():
    X, _ = rows()
    X = np.column_stack([X, X[:, 0] + X[:, 1]])  # rank 5 of 6
    for scale in (np.ones(6), 10.0 ** np.array([-250, 8, -8, 0, 250, 3])):
        assert dof(X * scale, rg.Zero(), np.zeros(6)) == 5.0
        assert dof(X * scale, rg.L1(1.0), np.array([1.0, 1, 0, 0, 0, 1])) == 2.0
    X = np.vander(np.linspace(0, 1, 80), 10)  # condition 1e7: every direction is genuine
    assert dof(X, rg.Zero(), np.zeros(10)) == 10.0


def test_effective_dof_at_the_ends():
    X, _ = rows(n=3)
    zeros = np.zeros(5)
    assert dof(X, rg.Zero(), zeros) == 3.0  # fewer rows than coefficients
    assert dof(np.zeros((5, 5)), rg.Zero(), zeros) == 0.0
    assert dof(np.zeros((0, 5)), rg.Ridge(1.0), zeros) == 0.0
    assert dof(X, rg.L1(1.0), zeros) == 0.0
    # A ridge too weak to matter where there are data still decides where there are none.
    assert dof(X, rg.Ridge(1e-18), zeros) == pytest.approx(3.0, abs=1e-12)
    assert dof(X, rg.Ridge(1e18), zeros) == pytest.approx((X**2).sum() / 1e18, abs=1e-14)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("n", "d", "weighted"), [(12, 5, False), (200, 3, False), (40, 4, True)])
def test_without_a_penalty_it_is_statsmodels(n, d, intercept, weighted):
    rng = np.random.default_rng([n, d])
    X, new = rng.normal(size=(n, d)), rng.normal(size=(6, d))
    y = 2 + X @ rng.normal(size=d) + 3 * rng.normal(size=n)
    weights = rng.integers(0, 4, size=n) if weighted else np.ones(n, int)
    design = (lambda X: sm.add_constant(X, has_constant="add")) if intercept else (lambda X: X)
    truth = sm.OLS(np.repeat(y, weights), design(np.repeat(X, weights, axis=0))).fit()

    info = Information.from_rows(X, y, weights.astype(float))
    eq = info.centered() if intercept else info
    theta = eq.solve()
    noise = Noise.learned(eq.residual(theta), info.rows, dof(eq.R, rg.Zero(), theta) + intercept)
    centre = info.x_mean if intercept else np.zeros(d)
    V = covariance(eq.R, rg.Zero(), theta)
    leverage = np.einsum("ij,jk,ik->i", new - centre, V, new - centre) + intercept / info.rows
    mean = (new - centre) @ theta + (info.y_mean if intercept else 0)

    assert noise.dof == pytest.approx(truth.df_resid, rel=1e-14)
    assert noise.variance == pytest.approx(truth.scale, rel=1e-11)
    for level in (0.5, 0.95, 0.999):
        frame = truth.get_prediction(design(new)).summary_frame(alpha=1 - level)
        low, high = interval(noise, mean, leverage, level)
        np.testing.assert_allclose(low, frame["obs_ci_lower"], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(high, frame["obs_ci_upper"], rtol=1e-10, atol=1e-10)


def test_no_degrees_of_freedom_left_says_so():
    for n in (3, 5):
        X, y = rows(n=n)
        info = Information.from_rows(X, y)
        theta = info.solve()
        noise = Noise.learned(info.residual(theta), info.rows, dof(info.R, rg.Zero(), theta))
        assert np.isnan(noise.variance)
        assert "Add rows" in noise.reason
        assert np.isnan(interval(noise, 0.0, 0.1)).all()
    assert Noise.learned(1.0, 6, 5.0).reason == ""
    assert "check the rows" in Noise.learned(np.nan, 6, 5.0).reason
    assert "a minimum" in Noise.learned(1.0, 6, np.nan).reason
    # What rounding leaves of zero is zero; as with five rows for five coefficients.
    assert np.isnan(Noise.learned(1e-20, 5, 5 - 1e-15).variance)


def test_a_perfect_fit_has_no_noise():
    noise = Noise.learned(0.0, 10, 2.0)
    assert (noise.variance, noise.reason) == (0.0, "")
    assert interval(noise, 1.5, 0.2) == (1.5, 1.5)


def test_known_noise_has_normal_intervals():
    low, high = interval(Noise.known(4.0), np.array([1.0]), np.array([0.21]), 0.9)
    half = stats.norm.ppf(0.95) * 0.5 * 1.1
    np.testing.assert_allclose([low[0], high[0]], [1 - half, 1 + half], rtol=1e-13)
    with pytest.raises(ValueError, match="gamma"):
        Noise.known(0.0)


def test_a_batch_of_noises_in_float32():
    rss, mean = jnp.array([24.0, 6.0, 1.0]), jnp.zeros(4)
    edf = jnp.array([3.0, 5.0, 15.0])
    low, high = jax.jit(jax.vmap(lambda rss, edf: interval(Noise.learned(rss, 15, edf), mean, mean)))(rss, edf)
    expected = np.sqrt([24 / 12, 6 / 10]) * stats.t.ppf(0.975, [12, 10])
    np.testing.assert_allclose(high[:2, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(low[:2, 3], -expected, rtol=1e-6)
    assert low.dtype == jnp.float32
    assert np.isnan(high[2]).all()


QUADRATIC = {
    "ridge": rg.Ridge(0.7),
    "tall": rg.Quadratic(A_TALL),
    "scaled": rg.Ridge(np.array([1e-4, 1.0, 10, 1e3, 1e4])),
}


@pytest.mark.parametrize("name", QUADRATIC)
@pytest.mark.parametrize("n", [3, 5, 30])
def test_log_evidence_is_the_marginal_density(name, n):
    X, y = rows(n=n)
    g, gamma = QUADRATIC[name], 2.5
    A = g.root(5)
    marginal = (np.eye(n) + X @ np.linalg.solve(A.T @ A, X.T)) / gamma
    expected = stats.multivariate_normal.logpdf(y, cov=marginal)
    info = Information.from_rows(X, y)
    assert log_evidence(info.R, info.z, info.rss, info.rows, g, gamma) == pytest.approx(expected, rel=1e-10)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in (info.R, info.z, info.rss, info.rows)]
        traced = jax.jit(lambda *a: log_evidence(*a, g, gamma))(*arrays)
        assert float(traced) == pytest.approx(expected, rel=1e-10)


def test_log_evidence_with_repeated_rows_and_a_free_intercept():
    X, y = rows(n=12)
    weights = np.array([2.0, 1, 0, 3] * 3)
    info = Information.from_rows(X, y, weights)
    g, gamma = rg.Ridge(0.7), 0.8
    X, y = np.repeat(X, weights.astype(int), axis=0), np.repeat(y, weights.astype(int))
    cov = np.eye(len(y)) / gamma + X @ X.T / (0.7 * gamma)
    expected = stats.multivariate_normal.logpdf(y, cov=cov)
    assert log_evidence(info.R, info.z, info.rss, info.rows, g, gamma) == pytest.approx(expected, rel=1e-11)
    # The contrasts: all that y says besides its mean.
    C = np.linalg.svd(np.ones((1, len(y))))[2][1:]
    expected = stats.multivariate_normal.logpdf(C @ y, cov=C @ cov @ C.T)
    eq = info.centered()
    assert log_evidence(eq.R, eq.z, eq.rss, info.rows - 1, g, gamma) == pytest.approx(expected, rel=1e-11)


def test_log_evidence_with_the_noise_integrated_out():
    X, y = rows(n=20)
    info = Information.from_rows(X, y)
    args = (info.R, info.z, info.rss, info.rows, rg.Ridge(0.7))
    peak = log_evidence(*args, gamma=4.0)
    # p(gamma) = 1/gamma is flat in log gamma.
    area, _ = integrate.quad(
        lambda t: np.exp(log_evidence(*args, gamma=np.exp(t)) - peak), -8, 8, epsabs=0, epsrel=1e-12
    )
    assert log_evidence(*args) == pytest.approx(peak + np.log(area), rel=1e-11)


def test_evidence_prefers_the_prior_that_made_the_data():
    rng = np.random.default_rng(3)
    lams, wins = np.array([0.01, 1.0, 100.0]), 0
    for _ in range(40):
        X = rng.normal(size=(60, 20))
        y = X @ rng.normal(size=20) + rng.normal(size=60)
        info = Information.from_rows(X, y)
        wins += np.argmax([log_evidence(info.R, info.z, info.rss, info.rows, rg.Ridge(lam)) for lam in lams]) == 1
    assert wins == 40  # the others are a hundredfold away: tens of nats


@pytest.mark.parametrize(
    "g", [rg.Zero(), rg.Ridge(0.0), rg.Quadratic(A_WIDE), rg.Weighted(rg.Ridge(1.0), np.eye(5)[0])]
)
def test_log_evidence_refuses_an_improper_prior(g):
    X, y = rows()
    info = Information.from_rows(X, y)
    with pytest.raises(ValueError, match="proper prior"):
        log_evidence(info.R, info.z, info.rss, info.rows, g, 1.0)
    with pytest.raises(ValueError, match="quadratic"):
        log_evidence(info.R, info.z, info.rss, info.rows, rg.L1(1.0), 1.0)
    with jax.enable_x64(True):  # nothing can be raised there
        assert np.isnan(jax.jit(lambda lam: log_evidence(jnp.eye(2), jnp.ones(2), 0.0, 2, rg.Ridge(lam), 1.0))(0.0))


CELLS = [(0.1, 30, 5), (0.1, 100, 20), (1.0, 30, 5), (1.0, 100, 20), (1.0, 1000, 10), (5.0, 30, 5), (5.0, 1000, 20)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "ridge", "l1"])
def test_95_percent_intervals_cover_95_percent(kind):
    """200 data sets a cell, one new observation each; the noise level unknown."""
    datasets, hits = 200, []
    for sd, n, d in CELLS:
        inside, coverage = 0, np.empty(datasets)
        for seed in range(datasets):
            rng = np.random.default_rng([seed, n, d, int(10 * sd)])
            X, theta = rng.normal(size=(n, d)), rng.normal(size=d)
            if kind == "l1":
                theta[: d // 2] = 0
            y = 1 + X @ theta + sd * rng.normal(size=n)
            g = {"none": rg.Zero(), "ridge": rg.Ridge(1.0), "l1": rg.L1(sd * n**0.5)}[kind]
            info = Information.from_rows(X, y)
            eq = info.centered()
            t = prox(eq.R, eq.z, g).theta
            noise = Noise.learned(eq.residual(t), info.rows, dof(eq.R, g, t) + 1)
            x = rng.normal(size=d)
            c = x - info.x_mean
            low, high = interval(noise, info.y_mean + c @ t, 1 / info.rows + c @ covariance(eq.R, g, t) @ c)
            truth = 1 + x @ theta
            coverage[seed] = special.ndtr((high - truth) / sd) - special.ndtr((low - truth) / sd)
            inside += low <= truth + sd * rng.normal() <= high
        hits.append(inside)
        if kind == "none":  # exact there: the chance of a hit, averaged, is .95 to its own standard error
            assert abs(coverage.mean() - 0.95) < 4 * coverage.std() / datasets**0.5, (sd, n, d)
    # All cells of all three kinds inside with probability .99, were the intervals exact.
    low, high = stats.binom.interval(1 - 0.01 / (3 * len(CELLS)), datasets, 0.95)
    assert all(low <= inside <= high for inside in hits), dict(zip(CELLS, hits, strict=True))
    low, high = stats.binom.interval(0.99, datasets * len(CELLS), 0.95)
    assert low <= sum(hits) <= high


@pytest.mark.parametrize("gamma", [None, 1.7])
def test_the_slopes_of_the_ridge_evidence_are_its_derivatives(gamma):
    rng = np.random.default_rng(4)
    s, z, rss = rng.uniform(0.5, 4, 6), rng.normal(size=(6, 2)), np.array([3.0, 5.0])

    def value(u):
        return float(ridge_log_evidence(s, z, rss, 40.0, np.exp(u), gamma, 0.8).sum())

    u, h = 0.3, 1e-3
    ends = [value(u + k * h) for k in (-2, -1, 0, 1, 2)]
    slope = (ends[0] - 8 * ends[1] + 8 * ends[3] - ends[4]) / (12 * h)
    bend = (-ends[0] + 16 * ends[1] - 30 * ends[2] + 16 * ends[3] - ends[4]) / (12 * h**2)
    found = ridge_evidence_slopes(s, z, rss, 40.0, float(np.exp(u)), gamma, 0.8)
    np.testing.assert_allclose(found, [slope, bend], rtol=1e-7)  # what differences leave
