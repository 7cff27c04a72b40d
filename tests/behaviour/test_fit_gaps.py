"""Tables with missing cells: `kalprox fit --missing`, `--missing-target` and `kalprox predict --missing`."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import invoke

from kalprox import KalproxClassifier, KalproxRegressor


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table with a number, a date, a level and a target, of which cells are missing in several spellings."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 1500
    a = rng.normal(size=n) + 50
    b = 0.7 * (a - 50) + rng.normal(size=n)
    g = rng.choice(["x", "y", "z"], n)
    day = rng.integers(1, 29, n)
    y = 1 + 2 * (a - 50) - b + 3 * (g == "y") + 0.1 * day + rng.normal(size=n)
    lost = rng.random((n, 5)) < 0.15
    spelled = rng.choice(["", "NA", "null", "nan"], n)
    lines = ["a,b,g,day,y"]
    for i in range(n):
        cells = [f"{a[i]:.9f}", f"{b[i]:.9f}", g[i], f"2013-01-{day[i]:02}", f"{y[i]:.9f}"]
        gone = [spelled[i], spelled[i], "", "", spelled[i]]
        lines.append(",".join(gone[j] if lost[i, j] else cells[j] for j in range(5)))
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    return lost


@pytest.mark.slow
def test_missing_features_and_targets_of_a_file(table):
    fit = ["fit", "t.csv", "--target", "y", "--penalty", "none", "--out", "m.kalprox"]
    assert "missing" in invoke(*fit, code=4).output
    found = invoke(*fit, "--missing", "marginalize", "--events", "events.jsonl")
    assert f"{(~table[:, 4]).sum():,} learned, none refused" in found.output
    assert "Missing features, which were marginalised" in " ".join(found.output.split())
    assert "Rows without a target, which were not learned: column 'y'" in " ".join(found.output.split())
    done = [json.loads(line) for line in Path("events.jsonl").read_text().splitlines()][-1]
    assert done["missing_features"]["a"]["count"] == table[:, 0].sum()
    assert done["missing_targets"]["y"]["count"] == table[:, 4].sum()
    model = KalproxRegressor.load("m.kalprox")
    names = dict(zip(model.feature_names_in_, zip(model.coef_, model.coef_std_, strict=True), strict=True))
    for name, truth in (("a", 2), ("b", -1), ("day", 0.1)):
        coef, std = names[name]
        assert abs(coef - truth) < 4 * std < 0.3
    assert model.missing == "marginalize"
    assert model.n_rows_unlabelled_ == table[:, 4].sum()
    assert model.n_rows_with_gaps_ == table[~table[:, 4], :4].any(axis=1).sum()
    invoke("report", "m.kalprox", "--out", "m.html")
    invoke("predict", "m.kalprox", "t.csv", "--out", "p.csv")
    predicted = np.genfromtxt("p.csv", delimiter=",", skip_header=1)
    assert np.isfinite(predicted).all() and len(predicted) == len(table)
    gaps = table[:, :4].any(axis=1)
    assert predicted[gaps, 1].mean() > 1.2 * predicted[~gaps, 1].mean()


def test_frames_of_a_model_of_files_may_have_gaps(table):
    pd = pytest.importorskip("pandas")
    skip = ["--missing", "impute", "-q"]
    invoke("fit", "t.csv", "--target", "y", *skip, "--out", "m.kalprox")
    model = KalproxRegressor.load("m.kalprox")
    frame = pd.read_csv("t.csv")
    invoke("predict", "m.kalprox", "t.csv", "--out", "p.csv", "-q")
    predicted = np.genfromtxt("p.csv", delimiter=",", skip_header=1)[:, 0]
    np.testing.assert_allclose(model.predict(frame), predicted, rtol=1e-9)
    model.partial_fit(frame, keys=[f"row {i}" for i in range(len(frame))])
    assert model.n_rows_pending_ == table[:, 4].sum()


def test_a_model_of_complete_rows_predicts_rows_with_gaps(table):
    fit = ["fit", "t.csv", "--target", "y", "--max-bad", "100%", "--missing", "drop", "-q"]
    invoke(*fit, "--out", "m.kalprox")
    assert "missing" in invoke("predict", "m.kalprox", "t.csv", "--out", "p.csv", code=4).output
    invoke("predict", "m.kalprox", "t.csv", "--missing", "marginalize", "--out", "p.csv", "-q")
    assert np.isfinite(np.genfromtxt("p.csv", delimiter=",", skip_header=1)).all()


def test_classes_of_a_file(table):
    text = Path("t.csv").read_text().splitlines()
    rows = [line.rsplit(",", 1) for line in text[1:]]
    labels = ["yes" if i % 3 else "no" for i in range(len(rows))]
    cells = ["" if table[i, 4] else label for i, label in enumerate(labels)]
    lines = [f"{row[0]},{cell}" for row, cell in zip(rows, cells, strict=True)]
    Path("c.csv").write_text("\n".join([text[0], *lines]) + "\n")
    fit = ["fit", "c.csv", "--target", "y", "--likelihood", "bernoulli"]
    fit += ["--missing", "impute"]
    several = invoke(*fit, "--out", "c.kalprox", code=2)
    assert "--passes 1" in " ".join(several.output.split())
    found = invoke(*fit, "--passes", "1", "--out", "c.kalprox")
    known = [label for label, gone in zip(labels, table[:, 4], strict=True) if not gone]
    assert f"'no' ({known.count('no')} rows)" in " ".join(found.output.split())
    assert KalproxClassifier.load("c.kalprox").n_rows_unlabelled_ == table[:, 4].sum()
    invoke("predict", "c.kalprox", "c.csv", "--out", "p.csv", "-q")


def test_what_is_refused(table):
    formula = invoke("fit", "t.csv", "--formula", "y ~ a", "--missing", "impute", code=2)
    assert "--missing cannot be used with --formula" in " ".join(formula.output.split())
    engine = invoke("fit", "t.csv", "--target", "y", "--missing", "impute", "--engine", "local", code=2)
    assert "Leave --engine out" in " ".join(engine.output.split())


def test_targets_may_be_missing_on_an_engine(table):
    fit = ["fit", "t.csv", "--target", "y", "--features", "g", "--max-bad", "100%", "--missing", "drop", "-q"]
    invoke(*fit, "--engine", "local", "--out", "e.kalprox")
    invoke(*fit, "--out", "f.kalprox")
    one, two = KalproxRegressor.load("e.kalprox"), KalproxRegressor.load("f.kalprox")
    np.testing.assert_allclose(one.coef_, two.coef_, rtol=1e-9)
    assert one.n_rows_unlabelled_ == two.n_rows_unlabelled_ == table[:, 4].sum()


@pytest.mark.slow
def test_a_fit_with_gaps_is_resumed(table):
    command = ["fit", "t.csv", "--target", "y", "--missing", "marginalize", "-q"]
    invoke(*command, "--out", "whole.kalprox")
    invoke(*command, "--out", "kept.kalprox", "--checkpoint", "c", "--every", "100", "--memory", "1MB")
    one, two = KalproxRegressor.load("whole.kalprox"), KalproxRegressor.load("kept.kalprox")
    assert one.n_rows_with_gaps_ == two.n_rows_with_gaps_
    np.testing.assert_allclose(one.coef_, two.coef_, atol=0.1)
