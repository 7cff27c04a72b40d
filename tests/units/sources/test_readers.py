"""CSV and JSON lines: any bytes are read or refused, and the size of the chunks changes nothing."""

import io
import itertools
import json
import os
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kalprox.sources import prefetch
from kalprox.sources.columns import Columns
from kalprox.sources.files import SourceError
from kalprox.sources.readers import Reading, jsonl
from kalprox.sources.readers.base import Wanted, check_names, guarded
from kalprox.sources.readers.csv import CsvParser, CsvReader
from kalprox.sources.readers.jsonl import JsonReader
from kalprox.sources.readers.text import CsvRecords, Text, chunks
from kalprox.sources.table import Table

GOOD = b'y,a,c\n1,2,u\n3,4.5e1,"v, w"\n-5,.6,"x ""y"""\n7,8,z\r\n9,10,"new\nline"\n'
WANTED = Wanted(("y", "a"), ("c",))
COLUMNS = Columns("y", numeric=("a",), categorical={"c": ("u", "v, w", 'x "y"', "z")})


class Memory(Text):
    """Bytes as a text file."""

    def __init__(self, data):
        super().__init__(Path("memory.csv"), compressed=False, encoding="utf-8", stdin=None)
        self.data = data

    def _source(self, *, again):
        return io.BufferedReader(io.BytesIO(self.data))


def opened(kind, data, **reading):
    reader = kind(Path("memory.csv"), Reading(**reading))
    reader.text = Memory(data)
    return reader


def rows_of(data, size, max_record=64):
    """Every row: its numbers, or where and why it is bad."""
    reader = opened(CsvReader, data, delimiter=",", chunk_bytes=size, max_record=max_record)
    out, at = {}, 0
    try:
        if reader.empty:
            return None
        for raw in reader.blocks(WANTED):
            encoded = COLUMNS.encode(raw.table)
            X, y, faults = encoded.X, encoded.y, encoded.bad
            places = np.arange(raw.read) if raw.rows is None else raw.rows
            for i, place in enumerate(places):
                out[at + place] = (*X[i].tolist(), y[i])
            for cell in faults:
                out[at + places[cell.at]] = cell[1:]
            for cell in raw.bad:
                out[at + cell.at] = cell[1:]
            at += raw.read
    except SourceError as error:
        return str(error)
    return out, at, sorted(out) == list(range(at))


def ends_of_chunks(data, size, max_record=64):
    """Where the chunks end, and their faults. Of sizes with the same ends, and so the same chunks, one is tested."""
    reader = opened(CsvReader, data, delimiter=",", chunk_bytes=size, max_record=max_record)
    try:
        start = reader.header[1]
    except SourceError:
        return ()
    reader.text.open()
    reader.text.seek(start)
    found = chunks(reader.text, start, size, reader.records, max_record=max_record)
    return tuple((chunk.offset, chunk.fault) for chunk in found)


def same_for_any_chunk(data):
    expected = rows_of(data, 64)
    assert expected is None or isinstance(expected, str) or expected[2]
    for size in {ends_of_chunks(data, size): size for size in (64, 1, 2, 7, 20, 33)}.values():
        assert rows_of(data, size) == expected


def test_the_good_file_is_good():
    rows, count, _ = rows_of(GOOD, 8)
    assert count == 5 and rows[2] == (0.6, 0.0, 0.0, 1.0, 0.0, -5.0)


@settings(max_examples=150)
@given(st.binary(max_size=120))
@example(b"")
@example(b"\n\n")
@example(b"y")
def test_fuzz_bytes(data):
    same_for_any_chunk(data)


POISON = st.sampled_from(
    [
        *(bytes([byte]) for byte in b'"\n\r,\0\xff \te+-.09xE#_(\\'),
        *(b"\xc3\xa9", b"nan", b"inf", b"1e999", b"NA", b'""', b'","', b'\n"', b"\r\n", b"0x"),
    ]
)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(6, len(GOOD)), POISON, st.integers(0, 3)), max_size=6))
def test_fuzz_mutations(changes):
    data = GOOD
    for at, what, cut in changes:
        data = data[:at] + what + data[at + cut :]
    same_for_any_chunk(data)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(st.tuples(POISON, POISON, POISON), max_size=8).map(lambda cells: [b"".join(cell) for cell in cells]))
def test_fuzz_cells(cells):
    """A cell is the same number, or bad for the same reason, whatever its neighbours are."""
    same_for_any_chunk(b"y,a,c\n" + b"".join(b"1," + cell + b",u\n" for cell in cells))


@pytest.mark.slow
@settings(max_examples=200)
@given(st.text(alphabet='",\n\rab', max_size=60))
def test_fuzz_quotes(text):
    same_for_any_chunk(b"y,a,c\n" + text.encode())
    records = CsvRecords(",")
    assert records.end_of_last(text.encode()) == records.end_of_last_by_fields(text.encode())


JSON = b'{"y": 1, "a": 2, "c": "u"}\n{"y": 3, "a": 4.5e1, "c": "v, w"}\n{"c": "z", "y": -5, "a": 0.6, "q": [1]}\n'
POISON_JSON = [b"{", b"}", b"[", b"]", b":", b"null", b"true", b"NaN", b"}\n{", b"\\u0000", b"\\ud800", b'"a": 1,']


def json_rows(data, size):
    reader = opened(JsonReader, data, chunk_bytes=size, max_record=1 << 10)
    out, at = {}, 0
    for raw in reader.blocks(WANTED):
        encoded = COLUMNS.encode(raw.table)
        X, y, faults = encoded.X, encoded.y, encoded.bad
        places = np.arange(raw.read) if raw.rows is None else raw.rows
        cells = {at + places[cell.at]: cell[1:] for cell in faults} | {at + c.at: c[1:] for c in reversed(raw.bad)}
        out |= {at + place: (*X[i].tolist(), y[i]) for i, place in enumerate(places)} | cells
        at += raw.read
    assert sorted(out) == list(range(at))
    return out


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, len(JSON)), POISON | st.sampled_from(POISON_JSON), st.integers(0, 3)), max_size=5)
)
def test_fuzz_json(changes):
    data = JSON
    for at, what, cut in changes:
        data = data[:at] + what + data[at + cut :]
    expected = json_rows(data, 1 << 10)
    for size in (1, 30, 60):
        assert json_rows(data, size) == expected
    with pytest.MonkeyPatch.context() as patch:
        for size in (1, 30, 80):
            patch.setattr(jsonl, "_PIECE", size)
            assert json_rows(data, 1 << 10) == expected


# no quadratic scan, and nothing that waits for ever


@pytest.mark.parametrize("filler", [b"1", b'"', b'"a', b'a"b', b",", b'"ab",'], ids=repr)
def test_a_header_without_an_end_is_scanned_a_few_times_at_most(filler, monkeypatch):
    scanned, end_of_first = [], CsvRecords.end_of_first

    def counted(self, data, start):
        scanned.append(len(data))
        return end_of_first(self, data, start)

    monkeypatch.setattr(CsvRecords, "end_of_first", counted)
    data = filler * (4_000_000 // len(filler))
    with pytest.raises(SourceError, match=r"does not end within 1,000,000 bytes, the value of max_record.*raise"):
        opened(CsvReader, data, delimiter=",", max_record=1_000_000).names()
    assert sum(scanned) < 5_000_000
    scanned.clear()
    with suppress(SourceError):  # a field that is too long for the csv module
        opened(CsvReader, data, delimiter=",").names()
    assert sum(scanned) < 4 * len(data)


def test_names_are_looked_up_once():
    class Names(list):
        def count(self, name):
            raise AssertionError("a scan of all names for one of them")

    names = Names(map(str, range(200_000)))
    check_names("f", names, names)
    with pytest.raises(SourceError, match="there is no column 'y'"):
        check_names("f", names, ["y"])


def test_a_first_line_of_json_without_an_end_is_refused_with_the_limit(tmp_path):
    (file := tmp_path / "a.jsonl").write_bytes(b'{"y": "' + b"a" * 100_000)
    with (
        closing(Reading(max_record=50_000).open(file)) as opened,
        pytest.raises(SourceError, match=r"first line does not end within 50,000 bytes, the value of max_record"),
    ):
        opened.head(None, 10)


def test_csv_is_parsed_once_a_chunk_with_cells_such_as_NA_or_without(tmp_path, monkeypatch):
    lines = [f"{i},{'NA' if i % 100 == 99 else i}" for i in range(2000)]
    (tmp_path / "a.csv").write_text("y,x\n" + "\n".join(lines))
    (tmp_path / "b.csv").write_text("y,x\n" + "\n".join(line for line in lines if "NA" not in line))
    reads, read = [], CsvParser._read
    monkeypatch.setattr(
        CsvParser, "_read", lambda self, *args, **options: reads.append(1) or read(self, *args, **options)
    )
    for name in ("b.csv", "a.csv"):
        reads.clear()
        with closing(Reading(chunk_bytes=1000).open(tmp_path / name)) as opened:
            raws = list(opened.blocks(Wanted(("y", "x"))))
        assert len(reads) == len(raws) and len(raws) > 10 and not any(raw.bad for raw in raws)
    x = [cell for raw in raws for cell in raw.table.column("x").to_pylist()]
    assert x == [None if i % 100 == 99 else i for i in range(2000)]


def test_chunks_are_parsed_side_by_side_while_blocks_are_learned(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("y,x\n" + "".join(f"{i},{i % 7}.{'0' * 30}\n" for i in range(5000)))
    both, calls, parsed, parse = threading.Barrier(2), itertools.count(), [], CsvParser.parse

    def watched(self, chunk):
        if next(calls) < 2:
            both.wait(timeout=300)  # two threads are here at once
        parsed.append(threading.get_ident())
        return parse(self, chunk)

    monkeypatch.setattr(prefetch, "cores", lambda: 2)
    table = Table([tmp_path / "a.csv"], Columns("y", numeric=("x",)), memory=1 << 16)
    monkeypatch.setattr(CsvParser, "parse", watched)
    blocks = table.blocks_ahead()
    found = [next(blocks)]
    deadline = time.monotonic() + 60
    while len(parsed) < 5 and time.monotonic() < deadline:  # of the 50 or so chunks, a block each
        time.sleep(0.001)
    assert len(parsed) >= 5 and len(set(parsed)) == 2 and threading.get_ident() not in parsed
    found.extend(blocks)
    assert np.array_equal(np.concatenate([block.y for block in found]), np.arange(5000))


LONG = [{"y": i, "id": 2**53 + i, "x": i / 7} for i in range(50)]


def json_file(tmp_path, rows):
    (file := tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_json_with_long_integers_says_which_cells_were_rounded(tmp_path, monkeypatch):
    columns = Columns("y", numeric=("id", "x"))
    table = Table([json_file(tmp_path, LONG)], columns)
    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "_read", lambda *args, **options: None)
        [expected] = table.blocks()
    [found] = table.blocks()
    assert np.array_equal(found.X, expected.X) and found.notes == expected.notes
    assert found.notes.rounded["id"].count == 25


@pytest.mark.slow
def test_only_lines_around_a_bad_one_are_read_one_by_one(tmp_path, monkeypatch):
    rows = [json.dumps({"y": i, "x": i / 7, "c": "ab"[i % 2]}) for i in range(40_000)]
    rows[10_000], rows[20_000], rows[30_000] = '{"y": oops}', "", '{"y": 1, "x": "no", "c": 2}'
    (file := tmp_path / "a.jsonl").write_text("\n".join(rows))
    columns = Columns("y", numeric=("x",), categorical={"c": ("a", "b")}, unseen="reject")
    loads, load = [], jsonl.json_object
    monkeypatch.setattr(jsonl, "json_object", lambda line: loads.append(1) or load(line))
    found = list(Table([file], columns).blocks())
    assert [(row.row, row.column, row.value) for block in found for row in block.bad] == [
        (10_001, "", '{"y": oops}'),
        (30_000, "x", "no"),
    ]
    assert sum(len(block) for block in found) == 39_997 and len(loads) < 10_000
    monkeypatch.setattr(jsonl, "_by_pyarrow", lambda *args: None)
    for one, other in zip(found, Table([file], columns).blocks(), strict=True):
        assert np.array_equal(one.X, other.X) and np.array_equal(one.y, other.y) and one.bad == other.bad
        assert np.array_equal(one.place.rows, other.place.rows) and np.array_equal(one.place.good, other.place.good)


@pytest.mark.parametrize("cell", ["-0", "1.0", "12345678901234567890", "1e3", '"b"', "true", "[1]"])
def test_a_level_of_another_type_than_the_first_one_is_kept_as_it_is_written(tmp_path, cell):
    (file := tmp_path / "a.jsonl").write_text('{"y":1,"code":7}\n{"y":2,"code":' + cell + "}\n")
    with closing(Reading().open(file)) as opened:
        [raw] = opened.blocks(Wanted(("y",), ("code",)))
    bad = cell.startswith("[")
    assert raw.table.column("code").to_pylist() == [b"7", None if bad else cell.strip('"').encode()]
    assert [(one.at, one.column) for one in raw.bad] == ([(1, "code")] if bad else [])


def test_the_limit_of_a_record_is_an_option_of_tables(tmp_path):
    (file := tmp_path / "a.csv").write_bytes(b"y,a\n1,2\n3," + b"4" * 300 + b"\n5,6\n")
    for limit, bad in ((200, 1), (1000, 0)):
        blocks = list(Table([file], Columns("y", numeric=("a",)), max_record=limit, memory=1 << 16).blocks())
        assert sum(len(block.bad) for block in blocks) == 1  # too long, or too large a number
        assert sum("record too long" in str(row) for block in blocks for row in block.bad) == bad


def test_a_pipe_is_refused_with_what_to_do(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe.csv.gz")
    for opened in (
        lambda: Columns.infer([pipe], "y"),
        lambda: Table([pipe], Columns("y", numeric=("a",))),
        lambda: Table(str(pipe), Columns("y", numeric=("a",))),
    ):
        with pytest.raises(SourceError, match=r"is a pipe.*kalprox fit - .* < .*pipe\.csv\.gz"):
            opened()


def test_a_machine_without_room_for_a_thread_is_no_damaged_file():
    error = pa.lib.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable")
    with pytest.raises(OSError, match=r"t\.csv cannot be read: .*worker thread.* Free memory"), guarded("t.csv", "CSV"):
        raise error
