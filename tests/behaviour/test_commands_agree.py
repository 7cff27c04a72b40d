"""What commands write is what the methods of the same name return."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from routes import table
from scenarios import Scenario

from kalprox import KalproxClassifier, KalproxRegressor

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def files(tmp_path):
    """The rows of a scenario as a file, and its model."""

    def write(labels):
        scenario = Scenario(labels)
        rows = scenario.rows()
        table(rows).to_csv(tmp_path / "rows.csv", index=False)
        arguments = ["fit", tmp_path / "rows.csv", *scenario.options, "--quiet", "--out", tmp_path / "m.kalprox"]
        scenario.command(*arguments)
        return scenario, rows, tmp_path

    return write


@pytest.mark.parametrize("labels", [{}, {"penalty": "none", "noise": "given"}, {"forget": "by row"}], ids=str)
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_the_command_predicts_what_the_model_predicts(files, labels, level):
    scenario, rows, folder = files(labels)
    arguments = ["predict", folder / "m.kalprox", folder / "rows.csv", "--level", level, "--out", folder / "p.csv"]
    scenario.command(*arguments)
    found, model = pd.read_csv(folder / "p.csv"), KalproxRegressor.load(folder / "m.kalprox")
    mean, std = model.predict(rows.X, return_std=True)
    low, high = model.predict_interval(rows.X, level)
    for name, value in {"mean": mean, "std": std, "lower": low, "upper": high}.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_the_command_predicts_the_probabilities_of_the_model(files):
    scenario, rows, folder = files({"target": "two classes"})
    scenario.command("predict", folder / "m.kalprox", folder / "rows.csv", "--out", folder / "p.csv")
    found, model = pd.read_csv(folder / "p.csv"), KalproxClassifier.load(folder / "m.kalprox")
    p = model.predict_proba(rows.X)
    stated = found[[name for name in found.columns if name.startswith("p_")]].to_numpy()
    assert stated.shape[1] in (1, 2)
    np.testing.assert_allclose(stated[:, -1], p[:, 1], rtol=1e-9)


def test_the_command_merges_as_models_do(files):
    scenario, rows, folder = files({})
    parts = [rows[:70], rows[70:]]
    for i, part in enumerate(parts):
        table(part).to_csv(folder / f"{i}.csv", index=False)
        scenario.command("fit", folder / f"{i}.csv", *scenario.options, "--quiet", "--out", folder / f"{i}.kalprox")
    scenario.command("merge", folder / "0.kalprox", folder / "1.kalprox", "--out", folder / "both.kalprox")
    found, whole = KalproxRegressor.load(folder / "both.kalprox"), KalproxRegressor.load(folder / "m.kalprox")
    for name in ("coef_", "coef_std_", "intercept_", "noise_var_", "n_rows_seen_"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("engine", [[], ["--engine", "local"]], ids=["here", "engine"])
def test_events_say_when_a_checkpoint_was_written(files, engine):
    """Those of a fit on an engine did not."""
    scenario, _, folder = files({"target": "two classes"})
    written = ["--checkpoint", folder / "c", "--events", folder / "events.jsonl", "--out", folder / "again.kalprox"]
    scenario.command("fit", folder / "rows.csv", *scenario.options, *engine, *written)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    saved = [event for event in events if event["event"] == "checkpoint"]
    assert [event["number"] for event in saved][:2] == [1, 2] and saved[0]["share"] == 1


def test_a_stream_answers_with_what_was_known_before_each_row():
    """Rows that come one by one are predicted as `prequential` does."""
    scenario = Scenario({})
    rows = scenario.rows(n=40)
    text = table(rows).to_json(orient="records", lines=True, double_precision=15)
    said = scenario.command("stream", *scenario.options, "--quiet", "--flush", 1, "--format", "jsonl", input=text)
    found = pd.read_json(io.StringIO(said.stdout), lines=True, precise_float=True)
    mean, std = KalproxRegressor(alpha=2.0).prequential(rows.X, rows.y)
    known = np.isfinite(std)
    np.testing.assert_allclose(found["mean"].to_numpy(float)[known], mean[known], rtol=1e-8)
    np.testing.assert_allclose(found["std"].to_numpy(float)[known], std[known], rtol=1e-8)
