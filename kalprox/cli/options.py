"""Types of option values, and options that several commands share."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from kalprox.cli.grouped import Options, option

__all__ = [
    "BYTES",
    "COUNT",
    "EXISTING",
    "FILE",
    "LEVEL",
    "MAX_BAD",
    "NAMES",
    "PACE",
    "READING",
    "NumberOr",
    "OutputOptions",
    "Pace",
    "ReadingOptions",
    "StrictOption",
    "is_given",
    "outputs",
]


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
