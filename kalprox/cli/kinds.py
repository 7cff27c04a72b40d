"""Options whose values are entries of a registry, such as a penalty, with parameters: elasticnet,l1_ratio=0.2."""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple, get_args

import click

__all__ = ["Kind", "KindChoice", "NumberOrKind", "RegistryChoice"]

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
