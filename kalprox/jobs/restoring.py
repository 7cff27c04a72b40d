"""Checks of what the header of a model file or checkpoint says about a table, before objects are made of it."""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from kalprox.base.tree import expect
from kalprox.jobs.record import FitRecord
from kalprox.sources.columns import Columns
from kalprox.sources.quarantine import BadRow
from kalprox.sources.table_columns import TableColumns

__all__ = ["checked_columns", "checked_places", "checked_record", "checked_state", "from_json"]


def from_json(hint: Any, value: Any) -> Any:
    """Return what a field with this type hint held from the JSON value that was written; raise a ValueError for others.

    A tuple is written as a list, and a dataclass or a named tuple as an object, of which fields with a default may be
    missing.
    """
    kind, args = get_origin(hint) or hint, get_args(hint)
    if hint is Any:
        return value
    if kind in (Union, UnionType):
        given = NoneType if value is None else next(arg for arg in args if arg is not NoneType)  # X | None
        return from_json(given, value)
    if kind in (list, tuple):
        expect(type(value) is list)
        return kind(from_json(args[0], item) for item in value)
    if kind in (dict, Mapping):
        expect(type(value) is dict)
        return {key: from_json(args[1], item) for key, item in value.items()}
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
        expect(type(value) is dict and value.keys() <= set(names))
        hints = get_type_hints(kind)
        return kind(**{name: from_json(hints[name], item) for name, item in value.items()})
    if kind is float:
        expect(type(value) in (int, float))
    else:
        expect(type(value) is kind and (kind is not int or value >= 0))  # all integers are counts
    return value


def checked_columns(data: Any) -> TableColumns:
    """Return the columns of a table or of a formula from JSON; raise a ValueError if they are invalid."""
    kind: Any = Columns
    if isinstance(data, dict) and "terms" in data:
        from kalprox.sources.formula import FormulaColumns

        kind = FormulaColumns
    columns: TableColumns = from_json(kind, data)
    return columns


def checked_record(data: Any, columns: TableColumns) -> FitRecord:
    """Return the record of a fit to these columns from JSON; raise a ValueError if it is invalid."""
    if isinstance(data, dict) and "blocks" in data.get("history", ()):  # of 0.2: points at blocks, not at rows
        data = {**data, "history": asdict(FitRecord().history)}
    record: FitRecord = from_json(FitRecord, data)
    history, quality = record.history, record.quality
    expect(len({len(column) for column in history._columns}) == 1 and history.stride >= 1)
    expect(len(quality.low) == len(quality.high) and len(quality.low) in (0, len(quality.total)))  # 0: no samples
    expect(len(quality.total) in (0, len(columns.names)))
    expect(len(quality.targets) in (0, len(columns.classes) if len(columns.classes) > 2 else 1))
    _check_bad_rows(quality.first)
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
    counts = [quarantine[name] for name in ("bytes", "bad", "read")]
    from_json(list[int], [*counts, quarantine.get("noted", 0), state["read"], state["number"]])
    _check_bad_rows(quarantine["first"])
    return record, state["read"], state["number"], quarantine


def checked_places(data: Any) -> list[tuple[str, int]]:
    """Return the files and numbers of rows from JSON; raise a ValueError if they are invalid."""
    expect(type(data) is list and all(type(pair) is list and len(pair) == 2 for pair in data))
    return [(from_json(str, file), from_json(int, row)) for file, row in data]


def _check_bad_rows(rows: Any) -> None:
    from_json(list[BadRow], rows)
