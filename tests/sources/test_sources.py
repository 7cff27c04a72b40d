"""Reading files: any format, split and block size gives the same rows; a bad row is named, never read as a good one."""

import gzip
import io
import json
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from poison import CASES, Case

from kalprox.sources import ArraySource, Counts
from kalprox.sources.columns import Columns
from kalprox.sources.files import STDIN, Replay, SourceError, find, fingerprint, format_of
from kalprox.sources.quarantine import BadRow, Quarantine, TooManyBadRows
from kalprox.sources.readers.base import Wanted
from kalprox.sources.readers.csv import CsvReader
from kalprox.sources.readers.jsonl import JsonReader
from kalprox.sources.readers.text import Text
from kalprox.sources.table import Cursor, Table

READING = {"format", "encoding", "delimiter", "stdin", "skip_unreadable"}


def read(source, columns, start=None, **options):
    return list(Table(source, columns, **options).blocks(start))


def infer_and_read(source, options, memory=1 << 28):
    table = {name: value for name, value in options.items() if name in READING}
    columns = Columns.infer(find(source), **({"target": "y"} | options))
    return columns, read(source, columns, memory=memory, **table)


def joined(blocks):
    """X, y, the numbers of all rows, and which of them are good."""
    X, y = ([getattr(block, name) for block in blocks] for name in ("X", "y"))
    rows, good = ([getattr(block.place, name) for block in blocks] for name in ("rows", "good"))
    return [np.concatenate(arrays) for arrays in (X, y, rows, good)]


def same(blocks, others):
    assert len(blocks) == len(others)
    for one, other in zip(blocks, others, strict=True):
        for name in ("X", "y", "weights"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("rows", "good"):
            assert np.array_equal(getattr(one.place, name), getattr(other.place, name))
        assert (one.read, one.bad) == (other.read, other.bad)
        assert (one.place.cursor, one.place.file) == (other.place.cursor, other.place.file)


# the corpus of bad files


@pytest.mark.parametrize("memory", [1, 1 << 28], ids=["small", "large"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_poison(case: Case, memory, tmp_path):
    source, expected = case.write(tmp_path), case.outcome
    if expected.error:
        with pytest.raises(SourceError, match=f"(?s){expected.error}"):
            infer_and_read(source, case.options, memory)
        return
    columns, blocks = infer_and_read(source, case.options, memory)
    assert tuple((row.row, row.column, row.reason) for block in blocks for row in block.bad) == expected.bad
    assert sum(len(block.X) for block in blocks) == expected.good
    assert sum(len(block.bad) for block in blocks if block.read) == sum((~block.place.good).sum() for block in blocks)
    for block in blocks:
        features = dict(zip(columns.names, block.X.T, strict=True))
        predicted = features["a"] + 2 * features["b"] + 3 * features.get("c=v", 0.0)
        assert np.array_equal(block.y, predicted)


def test_the_corpus_is_large():
    assert len(CASES) >= 40 and len({case.name for case in CASES}) == len(CASES)


# any format, split, memory: the same rows


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    n = 5000
    return pa.table(
        {
            "y": rng.standard_normal(n),
            "number": rng.standard_normal(n) * 10.0 ** rng.integers(-20, 20, n),
            "level": np.array(["a", "b, c", 'd "e"', "f\ng", "é"])[rng.integers(0, 5, n)],
            "count": rng.integers(0, 100, n),
            "day": [f"2020-{i % 12 + 1:02}-{i % 28 + 1:02}" for i in range(n)],
            "weight": rng.integers(0, 3, n).astype(float),
        }
    )


OPTIONS = {"weight": "weight", "dates": ["day"]}


def write(frame, path):
    name = path.name
    if name.endswith(".parquet"):
        pq.write_table(frame, path, row_group_size=700)
    elif name.endswith((".arrow", ".ipc")):
        new = pa.ipc.new_file if name.endswith(".arrow") else pa.ipc.new_stream
        with new(str(path), frame.schema) as file:
            file.write_table(frame, max_chunksize=900)
    else:
        if "json" in name:
            data = "".join(json.dumps(row) + "\n" for row in frame.to_pylist()).encode()
        else:
            buffer = io.BytesIO()
            delimiter = "\t" if ".tsv" in name else ","
            pa.csv.write_csv(frame, buffer, pa.csv.WriteOptions(delimiter=delimiter))
            data = buffer.getvalue()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


SUFFIXES = ["parquet", "arrow", "ipc", "csv", "tsv", "csv.gz", "jsonl", "jsonl.gz"]


@pytest.fixture(scope="module")
def sources(frame, tmp_path_factory):
    """The same rows in every format, in one file and in three (of which one has no row)."""
    folder = tmp_path_factory.mktemp("sources")
    for suffix in SUFFIXES:
        write(frame, folder / f"one.{suffix}")
        (folder / suffix).mkdir()
        for i, (begin, end) in enumerate([(0, 1), (1, 1), (1, 3333), (3333, 5000)]):
            write(frame.slice(begin, end - begin), folder / suffix / f"{i}.{suffix}")
        for i in range(len(SUFFIXES)):
            empty = folder / suffix / f"{i}.{suffix}"
            if empty.exists() and empty.stat().st_size == 0:
                empty.unlink()
    return folder


@pytest.fixture(scope="module")
def columns(sources):
    return Columns.infer(find(str(sources / "one.parquet")), "y", **OPTIONS)


def test_inferred_columns_are_the_same_for_every_format(sources, columns):
    assert columns.names == ["number", "level=a", "level=b, c", 'level=d "e"', "level=f\ng", "level=é", "count", "day"]
    for suffix in SUFFIXES:
        assert Columns.infer(find(str(sources / f"one.{suffix}")), "y", **OPTIONS) == columns
    assert Columns.from_json(json.loads(json.dumps(columns.to_json()))) == columns


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_same_rows(frame, sources, columns, suffix):
    X, y, rows, good = joined(read(str(sources / f"one.{suffix}"), columns))
    assert np.array_equal(y, frame["y"]) and np.array_equal(X[:, 0], frame["number"])
    assert np.array_equal(X[:, 6], frame["count"]) and X.flags.c_contiguous and X.dtype == np.float64
    level = np.array(frame["level"].to_pylist())
    assert np.array_equal(X[:, 1:6], level[:, None] == np.array(["a", "b, c", 'd "e"', "f\ng", "é"]))
    day = np.array(frame["day"].to_pylist(), "datetime64[D]").astype(float)
    assert np.array_equal(X[:, 7], day) and good.all() and np.array_equal(rows, np.arange(1, 5001))
    for memory in (1, 1 << 20, 1 << 24):
        blocks = read(str(sources / f"one.{suffix}"), columns, memory=memory)
        assert all(np.array_equal(a, b) for a, b in zip(joined(blocks), (X, y, rows, good), strict=True))
        blocks = read(str(sources / suffix), columns, memory=memory)
        assert np.array_equal(joined(blocks)[0], X) and np.array_equal(joined(blocks)[1], y)
        weights = np.concatenate([block.weights for block in blocks])
        assert np.array_equal(weights, frame["weight"])


def test_blocks_are_bounded(sources, columns):
    sizes = {memory: Table(str(sources / "one.csv"), columns, memory=memory) for memory in (1 << 20, 1 << 24)}
    for memory, table in sizes.items():
        assert max(block.X.nbytes for block in table.blocks()) <= max(memory // 8, 64 * 8 * 10)


TYPES = {
    "numbers": [
        pa.array([1, 0, 1], pa.uint64()),
        pa.array([1, 0, 1], pa.int8()),
        pa.array([1, 0, 1], pa.float32()),
        pa.array([True, False, True]),
        pa.array([1, 0, 1], pa.decimal256(50, 2)),
        pa.array(["1", "0.0", " 1e0"]),
        pa.array(["1", "0", "1"]).dictionary_encode(),
    ],
    "texts": [
        pa.array(["1", "0", "1"], pa.string_view()),
        pa.array(["1", "0", "1"], pa.large_string()),
        pa.array(["1", "0", "1"]).dictionary_encode(),
        pa.array([b"1", b"0", b"1"]),
        pa.array([1, 0, 1]),
    ],
    "dates": [
        pa.array([1, 0, 1], pa.date32()),
        pa.array([86_400_000, 0, 86_400_000], pa.date64()),
        pa.array([86_400, 0, 86_400], pa.timestamp("s", "America/New_York")),
        pa.array([86_400 * 10**9 + 1, 0, 86_400 * 10**9], pa.timestamp("ns")),
        pa.array(["1970-01-02", "19700101", "1970-01-02T02:00:00.000+02:00"]),
    ],
}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(("kind", "column"), [(kind, column) for kind in TYPES for column in TYPES[kind]])
def test_types(tmp_path, kind, column, suffix):
    path = tmp_path / f"t.{suffix}"
    write(pa.table({"y": [1.0, 2.0, 3.0], "x": column}), path)
    options = {"texts": {"categorical": ["x"], "drop_first": True}, "dates": {"dates": ["x"]}}.get(kind, {})
    found = Columns.infer([path], "y", **options)
    assert found.names == ["x=1" if kind == "texts" else "x"]
    (block,) = read(str(path), found)
    assert block.X.tolist() == [[1.0], [0.0], [1.0]]


# going on from any cursor


@pytest.mark.parametrize("shuffle", [None, 7])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_resume(sources, columns, suffix, shuffle):
    options = {"memory": 1 << 19, "shuffle": shuffle}
    for source in (str(sources / f"one.{suffix}"), str(sources / suffix)):
        blocks = read(source, columns, **options)
        assert len(blocks) > 10
        for i in range(len(blocks)):  # the next block and its cursor from every cursor: by induction, all
            cursor = Cursor.from_json(json.loads(json.dumps(blocks[i].place.cursor.to_json())))
            same(list(islice(Table(source, columns, **options).blocks(cursor), 1)), blocks[i + 1 : i + 2])
        middle = len(blocks) // 2
        same(read(source, columns, blocks[middle].place.cursor, **options), blocks[middle + 1 :])


@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz", "jsonl", "jsonl.gz"])
def test_standard_input(sources, columns, suffix):
    data = (sources / f"one.{suffix}").read_bytes()
    format = suffix
    stream = Replay(io.BytesIO(data))
    found = Columns.infer([STDIN], "y", **OPTIONS, stdin=stream, format=format)
    table = Table("-", found, stdin=stream, format=format, memory=1 << 19)
    blocks = list(table.blocks())
    assert found == columns and np.array_equal(joined(blocks)[0], joined(read(str(sources / "one.csv"), columns))[0])
    assert table.size() == (None, None) and table.done(blocks[0].place.cursor) is None
    assert table.fingerprint() == {"files": [None]}
    with pytest.raises(SourceError, match="only once"):
        list(table.blocks())
    for i in range(0, len(blocks), 5):
        again = Table("-", found, stdin=io.BytesIO(data), format=format, memory=1 << 19)
        same(list(again.blocks(blocks[i].place.cursor)), blocks[i + 1 :])
    other = (sources / "one.csv").read_bytes().replace(b"2020", b"2021", 1)
    if suffix == "csv":
        changed = Table("-", found, stdin=io.BytesIO(other), memory=1 << 19)
        with pytest.raises(SourceError, match="not the bytes that were read before"):
            list(changed.blocks(blocks[-1].place.cursor))
        short = Table("-", found, stdin=io.BytesIO(other[:100]), memory=1 << 19)
        with pytest.raises(SourceError, match="not the bytes that were read before"):
            list(short.blocks(blocks[-1].place.cursor))


def test_binary_formats_do_not_come_through_a_pipe(columns):
    with pytest.raises(SourceError, match="Standard input can be csv"):
        list(Table("-", columns, stdin=io.BytesIO(), format="parquet").blocks())


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_resume_in_another_encoding(tmp_path, encoding):
    path = tmp_path / "p.csv"
    path.write_bytes(
        "y,a,c\n".encode(encoding)
        + "".join(f"{i},{i},é{i % 3}\n" for i in range(3000)).encode(encoding)[2 * (encoding == "utf-16") :]
    )
    found = Columns.infer([path], "y", encoding=encoding)
    assert found.names == ["a", "c=é0", "c=é1", "c=é2"]
    blocks = read(str(path), found, memory=1, encoding=encoding)
    assert np.array_equal(joined(blocks)[1], np.arange(3000.0))
    for i in range(0, len(blocks), 9):
        same(read(str(path), found, blocks[i].place.cursor, memory=1, encoding=encoding), blocks[i + 1 :])


def numbered(blocks):
    """The target of each good row by its file and number."""
    places = [(block.place.file, row) for block in blocks for row in block.place.rows[block.place.good]]
    return dict(zip(places, np.concatenate([block.y for block in blocks]), strict=True))


def test_shuffle(sources, columns):
    source = str(sources / "parquet")
    plain, drawn = read(source, columns), read(source, columns, shuffle=3)
    same(drawn, read(source, columns, shuffle=3))
    assert not np.array_equal(joined(drawn)[1], joined(plain)[1])
    assert np.array_equal(np.sort(joined(drawn)[1]), np.sort(joined(plain)[1]))
    assert numbered(plain) == numbered(drawn)


def test_shuffle_with_bad_rows(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("y,a\n" + "".join(f"{i},{'x' if i % 5 == 1 else i}\n" if i % 7 else "1\n" for i in range(500)))
    found = Columns("y", numeric=("a",))
    for block in read(str(path), found, memory=1, shuffle=1):
        assert np.array_equal(block.y + 1, block.place.rows[block.place.good]) and np.array_equal(
            block.X[:, 0], block.y
        )
        assert sorted(row.row for row in block.bad) == sorted(block.place.rows[~block.place.good])


# as a source of sums, and its size


def test_fold_equals_arrays(frame, sources, columns):
    def part(block):
        weights = np.ones(len(block)) if block.weights is None else block.weights
        return np.append(block.X.T @ (weights * block.y), weights.sum())

    X, y, *_ = joined(read(str(sources / "one.parquet"), columns))
    expected = ArraySource(X, y, np.asarray(frame["weight"]), block_rows=8192).fold(part)
    found = Table(str(sources / "one.arrow"), columns).fold(part)
    np.testing.assert_allclose(found.total, expected.total, rtol=1e-9)
    assert found.counts == expected.counts == Counts(5000, int((np.asarray(frame["weight"]) > 0).sum()), 0)
    unweighted = Table(str(sources / "one.csv"), replace(columns, weight=None)).fold(part)
    assert unweighted.total[-1] == 5000 and unweighted.counts == Counts(5000, 5000, 0)


def test_fold_counts_bad_rows_and_files_without_a_good_row(tmp_path):
    (tmp_path / "a.csv").write_text("y,a\n1,2\n1,x\n3,4\n")
    (tmp_path / "b.csv").write_text("")
    found = Table(str(tmp_path), Columns("y", numeric=("a",))).fold(len)
    assert (found.total, found.counts) == (2, Counts(3, 2, 2))
    nothing = Table([tmp_path / "b.csv"], Columns("y", numeric=("a",))).fold(len)
    assert (nothing.total, nothing.counts) == (None, Counts(0, 0, 1))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_size_and_done(sources, columns, suffix):
    table = Table(str(sources / suffix), columns, memory=1 << 20)
    size = table.size()
    assert size.bytes == sum(file.stat().st_size for file in find(str(sources / suffix)))
    assert size.rows == (5000 if suffix in ("parquet", "arrow") else None)
    shares = [table.done(block.place.cursor) for block in table.blocks()]
    assert shares == sorted(shares) and 0 <= shares[0] < 0.2
    assert shares[-1] == pytest.approx(1.0) or (suffix == "ipc" and 0.5 < shares[-1] < 1.0)
    assert table.done(Cursor()) == 0.0


def test_target_is_not_needed_to_predict(sources, columns):
    without = replace(columns, target=None, weight=None)
    (block, *_) = read(str(sources / "one.parquet"), without)
    assert block.y is None and block.weights is None and len(block.X)


# what a source names


def test_find(tmp_path):
    for name in ("b.csv", "a.parquet", "sub/c.CSV.GZ", "_tmp/d.csv", ".e.csv", "f.txt", "_SUCCESS"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [file.relative_to(tmp_path).as_posix() for file in find(str(tmp_path))] == [
        "a.parquet",
        "b.csv",
        "sub/c.CSV.GZ",
    ]
    assert find(str(tmp_path / "*.csv")) == [tmp_path / "b.csv"]
    assert find(str(tmp_path / "f.txt")) == [tmp_path / "f.txt"] and find("-") == [STDIN]
    assert (
        format_of(STDIN) == "csv" and format_of(STDIN, "jsonl") == "jsonl" and format_of(Path("x.CSV.gz")) == "csv.gz"
    )
    with pytest.raises(SourceError, match="format must be one of arrow, csv"):
        format_of(STDIN, "xml")


def test_fingerprint(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(bytes(200_000))
    first = fingerprint(path)
    assert (first["name"], first["size"]) == ("x.csv", 200_000) and fingerprint(path) == first
    for at in (0, 199_999):
        data = bytearray(200_000)
        data[at] = 1
        path.write_bytes(data)
        assert fingerprint(path) != first
    assert fingerprint(STDIN) is None


def test_pyarrow_is_not_imported_early():
    code = "import sys, kalprox, kalprox.sources, kalprox.sources.files; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_pyarrow():
    code = "import sys; sys.modules['pyarrow'] = None; import kalprox.sources.table"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'kalprox[files]'" in run.stderr


# quarantine


def bad(n, file="x.csv"):
    return [BadRow(file, i, "a", "not a number", 'x"\n,') for i in range(n)]


def test_quarantine_counts():
    with pytest.raises(TooManyBadRows, match=r"(?s)1 bad of 10 rows.*x.csv, row 1, column 'a': missing \('7'\)"):
        Quarantine().take([BadRow("x.csv", 1, "a", "missing", "7")], 10)
    kept = Quarantine(max_bad=3)
    kept.take(bad(3), 10)
    with pytest.raises(TooManyBadRows, match="4 bad of 11 rows"):
        kept.take(bad(1), 1)


def test_quarantine_share():
    kept = Quarantine(max_bad="1%")
    kept.take(bad(60), 100)
    kept.take([], 9_900)
    kept.finish()
    kept = Quarantine(max_bad="1%")
    kept.take(bad(60), 100)
    with pytest.raises(TooManyBadRows, match="more than the 1% allowed"):
        kept.finish()
    with pytest.raises(TooManyBadRows):
        Quarantine(max_bad="0.5%").take(bad(60), 10_001)
    for wrong in ("x", "-1", "101%", "%", -1, "1.5"):
        with pytest.raises(SourceError, match="max_bad must be"):
            Quarantine(max_bad=wrong)


def test_quarantine_resumes_without_a_row_twice(tmp_path):
    whole, path = Quarantine(tmp_path / "whole.csv"), tmp_path / "q.csv"
    for n in (2, 3, 4):
        whole.take(bad(n), 10)
    whole.finish()
    first = Quarantine(path)
    first.take(bad(2), 10)
    state = json.loads(json.dumps(first.state()))
    first.take(bad(4), 10)
    first.close()
    second = Quarantine(path, resume=state)
    second.take(bad(3), 10)
    second.take(bad(4), 10)
    second.finish()
    assert path.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert (second.bad, second.read, second.first) == (9, 30, whole.first)
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="shorter than"):
        Quarantine(path, resume=state)


# the bytes of a CSV: whatever they are, no crash, and chunks do not matter

GOOD = b'y,a,c\n1,2,u\n3,4.5e1,"v, w"\n-5,.6,"x ""y"""\n7,8,z\r\n9,10,"new\nline"\n'
WANTED = Wanted(("y", "a"), ("c",))
COLUMNS = Columns("y", numeric=("a",), categorical={"c": ("u", "v, w", 'x "y"', "z")})


class Memory(Text):
    """Bytes as a text file."""

    def __init__(self, data):
        super().__init__(Path("memory.csv"), packed=False, encoding="utf-8", stdin=None)
        self.data = data

    def _source(self, *, again):
        return io.BufferedReader(io.BytesIO(self.data))


def rows_of(data, size, max_record=64):
    """Every row: its numbers, or where and why it is bad."""
    reader = CsvReader(Memory(data), delimiter=",", chunk_bytes=size, max_record=max_record)
    out, at = {}, 0
    try:
        if reader.empty:
            return None
        for raw in reader.blocks(WANTED):
            X, y, _, faults = COLUMNS.encode(raw.table)
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


def same_for_any_chunk(data):
    expected = rows_of(data, 64)
    assert expected is None or isinstance(expected, str) or expected[2]
    for size in (1, 2, 7, 20, 33):
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


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(6, len(GOOD)), POISON, st.integers(0, 3)), max_size=6))
def test_fuzz_mutations(changes):
    data = GOOD
    for at, what, cut in changes:
        data = data[:at] + what + data[at + cut :]
    same_for_any_chunk(data)


@settings(max_examples=150)
@given(st.lists(st.tuples(POISON, POISON, POISON), max_size=8).map(lambda cells: [b"".join(cell) for cell in cells]))
def test_fuzz_cells(cells):
    """A cell is the same number, or bad for the same reason, whatever its neighbours are."""
    same_for_any_chunk(b"y,a,c\n" + b"".join(b"1," + cell + b",u\n" for cell in cells))


@settings(max_examples=200)
@given(st.text(alphabet='",\n\rab', max_size=60))
def test_fuzz_quotes(text):
    same_for_any_chunk(b"y,a,c\n" + text.encode())
    reader = CsvReader(Memory(b""), delimiter=",", chunk_bytes=1)
    assert reader.cut(text.encode()) == reader.cut_by_fields(text.encode())


JSON = b'{"y": 1, "a": 2, "c": "u"}\n{"y": 3, "a": 4.5e1, "c": "v, w"}\n{"c": "z", "y": -5, "a": 0.6, "q": [1]}\n'
POISON_JSON = [b"{", b"}", b"[", b"]", b":", b"null", b"true", b"NaN", b"}\n{", b"\\u0000", b"\\ud800", b'"a": 1,']


def json_rows(data, size):
    reader = JsonReader(Memory(data), chunk_bytes=size, max_record=1 << 10)
    out, at = {}, 0
    for raw in reader.blocks(WANTED):
        X, y, _, faults = COLUMNS.encode(raw.table)
        places = np.arange(raw.read) if raw.rows is None else raw.rows
        cells = {at + places[cell.at]: cell[1:] for cell in faults} | {at + c.at: c[1:] for c in reversed(raw.bad)}
        out |= {at + place: (*X[i].tolist(), y[i]) for i, place in enumerate(places)} | cells
        at += raw.read
    assert sorted(out) == list(range(at))
    return out


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


def test_a_quote_that_never_closes_costs_one_row(tmp_path):
    """Also in a file longer than a record may be; and so does a line that never ends."""
    path = tmp_path / "p.csv"
    lines = (b"1,2,u\n" * 100_000) + b'1,"2,u\n' + b"1,2,u\n" * 3_000_000 + b"9" * (20 << 20) + b"\n1,2,u\n"
    path.write_bytes(b"y,a,c\n" + lines)
    blocks = read(str(path), COLUMNS)
    bad = [(row.row, row.reason) for block in blocks for row in block.bad]
    assert bad == [(100_001, "unclosed quote"), (3_100_002, "record too long")]
    assert sum(len(block.X) for block in blocks) == 3_100_001


@settings(max_examples=100)
@given(
    st.binary(max_size=80),
    st.integers(0, 200),
    st.sampled_from(["p.parquet", "p.arrow", "p.ipc", "p.jsonl", "p.csv.gz"]),
)
def test_fuzz_files(tmp_path_factory, junk, at, name):
    """A file with junk in it is read, or refused in words."""
    path = tmp_path_factory.getbasetemp() / f"fuzz-{name}"
    write(pa.table({"y": [1.0, 2.0], "a": [3.0, 4.0], "c": ["u", "v, w"]}), path)
    data = path.read_bytes()
    at = at * len(data) // 200
    path.write_bytes(data[:at] + junk + data[at + len(junk) :])
    try:
        for block in Table(str(path), COLUMNS).blocks():
            assert np.isfinite(block.X).all() and np.isfinite(block.y).all()
    except SourceError:
        pass
