"""The reference of the command line, from the commands: `python -m kalprox.cli.docs > docs/reference/cli.md`."""

import inspect
import textwrap

import click

from kalprox.cli import main
from kalprox.cli.errors import EXIT_CODES
from kalprox.cli.options import GroupedCommand, help_records
from kalprox.cli.terminal import EVENTS


def page() -> str:
    """The content of docs/reference/cli.md."""
    parts = [
        "# The command line",
        "`python -m kalprox.cli.docs` generates this page from the commands; `kalprox COMMAND --help` prints the same "
        "text.",
        "\n".join(f"- [`{name}`](#kalprox-{name}): {_first_paragraph(command)}" for name, command in _commands()),
    ]
    for name, command in _commands():
        parts += [f"## kalprox {name}", *_help(name, command)]
    events = "\n".join(f"| `{event}` | {meaning} |" for event, meaning in EVENTS.items())
    parts += [
        "## Events",
        "`--events FILE` writes one JSON object per line. Each has the name of the `event` and the `seconds` since the "
        "start, and the fields below.",
        f"| event | fields |\n|---|---|\n{events}",
    ]
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    parts += ["## Exit codes", f"| code | meaning |\n|---|---|\n{codes}"]
    return "\n\n".join(parts) + "\n"


def _commands() -> list[tuple[str, click.Command]]:
    return list(main.commands.items())


def _first_paragraph(command: click.Command) -> str:
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())


def _help(name: str, command: click.Command) -> list[str]:
    """Usage, description, example and options of a command, as paragraphs."""
    text, _, example = inspect.cleandoc(command.help or "").partition("\b\nExample:\n")
    context = click.Context(command, info_name=f"kalprox {name}", **main.context_settings)
    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [f"```\n{' '.join(usage.split())}\n```", text.strip()]
    if example:
        parts.append(f"```\n{textwrap.dedent(example).strip()}\n```")
    options = [option for option in command.params if isinstance(option, click.Option)]
    groups = command.groups(context) if isinstance(command, GroupedCommand) else {"": options}
    for group, options in groups.items():
        records = [record for option in options for record in help_records(option, context)]
        rows = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in records]
        if rows:
            parts += [f"### {group}"] if group else []
            parts.append("| option | meaning |\n|---|---|\n" + "\n".join(rows))
    return parts


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
