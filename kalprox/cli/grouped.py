"""Options as attributes of classes, and commands that show those that are needed first, or all of them in groups."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from kalprox.cli.kinds import KindChoice

__all__ = ["GroupedCommand", "Option", "Options", "help_records", "option", "options"]

_ALL = "kalprox: help with all options"
_NEW = {  # options of earlier versions, and what to write
    "--bounds": "--penalty box,low=NUMBER,high=NUMBER",
    "--delta": "--penalty smooth_l1,delta=NUMBER",
    "--directional": "--forget with a number, time, window or walk",
    "--half-life": "--forget time,half_life=NUMBER",
    "--l1-ratio": "--penalty elasticnet,l1_ratio=NUMBER",
    "--method": "kalprox.paper.PIPGRegressor in Python for the method of the paper",
    "--missing-target": "--missing drop",
    "--walk": "--forget walk,q=NUMBER",
    "--walk-intercept": "--forget walk,q=NUMBER,intercept=NUMBER",
    "--weights": "--weight-kind",
    "--window": "--forget window,rows=NUMBER",
}


class Option(click.Option):
    """An option of a group; see `Options`."""

    group: str | None = None


class Options:
    """Options of commands, which `options` adds to a command in this order.

    Each attribute is an `option`. It has the name of the attribute, and the help that the docstring says below it.

    Attributes
    ----------
    group
        The heading in the help of a `GroupedCommand`; None for options without one.
    """

    group: str | None = None


def option(*names: str, **declared: Any) -> Any:
    """Return the declaration of an option, with the arguments of `click.option`, for a class of `Options`.

    The option is --name for an attribute of this name; `names` are short ones to add, or long ones in its place.
    """
    return names, declared


def options(*kinds: type[Options]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options of these classes to a command."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for kind in reversed(kinds):
            told = _helps(kind)
            for name, value in reversed(list(vars(kind).items())):
                if name not in told:
                    continue
                names, declared = value
                if not any(one.startswith("--") for one in names):
                    names = (f"--{name.replace('_', '-')}", *names)
                command = click.option(*names, name, cls=Option, help=told[name], **declared)(command)
                command.__click_params__[-1].group = kind.group  # type: ignore[attr-defined]
        return command

    return decorate


def _helps(kind: type[Options]) -> dict[str, str]:
    """Return what the docstring of a class says of each attribute."""
    parts = re.findall(r"(?m)^(\w+)\n((?:    .*\n?)+)", inspect.cleandoc(kind.__doc__ or ""))
    return {name: " ".join(text.split()).replace(" [default", "  [default") for name, text in parts}


class GroupedCommand(click.Command):
    """A command with many options: --help shows those that are needed first, and --help-all shows all in groups.

    Parameters
    ----------
    first : sequence of str
        The names of the options that are needed first, in this order.
    """

    def __init__(self, *args: Any, first: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.first = first
        self.params.append(
            Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show all options, and exit.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; an option of an earlier version is an error that says what stands in its place."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in _NEW:
                gone, new = error.option_name, _NEW[error.option_name]
                raise click.UsageError(f"{gone} is gone since kalprox 0.3; in its place stands {new}.", ctx) from None
            raise

    def groups(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        """Return the options of each group; those of no group come last."""
        found: dict[str, list[click.Option]] = {}
        others: list[click.Option] = []
        for one in self.get_params(ctx):
            if isinstance(one, click.Option):
                group = getattr(one, "group", None)  # which --help does not have
                (others if group is None else found.setdefault(group, [])).append(one)
        return found | {"Other options": others}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of all groups with --help-all, and those that are needed first with --help."""
        groups = self.groups(ctx)
        if not ctx.meta.get(_ALL):
            by_name = {option.name: option for options in groups.values() for option in options}
            groups = {"Options": [*(by_name[name] for name in self.first), *groups["Other options"]]}
        for group, options in groups.items():
            with formatter.section(group):
                formatter.write_dl([record for option in options for record in help_records(option, ctx)])


def help_records(option: click.Option, ctx: click.Context) -> list[tuple[str, str]]:
    """Return what the help says of an option, and below it of the kinds that are its values."""
    record = option.get_help_record(ctx)
    if record is None:
        return []
    kinds = option.type.kinds() if isinstance(option.type, KindChoice) else []
    return [record, *((f"  {usage}", text) for usage, text in kinds)]


def _show_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()
