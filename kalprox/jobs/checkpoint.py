"""The state of a job on disk, written atomically and locked against other processes.

A checkpoint is a model file. It is replaced atomically, so that the last complete checkpoint survives a full disk, a
crash or a kill at any moment.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kalprox import model_file
from kalprox.base.extras import load
from kalprox.base.files import is_stream, remove_partial_files

if TYPE_CHECKING:
    from filelock import BaseFileLock


class CheckpointError(ValueError):
    """The checkpoint cannot be used: another process uses it, or it belongs to another job."""


class Checkpoint:
    """A checkpoint file and its lock, which is held inside `with Checkpoint(file) as checkpoint`.

    Parameters
    ----------
    file : str or path-like, optional
        The checkpoint file. A symbolic link is followed, so that one checkpoint has one lock, whatever it is called.
        By default nothing is read or written.

    Attributes
    ----------
    lock_file : Path
        The lock: a file beside the checkpoint, with `.lock` added to the name.
    """

    def __init__(self, file: str | PathLike[str] | None) -> None:
        self.file = None if file is None else Path(file)
        self._target = Path(os.path.realpath(file or ""))
        self.lock_file = self._target.with_name(self._target.name + ".lock")
        self._lock: BaseFileLock | None = None

    def __enter__(self) -> Self:
        if self.file is None:
            return self
        filelock = load("filelock", "files", "Checkpoints need")
        if is_stream(self.file):
            raise CheckpointError(f"{self.file} is a device or a pipe, which no job can resume from. Choose a file.")
        if not (folder := self._target.parent).is_dir():  # FileLock would create the folder
            raise FileNotFoundError(f"There is no folder {folder} for the checkpoint.")
        self._lock = filelock.FileLock(self.lock_file)
        try:
            self._lock.acquire(blocking=False)
        except filelock.Timeout:
            raise CheckpointError(
                f"Another process is using the checkpoint {self.file}. Wait for it to finish, or choose another "
                "checkpoint file."
            ) from None
        remove_partial_files(self.file)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock is None:
            return
        # The lock file is removed while it is locked, so that no other process can lock it in between. Windows cannot
        # remove open files; there, releasing the lock removes it.
        with contextlib.suppress(OSError):
            self.lock_file.unlink()
        self._lock.release()

    def load(self, job: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """Read the last checkpoint of a job.

        Parameters
        ----------
        job : mapping
            The identity of the job, in JSON types.

        Returns
        -------
        (header, arrays), or None if there is no checkpoint, or none yet.

        Raises
        ------
        CheckpointError
            If the checkpoint belongs to another job. The message lists the differences.
        """
        if self.file is None or not self.file.exists():
            return None
        header, arrays = model_file.read(self.file)
        saved = header.pop("job", None)
        if not isinstance(saved, dict):
            raise CheckpointError(f"{self.file} is a model, not a checkpoint. Choose another checkpoint file.")
        differences = list(_differences(saved, json.loads(json.dumps(job))))  # in JSON types, like the saved one
        if differences:
            raise CheckpointError(
                f"{self.file} is a checkpoint of another job. The differences:\n  "
                + "\n  ".join(differences)
                + "\nUse the same options and sources as before, or choose another checkpoint file."
            )
        return header, arrays

    def save(
        self,
        job: Mapping[str, Any],
        header: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        rebuilt: Callable[[dict[str, Any], dict[str, np.ndarray]], model_file.Parts] | None = None,
    ) -> None:
        """Replace the checkpoint atomically by this header and these arrays of `job`.

        For `rebuilt`, which shows that the job can be resumed from what was written, see `kalprox.model_file.write`.
        """
        assert self.file is not None
        model_file.write(self.file, {**header, "job": job}, arrays, rebuilt)

    def resuming(self, *errors: type[Exception]) -> AbstractContextManager[None]:
        """Return a context in which errors, by default all that its content can cause, become a `ModelFileError`."""
        message = f"{self.file} is a checkpoint, but what it says about the run is damaged. Remove it to start again."
        return model_file.refusing(message, errors) if errors else model_file.refusing(message)

    def remove(self) -> None:
        """Remove the checkpoint, if there is one."""
        if self.file is not None:
            self._target.unlink(missing_ok=True)


def _differences(saved: Any, given: Any, name: str = "") -> Iterator[str]:
    """Yield a line "name: was ..., is ..." for every leaf in which two JSON values differ."""
    if isinstance(saved, dict) and isinstance(given, dict):
        for key in sorted({*saved, *given}):
            yield from _differences(saved.get(key), given.get(key), f"{name}.{key}" if name else key)
    elif isinstance(saved, list) and isinstance(given, list) and len(saved) == len(given):
        for i, (a, b) in enumerate(zip(saved, given, strict=True)):
            yield from _differences(a, b, f"{name}[{i}]")
    elif saved != given:
        yield f"{name}: was {_shortened(saved)}, is {_shortened(given)}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
