"""Options: types of their values, groups in which commands show them, and those that several commands share."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click
from click.core import ParameterSource

_SPANS = {
    "s": timedelta(seconds=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


class RegistryChoice(click.Choice[str]):
    """One of the names in a registry, which is imported only when the names are needed.

    Parameters
    ----------
    module, registry : str
        The registry is the dict or tuple `registry` of this module.
    *others : str
        Names to accept in addition.
    """

    def __init__(self, module: str, registry: str, *others: str) -> None:
        self.module, self.registry, self.others = module, registry, others
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        return *self.others, *getattr(import_module(self.module), self.registry)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if param is not None and value == param.default:
            return value  # so that completing another option does not import the registry
        return super().convert(value, param, ctx)


class Kind(NamedTuple):
    """The name of an entry of a registry, and the parameters that were given."""

    name: str
    parameters: dict[str, Any]

    def made(self, registry: Mapping[str, Callable[..., Any]], option: str) -> Any:
        """Return the object; raise a click.BadParameter if it has no such parameter, or refuses its value."""
        kind: Any = registry[self.name]
        known, given, hint = {field.name: field for field in fields(kind)}, dict(self.parameters), f"'{option}'"
        if unknown := [name for name in given if name not in known]:
            has = f"has the parameters {', '.join(known)}" if known else "has no parameters"
            raise click.BadParameter(f"{self.name} {has}; got {unknown[0]!r}.", param_hint=hint)
        if any(field.default is MISSING and name not in given for name, field in known.items()):
            raise click.BadParameter(
                f"{self.name} needs a parameter, as in {_usage(self.name, kind)}.", param_hint=hint
            )
        for name, value in given.items():
            if known[name].type is int and isinstance(value, float) and value.is_integer():
                given[name] = int(value)
        try:
            return kind(**given)
        except (TypeError, ValueError) as error:
            raise click.BadParameter(str(error), param_hint=hint) from None


def _usage(name: str, kind: Any) -> str:
    """Return how an entry of a registry is given on the command line.

    >>> from kalprox.forgetting import RandomWalk
    >>> from kalprox.penalties import ElasticNet
    >>> _usage("elasticnet", ElasticNet), _usage("walk", RandomWalk)
    ('elasticnet,l1_ratio=0.5', 'walk,q=NUMBER[,intercept=NUMBER]')
    """
    return name + "".join(map(_parameter, fields(kind)))


def _parameter(field: "Field[Any]") -> str:
    """Return how a parameter is given; nothing if it is no number."""
    if field.default is MISSING:
        return f",{field.name}=NUMBER"
    if field.default is None:
        return f"[,{field.name}=NUMBER]" if {int, float, Any} & {field.type, *get_args(field.type)} else ""
    return f",{field.name}={field.default}" if isinstance(field.default, (int, float)) else ""


class KindChoice(RegistryChoice):
    """The name of an entry of a registry, followed by parameters that are numbers, such as huber,threshold=2."""

    name = "kind"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "KIND[,PARAMETER=NUMBER...]"

    def kinds(self) -> list[tuple[str, str]]:
        """Return how each entry of the registry is given, and its help."""
        entries = getattr(import_module(self.module), self.registry)
        return [(_usage(name, kind), kind.help.rstrip(".")) for name, kind in entries.items()]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, Kind):
            return value
        name, *pairs = value.split(",")
        name = super().convert(name, param, ctx)
        parameters: dict[str, Any] = {}
        for pair in pairs:
            key, given, number = pair.partition("=")
            try:
                parameters[key.strip()] = _number_or_span(number.strip())
            except (ValueError, OverflowError):
                given = ""
            if not given:
                self.fail(f"expected PARAMETER=NUMBER, such as scale=2, after {name!r}; got {pair!r}.", param, ctx)
        return Kind(name, parameters)


def _number_or_span(text: str) -> float | timedelta:
    """Return a number, or a time with a unit, such as 12h."""
    try:
        return float(text)
    except ValueError:
        found = re.fullmatch(r"([0-9.eE+-]+)\s*(s|min|h|d|w)", text)
        if found is None:
            raise
        return float(found[1]) * _SPANS[found[2]]


class NumberOrKind(KindChoice):
    """A number in (0, 1], or one word, or the name of an entry of a registry with parameters."""

    name = "number|kind"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "NUMBER|KIND[,PARAMETER=NUMBER...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return click.FloatRange(0, 1, min_open=True).convert(float(value), param, ctx)
        except (TypeError, ValueError):
            return value if value in self.others else super().convert(value, param, ctx)


_ALL = "kalprox: help with all options"


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


class NumberOr(click.ParamType):
    """A number, of the type `number`, or one word."""

    def __init__(self, word: str, number: click.ParamType = click.FLOAT) -> None:
        self.word, self.number, self.name = word, number, f"number|{word}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        if value == self.word:
            return str(value)
        try:
            number = float(value)
        except ValueError:
            self.fail(f"expected a number, or {self.word}; got {value!r}.", param, ctx)
        found: float = self.number.convert(number, param, ctx)
        return found


class Parsed(click.ParamType):
    """What a function makes of the text of a value; it raises a ValueError if that is not what is `expected`."""

    def __init__(self, name: str, expected: str, parse: Callable[[str], Any]) -> None:
        self.name, self.expected, self.parse = name, expected, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value.strip())
        except ValueError:
            self.fail(f"expected {self.expected}; got {value!r}.", param, ctx)


def _matched(pattern: str, text: str) -> re.Match[str]:
    found = re.fullmatch(pattern, text)
    if found is None:
        raise ValueError
    return found


def _positive(number: str) -> float:
    if not 0 < float(number) < float("inf"):
        raise ValueError
    return float(number)


def _names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise ValueError
    return found


def _bytes(text: str) -> int:
    number, unit = _matched(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", text.lower()).groups()
    return int(_positive(number) * (1 << 10 * " kmgt".index(unit or " ")))


def _max_bad(text: str) -> str:
    return _matched(r"\d+|(\d\d?(\.\d*)?|100)%", text)[0]


class Pace(NamedTuple):
    """A number of rows, or a number of seconds."""

    rows: int | None
    seconds: float | None


def _pace(text: str) -> Pace:
    if re.fullmatch(r"[0-9]+", text) and int(text):
        return Pace(int(text), None)
    return Pace(None, _positive(_matched(r"([0-9]*\.?[0-9]+)\s*s", text)[1]))


NAMES = Parsed("names", "names separated by commas, such as a,b,c", _names)
BYTES = Parsed("size", "a size such as 512MB or 2GB", _bytes)
MAX_BAD = Parsed("number|percentage", "a number of rows or a percentage such as 1%", _max_bad)
PACE = Parsed("rows|seconds", "a number of rows such as 100, or a time such as 0.5s", _pace)
READING = (  # of `Table`
    "format",
    "encoding",
    "delimiter",
    "decimal",
    "thousands",
    "units",
    "skip_unreadable",
    "max_record",
    "samples",
)
COUNT = click.IntRange(min=1)
FILE = click.Path(dir_okay=False, path_type=Path)  # to write
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)

LEVEL = option(type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.95)  # of intervals


class ReadingOptions(Options):
    """Options about the files that are read.

    Attributes
    ----------
    format
        Format of the files.
        [default: from their suffixes; csv for -]
    encoding
        Encoding of text files, such as latin-1. UTF-16 with a byte order mark is recognised.
    delimiter
        Field delimiter of CSV files.
        [default: found in each file: comma, semicolon, tab or |]
    decimal
        Decimal mark of numbers in text files.
    thousands
        Mark between thousands of numbers in text files.
        [default: none]
    units
        Texts before or after numbers that are left out, such as lbs,$,%: 12% is read as 12. Nothing is converted: give
        one column one unit.
    memory
        Memory for the blocks of rows that are read; the d x d matrices of the model come on top, and are warned of if
        they need more.
    max_record
        Longest record (line) of a CSV or JSON lines file; a longer one is a bad row.
    quarantine
        Write bad rows to this CSV file, with their position and the reason.
    max_bad
        Maximum number (or percentage) of bad rows before stopping.
        [default: 0; no limit with --quarantine]
    samples
        Keep values of rows out of model file, bad rows, events and messages: no refused cells, examples, ranges of
        columns or held rows. Levels of categorical columns, classes and labels of clusters remain.
    skip_unreadable
        Skip files that cannot be read; each counts as one bad row.
    """

    group = "Reading files"
    format = option(type=click.Choice(["csv", "tsv", "jsonl", "parquet", "arrow", "csv.gz", "tsv.gz", "jsonl.gz"]))
    encoding = option(default="utf-8")
    delimiter = option()
    decimal = option(type=click.Choice([".", ","]), default=".")
    thousands = option(type=click.Choice([".", ",", " ", "'", "_"]))
    units = option(type=NAMES, default=())
    memory = option(type=BYTES, default="256MB")
    max_record = option(type=BYTES, default="16MB")
    quarantine = option(type=FILE)
    max_bad = option(type=MAX_BAD)
    samples = option("--no-samples", flag_value=False, default=True)
    skip_unreadable = option(is_flag=True)


class OutputOptions(Options):
    """Options about what a command says.

    Attributes
    ----------
    quiet
        Print nothing but errors.
    events
        Write progress events to this file, one JSON object per line.
    """

    group = "Output"
    quiet = option("-q", is_flag=True)
    events = option(type=FILE)


class StrictOption(Options):
    """The option that makes doubts an exit code.

    Attributes
    ----------
    strict
        End with exit code 8 if the headline has a doubt (!), after the output has been written: unknown levels, many
        rows refused, undetermined coefficients, a fit that has not converged, or predictions that were not judged or
        not found calibrated.
    """

    group = "Output"
    strict = option(is_flag=True)


def outputs(checkpoint: Path | None, quarantine: Path | None, events: Path | None) -> list[tuple[str, Path | None]]:
    """The files that these options of a command write, and how messages name them."""
    from kalprox.jobs.checkpoint import Checkpoint

    return [
        ("--checkpoint", checkpoint),
        ("the lock of --checkpoint", None if checkpoint is None else Checkpoint(checkpoint).lock_file),
        ("--quarantine", quarantine),
        ("--events", events),
    ]


def is_given(option: str) -> bool:
    """Whether an option is on the command line; the defaults are those of the estimator."""
    return click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT
