"""Errors on the command line: a message and an exit code, without a traceback."""

import _thread
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_stack
from types import FrameType
from typing import Any, NoReturn

import click

from kalprox.base.text import in_options, printable
from kalprox.cli.terminal import echo

EXIT_CODES = {
    0: "Success.",
    1: "Internal error in kalprox; the message asks to report it.",
    2: "Invalid command or options, or settings with which the fit diverges.",
    3: "A source cannot be read: it does not exist, it is damaged, it changed while it was read, columns are missing, "
    "numbers are too large, or a column has no level that the model knows.",
    4: "More bad rows than --max-bad allows.",
    5: "Another process is using the checkpoint, the quarantine or the events, or the checkpoint belongs to another "
    "job.",
    6: "Not a complete kalprox model file.",
    7: "A resource is missing: disk space, memory, a permission, a package, or the machines of an engine.",
    8: "With --strict: there are doubts about the numbers, which standard error lists. All output has been written.",
    130: "Interrupted. `kalprox stream` has saved its state, and written --out.",
    141: "The reader of standard output has gone, as `head` goes after ten lines.",
    143: "Terminated. `kalprox stream`, which SIGTERM asks to end, has saved its state, and written --out.",
}


_GRACE = 2.0  # seconds in which the reader of a command that a signal ends may take its output
_NAMELESS: dict[type, str] = {MemoryError: "There is not enough memory. A smaller --memory needs less."}


class Commands(click.Group):
    """A group of commands in which every error ends with a message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which they were added, not alphabetically

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        sys.unraisablehook = _deliver_interrupt_later
        warnings.showwarning = _show_warning
        _open_streams()
        with self._ending_with_a_code():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with self._ending_with_a_code():
            result = super().invoke(ctx)
            sys.stdout.flush()  # what Python cannot write when it ends, it reports with a traceback
            return result

    @contextmanager
    def _ending_with_a_code(self) -> Iterator[None]:
        try:
            yield
        except click.exceptions.Exit:
            raise
        except click.ClickException as error:
            raise _without_controls(error) from error.__cause__
        except (KeyboardInterrupt, click.Abort):
            _end_interrupted()
        except BrokenPipeError:
            _drop_output()
            sys.exit(141)
        except Exception as error:
            _drop_output()
            code = exit_code(error)
            text = _text(error) or _NAMELESS.get(type(error)) or type(error).__name__
            if code == 1:
                text = (
                    f"{type(error).__name__}: {text}\nThis is an error in kalprox. Please report it with the command."
                )
            echo(f"Error: {text}", err=True)
            sys.exit(code)


def _text(error: Exception) -> str:
    """The message of an error in the words of a command."""
    message = str(error)
    return in_options(error.args[0]) if error.args and error.args[0] == message else message


def _deliver_interrupt_later(unraisable: Any) -> None:
    """Repeat an interrupt that came in a callback, such as one of the garbage collector, where Python ignores it."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _thread.start_new_thread(_interrupt_after, (sys._getframe(),))
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt_after(hook: FrameType) -> None:
    """Interrupt the main thread as soon as it has left a hook: an interrupt that comes while it is there is lost."""
    main = threading.main_thread().ident
    assert main is not None
    while any(frame is hook for frame, _ in walk_stack(sys._current_frames()[main])):
        time.sleep(0.001)
    _thread.interrupt_main()


def _end_interrupted() -> NoReturn:
    echo("Interrupted. With --checkpoint, the same command resumes from the last checkpoint.", err=True)
    end_output()
    sys.exit(130)


def exit_code(error: Exception) -> int:
    """The exit code of an error; see `EXIT_CODES`."""
    from kalprox.base.files import FileInUseError
    from kalprox.engines import EngineFailed
    from kalprox.jobs.checkpoint import CheckpointError
    from kalprox.model_file import ModelFileError
    from kalprox.sources.files import SourceError
    from kalprox.sources.quarantine import TooManyBadRows

    codes: list[tuple[type | tuple[type, ...], int]] = [
        (TooManyBadRows, 4),
        (SourceError, 3),
        ((CheckpointError, FileInUseError), 5),
        (ModelFileError, 6),
        ((OSError, MemoryError, ImportError, EngineFailed), 7),
        ((ValueError, FloatingPointError), 2),
    ]
    if "start new thread" in str(error):  # of which Python makes a RuntimeError
        return 7
    return next((code for kind, code in codes if isinstance(error, kind)), 1)


def _open_streams() -> None:
    """Replace streams that the caller has closed: messages are dropped, and results cannot be written.

    With PYTHONUNBUFFERED, which is usual in containers, Python drops what the system does not take in one piece; a
    buffer writes all of it, or raises an error.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            text = {"encoding": stream.encoding, "errors": stream.errors}
            setattr(sys, name, open(stream.fileno(), "w", buffering=1, closefd=False, **text))  # noqa: SIM115


def _drop_output() -> None:
    """Drop what standard output still holds if it cannot be written, or Python would try again when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_output() -> None:
    """Write what standard output still holds, or drop what its reader does not take within two seconds.

    A command that a signal ends would otherwise wait, at its end, for a reader that has stopped reading.
    """
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        return _drop_output()

    def too_late(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError("the reader of the output has stopped reading")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, _GRACE)
    try:
        _drop_output()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    text = _text(message) if isinstance(message, Warning) else message
    echo(f"Warning: {text}", err=True)


def _without_controls(error: click.ClickException) -> click.ClickException:
    """The error with a message that cannot control the terminal: it may repeat an argument, such as a file name."""
    error.message = printable(error.message)  # type: ignore[misc]
    if isinstance(error, click.FileError):
        error.ui_filename = printable(error.ui_filename)  # type: ignore[misc]
    return error
