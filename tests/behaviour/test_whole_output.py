"""Every byte of standard output is written, or the command ends with an error, however Python buffers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "kalprox"]
KILOBYTES = 40  # that a file may have: the write that crosses it is short, and the next one fails, as on a full disk


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    rng = np.random.default_rng(20)
    x = rng.normal(size=(900, 2)).round(4)
    y = (x @ [0.5, -3.0] + rng.normal(size=900)).round(4)
    rows = "".join(f"{a},{b},{c}\n" for (a, b), c in zip(x.tolist(), y.tolist(), strict=True))
    (folder / "rows.csv").write_text("a,b,y\n" + rows)
    subprocess.run([*COMMAND, "fit", "rows.csv", "-y", "y", "--out", "m.kalprox", "--quiet"], cwd=folder, check=True)
    return folder


def unbuffered(*arguments, stdout):
    """A command in a container with little disk: its exit code and its messages."""
    command = ["bash", "-c", f'ulimit -f {KILOBYTES} && exec "$@"', "bash", *COMMAND, *map(str, arguments)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.slow
def test_predictions_that_do_not_fit_on_the_disk(files, tmp_path):
    with open(tmp_path / "out.csv", "wb") as out:
        code, said = unbuffered("predict", files / "m.kalprox", files / "rows.csv", stdout=out)
    assert code == 7 and "File too large" in said
    assert (tmp_path / "out.csv").read_text().count("\n") < 901


@pytest.mark.slow
def test_a_stream_does_not_learn_a_row_whose_answer_was_cut(files, tmp_path):
    options = [files / "rows.csv", "-y", "y", "--checkpoint", tmp_path / "c.ckpt"]
    with open(tmp_path / "out.csv", "wb") as out:
        code, said = unbuffered("stream", *options, stdout=out)
    assert code == 7 and "File too large" in said
    whole = (tmp_path / "out.csv").read_text().count("\n") - 1  # without the header
    position = subprocess.run(
        [*COMMAND, "stream", "--checkpoint", tmp_path / "c.ckpt", "--position"], capture_output=True, text=True
    )
    assert 10 < whole < 900
    assert json.loads(position.stdout)["row"] == whole


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["fit", "--help"], ["show", "m.kalprox"]])
@pytest.mark.parametrize("buffered", [False, True])
def test_no_command_ends_well_where_nothing_can_be_written(arguments, buffered, files):
    environment = os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, env=environment, cwd=files
        )
    assert done.returncode == 7 and "No space left" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/wchan"), reason="only Linux says what a process waits for")
@pytest.mark.parametrize("how", ["", "1"])
@pytest.mark.parametrize("name", ["predict", "stream"])
def test_a_signal_ends_a_command_whose_reader_has_stopped_reading(name, how, files, tmp_path):
    """Nor does the command wait, when Python ends, to write what it still holds."""
    rows = (files / "rows.csv").read_text()
    header, _, rest = rows.partition("\n")
    (tmp_path / "many.csv").write_text(header + "\n" + rest * 20)  # far more than a pipe holds
    options = {"predict": [files / "m.kalprox"], "stream": ["-y", "y", "--quiet"]}[name]
    number = {"predict": signal.SIGINT, "stream": signal.SIGTERM}[name]
    command = [*COMMAND, name, *map(str, options), str(tmp_path / "many.csv")]
    environment = os.environ | {"PYTHONUNBUFFERED": how}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        try:
            process.stdout.readline()
            while "pipe" not in Path(f"/proc/{process.pid}/wchan").read_text():
                time.sleep(0.05)  # until the pipe is full
            process.send_signal(number)
            assert process.wait(timeout=30) == 128 + number  # who waits for the reader waits for good
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()
