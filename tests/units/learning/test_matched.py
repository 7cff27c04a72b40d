"""Rows of another likelihood that are learned one by one and forgotten: against dense formulas in the test."""

import numpy as np
import pytest
from scipy import special

from kalprox.forgetting import ByRow, RandomWalk
from kalprox.learning.bank import member_settings
from kalprox.learning.matched import Matched
from kalprox.learning.settings import Settings
from kalprox.likelihoods import Bernoulli
from kalprox.sources import Block

NODES = np.linspace(-9, 9, 20_001)
MASS = np.exp(-(NODES**2) / 2)


def stream(n=40):
    rng = np.random.default_rng(0)
    X = 3 + rng.normal(size=(n, 2))
    return X, (X[:, 0] - 3 + rng.logistic(size=n) > 0).astype(float)


def started(way, X, y):
    settings = member_settings(Settings.of(likelihood="bernoulli", forget="auto"), way)
    return Matched.start(settings, [Block(X, y)])


def by_hand(X, y, factor, step, center):
    """Return the probabilities before each row, and the last estimate, by covariances and inverses."""
    inputs, p = np.column_stack([np.ones(len(X)), X - center]), 3
    prior = np.diag([0.01, 1.0, 1.0])
    A, b, found = np.zeros((p, p)), np.zeros(p), []
    for x, target in zip(inputs, y, strict=True):
        V = np.linalg.inv(prior + A)
        f, s = x @ V @ b, x @ V @ x
        values = f + np.sqrt(s) * NODES
        mass = MASS / MASS.sum()
        found.append(mass @ special.expit(values))
        tilted = mass * special.expit((2 * target - 1) * values)
        mean = tilted @ values / tilted.sum()
        variance = tilted @ (values - mean) ** 2 / tilted.sum()
        w = 1 / variance - 1 / s
        A, b = factor * A + w * np.outer(x, x), factor * b + (mean / variance - f / s) * x
        if step:
            a = A[:, 0].copy()
            b = b - step * b[0] / (1 + step * a[0]) * a
            A = A - step / (1 + step * a[0]) * np.outer(a, a)
    return np.array(found), np.linalg.solve(prior + A, b)


@pytest.mark.parametrize(("way", "factor", "step"), [(ByRow(1.0), 1, 0), (ByRow(0.9), 0.9, 0)])
def test_probabilities_and_estimates_are_those_of_dense_formulas(way, factor, step):
    X, y = stream()
    start = started(way, X, y)
    after, found = start._predicted(Block(X, y))
    p, theta = by_hand(X, y, factor, step, start.fixed.center)
    late = slice(6, None)  # before, 20 nodes are few for a belief as wide as the prior: errors of up to 0.004
    np.testing.assert_allclose(found.mean[late], p[late], atol=1e-3)
    np.testing.assert_allclose(after.belief.posterior.mean, theta, atol=1e-3)


def test_walk_of_the_intercept_is_a_step_of_its_variance():
    X, y = stream()
    plain, walks = (started(way, X, y).learn(Block(X, y)) for way in (ByRow(1.0), RandomWalk(0.0, intercept=0.5)))
    before = started(ByRow(1.0), X, y).learn(Block(X[:-1], y[:-1]))
    live = before.row_filter()
    live.root = live.root.walking(0.5)
    last = Block(X[-1:], y[-1:])
    stepped = before.after_filter(live, last, live.learn_rows(last))[0]
    added = np.zeros((3, 3))
    added[0, 0] = 0.5
    some = np.linalg.inv(plain.A + 1e-12 * np.eye(3)) + added
    np.testing.assert_allclose(np.linalg.inv(stepped.A + 1e-12 * np.eye(3)), some, rtol=1e-5, atol=1e-6)
    assert walks.belief.posterior.var()[0] > plain.belief.posterior.var()[0]


def test_the_filter_and_the_belief_predict_the_same_and_any_split_does():
    X, y = stream()
    start = started(ByRow(0.95), X, y)
    whole = start.learn(Block(X, y))
    parts = start
    for i in range(0, len(y), 7):
        parts = parts.learn(Block(X[i : i + 7], y[i : i + 7]))
    np.testing.assert_allclose(parts.A, whole.A, rtol=1e-10)
    np.testing.assert_allclose(whole.row_filter().predict(X).mean, whole.belief.predict(X).mean, rtol=1e-8)
    np.testing.assert_allclose(
        whole.row_filter().root.output(X)[1], whole.belief.posterior.leverage(whole.fixed.rows(X)), rtol=1e-8
    )


def test_without_the_first_row_in_its_sums_the_belief_says_the_same():
    X, y = stream()
    found = started(ByRow(0.95), X[:1], y[:1]).learn(Block(X, y))
    other = found.without_rows()
    assert not np.array_equal(other.fixed.center, X[0])
    np.testing.assert_allclose(
        other.belief.coef, found.belief.coef, atol=2e-2
    )  # the weak prior of the intercept is elsewhere


def test_the_scales_of_columns_do_not_matter_for_the_digits_of_standard_errors():
    X, y = stream()
    found = started(ByRow(0.95), X[:1] * [1e6, 1], y[:1]).learn(Block(X * [1e6, 1], y))
    V = found.A + np.diag(found._prior)
    D = np.sqrt(V.diagonal())
    expected = np.linalg.inv(V / np.multiply.outer(D, D)).diagonal() / D**2
    np.testing.assert_allclose(found.belief.posterior.var(), expected, rtol=1e-9)


def test_weights_are_repetitions_and_bad_targets_are_refused():
    X, y = stream(6)
    start = started(ByRow(0.9), X, y)
    none = start.learn(Block(X, y, np.array([1.0, 1, 1, 1, 1, 0])))
    np.testing.assert_allclose(none.A, start.learn(Block(X[:5], y[:5])).A, rtol=1e-12)
    assert start.learn(Block(X, y, np.full(6, 2.0))).rows == pytest.approx(start.learn(Block(X, y)).rows * 1.0, rel=0.7)
    assert isinstance(start.belief.posterior.likelihood, Bernoulli)
