"""Laws that hold for every combination of settings, whatever is inside: no snapshots, no internals.

scenarios.json has combinations of settings and a way in, such that every pair that goes together occurs; see
scenarios.py and routes.py for what the labels stand for. Where a law is not all of equality, agree.py says how far and
why.
Combinations that are quick to learn are in `make test`; all of them in `make test-all`.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from agree import EQUAL, assert_agree, limits
from pairwise import cover
from routes import ROUTES
from scenarios import Scenario, readings

pytestmark = pytest.mark.filterwarnings("ignore")  # of what a combination says of itself, other tests speak
DRAWN = json.loads((Path(__file__).parent / "scenarios.json").read_text())
COMMANDS = ("file", "file on an engine", "stream", "stream resumed")
# How-to pages and tutorials: what each does, as labels.
OF_THE_DOCS = [
    {"way": "fit", "penalty": "ridge auto", "standardize": "yes"},  # how-to/choose_alpha.md
    {"way": "fit", "penalty": "l1 auto", "standardize": "yes"},
    {"way": "fit", "target": "two classes", "penalty": "ridge auto"},
    {"way": "batches of 64", "target": "count", "offset": "yes"},  # how-to/classes_and_counts.md
    {"way": "fit", "target": "dispersed count", "offset": "yes"},
    {"way": "file", "target": "three classes"},
    {"way": "engine"},  # how-to/clusters.md
    {"way": "file on an engine", "errors": "clustered"},
    {"way": "merged", "penalty": "none"},
    {"way": "prequential", "forget": "by row"},  # how-to/forgetting.md
    {"way": "batches of 7", "forget": "auto"},
    {"way": "stream", "forget": "by time"},
    {"way": "prequential", "gaps": "marginalize"},  # how-to/gaps.md
    {"way": "file", "gaps": "impute"},
    {"way": "batches of 64", "structure": "low rank"},  # how-to/large_models.md
    {"way": "batches of 64", "target": "function"},  # how-to/own_model.md
    {"way": "river", "forget": "by row"},  # how-to/river.md
    {"way": "river", "target": "three classes"},
    {"way": "saved and resumed", "target": "two classes"},  # how-to/save_and_serve.md
    {"way": "stream resumed", "changes": "yes"},  # how-to/stream.md
    {"way": "stream", "late targets": "yes"},
    {"way": "stream", "errors": "clustered"},  # how-to/time_ordered_rows.md
    {"way": "one row a call"},  # tutorials/first_stream.md
    {"way": "fit", "errors": "robust", "penalty": "none"},  # tutorials/from_statsmodels.md
    {"way": "fit", "weights": "precision", "penalty": "none"},
    {"way": "fit", "penalty": "elasticnet", "standardize": "yes"},  # tutorials/from_scikit_learn.md
]


def _quick(labels: dict[str, str]) -> bool:
    """Whether a combination takes a tenth of a second or so: sums of squares, and no command."""
    return (
        labels.get("target", "number") in ("number", "two numbers")
        and labels["way"] not in COMMANDS
        and labels.get("forget") != "auto"
        and labels.get("gaps", "none") == "none"
        and labels.get("noise") != "inputs"
        and (labels.get("penalty") != "l1 auto" or labels["way"] == "fit")  # chosen anew with every batch
    )


def _cases() -> list:
    """Among those that are quick and drawn, each level of each setting is in one of `make test`."""
    drawn = [labels for labels in DRAWN if _quick(labels)]
    few = [labels for labels, taken in zip(drawn, cover([labels.items() for labels in drawn], 1), strict=True) if taken]
    few += [labels for labels in OF_THE_DOCS if _quick(labels)]
    found = []
    for labels in DRAWN + OF_THE_DOCS:
        scenario = Scenario({name: label for name, label in labels.items() if name != "way"})
        marks = () if labels in few else pytest.mark.slow
        found.append(pytest.param(labels["way"], scenario, marks=marks, id=f"{labels['way']}: {scenario}"))
    return found


def _families() -> list:
    """Those of `make test`, and as many as have every pair of levels if a way in is but its family."""
    pairs = cover([{**labels, "way": ROUTES[labels["way"]].like}.items() for labels in DRAWN])
    return [
        case for case, taken in zip(CASES, pairs + [True] * len(OF_THE_DOCS), strict=True) if taken or not case.marks
    ]


CASES = _cases()
FAMILIES = _families()  # for laws that do not ask by which way of its family a model learned
scenarios = pytest.mark.parametrize(("way", "scenario"), CASES)


def only(condition) -> pytest.MarkDecorator:
    """Those of `FAMILIES` whose scenario this is true of."""
    return pytest.mark.parametrize(("way", "scenario"), [case for case in FAMILIES if condition(case.values[1])])


def learned(way: str, scenario: Scenario, rows) -> object:
    """A model of the rows: by `fit` if that is the family of the way in, else by `partial_fit`."""
    if ROUTES[way].like == "fit":
        return scenario.fit(rows)
    return scenario.partial_fit(rows, 33)


def goes_on(scenario: Scenario, models: list, rows) -> bool:
    """Let models learn more rows; return whether they did. Some learn all rows at once only: all must say so."""
    said = []
    for model in models:
        try:
            scenario.partial_fit(rows, 20, model)
        except ValueError as refused:
            said.append(str(refused))
    assert len(said) in (0, len(models)) and len(set(said)) <= 1
    return not said


def assert_same(ours, theirs):
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@scenarios
def test_every_way_in_gives_the_same_answer(way, scenario, tmp_path):
    route = ROUTES[way]
    rows = scenario.rows(n=160 if route.other_cuts else 80)  # equality shows with few rows
    found = readings(route.learn(scenario, rows, tmp_path), rows)
    assert_agree(found, readings(route.expected(scenario, rows), rows), limits(scenario, route, way))


@only(lambda scenario: scenario.label("target") != "function")  # a function is no part of a model file
def test_saved_and_resumed_is_never_stopped(way, scenario, tmp_path):
    rows = scenario.rows(n=100)
    stopped = learned(way, scenario, rows[:65])
    stopped.save(tmp_path / "m.kalprox")
    resumed = scenario.load(tmp_path / "m.kalprox")
    assert_same(readings(resumed, rows), readings(stopped, rows))
    goes_on(scenario, [resumed, stopped], rows[65:])
    if (
        scenario.label("structure") == "low rank"
    ):  # its directions may lie in memory otherwise, which moves the last bit
        assert_agree(readings(resumed, rows), readings(stopped, rows), EQUAL)
        return
    assert_same(readings(resumed, rows), readings(stopped, rows))
    if scenario.label("scores") == "yes":
        assert str(resumed.diagnostics_) == str(stopped.diagnostics_)


@only(lambda scenario: True)
def test_rows_that_are_refused_leave_nothing(way, scenario):
    rows = scenario.rows(n=100)
    model, untouched = learned(way, scenario, rows[:65]), learned(way, scenario, rows[:65])
    bad = scenario.rows(n=100)[65:75]
    bad.X[4, 1] = np.inf
    model.missing = {"drop": "raise"}.get(model.missing, model.missing)  # or the row is left out
    with pytest.raises(ValueError, match=r".") as refused:
        model.partial_fit(bad.X, bad.y, **scenario.declared(), **bad.about)
    model.missing = untouched.missing
    assert_same(readings(model, rows), readings(untouched, rows))
    went_on = goes_on(scenario, [model, untouched], rows[65:])
    assert any(word in str(refused.value) for word in ("finite", "NaN")) or not went_on
    assert_same(readings(model, rows), readings(untouched, rows))


def _repeats(scenario: Scenario) -> bool:
    """Whether a row of weight 2 must be the row twice.

    It is not to what is forgotten a row, to clusters and leverages of single rows, to blocks of rows by which a penalty
    is chosen, and to structures, which are learned row by row.
    """
    return (
        scenario.label("weights") == "none"
        and scenario.label("forget") in ("nothing", "by time")
        and scenario.label("gaps") == "none"
        and scenario.label("noise") != "inputs"
        and scenario.label("errors") == "model"
        and scenario.label("penalty") != "l1 auto"
        and scenario.label("structure") == "dense"
    )


@only(_repeats)
def test_weight_two_is_the_row_twice(way, scenario):
    rows = scenario.rows(seed=1, n=80)
    weights = np.random.default_rng(5).integers(0, 3, len(rows))
    weighted = scenario.model().fit(rows.X, rows.y, sample_weight=weights.astype(float), **rows.about)
    repeated = scenario.fit(rows[np.repeat(np.arange(len(rows)), weights)])
    ours, theirs = readings(weighted, rows), readings(repeated, rows)
    ours.pop("rows"), theirs.pop("rows")
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-8, err_msg=name)
