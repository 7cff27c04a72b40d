"""Bad input: an error before any arithmetic, that says what was expected, what came, what to change."""

import numpy as np
import pytest

import kalprox as kp
from kalprox import models, regularizers
from kalprox.covariance import Diagonal, LowRank

LINEAR, RIDGE = models.Linear(), regularizers.Ridge(0.01)


@pytest.mark.parametrize("gamma", [0.0, -1.0, np.nan, np.inf])
def test_gamma(gamma):
    for make in (
        lambda: kp.pipg(LINEAR, RIDGE, gamma=gamma),
        lambda: kp.ipm(LINEAR, gamma=gamma),
        lambda: kp.ipg(LINEAR, RIDGE, gamma=gamma),
    ):
        with pytest.raises(ValueError, match=r"gamma must be finite and > 0; got"):
            make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kp.pipg(LINEAR, RIDGE, gamma=1.0, q=-1e-3), "q must be >= 0"),
        (lambda: kp.pipg(LINEAR, RIDGE, gamma=1.0, q=np.diag([1.0, -1.0])), "positive semi-definite"),
        (lambda: kp.pipg(LINEAR, RIDGE, gamma=1.0, q=np.nan), "q must be >= 0"),
        (lambda: kp.sgd(LINEAR, RIDGE, alpha0=0.0, alpha1=1.0), "alpha0 must be finite and > 0"),
        (lambda: kp.sgd(LINEAR, RIDGE, alpha0=1.0, alpha1=-1.0), "alpha1 must be finite and >= 0"),
        (lambda: kp.ipg(LINEAR, RIDGE, gamma=1.0, decay=-0.5), "decay must be finite and >= 0"),
        (lambda: regularizers.Ridge(-1.0), "lam must be finite and >= 0"),
        (lambda: regularizers.SmoothL1(1.0, 0.0), "delta must be finite and > 0"),
        (lambda: regularizers.Huber(np.nan, 1.0), "lam must be finite"),
        (lambda: regularizers.Quadratic(np.ones(3)), r"A must be a matrix of shape \(m, d\); got shape \(3,\)"),
        (lambda: models.GLM("probit"), "link must be one of identity, sigmoid, .*For any other, use Function"),
        (lambda: LowRank.start(1.0, d=3, rank=4), "rank must be between 1 and d = 3; got 4"),
    ],
)
def test_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_ipg_needs_one_predictor():
    with pytest.raises(TypeError, match=r"ipg needs a model of the form h\(x' theta\).*Use ipm or pipg"):
        kp.ipg(models.Function(lambda theta, x: theta[0]), RIDGE, gamma=1.0)


@pytest.mark.parametrize("make", [lambda: kp.pipg(LINEAR, RIDGE, gamma=1.0), lambda: kp.ipm(LINEAR, gamma=1.0)])
@pytest.mark.parametrize(
    ("mean0", "v0", "error", "message"),
    [
        (np.zeros((2, 2)), 1.0, ValueError, r"mean0 must be a vector of shape \(d,\).*got shape \(2, 2\)"),
        (np.zeros(0), 1.0, ValueError, "mean0 must be a vector"),
        (np.zeros(2, int), 1.0, TypeError, "mean0 must have a floating dtype.*got int64"),
        (np.array([0.0, np.nan]), 1.0, ValueError, "mean0 must be finite"),
        (np.zeros(2), 0.0, ValueError, "v0 must be positive definite; its smallest eigenvalue is 0"),
        (np.zeros(2), -1.0, ValueError, "v0 must be positive definite"),
        (np.zeros(2), np.inf, ValueError, "v0 must be finite"),
        (np.zeros(2), np.ones(3), ValueError, r"v0 must be a scalar, a vector \(2,\) or a matrix \(2, 2\)"),
        (np.zeros(2), np.array([[1.0, 2.0], [2.0, 1.0]]), ValueError, "v0 must be positive definite"),
        (np.zeros(2), np.array([[1.0, 0.5], [0.0, 1.0]]), ValueError, "v0 must be symmetric"),
        (np.zeros(2), Diagonal(np.ones(3)), ValueError, "v0 must be the covariance of 2 parameters"),
    ],
)
def test_start(make, mean0, v0, error, message):
    with pytest.raises(error, match=message):
        make().init(mean0, v0)


def test_the_first_prediction_step():
    alg = kp.pipg(LINEAR, regularizers.SmoothL1(1.0, 0.1), gamma=1.0)
    alg.init(np.zeros(2), 0.009)  # 0.9: fine
    with pytest.warns(RuntimeWarning, match=r"is 1.5 at mean0; keep it below 1: lower v0, gamma or .*lam, or raise"):
        alg.init(np.zeros(2), 0.015)
    with pytest.raises(ValueError, match=r"would expand the covariance.*is 2.5 at mean0"):
        alg.init(np.zeros(2), 0.025)
    dense = kp.pipg(LINEAR, regularizers.Quadratic(np.ones((1, 4))), gamma=1.0)
    with pytest.raises(ValueError, match="is 4 at mean0"):
        dense.init(np.zeros(4), 1.0)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (np.ones(3), np.array(1.0), ValueError, r"2 parameters.*got a row of shape \(3,\)"),
        (np.ones(2), np.array([1.0]), ValueError, r"y must have the shape of the model's output, \(\); got \(1,\)"),
        (np.ones(2, int), np.array(1.0), TypeError, "x must have a floating dtype"),
        (np.array([1.0, np.nan]), np.array(1.0), ValueError, "x must be finite"),
        (np.ones(2), np.array(np.inf), ValueError, "y must be finite"),
    ],
)
def test_a_row(x, y, error, message):
    alg = kp.pipg(LINEAR, RIDGE, gamma=1.0)
    with pytest.raises(error, match=message):
        alg.step(alg.init(np.zeros(2), 1.0), x, y)


def test_a_y_of_the_wrong_shape_is_refused_by_every_algorithm():
    for alg in (
        kp.ipm(LINEAR, gamma=1.0),
        kp.ipg(LINEAR, RIDGE, gamma=1.0),
        kp.sgd(LINEAR, RIDGE, alpha0=1.0, alpha1=0.0),
    ):
        with pytest.raises(ValueError, match="y must have the shape of the model's output"):
            alg.step(alg.init(np.zeros(2), 1.0), np.ones(2), np.ones(2))


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        ([[1.0, 2.0]], np.ones(1), TypeError, "X must be a NumPy or JAX array; got list"),
        (np.ones((3, 2)), np.ones(4), ValueError, r"one row per observation; got shapes \(3, 2\) and \(4,\)"),
        (np.ones((3, 2)), np.ones(3, int), TypeError, "y must have a floating dtype"),
        (np.ones((3, 2), complex), np.ones(3), TypeError, "X must have a floating dtype.*complex"),
        (np.ones((0, 2)), np.ones(0), ValueError, "at least one row"),
        (np.ones((3, 3)), np.ones(3), ValueError, "2 parameters"),
        (np.array([[1.0, 1.0], [np.nan, 1.0], [1.0, np.inf]]), np.ones(3), ValueError, r"2 row\(s\): 1, 2. Remove"),
        (np.ones((3, 2)), np.array([1.0, 1.0, np.nan]), ValueError, r"y must be finite; .* 1 row\(s\): 2"),
    ],
)
def test_data(X, y, error, message):
    alg = kp.pipg(LINEAR, RIDGE, gamma=1.0)
    with pytest.raises(error, match=message):
        kp.run(alg, alg.init(np.zeros(2), 1.0), X, y)


def test_run_counts():
    alg = kp.ipm(LINEAR, gamma=1.0)
    state = alg.init(np.zeros(2), 1.0)
    for name in ("record_every", "passes"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1; got 0"):
            kp.run(alg, state, np.ones((3, 2)), np.ones(3), **{name: 0})
