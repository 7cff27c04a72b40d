"""The grid of alphas: its best is inside, or in a limit that is said."""

import numpy as np
import pytest
from data import linear

from kalprox import KalproxRegressor


def unlike(n=4000, seed=0):
    """Columns in units as different as minutes and metres, with categories of which some are rare: X and y."""
    rng = np.random.default_rng(seed)
    distance, delay = rng.gamma(3, 4e5, n), rng.gamma(1, 20, n)
    level = np.minimum(rng.geometric(0.4, n), 12) - 1
    X = np.column_stack([distance, delay, np.eye(12)[level]])
    effects = 10 * rng.normal(size=12)
    return X, 1e-5 * distance + delay + effects[level] + 3 * rng.normal(size=n)


def test_the_best_alpha_is_not_at_the_edge_of_a_grid_that_is_too_short():
    X, y = unlike()
    model = KalproxRegressor(alpha="auto", diagnose=False).fit(X, y)
    path = model.path()
    assert 0 < path.score.argmax() < len(path.alphas) - 1
    assert (np.diff(path.alphas) < 0).all()
    assert model._belief.facts.alpha_limit is None

    def evidence(alpha):
        return KalproxRegressor(alpha=alpha, diagnose=False).fit(X, y).log_evidence_

    best = evidence(model.alpha_)
    for factor in (1e-4, 1e-2, 0.9, 1.1, 1e2, 1e4):
        assert evidence(factor * model.alpha_) < best
    assert model.alpha_ < 1e-10 * np.linalg.norm(X - X.mean(axis=0)) ** 2  # beyond the first grid


@pytest.mark.parametrize("penalty", ["ridge", "l1", "elasticnet", "smooth_l1"])
def test_the_best_of_a_path_is_inside_or_a_limit(penalty):
    for X, y in (unlike(), linear(300, 4), linear(300, 4, noise=1e3), linear(300, 4, noise=1e-6)):
        path = KalproxRegressor(penalty=penalty, diagnose=False).fit(X, y).path()
        i, gains = path.score.argmax(), np.diff(path.score)
        at_limit = (i == 0 and -gains[0] <= 0.01) or (i == len(gains) and gains[-1] <= 0.01)
        assert 0 < i < len(gains) or at_limit


def test_an_alpha_in_a_limit_is_said():
    X, _ = linear(500, 4)
    noise = np.random.default_rng(1).normal(size=500)
    design = np.column_stack([np.ones(500), X])
    noise -= design @ np.linalg.lstsq(design, noise, rcond=None)[0]  # of which the columns explain nothing
    for penalty in ("ridge", "l1"):
        model = KalproxRegressor(penalty=penalty, alpha="auto").fit(X, noise)
        assert model._belief.facts.alpha_limit == np.inf
    model = KalproxRegressor(alpha="auto", diagnose=False).fit(X, X @ np.ones(4))
    assert model._belief.facts.alpha_limit == 0
    np.testing.assert_allclose(model.coef_, 1, rtol=1e-10)
    assert KalproxRegressor(alpha=2.0).fit(X, noise)._belief.facts.alpha_limit is None


def test_collinear_columns_do_not_lead_alpha_below_what_tells_them_apart():
    X, y = linear(12, 20, noise=0.0)
    weights = np.full(12, 5.0)  # more rows than columns, by weight, and still all of them can be fitted exactly
    model = KalproxRegressor(alpha="auto", diagnose=False).fit(X, y, sample_weight=weights)
    again = KalproxRegressor(alpha="auto", diagnose=False).fit(np.repeat(X, 5, axis=0), np.repeat(y, 5))
    assert model._belief.facts.alpha_limit == 0
    np.testing.assert_allclose(model.coef_, again.coef_, rtol=1e-7)
