"""A corpus of bad files, each with the outcome of reading it: the bad rows and their reasons, or an error.

Every case writes its own files. Good rows of all cases obey y = a + 2 b (+ 3 where c is "v"), so that a test can check
that the good rows are read correctly.
"""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from kalprox.sources.quarantine import Reason

HEADER = "y,a,b\n"


@dataclass(frozen=True)
class Outcome:
    """The number of good rows, (row, column, reason) of each bad row; or a pattern that the SourceError matches."""

    good: int = 0
    bad: tuple[tuple[int, str, str], ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Case:
    """Files and the outcome of reading them: `write` writes them to a folder and returns the source.

    The options are those of `Columns.infer` and `Table`; the target is "y" unless they say otherwise.
    """

    name: str
    write: Callable[[Path], str]
    outcome: Outcome
    options: dict[str, Any] = field(default_factory=dict)


def row(i: int) -> str:
    return f"{i + 2 * (i % 7)},{i},{i % 7}\n"


def rows(n: int, start: int = 0) -> str:
    return "".join(map(row, range(start, start + n)))


def columns(n: int, start: int = 0) -> dict[str, np.ndarray]:
    a = np.arange(start, start + n, dtype=float)
    return {"y": a + 2 * (a % 7), "a": a, "b": a % 7}


def text(name: str, content: str | bytes, encoding: str = "utf-8") -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        data = content if isinstance(content, bytes) else content.encode(encoding)
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(folder / name)

    return write


def table(name: str, content: dict[str, Any] | pa.Table, **options: Any) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        made = content if isinstance(content, pa.Table) else pa.table(content)
        path = folder / name
        if name.endswith(".parquet"):
            pq.write_table(made, path, **options)
        else:
            new = ipc.new_stream if options.get("stream") else ipc.new_file
            with new(str(path), made.schema) as file:
                file.write_table(made, max_chunksize=options.get("max_chunksize"))
        return str(path)

    return write


def cut(write: Callable[[Path], str], share: float) -> Callable[[Path], str]:
    """The first part of the file that `write` writes."""

    def shorter(folder: Path) -> str:
        source = write(folder)
        data = Path(source).read_bytes()
        Path(source).write_bytes(data[: int(share * len(data))])
        return source

    return shorter


def damaged(write: Callable[[Path], str], at: float, size: int = 200) -> Callable[[Path], str]:
    """The file that `write` writes, with `size` bytes overwritten."""

    def changed(folder: Path) -> str:
        source = write(folder)
        data = bytearray(Path(source).read_bytes())
        begin = int(at * len(data))
        data[begin : begin + size] = bytes([0xA5]) * len(data[begin : begin + size])
        Path(source).write_bytes(data)
        return source

    return changed


def folder_of(*writes: Callable[[Path], str]) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        inside = folder / "data"
        inside.mkdir()
        for one in writes:
            one(inside)
        return str(inside)

    return write


def lines(objects: list[Any]) -> str:
    return "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in objects)


def objects(n: int, start: int = 0) -> list[Any]:
    return [{"y": i + 2 * (i % 7), "a": i, "b": i % 7} for i in range(start, start + n)]


def csv_cell(name: str, cell: str | bytes, reason: str, column: str = "a") -> Case:
    """One cell of one row is poison."""
    raw = cell if isinstance(cell, bytes) else cell.encode()
    cells = {"y": b"1", "a": b"1", "b": b"0"} | {column: raw}
    data = (HEADER + rows(5)).encode() + b",".join(cells.values()) + b"\n" + rows(4, 5).encode()
    return Case(f"csv: {name}", text("poison.csv", data), Outcome(9, ((6, column, reason),)))


def json_line(name: str, line: str | bytes, column: str, reason: str) -> Case:
    data = lines(objects(5)).encode() + (line if isinstance(line, bytes) else line.encode()) + b"\n"
    data += lines(objects(4, 5)).encode()
    return Case(f"jsonl: {name}", text("poison.jsonl", data), Outcome(9, ((6, column, reason),)))


def levelled(n: int, c: Callable[[int], str]) -> str:
    return "".join(f"{i + 2 * (i % 7) + 3 * (c(i) == 'v')},{i},{i % 7},{c(i)}\n" for i in range(n))


def _column(values: list[Any], kind: Any = None) -> dict[str, Any]:
    return columns(len(values)) | {"a": pa.array(values, kind)}


LONG = "csv: an int column that turns float in row 300,000"  # the one case of many rows


def int_turns_float(folder: Path) -> str:
    halves = "".join(f"{i + 0.5 + 2 * (i % 7)},{i + 0.5},{i % 7}\n" for i in range(300_000, 300_010))
    return text("poison.csv", HEADER + rows(300_000) + halves)(folder)


GOOD = table("good.parquet", columns(20))
TWICE = pa.table([[1], [2], [3]], names=["y", "a", "a"])
R = Reason

CASES = [
    # text where a number should be, and numbers that are none
    csv_cell("text in a number", "abc", R.NOT_NUMBER),
    csv_cell("text in the target", "abc", R.NOT_NUMBER, "y"),
    csv_cell("a comma for a point", '"1,5"', R.NOT_NUMBER),
    csv_cell("a hexadecimal", "0x10", R.NOT_NUMBER),
    csv_cell("a thousands separator", "1_000", R.NOT_NUMBER),
    csv_cell("a date in a number", "2020-01-01", R.NOT_NUMBER),
    csv_cell("blanks only", "  ", R.NOT_NUMBER),
    csv_cell("an empty cell", "", R.MISSING),
    csv_cell("NA", "NA", R.MISSING),
    csv_cell("NaN", "NaN", R.NOT_FINITE),
    csv_cell("inf", "-inf", R.NOT_FINITE),
    csv_cell("1e999", "1e999", R.NOT_FINITE),
    csv_cell("1e160", "1e160", R.TOO_LARGE),
    csv_cell("-1.7e308 in the target", "-1.7e308", R.TOO_LARGE, "y"),
    csv_cell("400 digits", "9" * 400, R.NOT_FINITE, "y"),
    csv_cell("a NUL in a number", b"1\x002", R.NUL),
    csv_cell("bytes that are not UTF-8 in a number", b"1\xff", R.NOT_UTF8),
    csv_cell("a quoted number is one", '"x"', R.NOT_NUMBER),
    # rows of another length
    Case(
        "csv: short and long rows",
        text("poison.csv", HEADER + rows(2) + "1,2\n" + rows(2, 2) + "1,2,3,4\n7\n" + rows(1, 4)),
        Outcome(5, ((3, "", R.TOO_FEW), (6, "", R.TOO_MANY), (7, "", R.TOO_FEW))),
    ),
    Case(
        "csv: a short row that is not UTF-8",
        text("poison.csv", (HEADER + rows(2)).encode() + b"\xff\xfe,2\n" + rows(2, 2).encode()),
        Outcome(4, ((3, "", R.TOO_FEW),)),
    ),
    Case(
        "csv: a quote that never closes",
        text("poison.csv", HEADER + rows(3) + '1,"2,3\n' + rows(3, 3)),
        Outcome(6, ((4, "", R.UNCLOSED),)),
    ),
    Case(
        "csv: a quote in the middle of a field is a character",
        text("poison.csv", HEADER + rows(3) + '1,2"x,3\n' + rows(3, 3)),
        Outcome(6, ((4, "a", R.NOT_NUMBER),)),
    ),
    Case(
        "csv: a record that ends in the middle of a row",
        text("poison.csv", HEADER + rows(3) + "1,"),
        Outcome(3, ((4, "", R.TOO_FEW),)),
    ),
    Case(
        "csv: one row with everything wrong is one bad row",
        text("poison.csv", HEADER + rows(3) + "x,,inf\n" + rows(3, 3)),
        Outcome(6, ((4, "y", R.NOT_NUMBER),)),
    ),
    # files that are as they should be, though it does not look so
    Case(LONG, int_turns_float, Outcome(300_010)),
    Case("csv: a byte order mark", text("poison.csv", HEADER + rows(5), "utf-8-sig"), Outcome(5)),
    Case("csv: CRLF, empty lines, no newline at the end", text("p.csv", "y,a,b\r\n\r\n0,0,0\r\n\r\n3,1,1"), Outcome(2)),
    Case("csv: CR alone", text("p.csv", "y,a,b\r0,0,0\r3,1,1\r"), Outcome(2)),
    Case("csv: quoted numbers and names", text("p.csv", '"y","a","b"\n"0","0","0"\n"3"," 1",1\n'), Outcome(2)),
    Case("csv: only a header", folder_of(text("a.csv", HEADER), text("b.csv", HEADER + rows(3))), Outcome(3)),
    Case(
        "csv: latin-1, said so",
        text("p.csv", ("y,a,b,c\n" + levelled(6, lambda i: "vé"[i % 2])).encode("latin-1")),
        Outcome(6),
        {"encoding": "latin-1"},
    ),
    Case(
        "csv: latin-1, not said, in a needed text",
        text("p.csv", ("y,a,b,c\n" + levelled(6, lambda i: "vvvév"[i % 5])).encode("latin-1")),
        Outcome(5, ((4, "c", R.NOT_UTF8),)),
    ),
    Case(
        "csv: latin-1, not said, in a column that is not asked for",
        text("p.csv", ("y,a,b,c\n" + levelled(6, lambda i: "uéu"[i % 3])).encode("latin-1")),
        Outcome(6),
        {"features": ["a", "b"]},
    ),
    Case("csv: UTF-16, said so", text("p.csv", HEADER + rows(5), "utf-16"), Outcome(5), {"encoding": "utf-16"}),
    Case(
        "csv: UTF-16, not said",
        text("p.csv", HEADER + rows(5), "utf-16"),
        Outcome(5),
    ),
    Case(
        "csv: UTF-16 without a byte order mark, not said",
        text("p.csv", HEADER + rows(5), "utf-16-le"),
        Outcome(error="NUL bytes. If the file is UTF-16.*encoding[= ]'?utf-16-le"),
    ),
    Case(
        "csv: an encoding that is none",
        text("p.csv", HEADER),
        Outcome(error="encoding must be one that Python knows.*got 'x'"),
        {"encoding": "x"},
    ),
    Case(
        "csv: a NUL in a needed text",
        text("p.csv", "y,a,b,c\n" + levelled(5, lambda i: "u\0" if i == 3 else "vu"[i % 2])),
        Outcome(4, ((4, "c", R.NUL),)),
    ),
    Case("csv: semicolons", text("p.csv", (HEADER + rows(5)).replace(",", ";")), Outcome(5), {"delimiter": ";"}),
    Case("tsv: tabs", text("p.tsv", (HEADER + rows(5)).replace(",", "\t")), Outcome(5)),
    Case(
        "csv: a missing level",
        text("p.csv", "y,a,b,c\n" + levelled(5, lambda i: "" if i == 3 else "vu"[i % 2])),
        Outcome(4, ((4, "c", R.MISSING),)),
    ),
    Case(
        "csv: a level that is not known",
        text("p.csv", "y,a,b,c\n" + levelled(5, lambda i: "w" if i == 3 else "vu"[i % 2])),
        Outcome(4, ((4, "c", R.UNSEEN),)),
        {"categorical": {"c": ["u", "v"]}, "unseen": "reject"},
    ),
    Case(
        "csv: a date that is none",
        text("p.csv", "y,a,b,t\n0,0,0,2020-02-28\n3,1,1,2020-02-30\n6,2,2,2020-02-29T12:00:00Z\n"),
        Outcome(2, ((2, "t", R.NOT_DATE),)),
        {"dates": ["t"]},
    ),
    Case(
        "csv: dates that were not asked for",
        text("p.csv", "y,a,b,t\n0,0,0,2020-02-28\n3,1,1,2020-02-29\n6,2,2,never\n"),
        Outcome(2, ((3, "t", R.NOT_DATE),)),
    ),
    Case(
        "csv: a weight below 0",
        text("p.csv", "y,a,b,w\n0,0,0,1\n3,1,1,-1\n6,2,2,0\n"),
        Outcome(2, ((2, "w", R.NEGATIVE_WEIGHT),)),
        {"weight": "w"},
    ),
    Case(
        "csv: weights that are too large, also for the values of their rows",
        text("p.csv", "y,a,b,w\n0,0,0,1e300\n1e50,1e50,0,1e40\n6,2,2,1e60\n2e50,2e50,0,1e41\n"),
        Outcome(2, ((1, "w", R.TOO_LARGE), (4, "w", R.WEIGHT_TOO_LARGE))),
        {"weight": "w"},
    ),
    Case(
        "csv: too many levels",
        text("p.csv", "y,a,b,c\n" + "".join(f"{i},{i},0,n{i}\n" for i in range(1500))),
        Outcome(error="column 'c' has 1,500 levels, more than the 1,000"),
    ),
    # columns
    Case(
        "csv: no target", text("p.csv", "Y,a,b\n1,2,3\n"), Outcome(error="no column 'y'.*The columns are 'Y', 'a', 'b'")
    ),
    Case(
        "csv: nearly the column",
        text("p.csv", "y,distanse,b\n1,2,3\n"),
        Outcome(error="no column 'distance'. Did you mean 'distanse'"),
        {"features": ["distance"]},
    ),
    Case("csv: a column twice", text("p.csv", "y,a,a\n1,2,3\n"), Outcome(error="2 columns 'a'")),
    Case(
        "csv: a column twice that is not asked for",
        text("p.csv", "y,a,b,x,x\n0,0,0,7,8\n3,1,1,7,z\n"),
        Outcome(2),
        {"features": ["a", "b"]},
    ),
    Case(
        "csv: the second file lacks a column",
        folder_of(text("a.csv", HEADER + rows(3)), text("b.csv", "y,a\n1,2\n")),
        Outcome(error="b.csv: there is no column 'b'"),
    ),
    Case("csv: a target of text", text("p.csv", "y,a\nu,1\nv,2\n"), Outcome(error="'y' must hold numbers.*text")),
    # files
    Case("csv: no byte at all", text("p.csv", ""), Outcome(error="no rows in")),
    Case("csv: a header and no row", text("p.csv", HEADER), Outcome(error="no rows in")),
    Case(
        "csv: an empty file among others",
        folder_of(text("a.csv", HEADER + rows(3)), text("b.csv", ""), text("c.csv", HEADER + rows(2))),
        Outcome(5, ((0, "", R.EMPTY),)),
    ),
    Case("a file that is not there", lambda folder: str(folder / "none.csv"), Outcome(error="no file .*none.csv")),
    Case("a glob without a match", lambda folder: str(folder / "*.csv"), Outcome(error="No file matches")),
    Case("a suffix that says nothing", text("p.xlsx", "PK"), Outcome(error="suffix '.xlsx' is not one of")),
    Case(
        "a folder of other things",
        folder_of(text("p.xlsx", "PK")),
        Outcome(error="no file with a known suffix.*p.xlsx"),
    ),
    Case("a folder of nothing", folder_of(), Outcome(error="no file with a known suffix.*has no files")),
    Case(
        "csv.gz: truncated", cut(text("p.csv.gz", HEADER + rows(5000)), 0.5), Outcome(error="cannot be read to its end")
    ),
    Case("csv.gz: not gzip", text("p.csv", HEADER), Outcome(error="cannot be read to its end"), {"format": "csv.gz"}),
    # JSON lines
    json_line("text in a number", '{"y": 1, "a": "3 apples", "b": 1}', "a", R.NOT_NUMBER),
    json_line("a list in a number", '{"y": 1, "a": [3], "b": 1}', "a", R.NOT_NUMBER),
    json_line("NaN", '{"y": 1, "a": NaN, "b": 1}', "a", R.NOT_FINITE),
    json_line("1e999", '{"y": 1, "a": 1e999, "b": 1}', "a", R.NOT_FINITE),
    json_line("1e160", '{"y": 1, "a": 1e160, "b": 1}', "a", R.TOO_LARGE),
    json_line("5000 digits", '{"y": 1, "a": ' + "9" * 5000 + ', "b": 1}', "a", R.NOT_FINITE),
    json_line("null", '{"y": null, "a": 1, "b": 1}', "y", R.MISSING),
    json_line("a key that is not there", '{"y": 1, "b": 1}', "a", R.MISSING),
    json_line("half an object", '{"y": 1, "a": 1, "b"', "", R.NOT_JSON),
    json_line("two objects", '{"y": 1, "a": 1, "b": 0}{"y": 1, "a": 1, "b": 0}', "", R.NOT_JSON),
    json_line("a list", "[1, 2, 3]", "", R.NOT_JSON),
    json_line("deep", '{"y": 1, "z": ' + "[" * 100_000 + "]", "", R.NOT_JSON),
    json_line("bytes", b"\xff\x00\xfe", "", R.NOT_JSON),
    Case(
        "jsonl: true and false are 1 and 0, other keys are ignored",
        text("p.jsonl", lines([{"y": 1, "a": True, "b": False, "z": [1]}, {"a": 0, "b": 0, "y": 0, "q": "\ud800"}])),
        Outcome(2),
        {"features": ["a", "b"]},
    ),
    Case("jsonl: a byte order mark", text("p.jsonl", lines(objects(5)), "utf-8-sig"), Outcome(5)),
    Case(
        "jsonl: null on the first line",
        text("p.jsonl", lines(["null", *objects(5)])),
        Outcome(5, ((1, "", R.NOT_JSON),)),
    ),
    Case(
        "csv: a byte order mark in the middle, as of two files in one",
        text("p.csv", HEADER + rows(3) + "\ufeff" + row(3) + rows(2, 4)),
        Outcome(5, ((4, "y", R.NOT_NUMBER),)),
    ),
    Case("jsonl: CRLF", text("p.ndjson", lines(objects(5)).replace("\n", "\r\n")), Outcome(5)),
    Case("jsonl: no target", text("p.jsonl", '{"a": 1}\n'), Outcome(error="no column 'y'")),
    # Parquet
    Case("parquet: truncated", cut(GOOD, 0.7), Outcome(error="good.parquet: not a valid Parquet file")),
    Case("parquet: no byte at all", text("p.parquet", ""), Outcome(error="no rows in")),
    Case("parquet: a CSV by another name", text("p.parquet", HEADER + rows(9)), Outcome(error="not a valid Parquet")),
    Case(
        "parquet: a damaged page",
        damaged(table("p.parquet", columns(3000), compression="gzip", use_dictionary=False), 0.05),
        Outcome(error="p.parquet: not a valid Parquet"),
    ),
    Case(
        "parquet: one of three truncated, skipped",
        folder_of(GOOD, cut(table("h.parquet", columns(9)), 0.7), table("i.parquet", columns(5))),
        Outcome(25, ((0, "", R.UNREADABLE),)),
        {"skip_unreadable": True},
    ),
    Case(
        "parquet: null, NaN and inf",
        table("p.parquet", _column([0.0, None, 2.0, np.nan, 4.0, -np.inf])),
        Outcome(3, ((2, "a", R.MISSING), (4, "a", R.NOT_FINITE), (6, "a", R.NOT_FINITE))),
    ),
    Case(
        "parquet: too large",
        table("p.parquet", _column([0.0, 1e160, 2.0, 3.0, -1.7e308])),
        Outcome(3, ((2, "a", R.TOO_LARGE), (5, "a", R.TOO_LARGE))),
    ),
    Case(
        "parquet: numbers as text",
        table("p.parquet", _column(["0", "1.0", "x", None, "4e0", "1e999"])),
        Outcome(3, ((3, "a", R.NOT_NUMBER), (4, "a", R.MISSING), (6, "a", R.NOT_FINITE))),
    ),
    Case("parquet: decimals", table("p.parquet", _column([Decimal("0.0"), Decimal("1.0")])), Outcome(2)),
    Case("parquet: small integers", table("p.parquet", _column([0, 1, 2], pa.uint8())), Outcome(3)),
    Case(
        "parquet: a column of lists",
        table("p.parquet", columns(2) | {"z": [[1], [2]]}),
        Outcome(error="column 'z' holds list.*Leave it out with .*exclude[= ]'?z"),
    ),
    Case(
        "parquet: the second file has a time where the first has a number",
        folder_of(table("a.parquet", columns(3)), table("b.parquet", _column([0, 1], pa.timestamp("us")))),
        Outcome(error="b.parquet: column 'a' is of type timestamp.*cannot be read as numbers"),
    ),
    Case(
        "parquet: a column twice",
        table("p.parquet", TWICE),
        Outcome(error="2 columns 'a'"),
    ),
    # Arrow
    Case("arrow: truncated", cut(table("p.arrow", columns(500)), 0.7), Outcome(error="p.arrow: not a valid")),
    Case(
        "arrow: a stream, truncated",
        cut(table("p.ipc", columns(500), stream=True), 0.7),
        Outcome(error="not a valid Arrow"),
    ),
    Case("arrow: a CSV by another name", text("p.feather", HEADER + rows(9)), Outcome(error="not a valid Arrow")),
    Case("arrow: no byte at all", text("p.arrow", ""), Outcome(error="no rows in")),
    Case(
        "arrow: null and NaN",
        table("p.arrow", _column([0.0, None, 2.0, np.nan])),
        Outcome(2, ((2, "a", R.MISSING), (4, "a", R.NOT_FINITE))),
    ),
    Case(
        "arrow: text that is not UTF-8",
        table(
            "p.arrow",
            pa.table(
                [[0.0, 3.0, 9.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0], pa.array([b"u", b"\xff", b"v"]).view(pa.string())],
                names=["y", "a", "b", "c"],
            ),
        ),
        Outcome(2, ((2, "c", R.NOT_UTF8),)),
    ),
]
