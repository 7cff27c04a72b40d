"""Labels of clusters: the same text for the same value, whatever the type or the format that it comes in."""

import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from kalprox._arrays import Array

__all__ = ["Labels", "label_of", "labels_of"]

_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*")  # a whole number as a float is written
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?")
_EXACT = 1e16  # smaller whole numbers are written without an exponent


class Labels(NamedTuple):
    """The labels of some rows, and which of them have none."""

    labels: Array  # of str; "" where there is none
    missing: Array  # of bool


def label_of(value: Any) -> str | None:
    """The label of a value; None where the value is missing.

    Whole numbers, booleans, dates and times have one text each, whichever type they have or text they are read from.
    Other text is its own label.

    >>> [label_of(value) for value in (7, 7.0, "7.0", "007", True, "2013-01-01 00:00:00", float("nan"))]
    ['7', '7', '7', '007', 'true', '2013-01-01', None]
    """
    if value is None or value == "" or value != value:  # NaN differs from itself
        return None
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < _EXACT else repr(float(value))
    if isinstance(value, Decimal):
        value = format(value, "f")
    text = value.isoformat() if isinstance(value, date) else str(value)
    if text in ("True", "False"):
        return text.lower()
    if text in ("nan", "NaN"):
        return None
    if whole := _WHOLE.fullmatch(text):
        return whole[1]
    return _moment(text) if _DATE.fullmatch(text) else text


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
        distinct = found.tolist()
    labels = [label_of(value) for value in distinct]
    missing = np.array([label is None for label in labels], bool)
    return Labels(np.array([label or "" for label in labels], str)[codes], missing[codes])
