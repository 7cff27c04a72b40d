"""A window is least squares on its rows, however long the stream was, and without a loss of digits."""

import numpy as np
import pytest
from drifting import least_squares, stream

from kalprox.forgetting import Window
from kalprox.learning.drift import WindowRows
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.learning.step import Call
from kalprox.sources import Block


def learned(size, X, y, batch, weights=None, **settings):
    learner = Learner(Settings.of(forget=Window(size), **settings))
    for start in range(0, len(y), batch):
        rows = slice(start, start + batch)
        learner.learn(Block(X[rows], y[rows], None if weights is None else weights[rows]))
    return learner


@pytest.mark.parametrize("penalty", [None, "ridge"])
@pytest.mark.parametrize("batch", [1, 7, 64, 100, 101, 300])
def test_a_window_is_least_squares_on_its_rows(batch, penalty):
    X, y, _ = stream(300, far=5.0)
    state = learned(100, X, y, batch, penalty=penalty, diagnose=False).state
    belief = state.belief
    expected = least_squares(X[-100:], y[-100:], np.ones(100), 0.0 if penalty is None else 1.0)
    np.testing.assert_allclose(belief.coef, expected[1:], rtol=1e-10)
    assert float(belief.information.rows) == 100 == state.n_held


def test_no_digit_is_lost_over_a_long_stream():
    """Huge rows pass through the window; a window that subtracted them would have lost what they were added to."""
    X, y, _ = stream(4000)
    X[1000:1500] *= 1e9
    y[1000:1500] *= 1e9
    belief = learned(250, X, y, 40, penalty=None, diagnose=False).belief
    np.testing.assert_allclose(belief.coef, least_squares(X[-250:], y[-250:], np.ones(250))[1:], rtol=1e-11)


def test_weights_and_rows_of_weight_zero():
    X, y, _ = stream(200)
    weights = np.tile([1.0, 0.0, 2.0, 0.5], 50)
    belief = learned(60, X, y, 9, weights, penalty=None).belief
    some = np.flatnonzero(weights)[-60:]
    np.testing.assert_allclose(belief.coef, least_squares(X[some], y[some], weights[some])[1:], rtol=1e-10)
    assert float(belief.information.rows) == weights[some].sum()


def test_each_row_is_predicted_from_the_window_before_it():
    X, y, _ = stream(150)
    learner = Learner(Settings.of(forget=Window(40), penalty=None, noise=1.0))
    mean, std = learner.learn(Block(X, y), call=Call(every_row=True))
    for i in (50, 90, 149):
        rows = slice(i - 40, i)
        theta, z = least_squares(X[rows], y[rows], np.ones(40)), np.append(1.0, X[i])
        Z = np.column_stack([np.ones(40), X[rows]])
        assert mean[i] == pytest.approx(z @ theta, rel=1e-9)
        assert std[i] ** 2 == pytest.approx(1 + z @ np.linalg.solve(Z.T @ Z, z), rel=1e-9)


def test_memory_is_bounded_by_the_window():
    X, y, _ = stream(3000)
    window = WindowRows.empty(100, "frequency", 3, None)
    for i in range(0, 3000, 10):
        window = window.after(Block(X[i : i + 10], y[i : i + 10]))
        assert sum(map(len, (*window.old, *window.new))) <= 100 + 64 and len(window.rest) == len(window.old)
    assert len(window) == 100


def test_a_window_cannot_begin_late_nor_be_without_its_rows():
    X, y, _ = stream(60)
    learner = Learner(Settings.of())
    learner.learn(Block(X, y))
    with pytest.raises(ValueError, match=r"Window\(rows=50\) between calls"):
        learner.learn(Block(X, y), Settings.of(forget=Window(50)))
    with pytest.raises(ValueError, match="would hold its 50 rows"):
        learned(50, X, y, 60).release_rows()
