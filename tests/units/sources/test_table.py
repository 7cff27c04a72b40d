"""Files as a source: every format, split and block size gives the same rows, from any cursor; bad rows are named."""

import gzip
import io
import json
from dataclasses import asdict, replace
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from poison import CASES, LONG, Case

from kalprox.sources import ArraySource, Block, Counts
from kalprox.sources.base import ColumnSums
from kalprox.sources.columns import Columns
from kalprox.sources.files import STDIN, Replay, SourceError, find
from kalprox.sources.table import Cursor, Table

READING = {"format", "encoding", "delimiter", "stdin", "skip_unreadable"}


def read(source, columns, start=None, **options):
    return list(Table(source, columns, **options).blocks(start))


def infer_and_read(source, options, memory=1 << 28):
    table = {name: value for name, value in options.items() if name in READING}
    columns = Columns.infer(find(source), **({"target": "y", "contrast": "full"} | options))
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
        assert one.place.cursor == other.place.cursor and one.place.names() == other.place.names()


# the corpus of bad files


def poison():
    """Each case with little memory, the long one with much, with which jobs/test_poison_cli.py reads the others."""
    for case in CASES:
        for memory, name in ((1, "small"), (1 << 28, "large")):
            quick = (memory == 1) != (case.name == LONG)
            yield pytest.param(case, memory, id=f"{case.name}-{name}", marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("case", "memory"), list(poison()))
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


# the same rows from every format, split and block size


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


OPTIONS = {"weight": "weight", "dates": ["day"], "contrast": "full"}


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


@pytest.mark.slow
def test_inferred_columns_are_the_same_for_every_format(sources, columns):
    assert columns.names == ["number", "level=a", "level=b, c", 'level=d "e"', "level=f\ng", "level=é", "count", "day"]
    for suffix in SUFFIXES:
        assert Columns.infer(find(str(sources / f"one.{suffix}")), "y", **OPTIONS) == columns
    assert Columns.from_json(json.loads(json.dumps(columns.to_json()))) == columns


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_blocks_are_the_same_whichever_thread_parses_them(sources, columns, suffix):
    for memory in (1 << 18, 1 << 28):
        table = Table(str(sources / suffix), columns, memory=memory)
        expected = list(table.blocks())
        same(list(table.blocks(threads=3)), expected)
        same(list(table.blocks_ahead()), expected)
        start = expected[len(expected) // 2].place.cursor
        same(list(table.blocks(start, threads=2)), expected[len(expected) // 2 + 1 :])


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


# resuming at any cursor


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [None, 7])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_resume(sources, columns, suffix, shuffle):
    options = {"memory": 1 << 19, "shuffle": shuffle}
    for source in (str(sources / f"one.{suffix}"), str(sources / suffix)):
        blocks = read(source, columns, **options)
        assert len(blocks) > 10
        step = 1 if shuffle is None else 9  # shuffled rows are all read again from every cursor
        for i in range(0, len(blocks), step):  # the next block and its cursor from every cursor: by induction, all
            cursor = Cursor(**json.loads(json.dumps(asdict(blocks[i].place.cursor))))
            same(list(islice(Table(source, columns, **options).blocks(cursor), 1)), blocks[i + 1 : i + 2])
        middle = len(blocks) // 2
        same(read(source, columns, blocks[middle].place.cursor, **options), blocks[middle + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz", "jsonl", "jsonl.gz"])
def test_standard_input(sources, columns, suffix):
    data = (sources / f"one.{suffix}").read_bytes()
    format = suffix
    stream = Replay(io.BytesIO(data))
    found = Columns.infer([STDIN], "y", **OPTIONS, stdin=stream, format=format)
    table = Table("-", found, stdin=stream, format=format, memory=1 << 19)
    blocks = list(table.blocks())
    assert found == columns and np.array_equal(joined(blocks)[0], joined(read(str(sources / "one.csv"), columns))[0])
    assert table.known_rows() is None and table.done(blocks[0].place.cursor) is None
    assert table.fingerprint() == {"files": [None]}
    same(list(table.blocks()), blocks)  # it was stored, to find its levels
    once = Table("-", found, stdin=io.BytesIO(data), format=format, memory=1 << 19)
    same(list(once.blocks()), blocks)
    with pytest.raises(SourceError, match="only once"):
        list(once.blocks())
    for i in range(0, len(blocks), 5):
        again = Table("-", found, stdin=io.BytesIO(data), format=format, memory=1 << 19)
        same(list(again.blocks(blocks[i].place.cursor)), blocks[i + 1 :])
    other = (sources / "one.csv").read_bytes().replace(b"2020", b"2021", 1)
    if suffix == "csv":
        changed = Table("-", found, stdin=io.BytesIO(other), memory=1 << 19)
        with pytest.raises(SourceError, match="the bytes differ from those of the run to resume"):
            list(changed.blocks(blocks[-1].place.cursor))
        short = Table("-", found, stdin=io.BytesIO(other[:100]), memory=1 << 19)
        with pytest.raises(SourceError, match="the bytes differ from those of the run to resume"):
            list(short.blocks(blocks[-1].place.cursor))


def test_binary_formats_do_not_come_through_a_pipe(columns):
    with pytest.raises(SourceError, match="Standard input must be csv"):
        list(Table("-", columns, stdin=io.BytesIO(), format="parquet").blocks())


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_resume_in_another_encoding(tmp_path, encoding):
    path = tmp_path / "p.csv"
    path.write_bytes(
        "y,a,c\n".encode(encoding)
        + "".join(f"{i},{i},é{i % 3}\n" for i in range(3000)).encode(encoding)[2 * (encoding == "utf-16") :]
    )
    found = Columns.infer([path], "y", encoding=encoding, contrast="full")
    assert found.names == ["a", "c=é0", "c=é1", "c=é2"]
    blocks = read(str(path), found, memory=1, encoding=encoding)
    assert np.array_equal(joined(blocks)[1], np.arange(3000.0))
    for i in range(0, len(blocks), 9):
        same(read(str(path), found, blocks[i].place.cursor, memory=1, encoding=encoding), blocks[i + 1 :])


def numbered(blocks):
    """The target of each good row by its file and number."""
    places = [name for block in blocks for name in block.place.names()]
    return dict(zip(places, np.concatenate([block.y for block in blocks]), strict=True))


def test_shuffle(sources, columns):
    source = str(sources / "parquet")
    plain, drawn = read(source, columns), read(source, columns, shuffle=3)
    same(drawn, read(source, columns, shuffle=3))
    assert not np.array_equal(joined(drawn)[1], joined(plain)[1])
    assert np.array_equal(np.sort(joined(drawn)[1]), np.sort(joined(plain)[1]))
    assert numbered(plain) == numbered(drawn)


@pytest.mark.parametrize("memory", [1 << 28, 1 << 14])  # one pile, and many
def test_every_order_of_shuffled_rows_is_as_probable(tmp_path, memory):
    rows = 3000
    for i in range(3):
        lines = [json.dumps({"y": 1000 * i + j, "a": "n/a" if j == 700 else j}) for j in range(1000)]
        (tmp_path / f"{i}.jsonl").write_text("\n".join(lines))
    columns = Columns("y", numeric=("a",))
    for seed in range(3):
        blocks = read(str(tmp_path), columns, memory=memory, shuffle=seed)
        y = joined(blocks)[1]
        assert sorted(y) == sorted(set(range(rows)) - {700, 1700, 2700})
        place = np.arange(len(y))
        correlation, halves = np.corrcoef(place, y)[0, 1], (y[: len(y) // 2] < rows / 2).mean()
        assert abs(correlation) < 4 / np.sqrt(rows) and abs(halves - 0.5) < 4 * 0.5 / np.sqrt(rows)
        assert abs(np.corrcoef(y[1:], y[:-1])[0, 1]) < 4 / np.sqrt(rows)  # 4 standard errors of independent rows
        assert sorted((row.file[-7], row.row) for block in blocks for row in block.bad) == [(c, 701) for c in "012"]


def test_shuffled_files_of_several_types_and_an_empty_one(tmp_path):
    write(pa.table({"y": [1, 2, 3], "c": [1, 2, 3]}), tmp_path / "a.parquet")
    write(pa.table({"y": [4.0, 5.0], "c": ["1", "2"]}), tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("y,c\n6,3\n7,x\n8\n")
    (tmp_path / "d.csv").write_text("")
    found = Columns("y", categorical={"c": ("1", "2", "3")}, unseen="reject")
    for memory in (1 << 28, 1):
        blocks = read(str(tmp_path), found, memory=memory, shuffle=4)
        values = dict(zip((y for block in blocks for y in block.y), np.vstack([b.X for b in blocks]), strict=True))
        assert {y: x.argmax() + 1 for y, x in values.items()} == {1: 1, 2: 2, 3: 3, 4: 1, 5: 2, 6: 3}
        bad = sorted((row.file[-5], row.row, row.reason) for block in blocks for row in block.bad)
        assert bad == [("c", 2, "unseen level"), ("c", 3, "too few fields"), ("d", 0, "empty file")]
        assert sum(block.read for block in blocks) == 8
        for i in range(len(blocks)):
            cursor = Cursor(**json.loads(json.dumps(asdict(blocks[i].place.cursor))))
            same(read(str(tmp_path), found, cursor, memory=memory, shuffle=4), blocks[i + 1 :])


def test_shuffle_with_bad_rows(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("y,a\n" + "".join(f"{i},{'x' if i % 5 == 1 else i}\n" if i % 7 else "1\n" for i in range(500)))
    found = Columns("y", numeric=("a",))
    for block in read(str(path), found, memory=1, shuffle=1):
        assert np.array_equal(block.y + 1, block.place.rows[block.place.good]) and np.array_equal(
            block.X[:, 0], block.y
        )
        assert sorted(row.row for row in block.bad) == sorted(block.place.rows[~block.place.good])


# passes, and sizes


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


@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 5), (63, 3), (64, 3), (65, 3), (1000, 7)])
def test_ranges_of_a_block(n, d):
    X = np.random.default_rng(n).standard_normal((n, d))
    for block in (Block(X, X[:, 0]), Block(np.asfortranarray(X), X[:, 0]), Block(X[::-1, ::-1], X[:, 0])):
        found = ColumnSums.of(block)
        assert np.array_equal(found.low, block.X.min(axis=0)) and np.array_equal(found.high, block.X.max(axis=0))


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
    assert table.known_rows() == (5000 if suffix in ("parquet", "arrow") else None)
    shares = [table.done(block.place.cursor) for block in table.blocks()]
    assert shares == sorted(shares) and 0 <= shares[0] < 0.2
    assert shares[-1] == pytest.approx(1.0) or (suffix == "ipc" and 0.5 < shares[-1] < 1.0)
    assert table.done(Cursor()) == 0.0


def test_target_is_not_needed_to_predict(sources, columns):
    without = replace(columns, target=None, weight=None)
    (block, *_) = read(str(sources / "one.parquet"), without)
    assert block.y is None and block.weights is None and len(block.X)


# damaged files

COLUMNS = Columns("y", numeric=("a",), categorical={"c": ("u", "v, w", 'x "y"', "z")})


@pytest.mark.slow
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
@example(junk=b"\x01", at=67, name="p.arrow")  # asks for more memory than a process can address
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


# the clusters of the rows


def clustered(n=300):
    """Clusters of every type that can be written to all formats; the labels of the whole numbers and of the moments."""
    moments = np.datetime64("2013-01-01") + np.arange(n) // 9 * np.timedelta64(6, "h")
    return pa.table(
        {
            "y": np.arange(n, dtype=float),
            "a": np.arange(n) ** 2.0,
            "w": np.ones(n),
            "text": [f"é{i % 7}, x" for i in range(n)],
            "whole": np.arange(n) // 11,
            "as_float": (np.arange(n) // 11).astype(float),
            "yes": np.arange(n) % 2 == 0,
            "moment": moments.astype("datetime64[us]"),
        }
    )


def as_json(row):
    return json.dumps(row | {"moment": row["moment"].isoformat()}) + "\n"


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl", "pandas.csv"])
def test_clusters_have_the_same_labels_in_every_format(suffix, tmp_path):
    frame = clustered()
    path = tmp_path / f"rows.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(map(as_json, frame.to_pylist())))
    elif suffix == "pandas.csv":
        frame.to_pandas().to_csv(path, index=False)
    else:
        write(frame, path)
    number = [str(i // 11) for i in range(300)]
    days = [
        f"2013-01-{i // 9 // 4 + 1:02}" + ("", " 06:00:00", " 12:00:00", " 18:00:00")[i // 9 % 4] for i in range(300)
    ]
    for name, labels in {
        "text": [f"é{i % 7}, x" for i in range(300)],
        "whole": number,
        "as_float": number,
        "yes": [("true", "false")[i % 2] for i in range(300)],
        "moment": days,
    }.items():
        columns = Columns.infer([path], "y", ["a"], weight="w", cluster=name)
        for memory in (1, 1 << 28):
            blocks = read(str(path), columns, memory=memory)
            assert [label for block in blocks for label in block.groups.tolist()] == labels, name


def test_the_clusters_are_no_feature_and_their_column_must_be_there(tmp_path):
    write(clustered(), tmp_path / "rows.csv")
    files = [tmp_path / "rows.csv"]
    columns = Columns.infer(files, "y", weight="w", dates=["moment"], cluster="whole")
    assert columns.features == ("a", "text", "as_float", "yes", "moment") and columns.cluster == "whole"
    assert Columns.from_json(json.loads(json.dumps(columns.to_json()))) == columns
    with pytest.raises(SourceError, match=r"no column 'hole'\. Did you mean 'whole'"):
        Columns.infer(files, "y", ["a"], cluster="hole")
    for features, cluster in ((["a", "whole"], "whole"), (["a"], "y")):
        with pytest.raises(SourceError, match="the clusters and the features must be different columns"):
            Columns.infer(files, "y", features, cluster=cluster)


def test_columns_of_older_files_have_no_clusters():
    saved = Columns("y", numeric=("a",)).to_json()
    del saved["cluster"]
    assert Columns.from_json(saved) == Columns("y", numeric=("a",))


def test_a_row_without_a_cluster_is_bad(tmp_path):
    (tmp_path / "rows.csv").write_text("y,a,c\n1,1,u\n2,2,\n3,3,v\n4,,v\n5,5,u\n")
    write(
        pa.table({"y": [1.0, 2, 3, 4, 5], "a": [1, 2, 3, None, 5], "c": [1.0, None, 2.0, 2.0, 1.0]}),
        tmp_path / "rows.arrow",
    )
    write(pa.table({"y": [1.0, 2, 3], "a": [1, 2, 3], "c": [1.0, np.nan, 2.0]}), tmp_path / "nan.parquet")
    for name, labels in (("rows.csv", "uvu"), ("rows.arrow", "121"), ("nan.parquet", "12")):
        columns = Columns.infer([tmp_path / name], "y", ["a"], cluster="c")
        (block,) = read(str(tmp_path / name), columns)
        assert block.groups.tolist() == list(labels) and len(block.X) == len(labels)
        assert (block.bad[0].row, block.bad[0].column, block.bad[0].reason) == (2, "c", "missing")
    write(pa.table({"y": [1.0], "a": [1], "c": [[1, 2]]}), tmp_path / "list.parquet")
    with pytest.raises(SourceError, match="cannot be read as labels of clusters"):
        read(str(tmp_path / "list.parquet"), columns)


def test_clusters_of_shuffled_rows_and_of_rows_after_a_cursor(tmp_path):
    frame = clustered().set_column(
        1, "a", pa.array([None if i % 10 == 3 else i // 11 for i in range(300)], pa.float64())
    )
    write(frame, tmp_path / "rows.csv")
    columns = Columns("y", numeric=("a",), cluster="whole")
    for shuffle in (None, 1):
        blocks = read(str(tmp_path / "rows.csv"), columns, memory=1, shuffle=shuffle)
        assert len(blocks) > 3
        for block in blocks:
            assert [str(int(a)) for a in block.X[:, 0]] == block.groups.tolist()
        again = read(str(tmp_path / "rows.csv"), columns, blocks[1].place.cursor, memory=1, shuffle=shuffle)
        assert [block.groups.tolist() for block in again] == [block.groups.tolist() for block in blocks[2:]]
