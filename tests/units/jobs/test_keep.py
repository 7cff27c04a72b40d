"""`kalprox predict --keep` copies columns of the source to the output, bad rows included."""

import csv

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from command import invoke

from kalprox.base.text import from_csv_cell
from kalprox.jobs.predict import NAMES

TEXTS = [
    "=1+1",
    "-5",
    "'a",
    "a,b",
    'say "x"',
    "two\nlines",
    "tab\t",
    "  ",
    "NA",
    "été",
    "+cmd|' /C calc'!A0",
    "\x1b[31m",
]


@pytest.fixture
def model(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    frame = pd.DataFrame({"y": X @ [1.0, 2.0], "a": X[:, 0], "c": np.where(X[:, 1] > 0, "u", "v")})
    frame.to_csv(tmp_path / "train.csv", index=False)
    invoke("fit", tmp_path / "train.csv", "--target", "y", "--out", tmp_path / "model.kalprox", "-q")
    return tmp_path / "model.kalprox"


def messy(path):
    """Write rows with ids of every kind, and bad rows: a word for a number, a missing one, and too few fields."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "a", "c", "note"])
        for i, text in enumerate(TEXTS):
            writer.writerow([text, f"{i}.50", "u", f"n{i}"])
        writer.writerows([["bad", "12OO", "v", "n"], ["missing", "", "v", "n"], ["short"], ["last", "1e0", "v", "="]])
    return path


def test_ids_and_features_are_kept_as_they_are_written(model, tmp_path):
    rows, out = messy(tmp_path / "new.csv"), tmp_path / "out.csv"
    invoke("predict", model, rows, "--out", tmp_path / "plain.parquet", "--max-bad", 9, "-q")
    for name in ("out.csv", "out.parquet"):
        invoke("predict", model, rows, "--out", tmp_path / name, "--keep", "id,a", "--max-bad", 9, "-q")
    with out.open(newline="", encoding="utf-8") as file:
        header, *cells = csv.reader(file)
    assert header == ["id", "a", *NAMES]
    ids = [*TEXTS, "bad", "missing", "", "last"]
    numbers = [*(f"{i}.50" for i in range(len(TEXTS))), "12OO", "", "", "1e0"]
    assert [from_csv_cell(row[0]) for row in cells] == ids and [row[1] for row in cells] == numbers
    assert not any(row[0].startswith(("=", "+", "@", "\t", "\r")) for row in cells)
    assert all(row[2:] == [""] * 4 for row in cells[-4:-1]) and all(row[2] for row in cells[:-4])

    table, plain = pa.parquet.read_table(tmp_path / "out.parquet"), pa.parquet.read_table(tmp_path / "plain.parquet")
    assert table.column("id").to_pylist() == [*TEXTS, "bad", "missing", None, "last"]
    assert table.select(list(NAMES)) == plain  # in every bit, although a is read as text here


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
def test_types_are_kept_where_the_source_has_types(suffix, model, tmp_path):
    frame = pd.DataFrame(
        {
            "id": [2**60 + 1, 2, 3],
            "a": [1.5, 2.5, np.nan],
            "when": pd.to_datetime(["2013-01-01", "2013-01-02", "2013-01-03"]),
            "c": pd.Categorical(["u", "v", "u"]),
            "flag": [True, False, True],
        }
    )
    source = tmp_path / f"new.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(source)
    elif suffix == "arrow":
        with (
            pa.OSFile(str(source), "wb") as file,
            pa.ipc.new_file(file, (t := pa.Table.from_pandas(frame)).schema) as w,
        ):
            w.write_table(t)
    else:
        frame.drop(columns="when").to_json(source, orient="records", lines=True)
    invoke("predict", model, source, "--out", tmp_path / "out.parquet", "--keep", "all", "--max-bad", 9, "-q")
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert list(found.columns[-4:]) == list(NAMES) and np.isnan(found["mean"][2])
    assert [int(i) for i in found["id"]] == [2**60 + 1, 2, 3] and list(found["c"]) == ["u", "v", "u"]
    if suffix != "jsonl":
        assert found["id"].dtype == np.int64 and list(found["when"]) == list(frame["when"])
        assert list(found["flag"]) == [True, False, True]
    invoke("predict", model, source, "--out", tmp_path / "out.csv", "--keep", "id,flag", "--max-bad", 9, "-q")
    assert [int(i) for i in pd.read_csv(tmp_path / "out.csv")["id"]] == [2**60 + 1, 2, 3]


def test_several_files_and_standard_output(model, tmp_path):
    for name, text in (("1.csv", "a,c,id\n1,u,x\n"), ("2.csv", ""), ("3.csv", "id,c,a\ny,v,2\n")):
        (tmp_path / name).write_text(text)
    out = invoke("predict", model, tmp_path / "[123].csv", "--keep", "id", "--max-bad", 1).output.splitlines()
    assert out[0] == '"id","mean","std","lower","upper"'
    assert [line.split(",")[0] for line in out[1:3]] == ['"x"', '"y"']


@pytest.mark.parametrize("keep", ["mean", "all"])
def test_names_of_predictions_are_refused(keep, model, tmp_path):
    (tmp_path / "new.csv").write_text("a,c,mean\n1,u,3\n")
    refused = invoke("predict", model, tmp_path / "new.csv", "--out", tmp_path / "out.csv", "--keep", keep, code=2)
    assert "column 'mean' of the source cannot be kept: rename it" in " ".join(refused.output.split())
    assert not (tmp_path / "out.csv").exists()


def test_a_column_that_is_not_there_is_refused(model, tmp_path):
    (tmp_path / "new.csv").write_text("a,c,id\n1,u,3\n")
    refused = invoke("predict", model, tmp_path / "new.csv", "--out", tmp_path / "out.csv", "--keep", "idd", code=3)
    assert "there is no column 'idd'. Did you mean 'id'?" in refused.output


def test_a_column_whose_type_changes_is_refused_in_words(model, tmp_path):
    for name, ids in (("1.parquet", [1]), ("2.parquet", ["x"])):
        pd.DataFrame({"a": [1.0], "c": ["u"], "id": ids}).to_parquet(tmp_path / name)
    refused = invoke("predict", model, tmp_path / "?.parquet", "--out", tmp_path / "o.parquet", "--keep", "id", code=3)
    assert "is of type string, and of type int64 in the rows before" in " ".join(refused.output.split())
    assert not (tmp_path / "o.parquet").exists()
