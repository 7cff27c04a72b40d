"""Rows of a stream are encoded as a table encodes them, on the fast way and on the slow one."""

import itertools
import json

import numpy as np
import pytest

from kalprox.sources.columns import Columns
from kalprox.sources.quarantine import Reason
from kalprox.sources.records import Record
from kalprox.sources.row_parser import RowParser, Style
from kalprox.sources.table import Table

COLUMNS = Columns("y", numeric=("a", "b"), categorical={"g": ("u", "v w", "7", "ü", "true")}, unseen="reject")
WEIGHTED = Columns("y", "w", numeric=("a",), categorical={"g": ("u", "v")}, unseen="zero")
CLASSES = Columns("y", numeric=("a",), classes=("no", "yes", "maybe"))
NAMES = ["y", "a", "b", "g", "w"]

NUMBERS = [
    "1.5", "-2", "1e3", "+4.25", " 7 ", "0.1", "-0.0", "1e-320", "9007199254740991", "9007199254740993", "1e300",
    "1e400", "nan", "inf", "-Infinity", "", "NA", "1_000", "1,5", "0x10", "twelve", "1e", ".5", "5.", "١", "1\t", "2 3",
]  # fmt: skip
LEVELS = ["u", "v w", "7", "7.0", " u", "ü", "true", "True", "", "NA", "zz", "v  w", "007"]
JSON_NUMBERS = [1.5, -2, 0, True, False, None, "", "1.5", 9007199254740993, 1e300, [1], {"a": 1}, 0.1, 10**400, "x"]
JSON_LEVELS = ["u", "v w", 7, 7.0, "7", True, None, "", "zz", "ü", 0, [1], "\ud800"]


def opened(parser, lines):
    return [parser.open(Record(line, 0, len(line), 0.0)) for line in lines]


def parse(parser, lines):
    return parser.parse(opened(parser, lines), list(range(1, len(lines) + 1)))


def slow(parser):
    parser._is_plain = False
    return parser


def same(one, other):
    for name in ("at", "taught_at", "bad"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.notes == other.notes
    for block, block_ in ((one.asked, other.asked), (one.taught, other.taught)):
        assert (block is None) is (block_ is None)
        for name in ("X", "y", "weights") if block is not None else ():
            a, b = getattr(block, name), getattr(block_, name)
            assert (a is None) is (b is None), name
            if a is not None:
                np.testing.assert_array_equal(a, b)
                assert a.dtype == b.dtype == np.float64


def csv_line(values):
    return ",".join(values).encode() + b"\n"


@pytest.mark.parametrize(
    "columns", [COLUMNS, pytest.param(WEIGHTED, marks=pytest.mark.slow), CLASSES], ids=["levels", "weights", "classes"]
)
def test_the_fast_way_gives_what_the_slow_way_gives_for_any_cell_of_csv(columns):
    style = Style(NAMES)
    fast, reference = RowParser(columns, style), slow(RowParser(columns, style))
    targets = [*NUMBERS, "yes", "NO", "maybe", " yes"]
    cells = itertools.chain(
        ((y, "1.5", "2", "u", "1") for y in targets),
        (("yes" if columns.classes else "1", a, "2", "u", "3") for a in NUMBERS),
        (("", a, "2", "u", "") for a in NUMBERS),
        (("3.5", "1", "2", g, "2") for g in LEVELS),
        (("3.5", "1", "2", "u", w) for w in [*NUMBERS, "-1"]),
        [("1", "2"), ("1", "2", "3", "u", "1", "6"), ('"1"', "2", "3", '"u"', "1"), ("1", '"2', "3", "u", "1")],
    )
    fast_rows = 0
    for values in cells:
        line = csv_line(values)
        same(parse(fast, [line]), parse(reference, [line]))
        fast_rows += fast._plain.parse([row.cells for row in opened(fast, [line])]) is not None
    assert fast_rows > 15  # the comparison is one of two ways


@pytest.mark.parametrize(
    "columns", [COLUMNS, WEIGHTED, pytest.param(CLASSES, marks=pytest.mark.slow)], ids=["levels", "weights", "classes"]
)
def test_the_fast_way_gives_what_the_slow_way_gives_for_any_value_of_json(columns):
    fast, reference = RowParser(columns, Style()), slow(RowParser(columns, Style()))
    usual = {"y": "yes" if columns.classes else 1.5, "a": 1, "b": 2.5, "g": "u", "w": 2}
    objects = [usual | {name: value} for name in NAMES for value in (*JSON_NUMBERS, *JSON_LEVELS, -1)]
    objects += [{k: v for k, v in usual.items() if k != name} for name in NAMES]
    objects += [usual | {"other": [1, {"deep": None}]}, {}, dict(reversed(usual.items()))]
    lines = [json.dumps(one).encode() + b"\n" for one in objects]
    lines += [b"[1]\n", b"null\n", b"{\n", b"\xff\xfe{}\n", b'{"y": NaN, "a": 1, "b": 1, "g": "u"}\n', b"{}{}\n"]
    fast_rows = 0
    for line in lines:
        same(parse(fast, [line]), parse(reference, [line]))
        fast_rows += fast._plain.parse([row.cells for row in opened(fast, [line])]) is not None
    assert fast_rows > 15


@pytest.mark.slow
@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_rows_of_a_stream_are_the_rows_of_the_table(tmp_path, format):
    """A file with every kind of cell, read by a table and in batches of any length."""
    rng = np.random.default_rng(3)
    rows = [
        {
            "y": rng.choice(NUMBERS[:8]),
            "a": rng.choice(NUMBERS),
            "b": rng.choice(NUMBERS[:6]),
            "g": rng.choice(LEVELS[:9]),
        }
        for _ in range(400)
    ]
    if format == "csv":
        lines, style = [csv_line(row.values()) for row in rows], Style(NAMES[:4])
        head = csv_line(NAMES[:4])
    else:
        numbers = {"y": [1, 2.5], "a": JSON_NUMBERS, "b": [0.25, 3], "g": JSON_LEVELS[:9]}
        picked = [{k: v[rng.integers(len(v))] for k, v in numbers.items()} for _ in rows]
        lines, style, head = [json.dumps(row).encode() + b"\n" for row in picked], Style(), b""
    file = tmp_path / f"rows.{format}"
    file.write_bytes(head + b"".join(lines))
    blocks = list(Table([file], COLUMNS).blocks())
    X, y = (np.concatenate([getattr(block, name) for block in blocks]) for name in ("X", "y"))
    bad = {row.row: (row.column, row.reason, row.value) for block in blocks for row in block.bad}
    for size in (1, 7, 400):
        parser, found, found_bad = RowParser(COLUMNS, style), [], {}
        for begin in range(0, len(lines), size):
            some = lines[begin : begin + size]
            part = parser.parse(opened(parser, some), [begin + i + 1 for i in range(len(some))])
            found.append(part)
            found_bad |= {row.row: (row.column, row.reason, row.value) for row in part.bad.values()}
        taught = [part.taught for part in found if part.taught is not None]
        np.testing.assert_array_equal(np.concatenate([block.X for block in taught]), X)
        np.testing.assert_array_equal(np.concatenate([block.y for block in taught]), y)
        assert found_bad == bad
    assert 50 < len(bad) < 350


def test_a_missing_target_makes_a_row_to_predict():
    for lines, style in (
        ([b'{"a": 1, "b": 2, "g": "u"%s}' % y for y in (b', "y": null', b"", b', "y": ""')], Style()),
        ([b",1,2,u", b"NA,1,2,u", b"?,1,2,u"], Style(NAMES[:4])),
    ):
        for parser in (RowParser(COLUMNS, style), slow(RowParser(COLUMNS, style))):
            found = parse(parser, lines)
            assert found.at == [0, 1, 2] and found.taught is None and not found.bad
            bad = parse(parser, [lines[0].replace(b"2", b"z" if style.header else b'"z"')])
            assert bad.at == [] and bad.bad[0].column == "b" and bad.bad[0].reason == Reason.NOT_NUMBER


def test_rows_with_and_without_targets_stay_in_order():
    parser = slow(RowParser(COLUMNS, Style(NAMES[:4])))
    lines = [b"1,1,0,u\n", b",2,0,u\n", b"x,3,0,u\n", b"4,4,0,u\n", b",5,0,7\n", b",6,?,7\n"]
    found = parse(parser, lines)
    assert found.asked.X[:, 0].tolist() == [1, 2, 4, 5] and found.at == [0, 1, 3, 4]
    assert found.taught.X[:, 0].tolist() == [1, 4] and found.taught_at == [0, 3]
    assert {i: row.row for i, row in found.bad.items()} == {2: 3, 5: 6}


def test_keys_are_the_same_in_any_spelling():
    parser = RowParser(COLUMNS, Style())
    keys = [
        parser.key(row, "id")
        for row in opened(parser, [b'{"id": 7}', b'{"id": "7"}', b'{"id": 7.0}', b'{"id": [7]}', b"{}"])
    ]
    assert keys == ["7", "7", "7", None, None]
    parser = RowParser(COLUMNS, Style(["id", *NAMES[:4]]))
    assert [parser.key(row, "id") for row in opened(parser, [b"7.0,1,2,3,u", b'"7",1,2,3,u', b",1,2,3,u", b"7"])] == [
        "7",
        "7",
        None,
        None,
    ]


def test_late_targets_are_parsed_as_targets_are():
    parser = RowParser(COLUMNS, Style(NAMES[:4]))
    block, at, bad = parser.targets(opened(parser, [b"1.5,,,", b"x,,,", b"2,1,2,u"]), [5, 6, 7])
    assert block.y.tolist() == [1.5, 2.0] and at == [0, 2] and bad[1].row == 6 and bad[1].reason == Reason.NOT_NUMBER
    parser = RowParser(CLASSES, Style())
    block, at, bad = parser.targets(opened(parser, [b'{"y": "YES"}', b'{"y": "perhaps"}']), [1, 2])
    assert block.y.tolist() == [[0, 1, 0]] and bad[1].reason == Reason.UNSEEN_CLASS


def test_values_stay_out_without_samples():
    parser = RowParser(COLUMNS, Style(NAMES[:4]), samples=False)
    found = parse(parser, [b"secret,1,2,u\n", b"1,2\n"])
    assert [row.value for row in found.bad.values()] == ["", ""]
