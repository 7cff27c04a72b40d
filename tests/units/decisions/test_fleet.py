"""Beliefs of arms: equal to those of regressions on the rows of each arm, with all digits, faded or not."""

import numpy as np
import pytest

from kalprox import KalproxRegressor
from kalprox.decisions.fleet import FadingFleet, StillFleet

ALPHA, K, D = 0.7, 3, 4


def rows_of(n, seed=0, d=D):
    """Contexts, the places of arms and rewards whose coefficients and noise differ between arms."""
    rng = np.random.default_rng(seed)
    X, arms = rng.normal(size=(n, d)), rng.integers(K, size=n)
    coef = rng.normal(size=(K, d))
    return X, arms, (X * coef[arms]).sum(axis=1) + (0.5 + arms) * rng.normal(size=n)


def learned(fleet, X, arms, y, ages=None):
    ages = np.zeros(len(y)) if ages is None else ages
    for i in range(len(y)):
        fleet.learn(int(arms[i]), X[i : i + 1], y[i : i + 1], ages[i : i + 1])
    return fleet


@pytest.mark.parametrize("n", [40, 1000])  # fewer rows than are folded at a time, and many folds
def test_the_belief_of_an_arm_is_that_of_a_regression_on_its_rows(n):
    X, arms, y = rows_of(n)
    fleet = learned(StillFleet(K, D, ALPHA, 2.0, 10.0), X, arms, y)
    new = np.random.default_rng(1).normal(size=(5, D))
    for k in range(K):
        own = arms == k
        model = KalproxRegressor(alpha=ALPHA, noise=2.0, fit_intercept=False).fit(X[own], y[own])
        np.testing.assert_allclose(fleet.theta[k], model.coef_, rtol=1e-10, atol=1e-12)
        root = fleet.root(k, np.eye(D))
        np.testing.assert_allclose(2.0 * root @ root.T, model.covariance_, rtol=1e-10, atol=1e-14)
        mean, std = model.predict(new, return_std=True)
        np.testing.assert_allclose([fleet.estimates()[k] @ x for x in new], mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose([2 + 2 * fleet.leverages(x)[k] for x in new], std**2, rtol=1e-10)


@pytest.mark.parametrize("pooling", [1.0, 10.0, np.inf])
def test_the_noise_of_an_arm_is_that_of_its_regression_and_of_a_few_rows_of_the_others(pooling):
    X, arms, y = rows_of(400)
    fleet = learned(StillFleet(K, D, ALPHA, None, pooling), X, arms, y)
    S, n = np.zeros(K), np.zeros(K)
    for k in range(K):
        own = arms == k
        model = KalproxRegressor(alpha=ALPHA, fit_intercept=False).fit(X[own], y[own])
        G = X[own].T @ X[own]
        n[k] = own.sum() - np.trace(np.linalg.solve(G + ALPHA * np.eye(D), G))
        S[k] = model.noise_var_ * n[k]
    noise = fleet.noise()
    for k in range(K):
        others = np.arange(K) != k
        w = min(pooling, n[others].sum())
        variance = (S[k] + w * S[others].sum() / n[others].sum()) / (n[k] + w)
        np.testing.assert_allclose((noise.variance[k], noise.dof[k]), (variance, n[k] + w), rtol=1e-10)


def test_one_arm_alone_has_the_noise_of_a_regression():
    X, _, y = rows_of(50)
    fleet = learned(StillFleet(1, D, ALPHA, None, 10.0), X, np.zeros(50, int), y)
    model = KalproxRegressor(alpha=ALPHA, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(fleet.noise().variance, model.noise_var_, rtol=1e-10)
    std = np.sqrt(fleet.noise().variance * (fleet.root(0, np.eye(D)) ** 2).sum(axis=1))
    np.testing.assert_allclose(std, model.coef_std_, rtol=1e-10)


@pytest.mark.parametrize("forget", [1.0, 0.9999])
def test_digits_remain_where_columns_are_nearly_equal_and_far_from_zero(forget):
    """Scaled to unit columns, the rows have a condition of 1e4: with 16 digits, least squares on the rows keeps 11.

    A thousand updates, each with an error of 1e-16, cost one more. The normal equations, with the square of the
    condition, would keep 8. The digits are those of the largest coefficient of scaled columns.
    """
    rng = np.random.default_rng(0)
    n, base = 1000, rng.normal(size=(1000, 1))
    X = np.column_stack([np.ones(n), 1e3 + base, 1e3 + base + 0.25 * rng.normal(size=(n, 1)), 1e4 * rng.normal(size=n)])
    y = X @ [1.0, 0.2, -0.1, 1e-4] + 0.1 * rng.normal(size=n)
    if forget == 1:
        fleet = learned(StillFleet(1, 4, 1e-2, None, 10.0), X, np.zeros(n, int), y)
    else:
        fleet = FadingFleet(1, 4, 1e-2, None, 10.0, forget=forget)
        learned(fleet, X, np.zeros(n, int), y)
    w = np.sqrt(forget ** np.arange(n - 1.0, -1, -1))[:, None]
    stacked = np.concatenate([w * X, 0.1 * np.eye(4)])
    scale = np.linalg.norm(stacked, axis=0)
    assert 5e3 < np.linalg.cond(stacked / scale) < 2e4
    truth = np.linalg.lstsq(stacked / scale, np.append(w[:, 0] * y, np.zeros(4)), rcond=None)[0]
    np.testing.assert_allclose(fleet.estimates()[0] * scale, truth, rtol=0, atol=1e-10 * np.abs(truth).max())


@pytest.mark.parametrize(("forget", "half_life"), [(0.97, np.inf), (1.0, 30.0), (0.99, 20.0)])
def test_faded_beliefs_are_those_of_weighted_rows(forget, half_life):
    X, arms, y = rows_of(150)
    fleet = FadingFleet(K, D, ALPHA, None, 1e-300, forget=forget)
    for i in range(150):
        fleet.pass_time(1.0 / half_life)
        learned(fleet, X[i : i + 1], arms[i : i + 1], y[i : i + 1])
    for _ in range(7):
        fleet.pass_time(1.0 / half_life)
    x = np.random.default_rng(1).normal(size=D)
    for k in range(K):
        own = np.flatnonzero(arms == k)
        w = forget ** np.arange(len(own) - 1.0, -1, -1) * 0.5 ** ((156 - own) / half_life)
        G = X[own].T @ (w[:, None] * X[own])
        P = np.linalg.inv(G + ALPHA * np.eye(D))
        c = (w**2).sum() / w.sum()
        cov = P @ (c * G + ALPHA * np.eye(D)) @ P
        np.testing.assert_allclose(fleet.estimates()[k], P @ (X[own].T @ (w * y[own])), rtol=1e-10)
        np.testing.assert_allclose(fleet.leverages(x)[k], x @ cov @ x, rtol=1e-10)
        root = fleet.root(k, np.eye(D))
        np.testing.assert_allclose(root @ root.T, cov, rtol=1e-9, atol=1e-13)
        # The noise is that of the last row of the arm.
        v = w / w[-1]
        G, c = G / w[-1], (v**2).sum() / v.sum()
        P = np.linalg.inv(G + ALPHA * np.eye(D))
        e = y[own] - X[own] @ (P @ (X[own].T @ (v * y[own])))
        variance = (v * e**2).sum() / c / (v.sum() / c - np.trace(P @ G))
        np.testing.assert_allclose(fleet.noise().variance[k], variance, rtol=1e-9)


def test_a_fading_fleet_without_forgetting_is_a_still_one():
    X, arms, y = rows_of(200)
    fading = learned(FadingFleet(K, D, ALPHA, None, 10.0, forget=1.0), X, arms, y)
    still = learned(StillFleet(K, D, ALPHA, None, 10.0), X, arms, y)
    x = np.random.default_rng(1).normal(size=D)
    np.testing.assert_allclose(fading.estimates(), still.estimates(), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(fading.leverages(x), still.leverages(x), rtol=1e-10)
    np.testing.assert_allclose(fading.noise(), still.noise(), rtol=1e-10)


def test_an_arm_that_is_never_chosen_again_returns_to_its_prior_and_the_numbers_stay_finite():
    X, arms, y = rows_of(60)
    fleet = learned(FadingFleet(K, D, ALPHA, None, 10.0, forget=1.0), X, arms, y)
    for _ in range(5000):
        fleet.pass_time(0.5)
    np.testing.assert_array_equal(fleet.estimates(), 0.0)
    np.testing.assert_allclose(fleet.leverages(np.ones(D)), D / ALPHA, rtol=1e-12)
    assert np.isfinite(fleet.noise()).all()
    learned(fleet, X[:1], arms[:1], y[:1])
    assert fleet.rows[arms[0]] == 1 and np.isfinite(fleet.estimates()).all()
    for _ in range(30):  # rows that are nearly forgotten when the next one comes
        for _ in range(600):
            fleet.pass_time(0.5)
        learned(fleet, X[:1], arms[:1], y[:1], np.array([250.0]))
        assert np.isfinite(fleet.noise()).all() and np.isfinite(fleet.leverages(X[0])).all()


@pytest.mark.parametrize("kind", ["still", "by row", "by time"])
def test_an_origin_is_the_prior_mean_of_the_first_coefficient(kind):
    """That of rewards minus c times the first feature, plus c: the belief of another fleet that learns those."""
    X, arms, y = rows_of(200)
    X[:, 0], c = 1.0, 37.0
    forget, half_life = {"still": (1.0, np.inf), "by row": (0.97, np.inf), "by time": (1.0, 40.0)}[kind]

    def made():
        if kind == "still":
            return StillFleet(K, D, ALPHA, None, 10.0)
        return FadingFleet(K, D, ALPHA, None, 10.0, forget=forget)

    one, other = made(), made()
    for i in range(200):
        for fleet, target in ((one, y + c), (other, y)):
            fleet.pass_time(1.0 / half_life)
            learned(fleet, X[i : i + 1], arms[i : i + 1], target[i : i + 1], np.array([i % 3]) / half_life)
    one.origin = c
    one.pass_time(5.0 / half_life)
    other.pass_time(5.0 / half_life)
    np.testing.assert_allclose(one.estimates() - c * np.eye(1, D), other.estimates(), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(one.noise(), other.noise(), rtol=1e-9)


def test_long_batches_and_single_rows_agree():
    X, arms, y = rows_of(900)
    single, together = (StillFleet(K, D, ALPHA, None, 10.0) for _ in range(2))
    learned(single, X, arms, y)
    for k in range(K):
        own = arms == k
        together.learn(k, X[own], y[own], np.zeros(own.sum()))
    np.testing.assert_allclose(single.theta, together.theta, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(single.noise(), together.noise(), rtol=1e-10)
