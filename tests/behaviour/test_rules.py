"""The table of what goes with what: every row refuses what it says, in Python and in options, and nothing else does."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from draw import BATCH, error_of
from scenarios import Scenario
from test_own_likelihood import Silent

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.adapters.river import RiverClassifier, RiverRegressor
from kalprox.learning.rules import RULES

pytestmark = pytest.mark.filterwarnings("ignore")
TABLE = json.loads((Path(__file__).parent / "refused.json").read_text())
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y, Y2 = X[:, 0] + RNG.normal(size=40), np.column_stack([X[:, 0], X[:, 1]])
NUMBERS, COUNTS = (
    KalproxRegressor(penalty="ridge").fit(X, Y),
    KalproxRegressor(likelihood="poisson").fit(X, np.round(np.abs(Y))),
)
FROM_DATA = ("on an engine; got 2", "times need rows", "Targets are missing", "start must lie where g is finite")

# What no pair of settings and ways in of the walk says.
OTHERS = {
    "alpha without a penalty": lambda: KalproxRegressor(penalty=None, alpha="auto").fit(X, Y),
    "a link of its own": lambda: KalproxRegressor(likelihood="poisson", link="sigmoid").fit(X, Y),
    "a mixture and alpha": lambda: KalproxClassifier(forget="auto", alpha="auto").fit(X, Y > 0),
    "an own likelihood": lambda: KalproxRegressor(likelihood=Silent(), forget="auto", penalty="ridge").fit(
        X, np.abs(Y)
    ),
    "no start": lambda: KalproxRegressor(function=lambda theta, x: theta @ x).fit(X, Y),
    "several classes": lambda: KalproxRegressor(likelihood="categorical", penalty="ridge").fit(X, Y),
    "a sparse X": lambda: KalproxRegressor(missing="impute", penalty="ridge").fit(scipy.sparse.csr_array(X), Y),
    "times": lambda: NUMBERS.predict(X, time=3.0),
    "refine": lambda: KalproxRegressor(penalty="ridge").fit(X, Y).refine(X, Y),
    "anytime": lambda: COUNTS.coef_interval(anytime=True),
    "minimax": lambda: COUNTS.predict(X, minimax=True),
    "path": lambda: KalproxRegressor(penalty=None).fit(X, Y).path(),
    "path of rows": lambda: NUMBERS.path([1.0], X=X, y=Y),
    "path without rows": lambda: COUNTS.path([1.0]),
    "a structure by name": lambda: RiverRegressor(structure="diagonal").learn_one({"a": 1.0}, 1.0),
    "classes by name": lambda: RiverClassifier(structure="diagonal", hash_bits=4, classes=("a", "b", "c")).learn_one(
        {"a": 1.0}, "a"
    ),
}
OPTIONS = {
    "--passes 2": "passes",
    "--quarantine bad.csv --quarantine-outliers": "outliers",
    "--shuffle 1 --change-points auto": "out of order",
}
WITHOUT_A_WAY_HERE = {"evidence", "formula", "conformal", "new features"}  # which other tests have


def rule_of(act):
    with pytest.raises(ValueError, match="needs") as caught:
        act()
    return caught.value.rule


def test_every_rule_refuses_something_and_nothing_else_refuses():
    seen = [rule_of(act) for act in OTHERS.values()]
    for one in TABLE:
        if "command" in one["way"] or one["way"].startswith(("file", "stream")):
            continue
        error = error_of(one["labels"], one["way"])
        if not any(text in str(error) for text in FROM_DATA):
            assert type(error).__name__ == "SettingsError", (one, error)
            seen.append(error.rule)
    unseen = [rule for rule in RULES if rule not in seen]
    assert {rule.when.get("way") for rule in unseen} <= WITHOUT_A_WAY_HERE | set(OPTIONS.values()), unseen


def in_words(message: str, rule) -> bool:
    """Whether a message of the command line has the reason of a rule, and no parameters of Python.

    Those of kinds, as in box,low=0, follow a comma.
    """
    message = " ".join(message.split())
    return rule.why in message and not re.search(r"(?<![\w,])\w+=('|None|True|False|\d|\w+\()", message)


def test_the_command_line_says_the_same_rows_in_its_options():
    tried = 0
    for one in [one for one in TABLE if one["way"] == BATCH]:
        if Scenario(one["labels"]).options is None:
            continue
        rule, said = error_of(one["labels"], BATCH).rule, error_of(one["labels"], "file")
        if said is not None and rule.when.get("way") != "targets":
            assert in_words(str(said), rule), (one, said)
            tried += 1
    assert tried > 50


@pytest.mark.parametrize("options", OPTIONS)
def test_ways_that_only_files_have(options, tmp_path):
    rows = "\n".join(f"{a},{b}" for a, b in np.column_stack([X[:, 0], Y]).tolist())
    (tmp_path / "rows.csv").write_text(f"a,y\n{rows}\n")
    said = options.replace("bad.csv", str(tmp_path / "bad.csv")).split()
    with pytest.raises(ValueError, match="needs") as caught:
        Scenario({}).command("fit", tmp_path / "rows.csv", "-y", "y", "--quiet", "--out", tmp_path / "m", *said)
    rules = [rule for rule in RULES if rule.when.get("way") == OPTIONS[options]]
    assert any(in_words(str(caught.value), rule) for rule in rules), caught.value
