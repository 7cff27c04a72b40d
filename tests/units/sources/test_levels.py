"""One spelling of a value: a level is the same level whatever the format, the type or the text that it comes in."""

import datetime
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from kalprox.engines.partitions import FramePartition
from kalprox.sources.columns import Columns
from kalprox.sources.files import SourceError
from kalprox.sources.labels import LevelIndex, same_levels
from kalprox.sources.quarantine import Reason
from kalprox.sources.table import Table

FORMATS = ("csv", "parquet", "arrow", "jsonl")
MOMENT = datetime.datetime(2013, 1, 1, 5, 30)
DAY = datetime.timedelta(days=1)
KINDS = {
    "bool": pa.array([True, False, True, False]),
    "int": pa.array([1, 2, 30, 1]),
    "small int": pa.array([1, 2, 30, 1], pa.int8()),
    "id above 2^53": pa.array([2**53, 2**53 + 1, 2**60 + 1, 2**53]),
    "id above 2^63": pa.array([2**63 + 1, 2**63 + 3, 2**63 + 5, 1], pa.uint64()),
    "whole float": pa.array([1.0, 2.0, 30.0, 1.0]),
    "float": pa.array([0.1, 2.5, 1e-7, 1e20]),
    "large float": pa.array([123456789012.0, 1.5e30, 0.25, 2.0]),
    "float32": pa.array([0.1, 2.5, 1 / 3, 2.0], pa.float32()),
    "decimal": pa.array([Decimal("1.10"), Decimal("2.00"), Decimal("3.25"), Decimal("1.10")]),
    "date": pa.array([MOMENT.date(), (MOMENT + DAY).date(), MOMENT.date(), (MOMENT + DAY).date()]),
    "timestamp": pa.array([MOMENT, MOMENT + DAY, MOMENT + DAY / 48, MOMENT], pa.timestamp("us")),
    "timestamp, ns": pa.array([MOMENT, MOMENT + DAY, MOMENT + DAY / 48, MOMENT], pa.timestamp("ns")),
    "timestamp at midnight": pa.array([datetime.datetime(2013, 1, day) for day in (1, 2, 3, 1)], pa.timestamp("ms")),
    "timestamp with a zone": pa.array(
        [MOMENT, MOMENT + DAY, MOMENT + DAY / 48, MOMENT], pa.timestamp("us", "Asia/Tokyo")
    ),
    "time": pa.array(
        [MOMENT.time(), datetime.time(6, 0, 0, 500_000), datetime.time(7), MOMENT.time()], pa.time64("us")
    ),
    "text": pa.array(["a", "b", "é", "a"]),
    "blanks": pa.array(["a ", "b", " c", "a"]),
    "words": pa.array(["True", "FALSE", "true", "NA"]),
    "codes": pa.array(["007", "1E5", "7", "x"]),
    "whole numbers as text": pa.array(["1", "2.0", "x", "1.0"]),
    "dictionary": pa.array(["a", "b", "c", "a"]).dictionary_encode(),
    "dictionary of ints": pa.array([1, 2, 3, 1]).dictionary_encode(),
    "null": pa.array(["a", None, "b", "a"]),
    "null int": pa.array([1, None, 2, 1]),
    "null float": pa.array([1.0, None, 2.0, 1.0]),
    "empty": pa.array(["a", "", "b", "a"]),
    "NA": pa.array(["a", "NA", "b", "a"]),
}


def as_json(value):
    return (
        value
        if isinstance(value, bool | int | float | str | None)
        else str(value)
        if not isinstance(value, Decimal)
        else float(value)
    )


def write(folder, column, form):
    """A file with the column "c", and a target; its rows in JSON lines as Python writes them."""
    table = pa.table({"y": np.arange(float(len(column))), "c": column})
    path = folder / f"data.{form}"
    if form == "csv":
        pa.csv.write_csv(
            table.set_column(1, "c", column.dictionary_decode()) if pa.types.is_dictionary(column.type) else table, path
        )
    elif form == "parquet":
        pa.parquet.write_table(table, path)
    elif form == "arrow":
        pa.feather.write_feather(table, str(path))
    else:
        short = column.type == pa.float32()
        values = [float(str(np.float32(v))) if short else as_json(v) for v in column.to_pylist()]
        lines = [{"y": y, "c": c} for y, c in zip(table["y"].to_pylist(), values, strict=True)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path, columns):
    """The rows of a file: their X, which of them are good, and how many levels are unknown."""
    blocks = list(Table([path], columns).blocks())
    unknown = sum(note.count for block in blocks for note in block.notes.unknown.values())
    reasons = [row.reason for block in blocks for row in block.bad]
    return (
        np.concatenate([block.X for block in blocks]),
        [block.place.good.tolist() for block in blocks],
        unknown,
        reasons,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_one_format_read_every_other(kind, tmp_path):
    """All 4 x 4 pairs: the levels that one format has are those of the others, and a missing cell is one in all."""
    paths = {form: write(tmp_path, KINDS[kind], form) for form in FORMATS}
    for fitted in FORMATS:
        columns = Columns.infer([paths[fitted]], "y", categorical=["c"], contrast="full")
        X, good, unknown, reasons = read(paths[fitted], columns)
        assert unknown == 0 and (X.sum(axis=1) == 1).all() and set(reasons) <= {Reason.MISSING}
        for form in FORMATS:
            found = read(paths[form], columns)
            assert found[2:] == (0, reasons), (fitted, form, columns.categorical)
            np.testing.assert_array_equal(found[0], X, f"{fitted} -> {form}")
            assert found[1] == good


@pytest.mark.parametrize(
    "kind", ["bool", "int", "float", "decimal", "null int", "id above 2^53", "small int", "float32"]
)
def test_numeric_columns_of_one_format_read_every_other(kind, tmp_path):
    """Inferred, not named: booleans are numbers in a format that has them, levels in CSV."""
    paths = {form: write(tmp_path, KINDS[kind], form) for form in FORMATS}
    for fitted in FORMATS:
        columns = Columns.infer([paths[fitted]], "y")
        assert (fitted == "csv" and kind == "bool") == bool(columns.categorical)
        X, good, _, reasons = read(paths[fitted], columns)
        for form in FORMATS:
            found = read(paths[form], columns)
            np.testing.assert_allclose(
                found[0], X, rtol=1e-7 if kind == "float32" else 0, err_msg=f"{fitted} -> {form}"
            )
            assert found[1:] == (good, 0, reasons)


@pytest.mark.parametrize(
    "cells",
    [
        ["true", "false", "TRUE", "False"],
        ["1", "2.0", "30", "1.0"],
        ["a", "b ", "a\t", "b"],
        ["2013-01-01", "2013-01-02T00:00:00", "x", "2013-01-01 00:00"],
    ],
    ids=str,
)
def test_spellings_in_one_csv_file_are_one_level(cells, tmp_path):
    (tmp_path / "a.csv").write_text("y,c\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells)))
    columns = Columns.infer([tmp_path / "a.csv"], "y", categorical=["c"], contrast="full")
    assert len(columns.categorical["c"]) == len({*columns.categorical["c"]}) < 4
    X, *_, unknown, _ = read(tmp_path / "a.csv", columns)
    assert unknown == 0 and (X.sum(axis=1) == 1).all()


def test_frames_in_memory_have_the_same_levels(tmp_path):
    columns = Columns.infer([write(tmp_path, KINDS["bool"], "csv")], "y", categorical=["c"], contrast="full")
    X = read(tmp_path / "data.csv", columns)[0]
    y = np.arange(4.0)
    for cells in (
        [True, False, True, False],
        ["True", "False", "TRUE", "false "],
        pd.Categorical(["true", "false", "true", "false"]),
    ):
        (block,) = FramePartition(pd.DataFrame({"y": y, "c": cells}), columns).blocks()
        np.testing.assert_array_equal(block.X, X)


def test_levels_that_differ_in_their_spelling_alone_are_told_apart_by_it():
    """As in a model of version 0.1: the text comes first, and other spellings of both are not found."""
    levels = LevelIndex({"1": 0, "1.0": 1, "1.10": 2, "1.1": 3, "x ": 4, "nan": 5})
    assert [
        levels.find(text, label) for text, label in ((b"1", "1"), (b"1.0", "1"), (b"1.10", "1.10"), (None, "1.1"))
    ] == [0, 1, 2, 3]
    assert levels.find(b"1.00", "1") == 0  # as its label is spelled
    assert levels.find(b"1.100", "1.100") is None
    assert levels.find(b"x", "x") == 4 and levels.find(b"nan", None) == 5


@pytest.mark.parametrize(
    ("levels", "same"), [(["a", "b"], None), (["1", "2", "1.0"], ("1", "1.0")), (["True", "true"], ("True", "true"))]
)
def test_levels_that_are_the_same_value(levels, same):
    assert same_levels(levels) == same


def test_versions_are_no_numbers(tmp_path):
    """1.1 and 1.10 are two levels where a column has both of them."""
    (tmp_path / "a.csv").write_text("y,c\n1,1.1\n2,1.10\n3,1.1.1\n")
    columns = Columns.infer([tmp_path / "a.csv"], "y", categorical=["c"], contrast="full")
    assert columns.categorical == {"c": ("1.1", "1.1.1", "1.10")}
    np.testing.assert_array_equal(read(tmp_path / "a.csv", columns)[0], np.eye(3)[[0, 2, 1]])


@pytest.mark.parametrize(
    "cells", [pa.array([[1], [2]]), pa.array([1, 2], pa.duration("s"))], ids=lambda cells: str(cells.type)
)
def test_cells_that_are_no_single_values_are_no_levels(cells, tmp_path):
    pa.feather.write_feather(pa.table({"y": [1.0, 2.0], "c": cells}), str(tmp_path / "a.arrow"))
    with pytest.raises(SourceError, match=r"column 'c' holds .*, which cannot be a feature"):
        Columns.infer([tmp_path / "a.arrow"], "y", categorical=["c"], contrast="full")
