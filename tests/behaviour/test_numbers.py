"""Numbers and words of some scenarios are those that were kept in numbers.json; see numbers_kept.py."""

import json
from pathlib import Path

import numpy as np
import pytest
from numbers_kept import CHOSEN, kept, tolerance

KEPT = json.loads((Path(__file__).parent / "numbers.json").read_text())
QUICK = ("fit", "batches of 7", "batches of 64", "lists", "frames", "merged", "saved and resumed")


LONG = ({"target": "function"}, {"forget": "auto"})  # compiled, or ten models side by side


def _marks(one: dict) -> tuple:
    long = any(one.items() >= some.items() for some in LONG)
    return (pytest.mark.slow,) if long or one["way"] not in QUICK else ()


CASES = [
    pytest.param(
        {name: label for name, label in one.items() if name != "found"},
        one["found"],
        marks=_marks({name: label for name, label in one.items() if name != "found"}),
        id=", ".join(str(label) for name, label in one.items() if name != "found"),
    )
    for one in KEPT
]


@pytest.mark.parametrize(("labels", "expected"), CASES)
def test_numbers_are_those_that_were_kept(labels, expected):
    found = kept(labels)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name == "verdict" or value is None:
            assert found[name] == value
            continue
        ours, theirs = np.asarray(found[name], float), np.asarray(value, float)
        largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=1e-3)
        limit = tolerance(labels)
        np.testing.assert_allclose(ours, theirs, rtol=limit, atol=limit * largest, err_msg=name)


def test_every_chosen_scenario_is_kept():
    assert [{name: one[name] for name in one if name != "found"} for one in KEPT] == CHOSEN
