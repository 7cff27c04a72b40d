"""The same rows give the same numbers and the same bad cells, whatever they come in: files, frames, a stream."""

import json
from itertools import combinations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from kalprox.adapters.streams import NamedColumns
from kalprox.estimators.frames import encode
from kalprox.sources.columns import Columns
from kalprox.sources.records import Record
from kalprox.sources.row_parser import RowParser, Style
from kalprox.sources.table import Table

N = 60
COLUMNS = Columns(
    "y",
    numeric=("a", "n", "on"),
    booleans=("on",),
    categorical={"g": ("u", "v w"), "k": ("1", "2")},
    dates=("day",),
    unseen="reject",
)
NAMES = ["y", "a", "n", "on", "g", "k", "day"]


def rows():
    rng = np.random.default_rng(0)
    found = [
        {
            "y": round(float(rng.normal()), 6),
            "a": float(rng.normal()) * 10.0 ** int(rng.integers(-300, 60)),
            "n": int(rng.integers(-(2**53), 2**53)),
            "on": bool(rng.integers(2)),
            "g": ["u", "v w"][i % 2],
            "k": 1 + i % 2,
            "day": f"2020-01-{1 + i % 28:02d}",
        }
        for i in range(N)
    ]
    for i, (name, value) in enumerate([("a", None), ("g", "x"), ("n", None), ("k", 3), ("a", 1e80), ("y", None)]):
        found[7 * i + 3][name] = value  # bad cells
    return found


def of_file(write, suffix):
    def read(found, folder):
        file = folder / f"rows.{suffix}"
        write(found, file)
        good, bad, X, y = [], [], [], []
        for block in Table([file], COLUMNS).blocks():
            good += block.place.rows[block.place.good].tolist()
            bad += [(row.row, row.column, row.reason) for row in block.bad]
            X, y = [*X, *block.X.tolist()], [*y, *block.y.tolist()]
        return good, bad, X, y

    return read


def of_frame(make):
    def read(found, folder):
        block = encode(COLUMNS, make(found))
        bad = [(cell.at + 1, cell.column, cell.reason) for cell in block.bad]
        good = [i for i in range(N) if i + 1 not in [row for row, *_ in bad]]
        return [i + 1 for i in good], bad, block.X[good].tolist(), block.y[good].tolist()

    return read


def of_stream(style, line, together):
    def read(found, folder):
        parser, good, bad, X, y = RowParser(COLUMNS, style), [], [], [], []
        for i in range(0, N, together):
            opened = [parser.open(Record(line(row), 1, 2, 0.0)) for row in found[i : i + together]]
            parsed = parser.parse(opened, range(i + 1, i + 1 + len(opened)))
            bad += [(row.row, row.column, row.reason) for _, row in sorted(parsed.bad.items())]
            good += [i + at + 1 for at in parsed.taught_at]
            X += [] if parsed.taught is None else parsed.taught.X.tolist()
            y += [] if parsed.taught is None else parsed.taught.y.tolist()
        return good, bad, X, y

    return read


def as_csv(row):
    return ",".join("" if row[name] is None else str(row[name]) for name in NAMES).encode() + b"\n"


def as_json(row):
    return json.dumps(row).encode() + b"\n"


def table(found):
    return pa.Table.from_pylist(found)


WAYS = {
    "csv": of_file(
        lambda f, file: file.write_bytes(b"".join([",".join(NAMES).encode() + b"\n", *map(as_csv, f)])), "csv"
    ),
    "jsonl": of_file(lambda f, file: file.write_bytes(b"".join(map(as_json, f))), "jsonl"),
    "parquet": of_file(lambda f, file: pa.parquet.write_table(table(f), file), "parquet"),
    "arrow": of_file(lambda f, file: pa.feather.write_feather(table(f), file), "arrow"),
    "pandas": of_frame(pd.DataFrame),
    "polars": of_frame(lambda f: pl.DataFrame(f, infer_schema_length=None)),
    "pyarrow": of_frame(table),
    "stream of csv, one by one": of_stream(Style(NAMES), as_csv, 1),
    "stream of csv": of_stream(Style(NAMES), as_csv, 16),
    "stream of json, one by one": of_stream(Style(), as_json, 1),
    "stream of json": of_stream(Style(), as_json, 16),
}


@pytest.fixture(scope="module")
def found_by(tmp_path_factory):
    return {name: read(rows(), tmp_path_factory.mktemp("rows")) for name, read in WAYS.items()}


@pytest.mark.parametrize(("one", "other"), list(combinations(WAYS, 2)))
def test_two_ways_give_the_same_rows(one, other, found_by):
    found, expected = found_by[one], found_by[other]
    streams = [name.startswith("stream") for name in (one, other)]
    if any(streams) and not all(streams):  # in a stream a row without a target is predicted, and not bad
        found, expected = (
            (good, [row for row in bad if row[1] != "y"], *more) for good, bad, *more in (found, expected)
        )
    assert found == expected and len(found[0]) == N - 6


def test_dictionaries_give_the_rows_of_a_frame():
    found = [{name: row[name] for name in ("a", "n")} for row in rows() if None not in row.values()]
    columns = NamedColumns()
    columns.add(["a", "n"])
    X = np.concatenate([columns.fill(row).copy() for row in found])
    expected = encode(Columns(None, numeric=("a", "n")), pd.DataFrame(found)).X
    assert np.array_equal(X, expected)
