"""Outliers of robust fits in the quarantine file: which rows, once each, whatever interrupts the fit."""

import numpy as np
import pandas as pd
import pytest
from command import invoke

from kalprox import KalproxRegressor
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import TableModel
from kalprox.sources.columns import Columns
from kalprox.sources.quarantine import read_quarantine
from kalprox.sources.table import Table

N, FEATURES = 3000, ["a", "b", "c"]


@pytest.fixture(scope="module")
def frame():
    """Rows of which every fiftieth, and all of a burst in the warm-up, lie by 20 or more; one has no feature a."""
    rng = np.random.default_rng(5)
    made = pd.DataFrame(rng.normal(size=(N, 3)), columns=FEATURES)
    made["y"] = 2 + made[FEATURES] @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=N)
    lying = np.zeros(N, bool)
    lying[::50] = lying[100:110] = True
    made.loc[lying, "y"] += 20
    made.loc[7, "a"] = np.nan
    return made.assign(lying=lying)


@pytest.fixture(scope="module")
def data(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outliers")
    for i, part in enumerate((frame[:1700], frame[1700:])):
        part[[*FEATURES, "y"]].to_csv(folder / f"{i}.csv", index=False)
    return folder


def outliers_in(file):
    return [row for row in read_quarantine(file) if row.reason.startswith("outlier")]


def positions(rows):
    """The rows by their number in both files together, from 0."""
    return [row.row - 1 + (1700 if row.file.endswith("1.csv") else 0) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["huber", "student", "contaminated"])
@pytest.mark.parametrize("passes", [("--passes", 1), ()], ids=["stream", "passes"])
def test_the_rows_that_lie_are_written_with_their_errors(data, frame, likelihood, passes, tmp_path):
    bad, out = tmp_path / "bad.csv", tmp_path / "m.kalprox"
    options = ("--quarantine", bad, "--quarantine-outliers", "--max-bad", 1, "--memory", "100KB", *passes)
    said = invoke("fit", data, "-y", "y", "--features", "a,b,c", "--likelihood", likelihood, "--out", out, *options)
    model, rows = TableModel.load(out), outliers_in(bad)
    assert len(read_quarantine(bad)) == len(rows) + 1 and model.record.quality.bad == 1
    assert len(rows) == model.record.quality.outliers == model.belief.facts.n_outliers
    assert f"{len(rows)} rows are flagged" in " ".join(said.output.split())
    found = positions(rows)
    assert len(set(found)) == len(found) and set(np.flatnonzero(frame.lying)) <= set(found)
    # good rows are flagged at one of a thousand: more than 12 of 3,000 have a probability below 2e-5
    assert len(found) - frame.lying.sum() <= 12
    memory = KalproxRegressor(likelihood=likelihood).fit(frame[FEATURES].drop(7), frame.y.drop(7))
    weights, scale = memory.outliers(frame[FEATURES].fillna(0.0), frame.y)[0], float(memory.likelihood_.scale)
    errors = (frame.y - memory.predict(frame[FEATURES].fillna(0.0))) / scale
    for at, row in zip(found, rows, strict=True):
        assert row.column == "y" and float(row.value) == pytest.approx(frame.y[at], rel=1e-9)
        error, weight = (float(part.split()[i]) for part, i in zip(row.reason[9:].split(","), (1, 1), strict=True))
        tolerance = {"rel": 1e-3} if not passes else {"rel": 0.2}  # a stream knows what came before the row
        assert error == pytest.approx(errors[at], **tolerance)
        if not passes:
            assert weight == pytest.approx(weights[at], rel=0.02, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, None])
def test_a_resumed_fit_writes_no_row_twice(data, passes, tmp_path):
    class Interrupted(Exception):
        pass

    blocks, saved = [], []

    def interrupt(progress):
        blocks.append(progress.rows)
        saved.append(progress.checkpoint)
        if len(blocks) == stop:
            raise Interrupted

    def job(name, **more):
        files = sorted(data.glob("*.csv"))
        table = Table(files, Columns(numeric=FEATURES, target="y"), memory=40_000 if passes else 400_000)
        about = {
            "passes": passes,
            "every": 200 if passes else 3000,
            "quarantine": tmp_path / name,
            "quarantine_outliers": True,
        }
        return FitJob(table, {"likelihood": "huber"}, max_bad=1, **about, **more)

    stop = 0
    whole = job("whole.csv", watch=interrupt).run()
    total = len(blocks)
    assert total > 8
    for share in (0.3, 0.6) if passes else (0.98,):  # in the warm-up and after it, or in the last pass of several
        blocks, saved, stop = [], [], int(share * total)
        with pytest.raises(Interrupted):
            job("bad.csv", checkpoint=tmp_path / "ckpt", watch=interrupt).run()
        assert any(saved)
        resumed = job("bad.csv", checkpoint=tmp_path / "ckpt").run()
        assert (tmp_path / "bad.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
        assert resumed.record.quality.outliers == whole.record.quality.outliers > 60
        np.testing.assert_array_equal(resumed.belief.coef, whole.belief.coef)


def test_a_warm_up_that_does_not_end_is_judged_at_the_end(data, frame, tmp_path):
    frame[[*FEATURES, "y"]][8:500].to_csv(tmp_path / "few.csv", index=False)
    options = ("--likelihood", "huber", "--passes", 1, "--quarantine", tmp_path / "bad.csv", "--quarantine-outliers")
    invoke("fit", tmp_path / "few.csv", "-y", "y", *options, "--no-samples", "--out", tmp_path / "m", code=2)
    invoke("fit", tmp_path / "few.csv", "-y", "y", *options, "--out", tmp_path / "m")
    rows = outliers_in(tmp_path / "bad.csv")
    assert set(np.flatnonzero(frame.lying[8:500]) + 1) <= {row.row for row in rows}
    assert TableModel.load(tmp_path / "m").record.quality.outliers == len(rows)


def test_what_cannot_flag_rows_says_so(data, tmp_path):
    options = ["fit", data, "-y", "y", "--quarantine-outliers", "--out", tmp_path / "m"]
    assert "requires --quarantine" in invoke(*options, code=2).output
    options += ["--quarantine", tmp_path / "bad.csv"]
    assert "needs a robust likelihood" in invoke(*options, code=2).output
    options += ["--likelihood", "huber"]
    assert "leave the engine out" in invoke(*options, "--engine", "local", code=2).output.lower()
    assert "one robust model flags the rows" in invoke(*options, "--forget", "auto", code=2).output
    assert not (tmp_path / "bad.csv").exists()


def test_without_samples_no_value_is_written(data, tmp_path):
    options = ("--quarantine", tmp_path / "bad.csv", "--quarantine-outliers", "--max-bad", 1, "--no-samples")
    invoke("fit", data, "-y", "y", "--likelihood", "huber", "--out", tmp_path / "m", *options)
    rows = outliers_in(tmp_path / "bad.csv")
    assert rows and not any(row.value for row in rows)
