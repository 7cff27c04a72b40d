"""Fits with categorical columns: sorted, shuffled, piped, distributed and resumed they are the same fit."""

import re
import subprocess
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from command import invoke, run, start

from kalprox.cli import main
from kalprox.jobs.model import TableModel
from kalprox.sources.files import _own_stdin
from kalprox.sources.table import Table

pytestmark = pytest.mark.integration

CARRIERS = ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"]
N = 14_000


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Flights sorted by carrier, of which the first 10,001 rows have one of 16, and the same rows shuffled."""
    folder, rng = tmp_path_factory.mktemp("levels"), np.random.default_rng(16)
    code = np.sort(np.concatenate([np.zeros(10_001, int), np.arange(16), rng.integers(1, 16, N - 10_017)]))
    origin = rng.integers(0, 3, N)
    x = rng.standard_normal(N)
    y = 20 * x + 3.0 * np.linspace(-1, 2, 16)[code] + np.array([0.0, 2, -1])[origin] + 10 * rng.standard_normal(N)
    frame = pd.DataFrame(
        {"arr_delay": y, "dep_delay": x, "carrier": np.array(CARRIERS)[code], "origin": np.array(list("EJL"))[origin]}
    )
    frame.to_csv(folder / "sorted.csv", index=False)
    frame.to_parquet(folder / "sorted.parquet", index=False)
    frame.sample(frac=1, random_state=1).to_csv(folder / "shuffled.csv", index=False)
    frame["tail"] = [f"N{i % 3000}" for i in range(N)]
    frame.to_csv(folder / "tails.csv", index=False)
    return folder


def fitted(data, source, *options, code=0):
    done = invoke("fit", data / source, "-y", "arr_delay", "-q", "--out", data / "m.kalprox", *options, code=code)
    return TableModel.load(data / "m.kalprox") if code == 0 else done.output


def table(model):
    """The coefficients and their standard errors by name."""
    belief = model.belief
    names = ["intercept", *model.columns.names]
    cells = np.column_stack([[belief.intercept, *belief.coef], [belief.intercept_std, *belief.coef_std]])
    return pd.DataFrame(cells, names).sort_index()


def predictions(data, model):
    """Of the first block of rows."""
    rows = next(Table([data / "shuffled.csv"], model.columns).blocks())
    return model.learner.predict(rows.X).mean


def assert_same(found, expected, rtol):
    pd.testing.assert_frame_equal(table(found), table(expected), rtol=rtol, atol=0)


@pytest.mark.slow
def test_a_sorted_file_is_the_shuffled_file(data):
    """The first look sees one carrier of 16; before, the rows of the other 15 were zeros."""
    by_order = {name: fitted(data, name) for name in ("sorted.csv", "sorted.parquet", "shuffled.csv")}
    for model in by_order.values():
        assert_same(model, by_order["shuffled.csv"], 1e-8)
        assert model.columns.references == {"carrier": "9E", "origin": model.columns.categorical["origin"][0]}
        assert len(model.columns.names) == 1 + 15 + 2
        quality = model.record.quality
        assert quality.bad == 0 and not quality.notes.unknown_levels


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--penalty", "none"],
        ["--penalty", "l1", "--alpha", 2000],
        pytest.param(["--penalty", "group", "--alpha", 2000], marks=pytest.mark.slow),
        pytest.param(["--coef-cov", "robust"], marks=pytest.mark.slow),
        pytest.param(["--noise", "inputs"], marks=pytest.mark.slow),
    ],
    ids=lambda options: str(options[-1]) if options else "ridge",
)
def test_levels_that_are_found_are_levels_that_are_given(data, options):
    """In a file and on standard input, with any settings."""
    found = fitted(data, "sorted.csv", *options)
    levels = [f"{name}={'|'.join(known)}" for name, known in found.columns.categorical.items()]
    given = fitted(data, "sorted.csv", *options, "--categorical", levels[0], "--categorical", levels[1])
    assert_same(found, given, 1e-10)
    arguments = ["fit", "-", "-y", "arr_delay", "-q", "--out", str(data / "p.kalprox"), *map(str, options)]
    _own_stdin.cache_clear()  # of another test
    result = CliRunner().invoke(main, arguments, input=(data / "sorted.csv").read_bytes())
    assert result.exit_code == 0, result.output
    assert_same(TableModel.load(data / "p.kalprox"), given, 1e-10)


@pytest.mark.slow
def test_an_engine_learns_the_same_levels(data):
    stream = fitted(data, "sorted.parquet")
    engine = fitted(data, "sorted.parquet", "--engine", "local", "--partitions", 5)
    assert_same(engine, stream, 1e-8)
    assert engine.columns == stream.columns


def test_a_nonlinear_fit_of_several_passes_has_all_levels(data):
    frame = pd.read_csv(data / "sorted.csv")
    frame.assign(arr_delay=(frame.arr_delay > 0).astype(float)).to_csv(data / "late.csv", index=False)
    model = fitted(data, "late.csv", "--link", "sigmoid")
    assert model.belief.converged and len(model.columns.categorical["carrier"]) == 16


@pytest.mark.slow
def test_a_fit_is_resumed_with_the_levels_of_its_files(data, monkeypatch):
    whole, checkpoint = fitted(data, "sorted.csv"), data / "c.ckpt"
    options = ["--checkpoint", checkpoint, "--every", 1000, "--memory", "256kB"]
    rows = []

    def stop(reporter, progress):
        rows.append(progress.rows)
        if progress.checkpoint and progress.rows > 11_000:
            raise OSError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("kalprox.cli.terminal.Reporter.progress", stop)
        fitted(data, "sorted.csv", *options, code=7)
    assert checkpoint.exists() and rows[-1] < N
    assert_same(fitted(data, "sorted.csv", *options), whole, 1e-8)
    assert not checkpoint.exists()


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_contrast_without_a_penalty(data):
    plain = predictions(data, fitted(data, "sorted.csv", "--penalty", "none"))
    for options in (["--drop-first"], ["--no-intercept"]):
        model = fitted(data, "sorted.csv", "--penalty", "none", *options)
        assert np.isfinite(model.belief.coef_std).all()
        np.testing.assert_allclose(predictions(data, model), plain, rtol=1e-8, atol=1e-8)
    assert model.columns.references.keys() == {"origin"}


@pytest.mark.slow
def test_contrasts_that_contradict_the_other_options(data):
    out = fitted(data, "sorted.csv", "--penalty", "none", "--contrast", "full", code=2)
    assert "--contrast full needs a penalty" in out and "--no-intercept" in out
    assert "--drop-first chooses a reference" in fitted(
        data, "sorted.csv", "--drop-first", "--contrast", "full", code=2
    )
    assert fitted(data, "sorted.csv", "--penalty", "box").columns.references == {}


@pytest.mark.slow
def test_the_reference_is_named_where_coefficients_are(data):
    model = fitted(data, "sorted.csv", "--penalty", "ridge")
    against = f"carrier against 9E, origin against {model.columns.references['origin']}"
    for command in ("show", "path"):
        shown = invoke(command, data / "m.kalprox").output
        assert against in re.sub(r"\s+", " ", shown), command
    invoke("report", data / "m.kalprox", "--out", data / "m.html")
    assert (data / "m.html").read_text().count(against) >= 2  # beside the figure, and the table


def test_levels_that_are_not_listed_stop_the_fit_with_a_remedy(data):
    listed = ["--categorical", "carrier=9E|AA"]
    out = fitted(data, "sorted.csv", *listed, code=4)
    assert "column 'carrier': unseen level ('AS')" in out and "--unseen zero" in out
    model = fitted(data, "sorted.csv", *listed, "--unseen", "zero")
    unknown = model.record.quality.notes.unknown["carrier"]
    frame = pd.read_csv(data / "sorted.csv")
    assert unknown.count == (~frame.carrier.isin(["9E", "AA"])).sum() and unknown.filled == N


@pytest.mark.slow
def test_too_many_levels_may_be_hashed(data):
    out = fitted(data, "tails.csv", code=3)
    assert "column 'tail' has 3,000 levels, more than the 1,000 allowed" in out and "--hash tail" in out
    assert "expected NAME or NAME=BINS" in fitted(data, "tails.csv", "--hash", "tail=many", code=2)
    done = invoke("fit", data / "tails.csv", "-y", "arr_delay", "--hash", "tail=64", "--out", data / "h.kalprox")
    assert re.search(r"about [\d,]+ of about [\d,]+ levels share one of 64 bins", " ".join(done.stdout.split()))
    model = TableModel.load(data / "h.kalprox")
    assert model.columns.hashed == {"tail": 64} and len(model.columns.names) == 1 + 15 + 2 + 63
    assert abs(model.record.quality.notes.hashed["tail"].levels / 3000 - 1) < 5 / np.sqrt(510)
    engine = fitted(data, "tails.csv", "--hash", "tail=64", "--engine", "local", "--partitions", 3)
    assert_same(engine, model, 1e-8)
    assert engine.record.quality.notes == model.record.quality.notes
    few = fitted(data, "tails.csv", "--hash", "tail=64", "--hash", "origin=5")
    assert few.record.quality.notes.hashed["origin"].levels == 3
    new = data / "new.csv"
    new.write_text("dep_delay,carrier,origin,tail\n1,UA,E,never seen\n")
    assert "mean" in invoke("predict", data / "h.kalprox", new).output
    for command in ("show", "report"):
        invoke(command, data / "h.kalprox", *(["--out", data / "h.html"] if command == "report" else []))
    assert "tail=#0" in (data / "h.html").read_text()


@pytest.mark.slow
def test_standard_input_of_the_installed_command(data):
    """Said where it is stored; and an endless stream learns as it arrives where the levels are given."""
    with open(data / "sorted.csv", "rb") as rows:
        done = run("fit", "-", "-y", "arr_delay", "--out", data / "s.kalprox", stdin=rows)
    assert "Storing standard input in a temporary file, to find the levels of 'carrier', 'origin'" in done.stderr
    assert_same(TableModel.load(data / "s.kalprox"), fitted(data, "sorted.csv"), 1e-10)
    events = data / "events"
    listed = ["--categorical", f"carrier={'|'.join(CARRIERS)}", "--categorical", "origin=E|J|L", "--memory", "256kB"]
    options = [*listed, "--infer-rows", 100, "--events", events, "--out", data / "e.kalprox"]
    header, *lines = (data / "shuffled.csv").read_text().splitlines(keepends=True)
    with suppress(BrokenPipeError), start("fit", "-", "-y", "arr_delay", *options, stdin=subprocess.PIPE) as process:
        process.stdin.write(header)
        while not events.exists() or '"progress"' not in events.read_text():
            process.stdin.writelines(lines)
            assert process.poll() is None, process.stderr.read()
        process.kill()
