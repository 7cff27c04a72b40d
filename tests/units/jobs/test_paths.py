"""The paths of a command: files that coincide are refused and untouched; devices, pipes and links are written to."""

import csv
import io
import json
import os
import stat
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from command import COMMAND, finish, invoke, run, start, started, wait_for

from kalprox import model_file
from kalprox.jobs.checkpoint import Checkpoint, CheckpointError
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import TableModel
from kalprox.jobs.predict import predict
from kalprox.sources.columns import Columns
from kalprox.sources.quarantine import Quarantine
from kalprox.sources.table import Table

FIT = ("--target", "y", "--quiet")
COLUMNS = Columns("y", None, ("a", "b"))


def rows(n):
    """Rows of a CSV file without its header; some are bad."""
    values = np.random.default_rng(0).standard_normal((n, 3)).round(6)
    return "".join(f"{y},{a},{'bad' if i % 50 == 7 else b}\n" for i, (y, a, b) in enumerate(values.tolist()))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "rows.csv").write_text("y,a,b\n" + rows(200))
    invoke("fit", folder / "rows.csv", *FIT, "--features", "a,b", "--max-bad", 9, "--out", folder / "m")
    return (folder / "m").read_bytes()


@pytest.fixture
def folder(tmp_path, model, monkeypatch):
    """The working directory, with a source and two models, each under three names."""
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("y,a,b\n" + rows(200))
    for name in ("m.html", "other.kalprox"):
        Path(name).write_bytes(model)
    for name in ("rows.csv", "m.html"):
        os.symlink(name, f"soft-{name}")
        os.link(name, f"hard-{name}")
    Path("run.lock").write_bytes(b"precious")
    return tmp_path


def contents(folder):
    return {path.name: (path.read_bytes(), path.is_symlink()) for path in folder.iterdir()}


def refused(folder, *arguments, says):
    before = contents(folder)
    output = invoke(*arguments, code=2).output
    assert says in output and "Nothing was written" in output, output
    assert contents(folder) == before


SOURCE = ["rows.csv", "soft-rows.csv", "hard-rows.csv"]
MODEL = ["m.html", "soft-m.html", "hard-m.html"]


@pytest.mark.parametrize("option", ["--out", "--checkpoint", "--quarantine", "--events"])
@pytest.mark.parametrize("name", SOURCE)
def test_fit_does_not_write_to_its_source(folder, option, name):
    refused(folder, "fit", "rows.csv", *FIT, option, name, says=f"SOURCE and {option} are the same file")


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        ("--out", "--checkpoint", "new"),
        ("--out", "--quarantine", "new"),
        ("--checkpoint", "--quarantine", "./new"),
        ("--quarantine", "--events", "NEW"),
        ("--columns", "--events", "soft-m.html"),
        ("--columns", "--out", "hard-m.html"),
    ],
)
def test_fit_does_not_write_to_one_file_twice(folder, one, other, name):
    first = "m.html" if one == "--columns" else "new"
    refused(folder, "fit", "rows.csv", *FIT, one, first, other, name, says=f"{one} and {other} are the same file")


def test_fit_does_not_lose_a_file_to_the_lock_of_its_checkpoint(folder):
    refused(
        folder, "fit", "rows.csv", *FIT, "--checkpoint", "run", "--out", "run.lock", says="the lock of --checkpoint"
    )


@pytest.mark.parametrize("option", ["--out", "--quarantine", "--events"])
def test_predict_writes_neither_to_its_model_nor_to_its_source(folder, option):
    for name in MODEL:
        refused(folder, "predict", "m.html", "rows.csv", option, name, says=f"MODEL and {option} are the same file")
    for name in SOURCE:
        refused(folder, "predict", "m.html", "rows.csv", option, name, says=f"SOURCE and {option} are the same file")


def test_predict_does_not_write_to_one_file_twice(folder):
    arguments = "predict", "m.html", "rows.csv", "--out", "p.csv"
    refused(folder, *arguments, "--events", "./p.csv", says="--out and --events are the same file")


@pytest.mark.parametrize("name", MODEL)
def test_other_commands_do_not_write_to_their_model(folder, name):
    refused(folder, "report", "m.html", "--out", name, says="MODEL and --out are the same file")
    refused(folder, "path", "m.html", "--out", name, says="MODEL and --out are the same file")
    refused(folder, "merge", "other.kalprox", "m.html", "--out", name, says="MODEL and --out are the same file")
    refused(folder, "report", "m.html", says="MODEL and --out are the same file")  # the default of --out


def test_rows_do_not_count_twice(folder):
    for name in SOURCE:
        assert "count twice" in invoke("fit", "rows.csv", name, *FIT, code=2).output
    assert "count twice" in invoke("merge", "m.html", "soft-m.html", "--out", "both", code=2).output
    assert not Path("model.kalprox").exists() and not Path("both").exists()
    invoke("predict", "m.html", "rows.csv", "soft-rows.csv", "--max-bad", 9, "--out", "p.csv", "--quiet")
    assert len(Path("p.csv").read_text().splitlines()) == 401  # a prediction of a row does not depend on the others


def test_in_python_the_words_are_those_of_the_arguments(folder):
    before, table = contents(folder), Table([Path("rows.csv")], COLUMNS)
    with pytest.raises(ValueError, match="table and quarantine are the same file"):
        FitJob(table, {}, quarantine="soft-rows.csv").run("new")
    with pytest.raises(ValueError, match="out and checkpoint are the same file"):
        FitJob(table, {}, checkpoint="new").run("./new")
    with pytest.raises(ValueError, match="table and quarantine are the same file"):
        predict(TableModel.load("m.html"), table, Path("p.csv"), quarantine=Quarantine("hard-rows.csv"))
    with pytest.raises(ValueError, match="table and out are the same file"):
        predict(TableModel.load("m.html"), table, Path("soft-rows.csv"))
    assert contents(folder) == before


# devices, pipes, links


def test_outputs_through_links_and_devices(folder):
    for name in ("out", "bad", "events", "state"):
        Path(f"{name}-link").symlink_to(f"{name}-target")
    arguments = "fit", "rows.csv", *FIT, "--every", 1, "--memory", "1kB"
    links = "--out", "out-link", "--quarantine", "bad-link", "--events", "events-link", "--checkpoint", "state-link"
    invoke(*arguments, *links)
    assert all(Path(f"{name}-link").is_symlink() for name in ("out", "bad", "events", "state"))
    found = Path("out-target").read_bytes()
    TableModel.load("out-link")
    assert Path("bad-target").read_text().count("\n") == 5 and '"done"' in Path("events-target").read_text()
    assert not Path("state-target").exists()  # the job is done
    with open("/dev/null", "wb") as null:
        device = f"/dev/fd/{null.fileno()}"  # root could replace /dev/null itself
        invoke(*arguments, "--out", device, "--quarantine", device, "--events", device)
        assert "device or a pipe" in invoke(*arguments, "--checkpoint", device, code=5).output
    assert Path("out-target").read_bytes() == found


def test_predictions_into_a_pipe(folder):
    arguments = "predict", "m.html", "rows.csv", "--max-bad", 9, "--quiet"
    for name in ("p.csv", "p.parquet"):
        invoke(*arguments, "--out", name)
    for pipe, same in (("pipe", "p.csv"), ("pipe.csv", "p.csv"), ("pipe.parquet", "p.parquet")):
        os.mkfifo(pipe)
        got = []
        reader = threading.Thread(target=lambda: got.append(Path(pipe).read_bytes()))  # noqa: B023
        reader.start()
        invoke(*arguments, "--out", pipe)
        reader.join()
        assert got[0] == Path(same).read_bytes() and stat.S_ISFIFO(os.stat(pipe).st_mode)


@pytest.mark.slow
@pytest.mark.integration
def test_standard_output_and_process_substitution(folder):
    run("fit", "rows.csv", "--target", "y", "--max-bad", 9, "--out", "direct")
    with open("redirected", "wb") as out:
        run("fit", "rows.csv", "--target", "y", "--max-bad", 9, "--out", "/dev/stdout", stdout=out)
    command = " ".join(COMMAND) + " fit rows.csv -y y --quiet --out >(cat > a) --quarantine >(cat > b) --events >("
    subprocess.run(["bash", "-c", command + "cat > c); wait"], check=True)
    for name in ("direct", "redirected", "a"):
        assert model_file.read(name)[1].keys() == model_file.read("direct")[1].keys()
    assert Path("redirected").read_bytes() == Path("direct").read_bytes()
    assert len(list(csv.reader(io.StringIO(Path("b").read_text())))) == 5 and '"done"' in Path("c").read_text()


# other processes


@pytest.mark.slow
@pytest.mark.integration
def test_a_refused_process_does_not_touch_the_files_of_the_first(folder):
    files = "--out", "new", "--quarantine", "bad.csv", "--events", "events"
    first = start("fit", "-", *FIT, "--memory", "64kB", *files, stdin=subprocess.PIPE)
    try:
        first.stdin.write("y,a,b\n" + rows(80_000))  # more than is read ahead; the end is not yet to be seen
        first.stdin.flush()
        assert wait_for(lambda: started(Path("events"))() and Path("bad.csv").exists(), first)
        before = Path("events").read_bytes()
        assert "Another process is writing to events" in invoke("fit", "rows.csv", *FIT, *files, code=5).output
        assert Path("events").read_bytes().startswith(before)
        quarantine = "--quarantine", "bad.csv"
        assert "Another process is writing to bad.csv" in invoke("fit", "rows.csv", *FIT, *quarantine, code=5).output
        finish(first)
    finally:
        first.kill()
    events = [json.loads(line)["event"] for line in Path("events").read_text().splitlines()]
    assert (events[0], events[-1]) == ("start", "done")
    assert Path("bad.csv").read_text().count("\n") == 1 + 80_000 // 50


def test_a_checkpoint_under_two_names_has_one_lock(tmp_path):
    (tmp_path / "link").symlink_to("run")
    with (
        Checkpoint(tmp_path / "run") as checkpoint,
        pytest.raises(CheckpointError, match="Another process"),
        Checkpoint(tmp_path / "link"),
    ):
        pass
    with Checkpoint(tmp_path / "link") as checkpoint:
        checkpoint.save({}, {}, {"a": np.zeros(1)})
        assert (tmp_path / "run").exists() and (tmp_path / "link").is_symlink()
        checkpoint.remove()
    assert os.listdir(tmp_path) == ["link"]


# privacy


def test_files_with_data_are_for_their_owner(folder):
    mask = os.umask(0o022)
    try:
        files = "--out", "new", "--quarantine", "bad.csv", "--events", "events"
        invoke("fit", "rows.csv", *FIT, *files)
        invoke("predict", "new", "rows.csv", "--max-bad", 9, "--out", "p.csv", "--quiet")
        with Checkpoint("state") as checkpoint:
            checkpoint.save({}, {}, {"a": np.zeros(1)})
        names = "new", "bad.csv", "events", "p.csv", "state"
        assert {stat.S_IMODE(os.stat(name).st_mode) for name in names} == {0o600}
        for name in ("new", "bad.csv", "events"):
            os.chmod(name, 0o664)
        invoke("fit", "rows.csv", *FIT, *files)
        assert {stat.S_IMODE(os.stat(name).st_mode) for name in ("new", "bad.csv", "events")} == {0o664}
    finally:
        os.umask(mask)
