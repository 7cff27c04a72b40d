"""The command as a user runs it, in a child process; and in this one, where a second's start is too much."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

COMMAND = [sys.executable, "-m", "kalprox"]
TIMEOUT = 1800.0  # seconds: a command that hangs, not one on a busy machine


def within(limit: str, command: list[Any]) -> list[str]:
    """`command` under a limit of the shell's, such as "-v 1000000". Limits could be set between fork and exec instead,
    but jax, where it has been imported, does not bear a fork."""
    return ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *map(str, command)]


def start(*arguments: Any, limit: str | None = None, **options: Any) -> subprocess.Popen:
    """The command under way; its output is text in pipes."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.Popen(within(limit, command) if limit else command, env=environment, **pipes | options)


def run(*arguments: Any, code: int = 0, **options: Any) -> subprocess.CompletedProcess:
    """The command, done with this exit code, and without a traceback."""
    with start(*arguments, **options) as process:
        return finish(process, code)


def finish(process: subprocess.Popen, code: int = 0) -> subprocess.CompletedProcess:
    """Wait for a command to end with this exit code."""
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == code, (process.returncode, out, err)
    assert "Traceback" not in (err or ""), err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def invoke(*arguments: Any, code: int = 0) -> Result:
    """The command in this process, done with this exit code; whatever it says is in `output`."""
    from kalprox.cli import main

    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.exit_code, result.output, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def wait_for(happened: Callable[[], Any], process: subprocess.Popen) -> bool:
    """Whether it happened before the process ended."""
    deadline = time.monotonic() + TIMEOUT
    while not happened():
        if process.poll() is not None:
            return bool(happened())
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return True


def started(events: Path) -> Callable[[], bool]:
    """Whether the command that writes these events has said that it begins."""
    return lambda: events.exists() and '"start"' in events.read_text()
