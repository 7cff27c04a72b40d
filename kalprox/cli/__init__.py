"""The command line. Each command imports what it needs when it is called, so that `--help` is fast."""

import click

from kalprox.cli.completion import completion
from kalprox.cli.errors import Commands
from kalprox.cli.fit import fit
from kalprox.cli.models import merge, path, report, show
from kalprox.cli.paper import demo, reproduce
from kalprox.cli.predict import predict

__all__ = ["main"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="kalprox")
def main() -> None:
    """Streaming regularised regression that knows how sure it is."""


for command in (fit, predict, show, report, path, merge, demo, reproduce, completion):
    main.add_command(command)
