"""Labels of levels, classes and clusters: the same text for the same value, whatever its type or format.

A level is found however its value is spelled.
"""

import hashlib
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array

_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*")  # a whole number as a float is written
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?")
_TIME = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?")
_NUMBER = re.compile(
    r"[+-]?(0|[1-9][0-9]*)(\.[0-9]*([eE][+-]?[0-9]{1,3})?|[eE][+-][0-9]{1,3})?"
)  # neither 007 nor 1E5, which may be codes
_BLANKS = " \t\r\n"
_SAME = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false", "Infinity": "inf", "-Infinity": "-inf"}
_EXACT = 1e16  # smaller whole numbers are written without an exponent


class Labels(NamedTuple):
    """The labels of some rows, and which of them have none."""

    labels: Array  # of str; "" where there is none
    missing: Array  # of bool


def label_of(value: Any) -> str | None:
    """The label of a value; None where the value is missing.

    Whole numbers, booleans, dates and times have one text each, whichever type they have or text they are read from.
    Other text is its own label, without blanks around it.

    >>> [label_of(value) for value in (7, 7.0, "7.0", "007", True, "2013-01-01 00:00:00", "a ", float("nan"))]
    ['7', '7', '7', '007', 'true', '2013-01-01', 'a', None]
    """
    if isinstance(value, str):
        value = value.strip(_BLANKS)
    if value is None or value == "" or value != value:  # NaN differs from itself
        return None
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < _EXACT else repr(float(value))
    if isinstance(value, Decimal):
        value = format(value, "f")
    text = value.isoformat() if isinstance(value, date) else str(value)
    if text in ("nan", "NaN"):
        return None
    if whole := _WHOLE.fullmatch(text):
        return whole[1]
    if _TIME.fullmatch(text):
        return _time(text)
    return _moment(text) if _DATE.fullmatch(text) else _SAME.get(text, text)


def number_in(label: str) -> tuple[int, str, int] | None:
    """The number that a label spells, as a key that equal numbers share; None where the label spells no number.

    Text such as 007 or 1E5, which may be a code, spells no number.

    >>> number_in("1.10") == number_in("1.1"), number_in("+2.5e+3") == number_in("2500"), number_in("007")
    (True, True, None)
    """
    if not _NUMBER.fullmatch(label):
        return None
    sign, digits, exponent = Decimal(label).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    return (sign, significant, exponent + len(text) - len(significant)) if significant else (0, "", 0)


def _time(text: str) -> str:
    """A time of day; other text is returned as it is."""
    try:
        return str(time.fromisoformat(text))
    except ValueError:
        return text


def _moment(text: str) -> str:
    """A date, or a date and a time (in UTC if there is a time zone); other text is returned as it is."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return text
    return moment.isoformat(" ").removesuffix(" 00:00:00")


def labels_of(values: Any) -> Labels:
    """The labels of an array with one value for each row.

    >>> labels_of([3, 1, 3]).labels
    array(['3', '1', '3'], dtype='<U1')
    """
    values = np.asarray(values)
    if values.dtype.kind == "M":
        values = values.astype("datetime64[us]")
    if values.dtype.kind == "O":  # values of several types cannot be sorted
        places: dict[Any, int] = {}
        codes = np.array([places.setdefault(value, len(places)) for value in values.tolist()], int)
        distinct = list(places)
    else:
        found, codes = np.unique(values, return_inverse=True)
        short = found.dtype.kind == "f" and found.dtype.itemsize < 8
        distinct = (found.astype(str).astype(float) if short else found).tolist()  # float32's 0.1 is 0.1
    labels = [label_of(value) for value in distinct]
    missing = np.array([label is None for label in labels], bool)
    return Labels(np.array([label or "" for label in labels], str)[codes], missing[codes])


def plain_labels(values: Any) -> np.ndarray:
    """Return the labels of classes as an array of numbers, booleans or objects, with None for missing text.

    >>> plain_labels(["yes", None]), plain_labels(np.array([1, 0]))
    (array(['yes', None], dtype=object), array([1, 0]))
    """
    found = np.asarray(values)
    if found.dtype.kind in "fiub":
        return found
    labels = np.empty(len(found), object)
    labels[:] = [None if one is None or not _is_itself(one) else one for one in found.tolist()]
    return labels


def _is_itself(value: Any) -> bool:
    """Whether a value equals itself, as NaN and pandas.NA do not."""
    same = value == value
    return isinstance(same, (bool, np.bool_)) and bool(same)


def missing_labels(labels: np.ndarray) -> np.ndarray:
    """Return which of the labels that `plain_labels` returned are missing.

    >>> missing_labels(plain_labels([1.0, np.nan]))
    array([False,  True])
    """
    if labels.dtype.kind == "O":
        return np.array([one is None for one in labels], bool)
    return np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(len(labels), bool)


class LevelIndex:
    """Finds the number of a level by its text, else by its label, else by the number that it spells.

    The text comes first, so that a model whose levels differ only in their spelling, such as "1" and "1.0", tells them
    apart. Any other text, such as "1.00", is then the same value as both of them, and is not found.

    Parameters
    ----------
    levels : dict of str to int
        The number of each level.
    any_case : bool
        Whether a level that is not found is looked for in upper and lower case.
    """

    def __init__(self, levels: Mapping[str, int], *, any_case: bool = False) -> None:
        self._by_text = {level.encode("utf-8", "surrogatepass"): number for level, number in levels.items()}
        labels: dict[str, Any] = {level: label_of(level) for level in levels}
        self._by_label = _unique(levels, labels.get)
        self._by_number = _unique(levels, lambda level: labels[level] and number_in(labels[level]))
        self._by_case = _unique(levels, lambda level: labels[level] and labels[level].casefold()) if any_case else {}

    def find(self, text: bytes | None, label: str | None = None) -> int | None:
        """The number of the level with this text, or with this label; None where there is none."""
        if text is not None and (found := self._by_text.get(text)) is not None:
            return found
        if label is None:
            return None
        found = self._by_text.get(label.encode("utf-8", "surrogatepass"), self._by_label.get(label))
        found = self._by_number.get(number_in(label)) if found is None else found
        return self._by_case.get(label.casefold()) if found is None else found


def in_order(levels: Iterable[str]) -> tuple[str, ...]:
    """The levels sorted by their values where all are numbers, else by their text.

    >>> in_order(["10", "9.5", "2"]), in_order(["10", "9E", "2"])
    (('2', '9.5', '10'), ('10', '2', '9E'))
    """
    texts = sorted(levels)
    return tuple(sorted(texts, key=Decimal) if all(map(number_in, texts)) else texts)


def same_levels(levels: Iterable[str]) -> tuple[str, str] | None:
    """The first two of some levels that are the same value, spelled in two ways; None where all are different."""
    seen: dict[str | None, str] = {}
    for level in levels:
        label = label_of(level)
        if label in seen:
            return seen[label], level
        seen[label] = level
    return None


def level_hash(label: str) -> int:
    """The hash of a level: the BLAKE2b digest, of 6 bytes, of its label in UTF-8, as a little-endian integer.

    It is the same in every process and version, because the bins of a hashed column in model files depend on it.

    >>> level_hash("UA") % 1024
    992
    """
    data = label.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "little")


def _unique(levels: Mapping[str, int], key: Callable[[str], Hashable]) -> dict[Hashable, int]:
    """The number of each level by its key, without the keys that several levels have, and without None."""
    found: dict[Hashable, int | None] = {}
    for level, number in levels.items():
        found[key(level)] = number if key(level) not in found else None
    return {k: number for k, number in found.items() if k is not None and number is not None}
