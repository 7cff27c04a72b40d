"""Errors as a user sees them: one message and an exit code; no traceback."""

import sys
import warnings
from typing import Any

import click

__all__ = ["EXIT_CODES", "Commands", "code_of"]

EXIT_CODES = {
    0: "done",
    1: "something went wrong inside kalprox; the message asks to report it",
    2: "the command or its settings mean nothing",
    3: "a source cannot be read as asked: not there, damaged, columns missing, numbers too large",
    4: "more bad rows than --max-bad allows",
    5: "the checkpoint cannot be used: another process has it, or it is of another job",
    6: "not a whole model file",
    7: "something outside is missing: room on the disk, memory, permission, a package, the machines of an engine",
    130: "interrupted",
}


class Commands(click.Group):
    """A group of commands that end with a message and an exit code, whatever happens in them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # as they were added: the main ones first

    def invoke(self, ctx: click.Context) -> Any:
        warnings.showwarning = _show_warning
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, click.ClickException, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            click.echo("Interrupted. With --checkpoint, the same command goes on from there.", err=True)
            sys.exit(130)
        except Exception as error:
            code = code_of(error)
            text = str(error) or type(error).__name__
            if code == 1:
                text = f"{type(error).__name__}: {text}\nThis should not happen. Please report it, with the command."
            click.echo(f"Error: {text}", err=True)
            sys.exit(code)


def code_of(error: Exception) -> int:
    """The exit code for an error; see `EXIT_CODES`."""
    from kalprox.engines import EngineFailed
    from kalprox.jobs.checkpoint import CheckpointError
    from kalprox.model_file import ModelFileError
    from kalprox.sources.files import SourceError
    from kalprox.sources.quarantine import TooManyBadRows

    kinds: list[tuple[type | tuple[type, ...], int]] = [
        (TooManyBadRows, 4),
        (SourceError, 3),
        (CheckpointError, 5),
        (ModelFileError, 6),
        ((OSError, MemoryError, ImportError, EngineFailed), 7),
        (ValueError, 2),
    ]
    return next((code for kind, code in kinds if isinstance(error, kind)), 1)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {message}", err=True)
