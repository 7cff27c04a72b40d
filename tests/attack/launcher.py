"""Commands as processes of their own that start at once: a process that has imported everything forks for each.

A command takes a second to start and less to run, and an attack starts thousands. The launcher is the process that
forks; its children are processes like any other: signals, limits, closed streams and exit codes are real.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

__all__ = ["NOBODY", "Launcher", "Ran"]

ROOT = Path(__file__).parents[2]
NOBODY = 65534  # the user that a child becomes where permissions are to count for root too
TIMEOUT = 300.0  # seconds after which a trial hangs; it takes one or two, and many more where all cores are busy
MODULES = (
    "jax.numpy",
    "matplotlib.figure",
    "pyarrow.csv",
    "pyarrow.ipc",
    "pyarrow.parquet",
    "rich.table",
    "scipy.stats",
)
MODULES += ("scipy.optimize", "kalprox.cli", "kalprox.estimators", "kalprox.jobs.fit", "kalprox.jobs.predict")
MODULES += ("kalprox.reports.model", "kalprox.reports.path", "filelock")


@dataclass(frozen=True)
class Ran:
    """How a command ended.

    Attributes
    ----------
    arguments : tuple of str
    code : int
        The exit code; minus the signal, if one ended it.
    out, err : str
        What it wrote; `out` is empty where standard output went elsewhere.
    seconds : float
    hung : bool
        Whether it had to be killed after `TIMEOUT`.
    """

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float
    hung: bool


class Launcher:
    """Runs commands, inside `with Launcher() as launcher`; one at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="kalprox-attack-")
        self.folder = Path(self._folder.name)
        self.folder.chmod(0o755)
        self.kept: dict[Any, Any] = {}  # what families make once: reference runs, model files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process is not None:
            with self._process:  # closes its input, which ends it
                pass
        self._folder.cleanup()

    def run(self, *arguments: Any, **options: Any) -> Ran:
        """Run a command; see `start` for the options."""
        self.start(*arguments, **options)
        return self.finish()

    def start(
        self,
        *arguments: Any,
        call: str | None = None,
        stdin: Path | None = None,
        stdout: Path | None = None,
        stop: tuple[int, float] | None = None,
        close: tuple[int, ...] = (),
        read: int | None = None,
        file_size: int | None = None,
        user: int | None = None,
    ) -> None:
        """Start a command.

        Parameters
        ----------
        *arguments
            Those of `kalprox`; or, with `call`, of a function.
        call : str, optional
            "module:function", to call instead of the command.
        stdin, stdout : path, optional
            The files that these streams are; nothing and a pipe by default.
        stop : (signal, seconds), optional
            Send this signal so long after the start.
        close : tuple of int
            The descriptors that are closed, as by `>&-`.
        read : int, optional
            Standard output is a pipe of which so many bytes are read before it is closed, as by `| head`.
        file_size : int, optional
            No file may become larger, as on a full disk.
        user : int, optional
            The user to become, if this is root.
        """
        if self._process is None or self._process.poll() is not None:
            self._begin()
        self._arguments = tuple(map(str, arguments))
        asked = {"call": call, "stdin": stdin, "stdout": stdout, "stop": stop, "close": close, "read": read}
        asked |= {"arguments": self._arguments, "file_size": file_size, "user": user, "folder": self.folder}
        self._process.stdin.write(json.dumps(asked, default=str) + "\n")
        self._process.stdin.flush()

    def finish(self) -> Ran:
        """Wait for the command that was started to end."""
        told = json.loads(self._process.stdout.readline())
        out, err = ((self.folder / name).read_bytes().decode(errors="replace") for name in ("stdout", "stderr"))
        return Ran(self._arguments, told["code"], out, err, told["seconds"], told["hung"])

    def _begin(self) -> None:
        environment = os.environ | {
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.launcher"],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


# -- in the process that forks ----------------------------------------------------------------------------------------


def serve() -> None:
    """Read a command from standard input, run it in a fork, and tell how it ended; until the input ends."""
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for name in MODULES:
        with contextlib.suppress(ImportError):  # a package that is not installed, a module of another version
            importlib.import_module(name)
    gc.freeze()  # a collection in a child would copy every page
    for line in requests:
        asked = json.loads(line)
        ready, begun = os.pipe()
        output = os.pipe() if asked["read"] is not None else None
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            os.close(ready)
            if output:
                os.close(output[0])
            _end(_become, asked, begun, output and output[1])
        os.close(begun)
        if output:
            os.close(output[1])
        told = _watch(child, asked, ready, output and output[0])
        print(json.dumps(told | {"seconds": time.monotonic() - start}), file=replies, flush=True)


def _watch(child: int, asked: dict[str, Any], ready: int, output: int | None) -> dict[str, Any]:
    """Wait for the child, stop it when it is time, and read what is to be read of its output."""
    os.read(ready, 1)  # it is about to begin, or has ended
    os.close(ready)
    start, stop, wanted, hung = time.monotonic(), asked["stop"], asked["read"], False
    while True:
        if output is not None:
            if wanted and select.select([output], [], [], 0)[0]:
                wanted -= len(os.read(output, wanted)) or wanted
            if not wanted:
                os.close(output)
                output = None
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        past = time.monotonic() - start
        if stop and past >= stop[1]:
            os.kill(child, stop[0])
            stop = None
        if past > TIMEOUT:
            hung = True
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    if output is not None:
        os.close(output)
    return {"code": os.waitstatus_to_exitcode(status), "hung": hung}


def _become(asked: dict[str, Any], begun: int, output: int | None) -> None:
    """Be the command: its streams, limits and user; then run it."""
    folder = Path(asked["folder"])
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a child does not outlive the launcher
    create = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    streams = [os.open(asked["stdin"] or os.devnull, os.O_RDONLY), os.open(folder / "stdout", create, 0o600)]
    if asked["stdout"]:
        streams[1] = os.open(asked["stdout"], os.O_WRONLY)
    if output is not None:
        streams[1] = output
    for number, handle in enumerate([*streams, os.open(folder / "stderr", create, 0o600)]):
        os.dup2(handle, number)
        os.close(handle)
    for number in asked["close"]:
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)  # as Python begins where a stream is closed
    if asked["file_size"] is not None:
        import resource  # which Windows does not have

        resource.setrlimit(resource.RLIMIT_FSIZE, (asked["file_size"], asked["file_size"]))
    if asked["stop"] and "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_enable_compilation_cache", False)  # a kill would leave half an entry
    if asked["user"] is not None and os.getuid() == 0:
        os.setgroups([])
        os.setgid(asked["user"])
        os.setuid(asked["user"])
    if asked["call"]:
        module, _, name = asked["call"].partition(":")
        command = getattr(importlib.import_module(module), name)
        os.close(begun)
        command(*asked["arguments"])
        return
    from kalprox.cli import main

    os.close(begun)
    main(asked["arguments"], prog_name="kalprox")


def _end(command: Callable, *arguments: Any) -> NoReturn:
    """Run a command and end the process as Python ends it, but for tearing down its modules, which takes a second."""
    try:
        command(*arguments)
        code: Any = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            code = 120
    os._exit(code)


if __name__ == "__main__":
    serve()
