"""The L1 path: whatever it is sure of is optimal, it is sure where it should be, and its knots are scikit-learn's."""

import numpy as np
import pytest
from sklearn.linear_model import lars_path_gram
from test_prox import PROBLEMS, rounding, rows, triangle, violation

from kalprox import KalproxRegressor
from kalprox.regularizers import L1, Box, ElasticNet, Pieces
from kalprox.solvers import active_set
from kalprox.solvers.l1_path import l1_minimiser, l1_path, l1_start
from kalprox.solvers.prox import prox


def lams_of(R, z, count=40):
    """From above where all is zero down to where next to nothing is."""
    return max(np.abs(R.T @ z).max(initial=0), 1e-3) * np.geomspace(2, 1e-6, count)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_it_is_sure_of_is_optimal(problem):
    R, z = PROBLEMS[problem]
    lams = np.append(lams_of(R, z), 0.0)
    thetas, sure = l1_path(R, z, lams)
    assert thetas.shape == (41, R.shape[1]) and sure[0]
    if problem not in ("collinear", "deficient", "wide"):
        assert sure.all()
    for lam, theta in zip(lams[sure], thetas[sure], strict=True):
        assert violation(R, z, L1(lam), theta) <= rounding(R, z, theta)


@pytest.mark.parametrize("problem", ["plain", "large", "collinear"])
def test_knots_are_scikit_learns(problem):
    R, z = PROBLEMS[problem]
    knots, _, coefs = lars_path_gram(R.T @ z, R.T @ R, n_samples=1, method="lasso")
    middles = (knots[:-1] + knots[1:]) / 2
    thetas, sure = l1_path(R, z, middles)
    assert len(knots) > 8 and sure.sum() >= 8
    far = np.abs(thetas - (coefs[:, :-1] + coefs[:, 1:]).T / 2) * np.linalg.norm(R, axis=0)
    assert far[sure].max() < 1e-8 * np.linalg.norm(z)  # theirs has the digits of a Gram matrix
    assert l1_path(R, z, knots)[1].sum() >= 8  # at a knot, where one is zero to rounding


def test_coordinates_that_return_to_zero():
    """Correlated columns: the path drops coordinates on its way, and takes some of them up again."""
    rng = np.random.default_rng(5)
    X = np.cumsum(rng.normal(size=(300, 60)), axis=1)
    R, z = triangle(X, X @ rng.normal(size=60) + 30 * rng.normal(size=300))
    lams = lams_of(R, z, 400)
    thetas, sure = l1_path(R, z, lams)
    dropped = (thetas[:-1] != 0) & (thetas[1:] == 0)
    assert sure.all() and dropped.sum() > 5
    for i in range(0, 400, 50):
        np.testing.assert_allclose(thetas[i], prox(R, z, L1(lams[i])).theta, rtol=1e-9, atol=1e-12)


def test_is_not_sure_where_the_way_is_lost():
    X, y = rows()
    X[:, 1] = X[:, 0] * (1 + 1e-9 * np.arange(60))
    R, z = triangle(X, y)
    lams = lams_of(R, z)
    thetas, sure = l1_path(R, z, lams)
    assert not sure.all() and np.isnan(thetas[~sure]).any()
    model = KalproxRegressor(penalty="l1", fit_intercept=False).fit(X, y)
    for lam, coef in zip(lams, model.path(lams).coef, strict=True):
        assert violation(R, z, L1(lam), coef) <= rounding(R, z, coef)


def test_the_digits_are_qrs():
    """Columns of condition 3e3: what G = R'R loses is made good by R itself."""
    rng = np.random.default_rng(2)
    U, V = (np.linalg.qr(rng.normal(size=(m, 6)))[0] for m in (40, 6))
    X = U * 10.0 ** np.linspace(0, -3.5, 6) @ V.T
    y = X @ rng.normal(size=6) + 1e-8 * rng.normal(size=40)
    R, z = triangle(X, y)
    (theta,), (sure,) = l1_path(R, z, np.array([1e-12]))
    exact, R_, z_ = theta.astype(np.longdouble), R.astype(np.longdouble), z.astype(np.longdouble)
    assert sure and (theta != 0).all()
    for _ in range(5):
        gradient = R_.T @ (R_ @ exact - z_) + np.longdouble(1e-12) * np.sign(exact)
        exact = exact - np.linalg.solve(R, np.linalg.solve(R.T, gradient.astype(float)))
    error = np.abs(theta - exact).max() / np.abs(exact).max()
    by_gram = np.linalg.solve(R.T @ R, R.T @ z - 1e-12 * np.sign(theta))
    assert error < 1e-12 < 1e-11 < np.abs(by_gram - exact).max() / np.abs(exact).max()


def test_random_problems():
    rng = np.random.default_rng(0)
    claimed = 0
    for case in range(300):
        m, d = int(rng.integers(1, 40)), int(rng.integers(1, 25))
        X = rng.normal(size=(m, d)) @ (rng.normal(size=(d, d)) if case % 3 == 1 else np.eye(d))
        X = np.round(X) if case % 3 == 2 else X  # ties
        y = np.round(rng.normal(size=m) * 2)
        lams = lams_of(X, y, 12)
        thetas, sure = l1_path(X, y, lams)
        for lam, theta in zip(lams[sure], thetas[sure], strict=True):
            assert violation(X, y, L1(lam), theta) <= rounding(X, y, theta)
        claimed += sure.mean() / 300
    assert claimed > 0.9


def test_two_targets_and_standardized_columns():
    X, y = rows(3)
    Y = np.column_stack([y, y[::-1]])
    alphas = np.geomspace(100, 0.01, 30)
    path = KalproxRegressor(penalty="l1", standardize=True).fit(X * 10.0 ** np.arange(8), Y).path(alphas)
    for j in range(2):
        alone = KalproxRegressor(penalty="l1", standardize=True).fit(X * 10.0 ** np.arange(8), Y[:, j])
        np.testing.assert_allclose(path.coef[:, j], alone.path(alphas).coef, rtol=1e-11, atol=0)
        one = alone.set_params(alpha=alphas[12]).fit(X * 10.0 ** np.arange(8), Y[:, j])
        np.testing.assert_allclose(path.coef[12, j], one.coef_, rtol=1e-10, atol=0)
        assert path.edf[12, j] == pytest.approx((one.coef_ != 0).sum(), rel=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_minimiser_of_one_weight(problem):
    """Weights of their own, coordinates without one, and squares: as the search from zero finds it."""
    R, z = PROBLEMS[problem]
    d, norms = R.shape[1], np.linalg.norm(R, axis=0)
    weights = 0.05 * max(np.linalg.norm(z), 1e-3) * np.maximum(norms, 1e-3) * np.linspace(0.5, 2, d)
    for l1 in (weights, np.where(np.arange(d) < 2, 0.0, weights)):
        g = ElasticNet(l1, 0.01 * norms**2)
        theta = l1_minimiser(R, z, g.pieces())
        if not norms[l1 == 0].all() or not l1.any():  # a coordinate is undetermined, or there is no kink
            assert theta is None
            continue
        assert theta is not None and violation(R, z, g, theta) <= rounding(R, z, theta)
        np.testing.assert_allclose(theta, prox(R, z, g).theta, rtol=1e-7, atol=1e-9 * np.abs(theta).max(initial=0))


def test_what_the_path_does_not_describe_is_left_to_a_search():
    R, z = PROBLEMS["plain"]
    assert l1_minimiser(R, z, Box(-1.0, 1.0).pieces()) is None
    assert l1_minimiser(R, z, Pieces(l2=1.0)) is None
    twice = np.concatenate([R, R[:, :1]], axis=1)
    weights = np.r_[0.0, np.ones(R.shape[1] - 1), 0.0]
    assert l1_minimiser(twice, z, Pieces(l1=weights)) is None  # two columns without a weight are the same


@pytest.mark.parametrize("settings", [{"penalty": "l1"}, {"penalty": "elasticnet"}])
@pytest.mark.parametrize("alpha", [0.5, 20.0, 1000.0])
def test_scoring_a_fit_needs_few_steps_of_the_search(settings, alpha, monkeypatch):
    """Fewer rows than columns, as many, and more: an estimate on the way is found by its path, or near the last one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 60))
    y = X[:, :6].sum(axis=1) + rng.normal(size=500)
    steps, estimates = [], []
    step, solve = active_set.free_step, active_set.Coordinates.__init__
    monkeypatch.setattr(active_set, "free_step", lambda *a, **k: steps.append(1) or step(*a, **k))
    monkeypatch.setattr(active_set.Coordinates, "__init__", lambda *a, **k: estimates.append(1) or solve(*a, **k))
    KalproxRegressor(alpha=alpha, **settings).fit(X, y)
    assert 0 < len(estimates) < 40 and len(steps) < 2 * len(estimates)


def test_a_search_for_a_lasso_of_many_rows_starts_at_its_minimiser_unless_hardly_any_coefficient_is_zero():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 50))
    y = X @ np.r_[rng.normal(size=25), np.zeros(25)] + rng.normal(size=1000)
    least = np.linalg.lstsq(X, y, rcond=None)[0]
    half = l1_start(X, y, Pieces(l1=15.0), least)
    found = prox(X, y, L1(15.0), half)
    assert 0.5 < (found.theta != 0).mean() < 0.95 and found.converged and found.iterations <= 1
    assert l1_start(X, y, Pieces(l1=0.01), least) is least
