"""Finding the delimiter of a CSV file."""

import csv
import io
import re

__all__ = ["DELIMITERS", "find_delimiter", "first_records"]

DELIMITERS = (",", ";", "\t", "|")  # that are found
_LOOK = 25  # records that are looked at


def first_records(text: str, delimiter: str, *, whole: bool) -> list[list[str]]:
    """The fields of the first records of a text; unless `whole`, the last record may be cut, and is left out."""
    found: list[list[str]] = []
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for row in rows:
            if row:
                found.append(row)
            if len(found) > _LOOK:
                break
    except csv.Error:  # a field that is too long, or an odd character
        pass
    return found if whole or len(found) > _LOOK else found[: max(1, len(found) - 1)]


def find_delimiter(text: str, default: str, *, whole: bool) -> str:
    """The delimiter of a CSV file: the one with which the first records have as many fields as the header.

    Parameters
    ----------
    text : str
        The beginning of the file.
    default : str
        The delimiter of a file with a single column, and where nothing tells two delimiters apart.
    whole : bool
        Whether `text` is the whole file.
    """
    header = re.split(r"[\r\n]", text, maxsplit=1)[0]
    there = [mark for mark in (default, *DELIMITERS) if mark in header]
    if len(set(there)) <= 1:
        return there[0] if there else default

    def fit(mark: str) -> tuple[float, int, bool]:
        first, *others = first_records(text, mark, whole=whole) or [[]]
        same = sum(len(row) == len(first) for row in others) / len(others) if others else 1.0
        return (same, len(first), mark == default) if len(first) > 1 else (0.0, 0, mark == default)

    return max(dict.fromkeys(there), key=fit)
