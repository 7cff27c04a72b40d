"""Files as people have them: each messy file gives the numbers of the clean one, or a message with the remedy."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from command import invoke
from hypothesis import given, settings
from hypothesis import strategies as st

from kalprox.jobs.model import TableModel
from kalprox.sources.columns import Columns
from kalprox.sources.files import STDIN, Replay, SourceError
from kalprox.sources.quarantine import Quarantine, TooManyBadRows
from kalprox.sources.readers.csv import find_delimiter
from kalprox.sources.readers.notation import Notation, likeness
from kalprox.sources.table import Table

NAMES = ["price", "area", "day", "city"]
ROWS = [
    (1250.5, 70.25, "2020-01-31", "Köln"),
    (-0.5, 31.0, "2020-02-29", "Bonn"),
    (1234567.0, 1000.125, "2020-03-01", "Köln"),
    (0.25, 12.5, "2021-12-31", "Bonn"),
]
CLEAN = "price,area,day,city\n" + "".join(f"{p!r},{a!r},{d},{c}\n" for p, a, d, c in ROWS)


def german(value: float, thousands: str = "") -> str:
    return f"{value:,}".replace(",", "x").replace(".", ",").replace("x", thousands)


def written(delimiter: str = ",", number: Any = repr, newline: str = "\n", quote: str = "") -> str:
    cells = [NAMES, *([number(p), number(a), d, c] for p, a, d, c in ROWS)]
    return "".join(delimiter.join(f"{quote}{cell}{quote}" for cell in row) + newline for row in cells)


class Case(NamedTuple):
    """The bytes of a file, the options, and the error: a pattern, or None where the numbers are those of the file."""

    data: bytes
    options: dict[str, Any]
    error: str | None = None
    bad: tuple[tuple[int, str, str], ...] = ()
    name: str = "messy.csv"


def case(text: str | bytes, error: str | None = None, *bad: Any, name: str = "messy.csv", **options: Any) -> Case:
    return Case(text if isinstance(text, bytes) else text.encode(), options, error, bad, name)


COMMAS = {"decimal": ","}
CASES = {
    "clean": case(CLEAN),
    "semicolons": case(written(";")),
    "tabs": case(written("\t")),
    "pipes": case(written("|")),
    "tabs, a TSV": case(written("\t"), name="messy.tsv"),
    "semicolons, a TSV": case(written(";"), name="messy.tsv"),
    "semicolons, compressed": case(gzip.compress(written(";").encode()), name="messy.csv.gz"),
    "semicolons and decimal commas": case(written(";", german), **COMMAS),
    "tabs and decimal commas": case(written("\t", german), **COMMAS),
    "semicolons, decimal commas, points between thousands": case(
        written(";", lambda v: german(v, ".")), decimal=",", thousands="."
    ),
    "semicolons, decimal commas, spaces between thousands": case(
        written(";", lambda v: german(v, " ")), decimal=",", thousands=" "
    ),
    "semicolons, decimal commas, no-break spaces between thousands": case(
        written(";", lambda v: german(v, "\u202f")), decimal=",", thousands=" "
    ),
    "quoted, commas between thousands": case(written(",", "{:,}".format, quote='"'), thousands=","),
    "quoted, decimal commas": case(written(",", german, quote='"'), **COMMAS),
    "apostrophes between thousands": case(written(";", lambda v: f"{v:,}".replace(",", "'")), thousands="'"),
    "a line sep=; as spreadsheets write it": case("sep=;\r\n" + written(";", newline="\r\n")),
    "a line sep=; and a column": case('"sep=|"\n' + written("|")),
    "a byte order mark and semicolons": case(("\ufeff" + written(";")).encode()),
    "CRLF": case(written(newline="\r\n")),
    "blank lines": case("\n\n" + written(";", newline="\r\n\r\n") + "\n\n"),
    "delimiters at the end of each line": case(written(newline=",\n")),
    "delimiters at the end of each row, not of the header": case(
        written(";", newline=";\n").replace("city;", "city", 1)
    ),
    "blanks around names and numbers": case(
        CLEAN.replace(",", " , ").replace(" , Köln", ",Köln").replace(" , B", ",B")
    ),
    "an index without a name": case("".join(f"{'' if i == 0 else i},{line}\n" for i, line in enumerate(CLEAN.split()))),
    "UTF-16 with its mark": case(written("\t").encode("utf-16")),
    "UTF-16, big end first": case(("\ufeff" + CLEAN).encode("utf-16-be")),
    "UTF-32": case(CLEAN.encode("utf-32")),
    "UTF-16, compressed": case(gzip.compress(written(";").encode("utf-16")), name="messy.csv.gz"),
    "Latin-1, said": case(written(";").encode("latin-1"), encoding="latin-1"),
    "an excluded column": case(CLEAN.replace("\n", ",1\n").replace("city,1", "city,extra", 1), exclude=["extra"]),
    "two columns of a name, excluded": case(
        CLEAN.replace("\n", ",x,y\n").replace("city,x,y", "city,e,e", 1), exclude=["e"]
    ),
    "a dash, NA and an empty cell": case(
        CLEAN + "-,1,2020-01-01,Bonn\n1,NA,2020-01-01,Bonn\n1,N/A,2020-01-01,Bonn\n1,1,,Bonn\n1,1,2020-01-01,\n",
        None,
        *((5, "price", "missing"), (6, "area", "missing"), (7, "area", "missing"), (8, "day", "missing")),
        (9, "city", "missing"),
    ),
    "a percentage and an amount among numbers": case(
        CLEAN + "5%,1,2020-01-01,Bonn\n1,$1.50,2020-01-01,Bonn\n1,1,31.12.2020,Bonn\n",
        None,
        *((5, "price", "not a number"), (6, "area", "not a number"), (7, "day", "not a date")),
    ),
    "a decimal point among decimal commas": case(
        written(";", german) + "1.5;1;2020-01-01;Bonn\n1,5;x;2020-01-01;Bonn\n",
        None,
        *((5, "price", "not a number"), (6, "area", "not a number")),
        **COMMAS,
    ),
    "thousands in the wrong places": case(
        written(";", lambda v: german(v, ".")) + "1.50;1;2020-01-01;Bonn\n",
        None,
        (5, "price", "not a number"),
        decimal=",",
        thousands=".",
    ),
    # refused
    "decimal commas, not said": case(
        written(";", german),
        r"column 'price' must hold numbers; it holds numbers with decimal commas, such as '1234567,0'"
        r"\. Use decimal=',' to read them\.",
    ),
    "decimal commas in a feature, not said": case(
        "price;area\n1;2,5\n2;3,5\n",
        r"column 'area' holds numbers with decimal commas, such as '2,5'. Use decimal=',' .*"
        "levels, use categorical='area'",
    ),
    "thousands, not said": case(
        written(";", "{:,}".format),
        r"row 1, column 'price': not a number \('1,250.5'\).*Use thousands=','",
    ),
    "thousands in all cells, not said": case(
        "price;area\n1,000,000.5;1\n2,500,000;2\n",
        "'price' must hold numbers; it holds numbers with marks between "
        "thousands, such as '1,000,000.5'. Use thousands=','",
    ),
    "commas that may be either": case(
        "price;area\n1;2,500\n2;3,500\n",
        "'area' holds numbers with commas, such as '2,500'. Use decimal=',' if the comma is a "
        "decimal mark, or thousands=','",
    ),
    "both marks, not said": case(
        "price;area\n1;2.500,5\n2;3.500,5\n",
        "decimal commas and marks between thousands.*Use decimal=',' thousands='.'",
    ),
    "the same mark twice": case(written(";"), "thousands must differ.*give decimal=',' as well", thousands="."),
    "a mark that is none": case(CLEAN, "decimal must be . or ,.*got ';'", decimal=";"),
    "percentages": case(
        "price,rate\n1,5%\n2,7%\n", "'rate' holds percentages, such as '5%'.*Use units='%'.*without it"
    ),
    "amounts": case(
        "price,fee\n1,$5\n2,$7.50\n", r"'fee' holds amounts with a currency sign.*Use units='\$'.*without it"
    ),
    "amounts in euros": case("price;fee\n1;5,10 €\n2;7,50 €\n", r"'fee' holds amounts with a currency sign.*'5,10 €'"),
    "dates of another order": case(
        "price;on\n1;31.12.2020\n2;1.2.2021\n",
        "'on' holds dates that are not in ISO 8601, such as '31.12.2020'.*2020-12-31",
    ),
    "Latin-1, not said": case(
        written(";").encode("latin-1"), r"row 1, column 'city': not UTF-8 \('K\\\\xf6ln'\).*Use encoding='latin-1'"
    ),
    "Latin-1 in a name, not said": case(
        CLEAN.replace("area", "fläche").encode("latin-1"),
        r"the name of column 2 is 'fl\\\\xe4che'. Use encoding='latin-1'",
    ),
    "UTF-16 without a mark": case(CLEAN.encode("utf-16-le"), "NUL bytes.*encoding='utf-16-le'"),
    "two columns of a name": case(
        CLEAN.replace("area", "day"), "there are 2 columns 'day'. Rename them, or leave them out with exclude='day'"
    ),
    "a column to exclude that is not there": case(CLEAN, "no column 'cty'. Did you mean 'city'", exclude=["cty"]),
    "the target excluded": case(CLEAN, "exclude must not have the target.*'price'", exclude=["price"]),
    "another delimiter said": case(written(";"), "If ';' separates names, give delimiter=';'", delimiter=","),
    "a table without numbers in the first column's place": case(
        "Report of 2020\n\n" + written(";"), "no column 'price'.*'Report of 2020'"
    ),
}


def read(case: Case, folder: Path) -> tuple[list[str], np.ndarray, np.ndarray, list[Any]]:
    path = folder / case.name
    path.write_bytes(case.data)
    options = dict(case.options)
    columns = Columns.infer([path], "price", **options)
    options.pop("exclude", None)
    blocks = list(Table(str(path), columns, **options).blocks())
    bad = [row for block in blocks for row in block.bad]
    X, y = np.concatenate([block.X for block in blocks]), np.concatenate([block.y for block in blocks])
    quarantine = Quarantine(max_bad=None if not case.bad else len(case.bad))
    quarantine.take(bad, len(y))
    return columns.names, X, y, bad


@pytest.mark.parametrize("name", CASES)
def test_messy(name, tmp_path):
    case = CASES[name]
    if case.error is not None:
        with pytest.raises(SourceError, match=f"(?s){case.error}"):
            read(case, tmp_path)
        return
    names, X, y, bad = read(case, tmp_path)
    assert tuple((row.row, row.column, str(row.reason)) for row in bad) == case.bad
    expected = read(CASES["clean"], tmp_path)
    assert names == expected[0] and "day" in names
    assert np.array_equal(X, expected[1]) and np.array_equal(y, expected[2])


def test_the_set_is_large():
    assert len(CASES) >= 40


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.error is None and case.name == "messy.csv"]
)
def test_standard_input_and_resuming_read_the_same(name, tmp_path):
    """A stream is rewound after the delimiter and the encoding have been found, and blocks follow from any cursor."""
    case = CASES[name]
    options = {key: value for key, value in case.options.items() if key != "exclude"}
    stream = Replay(io.BytesIO(case.data))
    columns = Columns.infer([STDIN], "price", stdin=stream, **case.options)
    table = Table("-", columns, stdin=stream, **options)
    found = table.found()
    X = np.concatenate([block.X for block in table.blocks()])
    assert np.array_equal(X, read(CASES["clean"], tmp_path)[1])
    path = tmp_path / "messy.csv"
    path.write_bytes(case.data)
    table = Table(str(path), columns, memory=1, **options)
    assert table.found() == found
    blocks = list(table.blocks())
    for i, block in enumerate(blocks[:-1]):
        rest = Table(str(path), columns, memory=1, **options).blocks(block.place.cursor)
        assert np.array_equal(np.concatenate([b.X for b in rest]), np.concatenate([b.X for b in blocks[i + 1 :]]))


def test_what_is_found_is_said_for_each_kind_of_file(tmp_path):
    for name, text in {"a": written(";"), "b": CLEAN, "c": written(";"), "d": written("\t")}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "e.csv").write_bytes(written(";").encode("utf-16"))
    columns = Columns.infer([tmp_path / "a.csv"], "price")
    assert Table(str(tmp_path / "b.csv"), columns).found() == []
    assert Table(str(tmp_path / "a.csv"), columns).found() == ["Read with delimiter ';'."]
    assert Table(str(tmp_path / "a.csv"), columns, delimiter=";").found() == []
    assert Table(str(tmp_path), columns).found() == [
        f"Read with delimiter ';': {tmp_path / 'a.csv'} and 1 more.",
        f"Read with delimiter '\\t': {tmp_path / 'd.csv'}.",
        f"Read with delimiter ';' and encoding 'utf-16': {tmp_path / 'e.csv'}.",
    ]
    assert sum(len(block) for block in Table(str(tmp_path), columns).blocks()) == 5 * len(ROWS)


def test_the_marks_belong_to_the_identity_of_a_reading(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(CLEAN)
    columns = Columns.infer([path], "price")
    plain, commas = Table(str(path), columns), Table(str(path), columns, decimal=",")
    assert plain.identity() != commas.identity()
    assert Table(str(path), columns, thousands=",").identity()["thousands"] == ","
    assert {"decimal": ",", "thousands": None}.items() <= commas.options.items()


def test_numbers_as_text_in_parquet_have_marks_too(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"price": ["1,5", "2.000,5", "x"], "area": [1.0, 2.0, 3.0]}), path)
    columns = Columns.infer([path], "price", decimal=",", thousands=".")
    (block,) = Table(str(path), columns, decimal=",", thousands=".").blocks()
    assert block.y.tolist() == [1.5, 2000.5] and [(row.row, row.value) for row in block.bad] == [(3, "x")]


def test_json_has_numbers_of_its_own(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"y": 1, "a": "1,5"}\n{"y": 2, "a": "2,5"}\n')
    with pytest.raises(
        SourceError, match=r"'a' holds numbers with decimal commas as text, such as '1,5'. Write them as numbers"
    ):
        Columns.infer([path], "y", decimal=",")


def test_many_digits_are_noted_with_marks(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("price;area\n1,5;9007199254740993\n2,5;1\n")
    columns = Columns.infer([path], "price", decimal=",")
    (block,) = Table(str(path), columns, decimal=",").blocks()
    assert block.X[:, 0].tolist() == [9007199254740992.0, 1.0] and block.notes.rounded["area"].count == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ","),
        ("", ","),
        ("a,b\n1,2\n", ","),
        ("a;b\n1,5;2,5\n", ";"),
        ("y;a,b\n1;2\n3;4\n", ";"),
        ('"a;b",c\n1,2\n', ","),
        ("a,b;c\n1,5;2\n3;4\n", ";"),
        ("a,b\tc\n1,2\t3\n", ","),
    ],
)
def test_find_delimiter(text, expected):
    assert find_delimiter(text, ",", whole=True) == expected


CELLS = st.one_of(
    st.integers().map(str), st.floats(allow_nan=False).map(repr), st.text('ab ,;|\t."', max_size=6), st.just("1,5")
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([*",;\t|"]), st.sampled_from(["\n", "\r\n"]), st.integers(2, 6), st.integers(0, 30))
def test_a_written_file_is_read_with_its_delimiter(data, delimiter, newline, width, rows):
    """Whatever the cells are: csv.writer quotes those that need it."""
    cells = data.draw(st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=rows, max_size=rows))
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=newline).writerows([[f"n{i}" for i in range(width)], *cells])
    assert find_delimiter(text.getvalue(), ",", whole=True) == delimiter


@pytest.mark.parametrize("cells", [["ABC 123", "XYZ 456"], ["a,b", "c"], ["12:30"], ["N14228"], ["", "NA"], ["1-2"]])
def test_other_text_looks_like_no_number(cells):
    assert likeness(pa.array(cells)) is None


def test_every_mark_is_read_or_refused():
    cells = pa.array(["1.234,5", "1234,5", "12.34", "-1.234.567", "+,5", "1,", "1e3", "NaN", "", "1.2345", ".5"])
    plain, bad = Notation(",", ".").plain_numbers(cells)
    assert bad.tolist() == [2, 9, 10]
    good = [b"1234.5", b"1234.5", None, b"-1234567", b"+.5", b"1.", b"1e3", b"NaN", b"", None, None]
    assert plain.to_pylist() == good


# on the command line


def test_the_command_says_what_it_found_and_names_options(tmp_path):
    path, out = tmp_path / "a.csv", tmp_path / "m.kalprox"
    path.write_text(written(";", german))
    refused = invoke("fit", path, "-y", "price", "--out", out, code=3).output
    assert "column 'price'" in refused and "Use --decimal , to read them." in refused and "decimal=" not in refused
    said = invoke("fit", path, "-y", "price", "--decimal", ",", "--out", out).output
    assert "Read with delimiter ';'." in said and "Read as dates, in days since 1970-01-01: day." in said
    new = tmp_path / "new.csv"
    new.write_text(written("\t"))  # a file to predict may have other marks
    assert "Read with delimiter '\\t'." in invoke("predict", out, new, "--out", tmp_path / "p.csv").output
    assert "no such" not in invoke("fit", path, "-y", "price", "--decimal", "x", code=2).output.lower()
    text = invoke("predict", out, path, "--out", tmp_path / "p.csv", code=4).output
    assert "Use --decimal , to read numbers with decimal commas" in text and "Allow more with --max-bad:" in text
    text = invoke("fit", path, "-y", "price", "--decimal", ",", "--thousands", ",", code=3).output
    assert "--thousands must differ from the decimal mark" in text
    text = invoke("fit", path, "-y", "prize", "--decimal", ",", code=3).output
    assert "Did you mean 'price'" in text
    assert "--delimiter must be one" in invoke("fit", path, "-y", "price", "--delimiter", ";;", code=3).output
    said = invoke("fit", path, "-y", "price", "--decimal", ",", "--exclude", "day,city", "--out", out).output
    assert "dates" not in said and len(TableModel.load(out).columns.names) == 1


def test_no_values_in_messages_without_samples(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("price;area\n1;2,5\n2;3,5\n")
    text = invoke("fit", path, "-y", "price", "--no-samples", code=3).output
    assert "numbers with decimal commas. Use --decimal ," in text and "2,5" not in text


def test_a_fit_with_marks_resumes_only_with_the_same_marks(tmp_path):
    from kalprox.jobs.fit import FitJob

    path = tmp_path / "a.csv"
    path.write_text(written(";", german))
    columns = Columns.infer([path], "price", decimal=",")
    one, other = (FitJob(Table(str(path), columns, **marks), {}) for marks in ({"decimal": ","}, {}))
    assert json.dumps(one.identity()) != json.dumps(other.identity())


def test_too_many_bad_rows_is_still_raised(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("price,area\n1,2\n3,4\n5,6\n7,1_000\n")
    columns = Columns.infer([path], "price")
    bad = [row for block in Table(str(path), columns).blocks() for row in block.bad]
    with pytest.raises(TooManyBadRows, match="Use thousands='_'"):
        Quarantine().take(bad, 4)


def test_columns_are_kept_as_they_are_written(tmp_path):
    path, out, kept = tmp_path / "a.csv", tmp_path / "m.kalprox", tmp_path / "p.csv"
    path.write_text(written(";", german, newline=";\n") + "1,5;x;2020-01-01;Bonn;\n")
    invoke("fit", path, "-y", "price", "--decimal", ",", "--max-bad", 1, "--out", out)
    args = ("predict", out, path, "--decimal", ",", "--max-bad", 1)
    invoke(*args, "--out", tmp_path / "plain.csv")
    invoke(*args, "--keep", "all", "--out", kept)
    found = pa.csv.read_csv(kept, convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(NAMES, pa.string())))
    assert found["area"].to_pylist() == [german(row[1]) for row in ROWS] + ["x"]
    plain = pa.csv.read_csv(tmp_path / "plain.csv")
    assert found["mean"].to_pylist() == plain["mean"].to_pylist() and found["mean"].null_count == 1
