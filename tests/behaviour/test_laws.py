"""Laws that hold for every combination of settings, whatever is inside: no snapshots, no internals.

scenarios.json has combinations in which every pair of settings that go together occurs; see scenarios.py for what the
labels stand for.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from scenarios import Scenario, readings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of what a combination says of itself, other tests speak
]
SCENARIOS = [Scenario(labels) for labels in json.loads((Path(__file__).parent / "scenarios.json").read_text())]


def assert_same(ours, theirs):
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=map(str, SCENARIOS))
def test_saved_and_resumed_is_never_stopped(scenario, tmp_path):
    if scenario.label("target") == "function":
        pytest.skip("a function is no part of a model file")
    rows, first = scenario.rows(), 90
    stopped = scenario.partial_fit(rows[:first], 30)
    stopped.save(tmp_path / "m.kalprox")
    resumed = scenario.partial_fit(rows[first:], 35, scenario.load(tmp_path / "m.kalprox"))
    never = scenario.partial_fit(rows[first:], 35, stopped)
    assert_same(readings(resumed, rows), readings(never, rows))
    if scenario.label("scores") == "yes":
        assert str(resumed.diagnostics_) == str(never.diagnostics_)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=map(str, SCENARIOS))
def test_rows_that_are_refused_leave_nothing(scenario):
    rows = scenario.rows()
    model = scenario.partial_fit(rows[:90], 45)
    before, bad = readings(model, rows), scenario.rows()[90:100]
    bad.X[4, 1] = np.inf
    with pytest.raises(ValueError, match="finite"):
        model.partial_fit(bad.X, bad.y, **scenario.declared(), **bad.about)
    assert_same(readings(model, rows), before)
    untouched = scenario.partial_fit(rows[:90], 45)
    for one in (model, untouched):
        scenario.partial_fit(rows[90:], 35, one)
    assert_same(readings(model, rows), readings(untouched, rows))
