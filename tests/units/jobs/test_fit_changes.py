"""Change points of a fit to files: in the events, the report, and through checkpoints, each of them once."""

import json

import numpy as np
import pandas as pd
import pytest
from command import invoke

from kalprox.cli.terminal import Reporter
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import TableModel
from kalprox.reports import model as report
from kalprox.sources.columns import Columns
from kalprox.sources.table import Table

JUMPS = 400, 900


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file of 1,200 rows whose level jumps twice."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 2))
    level = 5.0 * np.searchsorted(JUMPS, np.arange(1200), side="right")
    path = tmp_path_factory.mktemp("changes") / "rows.csv"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": X.sum(axis=1) + level + rng.normal(size=1200)}).to_csv(path)
    return path


def _changes(events):
    found = [json.loads(line) for line in events.read_text().splitlines()]
    return [{k: v for k, v in one.items() if k != "seconds"} for one in found if one["event"] == "change"]


def test_the_command_writes_them_to_the_events_and_the_report(file, tmp_path):
    events, out = tmp_path / "events.jsonl", tmp_path / "model.kalprox"
    options = ["--features", "a,b", "--change-points", "auto", "--events", events, "--out", out]
    done = invoke("fit", file, "-y", "y", *options)
    assert "! Changes   2 change points were found: from row 401 on" in done.output
    assert "--forget auto" in done.output
    first, second = _changes(events)
    assert (first["number"], first["start"], second["number"], second["start"]) == (1, 401, 2, 901)
    assert first["time"] is None
    assert "2 change points" in invoke("show", out).output
    fitted = TableModel.load(out)
    (section,) = (one for one in report.page(fitted, "model").sections if one.title == "Running error")
    assert [row[0] for row in section.tables[0].rows] == [401, 901]
    assert "change points" in section.figures[0].caption


@pytest.mark.slow
def test_a_fit_that_is_resumed_reports_each_change_once(file, tmp_path):
    """The run ends after the first checkpoint, which is after the first change."""
    columns = Columns.infer([file], "y", ["a", "b"])
    events, checkpoint = tmp_path / "events.jsonl", tmp_path / "run.ckpt"

    def run(watch_of, **options):
        with Reporter("fit", quiet=True, events=events) as reporter:
            table = Table([file], columns, memory=1 << 16)  # blocks of 64 rows at most
            job = FitJob(table, {"change_points": True}, watch=watch_of(reporter), **options)
            return job.run(tmp_path / "model.kalprox")

    def ends_early(reporter):
        def watch(progress):
            reporter.progress(progress)
            if progress.rows >= 700:
                raise KeyboardInterrupt

        return watch

    whole = run(lambda reporter: reporter.progress)
    in_one = _changes(events)
    assert [one["start"] for one in in_one] == [401, 901]
    with pytest.raises(KeyboardInterrupt):
        run(ends_early, checkpoint=checkpoint, every=500)
    assert _changes(events) == in_one[:1]
    resumed = run(lambda reporter: reporter.progress, checkpoint=checkpoint, every=500)
    assert _changes(events) == in_one
    assert resumed.learner.score.changes == whole.learner.score.changes


def test_rows_in_no_order_are_refused(file, tmp_path):
    arguments = ["fit", file, "-y", "y", "--features", "a,b", "--change-points", "500", "--out", tmp_path / "m.kalprox"]
    for more in (["--engine", "local"], ["--shuffle", "1"], ["--link", "softplus", "--targets", "any"]):
        assert "on an engine needs no --change-points, because" in invoke(*arguments, *more, code=2).output
    done = invoke(*arguments[:-4], "--change-points", "3", code=2)
    assert "--change-points must be the expected number of rows" in done.output
