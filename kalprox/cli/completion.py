"""`kalprox completion`: completion of commands, options and files in a shell."""

import click

__all__ = ["completion"]


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
    assert kind is not None and context.parent is not None
    click.echo(kind(context.parent.command, {}, "kalprox", "_KALPROX_COMPLETE").source())
