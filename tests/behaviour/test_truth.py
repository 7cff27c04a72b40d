"""Estimates are at the minimum of what they minimise, and standard errors are the textbook's."""

import itertools

import numpy as np
import pytest
from pairwise import cover
from scenarios import LEVELS, Scenario
from truth import covariance, residual

pytestmark = pytest.mark.filterwarnings("ignore")
TARGETS = ("number", "two numbers", "count", "dispersed count", "two classes", "three classes")
PENALTIES = [name for name in LEVELS["penalty"] if "auto" not in name]
VARIANTS = [
    {},
    {"intercept": "no"},
    {"weights": "frequency"},
    {"standardize": "yes"},
    {"forget": "by row"},
    {"forget": "by time"},
    {"forget": "window"},
    {"offset": "yes"},
]


def _cases():
    for target, penalty, variant in itertools.product(TARGETS, PENALTIES, VARIANTS):
        if target == "three classes" and (penalty in ("group", "box", "none") or "intercept" in variant):
            continue
        if (target in ("number", "two numbers", "three classes")) == ("offset" in variant) and "offset" in variant:
            continue
        if "forget" in variant and variant["forget"] == "window" and "number" not in target:
            continue
        yield target, penalty, variant


def _params():
    """Pairs of levels are in `make test`, and three at once in `make test-all`."""
    cases = list(_cases())
    labels = [[("target", target), ("penalty", penalty), str(variant)] for target, penalty, variant in cases]
    for (target, penalty, variant), quick in zip(cases, cover(labels), strict=True):
        scenario = Scenario({"target": target, "penalty": penalty} | variant)
        yield pytest.param(scenario, marks=() if quick else pytest.mark.slow, id=str(scenario))


@pytest.mark.parametrize("scenario", list(_params()))
def test_a_fit_is_a_minimum(scenario):
    rows = scenario.rows(seed=2)
    model = scenario.fit(rows)
    found = residual(scenario.labels, rows.X, rows.y, rows.about, model.coef_, model.intercept_)
    assert found < 1e-7


@pytest.mark.parametrize("penalty", ["none", "ridge", "smooth l1"])
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"intercept": "no"},
        {"weights": "frequency"},
        {"weights": "precision"},
        {"noise": "given"},
        {"offset": "yes"},
    ],
    ids=str,
)
@pytest.mark.parametrize("target", ["number", "count", "dispersed count", "two classes"])
def test_standard_errors_are_those_of_the_textbook(target, penalty, variant):
    numbers = target in ("number", "dispersed count")
    if ("noise" in variant or variant.get("weights") == "precision") and not numbers:
        pytest.skip("there is no noise variance")
    if ("offset" in variant) == (target == "number") and "offset" in variant:
        pytest.skip("offsets are for counts and classes")
    scenario = Scenario({"target": target, "penalty": penalty} | variant)
    rows = scenario.rows(seed=3)
    model = scenario.fit(rows)
    coef, intercept = np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
    expected = np.sqrt(np.diag(covariance(scenario.labels, rows.X, rows.y, rows.about, coef, intercept)))
    np.testing.assert_allclose(np.ravel(model.coef_std_), expected, rtol=1e-6)
