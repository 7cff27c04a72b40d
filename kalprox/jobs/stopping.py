"""Ending a job that waits for input or output when a signal asks for it, at a moment at which its state is whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_GRACE = 2.0  # seconds in which output that has begun may be finished


class Stopped(BaseException):
    """A signal asked the job to end while it was waiting."""


class Stopping:
    """Inside `with Stopping() as stopping`, SIGTERM and SIGINT do not end the process, but are noted.

    A wait for input, inside `with stopping.reading()`, is ended by `Stopped`. So is output, inside `with
    stopping.writing()`, if it takes more than two seconds from then on, since its reader has stopped reading, or if a
    second signal comes. Outside of the main thread, which receives no signals, nothing is installed.

    Attributes
    ----------
    signal : int or None
        The first signal that came.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._reads = self._writes = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._noted)
            if hasattr(signal, "SIGALRM"):  # not on Windows
                self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._too_late)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if signal.SIGINT in self._before and hasattr(signal, "SIGALRM"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Return a context in which a signal raises `Stopped`; one that has come before does so at its beginning."""
        self._reads = True
        try:
            if self.signal is not None:
                raise Stopped
            yield
        finally:
            self._reads = False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Return a context in which a signal raises `Stopped` after two seconds."""
        self._writes = True
        try:
            yield
        finally:
            self._writes = False

    def _noted(self, number: int, frame: FrameType | None) -> None:
        again, self.signal = self.signal is not None, self.signal or number
        if self._reads or (self._writes and again):
            raise Stopped
        if self._writes and signal.SIGINT in self._before and hasattr(signal, "SIGALRM"):
            signal.setitimer(signal.ITIMER_REAL, _GRACE)

    def _too_late(self, number: int, frame: FrameType | None) -> None:
        if self._writes:
            raise Stopped
