"""The minimisers and standard errors of every likelihood are those of scikit-learn and statsmodels."""

from itertools import pairwise

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import integrate, special, stats
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression, PoissonRegressor

import kalprox as kp
from kalprox.likelihoods import Bernoulli, Categorical, Huber, NegativeBinomial, Poisson, QuasiPoisson, Student
from kalprox.likelihoods.classes import mean_of_sigmoid


def counts(n=400, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, d))])
    return X, rng.negative_binomial(2, 2 / (2 + np.exp(X @ [0.5, 0.4, -0.3, 0.0]))).astype(float)


def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return np.column_stack([np.ones(len(y)), (X - X.mean(axis=0)) / X.std(axis=0)]), y.astype(float)


def free_intercept(d, lam):
    return kp.regularizers.Ridge(np.append(0.0, np.full(d - 1, lam)))


def test_logistic_regression_with_ridge_is_that_of_scikit_learn():
    X, y = cancer()
    fit = kp.refine(kp.models.Linear(), free_intercept(31, 2.0), (X, y), np.zeros(31), likelihood=Bernoulli())
    peer = LogisticRegression(C=0.5, solver="newton-cholesky", tol=1e-12).fit(X[:, 1:], y)
    assert fit.converged
    np.testing.assert_allclose(fit.mean, np.append(peer.intercept_, peer.coef_), rtol=1e-8, atol=1e-8)


def test_logistic_regression_has_the_standard_errors_of_statsmodels():
    X, y = cancer()
    X = X[:, [0, 2, 9, 10]]
    fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(4), likelihood=Bernoulli())
    peer = sm.Logit(y, X).fit(disp=0, method="newton", tol=1e-14)
    np.testing.assert_allclose(fit.mean, peer.params, rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.diag(fit.cov)), peer.bse, rtol=1e-8)
    assert fit.objective == pytest.approx(-peer.llf, rel=1e-12)


def test_poisson_regression_is_that_of_scikit_learn_and_statsmodels(monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")  # else joblib looks for the number of cores, and may warn
    X, y = counts()
    fit = kp.refine(kp.models.Linear(), free_intercept(4, 4.0), (X, y), np.zeros(4), likelihood=Poisson())
    peer = PoissonRegressor(alpha=4.0 / len(y), solver="newton-cholesky", tol=1e-14).fit(X[:, 1:], y)
    np.testing.assert_allclose(fit.mean, np.append(peer.intercept_, peer.coef_), rtol=1e-8, atol=1e-10)
    plain, quasi = (
        kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(4), likelihood=one)
        for one in (Poisson(), QuasiPoisson())
    )
    for found, scale in ((plain, None), (quasi, "X2")):
        peer = sm.GLM(y, X, family=sm.families.Poisson()).fit(tol=1e-14, scale=scale)
        np.testing.assert_allclose(found.mean, peer.params, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(np.sqrt(np.diag(found.cov)), peer.bse, rtol=1e-8)
    assert quasi.noise_var == pytest.approx(peer.scale, rel=1e-8) and quasi.noise_var > 1.5


def test_negative_binomial_regression_is_that_of_statsmodels():
    X, y = counts()
    fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(4), likelihood=NegativeBinomial(0.5))
    peer = sm.GLM(y, X, family=sm.families.NegativeBinomial(alpha=0.5)).fit(tol=1e-14)
    np.testing.assert_allclose(fit.mean, peer.params, rtol=1e-8, atol=1e-10)
    observed = np.linalg.inv(-peer.model.hessian(peer.params, scale=1.0, observed=True))
    np.testing.assert_allclose(fit.cov, observed, rtol=1e-7)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_dispersion_of_counts_is_that_of_statsmodels(seed):
    X, y = counts(seed=seed)
    fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(4), likelihood=NegativeBinomial())
    peer = sm.NegativeBinomial(y, X, loglike_method="nb2").fit(disp=0, method="newton", tol=1e-14, maxiter=500)
    assert fit.converged and fit.likelihood.dispersion == pytest.approx(peer.params[-1], rel=1e-6)
    np.testing.assert_allclose(fit.mean, peer.params[:-1], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.diag(fit.cov)), peer.bse[:-1], rtol=0.01)  # for a known dispersion


def test_a_dispersion_that_other_counts_leave_open_is_found_in_a_few_passes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 8))
    y = rng.poisson(np.exp(np.clip(X @ rng.normal(size=8), -5, 6))).astype(float)  # what is not linear looks dispersed
    X = np.column_stack([np.ones(2000), X])
    fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(9), likelihood=NegativeBinomial())
    assert fit.converged and fit.passes <= 50

    def log_likelihood(theta, log_dispersion):
        size = np.exp(-log_dispersion)
        return stats.nbinom.logpmf(y, size, size / (size + np.exp(X @ theta))).sum()

    best, h = (fit.mean, np.log(fit.likelihood.dispersion)), 1e-5
    slope = (log_likelihood(best[0], best[1] + h) - log_likelihood(best[0], best[1] - h)) / (2 * h)
    assert abs(slope) < 1e-5 < log_likelihood(*best) - log_likelihood(best[0], best[1] + 0.01)


def test_counts_without_dispersion_are_poisson():
    X, y = counts()
    y = np.round(np.exp(X @ [0.5, 0.4, -0.3, 0.0]))
    fit, plain = (
        kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(4), likelihood=one)
        for one in (NegativeBinomial(), Poisson())
    )
    assert fit.converged and fit.likelihood.dispersion == pytest.approx(1e-6)
    np.testing.assert_allclose(fit.mean, plain.mean, atol=1e-5)


def test_huber_is_the_m_estimate_of_statsmodels():
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    y = X @ [1.0, 2.0, -1.0] + rng.normal(size=300)
    y[::10] += 50
    peer = sm.RLM(y, X, M=sm.robust.norms.HuberT()).fit(tol=1e-14, maxiter=500)
    fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(3), likelihood=Huber(scale=peer.scale))
    np.testing.assert_allclose(fit.mean, peer.params, rtol=1e-8)


def test_student_finds_the_rows_that_do_not_lie():
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    clean = X @ [1.0, 2.0, -1.0] + rng.normal(size=300)
    y = np.where(np.arange(300) % 10 == 0, clean + 1e6, clean)
    start = np.append(np.median(y), np.zeros(2))
    fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), start, likelihood=Student())
    assert fit.converged and np.abs(fit.mean - [1.0, 2.0, -1.0]).max() < 4 / 300**0.5
    slope, _ = fit.likelihood.expand(y, X @ fit.mean)
    np.testing.assert_allclose(X.T @ slope, 0, atol=1e-6)


class Softmax(kp.models.Model):
    """f of shape (b, m) with a row of coefficients for each class."""

    def __init__(self, m):
        self.m = m

    def value(self, theta, x):
        return theta.reshape(self.m, -1) @ x

    def linearize(self, theta, x):
        raise NotImplementedError

    def linearize_rows(self, theta, X):
        D = np.einsum("bd,ck->bckd", X, np.eye(self.m))
        return X @ theta.reshape(self.m, -1).T, D.reshape(len(X), self.m, -1)


def test_multinomial_regression_is_that_of_scikit_learn_and_statsmodels():
    X, labels = load_iris(return_X_y=True)
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])
    y = np.eye(3)[labels]
    lam = np.tile(np.append(0.0, np.full(4, 1.0)), 3)
    lam[0] = 1e-9  # the sum of the intercepts is not determined; scikit-learn's is 0, too
    fit = kp.refine(Softmax(3), kp.regularizers.Ridge(lam), (X, y), np.zeros(15), likelihood=Categorical(), tol=1e-12)
    peer = LogisticRegression(C=1.0, tol=1e-12, solver="newton-cg", max_iter=10000).fit(X[:, 1:], labels)
    found = fit.mean.reshape(3, 5)
    np.testing.assert_allclose(found[:, 1:], peer.coef_, atol=1e-8)
    np.testing.assert_allclose(found[:, 0] - found[:, 0].mean(), peer.intercept_ - peer.intercept_.mean(), atol=1e-8)

    class Reference(Softmax):
        def linearize_rows(self, theta, X):
            f, D = super().linearize_rows(np.concatenate([np.zeros(X.shape[1]), theta]), X)
            return f, D[:, :, X.shape[1] :]

    X = X[:, [0, 2]]
    fit = kp.refine(Reference(3), kp.regularizers.Zero(), (X, y), np.zeros(4), likelihood=Categorical())
    peer = sm.MNLogit(labels, X).fit(disp=0, method="newton", tol=1e-14)
    np.testing.assert_allclose(fit.mean, peer.params.T.ravel(), rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.diag(fit.cov)), peer.bse.T.ravel(), rtol=1e-7)


@pytest.mark.parametrize("f", [-25.0, -3.0, 0.0, 1.0, 8.0])
@pytest.mark.parametrize("std", [0.0, 0.3, 1.4, 1.6, 5.0, 40.0])
def test_the_mean_of_the_sigmoid_is_its_integral(f, std):
    found = float(mean_of_sigmoid(np.array(f), np.array(std**2)))
    if std == 0:
        assert found == pytest.approx(special.expit(f), rel=1e-12)
        return
    edges = np.unique(np.clip([-12.0, -f / std - 8 / std, -f / std, -f / std + 8 / std, 12.0], -12, 12))
    density = lambda z: special.expit(f + std * z) * np.exp(-(z**2) / 2) / (2 * np.pi) ** 0.5  # noqa: E731
    expected = sum(integrate.quad(density, *ends, epsabs=1e-13)[0] for ends in pairwise(edges))
    assert found == pytest.approx(expected, abs=1e-7, rel=1e-5 if std <= 1.5 else 0)


def test_poisson_rows_one_by_one_and_in_blocks_end_near_the_estimate_and_predict():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(800), rng.normal(size=(800, 3))])
    y = rng.poisson(np.exp(X @ [1.0, 0.3, -0.4, 0.2])).astype(float)
    likelihood = Poisson()
    reference = sm.Poisson(y, X).fit(disp=0, method="newton", tol=1e-14)
    fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(4), likelihood=likelihood)
    assert fit.converged
    np.testing.assert_allclose(fit.mean, reference.params, rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.diagonal(fit.cov)), reference.bse, rtol=1e-8)
    recursion = kp.ipm(kp.models.Linear(), gamma=1.0, likelihood=likelihood)
    state = kp.run(recursion, recursion.init(np.zeros(4), 1.0), X, y).state
    stream = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Zero(), likelihood=likelihood)
    filtered = stream.init(np.zeros(4), None)
    for start in range(0, 800, 200):
        filtered = stream.step(filtered, X[start : start + 200], y[start : start + 200])
    off = [np.abs((mean - reference.params) / reference.bse).max() for mean in (state.mean, filtered.mean)]
    assert off[0] < 3 and off[1] < 0.1  # the recursion's first linearisations are far off; the filter's warm-up is not
    for predicted in (recursion.predict(state, X), filtered.predict(X)):
        inside = (predicted.quantile(0.05) <= y) & (y <= predicted.quantile(0.95))
        assert 0.9 <= inside.mean() <= 0.98  # counts are discrete: a little more than 0.9
        np.testing.assert_allclose(predicted.mean, np.exp(X @ reference.params), rtol=0.2)
        assert predicted.log_prob(y).mean() == pytest.approx(reference.llf / 800, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 40, 1000])
@pytest.mark.parametrize("kind", ["even", "rare", "counts", "dispersed"])
def test_a_shuffled_stream_ends_within_a_tenth_of_a_standard_error_of_the_batch(kind, length):
    rng, n = np.random.default_rng(3), 6000
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
    f = X @ [-4.0 if kind == "rare" else 0.3, 0.8, -0.5, 0.0]
    y, likelihood = {
        "even": lambda: (rng.random(n) < special.expit(f), Bernoulli()),
        "rare": lambda: (rng.random(n) < special.expit(f), Bernoulli()),
        "counts": lambda: (rng.poisson(np.exp(f)), Poisson()),
        "dispersed": lambda: (rng.negative_binomial(2, 2 / (2 + np.exp(f))), NegativeBinomial(0.5)),
    }[kind]()
    y, g = y.astype(float), kp.regularizers.Ridge(1.0)
    batch = kp.refine(kp.models.Linear(), g, (X, y), np.zeros(4), likelihood=likelihood)
    stream = kp.proximal_filter(kp.models.Linear(), g, likelihood=likelihood)
    state, start = stream.init(np.zeros(4)), 0
    while start < n:
        stop = start + (200 if length == 1 and start < 5800 else length)  # single rows at the end
        state, start = stream.step(state, X[start:stop], y[start:stop]), stop
    std = np.sqrt(np.diag(batch.cov))
    assert np.abs((state.mean - batch.mean) / std).max() < 0.1
    np.testing.assert_allclose(np.sqrt(state.var()), std, rtol=0.05)


@pytest.mark.slow  # numba compiles for 20 s
@pytest.mark.parametrize("lam", [3.0, 30.0])
def test_l1_logistic_regression_has_the_zeros_of_skglm(lam):
    X, y = cancer()
    X = np.asfortranarray(X[:, 1:])
    fit = kp.refine(kp.models.Linear(), kp.regularizers.L1(lam), (X, y), np.zeros(30), likelihood=Bernoulli())
    skglm = pytest.importorskip("skglm")  # here, since numba takes 100 MB
    peer = skglm.SparseLogisticRegression(alpha=lam / len(y), fit_intercept=False, tol=1e-12).fit(X, y)
    assert fit.converged and ((fit.mean == 0) == (peer.coef_[0] == 0)).all() and 0 < (fit.mean == 0).sum() < 30
    np.testing.assert_allclose(fit.mean, peer.coef_[0], atol=1e-7)
