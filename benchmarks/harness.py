"""The harness: each peer runs in its own process on one core, and the peers take turns.

A benchmark is a module with `cases` (names and settings), `data(settings)`, PEERS, and `judge`. All peers of a case get
the same rows. When all are ready, they are called one after another, round after round, so that other load on the
machine affects all of them. One of the peers is the floor: X'X by BLAS on the same rows.
"""

import contextlib
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FLOOR", "Case", "Data", "Peer", "Settings", "at_most", "cpu_time", "measure", "one_core"]

Data = dict[str, np.ndarray]
Settings = Mapping[str, Any]
FLOOR = "X'X by BLAS (the floor)"


@dataclass(frozen=True)
class Case:
    """One size of a benchmark. `peers` lists the names of the peers that take part; None means all."""

    name: str
    settings: dict[str, Any]
    peers: tuple[str, ...] | None = None


def all_rows(settings: Settings) -> int:
    return settings["n"]


def at_most(limit: int, cubic: float = np.inf) -> Callable[[Settings], int]:
    """Return the number of rows for a slow peer: at most `limit`, and at most `cubic` / d^3."""
    return lambda settings: int(np.clip(min(limit, cubic / settings["d"] ** 3), 20, settings["n"]))


@dataclass(frozen=True)
class Peer:
    """A peer, which gets `rows` rows; `build(data, settings)` prepares it and returns the function to time."""

    name: str
    package: str  # the package whose version is reported
    build: Callable[[Data, Settings], Callable[[], Any]]
    rows: Callable[[Settings], int] = all_rows
    most_d: float = np.inf  # the largest d to try
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # passed to `judge`


def measure(module: str, case: Case, seconds: float, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row of results for each peer of the case, spending about `seconds` on each."""
    work = import_module(module)
    settings = case.settings
    chosen = [
        p for p in work.PEERS if settings.get("d", 0) <= p.most_d and (case.peers is None or p.name in case.peers)
    ]
    data = work.data(settings)
    with tempfile.TemporaryDirectory() as folder:
        for name, array in data.items():
            np.save(Path(folder) / f"{name}.npy", array)
        crew = [_Worker(module, peer, settings, folder) for peer in chosen]
        try:
            crew = [worker for worker in crew if worker.ready(say)]
            turn = [worker for worker in crew if worker.call(say)]
            while turn:
                turn = [w for w in turn if w.wants(seconds) and w.call(say)]
        finally:
            for worker in crew:
                worker.end()
    found = {w.peer.name: w.result(settings) for w in crew if w.times}
    floor = found.get(FLOOR, {}).get("us_per_row", np.nan)
    for worker in crew:
        if worker.times:
            row = found[worker.peer.name]
            row |= {k: v for k, v in settings.items() if k != "file"}
            row |= {"work": case.name, "ratio": row["us_per_row"] / floor}
            row |= work.judge(settings, data, worker.peer, row["rows"], worker.answer)
    return list(found.values())


class _Worker:
    """The process of a peer, and its times and memory."""

    def __init__(self, module: str, peer: Peer, settings: Settings, folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.peer, self.times, self.walls, self.answer = peer, [], [], None
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, module, peer.name, dict(settings), folder))
        self.process.start()
        there.close()

    def _reply(self, say: Callable[[str], None]) -> Any:
        try:
            reply = self.pipe.recv()
        except EOFError:
            reply = "its process ended"
        if isinstance(reply, str):
            say(f"  {self.peer.name}: {reply}")
            return None
        return reply

    def ready(self, say: Callable[[str], None]) -> bool:
        self.imported = self._reply(say)
        return self.imported is not None

    def call(self, say: Callable[[str], None]) -> bool:
        self.pipe.send(True)
        reply = self._reply(say)
        if reply is None:
            return False
        cpu, wall, answer, peak = reply
        if not self.times:
            self.answer, self.peak = answer, peak
        self.times.append(cpu)
        self.walls.append(wall)
        return True

    def wants(self, seconds: float) -> bool:
        """Whether to call again: three times (a slow peer once) after the first call, then until the time is spent."""
        if len(self.times) == 1:
            return self.times[0] < max(20 * seconds, 12)
        if len(self.times) < 4 and self.times[-1] < 2:
            return True
        return len(self.times) < 30 and sum(self.walls) < seconds

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(False)
        self.process.join(10)
        if self.process.is_alive():
            self.process.terminate()

    def result(self, settings: Settings) -> dict[str, Any]:
        rows, later = self.peer.rows(settings), self.times[1:]
        best = min(later or self.times)
        steps = rows * settings.get("times", 1)
        return {
            "peer": self.peer.name,
            "version": version(self.peer.package),
            "note": self.peer.note,
            "rows": rows,
            "us_per_row": 1e6 * best / steps,
            "seconds": best,
            "wall_us_per_row": 1e6 * min(self.walls[1:] or self.walls) / steps,
            "calls": len(self.times),
            "first_call_s": max(0.0, self.times[0] - best) if later else None,
            "peak_mb": self.peak,
            "import_mb": self.imported,
        }


def _serve(pipe: Any, module: str, name: str, settings: dict[str, Any], folder: str) -> None:
    """Serve a peer in its process. Times are the CPU times of all threads, so that a second core is no advantage."""
    warnings.simplefilter("ignore")
    try:
        work = import_module(module)
        peer = next(p for p in work.PEERS if p.name == name)
        rows = peer.rows(settings)
        data = {file.stem: np.load(file) for file in Path(folder).glob("*.npy")}
        data = {key: a[:rows] if len(a) == settings["n"] else a for key, a in data.items()}
        before = _resident()
        go = peer.build(data, settings)
        pipe.send(_resident() - before)
        before = _forget_peak()
        while pipe.recv():
            wall, cpu = time.perf_counter(), cpu_time()
            answer = go()
            cpu, wall = cpu_time() - cpu, time.perf_counter() - wall
            pipe.send((cpu, wall, answer, _peak() - before))
    except EOFError:
        pass
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {str(error)[:300]}")


def cpu_time() -> float:
    """Return the CPU time of this process and of the commands that it has run."""
    commands = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + commands.ru_utime + commands.ru_stime


def _status(key: str) -> float:
    """Return VmRSS or VmHWM of this process in MB."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) / 1024


def _resident() -> float:
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def _forget_peak() -> float:
    """Reset the peak of resident memory and return its current size. (The parent's ru_maxrss would be inherited.)"""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()
    return _resident()


def one_core() -> None:
    """Restrict all peers to one core by environment variables.

    Libraries read them when they are imported, and some have been: the program starts again if they were not set.
    """
    wanted = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL", "NUMBA")}
    wanted["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    wanted["JAX_PLATFORMS"] = "cpu"
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
