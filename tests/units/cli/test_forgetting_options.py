"""`kalprox fit` with each kind of forgetting, and `predict --at`, on files."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from drifting import stream

from kalprox import KalproxRegressor
from kalprox.cli import main
from kalprox.forgetting import ByTime, RandomWalk, Window
from kalprox.jobs.model import TableModel


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y, times = stream(200)
    when = np.datetime64("2026-01-01T00:00:00") + (times * 3600).astype("timedelta64[s]")
    rows = pd.DataFrame({"when": when.astype(str), "t": times, "a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y})
    rows.to_csv("rows.csv", index=False)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (("--time", "t", "--forget", "time,half_life=40"), ByTime(40.0)),
        (("--forget", "window,rows=50"), Window(50)),
        (("--forget", "walk,q=0.01"), RandomWalk(0.01)),
        (("--forget", "walk,q=0,intercept=0.1"), RandomWalk(0, intercept=0.1)),
        (("--forget", "walk,q=0.01,intercept=0"), RandomWalk(0.01, intercept=0)),
    ],
)
def test_each_option_is_its_kind(options, kind, table):
    done = run("fit", "rows.csv", "--target", "y", "--features", "a,b,c", *options, "--out", "m.kalprox")
    assert done.exit_code == 0, done.output
    model = KalproxRegressor.load("m.kalprox")
    assert model.forget == kind
    at = {"times": table["t"]} if isinstance(kind, ByTime) else {}
    expected = KalproxRegressor(forget=kind).fit(table[["a", "b", "c"]], table["y"], **at)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    shown = run("show", "m.kalprox")
    assert "forget" in shown.output and kind.describe()[:30] in shown.output


@pytest.mark.parametrize("how", ["csv", "parquet", "formula"])
def test_times_may_be_dates(how, table):
    source, options = "rows.csv", ["--target", "y", "--features", "a,b,c"]
    if how == "parquet":
        source = "rows.parquet"
        table.assign(when=pd.to_datetime(table["when"])).to_parquet(source)
    if how == "formula":
        options = ["--formula", "y ~ a + b + center(c)"]
    done = run("fit", source, *options, "--time", "when", "--forget", "time,half_life=40h", "--out", "m.kalprox")
    assert done.exit_code == 0, done.output
    model = TableModel.load("m.kalprox")
    assert model.columns.time == "when" and model.columns.time_is_date
    assert model.learner.settings.forgetting.half_life == pytest.approx(40 / 24)
    seconds = pd.to_datetime(table["when"])
    expected = KalproxRegressor(forget=ByTime(40 / 24)).fit(table[["a", "b", "c"]], table["y"], times=seconds)
    np.testing.assert_allclose(model.belief.coef, expected.coef_, rtol=1e-7)
    stds = []
    for at in ([], ["--at", "2026-02-01"], ["--at", "2026-04-01T12:00"]):
        assert run("predict", "m.kalprox", source, *at, "--out", "p.csv", "-q").exit_code == 0
        stds.append(pd.read_csv("p.csv")["std"].mean())
    assert stds[0] < stds[1] < stds[2]
    frame = table.drop(columns=["t"]).iloc[-3:].assign(when="2026-03-01T00:00:00")
    again = KalproxRegressor.load("m.kalprox").partial_fit(frame)
    assert again.n_rows_seen_ == 203


def test_a_fit_resumes_from_its_checkpoint_with_its_times(table, monkeypatch):
    about = ["fit", "rows.csv", "--target", "y", "--features", "a,b,c", "--time", "t", "--forget", "time,half_life=40"]
    about += ["--memory", "40KB", "--every", 1]
    assert run(*about, "--out", "whole.kalprox").exit_code == 0
    from kalprox.jobs.run import StreamingRun

    learn, calls = StreamingRun._learn, []

    def stopping(self, block):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return learn(self, block)

    monkeypatch.setattr(StreamingRun, "_learn", stopping)
    assert run(*about, "--out", "m.kalprox", "--checkpoint", "m.ckpt").exit_code == 130
    monkeypatch.setattr(StreamingRun, "_learn", learn)
    assert run(*about, "--out", "m.kalprox", "--checkpoint", "m.ckpt").exit_code == 0
    one, two = (TableModel.load(name).belief for name in ("whole.kalprox", "m.kalprox"))
    assert (one.coef == two.coef).all() and (one.coef_std == two.coef_std).all() and one.time == two.time


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--time", "t"], "--time is for forgetting by time: give --forget time,half_life="),
        (["--forget", "time,half_life=3"], "--forget time requires --time"),
        (["--forget", "time,half_life=soon", "--time", "t"], "expected PARAMETER=NUMBER"),
        (["--forget", "time,half_life=1e30w", "--time", "t"], "expected PARAMETER=NUMBER"),
        (["--forget", "time,half_life=-1", "--time", "t"], "half_life must be finite and > 0"),
        (["--forget", "time", "--time", "t"], "time needs a parameter, as in time,half_life=NUMBER"),
        (["--forget", "window,size=3"], "window has the parameters rows; got 'size'"),
        (["--forget", "window,rows=2.5"], "must be a whole number >= 2"),
        (["--forget", "window,rows=12h"], "must be a whole number"),
        (["--penalty", "elasticnet,l1_ratio=12h"], "Invalid value for '--penalty'"),
        (
            ["--penalty", "box,low=1,high=0"],
            "Invalid value for '--penalty': low must be <= high, and both must leave a",
        ),
        (["--forget", "walk,q=-1"], "Invalid value for '--forget': q must be finite and >= 0; got -1."),
        (["--forget", "time,half_life=3h", "--time", "t"], "has a unit, and column 't' holds numbers"),
        (["--forget", "time,half_life=3", "--time", "t", "--shuffle", 1], "--shuffle changes the order"),
        (
            ["--forget", "window,rows=50", "--likelihood", "student"],
            "window,rows=50 needs --likelihood gaussian",
        ),
        (["--forget", "walk,q=0.1", "--coef-cov", "robust"], "--forget walk,q=0.1 needs --coef-cov model"),
        (["--forget", "window,rows=50", "--no-samples"], "would hold its 50 rows"),
    ],
)
def test_mistakes_are_told_in_the_words_of_the_command(options, words, table):
    done = run("fit", "rows.csv", "--target", "y", "--features", "a,b,c", *options, "--out", "m.kalprox")
    assert done.exit_code == 2 and words in " ".join(done.output.split())


def test_a_row_that_goes_back_is_named_with_its_file(table):
    table.iloc[[*range(100), 150, *range(100, 150)]].to_csv("back.csv", index=False)
    options = ["--target", "y", "--features", "a,b,c", "--forget", "time,half_life=3", "--out", "m.kalprox"]
    done = run("fit", "back.csv", *options, "--time", "t")
    assert done.exit_code == 3 and "back.csv, row 102: times must not go backwards" in done.output
    text = run("fit", "rows.csv", *options[:-4], "--forget", "time,half_life=3", "--time", "nothing")
    assert text.exit_code == 3 and "nothing" in text.output
    table.assign(w="monday").to_csv("words.csv", index=False)
    done = run("fit", "words.csv", *options, "--time", "w")
    assert done.exit_code == 3 and "column 'w' must hold times, numbers or dates" in done.output


def test_at_needs_a_model_that_forgets_by_time(table):
    run("fit", "rows.csv", "--target", "y", "--features", "a,b,c", "--out", "m.kalprox")
    done = run("predict", "m.kalprox", "rows.csv", "--at", 3)
    assert done.exit_code == 2 and "--at requires a model that forgets by time" in done.output
    run(
        "fit",
        "rows.csv",
        "--target",
        "y",
        "--features",
        "a",
        "--time",
        "t",
        "--forget",
        "time,half_life=3",
        "--out",
        "m.kalprox",
    )
    assert "--at must be a number" in run("predict", "m.kalprox", "rows.csv", "--at", "monday").output
    assert run("predict", "m.kalprox", "rows.csv", "--at", 3).exit_code == 2
