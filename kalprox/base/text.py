"""Text from data and file names, made safe for terminals and spreadsheets; names, counts and parameters in messages."""

import re
import shlex
import unicodedata
from ast import literal_eval
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

MAX_NAME = 60  # characters of a name
MAX_NAMES = 5  # names in a sentence

_FORMULA = tuple("=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}") + (
    "\N{FULLWIDTH COMMERCIAL AT}",
)
_NUMBER = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|inf|nan)")


def printable(text: str, keep: str = "\n") -> str:
    r"""`text` with escapes for characters that a terminal acts upon: controls, and those that change the direction.

    >>> print(printable("a\x1b[31m\u202eb"))
    a\x1b[31m\u202eb
    """
    if text.isprintable():
        return text
    return "".join(c if _shows(c) or c in keep else c.encode("unicode_escape").decode() for c in text)


def _shows(c: str) -> bool:
    return c.isprintable() or unicodedata.category(c) == "Zs"


def csv_cell(text: str) -> str:
    """`text` as a cell that a spreadsheet does not take for a formula; `from_csv_cell` returns the text.

    A cell that begins with =, +, -, @, a tab, a line break, or their full-width forms, and is no number, gets an
    apostrophe in front. So does a cell that begins with an apostrophe, so that every cell can be read back.

    >>> [csv_cell(text) for text in ("=1+1", "-5", "'a", "a")]
    ["'=1+1", '-5', "''a", 'a']
    """
    if not text.startswith((*_FORMULA, "'")) or _NUMBER.fullmatch(text):
        return text
    return f"'{text}"


def csv_line(texts: Iterable[str]) -> str:
    """Texts as a line of a CSV file, each a `csv_cell`.

    Unlike those of `csv.writer` with lines that end in a newline, cells with a carriage return are quoted: readers take
    it for the end of a line.
    """
    cells = map(csv_cell, texts)
    quoted = ('"' + cell.replace('"', '""') + '"' if re.search('[",\r\n]', cell) else cell for cell in cells)
    return ",".join(quoted) + "\n"


def from_csv_cell(cell: str) -> str:
    """The text that `csv_cell` made a cell of.

    >>> from_csv_cell("'=1+1"), from_csv_cell("-5")
    ('=1+1', '-5')
    """
    return cell.removeprefix("'")


def shorten(name: str, width: int) -> str:
    """`name` on one line, with an ellipsis in its middle if it is longer than `width`.

    >>> shorten("a_very_long_name_of_a_column", 12)
    'a_very…olumn'
    """
    name = "".join(c if c.isprintable() else " " for c in name)
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def code(name: str) -> str:
    """`name` between backticks, as code is marked in Markdown, so that a page shows it literally."""
    return f"`{shorten(name, MAX_NAME).replace('`', chr(39))}`" if name.strip() else "(no name)"


def names(values: Iterable[str]) -> str:
    """The first names as a list in a sentence.

    >>> names("abcdefg")
    '`a`, `b`, `c`, `d`, `e` and 2 more'
    """
    values = list(values)
    shown = ", ".join(map(code, values[:MAX_NAMES]))
    return shown if len(values) <= MAX_NAMES else f"{shown} and {len(values) - MAX_NAMES:,} more"


def count(n: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "row"), count(12000, "row")
    ('1 row', '12,000 rows')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def plain_number(value: float) -> str:
    """A number with four significant digits, and all digits before the point, as people write it.

    >>> [plain_number(v) for v in (3, 0.05, -12.3456, 14210.7, 1.36e6, 2e-9)]
    ['3', '0.05', '-12.35', '14,211', '1,360,000', '2e-09']
    """
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e10 else f"{value:,.4g}"


class Part(NamedTuple):
    """A part of a message, in the words of Python and in those of the command line."""

    python: str
    option: str


class Text(str):
    """A message in the words of Python, which knows its parameters; see `worded` and `in_options`."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, *parts: Any) -> "Text":
        """Return the message of these parts, each a `Part`, a `Text`, or something else as text.

        >>> in_options(Text.of("use ", parameter("noise", "learn"), "."))
        'use --noise learn.'
        """
        flat: list[Part] = []
        for part in parts:
            plain = (part if isinstance(part, Part) else Part(str(part), str(part)),)
            flat += part.parts if isinstance(part, Text) else plain  # paths have parts, too
        text = cls("".join(part.python for part in flat))
        text.parts = tuple(flat)
        return text


def worded(message: str, *values: Any) -> Text:
    """Return a message with parameters, which a command says in its options.

    Braces enclose the name of a parameter, with a value or without; or words of Python and, after a bar, those of the
    command line; or nothing, where the next of the `values` stands.

    >>> text = worded("{max_bad} must be a number; got {}. {Call fit|Leave --passes 1 out}, with {noise='learn'}.", "a")
    >>> text
    "max_bad must be a number; got a. Call fit, with noise='learn'."
    >>> in_options(text)
    '--max-bad must be a number; got a. Leave --passes 1 out, with --noise learn.'
    """
    found, given = [], iter(values)
    for i, piece in enumerate(re.split(r"\{(.*?)\}", message)):
        name, equals, value = piece.partition("=")
        if i % 2 == 0:
            found.append(piece)
        elif not piece:
            found.append(next(given))
        elif "|" in piece:
            found.append(Part(*piece.split("|")))
        else:
            found.append(Part(piece, as_option(name, literal_eval(value) if equals else ...)))
    return Text.of(*found)


def in_options(message: str) -> str:
    """Return a message in the words of the command line."""
    return "".join(part.option for part in getattr(message, "parts", (Part("", message),)))


def parameter(name: str, value: Any) -> Part:
    """Return a parameter with its value, or alone if that is ..."""
    return Part(name if value is ... else f"{name}={value!r}", as_option(name, value))


# The options of parameters that have other names, and how some values are given.
_OPTIONS = {"hashed": "--hash", "max_passes": "--passes", "method": "--interval"}
_VALUES: dict[tuple[str, Any], str] = {
    ("structure", None): "no --structure",
    ("forget", 1): "no forgetting",
    ("samples", False): "--no-samples",
}


def as_option(name: str, value: Any) -> str:
    """Return how the command line says a parameter with its value, or a parameter alone if that is ...

    >>> as_option("missing", "impute"), as_option("change_points", False), as_option("structure", None)
    ('--missing impute', 'no --change-points', 'no --structure')
    >>> from kalprox.forgetting import Window
    >>> as_option("forget", Window(60))
    '--forget window,rows=60'
    """
    option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
    if is_dataclass(value) and hasattr(value, "name"):
        return f"{option} {_kind(value)}"
    if value is ... or not (value is None or isinstance(value, (str, float, int))):
        return option
    if (name, value) in _VALUES:
        return _VALUES[name, value]
    if isinstance(value, bool):
        return option if value else f"no {option}"
    return f"{option} {'none' if value is None else shlex.quote(str(value))}"


def _kind(kind: Any) -> str:
    """Return how an object is given on the command line.

    >>> from kalprox.forgetting import ByRow, ByTime
    >>> _kind(ByTime(7.0)), _kind(ByRow(0.99))
    ('time,half_life=7', '0.99')
    """
    values = {field.name: getattr(kind, field.name) for field in fields(kind)}
    numbers = {name: f"{value:.15g}" for name, value in values.items() if isinstance(value, (int, float))}
    if kind.name == "number":
        return ",".join(numbers.values())
    return ",".join([kind.name, *(f"{name}={number}" for name, number in numbers.items())])
