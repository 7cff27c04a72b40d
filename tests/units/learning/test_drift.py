"""A random walk against dense formulas, in any division into batches."""

import numpy as np
import pytest
from drifting import kalman, stream, walking_information

from kalprox.forgetting import RandomWalk
from kalprox.learning import drift
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.learning.step import Call
from kalprox.sources import Block

WALKS = {
    "all": (RandomWalk(0.01), [0.01] * 4),
    "intercept": (RandomWalk(0, intercept=0.05), [0.05, 0, 0, 0]),
    "one": (RandomWalk((0, 0.1, 0), intercept=0), [0, 0, 0.1, 0]),
}


def learned(kind, X, y, batch=None, **settings):
    learner = Learner(Settings.of(forget=kind, **settings))
    for start in range(0, len(y), batch or len(y)):
        rows = slice(start, start + (batch or len(y)))
        learner.learn(Block(X[rows], y[rows]))
    return learner


@pytest.mark.parametrize(("name", "far"), [*((name, 0.0) for name in WALKS), ("intercept", 1e6)])
def test_a_random_walk_is_generalised_least_squares(name, far):
    walk, Q = WALKS[name]
    X, y, _ = stream()
    A, b, yy = walking_information(X, y, np.array(Q))
    theta = np.linalg.solve(A, b)
    variance = (yy - b @ theta) / (len(y) - 4)
    belief = learned(walk, X + far, y, penalty=None).belief
    close = {"rtol": 1e-9} if far else {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(belief.coef, theta[1:], **close)
    np.testing.assert_allclose(belief.intercept + belief.coef.sum() * far, theta[0], rtol=1e-4 if far else 1e-10)
    np.testing.assert_allclose(belief.noise.variance, variance, **close)
    np.testing.assert_allclose(belief.coef_std, np.sqrt(np.diag(np.linalg.inv(A))[1:] * variance), **close)
    assert float(belief.noise.dof) == len(y) - 4


@pytest.mark.parametrize("name", WALKS)
def test_a_random_walk_predicts_as_the_kalman_filter_does(name):
    walk, Q = WALKS[name]
    X, y, _ = stream()
    start, noise = 20, 1.3
    A, b, _ = walking_information(X[:start], y[:start], np.array(Q))
    V = np.linalg.inv(A)
    predicted, m, V = kalman(V @ b, noise * V, X[start:], y[start:], noise * np.array(Q), noise)
    learner = learned(walk, X[:start], y[:start], penalty=None, noise=noise)
    mean, std = learner.learn(Block(X[start:], y[start:]), call=Call(every_row=True))
    np.testing.assert_allclose(mean, predicted[:, 0], rtol=1e-9)
    np.testing.assert_allclose(std**2, predicted[:, 1], rtol=1e-9)
    np.testing.assert_allclose(learner.belief.coef, m[1:], rtol=1e-9)
    np.testing.assert_allclose(learner.belief.covariance, V[1:, 1:], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [None, "ridge", "l1"])
@pytest.mark.parametrize("kind", [WALKS["all"][0], WALKS["intercept"][0]])
def test_any_division_into_batches_gives_the_same(kind, penalty):
    X, y, _ = stream()
    whole = learned(kind, X, y, penalty=penalty).belief
    for batch, diagnose in ((1, False), (7, False), (100, True)):
        belief = learned(kind, X, y, batch, penalty=penalty, diagnose=diagnose).belief
        np.testing.assert_allclose(belief.coef, whole.coef, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(belief.coef_std, whole.coef_std, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("penalty", [None, "ridge"])
@pytest.mark.parametrize("kind", [WALKS["all"][0], WALKS["one"][0]])
def test_prequential_predictions_are_those_of_predict(kind, penalty):
    X, y, _ = stream(46)
    mean, std = Learner(Settings.of(forget=kind, penalty=penalty)).learn(Block(X, y), call=Call(every_row=True))
    learner = learned(kind, X[:40], y[:40], penalty=penalty)
    for i in range(40, 46):
        found = learner.predict(X[i : i + 1])
        np.testing.assert_allclose((found.mean[0], found.std[0]), (mean[i], std[i]), rtol=1e-9)
        learner.learn(Block(X[i : i + 1], y[i : i + 1]))


def test_a_large_step_keeps_the_digits():
    """After many rows that do not drift, a large q makes a Cholesky factor of 1e10: rows are then taken by QR."""
    X, y, _ = stream(64)
    exact = learned(RandomWalk(1e10), X, y, penalty=None)
    np.testing.assert_allclose(exact.belief.mean(X[-1:]), y[-1:], rtol=1e-6)
    still = learned(1.0, np.tile(X, (50, 1)), np.tile(y, 50), penalty=None)
    info = still.belief.information
    kind = RandomWalk(0, intercept=10.0)
    found = drift.fold_drifting(info, kind, Block(X, y), None, intercept=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift, "_LARGE", -1.0)
        by_qr = drift.fold_drifting(info, kind, Block(X, y), None, intercept=True)
    np.testing.assert_allclose(found.with_intercept().solve(), by_qr.with_intercept().solve(), rtol=1e-9)


def test_rows_of_weight_zero_are_no_rows_and_weights_are_repetitions_in_one_step():
    X, y, _ = stream(60)
    weights = np.tile([1.0, 0.0, 2.0], 20)
    odd = Block(np.where(weights[:, None] > 0, X, np.nan), y, weights)
    some = weights > 0
    learners = [Learner(Settings.of(forget=RandomWalk(1e-3), diagnose=False)) for _ in range(2)]
    learners[0].learn(odd)
    learners[1].learn(Block(X[some], y[some], weights[some]))
    np.testing.assert_array_equal(learners[0].belief.coef, learners[1].belief.coef)
    assert float(learners[0].belief.information.rows) == weights.sum()


def test_several_targets_walk_alike():
    X, y, _ = stream(80)
    both = learned(RandomWalk(0.01), X, np.column_stack([y, -2 * y])).belief
    one = learned(RandomWalk(0.01), X, y).belief
    np.testing.assert_allclose(both.coef, np.stack([one.coef, -2 * one.coef]), rtol=1e-9)


def test_merge_and_sources_without_order_are_refused_by_name():
    kind = RandomWalk(0.01)
    X, y, _ = stream(40)
    a, b = (learned(kind, X[rows], y[rows]) for rows in (slice(20), slice(20, 40)))
    with pytest.raises(ValueError, match=rf"merge needs forget=1, .* got forget={type(kind).__name__}"):
        a.merge(b)

    class NoOrder:
        fold = None

    with pytest.raises(ValueError, match=type(kind).__name__):
        a.fit(NoOrder())


def test_what_is_not_kept_is_not_said():
    X, y, _ = stream(60)
    belief = learned(RandomWalk(0.01), X, y).belief
    assert belief.facts.column_std is None and (belief.effects == np.abs(belief.coef)).all()
    with pytest.raises(ValueError, match="log_evidence_ needs"):
        belief.log_evidence  # noqa: B018
    assert np.isfinite(learned(RandomWalk(0.01), X, y, alpha="auto").belief.facts.alpha)


def test_q_of_another_number_of_coefficients_is_refused_before_a_row_is_learned():
    X, y, _ = stream(20)
    learner = Learner(Settings.of(forget=RandomWalk((0.1, 0.2), intercept=0)))
    with pytest.raises(ValueError, match="one entry per coefficient, 3; got 2"):
        learner.learn(Block(X, y))
    assert not learner.is_fitted


def test_settings_may_change_between_batches():
    X, y, _ = stream(60)
    learner = learned(RandomWalk(0.01), X[:30], y[:30])
    learner.learn(Block(X[30:], y[30:]), Settings.of(forget=0.99))
    assert learner.n_rows == 60 and learner.settings.forgetting.per_row == 0.99
