"""The levels of categorical columns are those of all rows, wherever they stand."""

import gzip
import io
import json
import os
import stat
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from kalprox.base.text import in_options
from kalprox.sources.columns import Columns
from kalprox.sources.files import STDIN, Replay, SourceError
from kalprox.sources.table import Table

CARRIERS = ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"]


def flights(n=30_000, first=12_000, seed=0):
    """Rows sorted by carrier: the first 12,000 have one of 16 carriers. UA is the most frequent one."""
    rng = np.random.default_rng(seed)
    rest = rng.choice(len(CARRIERS), n - first - 15, p=[0.0, *[0.01] * 10, 0.85, *[0.0125] * 4])
    code = np.sort(np.concatenate([np.zeros(first, int), np.arange(1, 16), rest]))
    x = rng.standard_normal(n)
    y = 2 * x + np.linspace(-5, 5, 16)[code] + rng.standard_normal(n)
    return pa.table({"y": y, "x": x, "carrier": np.array(CARRIERS)[code]})


def write(table, path):
    name = path.name
    if name.endswith(".parquet"):
        pa.parquet.write_table(table, path, row_group_size=5000)
    elif name.endswith(".arrow"):
        pa.feather.write_feather(table, str(path), chunksize=4000)
    else:
        buffer = io.BytesIO()
        if ".csv" in name:
            pa.csv.write_csv(table, buffer)
        else:
            buffer.write("".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode())
        path.write_bytes(gzip.compress(buffer.getvalue(), 1) if name.endswith(".gz") else buffer.getvalue())
    return path


def csv(folder, text, name="a.csv"):
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "arrow", "jsonl"])
def test_levels_are_found_however_the_rows_are_sorted(tmp_path, suffix):
    table = flights()
    path = write(table, tmp_path / f"a.{suffix}")
    columns = Columns.infer([path], "y")
    assert columns.categorical == {"carrier": ("UA", *(c for c in CARRIERS if c != "UA"))}
    assert columns.references == {"carrier": "UA"}
    assert all(not block.bad and not block.notes.unknown_levels for block in Table([path], columns).blocks())
    order = np.random.default_rng(1).permutation(len(table))
    assert Columns.infer([write(table.take(order), tmp_path / f"b.{suffix}")], "y") == columns


def test_levels_of_all_files_are_found(tmp_path):
    files = [csv(tmp_path, f"y,c\n1,{level}\n2,a\n", f"{level}.csv") for level in "abc"]
    assert Columns.infer(files, "y", rows=1).categorical == {"c": ("a", "b", "c")}


def test_the_reference_is_the_most_frequent_level_of_rows_that_can_be_learned(tmp_path):
    """The rows of "cancelled" have no target; "late" and "on time" tie. All of them are levels."""
    text = "y,c,d\n" + "NA,cancelled,u\n" * 9 + "1,on time,u\n" * 3 + "1,late,v\n" * 3 + "1,diverted,v\n"
    columns = Columns.infer([csv(tmp_path, text)], "y")
    assert columns.categorical["c"] == ("late", "cancelled", "diverted", "on time")
    assert columns.names == ["c=cancelled", "c=diverted", "c=on time", "d=u"]
    first = Columns.infer([tmp_path / "a.csv"], "y", drop_first=True)
    assert first.references == {"c": "cancelled", "d": "u"}
    given = Columns.infer([tmp_path / "a.csv"], "y", categorical={"c": ["on time", "late", "cancelled", "diverted"]})
    assert given.references == {"c": "on time", "d": "v"}


def test_numbers_are_in_the_order_of_their_values(tmp_path):
    path = csv(tmp_path, "y,month\n" + "".join(f"{i},{i}\n" for i in range(1, 13)))
    columns = Columns.infer([path], "y", categorical=["month"])
    assert columns.names == [f"month={i}" for i in range(2, 13)]


def test_without_an_intercept_one_column_takes_its_place(tmp_path):
    path = csv(tmp_path, "y,x,c,d\n1,1,a,u\n2,2,b,v\n3,4,b,u\n")
    columns = Columns.infer([path], "y", intercept=False)
    assert columns.names == ["x", "c=b", "c=a", "d=v"] and columns.references == {"d": "u"}
    assert Columns.from_json(json.loads(json.dumps(columns.to_json()))) == columns
    full = Columns.infer([path], "y", intercept=False, contrast="full")
    assert full.names == ["x", "c=a", "c=b", "d=u", "d=v"] and full.references == {}


def test_too_many_levels_are_an_error_that_counts_them(tmp_path):
    text = "y,c,d\n" + "".join(f"{i},c{i % 1500},d{i % 1200}\n" for i in range(20_000))
    path = csv(tmp_path, text)
    found = r"column 'c' has 1,500 levels, column 'd' has 1,200 levels, more than the 1,000 allowed"
    with pytest.raises(SourceError, match=found) as e:
        Columns.infer([path], "y", rows=100)
    said = in_options(e.value.args[0])
    assert "--max-levels 1500" in said and "--hash c" in said and "Leave" in said and "max_levels=1500" in str(e.value)
    assert len(Columns.infer([path], "y", rows=100, max_levels=1500).names) == 1499 + 1199


def test_an_identifier_is_not_counted_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("kalprox.sources.inference._MOST", 5000)
    path = csv(tmp_path, "y,c\n" + "".join(f"{i},id{i}\n" for i in range(500_000)))
    with pytest.raises(SourceError, match=r"column 'c' has more than 5,000 levels, more than the 5,000 allowed"):
        Columns.infer([path], "y")


def test_numbers_of_json_are_one_level_however_they_are_written(tmp_path):
    lines = "".join(f'{{"y": {i}, "c": {c}}}\n' for i, c in enumerate(["1.1", "1.10", "2", "2.0", "11e-1"]))
    (tmp_path / "a.jsonl").write_text(lines)
    columns = Columns.infer([tmp_path / "a.jsonl"], "y", categorical=["c"])
    assert columns.categorical == {"c": ("1.1", "2")}
    (block,) = Table([tmp_path / "a.jsonl"], columns).blocks()
    np.testing.assert_array_equal(block.X, [[0], [0], [1], [1], [0]])


def test_a_damaged_file_is_left_to_the_pass_that_learns(tmp_path):
    write(flights(), tmp_path / "a.csv.gz")
    whole = (tmp_path / "a.csv.gz").read_bytes()
    (tmp_path / "b.csv.gz").write_bytes(whole[: len(whole) // 2])
    files = [tmp_path / "a.csv.gz", tmp_path / "b.csv.gz"]
    columns = Columns.infer(files, "y")
    assert len(columns.categorical["carrier"]) == 16
    with pytest.raises(SourceError, match="cannot be read to its end"):
        list(Table(files, columns).blocks())
    *_, last = Table(files, columns, skip_unreadable=True).blocks()
    assert [row.reason for row in last.bad] == ["unreadable"]


def test_a_column_that_one_file_does_not_have(tmp_path):
    files = [csv(tmp_path, "y,c\n1,a\n", "a.csv"), csv(tmp_path, "y,d\n1,a\n", "b.csv")]
    with pytest.raises(SourceError, match=r"b\.csv: there is no column 'c'"):
        Columns.infer(files, "y", ["c"])


def test_columns_with_one_level_are_nothing_to_learn_from(tmp_path):
    path = csv(tmp_path, "y,c\n1,a\n2,a\n")
    with pytest.raises(SourceError, match=r"every feature \('c'\) has one level only"):
        Columns.infer([path], "y")
    assert Columns.infer([path], "y", contrast="full").names == ["c=a"]


# standard input


class Stream:
    """A stream of rows without an end, which knows how much of it was read."""

    def __init__(self):
        self.read_bytes, self._left = 0, b"y,c\n"

    def read(self, size):
        while len(self._left) < size:
            self._left += b"1,a\n2,b\n3,b\n" * 1000
        data, self._left = self._left[:size], self._left[size:]
        self.read_bytes += len(data)
        return data


def test_standard_input_is_stored_where_nobody_else_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("kalprox.sources.files._IN_MEMORY", 1000)
    opened, make = [], tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *a, **k: opened.append(make(*a, **k)) or opened[-1])
    said, table = [], flights()
    data = write(table, tmp_path / "a.csv").read_bytes()
    stream = Replay(io.BytesIO(data))
    columns = Columns.infer([STDIN], "y", stdin=stream, watch=said.append)
    assert columns == Columns.infer([tmp_path / "a.csv"], "y") and "levels of 'carrier'" in said[0]
    (file,) = opened
    found = os.fstat(file.fileno())
    assert stat.S_IMODE(found.st_mode) == 0o600 and found.st_nlink == 0 and found.st_size == len(data)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    y = np.concatenate([block.y for block in Table("-", columns, stdin=stream).blocks()])
    np.testing.assert_array_equal(y, table["y"])
    del stream
    assert file.closed


def test_an_endless_stream_works_with_given_levels_or_bins():
    for options in ({"categorical": {"c": ["a", "b"]}}, {"hashed": {"c": 8}}):
        stream = Stream()
        replay = Replay(stream)
        columns = Columns.infer([STDIN], "y", stdin=replay, rows=100, **options)
        blocks = Table("-", columns, stdin=replay).blocks()
        assert len(next(blocks)) > 1000 and stream.read_bytes < 1 << 23


def test_a_stream_longer_than_the_space_for_it_is_an_error():
    with pytest.raises(
        SourceError, match=r"more than the 3,000,000 bytes .* to find .* 'c'.*allow more with spool"
    ) as e:
        Columns.infer([STDIN], "y", stdin=Replay(Stream()), rows=100, spool=3_000_000)
    assert "--categorical" in str(e.value) and "--hash" in str(e.value)


def test_a_disk_that_cannot_store_standard_input_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.setattr("kalprox.sources.files._IN_MEMORY", 1000)
    with pytest.raises(SourceError, match=r"cannot be stored in .*none to find the levels.*TMPDIR"):
        Columns.infer([STDIN], "y", stdin=Replay(io.BytesIO(b"y,c\n" + b"1,a\n2,b\n" * 1000)), rows=10)
