"""Intervals of coefficients: debiased under a kink, and confidence sequences that may be looked at after every row."""

import numpy as np
import pytest
import scipy.stats
import statsmodels.api as sm
from data import linear
from scipy.stats import binom

from kalprox import KalproxRegressor, penalties
from kalprox.information.base import LeastSquares
from kalprox.learning.belief import PenaltyTooStrong

KINKED = {
    "l1": "l1",
    "elasticnet": "elasticnet",
    "group": penalties.Group([0, 0, 1, 1, 2]),
    "box": penalties.Box(-0.5, 0.5),
}


def ends(model, level=0.95, **options):
    return np.stack(model.coef_interval(level, **options), axis=-1)


def ends_of_intercept(model, level=0.95):
    belief = model._belief
    return belief.intercept_estimate(penalised=not belief.debiased).interval(level)


@pytest.mark.parametrize("penalty", [None, "ridge", "smooth_l1"])
def test_the_interval_of_a_smooth_penalty_is_that_of_the_posterior(penalty):
    X, y = linear(60, 4)
    model = KalproxRegressor(penalty=penalty).fit(X, y)
    reach = scipy.stats.t.ppf(0.95, model.noise_dof_) * model.coef_std_
    np.testing.assert_allclose(ends(model, 0.9), np.stack([model.coef_ - reach, model.coef_ + reach], -1), rtol=1e-12)
    if penalty is None:
        theirs = sm.OLS(y, sm.add_constant(X)).fit().conf_int(0.1)
        np.testing.assert_allclose(ends(model, 0.9), theirs[1:], rtol=1e-9)
        np.testing.assert_allclose(ends_of_intercept(model, 0.9), theirs[0], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("penalty", KINKED)
def test_the_interval_under_a_kink_is_that_of_least_squares(penalty, standardize):
    X, y = linear(60, 5)
    X[:, 1] *= 100
    alpha = None if penalty == "box" else 30.0
    model = KalproxRegressor(penalty=KINKED[penalty], alpha=alpha, standardize=standardize and penalty != "box")
    model.fit(X + 3, np.column_stack([y, -2 * y + X[:, 0]]))
    assert (model.coef_std_ == 0).any()
    for j in range(2):
        theirs = sm.OLS([y, -2 * y + X[:, 0]][j], sm.add_constant(X + 3)).fit().conf_int(0.05)
        np.testing.assert_allclose(ends(model)[j], theirs[1:], rtol=1e-8)
        np.testing.assert_allclose(np.array(ends_of_intercept(model))[:, j], theirs[0], rtol=1e-8)


def test_a_given_noise_variance_is_used():
    X, y = linear(60, 3)
    model = KalproxRegressor(penalty="l1", alpha=10.0, noise=4.0).fit(X, y)
    std = 2 * np.sqrt(np.diag(np.linalg.inv(np.cov(X.T) * 59)))
    width = ends(model)[:, 1] - ends(model)[:, 0]
    np.testing.assert_allclose(width, 2 * scipy.stats.norm.ppf(0.975) * std, rtol=1e-10)


def test_what_the_rows_do_not_determine_has_no_bounds():
    X, y = linear(60, 4)
    X[:, 3] = X[:, 2]
    model = KalproxRegressor(penalty="l1", alpha=5.0).fit(X, y)
    for found in (ends(model), ends(model, anytime=True)):
        assert np.isfinite(found[:2]).all() and (np.abs(found[2:]) == np.inf).all() and (found[2:, 0] < 0).all()
    few = KalproxRegressor(penalty="l1", alpha=5.0).fit(X[:4], y[:4])
    assert (ends(few) == [-np.inf, np.inf]).all() and (ends(few, anytime=True) == [-np.inf, np.inf]).all()
    assert np.isneginf(ends_of_intercept(few)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d"), [(60, 20), (200, 50)])
def test_the_debiased_interval_covers_where_the_conditional_one_does_not(n, d):
    streams, hits = 40, []
    theta = np.r_[np.ones(3), np.full(5, 0.15), np.zeros(d - 8)]
    for seed in range(streams):
        rng = np.random.default_rng([n, seed])
        X = rng.normal(size=(n, d)) + rng.normal(size=(n, 1))
        model = KalproxRegressor(penalty="l1", alpha="auto").fit(X, X @ theta + rng.normal(size=n))
        low, high = model.coef_interval()
        reach = scipy.stats.t.ppf(0.975, model.noise_dof_) * model.coef_std_
        hits.append([((low <= theta) & (theta <= high)).mean(), (np.abs(model.coef_ - theta) <= reach)[:8].mean()])
    debiased, conditional = np.mean(hits, axis=0)
    errors = np.std(hits, axis=0) / streams**0.5  # the coefficients of one stream err together
    assert abs(debiased - 0.95) < 3.5 * errors[0] and errors[0] < 0.01
    assert conditional < 0.95 - 3.5 * errors[1]


def test_a_nonlinear_link_is_linearised_at_the_estimate():
    rng = np.random.default_rng(0)
    X, theta = rng.normal(size=(2000, 3)), np.array([1.0, 0.0, -1.0])
    y = 1 / (1 + np.exp(-X @ theta)) + 0.1 * rng.normal(size=2000)
    kinked, plain = (KalproxRegressor(link="sigmoid", penalty=p, alpha=0.5).fit(X, y) for p in ("l1", None))
    np.testing.assert_allclose(ends(kinked), ends(plain), atol=0.2 * plain.coef_std_.max())


# ---- looks after every row -------------------------------------------------------------------------


def radius(std, dof, z2, g, a=0.05):
    """The formula of Lindon and others, by hand."""
    r = g / (g + z2)
    if np.isinf(dof):
        return std * np.sqrt(-np.log(r * a**2) / (1 - r))
    k = (r * a**2) ** (1 / (dof + 1))
    return std * np.sqrt(dof * (1 - k) / (k - r)) if k > r else np.inf


@pytest.mark.parametrize("settings", [{"penalty": "l1"}, {"alpha": 50.0}, {"noise": 0.5}, {"fit_intercept": False}])
def test_the_anytime_interval_is_that_of_the_formula(settings):
    X, y = linear(150, 3)
    X = X * [1, 1e-3, 1e4] + [5, 0, 0]
    model = KalproxRegressor(
        standardize=True, diagnose=False, **({"penalty": "ridge"} | settings)
    )  # no batch is cut to predict its rows
    for rows in np.split(np.arange(150), [40, 41, 90]):
        model.partial_fit(X[rows], y[rows])
    intercept = settings.get("fit_intercept", True)
    A = sm.add_constant(X) if intercept else X
    theirs, first = sm.OLS(y, A).fit(), slice(int(intercept), None)
    C = np.linalg.inv(A.T @ A).diagonal()[first]
    g = 125 * (X[:40].var(axis=0) if intercept else (X[:40] ** 2).mean(axis=0))  # of the first rows, and kept
    noise, dof = settings.get("noise", theirs.scale), np.inf if "noise" in settings else theirs.df_resid
    reach = [radius(np.sqrt(noise * c), dof, 1 / c, g_) for c, g_ in zip(C, g, strict=True)]
    coef = theirs.params[first]
    np.testing.assert_allclose(ends(model, anytime=True), np.stack([coef - reach, coef + reach], -1), rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "trend", "late"])
def test_of_400_looks_none_misses_in_95_of_100_streams(kind):
    """The streams have the same X, as targets of one model: given X, they are independent."""
    looks, streams, d = 400, 200, 2
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10 + looks, d))
    if kind == "trend":
        X[:, 0] = np.arange(len(X)) ** 2
    if kind == "late":
        X[:200, 0] = 0.0
    theta = np.array([1.0, -1.0])
    Y = (X @ theta)[:, None] + rng.normal(size=(len(X), streams))
    missed, ratios = np.zeros((2, streams), bool), []
    model = KalproxRegressor(penalty=None, diagnose=False).partial_fit(X[:10], Y[:10])
    for row in range(10, 10 + looks):
        model.partial_fit(X[row : row + 1], Y[row : row + 1])
        widths = []
        for i, anytime in enumerate((False, True)):
            low, high = (end[:, 0] for end in model.coef_interval(anytime=anytime))
            missed[i] |= (theta[0] < low) | (high < theta[0])
            widths.append(high[0] - low[0])
        ratios.append(widths[1] / widths[0] if np.isfinite(widths[0]) else np.inf)
    once, anytime = missed.sum(axis=1)
    assert anytime <= scipy.stats.binom(streams, 0.05).ppf(0.999) and once > 0.3 * streams
    assert 1.5 < ratios[-1] < 2.2 and ratios[5] == np.inf
    if kind == "noise":
        assert anytime < 0.05 * streams


def test_the_scale_of_a_sequence_is_saved_and_kept(tmp_path):
    X, y = linear(200, 3)
    model = KalproxRegressor(penalty="ridge").partial_fit(X[:50], y[:50])
    model.save(tmp_path / "model.kalprox")
    again = KalproxRegressor.load(tmp_path / "model.kalprox")
    for one in (model, again):
        one.partial_fit(100 * X[50:], y[50:])
    np.testing.assert_array_equal(ends(again, anytime=True), ends(model, anytime=True))
    np.testing.assert_allclose(model._belief.rows.spread, X[:50].var(axis=0), rtol=1e-12)


def test_what_is_refused():
    X, y = linear(60, 2)
    for anytime in (False, True):
        with pytest.raises(ValueError, match="level must be strictly between 0 and 1"):
            KalproxRegressor(penalty="ridge").fit(X, y).coef_interval(1.0, anytime)
    with pytest.raises(ValueError, match="anytime=True needs forget=1"):
        KalproxRegressor(forget=0.99, penalty="ridge").fit(X, y).coef_interval(anytime=True)
    with pytest.raises(ValueError, match="anytime=True needs link='identity'"):
        KalproxRegressor(link="tanh", penalty="ridge").fit(X, np.tanh(y)).coef_interval(anytime=True)


def inputs_of_scale(scale, link, seed=0):
    """Rows whose true coefficients are of size 1 / scale, and those coefficients."""
    rng = np.random.default_rng(seed)
    X, coef = scale * rng.normal(size=(1000, 3)), np.array([1, -0.5, 0.2]) / scale
    return X, (np.tanh(X @ coef) if link == "tanh" else X @ coef) + 0.1 * rng.normal(size=1000), coef


@pytest.mark.parametrize("link", ["identity", "tanh"])
@pytest.mark.parametrize("scale", [1e-3, 1e-2, 0.1])
def test_a_penalty_that_leaves_nearly_nothing_of_the_coefficients_warns(scale, link):
    """alpha=1 on columns of size 1e-3 gave 0.28 +- 0.23 where 100 is true, and said nothing."""
    X, y, coef = inputs_of_scale(scale, link)
    model = KalproxRegressor(link=link, penalty="ridge").fit(X, y)
    with pytest.warns(PenaltyTooStrong, match="standardize=True"):
        low, high = model.coef_interval()
    assert not ((low <= coef) & (coef <= high)).any()
    free = KalproxRegressor(link=link, penalty=None).fit(X, y)
    free.coef_interval()  # no warning
    assert (np.abs(free.coef_ - coef) < 4 * free.coef_std_).all()


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_a_penalty_that_hardly_moves_the_coefficients_does_not_warn(scale):
    """The coefficients contradict the prior, but the rows outweigh it."""
    X, y, _ = inputs_of_scale(scale, "identity")
    KalproxRegressor(penalty="ridge").fit(X, y).coef_interval()


@pytest.mark.slow
def test_coefficients_drawn_from_the_prior_do_not_contradict_it():
    """At most 4 of 200 samples with 20 or 200 rows: the warning needs a probability of 0.001."""
    warned = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        X, n = rng.normal(size=(200, 5)) * [1, 0.1][seed // 2 % 2], [20, 200][seed % 2]
        y = X @ rng.normal(size=5) + rng.normal(size=200)
        warned += KalproxRegressor(penalty="ridge").fit(X[:n], y[:n])._learner.belief.interval_doubt != ""
    assert warned <= binom.ppf(0.999, 200, 0.001) + 1


def test_each_target_may_contradict_the_penalty():
    X, y, _ = inputs_of_scale(1e-2, "identity")
    noise = np.random.default_rng(1).normal(size=len(y))
    assert KalproxRegressor(penalty="ridge").fit(X, np.stack([noise, y], axis=1))._learner.belief.interval_doubt
    assert not KalproxRegressor(penalty="ridge").fit(X, np.stack([noise, noise], axis=1))._learner.belief.interval_doubt


def test_the_triangle_is_read_as_often_for_many_targets_as_for_two(monkeypatch):
    """Reading it once per target, of which it has k, took O(k^3): 170 ms a look at 400 targets of one column."""
    read, reads = LeastSquares.compact, []
    monkeypatch.setattr(LeastSquares, "compact", lambda info: reads.append(None) or read(info))
    X, y = linear(60, 4)
    counts = []
    for targets in (2, 20):
        model = KalproxRegressor(penalty=None).fit(X, np.tile(y[:, None], targets))
        reads.clear()
        model.coef_interval()
        counts.append(len(reads))
    assert counts[0] == counts[1]
