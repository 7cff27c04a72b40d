"""A fit that is killed, interrupted or out of disk is gone on with by the same command, to the very same bytes.

Two jobs: a linear model of a CSV with bad rows, and a sigmoid refined over several passes of two Parquet files; both in
small blocks, so that there are many checkpoints.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from functools import cache
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from command import COMMAND, TIMEOUT, finish, invoke, run, start, started, wait_for

from kalprox import model_file

pytestmark = pytest.mark.integration

ROWS = 60_000


def table(n, link):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n, 6))
    mean = X @ [1.0, -2.0, 0.5, 0.0, 3.0, 0.1] + 0.7
    y = mean + rng.standard_normal(n) if link == "identity" else (rng.random(n) < 1 / (1 + np.exp(-mean))).astype(float)
    return pa.table({"y": y} | {f"x{j}": X[:, j] for j in range(6)})


def write_csv(folder):
    """One row in fifty is bad."""
    pa.csv.write_csv(table(ROWS, "identity"), folder / "rows.csv")
    lines = (folder / "rows.csv").read_bytes().splitlines(keepends=True)
    lines[25::50] = [b"1,2,3\n" if i % 3 else b"1,2,3,4,five,6,7\n" for i in range(len(lines[25::50]))]
    (folder / "rows.csv").write_bytes(b"".join(lines))
    return folder / "rows.csv"


def write_parquet(folder):
    (folder / "parts").mkdir()
    rows = table(ROWS // 2, "sigmoid")
    for i, (begin, end) in enumerate([(0, 7_000), (7_000, ROWS // 2)]):
        pq.write_table(rows.slice(begin, end - begin), folder / "parts" / f"{i}.parquet", row_group_size=5000)
    return folder / "parts"


class Job:
    """A command in a folder of its own, which can be started again and again."""

    def __init__(self, folder, source, options):
        folder.mkdir(exist_ok=True)
        self.source, self.options = source, options
        self.model, self.bad = folder / "model.kalprox", folder / "bad.csv"
        self.checkpoint, self.events = folder / "state.ckpt", folder / "events.jsonl"

    def arguments(self, *more):
        files = ["--out", self.model, "--quarantine", self.bad, "--checkpoint", self.checkpoint]
        return ["fit", self.source, *self.options, *files, "--quiet", *more]

    def start(self):
        """Under way: it has said that it begins."""
        self.events.unlink(missing_ok=True)
        process = start(*self.arguments("--events", self.events))
        wait_for(started(self.events), process)
        return process

    def stop_after(self, checkpoints, how=signal.SIGINT):
        """Start it, and stop it once so many checkpoints were written."""
        process = self.start()
        assert wait_for(lambda: self.events.read_text().count('"checkpoint"') >= checkpoints, process)
        process.send_signal(how)
        return finish(process, code=130 if how == signal.SIGINT else -how)

    def stamp(self):
        """What tells one checkpoint from the next: not the inode alone, which the next but one has again."""
        if not self.checkpoint.exists():
            return None
        found = os.stat(self.checkpoint)
        return found.st_ino, found.st_mtime_ns

    def result(self):
        """The bytes that it leaves, once done; and nothing else, not even of processes that were killed."""
        found = self.model.read_bytes(), self.bad.read_bytes()
        assert {path.name for path in self.model.parent.iterdir()} <= {self.model.name, self.bad.name, self.events.name}
        self.model.unlink()
        return found


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return cache(lambda kind: prepared(kind, tmp_path_factory.mktemp(kind)))


@pytest.fixture(params=["linear", "sigmoid"])
def job(request, jobs):
    return jobs(request.param)


@pytest.fixture
def linear(jobs):
    return jobs("linear")


def prepared(kind, folder):
    """new(name) -> a job. bytes, arrays, seconds: of an uninterrupted run without a checkpoint."""
    source = write_csv(folder) if kind == "linear" else write_parquet(folder)
    options = ["--target", "y", "--memory", "1MB", "--every", 1000 if kind == "linear" else 4000]
    options += [] if kind == "linear" else ["--link", "sigmoid"]
    straight = Job(folder / "straight", source, options)
    arguments = straight.arguments("--events", straight.events)
    done = run(*[a for a in arguments if a not in ("--checkpoint", straight.checkpoint)])
    seconds = json.loads(straight.events.read_text().splitlines()[-1])["seconds"]
    assert done.stdout == done.stderr == ""
    return SimpleNamespace(
        source=source,
        options=options,
        file=straight.model.read_bytes(),
        arrays=model_file.read(straight.model)[1],
        seconds=seconds,
        bytes=straight.result(),
        new=lambda name: Job(folder / name, source, options),
    )


# kill


def kill_again_and_again(job, kills, seed):
    """SIGKILL at random instants, and the same command again until it is done; then from the beginning. How many of the
    kills fell after a checkpoint of the process that was killed."""
    one, rng = job.new(f"killed{seed}"), np.random.default_rng(seed)
    fell = after = 0
    while fell < kills:
        before, process = one.stamp(), one.start()
        if fell % 2:  # every other one for sure between two checkpoints
            wait_for(lambda: one.stamp() not in (None, before), process)  # noqa: B023
        time.sleep(rng.uniform(0, job.seconds))
        process.kill()
        process.communicate()
        if process.returncode == -signal.SIGKILL:
            fell += 1
            after += one.stamp() not in (None, before)
        else:
            assert process.returncode == 0 and one.result() == job.bytes
    finish(one.start())
    assert one.result() == job.bytes
    return after


@pytest.mark.slow
def test_killed_three_times_it_comes_to_the_same_bytes(job):
    assert kill_again_and_again(job, kills=3, seed=0) >= 1


@pytest.mark.slow
def test_killed_nine_times(job):
    assert kill_again_and_again(job, kills=9, seed=1) >= 3


@pytest.mark.slow
def test_rows_of_standard_input_are_gone_on_with(linear):
    one = linear.new("stdin")
    one.source = "-"
    for killed in (True, False):
        with open(linear.source) as rows, start(*one.arguments(), stdin=rows) as process:
            if killed:
                assert wait_for(one.checkpoint.exists, process)
                process.kill()
            finish(process, code=-signal.SIGKILL if killed else 0)
    assert_same_arrays(one, linear)


def assert_same_arrays(one, job):
    """Where the name of the source, which is in the files, is another."""
    found = model_file.read(one.model)[1]
    assert found.keys() == job.arrays.keys()
    assert all(np.array_equal(found[name], job.arrays[name]) for name in found)
    assert one.bad.read_bytes().count(b"\n") == job.bytes[1].count(b"\n")


# interrupted, disk full, damaged


@pytest.mark.slow
def test_interrupted_and_out_of_disk_it_keeps_the_last_checkpoint(job):
    """Out of disk: no file may grow beyond what the first checkpoint takes, and some more."""
    one = job.new("interrupted")
    assert "resumes from the last checkpoint" in one.stop_after(1).stderr
    blocks = one.checkpoint.stat().st_size // 512 + 2
    done = run(*one.arguments(), limit=f"-f {blocks}", code=7)  # Python ignores SIGXFSZ: a write fails with EFBIG
    assert "Error:" in done.stderr and "too large" in done.stderr
    header, _ = model_file.read(one.checkpoint)
    assert header["state"]["read"] > 0 and not one.model.exists()
    assert not list(one.checkpoint.parent.glob("*.part")) and not list(one.checkpoint.parent.glob(".*.part"))
    run(*one.arguments())
    assert one.result() == job.bytes


@pytest.mark.slow
def test_a_disk_that_is_really_full(linear):
    """A file system of 64 kB, in a namespace of its own; what is left there is copied before it goes."""
    one, saved = linear.new("full"), linear.new("saved")
    disk = one.model.parent
    script = 'mount -t tmpfs -o size=64k none "$0" || exit 99; "$@"; code=$?; cp -a "$0/." "$0/../saved"; exit $code'
    command = ["unshare", "-rm", "sh", "-c", script, disk, *COMMAND, *map(str, one.arguments())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode in (1, 99) and "Error:" not in done.stderr:
        pytest.skip(f"mounting is not allowed: {done.stderr}")
    assert done.returncode == 7 and "No space left" in done.stderr and "Traceback" not in done.stderr
    model_file.read(saved.checkpoint)
    for name in ("state.ckpt", "bad.csv"):
        shutil.copy2(saved.model.parent / name, disk / name)
    run(*one.arguments())
    assert one.result() == linear.bytes


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused(linear, tmp_path):
    one = linear.new("damaged")
    one.stop_after(2)
    good = one.checkpoint.read_bytes()
    for at in (3, len(good) // 2, len(good) - 5):
        bad = bytearray(good)
        bad[at] ^= 1
        one.checkpoint.write_bytes(bad)
        assert str(one.checkpoint) in invoke(*one.arguments(), code=6).output
        assert one.checkpoint.read_bytes() == bad
    model = linear.new("model")
    model.checkpoint.write_bytes(linear.file)
    assert "is a model, not a checkpoint" in invoke(*model.arguments(), code=5).output
    one.checkpoint.write_bytes(good)
    quarantine = one.bad.read_bytes()
    one.bad.unlink()
    assert "the quarantine file of the run to resume does not exist" in invoke(*one.arguments(), code=3).output
    one.bad.write_bytes(quarantine[:40])
    assert "shorter than" in invoke(*one.arguments(), code=3).output
    one.bad.write_bytes(quarantine)
    invoke(*one.arguments())
    assert one.result() == linear.bytes


# another job, another process


@pytest.mark.slow
def test_another_job_is_refused_with_what_differs(linear, tmp_path):
    source = shutil.copytree(linear.source.parent, tmp_path / "copy", ignore=lambda *_: ["straight"]) / "rows.csv"
    one = Job(tmp_path / "job", source, linear.options)
    one.stop_after(2, signal.SIGKILL)
    kept, quarantined = one.checkpoint.read_bytes(), one.bad.read_bytes()

    def refused(*says, options=(), source=one.source):
        job = Job(one.model.parent, source, [*one.options, *options])
        output = invoke(*job.arguments(), code=5).output
        assert all(text in output for text in ("is a checkpoint of another job", *says)), output
        assert one.checkpoint.read_bytes() == kept and one.bad.read_bytes() == quarantined

    refused("settings.alpha: was None, is 2.0", options=["--alpha", "2"])
    refused("settings.penalty: was 'default', is 'l1'", options=["--penalty", "l1"])
    refused("reading.batch_rows: was", options=["--memory", "500kB"])
    refused("columns.features", options=["--features", "x0,x1"])
    refused("reading.shuffle: was None, is 3", options=["--shuffle", "3"])
    data = bytearray(source.read_bytes())
    middle = data.index(b".", len(data) // 2) + 1
    data[middle] = ord("9") if data[middle] != ord("9") else ord("8")
    original = source.read_bytes()
    stat = source.stat()
    source.write_bytes(data)
    assert source.stat().st_size == stat.st_size
    refused("source.files[0].sha256: was")
    source.write_bytes(original + b"0,1,2,3,4,5,6\n")
    refused("source.files[0].size: was", "source.files[0].sha256: was")
    shutil.copy2(source, source.with_name("more.csv"))
    refused("source.files: was", source=f"{source.parent}/*.csv")
    source.write_bytes(original)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    invoke(*one.arguments())
    assert_same_arrays(one, linear)


@pytest.mark.slow
def test_a_second_process_is_refused_and_the_first_is_not_disturbed(linear):
    one = linear.new("twice")
    first = one.start()
    assert wait_for(one.checkpoint.exists, first)
    first.send_signal(signal.SIGSTOP)
    try:
        kept, quarantined = one.checkpoint.read_bytes(), one.bad.read_bytes()
        output = invoke(*one.arguments(), code=5).output
        assert "Another process is using the checkpoint" in output and str(one.checkpoint) in output
        assert one.checkpoint.read_bytes() == kept and one.bad.read_bytes() == quarantined
    finally:
        first.send_signal(signal.SIGCONT)
    finish(first)
    assert one.result() == linear.bytes
