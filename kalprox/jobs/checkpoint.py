"""A job's state on disk, whole or not at all, for one process at a time.

A checkpoint is a model file: written beside its place, flushed, read back, renamed, and the folder flushed. Whatever
happens in between, a full disk or a kill, the last whole one stays.
"""

import contextlib
import glob
import json
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from kalprox import model_file

__all__ = ["Checkpoint", "CheckpointError"]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: another process has it, or it is of another job."""


class Checkpoint:
    """The file and its lock, from `with Checkpoint(file) as checkpoint` until the block ends."""

    def __init__(self, file: str | PathLike) -> None:
        self.file = Path(file)
        self._lock_file = self.file.with_name(self.file.name + ".lock")
        self._lock: int | None = None

    def __enter__(self) -> Self:
        import fcntl

        while self._lock is None:
            lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if os.fstat(lock).st_ino == os.stat(self._lock_file).st_ino:  # else: removed since it was opened
                        self._lock = lock
            except BlockingIOError:
                raise CheckpointError(
                    f"Another process is at work on {self.file}. Wait for it, or give another checkpoint file."
                ) from None
            finally:
                if self._lock is None:
                    os.close(lock)
        for part in self.file.parent.glob(f".{glob.escape(self.file.name)}.*.part"):
            part.unlink(missing_ok=True)  # of a process that was killed as it wrote
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._lock is not None
        self._lock_file.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None

    def load(self, job: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """What was saved last; None where nothing was. Refused, with what differs, if it was not of this `job`."""
        try:
            header, arrays = model_file.read(self.file)
        except FileNotFoundError:
            return None
        before = header.pop("job", None)
        if not isinstance(before, dict):
            raise CheckpointError(f"{self.file} is a model, not a checkpoint. Give another checkpoint file.")
        different = list(_differences(before, json.loads(json.dumps(job))))  # in JSON's types, as it was saved
        if different:
            raise CheckpointError(
                f"{self.file} is of another job. What differs:\n  "
                + "\n  ".join(different)
                + "\nGive the same settings and source again, or another checkpoint file."
            )
        return header, arrays

    def save(self, job: Mapping[str, Any], header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        model_file.write(self.file, {**header, "job": job}, arrays)

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)


def _differences(before: Any, now: Any, name: str = "") -> Any:
    """Lines "name: was ..., is ..." for every leaf in which two JSON values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (a, b) in enumerate(zip(before, now, strict=True)):
            yield from _differences(a, b, f"{name}[{i}]")
    elif before != now:
        yield f"{name}: was {_short(before)}, is {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
