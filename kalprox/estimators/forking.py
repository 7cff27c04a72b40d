"""Processes that are forked while threads learn: the child has whole models, or says that it has none.

A child has one thread, the one that forked. A lock that another thread held would never be released in it, and the
model under the lock may be half-way. So a fork waits for the threads that are learning, but not for ever.
"""

import os
import threading
import time
import weakref
from typing import Any

__all__ = ["lock_of"]

_WAIT = 5.0  # seconds in which threads may finish what they are learning
_estimators: "weakref.WeakSet[Any]" = weakref.WeakSet()
_guard = threading.RLock()  # held while estimators are added, and while a process is forked
_forking = threading.Event()  # set while a process waits to be forked
_taken: list[Any] = []  # the locks that the thread which forks has taken
_busy: list[Any] = []  # the estimators whose lock it could not take


def lock_of(estimator: Any) -> Any:
    """Return a new lock for an estimator, which a thread may take again while it holds it."""
    with _guard:
        _estimators.add(estimator)
    return _Lock()


class _Lock:
    """A lock that a thread may take again while it holds it. Others wait behind a fork that waits for it."""

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()

    def __enter__(self) -> None:
        if _forking.is_set() and not _holds_any():  # a thread that holds another lock must go on, or the fork would
            with _guard:  # wait for it in vain
                pass
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def _holds_any() -> bool:
    """Whether this thread holds the lock of any estimator."""
    gates = [vars(estimator).get("_lock") for estimator in list(_estimators)]
    return any(isinstance(gate, _Lock) and gate.lock._is_owned() for gate in gates)


class _Lost:
    """In place of a lock: the model was half-way when the process was forked."""

    def __enter__(self) -> None:
        raise RuntimeError(
            "This process was forked while another thread was learning this model, which is half-way here. Fork when "
            "no thread learns, start processes with 'spawn', or save the model and load it in the process."
        )

    def __exit__(self, *_: object) -> None:
        """Do nothing; `__enter__` has raised."""


def _before() -> None:
    _guard.acquire()
    _forking.set()
    until = time.monotonic() + _WAIT
    for estimator in list(_estimators):
        gate = vars(estimator).get("_lock")
        if not isinstance(gate, _Lock):
            continue
        lock = gate.lock
        if lock.acquire(timeout=max(0.0, until - time.monotonic())):
            _taken.append(lock)
        else:
            _busy.append(estimator)


def _after() -> None:
    while _taken:
        _taken.pop().release()
    _busy.clear()
    _forking.clear()
    _guard.release()


def _in_child() -> None:
    for estimator in _busy:
        vars(estimator)["_lock"] = _Lost()
    _after()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
