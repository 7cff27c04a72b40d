"""Checks of what the header of a model file or checkpoint says about a table, before objects are made of it."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from kalprox.base.tree import expect
from kalprox.jobs.record import FitRecord
from kalprox.sources.columns import Columns
from kalprox.sources.places import Cursor
from kalprox.sources.quarantine import BadRow
from kalprox.sources.table_columns import TableColumns

__all__ = ["checked_columns", "checked_cursor", "checked_places", "checked_record", "checked_state", "conforms"]


def conforms(hint: Any, value: Any) -> bool:
    """Whether a JSON value is what a field with this type hint was written as.

    A tuple is written as a list, and a dataclass as an object, of which fields with a default may be missing.
    """
    kind, args = get_origin(hint) or hint, get_args(hint)
    if hint is Any:
        return True
    if kind in (Union, UnionType):
        return any(conforms(arg, value) for arg in args)
    if kind in (list, tuple):
        return type(value) is list and all(conforms(args[0], item) for item in value)
    if kind in (dict, Mapping):
        return type(value) is dict and all(conforms(args[1], item) for item in value.values())
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return (
            type(value) is dict
            and value.keys() <= hints.keys()
            and all(conforms(hints[k], v) for k, v in value.items())
        )
    if kind is float:
        return type(value) in (int, float)
    if kind is int:
        return type(value) is int and value >= 0  # all are counts
    return type(value) is (NoneType if kind is None else kind)


def checked_columns(data: Any) -> TableColumns:
    """Return the columns of a table or of a formula from JSON; raise a ValueError if they are invalid."""
    kind: Any = Columns
    if isinstance(data, dict) and "terms" in data:
        from kalprox.sources.formula import FormulaColumns

        kind = FormulaColumns
    expect(conforms(kind, data))
    columns: TableColumns = kind.from_json(data)
    return columns


def checked_record(data: Any, columns: TableColumns) -> FitRecord:
    """Return the record of a fit to these columns from JSON; raise a ValueError if it is invalid."""
    if isinstance(data, dict) and "blocks" in data.get("history", ()):  # of 0.2: points at blocks, not at rows
        data = {**data, "history": FitRecord().to_json()["history"]}
    expect(conforms(FitRecord, data))
    record = FitRecord.from_json(data)
    history, quality = record.history, record.quality
    expect(len({len(column) for column in history._columns}) == 1 and history.stride >= 1)
    expect(len(quality.low) == len(quality.high) and len(quality.low) in (0, len(quality.total)))  # 0: no samples
    expect(len(quality.total) in (0, len(columns.names)))
    expect(len(quality.targets) in (0, len(columns.classes) if len(columns.classes) > 2 else 1))
    expect(_are_bad_rows(quality.first))
    expect(np.isfinite([*quality.total, *quality.targets, *history.squares]).all())
    expect(not np.isnan([*quality.low, *quality.high]).any())  # infinite for a column without values
    one_hot = {**columns.categorical, **columns.hashed}
    encoded = [i < len(columns.features) and columns.features[i] in one_hot for i in columns.groups]
    levels = [n for n, is_level in zip(quality.total, encoded, strict=False) if is_level]  # no totals before a good row
    expect(all(0 <= n <= quality.read for n in levels))
    return record


def checked_state(state: Any, columns: TableColumns) -> tuple[FitRecord, int, int, dict[str, Any]]:
    """Return the record, the rows read, the pass and the quarantine of a checkpoint of a fit to these columns."""
    record, quarantine = checked_record(state["account"], columns), state["quarantine"]
    expect(all(conforms(int, state[name]) for name in ("read", "number")))
    expect(all(conforms(int, quarantine[name]) for name in ("bytes", "bad", "read")))
    expect(conforms(int, quarantine.get("noted", 0)))
    expect(_are_bad_rows(quarantine["first"]))
    return record, state["read"], state["number"], quarantine


def checked_cursor(data: Any) -> Cursor:
    """Return a position in the files of a table from JSON; raise a ValueError if it is invalid."""
    expect(conforms(Cursor, data))
    return Cursor.from_json(data)


def checked_places(data: Any) -> list[tuple[str, int]]:
    """Return the files and numbers of rows from JSON; raise a ValueError if they are invalid."""
    expect(type(data) is list and all(type(pair) is list and len(pair) == 2 for pair in data))
    expect(all(conforms(str, file) and conforms(int, row) for file, row in data))
    return [(file, row) for file, row in data]


def _are_bad_rows(rows: Any) -> bool:
    return conforms(list[BadRow], rows) and all(len(row) == len(fields(BadRow)) for row in rows)
