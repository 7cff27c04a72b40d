"""The command line. Each command imports what it needs when it is called, so that `--help` is fast."""

import os

import click

from kalprox import __version__
from kalprox.cli import fit, models, paper, predict, stream
from kalprox.cli.errors import Commands

__all__ = ["main"]

# pyarrow would start up to eight threads for reading local files, each with a stack, as many as happen to wait at once.
os.environ.setdefault("ARROW_IO_THREADS", "1")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__)
def main() -> None:
    """Streaming regularised regression that knows how sure it is."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    Example:
      kalprox completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "kalprox", "_KALPROX_COMPLETE").source())


for command in (
    fit.fit,
    predict.predict,
    stream.stream,
    models.show,
    models.report,
    models.path,
    models.merge,
    fit.refine,
    paper.demo,
    paper.reproduce,
    completion,
):
    main.add_command(command)
