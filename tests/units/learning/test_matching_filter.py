"""The filter of single rows of several classes: equal to the belief that takes them one by one, and saved as it is."""

import pickle

import numpy as np
import pytest
from scipy import optimize, special

from kalprox import KalproxClassifier
from kalprox.learning.compose import started
from kalprox.learning.learner import Learner
from kalprox.learning.matched import ClassFilter, _at_mode
from kalprox.learning.settings import Settings
from kalprox.sources import Block


def stream(n, d=1, m=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, (X @ rng.normal(size=(d, m)) - np.log(-np.log(rng.random((n, m))))).argmax(axis=1)


@pytest.mark.slow
def test_rows_equal_those_that_the_belief_takes_one_by_one():
    X, y = stream(260)
    targets = np.eye(3)[y]
    settings = Settings.of(likelihood="categorical")
    rows, state = Learner(settings), started(settings, [Block(X[:1], targets[:1])])
    for i in range(len(X)):
        block = Block(X[i : i + 1].copy(), targets[i : i + 1].copy())
        rows.learn(block)
        state = state.learn(block)
        if i > 1:
            assert isinstance(rows.stream.live(block.X), ClassFilter)
    assert rows.state.proximal.held is None
    belief = state.belief
    difference = np.abs(rows.belief.coef - belief.coef) / belief.coef_std
    assert difference.max() < 0.05  # a row that extrapolates is refined with those folded by then
    np.testing.assert_allclose(rows.belief.coef_std, belief.coef_std, rtol=0.01)
    assert rows.score.rows > 220  # all but those of the first whose log odds had a std above 1


def test_a_row_of_a_wide_belief_is_learned_at_its_mode():
    rng = np.random.default_rng(1)
    for m in (3, 5):
        f, root = rng.normal(size=m), 3 * rng.normal(size=(m, m))
        S, y = root @ root.T, np.eye(m)[1]
        targets, rows = _at_mode(y, f, S)
        precision = np.linalg.inv(S)
        # The minimiser of the least-squares problem and the belief, and that of the loss and the belief.
        found = f + np.linalg.solve(rows.T @ rows + precision, rows.T @ targets)
        loss = optimize.minimize(
            lambda g, f=f, P=precision: special.logsumexp(g) - g[1] + (g - f) @ P @ (g - f) / 2,
            f,
            method="BFGS",
            tol=1e-10,
        )
        np.testing.assert_allclose(special.softmax(found), special.softmax(loss.x), atol=1e-4)


def test_a_saved_stream_of_classes_goes_on_bit_for_bit(tmp_path):
    X, y = stream(90, d=2)
    model = KalproxClassifier()
    for i in range(50):
        model.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1, 2])
    model.save(tmp_path / "m.kalprox")
    others = [KalproxClassifier.load(tmp_path / "m.kalprox"), pickle.loads(pickle.dumps(model))]
    for i in range(50, 90):
        for one in (model, *others):
            one.partial_fit(X[i : i + 1], y[i : i + 1])
    for one in others:
        np.testing.assert_array_equal(one.coef_, model.coef_)
        np.testing.assert_array_equal(one.predict_proba(X), model.predict_proba(X))
