"""Options of `kalprox fit` about forgetting: by row, by time, in a window, or as a random walk."""

from collections.abc import Callable
from typing import Any

import click

from kalprox.cli.options import HALF_LIFE, Kind, NumberOrKind, is_given, with_options

__all__ = ["forgetting_options", "forgetting_setting"]

_DAYS = {"s": 1 / 86400, "min": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0}  # of the units of a half-life
_KINDS = ("forget", "half_life", "window", "walk")


def forgetting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about forgetting."""
    return with_options(
        command,
        click.option(
            "--forget",
            type=NumberOrKind("kalprox.forgetting", "FORGETTINGS", "auto"),
            default=1.0,
            help="Forgetting factor: every row multiplies the weights of the rows before it by this number. auto mixes "
            "several ways to forget by how well each predicts. A kind of forgetting has parameters, such as "
            "window,rows=1000.",
        ),
        click.option(
            "--time",
            metavar="COLUMN",
            help="Column of the times of the rows, numbers or dates, in order; for --half-life.",
        ),
        click.option(
            "--half-life",
            type=HALF_LIFE,
            help="Forget by time: the weight of a row is halved after this time, in the units of --time; in days for "
            "dates, or with a unit, such as 12h.",
        ),
        click.option(
            "--window", type=click.IntRange(min=2), metavar="ROWS", help="Learn the last ROWS rows only, exactly."
        ),
        click.option(
            "--walk",
            type=click.FloatRange(min=0),
            metavar="Q",
            help="Let every coefficient walk: the variance of its step before each row, in units of the noise "
            "variance.",
        ),
        click.option(
            "--walk-intercept",
            type=click.FloatRange(min=0),
            metavar="Q",
            help="The same for the intercept; without --walk, the other coefficients stay.  [default: that of --walk]",
        ),
    )


def forgetting_setting(columns: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The parameter `forget` of the estimator, from the options."""
    from kalprox import forgetting

    kinds = [f"--{name.replace('_', '-')}" for name in _KINDS if given[name] is not None and is_given(name)]
    kinds += ["--walk-intercept"] if given["walk_intercept"] is not None and given["walk"] is None else []
    if len(kinds) > 1:
        raise click.UsageError(f"{' and '.join(kinds)} are different kinds of forgetting: choose one of them.")
    if isinstance(given["forget"], Kind):
        kind = given["forget"].made(forgetting.FORGETTINGS, "--forget")
        if kind.needs_times and columns.time is None:
            raise click.UsageError(f"--forget {given['forget'].name} requires --time, the column of their times.")
        return {"forget": kind}
    if given["half_life"] is None and columns.time is not None:
        raise click.UsageError("--time requires --half-life, the time after which the weight of a row is halved.")
    if given["half_life"] is not None:
        if columns.time is None:
            raise click.UsageError("--half-life requires --time, the column of the times of the rows.")
        if given["shuffle"] is not None:
            raise click.UsageError("--shuffle changes the order of the rows, which --time needs: leave it out.")
        number, unit = given["half_life"]
        if unit and not columns.time_is_date:
            raise click.UsageError(
                f"--half-life {number:g}{unit} has a unit, and column {columns.time!r} holds numbers: give the "
                "half-life in their units."
            )
        return {"forget": forgetting.ByTime(number * _DAYS[unit or "d"] if columns.time_is_date else number)}
    if given["window"] is not None:
        return {"forget": forgetting.Window(given["window"])}
    if given["walk"] is not None or given["walk_intercept"] is not None:
        return {"forget": forgetting.RandomWalk(given["walk"] or 0.0, given["walk_intercept"])}
    return {"forget": given["forget"]}
