"""Rows for `kalprox stream` in a child process, a feeder that sends them again from a position, and kills."""

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import threading
import time

import numpy as np
from command import COMMAND, TIMEOUT, invoke


def lines_of(n, d=3, seed=0):
    """JSON lines of a linear model; one in fifty is bad, and one in ten has no target."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).round(4)
    y = (X @ np.arange(1.0, d + 1) + rng.standard_normal(n)).round(4)
    lines = []
    for i, (x, t) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
        row = {"i": i, "y": t, **{f"x{j}": v for j, v in enumerate(x)}}
        if i % 50 == 27:
            row["x0"] = "bad"
        if i % 10 == 5:
            del row["y"]
        lines.append(json.dumps(row).encode() + b"\n")
    return lines


class Feeder(threading.Thread):
    """Writes bytes to a pipe until it breaks."""

    def __init__(self, pipe, data):
        super().__init__(daemon=True)
        self.pipe, self.data = pipe, data
        self.start()

    def run(self):
        with contextlib.suppress(BrokenPipeError):
            self.pipe.write(self.data)
        with contextlib.suppress(BrokenPipeError):
            self.pipe.close()


@contextlib.contextmanager
def stream(*arguments, **options):
    """The process of a stream; its pipes are closed at the end."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*COMMAND, "stream", *map(str, arguments)], env=environment, **pipes | options)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=TIMEOUT)
        for thread in threading.enumerate():
            if isinstance(thread, Feeder) and thread.pipe is process.stdin:
                thread.join(timeout=TIMEOUT)
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def position(checkpoint):
    """What `--position` says: the rows and bytes that the checkpoint has."""
    found = json.loads(invoke("stream", "--checkpoint", checkpoint, "--position").stdout)
    return found["row"], found["offset"]


def killed_at_random(arguments, checkpoint, data, kills, seed, resume):
    """Run a stream over `data`, killed so many times at random moments; the answers by row, and rows at each kill.

    The feeder replays from the position of the checkpoint, or with `resume` "skip" from the beginning.
    """
    rng, found, moments = random.Random(seed), {}, []
    while True:
        row, offset = position(checkpoint)
        goal = row + rng.randrange(1, max(2, (len(data.splitlines()) - row) // (kills + 1 - len(moments)) * 2))
        with stream(*arguments, "--checkpoint", checkpoint, "--resume", resume) as process:
            Feeder(process.stdin, data if resume == "skip" else data[offset:])
            stop, last = len(moments) < kills, row
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # cut short by the kill
                answer = json.loads(line)
                assert answer["row"] == last + 1, "rows are answered in their order, from the position on"
                last = answer["row"]
                same(found.setdefault(last, answer), answer)  # a row that is answered again gets the same answer
                if stop and last >= goal:
                    time.sleep(rng.random() * 0.01)
                    process.send_signal(signal.SIGKILL)
                    stop = False
                    moments.append(last)
            code = process.wait(timeout=TIMEOUT)
            if code == 0:
                return found, moments
            assert code == -signal.SIGKILL, process.stderr.read()


def same(answer, other):
    """Two answers are equal: texts exactly, and numbers to the rounding of a filter that was made again."""
    assert answer.keys() == other.keys()
    for name, value in answer.items():
        if isinstance(value, float):
            assert math.isclose(value, other[name], rel_tol=1e-11, abs_tol=1e-11), (answer, other)
        else:
            assert value == other[name], (answer, other)


def resident(process):
    """The memory of a process, in bytes."""
    with open(f"/proc/{process.pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))
