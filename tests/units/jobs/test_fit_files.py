"""From files to a model and to predictions, by the command: what comes out is what the same rows give in memory.

The rows are flights from New York in 2013, every tenth; of some the delay is missing.
"""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from command import COMMAND, TIMEOUT, finish, invoke, run, start
from data import flights
from sklearn.linear_model import LinearRegression

from kalprox import KalproxRegressor, penalties
from kalprox.cli import main
from kalprox.cli.docs import page
from kalprox.cli.terminal import EVENTS
from kalprox.jobs.model import TableModel

pytestmark = pytest.mark.integration

NUMBERS = ["dep_delay", "distance", "hour"]
LEVELS = {
    "carrier": ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"],
    "origin": ["EWR", "JFK", "LGA"],
}
NAMES = NUMBERS + [f"{name}={level}" for name in LEVELS for level in LEVELS[name]]
COLUMNS = ["--features", ",".join([*NUMBERS, *LEVELS])]
COLUMNS += [part for name in LEVELS for part in ("--categorical", f"{name}={'|'.join(LEVELS[name])}")]
FULL = ["--contrast", "full", "--penalty", "ridge"]
REFERENCE = ["--target", "arr_delay", *COLUMNS]  # the first listed level of a column is the reference
DELAY = [*REFERENCE, *FULL]


def with_lateness(frame):
    return frame.assign(late=(frame.arr_delay > 15).where(frame.arr_delay.notna()).astype(float))


def matrix(frame, drop_first=0):
    """The columns of X by hand."""
    dummies = [frame[name] == level for name in LEVELS for level in LEVELS[name][drop_first:]]
    return np.column_stack([frame[NUMBERS].to_numpy(float), *(d.to_numpy(float) for d in dummies)])


def write_all(frame, folder):
    """The same rows in every format, and as six Parquet files of different lengths."""
    frame.to_csv(folder / "all.csv", index=False)
    frame.to_csv(folder / "all.csv.gz", index=False, compression={"method": "gzip", "compresslevel": 1})
    frame.to_json(folder / "all.jsonl", orient="records", lines=True)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pa.feather.write_feather(table, folder / "all.arrow")
    (folder / "parts").mkdir()
    ends = [0, 1, 500, 3000, 3000, 5000, len(frame)]
    for i, (begin, end) in enumerate(pairwise(ends)):
        pq.write_table(table.slice(begin, end - begin), folder / "parts" / f"{i}.parquet", row_group_size=2000)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files in a folder, their rows, and the good rows as arrays."""
    frame = with_lateness(flights(26_000).iloc[1::3].reset_index(drop=True))  # some of every carrier
    folder = tmp_path_factory.mktemp("flights")
    write_all(frame, folder)
    good = frame.dropna(subset=["arr_delay", *NUMBERS])
    return SimpleNamespace(
        folder=folder,
        frame=frame,
        good=good,
        X=matrix(good),
        y=good.arr_delay.to_numpy(),
        late=good.late.to_numpy(),
        n_bad=len(frame) - len(good),
    )


@pytest.fixture(scope="module")
def delays(data):
    """The model of the delays, fitted in memory, and one fitted by the command, with what it says and writes."""
    out, bad, events = (data.folder / name for name in ("delays.kalprox", "delays.bad.csv", "delays.events"))
    source = data.folder / "all.csv"
    done = run("fit", source, *DELAY, "--out", out, "--quarantine", bad, "--events", events)
    memory = KalproxRegressor(penalty="ridge").fit(data.X, data.y)
    return SimpleNamespace(memory=memory, file=out, found=TableModel.load(out), done=done, bad=bad, events=events)


def fitted(data, source, *options, code=0, invoke=invoke, bad="100%"):
    """The estimator that the command fits to `source`, in this process unless told otherwise."""
    out = data.folder / "one.kalprox"
    out.unlink(missing_ok=True)
    invoke("fit", source, *options, "--max-bad", bad, "--quiet", "--out", out, code=code)
    return TableModel.load(out).model


def assert_same(model, expected, rtol=1e-10):
    """To `rtol`; a coefficient, which may be anywhere near 0, relative to its standard deviation too."""
    found, wanted = (
        np.array([[m.intercept_, *m.coef_], [m.intercept_std_, *m.coef_std_]]).T for m in (model, expected)
    )
    np.testing.assert_allclose(found[:, 1], wanted[:, 1], rtol=rtol)
    apart = np.abs(found[:, 0] - wanted[:, 0])
    assert (apart <= rtol * (np.abs(wanted[:, 0]) + wanted[:, 1])).all(), apart
    np.testing.assert_allclose(model.noise_var_, expected.noise_var_, rtol=rtol)
    assert model.n_rows_seen_ == expected.n_rows_seen_


# any format, split and block size: the model in memory


@pytest.mark.slow
def test_the_command_fits_what_memory_fits_and_says_so(data, delays):
    assert_same(delays.found.model, delays.memory)
    assert delays.found.columns.names == NAMES
    assert delays.found.sources == (str(data.folder / "all.csv"),)
    read = f"{len(data.good) + data.n_bad:,} read, {len(data.good):,} learned, {data.n_bad:,} refused"
    assert delays.done.stdout.startswith(f"Rows        {read}")
    assert "\x1b" not in delays.done.stdout + delays.done.stderr  # no terminal, no escape codes
    refused = pd.read_csv(delays.bad)
    missing = np.flatnonzero(data.frame[["arr_delay", *NUMBERS]].isna().any(axis=1)) + 1
    assert refused.row.tolist() == missing.tolist() and set(refused.reason) == {"missing"}
    quality = delays.found.record.quality
    assert (quality.read, quality.bad) == (len(data.frame), data.n_bad)
    np.testing.assert_allclose(quality.total, data.X.sum(axis=0), rtol=1e-12)


def test_its_file_is_a_model_that_python_loads(data, delays):
    model = KalproxRegressor.load(delays.file)
    assert list(model.feature_names_in_) == NAMES
    X = pd.DataFrame(data.X[:100], columns=NAMES)
    np.testing.assert_allclose(model.predict(X), delays.memory.predict(data.X[:100]), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["parts", "all.arrow"])
def test_installed_on_other_formats(source, data, delays):
    done = []
    assert_same(
        fitted(data, data.folder / source, *DELAY, invoke=lambda *a, **k: done.append(run(*a, **k))), delays.memory
    )
    assert done[0].stdout == done[0].stderr == ""  # quiet


@pytest.mark.parametrize(
    ("source", "memory"),
    [
        *((source, "1MB") for source in ("all.csv", "all.jsonl", "parts")),
        ("parts/*.parquet", "1GiB"),
        # What is read from these is compared by sources/test_table.py.
        *(pytest.param(source, "1MB", marks=pytest.mark.slow) for source in ("all.csv.gz", "all.arrow")),
        *(pytest.param(source, "1GiB", marks=pytest.mark.slow) for source in ("all.csv", "all.jsonl")),
        pytest.param("all.arrow", "64kB", marks=pytest.mark.slow),
    ],
)
def test_any_format_split_and_block_size(source, memory, data, delays):
    model = fitted(data, data.folder / source, *DELAY, "--memory", memory)
    assert_same(model, delays.memory)


def test_several_sources_of_several_formats(data, delays):
    data.frame[:3000].to_csv(data.folder / "first.csv", index=False)
    others = [data.folder / "parts" / f"{i}.parquet" for i in (4, 5)]
    assert_same(fitted(data, data.folder / "first.csv", *others, *DELAY), delays.memory)


@pytest.mark.slow
def test_levels_are_those_of_all_rows(data, delays):
    """However few rows are looked at for the types. What is not listed is a bad row, or zeros on request, counted."""
    plain = ["--target", "arr_delay", "--features", ",".join([*NUMBERS, *LEVELS])]
    source, seen = data.folder / "all.csv", sorted(set(data.frame.carrier[:1000]))
    assert len(seen) < len(LEVELS["carrier"])
    assert_same(fitted(data, source, *plain, *FULL, "--infer-rows", 1000), delays.memory)
    columns = [i for i, name in enumerate(NAMES) if not name.startswith("carrier=") or name[8:] in seen]
    some = [*plain, *FULL, "--categorical", f"carrier={'|'.join(seen)}"]
    keep = data.good.carrier.isin(seen).to_numpy()
    assert_same(
        fitted(data, source, *some), KalproxRegressor(penalty="ridge").fit(data.X[keep][:, columns], data.y[keep])
    )
    zeros = fitted(data, source, *some, "--unseen", "zero")
    assert_same(zeros, KalproxRegressor(penalty="ridge").fit(data.X[:, columns], data.y))
    unknown = TableModel.load(data.folder / "one.kalprox").record.quality.notes.unknown["carrier"]
    assert unknown.count == (~data.frame.carrier.isin(seen)).sum()


@pytest.mark.slow
def test_all_flights(tmp_path):
    """Without first levels: with all of them, tied to the intercept by the penalty alone, the condition number is 2e11,
    and 1e-10 is what rounding leaves of 16 digits."""
    frame = with_lateness(flights())
    write_all(frame, tmp_path)
    good = frame.dropna(subset=["arr_delay", *NUMBERS])
    expected = KalproxRegressor().fit(matrix(good, drop_first=1), good.arr_delay.to_numpy())
    options = [*REFERENCE, "-q", "--max-bad", "5%", "--out", tmp_path / "all.kalprox"]
    for source, memory in (("all.csv", "512kB"), ("all.jsonl", "512kB"), ("all.arrow", "256MB"), ("parts", "512kB")):
        run("fit", tmp_path / source, *options, "--memory", memory)
        assert_same(TableModel.load(tmp_path / "all.kalprox").model, expected)


# settings


GROUPS = [0, 1, 2, *16 * [3], *3 * [4]]
SETTINGS = [
    (["--penalty", "l1", "--alpha", 2000], {"penalty": "l1", "alpha": 2000.0}),
    (["--penalty", "elasticnet,l1_ratio=0.2"], {"penalty": penalties.ElasticNet(0.2)}),
    (["--penalty", "group", "--alpha", 900], {"penalty": penalties.Group(GROUPS), "alpha": 900.0}),
    (["--penalty", "box,low=-1,high=0.5"], {"penalty": penalties.Box(-1.0, 0.5)}),
    (["--no-intercept", "--noise", 300], {"fit_intercept": False, "noise": 300.0}),
    (["--standardize", "--alpha", "auto"], {"standardize": True, "alpha": "auto"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "settings"), SETTINGS, ids=[str(options[-1]) for options, _ in SETTINGS])
def test_settings_are_those_of_the_estimator(options, settings, data):
    model = fitted(data, data.folder / "all.arrow", *DELAY, *options)
    rtol = 1e-5 if "auto" in options else 1e-10  # the evidence, some 1e5, is flat within sqrt(1e5 eps) of log(alpha)
    assert_same(model, KalproxRegressor(**{"penalty": "ridge"} | settings).fit(data.X, data.y), rtol)


def test_without_a_penalty_first_levels_are_dropped_and_it_is_least_squares(data):
    model = fitted(data, data.folder / "parts", *REFERENCE, "--penalty", "none")
    X = matrix(data.good, drop_first=1)
    exact = LinearRegression().fit(X, data.y)
    np.testing.assert_allclose(model.coef_, exact.coef_, rtol=1e-7)
    np.testing.assert_allclose(model.intercept_, exact.intercept_, rtol=1e-7)
    A = np.column_stack([np.ones(len(X)), X])
    s2 = ((data.y - exact.predict(X)) ** 2).sum() / (len(X) - A.shape[1])
    std = np.sqrt(s2 * np.diag(np.linalg.inv(A.T @ A)))
    np.testing.assert_allclose([model.intercept_std_, *model.coef_std_], std, rtol=1e-7)


@pytest.mark.slow
def test_the_first_level_may_be_the_reference(data):
    expected = KalproxRegressor().fit(matrix(data.good, drop_first=1), data.y)
    plain = ["--target", "arr_delay", "--features", ",".join([*NUMBERS, *LEVELS])]
    for options in (REFERENCE, [*plain, "--drop-first"]):
        assert_same(fitted(data, data.folder / "parts", *options), expected)


@pytest.mark.slow
def test_a_link(data):
    options = ["--target", "late", *COLUMNS, *FULL, "--link", "sigmoid"]
    expected = KalproxRegressor(link="sigmoid", penalty="ridge").fit(data.X, data.late)
    for source, memory in (("parts", "256MB"), ("all.csv", "2MB")):
        model = fitted(data, data.folder / source, *options, "--memory", memory)
        assert_same(model, expected)
        assert model.converged_


@pytest.mark.slow
def test_weights_count_rows_and_dates_are_days(data):
    options = ["--target", "arr_delay", "--features", "dep_delay,time_hour", "--dates", "time_hour", "--weight", "hour"]
    model = fitted(data, data.folder / "all.csv", *options)
    days = pd.to_datetime(data.good.time_hour, utc=True) - pd.Timestamp("1970-01-01", tz="UTC")
    X = np.column_stack([data.good.dep_delay, days / pd.Timedelta(days=1)])
    assert_same(model, KalproxRegressor().fit(X, data.y, data.good.hour.to_numpy(float)))
    assert_same(model, fitted(data, data.folder / "parts", *options))


def test_weights_may_be_precisions(data):
    options = ["--target", "arr_delay", "--features", "dep_delay", "--weight", "hour", "--weight-kind", "precision"]
    model = fitted(data, data.folder / "all.csv", *options)
    ours = KalproxRegressor(weight_kind="precision").fit(data.X[:, :1], data.y, data.good.hour.to_numpy(float))
    assert_same(model, ours)
    assert model.weight_kind == "precision"
    assert ours.noise_dof_ == pytest.approx(len(data.y) - 2, abs=0.01)


def test_all_columns_are_features_by_default(data):
    source = data.folder / "narrow.csv"
    data.frame[["arr_delay", *NUMBERS]].to_csv(source, index=False)
    model = fitted(data, source, "-y", "arr_delay")
    assert_same(model, KalproxRegressor().fit(data.X[:, :3], data.y))


@pytest.mark.slow
def test_shuffled_rows_give_the_same_linear_model_and_another_order_to_one_pass(data, delays):
    source = data.folder / "parts"
    assert_same(fitted(data, source, *DELAY, "--shuffle", 1), delays.memory)
    data.frame[:3000].to_csv(data.folder / "short.csv", index=False)
    late = ["-y", "late", "--features", "dep_delay", "--link", "sigmoid", "--passes", 1]
    shuffles = ([], ["--shuffle", 1], ["--shuffle", 1], ["--shuffle", 2])
    first, one, again, two = (fitted(data, data.folder / "short.csv", *late, *seed).coef_ for seed in shuffles)
    assert one == again and len({*first, *one, *two}) == 3


# predictions


def predictions(file):
    return pq.read_table(file).to_pandas() if file.suffix == ".parquet" else pd.read_csv(file)


@pytest.mark.parametrize(("source", "name"), [("parts", "p.parquet"), ("all.jsonl", "p.csv")])
def test_predictions_are_those_in_memory_in_order_with_bad_rows_in_place(source, name, data, delays):
    out, bad = data.folder / name, data.folder / "p.bad.csv"
    options = ["--out", out, "--quarantine", bad, "--level", 0.8, "--memory", "5MB"]
    assert f"{len(data.frame):,} read" in invoke("predict", delays.file, data.folder / source, *options).output
    found, keep = predictions(out), data.frame[NUMBERS].notna().all(axis=1).to_numpy()
    X = matrix(data.frame[keep])  # where only the delay to predict is missing, there is a prediction
    mean, std = delays.memory.predict(X, return_std=True)
    lower, upper = delays.memory.predict_interval(X, 0.8)
    assert list(found) == ["mean", "std", "lower", "upper"] and len(found) == len(data.frame)
    np.testing.assert_allclose(found[keep], np.column_stack([mean, std, lower, upper]), rtol=1e-9, atol=1e-9)
    assert found[~keep].isna().all(axis=None) and len(pd.read_csv(bad)) == (~keep).sum() > 0


@pytest.mark.slow
def test_a_pipeline(data, delays):
    """Standard input to standard output, as text and with nothing else in it."""
    source, out = data.folder / "all.csv", data.folder / "piped.kalprox"
    with subprocess.Popen(["cat", source], stdout=subprocess.PIPE) as cat:
        run("fit", "-", *DELAY, "--max-bad", "5%", "--out", out, stdin=cat.stdout)
    assert_same(TableModel.load(out).model, delays.memory)
    with open(source) as rows:
        done = run("predict", out, "-", "--max-bad", "5%", stdin=rows)
    assert done.stderr.startswith(f"Rows        {len(data.frame):,} read")
    invoke("predict", out, source, "--max-bad", "5%", "--out", data.folder / "file.csv")
    assert done.stdout == (data.folder / "file.csv").read_text()


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(data, delays):
    shell = f"{' '.join(COMMAND)} predict {delays.file} {data.folder}/all.csv --max-bad 5% | head -n 1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.stdout == '"mean","std","lower","upper"\n' and done.stderr == ""


def test_a_failed_prediction_leaves_no_file(data, delays):
    out = data.folder / "none.parquet"
    invoke("predict", delays.file, data.folder / "all.csv", "--out", out, code=4)
    assert not out.exists() and not list(data.folder.glob(".none*"))
    output = invoke("predict", delays.file, data.folder / "all.csv", "--out", out.with_suffix(".xls"), code=2).output
    assert ".parquet or .csv" in output


# merging


@pytest.mark.slow
def test_two_halves_merge_to_the_whole(data, delays):
    first, second, both = (data.folder / f"{name}.kalprox" for name in ("first", "second", "both"))
    half = len(data.frame) // 2
    data.frame[:half].to_csv(data.folder / "half.csv", index=False)
    data.frame[half:].to_parquet(data.folder / "half.parquet")
    bad = ["--max-bad", "9%", "-q"]
    invoke("fit", data.folder / "half.csv", *DELAY, *bad, "--out", first)
    invoke("fit", data.folder / "half.parquet", "--columns", first, "--penalty", "ridge", *bad, "--out", second)
    assert f"{len(data.good):,} rows of 2 models" in invoke("merge", first, second, "--out", both).output
    merged = TableModel.load(both)
    assert_same(merged.model, delays.memory)
    assert merged.record.quality.read == len(data.frame) and merged.record.quality.bad == data.n_bad
    assert merged.sources == (str(data.folder / "half.csv"), str(data.folder / "half.parquet"))
    other = data.folder / "other.kalprox"
    only_hour = ["-y", "arr_delay", "--features", "hour", "--penalty", "ridge"]
    invoke("fit", data.folder / "half.csv", *only_hour, *bad, "--out", other)
    output = invoke("merge", first, other, "--out", data.folder / "no.kalprox", code=2).output
    assert "have different columns (numeric" in output and not (data.folder / "no.kalprox").exists()
    assert "At least two models" in invoke("merge", first, "--out", both, code=2).output


# memory

MEMORY = 16 << 20
PEAK = """
import runpy, sys
try:
    runpy.run_module("kalprox", run_name="__main__", alter_sys=True)
finally:
    print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""
WHOLE = (
    """
import pyarrow.csv
whole = pyarrow.csv.read_csv("large.csv")
"""
    + PEAK
)


def peak(folder, source, code=PEAK):
    """Fit `source` in a child and return its peak of resident memory, in bytes.

    Blocks come from malloc, which returns what is freed. Addresses are not limited: how many are reserved and never
    used differs by 10 MB from run to run on a busy machine.
    """
    environment = {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    command = ["fit", source, "-y", "y", "--quiet", "--out", "model", "--memory", str(MEMORY)]
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr) << 10


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    """A file seven times as large as --memory is fitted within what one of 1% takes, and --memory on top of it.

    The small file has some blocks too, so that all that is made once is in its peak: libraries, the stacks of threads,
    OpenBLAS's buffer.
    """
    rng = np.random.default_rng(0)
    block = pa.table({name: rng.standard_normal(50_000) for name in "yabcd"})
    with pa.csv.CSVWriter(tmp_path / "large.csv", block.schema) as file:
        for _ in range(24):
            file.write_table(block)
    pa.csv.write_csv(block.slice(0, 20_000), tmp_path / "small.csv")
    assert (tmp_path / "large.csv").stat().st_size > 7 * MEMORY
    limit = peak(tmp_path, "small.csv") + MEMORY
    assert peak(tmp_path, "small.csv", WHOLE) > limit  # the limit is one: read whole, the file takes more
    assert peak(tmp_path, "large.csv") <= limit
    model = TableModel.load(tmp_path / "model").model
    assert model.n_rows_seen_ == 24 * len(block)


# what is said


def read_events(file):
    """Their names; what else is in them is what the documentation says."""
    events = [json.loads(line) for line in file.read_text().splitlines()]
    for event in events:
        says = EVENTS["progress" if event["event"] == "checkpoint" else event["event"]]
        assert set(event) - {"event", "seconds"} <= set(re.findall(r"`(\w+)`", says)), event
        assert event["seconds"] >= 0
    return [event["event"] for event in events], events[-1]


@pytest.mark.slow
def test_events_are_those_documented(data, delays):
    names, last = read_events(delays.events)
    assert names[0] == "start" and last["event"] == "done"
    assert (last["rows"], last["bad"]) == (len(data.good), data.n_bad) and last["model"] == str(delays.file)
    assert last["rmse"] == float(delays.found.model.diagnostics_.rmse)
    file = data.folder / "few.events"
    options = ["--events", file, "--checkpoint", data.folder / "few.ckpt", "--every", 2000, "--quiet"]
    options += [*COLUMNS, "-y", "late", "--out", data.folder / "few.kalprox"]
    invoke("fit", data.folder / "parts", *options, "--max-bad", 100, code=4)
    names, last = read_events(file)
    assert (names[0], names[-1]) == ("start", "failed") and "bad of" in last["error"]
    (data.folder / "few.ckpt").unlink(missing_ok=True)
    for link in ("identity", "sigmoid"):
        invoke("fit", data.folder / "parts", *options, "--max-bad", "9%", "--link", link)
        names, last = read_events(file)
        assert last["event"] == "done" and names.count("checkpoint") >= 2
    invoke("predict", delays.file, data.folder / "parts", "--max-bad", "9%", "--events", file)
    assert read_events(file)[1]["rows"] == len(data.frame)


@pytest.mark.slow
def test_a_terminal_gets_a_bar(data):
    ours, theirs = pty.openpty()
    options = [*DELAY, "--max-bad", "5%", "--memory", "1MB", "--out", data.folder / "bar.kalprox"]
    with start("fit", data.folder / "all.csv", *options, stderr=theirs) as process:
        os.close(theirs)
        drawn = b""
        with contextlib.suppress(OSError):  # where the other end is closed
            while part := os.read(ours, 1 << 12):
                drawn += part
        os.close(ours)
        done = finish(process)
    assert all(text in drawn for text in (b"fit", b" rows", b" bad", b"\x1b["))
    assert "\x1b" not in done.stdout and f"{len(data.good):,} learned" in done.stdout


@pytest.mark.slow
def test_a_model_is_shown_reported_and_traced(data, delays):
    done = run("show", delays.file, "--top", 3)
    assert "\x1b" not in done.stdout
    for text in (f"{len(data.good):,}", f"{data.n_bad:,}", "ridge, alpha = 1", f"{delays.memory.coef_[0]:.4g}"):
        assert text in done.stdout
    assert f"{delays.memory.coef_std_[0]:.4g}" in done.stdout
    assert "carrier=9E" not in done.stdout.partition("┏")[2]  # the tables
    html = data.folder / "delays.html"
    assert invoke("report", delays.file).stdout.strip() == str(html)
    assert "carrier=9E" in html.read_text() and f"{len(data.good):,}" in html.read_text()


def test_the_path_is_that_in_memory(data, delays):
    out = data.folder / "path.csv"
    output = invoke("path", delays.file, "--alphas", "100,1,10000", "--out", out).output
    found, expected = pd.read_csv(out), delays.memory.path([100.0, 1.0, 10000.0])
    np.testing.assert_allclose(found[NAMES], expected.coef, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.alpha, expected.alphas)
    np.testing.assert_allclose(found.edf, expected.edf, rtol=1e-8)
    assert "best" in output and "10,000" in output
    assert "expected numbers" in invoke("path", delays.file, "--alphas", "1,x", code=2).output


@pytest.mark.parametrize("command", ["fit", "predict", "show", "report", "path", "merge"])
def test_help_imports_nothing_heavy(command):
    """So that it is instant: the imports of the numeric stack take ten times as long as the rest."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kalprox", command, "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "click" in imported
    heavy = {"numpy", "scipy", "jax", "pyarrow", "sklearn", "matplotlib", "pandas", "rich", "jinja2", "filelock"}
    names_of_links_and_penalties = {"numpy", "scipy"} if command == "fit" else set()
    assert not imported & (heavy - names_of_links_and_penalties)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["fit"], 2, "Missing argument 'SOURCE...'"),
        (["fit", "{csv}"], 2, "Missing option '--target'"),
        (["fit", "{csv}", "-y", "late", "--alpha", "much"], 2, "expected a number, or auto; got 'much'"),
        (["fit", "{csv}", "-y", "late", "--features", "hour", "--max-bad", "9%", "--alpha", "-1"], 2, "alpha"),
        (["fit", "{csv}", "-y", "late", "--memory", "lots"], 2, "expected a size such as 512MB"),
        (["fit", "{csv}", "-y", "late", "--features", "hour", "--passes", "3"], 2, "after one pass. Set --passes 1."),
        (["fit", "{csv}", "-y", "late", "--features", "hour", "--max-bad", "few"], 2, "expected a number of rows"),
        (["fit", "{csv}", "-y", "late", "--features", "hour,hours"], 3, "Did you mean 'hour'"),
        (["fit", "nowhere.csv", "-y", "late"], 3, "There is no file nowhere.csv"),
        (["fit", "{csv}", "-y", "late", "--features", "hour"], 4, "all.csv, row"),
        (["fit", "{csv}", "-y", "hour", "--features", "minute", "--out", "{csv}/x"], 7, "There is no folder"),
        (["predict", "nowhere.kalprox", "{csv}"], 2, "does not exist"),
        (["predict", "{csv}", "{csv}"], 6, "all.csv is not a kalprox model file"),
        (["show", "{csv}"], 6, "all.csv is not a kalprox model file"),
        (["learn"], 2, "No such command 'learn'"),
    ],
)  # fmt: skip
def test_wrong_usage_is_said(arguments, code, says, data, monkeypatch):
    monkeypatch.chdir(data.folder)
    output = invoke(*(a.format(csv=data.folder / "all.csv") for a in arguments), code=code).output
    assert says in " ".join(output.replace("│", " ").split())


def test_the_documentation_is_that_of_the_commands():
    written = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
    assert written.read_text() == page(), "python -m kalprox.cli.docs > docs/reference/cli.md"
    for name, command in main.commands.items():
        assert f"## kalprox {name}" in page() and "Example:" in (command.help or "")
        assert all(param.help for param in command.params if isinstance(param, click.Option))
