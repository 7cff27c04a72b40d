"""Options and values that several commands take."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

__all__ = ["BYTES", "NAMES", "output", "reading"]


class Names(click.ParamType):
    """Names with commas between them."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        found = tuple(name.strip() for name in value.split(",") if name.strip())
        if not found:
            self.fail("expected names with commas between them, such as a,b,c.", param, ctx)
        return found


class Bytes(click.ParamType):
    """A size such as 512MB or 2GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", value.strip().lower())
        if not found or float(found[1]) <= 0:
            self.fail(f"expected a size such as 512MB or 2GB; got {value!r}.", param, ctx)
        return int(float(found[1]) * (1 << 10 * " kmgt".index(found[2] or " ")))


class Bad(click.ParamType):
    """A number of rows, or a share of them such as 1%."""

    name = "number|share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"\d+|(\d\d?(\.\d*)?|100)%", value):
            self.fail(f"expected a number of rows or a share such as 1%; got {value!r}.", param, ctx)
        return value


NAMES, BYTES = Names(), Bytes()


def reading(command: Callable) -> Callable:
    """How files are read, and what becomes of bad rows."""
    for option in reversed(
        (
            click.option(
                "--format",
                type=click.Choice(["csv", "tsv", "jsonl", "parquet", "arrow", "csv.gz", "tsv.gz", "jsonl.gz"]),
                help="Format of the files.  [default: by their suffixes; csv for -]",
            ),
            click.option("--encoding", default="utf-8", help="Of text files."),
            click.option("--delimiter", help="Between the fields of CSV files.  [default: comma; tab for tsv]"),
            click.option(
                "--memory",
                type=BYTES,
                default="256MB",
                help="Of all blocks of rows in flight; d^2 numbers come on top.",
            ),
            click.option(
                "--quarantine", type=click.Path(dir_okay=False, path_type=Path), help="CSV file for bad rows."
            ),
            click.option(
                "--max-bad",
                type=Bad(),
                help="Bad rows to bear: a number, or a share such as 1%.  [default: 0; all with --quarantine]",
            ),
            click.option(
                "--skip-unreadable", is_flag=True, help="Skip files that cannot be read, as one bad row each."
            ),
        )
    ):
        command = option(command)
    return command


def output(command: Callable) -> Callable:
    """What is said while a command runs."""
    for option in reversed(
        (
            click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors."),
            click.option(
                "--events",
                type=click.Path(dir_okay=False, path_type=Path),
                help="Write what happens to this file, one JSON object a line.",
            ),
        )
    ):
        command = option(command)
    return command
