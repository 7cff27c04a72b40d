"""A source that changes while a job reads it, or between two passes, stops the job; one that was only touched does not.

The rows are read in small blocks, so that the job is far from the end of a file when it changes.
"""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from command import invoke

from kalprox.cli.errors import exit_code
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import TableModel
from kalprox.jobs.predict import predict
from kalprox.sources.columns import Columns
from kalprox.sources.files import Snapshot, SourceChanged, fingerprint
from kalprox.sources.table import Table

ROWS = 3000
COLUMNS = Columns("y", None, ("a", "b"))
SIGMOID = {"link": "sigmoid"}


def write(path, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, ROWS)).round(4)
    table = pa.table({"y": (rng.random(ROWS) < 1 / (1 + np.exp(-a))).astype(float), "a": a, "b": b})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=500)
    else:
        pa.csv.write_csv(table, path)


def table(*files):
    return Table(list(files), COLUMNS, memory=1)


@pytest.fixture(params=[".csv", ".parquet"])
def source(request, tmp_path):
    path = tmp_path / f"rows{request.param}"
    write(path)
    return path


def append(path):
    with open(path, "ab") as file:
        file.write(b"1,2,3\n")


def truncate(path):
    os.truncate(path, path.stat().st_size * 3 // 4)


def replace(path):
    """By other labels."""
    write(new := path.with_name("other" + path.suffix), seed=1)
    os.replace(new, path)


def rewrite(path):
    """In place, with the same size and the same modification time."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[100:200] = data[200:300]
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size


def delete(path):
    path.unlink()


CHANGES = [append, truncate, replace, rewrite, delete]
SAYS = {
    append: "bytes and has",
    truncate: "bytes and has",
    delete: "was deleted or moved",
    rewrite: "its size is still",
}


class Once:
    """Does something to a file at the first block of a pass, or after the first checkpoint."""

    def __init__(self, path, act, number=0, after_checkpoint=False):
        self.path, self.act, self.number, self.after = path, act, number, after_checkpoint
        self.done = False

    def __call__(self, progress):
        if not self.done and progress.number >= self.number and progress.checkpoint >= self.after:
            self.done = True
            self.act(self.path)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("settings", "number", "options"),
    [
        ({}, 0, {}),
        (SIGMOID, 1, {}),
        ({}, 0, {"engine": "local", "workers": 1}),
        (SIGMOID, 1, {"engine": "local", "workers": 1, "partitions": 4}),
    ],
    ids=["stream", "second pass", "engine", "second pass on an engine"],
)
def test_a_fit_stops(source, change, settings, number, options, tmp_path):
    other = tmp_path / f"more{source.suffix}"
    write(other, 2)
    watch = Once(source, change, number)
    with pytest.raises(SourceChanged, match="changed while the job was reading it") as caught:
        FitJob(table(source, other), settings, watch=watch, **options).run(tmp_path / "model")
    assert watch.done and str(source) in str(caught.value) and SAYS.get(change, "") in str(caught.value)
    assert exit_code(caught.value) == 3 and not (tmp_path / "model").exists()


@pytest.mark.slow
@pytest.mark.integration
def test_a_fit_on_other_processes_stops(source, tmp_path):
    watch = Once(source, rewrite, 1)
    with pytest.raises(SourceChanged, match="changed while"):
        FitJob(table(source), SIGMOID, watch=watch, engine="processes", workers=1).run(tmp_path / "model")
    assert watch.done and not (tmp_path / "model").exists()


def test_rows_are_not_called_bad_where_the_source_changed(source):
    def damage(path):
        with open(path, "r+b") as file:
            file.write(b"?" * 4000)
            file.seek(path.stat().st_size // 2)
            file.write(b"?" * 4000)

    with pytest.raises(SourceChanged, match="its size is still"):
        FitJob(table(source), SIGMOID, watch=Once(source, damage, 1)).run()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of the rows that every source has."""
    path = tmp_path_factory.mktemp("model") / "rows.csv"
    write(path)
    return FitJob(table(path), {}).run()


@pytest.mark.parametrize("change", CHANGES)
def test_predict_stops_and_leaves_the_old_file(source, model, change, tmp_path):
    (tmp_path / "p.csv").write_bytes(b"old")
    with pytest.raises(SourceChanged, match="changed while"):
        predict(model, table(source), tmp_path / "p.csv", watch=Once(source, change))
    assert (tmp_path / "p.csv").read_bytes() == b"old"


def test_a_changed_source_is_not_skipped_as_unreadable(source):
    files = Table([source], COLUMNS, memory=1, skip_unreadable=True)
    with pytest.raises(SourceChanged):
        FitJob(files, {}, max_bad=10**9, watch=Once(source, truncate)).run()


def test_a_source_that_changes_after_its_columns_were_inferred(source, tmp_path, monkeypatch):
    infer = Columns.infer

    def inferred(*arguments, **options):
        found = infer(*arguments, **options)
        replace(source)
        return found

    monkeypatch.setattr(Columns, "infer", inferred)
    output = invoke("fit", source, "--target", "y", "--out", tmp_path / "model", code=3).output
    assert "changed while the job was reading it" in output and not (tmp_path / "model").exists()


def test_rows_are_counted_in_every_pass(source, monkeypatch):
    """Even where the file system does not tell that the file changed."""
    monkeypatch.setattr(Snapshot, "check", lambda self: None)
    job = FitJob(table(source), SIGMOID, passes=3, watch=Once(source, fewer))
    with pytest.raises(SourceChanged, match="the first read 3,000 rows, and a later one 2,000"):
        job.run()


def test_rows_are_counted_in_every_pass_on_an_engine(source, monkeypatch):
    monkeypatch.setattr(Snapshot, "check", lambda self: None)
    with pytest.raises(SourceChanged, match="the first read 3,000 rows, and a later one 2,000"):
        FitJob(table(source), SIGMOID, engine="local", workers=1, watch=Once(source, fewer)).run()


def fewer(path):
    rows = pq.read_table(path) if path.suffix == ".parquet" else pa.csv.read_csv(path)
    new = path.with_name("new")
    (pq.write_table if path.suffix == ".parquet" else pa.csv.write_csv)(rows.slice(0, 2000), new)
    os.replace(new, path)


# content decides


def touch(path):
    os.utime(path, ns=(0, 0))


def copy(path):
    """A copy takes its place."""
    shutil.copyfile(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


def stop(path):
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, SIGMOID])
def test_a_touched_source_is_resumed(source, settings, tmp_path):
    options = {"checkpoint": tmp_path / "state", "every": 1000}
    straight = FitJob(table(source), settings).run()
    with pytest.raises(KeyboardInterrupt):
        FitJob(table(source), settings, watch=Once(source, stop, after_checkpoint=True), **options).run()
    touch(source)
    resumed = FitJob(table(source), settings, watch=Once(source, copy), **options).run()
    assert same(resumed, straight)


def same(one: TableModel, other: TableModel):
    (header, arrays), (header_, arrays_) = one.parts(), other.parts()
    return header == header_ and all(np.array_equal(arrays[name], arrays_[name]) for name in arrays)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, SIGMOID])
def test_no_checkpoint_holds_rows_of_a_changed_source(tmp_path, settings):
    """Else the source could be put back, and the job resumed with rows that were never in it."""
    source = tmp_path / "rows.csv"
    write(source)
    original, options = source.read_bytes(), {"checkpoint": tmp_path / "state", "every": 1000}
    straight = FitJob(table(source), settings).run()
    watch = Once(source, rewrite, after_checkpoint=True)
    with pytest.raises(SourceChanged):
        FitJob(table(source), settings, max_bad=9, watch=watch, **options).run()
    source.write_bytes(original)
    assert same(FitJob(table(source), settings, max_bad=9, **options).run(), straight)


def test_the_fingerprint_of_a_large_file_covers_pieces_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("kalprox.sources.files._PIECES", 4)
    monkeypatch.setattr("kalprox.sources.files._PIECE", 10)
    path = tmp_path / "x.csv"

    def of(data):
        path.write_bytes(data)
        touch(path)
        return fingerprint(path)

    zeros = bytes(100)
    first = of(zeros)
    assert first["changed"] == 0 and of(zeros) == first
    for at in (0, 9, 30, 39, 60, 90, 99):
        assert of(zeros[:at] + b"1" + zeros[at + 1 :]) != first
    assert of(zeros[:15] + b"1" + zeros[16:]) == first  # between the pieces: but then the modification time differs
    os.utime(path)
    assert fingerprint(path) != first
    assert "changed" not in of(bytes(40))
