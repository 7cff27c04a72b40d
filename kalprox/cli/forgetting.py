"""Options of `kalprox fit` about forgetting: by row, by time, in a window, or as a random walk."""

from datetime import timedelta
from typing import Any

import click

from kalprox.cli.grouped import grouped
from kalprox.cli.kinds import Kind, KindOption, NumberOrKind

__all__ = ["forgetting_options", "forgetting_setting"]

forgetting_options = grouped(
    "Forgetting",
    click.option(
        "--forget",
        cls=KindOption,
        type=NumberOrKind("kalprox.forgetting", "FORGETTINGS", "auto"),
        default=1.0,
        help="How old rows are forgotten. A number in (0, 1] is a forgetting factor: every row multiplies the weights "
        "of the rows before it by this number. auto mixes several ways to forget by how well each predicts. "
        "Other kinds follow.",
    ),
    click.option(
        "--time",
        metavar="COLUMN",
        help="Column of the times of the rows, numbers or dates, in order; for --forget time,half_life=7d.",
    ),
)


def forgetting_setting(columns: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The parameter `forget` of the estimator, from the options."""
    from kalprox.forgetting import FORGETTINGS

    forget = given["forget"]
    kind = forget.made(FORGETTINGS, "--forget") if isinstance(forget, Kind) else None
    if kind is None or not kind.needs_times:
        if columns.time is not None:
            raise click.UsageError("--time is for forgetting by time: give --forget time,half_life=... too.")
        return {"forget": forget if kind is None else kind}
    if columns.time is None:
        raise click.UsageError(f"--forget {forget.name} requires --time, the column of the times of the rows.")
    if given["shuffle"] is not None:
        raise click.UsageError("--shuffle changes the order of the rows, which --time needs: leave it out.")
    has_unit = any(isinstance(value, timedelta) for value in forget.parameters.values())
    if has_unit and not columns.time_is_date:
        raise click.UsageError(
            f"The time of --forget {forget.name} has a unit, and column {columns.time!r} holds numbers: give it in "
            "their units."
        )
    return {"forget": kind}
