"""Text from data and file names, made safe for terminals and for spreadsheets; names and counts in sentences."""

import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping
from functools import partial

__all__ = [
    "MAX_NAME",
    "code",
    "count",
    "csv_cell",
    "csv_line",
    "from_csv_cell",
    "in_options",
    "names",
    "plain_number",
    "printable",
    "shorten",
]

MAX_NAME = 60  # characters of a name
MAX_NAMES = 5  # names in a sentence

_FORMULA = tuple("=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}") + (
    "\N{FULLWIDTH COMMERCIAL AT}",
)
_APART = r"(?<![\w`'\"/.-])"  # what does not stand before the name of a parameter: a letter, a quote, or part of a path
_VALUE = r"('[^'\n]*'|\"[^\"\n]*\"|[\w.%+-]*[\w%])"
_OTHER_VALUES = r"((?:, '[^'\n]*')*(?: or (?:'[^'\n]*'|None))?)"  # as in name='a', 'b' or None
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


def in_options(text: str, options: Mapping[str, str]) -> str:
    """Return a message of the library with the options of a command in place of the parameters of Python.

    Parameters are recognised in `name=value`, in "name must" at the beginning of a sentence, and where a name has an
    underscore, so that other words stay as they are.

    >>> in_options("max_bad must be a number. Use noise='learn' or None, standardize=True.", {
    ...     "max_bad": "--max-bad", "noise": "--noise", "standardize": "--standardize"
    ... })
    '--max-bad must be a number. Use --noise learn or none, --standardize.'
    """
    text = re.sub(r" \(--[^)]* on the command line\)", "", text)
    for name, option in options.items():
        text = re.sub(rf"{_APART}{name}(?:={_VALUE})? \(({option}[^)]*)\)", r"\2", text)  # already in both ways
        text = re.sub(rf"{_APART}{name}={_VALUE}{_OTHER_VALUES}", partial(_given, option), text)
        text = re.sub(rf"(?m)(^|(?<=[.:] )){name}(?= must )", option, text)
        if "_" in name:
            text = re.sub(rf"{_APART}{name}(?![\w=`'\"/]|\.\w)", option, text)
    return text


def _given(option: str, found: re.Match[str]) -> str:
    """Return an option with its value as a shell takes it, and with the other values that a sentence names."""
    value, others = found.groups()
    if value == "True":  # a flag
        return option
    value = shlex.quote(value[1:-1].replace("\\t", "\t")) if value[0] in "'\"" else value.replace("None", "none")
    return f"{option} {value}" + others.replace("'", "").replace("None", "none")
