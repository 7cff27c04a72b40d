"""Forgetting by time: least squares with explicit weights, in any division into batches, and for every likelihood."""

import numpy as np
import pytest
from drifting import least_squares, stream

from kalprox.forgetting import ByTime
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.learning.step import Call
from kalprox.sources import ArraySource, Block

HALF_LIFE = 40.0


def rows(X, y, times, some=slice(None), weights=None):
    return Block(X[some], y[some], None if weights is None else weights[some], times=times[some])


def learned(X, y, times, batch=None, weights=None, **settings):
    learner = Learner(Settings.of(**{"forget": ByTime(HALF_LIFE)} | settings))
    for start in range(0, len(y), batch or len(y)):
        learner.learn(rows(X, y, times, slice(start, start + (batch or len(y))), weights))
    return learner


@pytest.mark.parametrize("penalty", [None, "ridge"])
@pytest.mark.parametrize("batch", [None, 1, 7])
def test_weights_are_halved_with_every_half_life(batch, penalty):
    X, y, times = stream()
    belief = learned(X, y, times, batch, penalty=penalty, diagnose=batch != 1).belief
    weights = 0.5 ** ((times[-1] - times) / HALF_LIFE)
    expected = least_squares(X, y, weights, 0.0 if penalty is None else 1.0)
    np.testing.assert_allclose(belief.coef, expected[1:], rtol=1e-10)
    np.testing.assert_allclose(belief.information.rows, weights.sum(), rtol=1e-10)
    np.testing.assert_allclose(belief.information.squares, (weights**2).sum(), rtol=1e-10)


def test_a_gap_forgets_and_rows_at_one_time_do_not_forget_each_other():
    X, y, _ = stream(100)
    times = np.repeat([0.0, 10 * HALF_LIFE], 50)
    belief = learned(X, y, times, penalty=None).belief
    expected = least_squares(X, y, np.repeat([0.5**10, 1.0], 50))
    np.testing.assert_allclose(belief.coef, expected[1:], rtol=1e-10)
    assert float(belief.information.rows) == pytest.approx(50 + 50 / 1024)


@pytest.mark.parametrize("penalty", [None, "ridge", "l1"])
def test_a_row_is_predicted_at_its_own_time(penalty):
    """By prequential, by a filter of single rows, and by what is known at that time; also after a long gap."""
    X, y, times = stream(60)
    times[50:] += 3 * HALF_LIFE
    mean, std = Learner(Settings.of(forget=ByTime(HALF_LIFE), penalty=penalty)).learn(
        rows(X, y, times), call=Call(every_row=True)
    )
    learner = learned(X[:48], y[:48], times[:48], penalty=penalty)
    for i in range(48, 53):
        one = slice(i, i + 1)
        found = learner.reader(X[one], time=times[i]).predict(X[one])
        np.testing.assert_allclose((found.mean[0], found.std[0]), (mean[i], std[i]), rtol=1e-9)
        learner.learn(rows(X, y, times, one))


def test_the_std_of_what_is_known_grows_while_no_row_comes():
    X, y, times = stream()
    learner = learned(X, y, times, penalty=None)
    belief = learner.belief
    x, now = X[:5], times[-1]
    variances = []
    for halves in (0, 1, 2, 10):
        later = learner.state.ahead(now + halves * HALF_LIFE).belief
        np.testing.assert_allclose(later.mean(x), belief.mean(x), rtol=1e-10)
        assert float(later.noise.variance) == pytest.approx(float(belief.noise.variance))
        variances.append(later.posterior.leverage(later.design.rows(x)))
    np.testing.assert_allclose(variances / variances[0], np.outer([1, 2, 4, 1024], np.ones(5)), rtol=1e-10)
    ridge = learned(X, y, times, penalty="ridge")
    far = ridge.state.ahead(now + 100 * HALF_LIFE).belief
    np.testing.assert_allclose(far.coef, 0, atol=1e-9)  # the prior is left
    np.testing.assert_allclose(far.coef_std, np.sqrt(float(far.noise.variance)), rtol=1e-6)
    with pytest.raises(ValueError, match="must not be before that of the last row"):
        learner.state.ahead(now - 1)


def test_a_direction_that_is_not_visited_for_long_is_forgotten():
    X, y, times = stream()
    X[120:, 2] = 0.0
    before, after = (learned(X[:n], y[:n], times[:n], penalty=None, fit_intercept=False).belief for n in (120, 240))
    ratio = after.coef_std / before.coef_std
    assert ratio[2] > 2 and (ratio[:2] < 1.5).all()


@pytest.mark.parametrize(
    ("noise", "coef_cov"),
    [
        ("learn", "model"),
        ("learn", "robust"),
        ("inputs", "model"),
        pytest.param("inputs", "robust", marks=pytest.mark.slow),
    ],
)
def test_all_that_fades_by_row_fades_by_time(noise, coef_cov):
    """Regular times, and the half-life of a factor: the same numbers."""
    X, y, _ = stream(400)
    factor, times = 0.99, np.arange(400.0)
    settings = {"noise": noise, "coef_cov": coef_cov}
    by_row, by_time = (
        Learner(Settings.of(forget=forget, **settings)) for forget in (factor, ByTime(np.log(0.5) / np.log(factor)))
    )
    for start in range(0, 400, 50):
        some = slice(start, start + 50)
        by_row.learn(Block(X[some], y[some]))
        by_time.learn(rows(X, y, times, some))
    tol = 1e-9 if noise == "learn" else 1e-2  # predictions, which the variance is learned from, are one row later
    np.testing.assert_allclose(by_time.belief.coef, by_row.belief.coef, rtol=tol, atol=tol)
    np.testing.assert_allclose(by_time.belief.coef_std, by_row.belief.coef_std, rtol=max(tol, 1e-3))


def test_alpha_that_is_chosen_by_prediction():
    X, y, times = stream(300)
    belief = learned(X, y, times, 60, penalty="l1", alpha="auto").belief
    assert np.isfinite(belief.facts.alpha) and belief.predicts


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson", "student"])
def test_every_likelihood_forgets_by_time(likelihood):
    rng = np.random.default_rng(0)
    X, times = rng.normal(size=(240, 2)), np.arange(240.0)
    f = X @ [0.6, -0.3]
    y = {"bernoulli": (f + rng.logistic(size=240) > 0).astype(float), "poisson": rng.poisson(np.exp(f)).astype(float)}
    y = y.get(likelihood, f + rng.normal(size=240))
    factor = 0.995
    kind = ByTime(np.log(0.5) / np.log(factor))
    by_time = learned(X, y, times, 60, forget=kind, likelihood=likelihood)
    by_row = Learner(Settings.of(forget=factor, likelihood=likelihood))
    for start in range(0, 240, 60):
        by_row.learn(Block(X[start : start + 60], y[start : start + 60]))
    np.testing.assert_allclose(by_time.belief.coef, by_row.belief.coef, rtol=1e-8)
    np.testing.assert_allclose(by_time.belief.coef_std, by_row.belief.coef_std, rtol=1e-8)
    now, later = (by_time.state.ahead(239.0 + t).belief.predict(X[:3]) for t in (0, 2 * kind.half_life))
    assert (np.abs(now.mean - later.mean) < 0.5).all()
    stds = [by_time.state.ahead(239.0 + t).belief.coef_std for t in (0, kind.half_life, 8 * kind.half_life)]
    assert (stds[0] < stds[1]).all() and (stds[1] < stds[2]).all()
    fitted = Learner(Settings.of(forget=kind, likelihood=likelihood))
    fitted.fit(ArraySource(X, y, times=times))
    assert fitted.belief.time == 239.0
    np.testing.assert_allclose(fitted.belief.coef, by_time.belief.coef, atol=0.05)
    with pytest.raises(ValueError, match="merge needs forget=1"):
        by_time.merge(fitted)


def test_times_that_are_missing_unwanted_or_go_back_leave_the_model_as_it_was():
    X, y, times = stream(80)
    learner = learned(X[:40], y[:40], times[:40])
    before = learner.belief.coef
    with pytest.raises(ValueError, match=r"row 1: times must not go backwards; .* Sort the rows"):
        learner.learn(Block(X[40:42], y[40:42], times=times[[41, 40]]))
    with pytest.raises(ValueError, match="row 0: times must not go backwards"):
        learner.learn(Block(X[:30], y[:30], times=times[:30]), call=Call(every_row=True))
    for block in (Block(X[40:42], y[40:42]), Block(X[40:41], y[40:41])):
        with pytest.raises(ValueError, match="needs the time of every row"):
            learner.learn(block)
    assert (learner.belief.coef == before).all() and learner.n_rows == 40
    other = Learner(Settings.of(forget=0.9))
    other.learn(Block(X, y))
    for n in (1, 40):
        with pytest.raises(ValueError, match=r"needs forget=ByTime\(half_life\), .* got forget=0.9"):
            other.learn(Block(X[:n], y[:n], times=times[:n]))
    with pytest.raises(ValueError, match=r"needs forget=ByTime"):
        other.state.ahead(3.0)
