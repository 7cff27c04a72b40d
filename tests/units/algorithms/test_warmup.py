"""The rows that a nonlinear stream holds: its warm-up, and the rows that extrapolate."""

import numpy as np
import pytest

import kalprox as kp
from kalprox import models, regularizers
from kalprox.algorithms import proximal_filter
from kalprox.algorithms import state as proximal_state
from kalprox.algorithms.state import HeldRows, WarmupCutShort, bytes_of, leverages
from kalprox.posterior import InformationPosterior
from kalprox.sources import Block

SIGMOID = models.GLM("sigmoid")


def rising(n=2000, seed=0, noise=0.1):
    """A sigmoid of one sorted x, whose first rows lie on its lower plateau: rows [1 | x], y and theta."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-3, 3, n))
    theta = np.array([0.3, 2.0])
    X = np.column_stack([np.ones(n), x])
    return X, 1 / (1 + np.exp(-X @ theta)) + noise * rng.normal(size=n), theta


def test_short_blocks_are_joined_in_their_order():
    held = HeldRows.none(np.zeros(2))
    for i in range(100):
        held = held.plus(Block(np.full((1, 2), float(i)), np.array([float(i)]), np.ones(1)))
    assert held.rows == 100 and len(held.blocks) <= 7
    np.testing.assert_array_equal(held.faded(1.0, "frequency").y, np.arange(100.0))


def test_rows_on_a_plateau_determine_nothing():
    """At the estimate the link is flat, so that d'Vd is nearly zero; under the belief it is not."""
    X, y, _ = rising()
    prior = kp.Information.from_prior(np.zeros(2), 0.01 * np.eye(2))
    fit = kp.refine(SIGMOID, regularizers.Zero(), (X[:40], y[:40]), np.zeros(2), prior=prior)
    posterior = InformationPosterior(fit.information, regularizers.Zero(), prior=prior, mean=fit.mean)
    rows = Block(X[:40], y[:40])
    leverage, _, again = leverages(SIGMOID, posterior, rows)
    linear = posterior.leverage(SIGMOID.linearize_rows(fit.mean, rows.X)[1])
    assert linear.max() < 0.1 < leverage.max() and again.any()


def test_the_leverage_of_a_linear_model_is_that_of_its_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3))
    y = X @ np.ones(3) + rng.normal(size=50)
    posterior = InformationPosterior(kp.Information.from_rows(X, y), regularizers.Zero())
    leverage, _, again = leverages(models.GLM("identity"), posterior, Block(X, y))
    np.testing.assert_allclose(leverage, np.diag(X @ np.linalg.inv(X.T @ X) @ X.T), rtol=1e-9)
    np.testing.assert_array_equal(again, leverage >= 0.1)


def test_rows_that_extrapolate_are_held_and_released():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-0.5, 0.5, 300), rng.uniform(2, 3, 200), rng.uniform(-3, 3, 3000)])
    X = np.column_stack([np.ones(3500), x])
    y = 1 / (1 + np.exp(-X @ [0.3, 2.0])) + 0.3 * rng.normal(size=3500)
    alg = kp.proximal_filter(SIGMOID, regularizers.Ridge(0.01), gamma=None)
    state, held = alg.init(np.zeros(2), 100.0), []
    for i in range(0, 3500, 50):
        state = alg.step(state, X[i : i + 50], y[i : i + 50])
        assert state.rows == pytest.approx(i + 50)  # each row counts once, wherever it is
        held.append(0 if state.extrapolating is None else len(state.extrapolating))
        if i + 50 in (500, 3500):
            fit = kp.refine(SIGMOID, regularizers.Ridge(0.01), (X[: i + 50], y[: i + 50]), np.zeros(2))
            assert (np.abs(state.mean - fit.mean) < 0.2 * np.sqrt(np.diag(fit.cov))).all()
    assert state.held is None and max(held[:6]) == 0 < max(held[6:10]) and held[-1] == 0


def test_reading_a_warm_up_refines_no_rows_again(monkeypatch):
    """After the first check, the cost of reading does not depend on the number of rows held."""
    X, y, _ = rising(4000)
    alg = kp.proximal_filter(SIGMOID, regularizers.Ridge(1e-6))
    states, state = [], alg.init(np.zeros(2), None)
    for i in range(0, 600, 10):
        state = alg.step(state, X[i : i + 10], y[i : i + 10])
        states.append(state)
    assert state.held is not None and not state.converged
    for module in (proximal_filter, proximal_state):
        monkeypatch.setattr(module, "refine_held", None)
    read = [one for one in states if one.held.rows >= 20]
    assert all(np.isfinite(one.mean).all() for one in read)


def test_reading_does_not_change_what_is_learned():
    X, y, _ = rising(1500)
    alg = kp.proximal_filter(SIGMOID, regularizers.Ridge(1e-3))
    read, unread = alg.init(np.zeros(2), 100.0), alg.init(np.zeros(2), 100.0)
    for i in range(0, 1500, 30):
        read, unread = (alg.step(state, X[i : i + 30], y[i : i + 30]) for state in (read, unread))
        read.cov()
    np.testing.assert_array_equal(read.mean, unread.mean)
    np.testing.assert_array_equal(read.cov(), unread.cov())


def test_a_limit_that_cuts_the_rows_short_is_said_and_is_not_convergence():
    X, y, _ = rising()
    short = kp.proximal_filter(SIGMOID, regularizers.Ridge(1e-6), warmup=40 * 32)
    with pytest.warns(WarmupCutShort, match="cut short at 40 rows"):
        state = short.step(short.init(np.zeros(2), None), X[:40], y[:40])
    assert state.held is None and not state.converged
    with pytest.warns(WarmupCutShort, match="as many as 1280 bytes hold"):
        short.step(state, X[40:400], y[40:400])


@pytest.mark.slow
def test_a_warm_up_does_not_end_with_more_rows_than_can_be_held_on(monkeypatch):
    """Those over the limit would be linearised at once, for good, although one linearisation is not enough."""
    limit = 2000  # 50 rows
    monkeypatch.setattr(proximal_filter, "_HOLD", limit)
    ended = 0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X, theta = rng.normal(size=(3000, 3)), np.array([1.0, -1.0, 0.5])
        y = np.tanh(X @ theta) + 0.5 * rng.normal(size=3000)
        alg = kp.proximal_filter(models.GLM("tanh"), regularizers.Zero(), gamma=None)
        state = alg.init(np.zeros(3), None)
        for i in range(0, 3000, 30):
            warming_up, state = state.held is not None, alg.step(state, X[i : i + 30], y[i : i + 30])
            if warming_up and state.held is None:
                assert state.extrapolating is None or bytes_of(state.extrapolating) <= limit
                ended += 1
    assert ended == 5
