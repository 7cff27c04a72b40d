"""A cache of results on disk, computed in several processes: each setting once, so that an interrupted run resumes."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kalprox import __version__
from kalprox.base.files import atomic_write

SCHEMA = 1  # increase it when an experiment computes something else from the same settings

Results = dict[str, Any]  # arrays, numbers, booleans and text


class Task(NamedTuple):
    """A call `function(settings)` whose results are cached under `name`.

    The function must depend on nothing but its settings, which are values that JSON can represent.
    """

    name: str
    settings: Mapping[str, Any]
    function: Callable[[Mapping[str, Any]], Results]


Compute = Callable[[Sequence[Task]], list[Results]]  # `cached_all` in one folder


def cached(folder: str | os.PathLike[str], task: Task) -> Results:
    """Return the cached results of a task, or compute and cache them.

    There is one `.npz` file for each setting. Its name contains the SHA-256 of the name, the settings, the version of
    kalprox and `SCHEMA`. Its last 32 bytes are the SHA-256 of these four and of the rest, so that a damaged or renamed
    file is noticed and computed again. Files are written atomically; if two processes write the same file, the last one
    wins. Nothing is pickled.

    Parameters
    ----------
    folder : str or path-like
        The folder of the cache, which is created if needed.
    task : Task

    Returns
    -------
    dict
        Arrays; those without a dimension are Python numbers, booleans or text.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = cached(folder, Task("squares", {"n": 3}, lambda s: {"values": np.arange(s["n"]) ** 2}))
    ...     again = cached(folder, Task("squares", {"n": 3}, lambda s: {"values": "not computed"}))
    ...     other = cached(folder, Task("squares", {"n": 2}, lambda s: {"values": np.arange(s["n"]) ** 2}))
    >>> first["values"], again["values"], other["values"]
    (array([0, 1, 4]), array([0, 1, 4]), array([0, 1]))
    """
    found = _read(folder, task)
    if found is not None:
        return found
    arrays = {key: np.asarray(value) for key, value in task.function(task.settings).items()}
    for key, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"results must be arrays, numbers, booleans or text; {key!r} holds {array.ravel()[:1]!r}.")
    file = BytesIO()
    named: dict[str, Any] = arrays
    np.savez(file, **named)
    path, description = _described(folder, task)
    atomic_write(path, file.getvalue() + sha256(description + file.getvalue()).digest())
    return _to_python(arrays)


def cached_all(
    folder: str | os.PathLike[str],
    tasks: Sequence[Task],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Results]:
    """Return the results of all tasks, and compute those that are not cached in several processes.

    Every task is computed in a process with one thread for BLAS and XLA, also if there is only one, so that the results
    are the same to the last bit for any number of processes. A result is written to the cache as soon as it is
    computed, so that an interrupted run resumes.

    Parameters
    ----------
    folder : str or path-like
        The folder of the cache.
    tasks : sequence of Task
    jobs : int
        The number of processes. They end with this process, also if it is killed.
    progress : callable, optional
        Called with the number of finished tasks and of all tasks.

    Returns
    -------
    list of dict
        The results in the order of the tasks.
    """
    found = [_read(folder, task) for task in tasks]
    missing = [i for i, results in enumerate(found) if results is None]
    progress(len(tasks) - len(missing), len(tasks))
    if missing:
        with workers(min(jobs, len(missing))) as submit:
            futures = {submit(cached, folder, tasks[i]): i for i in missing}
            for done, future in enumerate(as_completed(futures), start=len(tasks) - len(missing) + 1):
                found[futures[future]] = future.result()
                progress(done, len(tasks))
    return [results for results in found if results is not None]


def _described(folder: str | os.PathLike[str], task: Task) -> tuple[Path, bytes]:
    """The path of a task's file, and what makes it this task's, as canonical JSON."""
    about = {"name": task.name, "settings": dict(task.settings), "kalprox": __version__, "schema": SCHEMA}
    description = json.dumps(about, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return Path(folder) / f"{task.name}-{sha256(description).hexdigest()[:32]}.npz", description


def _read(folder: str | os.PathLike[str], task: Task) -> Results | None:
    """The results in a task's file; None if it does not exist, is damaged, or was written for another task."""
    path, description = _described(folder, task)
    if not path.exists():
        return None
    content = path.read_bytes()
    # The checksums of zip files cover only their members: a changed byte in the directory can hide a member.
    if sha256(description + content[:-32]).digest() != content[-32:]:
        return None
    with np.load(BytesIO(content[:-32]), allow_pickle=False) as file:
        return _to_python(file)


def _to_python(arrays: Mapping[str, np.ndarray]) -> Results:
    """Arrays without a dimension as Python numbers, booleans or text."""
    return {key: array if array.ndim else array.item() for key, array in arrays.items()}


_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NPROC": "1"}


@contextmanager
def workers(jobs: int) -> Iterator[Callable[..., Future[Any]]]:
    """Start a pool of `jobs` new (spawned) processes, and yield its `submit` function.

    The processes end when the `with` block ends or raises an error, and also when this process is killed. Inside the
    block the environment is theirs: NumPy and JAX read it when they are imported, before our code runs in a process.
    """
    context = get_context("spawn")
    # Only this process holds the sending end. When the process ends, for any reason, the end is closed, and the workers
    # notice.
    receiver, sender = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent, initargs=(receiver,))
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    changes = _ONE_THREAD | {"XLA_FLAGS": flags}
    before = {name: os.environ[name] for name in changes if name in os.environ}
    os.environ.update(changes)
    try:
        yield pool.submit
    except BaseException:
        sender.close()  # ends the processes now, not after their tasks
        raise
    finally:
        for name in changes:
            del os.environ[name]
        os.environ.update(before)
        pool.shutdown(cancel_futures=True)
        sender.close()
        receiver.close()


def _end_with_parent(receiver: Connection) -> None:
    """In a worker: leave interrupts to the parent process, and end when it closes the pipe or ends itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        receiver.poll(None)  # nothing is ever sent, so this returns when the other end is closed
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
