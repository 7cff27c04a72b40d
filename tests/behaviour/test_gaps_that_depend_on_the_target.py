"""Missing features: gaps that depend on the target are found, and intervals of coefficients cover in every stream."""

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import binom

import kalprox as kp
from kalprox import KalproxClassifier, KalproxRegressor

WORD = "informative missingness"


def rows(seed, n, gaps):
    """Three correlated features and a linear target; the first feature is missing by a rule."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) @ np.linalg.cholesky([[1, 0.5, 0.2], [0.5, 1, 0.3], [0.2, 0.3, 1]]).T
    y = 3 + X @ [1.0, 0.5, -1.0] + rng.normal(size=n)
    t, u = (y - y.mean()) / y.std(), rng.random(n)
    by_rule = {
        "target": u < 1 / (1 + np.exp(1 - 1.5 * t)),
        "size of the target": np.abs(t) > 1,
        "nothing": u < 0.3,
        "another feature": u < 1 / (1 + np.exp(1 - 2 * X[:, 1])),
    }
    X[by_rule[gaps], 0] = np.nan
    return X, y


@pytest.mark.slow
@pytest.mark.parametrize("how", ["marginalize", "impute"])
def test_gaps_that_depend_on_the_target_are_named(how, tmp_path):
    X, y = rows(11, 600, "target")
    model = KalproxRegressor(penalty=None, missing=how).fit(X, y)
    assert model.diagnostics_.verdict().word == WORD
    model.report(tmp_path / "report.html")
    assert "is missing, the errors are shifted by" in (tmp_path / "report.html").read_text()


def test_gaps_where_the_target_is_far_from_its_mean_are_named():
    X, y = rows(12, 600, "size of the target")
    model = KalproxRegressor(penalty=None, missing="marginalize").fit(X, y)
    assert abs(model.coef_[0] - 1) > 3 * model.coef_std_[0]
    assert model.diagnostics_.verdict().word == WORD


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 40])
def test_a_stream_finds_what_fit_finds_and_goes_on_after_saving(length, tmp_path):
    X, y = rows(13, 400, "target")
    model = KalproxRegressor(penalty=None, missing="marginalize")
    for i in range(0, 400, length):
        model.partial_fit(X[i : i + length], y[i : i + length])
        if i == 200:
            model.save(tmp_path / "half.kalprox")
    assert model.diagnostics_.verdict().word == WORD
    resumed = KalproxRegressor.load(tmp_path / "half.kalprox")
    for i in range(200 + length, 400, length):
        resumed.partial_fit(X[i : i + length], y[i : i + length])
    np.testing.assert_array_equal(resumed.coef_, model.coef_)
    assert str(resumed.diagnostics_.verdict()) == str(model.diagnostics_.verdict())


def test_merged_models_know_the_gaps_of_both():
    X, y = rows(14, 800, "target")
    one, other = (
        KalproxRegressor(penalty=None, missing="marginalize").fit(X[s], y[s]) for s in (slice(400), slice(400, 800))
    )
    p = one.diagnostics_.verdict().checks[-1].p_value
    one.merge(other)
    assert one.diagnostics_.verdict().word == WORD
    assert one.diagnostics_.verdict().checks[-1].p_value < p


@pytest.mark.parametrize("classes", [2, 3])
def test_gaps_that_depend_on_the_class_are_named(classes):
    X, y = rows(15, 900, "target")
    labels = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    model = KalproxClassifier(missing="marginalize")
    for i in range(0, 900, 60):
        model.partial_fit(X[i : i + 60], labels[i : i + 60], classes=range(classes))
    assert model.diagnostics_.verdict().word == WORD


@pytest.mark.parametrize("gaps", ["nothing", "another feature"])
def test_gaps_that_do_not_depend_on_the_target_are_no_doubt(gaps):
    X, y = rows(16, 600, gaps)
    model = KalproxRegressor(penalty=None, missing="marginalize").fit(X, y)
    verdict = model.diagnostics_.verdict()
    assert verdict.word == "calibrated" and verdict.checks[-1].word == WORD and not verdict.checks[-1].found


@pytest.mark.slow
@pytest.mark.parametrize("case", ["marginalize, nothing", "marginalize, another feature", "impute, nothing"])
def test_false_alarms_are_rare(case):
    """At most 2% of streams; 150 of them have more than 9 alarms with a probability below 0.2% then."""
    (how, gaps), found = case.split(", "), 0
    for seed in range(1000, 1150):
        X, y = rows(seed, 250, gaps)
        model = KalproxRegressor(penalty=None, missing=how).fit(X, y)
        found += WORD in model.diagnostics_.verdict().findings
    assert found <= binom.ppf(0.998, 150, 0.02)


def test_correlated_errors_and_gaps_in_runs_are_not_mistaken_for_it():
    found = 0
    for seed in range(6):
        rng = np.random.default_rng(seed + 300)
        X, e = rng.normal(size=(600, 2)), rng.normal(size=600)
        for i in range(1, 600):
            e[i] += 0.6 * e[i - 1]
        y = X.sum(axis=1) + e
        X[np.repeat(rng.random(15) < 0.4, 40), 0] = np.nan
        model = KalproxRegressor(penalty=None, missing="marginalize").fit(X, y)
        found += WORD in model.diagnostics_.verdict().findings
    assert found == 0


@pytest.mark.slow
@pytest.mark.integration
def test_the_command_line_says_what_is_assumed_and_that_the_rows_contradict_it(tmp_path):
    X, y = rows(17, 500, "target")
    cells = [["" if np.isnan(v) else repr(float(v)) for v in row] for row in np.column_stack([y, X])]
    (tmp_path / "t.csv").write_text("\n".join(["y,dose,age,size", *map(",".join, cells)]) + "\n")
    command = [sys.executable, "-m", "kalprox", "fit", "t.csv", "--target", "y", "--missing", "marginalize"]
    done = subprocess.run(
        [*command, "--events", "events.jsonl"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert "independent of the target, given the features, and are not: where 'dose' is missing" in said
    last = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert any(line["label"] == "Missing" and line["doubt"] for line in last["headline"])


def correlated(seed, n, d=3, noise=0.3, missing=0.3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ np.linalg.cholesky(0.95 + 0.05 * np.eye(d)).T
    y = X @ np.linspace(-1, 2, d) + noise * rng.normal(size=n)
    X[rng.random(X.shape) < missing] = np.nan
    return X, y


def _covered(seeds, n, about, batch, **settings):
    covered = 0
    for seed in range(seeds):
        X, y = correlated(seed + 40, n)
        model = KalproxRegressor(penalty=None, missing="marginalize", diagnose=False, **settings)
        for i in range(0, n, batch):
            rows = slice(i, i + batch)
            model.partial_fit(X[rows], y[rows], **{name: value[rows] for name, value in about.items()})
        low, high = model.coef_interval()
        covered += int(((low <= np.linspace(-1, 2, 3)) & (np.linspace(-1, 2, 3) <= high)).sum())
    return covered


@pytest.mark.slow
def test_streams_with_groups_cover():
    """Coverage of at least 93%: of 18 intervals no more than 5 are missed then, but for a probability of 0.1%."""
    assert _covered(6, 300, {"clusters": np.arange(300)}, 10, coef_cov="clustered") >= 18 - binom.ppf(0.999, 18, 0.07)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["clustered", "batches", "times"])
def test_streams_of_correlated_features_cover_row_by_row(case):
    """Coverage of at least 93% of 18 intervals, but for a probability of 0.1%."""
    n = 500
    about, settings, batch = {
        "clustered": ({"clusters": np.arange(n)}, {"coef_cov": "clustered"}, 1),
        "batches": ({}, {"coef_cov": "clustered"}, 5),
        "times": ({"times": np.arange(n) * 1.0}, {"forget": kp.forgetting.ByTime(1e6)}, 1),
    }[case]
    assert _covered(6, n, about, batch, **settings) >= 18 - binom.ppf(0.999, 18, 0.07)


def test_standard_errors_of_few_rows_with_gaps_warn():
    X, y = correlated(5, 60, d=6, noise=1.0)
    model = KalproxRegressor(penalty=None, missing="marginalize").fit(X, y)
    with pytest.warns(UserWarning, match="estimated from few rows"):
        model.coef_interval()


def test_a_stream_saved_with_groups_and_gaps_goes_on_as_it_would_have(tmp_path):
    X, y = correlated(6, 240)
    groups = np.repeat([f"g{i}" for i in range(60)], 4)
    whole = KalproxRegressor(penalty=None, missing="marginalize", coef_cov="clustered")
    model = KalproxRegressor(penalty=None, missing="marginalize", coef_cov="clustered")
    for i in range(0, 240, 6):
        whole.partial_fit(X[i : i + 6], y[i : i + 6], clusters=groups[i : i + 6])
        model.partial_fit(X[i : i + 6], y[i : i + 6], clusters=groups[i : i + 6])
        if i % 60 == 0:
            model.save(tmp_path / "m.kalprox")
            model = KalproxRegressor.load(tmp_path / "m.kalprox")
    np.testing.assert_array_equal(model.coef_, whole.coef_)
    np.testing.assert_array_equal(model.coef_std_, whole.coef_std_)
