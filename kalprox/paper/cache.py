"""A cache of results on disk: each setting is computed once, and an interrupted run resumes."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kalprox import __version__
from kalprox.base.files import atomic_write
from kalprox.paper.workers import workers

__all__ = ["SCHEMA", "Results", "Task", "cached", "cached_all"]

SCHEMA = 1  # increase it when an experiment computes something else from the same settings

Results = dict[str, Any]  # arrays, numbers, booleans and text


class Task(NamedTuple):
    """A call `function(settings)` whose results are cached under `name`.

    The function must depend on nothing but its settings.
    """

    name: str
    settings: Mapping[str, Any]
    function: Callable[[Mapping[str, Any]], Results]


def cached(
    folder: str | os.PathLike[str], name: str, settings: Mapping[str, Any], compute: Callable[[], Results]
) -> Results:
    """Return the cached results for a name and settings, or compute and cache them.

    There is one `.npz` file for each setting. Its name contains the SHA-256 of the name, the settings, the version of
    kalprox and `SCHEMA`; the same four are stored in the file and compared, so that changed settings are computed
    again, and a renamed file is not used. Files are written atomically; if two processes write the same file, the last
    one wins. The last 32 bytes are the SHA-256 of the rest, so that a damaged file is noticed and computed again.
    Nothing is pickled.

    Parameters
    ----------
    folder : str or path-like
        The folder of the cache, which is created if needed.
    name : str
    settings : mapping
        Values that JSON can represent.
    compute : callable
        Called without arguments if there are no cached results.

    Returns
    -------
    dict
        Arrays; those without a dimension are Python numbers, booleans or text.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = cached(folder, "squares", {"n": 3}, lambda: {"values": np.arange(3) ** 2})
    ...     again = cached(folder, "squares", {"n": 3}, lambda: {"values": "not computed"})
    ...     other = cached(folder, "squares", {"n": 2}, lambda: {"values": np.arange(2) ** 2})
    >>> first["values"], again["values"], other["values"]
    (array([0, 1, 4]), array([0, 1, 4]), array([0, 1]))
    """
    path, description = _describe(folder, name, settings)
    found = _read(path, description)
    if found is not None:
        return found
    arrays = {key: np.asarray(value) for key, value in compute().items()}
    for key, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"results must be arrays, numbers, booleans or text; {key!r} holds {array.ravel()[:1]!r}.")
    _write(path, description, arrays)
    return _to_python(arrays)


def cached_all(
    folder: str | os.PathLike[str],
    tasks: Sequence[Task],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
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
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1; got {jobs}.")
    report = progress or (lambda done, total: None)
    found = [_read(*_describe(folder, task.name, task.settings)) for task in tasks]
    missing = [i for i, results in enumerate(found) if results is None]
    report(len(tasks) - len(missing), len(tasks))
    if missing:
        with workers(min(jobs, len(missing))) as submit:
            futures = {submit(_compute, folder, tasks[i]): i for i in missing}
            for done, future in enumerate(as_completed(futures), start=len(tasks) - len(missing) + 1):
                found[futures[future]] = future.result()
                report(done, len(tasks))
    return [results for results in found if results is not None]


def _compute(folder: str | os.PathLike[str], task: Task) -> Results:
    return cached(folder, task.name, task.settings, lambda: task.function(task.settings))


def _describe(folder: str | os.PathLike[str], name: str, settings: Mapping[str, Any]) -> tuple[Path, str]:
    """The path of a file, and the description that it must contain, as canonical JSON."""
    about = {"name": name, "settings": dict(settings), "kalprox": __version__, "schema": SCHEMA}
    description = json.dumps(about, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Path(folder) / f"{name}-{sha256(description.encode()).hexdigest()[:32]}.npz", description


_DIGEST_SIZE = sha256().digest_size
_ABOUT = "about"
_PREFIX = "result."  # so that the name of no result equals `_ABOUT` or an argument of np.savez


def _read(path: Path, description: str) -> Results | None:
    """The results in a file; None if the file does not exist, is damaged, or has another description."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    # The checksums of zip files cover only their members: a changed byte in the directory can hide a member.
    if sha256(content[:-_DIGEST_SIZE]).digest() != content[-_DIGEST_SIZE:]:
        return None
    with np.load(BytesIO(content[:-_DIGEST_SIZE]), allow_pickle=False) as file:
        if file[_ABOUT].item() != description:
            return None
        return _to_python({key.removeprefix(_PREFIX): file[key] for key in file.files if key != _ABOUT})


def _write(path: Path, description: str, arrays: Mapping[str, np.ndarray]) -> None:
    content = BytesIO()
    named: dict[str, Any] = {_PREFIX + key: array for key, array in arrays.items()}
    np.savez(content, **named | {_ABOUT: np.asarray(description)})
    atomic_write(path, content.getvalue() + sha256(content.getvalue()).digest())


def _to_python(arrays: Mapping[str, np.ndarray]) -> Results:
    """Arrays without a dimension as Python numbers, booleans or text."""
    return {key: array if array.ndim else array.item() for key, array in arrays.items()}
