"""How numbers are written as text: the decimal mark, the mark between thousands, and units that stand with them."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.text import Text, parameter, worded
from kalprox.sources.arrow import from_bytes, is_text, pa, pc, plain, to_numpy
from kalprox.sources.cells import EMPTY_CELL, MISSING_CELLS, UNITS, shown, units_of, why_invalid
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Cell

_THOUSANDS = (".", ",", " ", "'", "_")
_SPACES = "(?: |\u00a0|\u202f)"  # the spaces that programs put between thousands
_WORDS = r"(?i)^[ \t]*[+-]?(nan|inf|infinity)[ \t]*$"
_NULL = pa.nulls(1, pa.binary())[0]
_SIGNS = r"(?:\$|€|£|¥|EUR|USD|GBP|CHF|JPY)"


@dataclass(frozen=True)
class Notation:
    """The decimal mark of numbers, the mark between thousands, and the units that may stand with them.

    Parameters
    ----------
    decimal : {".", ","}
    thousands : {".", ",", " ", "'", "_"}, optional
        Three digits must follow each of these marks; a space may be a no-break space. By default there are none.
    units : tuple of str
        Texts that may stand before or after a number, and are left out, such as "lbs", "$" or "%": 12% is read as 12.
    """

    decimal: str = "."
    thousands: str | None = None
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise SourceError(f"decimal must be . or , (the decimal mark of numbers in text); got {self.decimal!r}.")
        if self.thousands is not None and self.thousands not in _THOUSANDS:
            known = " ".join(map(repr, _THOUSANDS))
            raise SourceError(f"thousands must be one of {known} (the mark between thousands); got {self.thousands!r}.")
        if self.thousands == self.decimal:
            other = "," if self.decimal == "." else "."
            raise SourceError.worded(
                f"{{thousands}} must differ from the decimal mark, which is {self.decimal!r}: 1{self.decimal}234 "
                f"would be two numbers. If numbers are written as 1{self.decimal}234{other}5, give "
                f"{{decimal={other!r}}} as well."
            )
        for unit in self.units:
            if not unit.strip() or re.search(r"[0-9,+-]|^[ \t]*\.", unit):
                raise SourceError.worded(
                    "{units} must be texts without digits, signs and marks, such as lbs; got {}.", repr(unit)
                )

    @property
    def is_plain(self) -> bool:
        """Whether numbers are written as in Python: with a point, without marks between thousands and units."""
        return self == PLAIN

    @property
    def pattern(self) -> str:
        """A regular expression that a number in this notation matches."""
        mark, whole = re.escape(self.decimal), "[0-9]+"
        if self.thousands is not None:
            whole = rf"(?:[0-9]+|[0-9]{{1,3}}(?:{self._mark}[0-9]{{3}})+)"
        return rf"(?i)^[ \t]*[+-]?({whole}(?:{mark}[0-9]*)?|{mark}[0-9]+)(e[+-]?[0-9]+)?[ \t]*$"

    @property
    def _mark(self) -> str:
        return _SPACES if self.thousands == " " else re.escape(self.thousands or "")

    def plain_numbers(self, column: Any) -> tuple[Any, np.ndarray]:
        """A column of text with its numbers in plain notation, and the positions of cells that are no numbers.

        Missing cells, and words such as nan, stay as they are. A cell that is no number in this notation becomes null.
        """
        cells = plain(column).fill_null(EMPTY_CELL)
        text = self._without_units(cells)
        good = pc.match_substring_regex(text, self.pattern)
        others = pc.or_(pc.match_substring_regex(cells, _WORDS), pc.is_in(cells, MISSING_CELLS))
        if self.thousands is not None:
            text = pc.replace_substring_regex(text, self._mark, "")
        text = pc.replace_substring(text, self.decimal, ".") if self.decimal != "." else text
        text = pc.if_else(good, text, pc.if_else(others, cells, _NULL))
        return text, np.flatnonzero(~to_numpy(pc.or_(good, others)))

    def _without_units(self, cells: Any) -> Any:
        """The cells of a column without the units before and after their numbers."""
        if not self.units:
            return cells
        units = "|".join(re.escape(unit.strip()) for unit in sorted(self.units, key=len, reverse=True))
        before, after = _beside(units)
        return pc.replace_substring_regex(pc.replace_substring_regex(cells, before, r"\1\2"), after, r"\1")

    def _units_of(self, column: Any) -> list[str]:
        """The units that stand with numbers in a column."""
        names = dict.fromkeys(unit.strip() for unit in self.units)
        cells = pc.unique(column.drop_null())
        return [
            unit
            for unit in names
            if pc.any(pc.match_substring_regex(cells, "|".join(_beside(re.escape(unit))))).as_py()
        ]

    def plain_table(self, table: Any, numbers: Sequence[str]) -> tuple[Any, list[Cell]]:
        """A table with the numbers of its columns of text `numbers` in plain notation, and the cells that are none.

        The metadata of its schema have the units of each column; see `units_of`.
        """
        bad: list[Cell] = []
        if self.is_plain:
            return table, bad
        arrays, units = dict(zip(table.schema.names, table.columns, strict=True)), units_of(table)
        for name in numbers:
            column = plain(arrays[name])
            if is_text(column.type):
                if found := self._units_of(column):
                    units[name] = tuple(found)
                arrays[name], at = self.plain_numbers(column)
                bad += [Cell(i, name, why_invalid(column[i].as_py()), shown(column, i)) for i in at.tolist()]
        found = pa.table(list(arrays.values()), names=list(arrays))
        return found.replace_schema_metadata({UNITS: json.dumps(units)} if units else None), bad


def _beside(units: str) -> tuple[str, str]:
    """Regular expressions of a number behind and before one of these units, which are a regular expression.

    A number behind a unit begins with a digit: "Rs.500" is 500 with the unit "Rs.", and not .500 with the unit "Rs".
    """
    blanks = rf"(?:[ \t]|{_SPACES})*"
    return rf"^([ \t]*[+-]?)(?:{units}){blanks}([+-]?[0-9])", rf"([0-9.,]){blanks}(?:{units})[ \t]*$"


PLAIN = Notation()


class Likeness(NamedTuple):
    """What the cells of a column of text look like, an example, and what to change."""

    what: str
    example: str
    remedy: str

    def text(self, *, samples: bool) -> str:
        """The likeness in words with what to change, and with the example if `samples`."""
        return Text.of(self.what, f", such as {self.example!r}. " if samples else ". ", self.remedy)


def likeness(column: Any) -> Likeness | None:
    """What most cells of a column of text look like, where that is a number or a date of another notation."""
    cells = pc.unique(plain(column).drop_null())
    cells = cells.filter(pc.invert(pc.is_in(cells, MISSING_CELLS)))
    if not len(cells):
        return None

    def matching(pattern: str) -> np.ndarray:
        return np.flatnonzero(to_numpy(pc.match_substring_regex(cells, pattern)))

    found = [(len(matching(notation.pattern)), notation) for notation in _NOTATIONS]
    most = max(count for count, _ in found)
    if 2 * most >= len(cells):
        fitting = [notation for count, notation in found if count == most]
        return _number(fitting, max((shown(cells, i) for i in matching(fitting[0].pattern)[:100].tolist()), key=len))
    at = matching(_DATES)
    if 2 * len(at) >= len(cells):
        return Likeness("dates that are not in ISO 8601", shown(cells, int(at[0])), "Write them as 2020-12-31.")
    texts = [cell.decode("utf-8", "replace") for cell in cells.to_pylist()]
    return next(filter(None, (_with_unit(texts, *kind) for kind in _KINDS)), None)


def _with_unit(texts: list[str], pattern: str, what: str, few: int) -> Likeness | None:
    """The likeness of different cells, most of which are a number and one unit; None if they are as few as levels."""
    found = [match for text in texts if (match := re.fullmatch(pattern, text))]
    (unit, count), *_ = Counter(match["unit"] for match in found).most_common(1) or [("", 0)]
    if count <= few or 2 * count < len(texts):
        return None
    chosen = [match for match in found if match["unit"] == unit]
    numbers = from_bytes([match["number"].encode() for match in chosen])
    marks = None if pc.all(pc.match_substring_regex(numbers, PLAIN.pattern)).as_py() else likeness(numbers)
    remedy = worded("Use {} to read them as numbers, or write them without it.", parameter("units", unit))
    example = max(chosen, key=lambda match: len(match["number"]))[0]
    return Likeness(what, example, Text.of(remedy, " ", marks.remedy) if marks else remedy)


_NOTATIONS = [
    *(PLAIN, Notation(","), Notation(".", ","), Notation(",", "."), Notation(".", " "), Notation(",", " ")),
    *(Notation(".", "'"), Notation(",", "'"), Notation(".", "_")),
]
_FEW_LEVELS = 10  # such as those of 4cyl, 6cyl and 8cyl
_AMOUNT = r"(?P<number>[+-]?[0-9][0-9.,' ]*?)"
_KINDS = [  # a pattern of a number and a unit, what such cells are, and how many different ones may be levels
    (rf"\s*{_AMOUNT} ?(?P<unit>%)\s*", "percentages", 0),
    (rf"\s*[+-]?(?P<unit>{_SIGNS}) ?{_AMOUNT}\s*", "amounts with a currency sign", 0),
    (rf"\s*{_AMOUNT} ?(?P<unit>{_SIGNS})\s*", "amounts with a currency sign", 0),
    (rf"\s*{_AMOUNT}\s*(?P<unit>[^\d\s.,'+-][^\d,']{{0,19}}?)\s*", "numbers with a unit", _FEW_LEVELS),
]
_DATES = r"^[ \t]*([0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{2,4}|[0-9]{4}[./][0-9]{1,2}[./][0-9]{1,2})([ T][0-9:.]+)?[ \t]*$"


def _number(fitting: list[Notation], example: str) -> Likeness:
    """The likeness of numbers that are in all of these notations, the simplest first."""
    first = fitting[0]
    if first.is_plain:  # and another notation was asked for
        remedy = worded("Use {decimal='.'} without {thousands} to read them.")
        return Likeness("numbers with a decimal point", example, remedy)
    if Notation(".", ",") in fitting[1:]:
        remedy = worded(
            "Use {decimal=','} if the comma is a decimal mark, or {thousands=','} if it stands between thousands."
        )
        return Likeness("numbers with commas", example, remedy)
    marks = [] if first.thousands is None else ["marks between thousands"]
    given = "" if first.thousands is None else f" {{thousands={first.thousands!r}}}"
    if first.decimal != ".":
        marks, given = ["decimal commas", *marks], f" {{decimal={first.decimal!r}}}{given}"
    return Likeness(f"numbers with {' and '.join(marks)}", example, worded(f"Use{given} to read them."))
