"""Positive amounts, counts of trials, and a penalty that does not shrink large coefficients: what GLMs and KKT say."""

import numpy as np
import pytest
import statsmodels.api as sm

import kalprox as kp
from kalprox import KalproxRegressor
from kalprox.likelihoods import Binomial
from kalprox.penalties import MCP

pytestmark = pytest.mark.filterwarnings("ignore")
GAMMA, TRIALS = sm.families.Gamma(sm.families.links.Log()), 12


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 3))
    mean = 1000 * np.exp(X @ [0.4, -0.3, 0.2])
    p = 1 / (1 + np.exp(0.5 - X @ [0.5, -0.3, 0.2]))
    return X, rng.gamma(4.0, mean / 4), rng.binomial(TRIALS, p).astype(float), rng


def glm(y, X, family, **weights):
    return sm.GLM(y, sm.add_constant(X), family=family, **weights).fit(tol=1e-14)


@pytest.mark.parametrize("weighted", [False, True])
def test_amounts_are_those_of_a_glm(rows, weighted):
    X, y, _, rng = rows
    w = rng.integers(0, 4, len(y)).astype(float) if weighted else None
    reference = glm(y, X, GAMMA, **({"freq_weights": w} if weighted else {}))
    model = KalproxRegressor(likelihood="gamma", penalty=None).fit(X, y, sample_weight=w)
    np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], reference.params, rtol=1e-6)
    np.testing.assert_allclose(np.r_[model.intercept_std_, model.coef_std_], reference.bse, rtol=1e-6)
    assert model.noise_var_ == pytest.approx(reference.scale, rel=1e-6)


def test_units_of_amounts_change_the_intercept_alone(rows):
    X, y, _, _ = rows
    one, other = (KalproxRegressor(likelihood="gamma", penalty=None) for _ in range(2))
    for i in range(0, 600, 50):
        one.partial_fit(X[i : i + 50], y[i : i + 50])
        other.partial_fit(X[i : i + 50], 1e-6 * y[i : i + 50])
    assert np.all(abs(one.coef_ - other.coef_) < 0.05 * one.coef_std_)
    np.testing.assert_allclose(one.coef_std_, other.coef_std_, rtol=0.01)


@pytest.mark.parametrize(("size", "n"), [pytest.param(1, 240, marks=pytest.mark.slow), (60, 600)])
def test_a_stream_of_amounts_is_calibrated_and_close_to_the_glm(rows, size, n):
    X, y, _, _ = rows
    stream = KalproxRegressor(likelihood="gamma", penalty=None)
    for i in range(0, n, size):
        stream.partial_fit(X[i : i + size], y[i : i + size])
    reference = glm(y[:n], X[:n], GAMMA)
    assert np.all(abs(stream.coef_ - reference.params[1:]) < 0.25 * reference.bse[1:])
    np.testing.assert_allclose(stream.coef_std_, reference.bse[1:], rtol=0.05)
    assert stream.noise_var_ == pytest.approx(reference.scale, rel=0.1)
    assert stream.diagnostics_.verdict().word == "calibrated"
    low, high = stream.predict_interval(X[n:], level=0.9)
    covered = ((low <= y[n:]) & (y[n:] <= high)).mean()
    assert abs(covered - 0.9) < 4 * (0.09 / (len(y) - n)) ** 0.5 and (low > 0).all()


def test_another_spread_of_amounts_is_told_in_words_about_amounts(rows):
    X, _, _, _ = rows
    rng = np.random.default_rng(1)
    y = rng.gamma(4 * np.exp(X @ [0.4, -0.3, 0.2]), 0.25)  # with a variance that is a multiple of the mean
    stream = KalproxRegressor(likelihood="gamma", penalty=None)
    for i in range(0, len(y), 60):
        stream.partial_fit(X[i : i + 60], y[i : i + 60])
    verdict = stream.diagnostics_.verdict()
    assert verdict.word == "unequal spread" and "quasi-poisson" in verdict.advice and "amounts" in verdict.advice
    for impossible in (0.0, -1.0):
        with pytest.raises(ValueError, match="y must be positive with likelihood='gamma'; 1 of 3 targets"):
            KalproxRegressor(likelihood="gamma").fit(np.eye(3), [1.0, impossible, 2.0])


def test_trials_in_both_ways_are_those_of_a_glm(rows):
    X, _, k, _ = rows
    reference = glm(np.c_[k, TRIALS - k], X, sm.families.Binomial())
    n = np.full(len(k), float(TRIALS))
    for likelihood, y, w in ((Binomial(trials=TRIALS), k, None), (Binomial(), k / TRIALS, n)):
        model = KalproxRegressor(likelihood=likelihood, penalty=None).fit(X, y, sample_weight=w)
        np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], reference.params, rtol=1e-6)
        np.testing.assert_allclose(model.coef_std_, reference.bse[1:], rtol=1e-6)
    shares = KalproxRegressor(likelihood=Binomial(), penalty=None).partial_fit(X, k / TRIALS, sample_weight=n)
    assert str(shares.diagnostics_.verdict()).startswith("not judged, because Binomial(trials=None) does not say")
    different = np.random.default_rng(2).integers(1, 30, len(k)).astype(float)
    k = np.minimum(k, different)
    reference = glm(np.c_[k, different - k], X, sm.families.Binomial())
    model = KalproxRegressor(likelihood=Binomial(), penalty=None).fit(X, k / different, sample_weight=different)
    np.testing.assert_allclose(model.coef_, reference.params[1:], rtol=1e-6)
    np.testing.assert_allclose(model.coef_std_, reference.bse[1:], rtol=1e-6)


def test_a_stream_of_trials_is_judged_and_covers(rows):
    X, _, k, _ = rows
    stream, n = KalproxRegressor(likelihood=Binomial(trials=TRIALS), penalty=None), 900
    for i in range(0, n, 60):
        stream.partial_fit(X[i : i + 60], k[i : i + 60])
    verdict = stream.diagnostics_.verdict()
    assert verdict.word == "calibrated" and "probabilities and intervals of the counts" in verdict.advice
    low, high = stream.predict_interval(X[n:], level=0.9)
    assert 0.86 < ((low <= k[n:]) & (k[n:] <= high)).mean() <= 1 and low.min() >= 0 and high.max() <= TRIALS
    rng = np.random.default_rng(3)
    p = 1 / (1 + np.exp(0.5 - X @ [0.5, -0.3, 0.2]))
    alike = rng.binomial(TRIALS, rng.beta(3 * p, 3 * (1 - p))).astype(float)  # trials of a row that are alike
    spread = KalproxRegressor(likelihood=Binomial(trials=TRIALS), penalty=None)
    for i in range(0, n, 60):
        spread.partial_fit(X[i : i + 60], alike[i : i + 60])
    assert spread.diagnostics_.verdict().word == "over-confident"
    assert "independent trials" in spread.diagnostics_.verdict().advice
    with pytest.raises(ValueError, match=r"y must be between 0 and 12 .* 1 of 3 targets"):
        KalproxRegressor(likelihood=Binomial(trials=12)).fit(np.eye(3), [1.0, 13.0, 2.0])
    with pytest.raises(ValueError, match=r"trials must be a whole number >= 1, the same for all rows; got 2.5"):
        Binomial(trials=2.5)


@pytest.mark.parametrize("likelihood", [pytest.param("gamma", marks=pytest.mark.slow), Binomial(trials=TRIALS)])
def test_they_are_saved_and_merged_and_forget(likelihood, rows, tmp_path):
    X, y, k, _ = rows
    y = y if likelihood == "gamma" else k
    model = KalproxRegressor(likelihood=likelihood, penalty=None, forget="auto").fit(X, y)
    model.save(tmp_path / "model.kalprox")
    loaded = kp.load(tmp_path / "model.kalprox")
    assert np.array_equal(loaded.coef_, model.coef_)
    assert str(loaded.diagnostics_.verdict()) == str(model.diagnostics_.verdict())
    whole, first, second = (KalproxRegressor(likelihood=likelihood, penalty=None) for _ in range(3))
    whole.fit(X, y)
    merged = first.partial_fit(X[:600], y[:600]).merge(second.partial_fit(X[600:], y[600:]))
    assert np.all(abs(merged.coef_ - whole.coef_) < 0.3 * whole.coef_std_)  # streams, which linearise each row once
    np.testing.assert_allclose(merged.coef_std_, whole.coef_std_, rtol=0.05)


# ---- a penalty that is not convex --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sparse():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 12))
    X[:, 1] += X[:, 0]
    return X, X @ np.r_[3.0, -2.0, 1.5, 0.3, np.zeros(8)] + rng.normal(size=200) + 1


def violation(X, y, model, alpha, width):
    """The distance of the gradient from the subdifferential of the penalty, relative to that at zero."""
    coef, left = model.coef_, y - X @ model.coef_ - model.intercept_
    slope = X.T @ left
    pull = alpha * np.maximum(1 - abs(coef) / width, 0) * np.sign(coef)
    away = np.where(coef != 0, abs(slope - pull), np.maximum(abs(slope) - alpha, 0))
    return max(away.max(), abs(left.sum())) / abs(X.T @ y).max()


@pytest.mark.parametrize(
    ("alpha", "width"),
    [(20.0, 1.0), *(pytest.param(*one, marks=pytest.mark.slow) for one in [(40.0, 0.5), (100.0, 0.3), (5.0, 5.0)])],
)
def test_mcp_is_optimal_and_depends_on_the_rows_alone(alpha, width, sparse):
    X, y = sparse
    model, stream, reverse = (KalproxRegressor(penalty=MCP(width), alpha=alpha) for _ in range(3))
    model.fit(X, y)
    assert violation(X, y, model, alpha, width) < 1e-9 and (model.coef_ == 0).any()
    for i in range(0, 200, 7):
        stream.partial_fit(X[i : i + 7], y[i : i + 7])
    reverse.fit(X[::-1], y[::-1])
    for other in (stream, reverse):
        np.testing.assert_allclose(other.coef_, model.coef_, rtol=1e-9, atol=1e-12)


def test_mcp_leaves_large_coefficients_to_least_squares(sparse):
    X, y = sparse
    model = KalproxRegressor(penalty=MCP(0.3), alpha=100.0).fit(X, y)
    kept = model.coef_ != 0
    reference = sm.OLS(y, sm.add_constant(X[:, kept])).fit()
    assert kept.tolist() == [True] * 3 + [False] * 9
    np.testing.assert_allclose(model.coef_[kept], reference.params[1:], rtol=1e-9)
    np.testing.assert_allclose(model.coef_std_[kept], reference.bse[1:], rtol=1e-9)
    wide = KalproxRegressor(penalty=MCP(1e9), alpha=20.0).fit(X, y)
    lasso = KalproxRegressor(penalty="l1", alpha=20.0).fit(X, y)
    np.testing.assert_allclose(wide.coef_, lasso.coef_, atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"alpha": "auto"}, marks=pytest.mark.slow),
        {"likelihood": "poisson"},
        {"likelihood": "huber"},
        {"forget": 0.98},
        pytest.param({"forget": "auto"}, marks=pytest.mark.slow),
        {"missing": "impute"},
        {"coef_cov": "robust"},
        {"structure": "diagonal"},
    ],
    ids=str,
)
def test_mcp_goes_with_other_settings(settings, sparse, tmp_path):
    X, y = sparse
    y = np.round(np.exp(y / 6)) if settings.get("likelihood") == "poisson" else y
    model = KalproxRegressor(**{"penalty": "mcp", "alpha": 8.0} | settings).fit(X, y)
    assert (model.coef_ == 0).sum() >= 2 and np.isfinite(model.coef_std_).all() and model.converged_
    model.save(tmp_path / "model.kalprox")
    assert np.array_equal(kp.load(tmp_path / "model.kalprox").coef_, model.coef_)
