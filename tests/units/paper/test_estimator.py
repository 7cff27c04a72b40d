"""PIPGRegressor: the recursion of the paper as a scikit-learn estimator."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import kalprox as kp
from kalprox.paper import PIPGRegressor
from kalprox.regularizers import Ridge, SmoothL1


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    X = np.round(rng.normal(size=(30, 3)) * 2 + 1, 3)
    f = 0.5 + X @ [0.3, -0.2, 0.1]
    y = np.round(f + 0.1 * rng.normal(size=30), 4)
    return X, y, np.round(1 / (1 + np.exp(-f)) + 0.05 * rng.normal(size=30), 4).clip(0.01, 0.99)


@pytest.mark.slow
@parametrize_with_checks([PIPGRegressor(), PIPGRegressor(Ridge(1e-3), q=1e-4, fit_intercept=False)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_it_is_the_recursion_of_pipg(rows, link):
    X, y = rows[0], rows[2 if link == "sigmoid" else 1]
    g, noise, v0, q = SmoothL1(0.01, 0.5), 0.25, 0.5, 1e-4
    model = PIPGRegressor(g, link=link, noise=noise, v0=v0, q=q, fit_intercept=False)
    model.partial_fit(X[:11], y[:11]).partial_fit(X[11:], y[11:])
    alg = kp.pipg(kp.models.GLM(link), g, gamma=1 / noise, q=q)
    state = alg.init(np.zeros(3), v0)
    for x, target in zip(X, y, strict=True):
        state = alg.step(state, x, target)
    np.testing.assert_allclose(model.coef_, state.mean, rtol=1e-12)
    np.testing.assert_allclose(model.covariance_, state.cov(), rtol=1e-10, atol=1e-15)
    predicted = alg.predict(state, X)
    np.testing.assert_allclose(model.predict(X, return_std=True), [predicted.mean, predicted.std], rtol=1e-12)


def test_it_is_the_kalman_filter_of_the_linear_quadratic_case(rows):
    X, y, _ = rows
    noise, v0, lam = 0.25, 0.5, 0.01
    model = PIPGRegressor(Ridge(lam), noise=noise, v0=v0, fit_intercept=False).fit(X, y)
    theta, V = np.zeros(3), v0 * np.eye(3)
    for x, target in zip(X, y, strict=True):  # eqs. (KFMeanPred) to (KFCovUpdate)
        M = np.eye(3) - V * lam / noise
        theta, V = M @ theta, M @ V @ M.T
        K = V @ x / (noise + x @ V @ x)
        theta, V = theta + K * (target - x @ theta), V - np.outer(K, x @ V)
    np.testing.assert_allclose(model.coef_, theta, rtol=1e-9)
    np.testing.assert_allclose(model.coef_std_**2, np.diag(V), rtol=1e-8)
    std = model.predict(X[:3], return_std=True)[1]
    np.testing.assert_allclose(std, np.sqrt(noise + np.einsum("ij,jk,ik->i", X[:3], V, X[:3])), rtol=1e-9)


BEFORE = {  # what KalproxRegressor(method="paper") gave: coefficients, intercept, standard errors, means and their std
    "ridge": (
        [0.3011038225261005, -0.19851793105994958, 0.10449851777361965],
        0.47834532583093387,
        [0.07776838512559273, 0.07138043057966234, 0.07564940001902161],
        [0.6763974397831567, 0.5105104858393723],
        [0.7452763007205914, 0.7438571697052274],
    ),
    "smooth": (
        [0.2972807603684944, -0.19502406733795602, 0.1037389725794163],
        0.4769499841728554,
        [0.06362672050253484, 0.0595804080054963, 0.06139901357187537],
        [0.6711677951580206, 0.5125829232557699],
        [0.5367318297367586, 0.534296736114814],
    ),
    "sigmoid": (
        [0.3025476457538124, -0.23577039428591892, 0.1153096175611693],
        0.582029740916235,
        [0.04978311652777959, 0.04588106676254367, 0.05006457835181875],
        [0.6997435736877793, 0.6243707330154412],
        [0.10530484901124058, 0.10546166670493641],
    ),
}


@pytest.mark.parametrize("name", BEFORE)
def test_the_numbers_are_those_that_method_paper_gave(rows, name):
    X, y, s = rows
    model, target = {
        "ridge": (PIPGRegressor(Ridge(0.01), noise=0.5), y),
        "smooth": (PIPGRegressor(SmoothL1(0.01, 0.5), noise=0.25, v0=0.5, q=1e-4), y),
        "sigmoid": (PIPGRegressor(link="sigmoid", noise=0.01, v0=0.3, q=1e-5), s),
    }[name]
    model.partial_fit(X[:10], target[:10]).partial_fit(X[10:], target[10:])
    found = model.coef_, model.intercept_, model.coef_std_, *model.predict(X[:2], return_std=True)
    for value, before in zip(found, BEFORE[name], strict=True):
        np.testing.assert_allclose(value, before, rtol=1e-12)


def test_without_a_regularizer_a_linear_model_has_the_posterior(rows):
    X, y, _ = rows
    model = PIPGRegressor(noise=0.5, v0=10.0, fit_intercept=False).fit(X, y)
    V = np.linalg.inv(X.T @ X / 0.5 + np.eye(3) / 10)
    np.testing.assert_allclose(model.coef_, V @ X.T @ y / 0.5, rtol=1e-10)
    np.testing.assert_allclose(model.covariance_, V, rtol=1e-9, atol=1e-14)


def test_an_error_changes_nothing(rows):
    X, y, _ = rows
    model = PIPGRegressor(link="exp", noise=1e-3).fit(0.1 * X, y)
    before = model.predict(0.1 * X, return_std=True)
    for learn in (model.partial_fit, model.fit):
        with pytest.raises(FloatingPointError, match=r"diverged: .* Raise noise, lower v0"):
            learn(np.full((3, 3), 1e60) * [[1], [2], [3]], np.full(3, 1e60))
        np.testing.assert_array_equal(model.predict(0.1 * X, return_std=True), before)


def test_it_is_copied_and_pickled(rows):
    X, y, _ = rows
    model = PIPGRegressor(Ridge(0.01), v0=np.full(4, 0.5)).fit(X, y)
    again = pickle.loads(pickle.dumps(model)).partial_fit(X, y)
    np.testing.assert_array_equal(again.coef_, model.partial_fit(X, y).coef_)
    assert not hasattr(clone(model), "state_")


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"noise": 0.0}, "noise must be"),
        ({"q": -1.0}, "q must be >= 0"),
        ({"link": "logit"}, "link must be one of"),
        ({"v0": -1.0}, "v0"),
        ({"regularizer": Ridge(5.0)}, "keep it below 1"),
    ],
)
def test_parameters_are_checked(rows, wrong, match):
    with pytest.raises(ValueError, match=match):
        PIPGRegressor(**wrong).fit(*rows[:2])
