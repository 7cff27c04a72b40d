"""Results on disk: computed once per setting, kept whole or not at all, by as many processes as asked."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from hashlib import sha256
from io import BytesIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kalprox import __version__
from kalprox._files import atomic_write

__all__ = ["SCHEMA", "Results", "Task", "cached", "cached_all"]

SCHEMA = 1  # raise it when an experiment computes something else from the same settings

Results = dict[str, Any]  # arrays, and numbers, booleans and words where an array would have no dimension


class Task(NamedTuple):
    """`function(settings)` under a name. It can depend on nothing but what the cache compares."""

    name: str
    settings: Mapping[str, Any]
    function: Callable[[Mapping[str, Any]], Results]


def cached(
    folder: str | os.PathLike[str], name: str, settings: Mapping[str, Any], compute: Callable[[], Results]
) -> Results:
    """`compute()`, or what it gave before for the same name and settings.

    One `.npz` file per setting, its name from the SHA-256 of name, settings, kalprox's version and
    `SCHEMA`; the same four are inside and compared, so a changed setting finds no file, and a renamed
    file is not believed. It is written beside its place, flushed to disk and renamed: an interrupted
    run leaves the old file or none, and of two processes at once the last to finish is kept. Its last 32
    bytes are the SHA-256 of the rest, so a damaged file is known, and computed again. Nothing is pickled.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = cached(folder, "squares", {"n": 3}, lambda: {"values": np.arange(3) ** 2})
    ...     again = cached(folder, "squares", {"n": 3}, lambda: {"values": "not computed"})
    ...     other = cached(folder, "squares", {"n": 2}, lambda: {"values": np.arange(2) ** 2})
    >>> first["values"], again["values"], other["values"]
    (array([0, 1, 4]), array([0, 1, 4]), array([0, 1]))
    """
    path, description = _place(folder, name, settings)
    found = _read(path, description)
    if found is not None:
        return found
    arrays = {key: np.asarray(value) for key, value in compute().items()}
    for key, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"results must be arrays, numbers, booleans or words; {key!r} holds {array.ravel()[:1]!r}.")
    _write(path, description, arrays)
    return _plain(arrays)


def cached_all(
    folder: str | os.PathLike[str],
    tasks: Sequence[Task],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Results]:
    """`cached` of every task, in the order given; what is not there yet is computed in `jobs` processes.

    Also one job is a process of its own, with one thread for BLAS and XLA: so the numbers are the same,
    to the last bit, whatever `jobs`. Each result is on disk as soon as it is there, and a run that is
    interrupted goes on where it stopped; its processes leave with it, also when it is killed.
    `progress(done, total)` is called as results come.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1; got {jobs}.")
    report = progress or (lambda done, total: None)
    found = [_read(*_place(folder, task.name, task.settings)) for task in tasks]
    missing = [i for i, results in enumerate(found) if results is None]
    report(len(tasks) - len(missing), len(tasks))
    if missing:
        with _workers(min(jobs, len(missing))) as submit:
            numbers = {submit(_computed, folder, tasks[i]): i for i in missing}
            for done, future in enumerate(as_completed(numbers), start=len(tasks) - len(missing) + 1):
                found[numbers[future]] = future.result()
                report(done, len(tasks))
    return [results for results in found if results is not None]


def _computed(folder: str | os.PathLike[str], task: Task) -> Results:
    return cached(folder, task.name, task.settings, lambda: task.function(task.settings))


def _place(folder: str | os.PathLike[str], name: str, settings: Mapping[str, Any]) -> tuple[Path, str]:
    """The file, and the description of its contents that it must carry: canonical JSON."""
    about = {"name": name, "settings": dict(settings), "kalprox": __version__, "schema": SCHEMA}
    description = json.dumps(about, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Path(folder) / f"{name}-{sha256(description.encode()).hexdigest()[:32]}.npz", description


_DIGEST = sha256().digest_size
_ABOUT = "about"
_RESULT = "result."  # before each name, so that none can clash with the description or an argument of savez


def _read(path: Path, description: str) -> Results | None:
    """What the file holds; None where there is none, it is damaged, or it is about something else."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    # Zip's own checksums cover its members only: a byte changed in its directory can hide some of them.
    if sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
        return None
    with np.load(BytesIO(content[:-_DIGEST]), allow_pickle=False) as file:
        if file[_ABOUT].item() != description:
            return None
        return _plain({key.removeprefix(_RESULT): file[key] for key in file.files if key != _ABOUT})


def _write(path: Path, description: str, arrays: Mapping[str, np.ndarray]) -> None:
    content = BytesIO()
    named: dict[str, Any] = {_RESULT + key: array for key, array in arrays.items()}
    np.savez(content, **named | {_ABOUT: np.asarray(description)})
    atomic_write(path, content.getvalue() + sha256(content.getvalue()).digest())


def _plain(arrays: Mapping[str, np.ndarray]) -> Results:
    """Arrays without a dimension as Python's numbers and words, whether computed or read."""
    return {key: array if array.ndim else array.item() for key, array in arrays.items()}


_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NPROC": "1"}


@contextlib.contextmanager
def _workers(jobs: int) -> Iterator[Callable[..., Future[Results]]]:
    """A pool's `submit`. The processes are fresh (spawned), with one thread each, on a leash."""
    context = get_context("spawn")
    leash, held = context.Pipe(duplex=False)  # `held` is open in this process only: it closes when this one ends
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_on_leash, initargs=(leash,))
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()

    def submit(function: Callable[..., Results], *args: Any) -> Future[Results]:
        with _environment({**_ONE_THREAD, "XLA_FLAGS": flags}):  # read when NumPy and JAX load: before any code of ours
            return pool.submit(function, *args)

    try:
        yield submit
    except BaseException:
        held.close()  # the processes leave now, not after their task
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        held.close()
        leash.close()


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _on_leash(leash: Connection) -> None:
    """In a worker: leave an interrupt to the parent, and end when the parent lets go or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        leash.poll(None)  # nothing is ever sent: this returns when the other end is closed
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
