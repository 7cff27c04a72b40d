"""`kalprox stream` as a process: signals, pipes that break or fill up, kills, memory and latency."""

import json
import signal
import time

import numpy as np
import pytest
from command import TIMEOUT, invoke
from feeding import Feeder, killed_at_random, lines_of, position, resident, same, stream

from kalprox import model_file
from kalprox.jobs.model import TableModel
from kalprox.sources.quarantine import read_quarantine

pytestmark = pytest.mark.integration

MODEL = ("--target", "y", "--exclude", "i")


def done(process, code, data=None):
    out, err = process.communicate(data, timeout=TIMEOUT)
    assert process.returncode == code, (process.returncode, err)
    assert b"Traceback" not in err, err
    return out, err.decode()


def ended(process, code):
    assert process.wait(timeout=TIMEOUT) == code
    assert b"Traceback" not in process.stderr.read()


def straight(tmp_path, data, *options):
    """The output and the model of a run that nothing disturbs."""
    (tmp_path / "rows.jsonl").write_bytes(data)
    arguments = [tmp_path / "rows.jsonl", *MODEL, "--out", tmp_path / "straight.kalprox", "--quiet", *options]
    with stream(*arguments, "--quarantine", tmp_path / "straight.csv") as process:
        return done(process, 0)[0].splitlines(keepends=True)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_ends(tmp_path, number, code):
    lines = lines_of(300)
    options = [*MODEL, "--out", tmp_path / "m.kalprox", "--checkpoint", tmp_path / "c.ckpt", "--infer-rows", 10]
    with stream(*options) as process:
        process.stdin.write(b"".join(lines[:200]))
        process.stdin.flush()
        for _ in range(200):
            process.stdout.readline()  # all are answered, and the next read waits
        process.send_signal(number)
        _, err = done(process, code)
    assert position(tmp_path / "c.ckpt") == (200, len(b"".join(lines[:200])))
    assert "200 rows: " in err and str(tmp_path / "m.kalprox") in err
    assert TableModel.load(tmp_path / "m.kalprox").learner.n_rows == 200 - 20 - 4
    with stream(*options, "--resume", "continue") as process:
        out, err = done(process, 0, b"".join(lines[200:]))
    assert "Resumed after row 200" in err
    assert [json.loads(line)["row"] for line in out.splitlines()] == list(range(201, 301))


@pytest.mark.slow
def test_a_signal_ends_a_stream_whose_reader_has_stopped_reading(tmp_path):
    """What could not be written has not been learned: the next run answers it."""
    with stream(*MODEL, "--checkpoint", tmp_path / "c.ckpt", "--quiet") as process:
        feeder = Feeder(process.stdin, b"".join(lines_of(20_000)))
        for _ in range(10):
            process.stdout.readline()
        time.sleep(2.0)  # nobody reads
        assert feeder.is_alive(), "a slow reader of the output slows down the input"
        process.send_signal(signal.SIGTERM)
        ended(process, 143)
        answered = 10 + process.stdout.read().count(b'"status"')
    row, _ = position(tmp_path / "c.ckpt")
    assert 100 < row <= answered <= row + 1


@pytest.mark.slow
def test_memory_and_input_wait_for_a_slow_reader():
    with stream(*MODEL, "--quiet", "--infer-rows", 10) as process:
        Feeder(process.stdin, b"".join(lines_of(1000)) * 200)  # 15 MB
        for _ in range(500):
            process.stdout.readline()
        time.sleep(1.0)
        before = resident(process)
        time.sleep(1.0)
        assert resident(process) - before < 1 << 21
        process.stdout.close()
        ended(process, 141)


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_stream(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines_of(5000)))
    with stream(tmp_path / "rows.jsonl", *MODEL, "--checkpoint", tmp_path / "c.ckpt", "--every", 100) as process:
        for _ in range(500):
            process.stdout.readline()
        process.stdout.close()
        ended(process, 141)
    row, _ = position(tmp_path / "c.ckpt")
    assert 500 <= row < 5000


@pytest.mark.slow
def test_the_first_rows_are_answered_as_they_come():
    """One row in, one row out: nothing is held back, once the columns are known."""
    with stream(*MODEL, "--infer-rows", 1, "--quiet") as process:
        for i, line in enumerate(lines_of(50), start=1):
            process.stdin.write(line)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["row"] == i
        done(process, 0)


@pytest.mark.slow
def test_no_row_is_lost_or_doubled_over_kills(tmp_path):
    kills(tmp_path, 2000, 2, "skip", every=97)


@pytest.mark.slow
def test_no_row_is_lost_or_doubled_over_ten_kills(tmp_path):
    kills(tmp_path, 60_000, 10, "continue", every=997)


def kills(tmp_path, n, times, resume, every):
    lines = lines_of(n)
    data = b"".join(lines)
    expected = straight(tmp_path, data)
    arguments = [*MODEL, "--out", tmp_path / "m.kalprox", "--quarantine", tmp_path / "bad.csv", "--quiet"]
    found, moments = killed_at_random(
        [*arguments, "--every", every], tmp_path / "c.ckpt", data, times, seed=n, resume=resume
    )
    assert len(moments) == times
    assert sorted(found) == list(range(1, n + 1))
    for i, line in enumerate(expected, start=1):
        same(found[i], json.loads(line))
    (header, arrays), (header_, arrays_) = (model_file.read(tmp_path / f"{name}.kalprox") for name in ("m", "straight"))
    sums = []
    for one in (header, header_):
        one["table"].pop("sources")
        quality = one["table"]["account"]["quality"]
        quality.pop("first")  # which name the file
        history = one["table"]["account"]["history"]
        sums.append(quality.pop("total") + quality.pop("targets") + history.pop("squares"))
    np.testing.assert_allclose(*sums, rtol=1e-9)
    assert arrays.keys() == arrays_.keys()
    for name, a in arrays.items():  # equal but for the rounding of filters that were made again
        np.testing.assert_allclose(a, arrays_[name], rtol=1e-9, atol=1e-9)
    assert header == header_
    bad, bad_ = (read_quarantine(tmp_path / f"{name}.csv") for name in ("bad", "straight"))
    assert [(row.row, row.value) for row in bad] == [(row.row, row.value) for row in bad_]
    assert len(bad) == n // 50


def test_another_input_is_not_resumed(tmp_path):
    lines = lines_of(300)
    options = [*MODEL, "--checkpoint", tmp_path / "c.ckpt", "--quiet", "--infer-rows", 10]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines))
    invoke("stream", tmp_path / "rows.jsonl", *options)
    assert position(tmp_path / "c.ckpt")[0] == 300
    assert invoke("stream", tmp_path / "rows.jsonl", *options).stdout == ""  # all are known
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines[1:] * 2))
    result = invoke("stream", tmp_path / "rows.jsonl", *options, code=3)
    assert "differs from that of the run to resume, in row 300" in result.output
    result = invoke("stream", tmp_path / "rows.jsonl", *options, "--alpha", 2, code=5)
    assert "alpha" in result.output
    (tmp_path / "c.ckpt").write_bytes(b"nothing")
    invoke("stream", tmp_path / "rows.jsonl", *options, code=6)


def test_rows_that_wait_are_in_the_checkpoint(tmp_path):
    lines = [json.loads(line) for line in lines_of(200)]
    for row in lines:
        row.pop("y", None)
        row["x0"] = 1.0 if row["x0"] == "bad" else row["x0"]
    known = [json.dumps(row | {"y": row["x1"], "i": -row["i"] - 1}).encode() + b"\n" for row in lines[:20]]
    asked = [json.dumps(row).encode() + b"\n" for row in lines]
    late = [json.dumps({"i": row["i"], "y": row["x1"]}).encode() + b"\n" for row in lines]
    options = ["--target", "y", "--key", "i", "--checkpoint", tmp_path / "c.ckpt", "--quiet"]
    (tmp_path / "one.jsonl").write_bytes(b"".join([*known, *asked]))
    invoke("stream", tmp_path / "one.jsonl", *options)
    (tmp_path / "two.jsonl").write_bytes(b"".join(late))
    out = invoke(
        "stream", tmp_path / "two.jsonl", *options, "--resume", "continue", "--out", tmp_path / "m.kalprox"
    ).stdout
    assert [json.loads(line)["status"] for line in out.splitlines()] == ["late"] * 200
    assert TableModel.load(tmp_path / "m.kalprox").learner.n_rows == 220


def latency(arguments, lines):
    """The seconds from writing each line to reading its answer."""
    seconds = []
    with stream(*arguments, "--quiet") as process:
        for line in lines:
            begin = time.perf_counter()
            process.stdin.write(line)
            process.stdin.flush()
            process.stdout.readline()
            seconds.append(time.perf_counter() - begin)
        done(process, 0)
    return np.array(seconds)


@pytest.mark.slow
def test_a_row_of_fifty_numbers_takes_less_than_two_milliseconds():
    """The fastest half, which other programs on the machine hardly change; the page on living data has the 99%."""
    found = latency([*MODEL, "--infer-rows", 1], lines_of(1500, d=50))
    assert np.quantile(found[200:], 0.25) < 2e-3


def soak(rows, first):
    """The memory after `first` rows and near the end, while the process is there."""
    lines, found, answered = lines_of(10_000, d=5), [], 0
    with stream(*MODEL, "--flush", 100, "--quiet", "--infer-rows", 10) as process:
        Feeder(process.stdin, b"".join(lines) * (rows // len(lines)))
        for line in process.stdout:
            answered += 1
            if answered in (first, rows - 2000):
                found.append(resident(process))
                assert json.loads(line)["row"] == answered
        assert process.wait(timeout=TIMEOUT) == 0
    assert answered == rows
    return found


@pytest.mark.slow
def test_the_memory_stays_flat():
    first, last = soak(60_000, 20_000)
    assert last - first < 4 << 20  # the buffers of rows are 8 MiB at most, and are full by then


@pytest.mark.slow
def test_the_memory_stays_flat_over_many_rows():
    first, last = soak(300_000, 20_000)
    assert last - first < 8 << 20
