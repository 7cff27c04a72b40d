"""What the page of a stream is told: bounded, whatever the length, and right."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from kalprox.jobs.record import DataQuality
from kalprox.jobs.stream_job import StreamCounts
from kalprox.jobs.stream_view import StreamView, _weights
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.pages.page import to_json
from kalprox.sources import Block
from kalprox.sources.columns import Columns
from kalprox.sources.records import Position


def run_of(d=3, classes=()):
    """A run as the view sees it."""
    run = SimpleNamespace(
        lock=threading.Lock(),
        is_open=False,
        learner=Learner(Settings.of()),
        columns=Columns("y", numeric=tuple(f"x{j}" for j in range(d)), classes=classes),
        position=Position(),
        counts=StreamCounts(),
        pending=[],
        answered=0,
        latencies=[],
        saved_at=-1,
        job=SimpleNamespace(level=0.9, source="-", checkpoint=None),
        changes=lambda: None,
        quality=lambda: DataQuality(reasons={"x1": {"missing": 2, "not a number": 5}, "": {"not JSON": 1}}),
    )
    return run


def learn(run, n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, len(run.columns.names)))
    run.learner.learn(Block(X, X.sum(axis=1) + rng.standard_normal(n)))
    run.position = run.position._replace(row=run.position.row + n)
    run.counts = run.counts.plus(learned=n, judged=n, squares=4.0 * n, covered=n // 2)


def test_a_stream_that_has_not_begun_has_a_state():
    state = to_json(StreamView(run_of()).state())
    assert state["rows"] == 0 and state["points"]["rows"] == [] and state["names"] == []


def test_points_are_those_of_the_belief():
    run = run_of()
    run.is_open = True
    view = StreamView(run)
    view.sample()
    assert view.state()["points"]["rows"] == []  # nothing was learned
    for k in range(3):
        learn(run, 100, k)
        view.sample()
        view.sample()  # no rows in between
    state = to_json(view.state())
    points, (low, high) = state["points"], run.learner.belief.coef_interval(0.9)
    assert points["rows"] == [100, 200, 300] and state["names"] == ["x0", "x1", "x2"]
    np.testing.assert_allclose(points["coef"][-1], run.learner.belief.coef)
    np.testing.assert_allclose(points["low"][-1], low)
    np.testing.assert_allclose(points["high"][-1], high)
    assert points["error"] == [2.0] * 3 and points["coverage"] == [0.5] * 3
    assert state["error"] == 2.0 and state["coverage"] == 0.5
    assert state["reasons"] == [["x1", "not a number", 5], ["x1", "missing", 2], ["", "not JSON", 1]]


@pytest.mark.slow
def test_the_number_of_points_is_bounded():
    run = run_of()
    run.is_open = True
    view = StreamView(run, interval=1.0)
    for k in range(1000):
        learn(run, 1, k)
        view.sample()
    assert len(view.state()["points"]["rows"]) <= 240 and view.interval > 1
    rows = view.state()["points"]["rows"]
    assert rows == sorted(rows) and rows[-1] >= 998


def test_of_many_coefficients_the_clearest_are_shown():
    run = run_of(d=40)
    run.is_open = True
    learn(run, 500)
    view = StreamView(run)
    view.sample()
    state = view.state()
    assert len(state["names"]) == 12 == len(state["points"]["coef"][0])
    assert "The 12 of 40" in state["coefs_text"]


def test_weights_of_a_bank_are_shown():
    found = SimpleNamespace(names=("none", "0.99"), weights=np.array([[0.5, 0.5], [0.25, 0.75]]))
    assert _weights(SimpleNamespace(forget_weights=found)) == {"none": 0.25, "0.99": 0.75}
    assert _weights(SimpleNamespace()) is None


def test_classes_have_a_share_of_wrong_ones():
    run = run_of(classes=("no", "yes"))
    run.is_open = True
    run.counts = StreamCounts(judged=10, squares=3.0)
    state = StreamView(run).state()
    assert state["classes"] is True and state["error"] == pytest.approx(0.3)
