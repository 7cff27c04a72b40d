"""Targets of classes: all that are in the rows, in any format and order of rows, or a clear error."""

import io
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from kalprox.sources.columns import Columns
from kalprox.sources.files import STDIN, Replay, SourceError
from kalprox.sources.formula import infer_formula, infer_formula_of_table
from kalprox.sources.inference import MOST_CLASSES, TargetClasses, _usable, encode_classes
from kalprox.sources.quarantine import Reason
from kalprox.sources.table import Table

N = 14_000


def flights(n=N, seed=0):
    """Rows sorted by their class, of which the first 12,000 have one."""
    rng = np.random.default_rng(seed)
    late = np.repeat(["no", "yes"], [12_000, n - 12_000])
    return pd.DataFrame({"late": late, "x": rng.standard_normal(n), "g": rng.choice(list("abc"), n)})


def csv(folder, text, name="a.csv"):
    (folder / name).write_text(text)
    return folder / name


def written(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".arrow":
        pa.feather.write_feather(pa.Table.from_pandas(frame), str(path), chunksize=4000)
    else:
        pa.parquet.write_table(pa.Table.from_pandas(frame), path, row_group_size=4000)
    return path


def learned(table):
    """The targets of all good rows, and all bad rows."""
    blocks = list(table.blocks())
    return np.concatenate([block.y for block in blocks]), [row for block in blocks for row in block.bad]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow", "jsonl"])
def test_a_file_sorted_by_its_classes_keeps_them_all(tmp_path, suffix):
    path = written(flights(), tmp_path / f"a.{suffix}")
    columns = Columns.infer([path], "late", classes=TargetClasses())
    assert columns.classes == ("no", "yes")
    y, bad = learned(Table([path], columns))
    assert y.shape == (N,) and not bad
    assert np.array_equal(y, np.repeat([0.0, 1.0], [12_000, N - 12_000]))


def test_several_classes_are_columns_of_y(tmp_path):
    rng = np.random.default_rng(1)
    kind = rng.integers(0, 12, 500)
    path = written(pd.DataFrame({"kind": kind, "x": rng.standard_normal(500)}), tmp_path / "a.csv")
    columns = Columns.infer([path], "kind", classes=TargetClasses())
    assert columns.classes == tuple(map(str, range(12)))  # sorted as numbers
    y, _ = learned(Table([path], columns))
    assert np.array_equal(y, np.eye(12)[kind])


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (["1", "2", "2.0", "1"], ("1", "2")),
        (["true", "False", "TRUE", "false"], ("false", "true")),
        (["10", "9", "9.50", "10"], ("9", "9.50", "10")),
        (["2020-01-01", "2020-01-02", "2020-01-01 00:00:00"], ("2020-01-01", "2020-01-02")),
    ],
)
def test_classes_are_values_however_they_are_spelled(tmp_path, cells, classes):
    path = csv(tmp_path, "y,x\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)))
    columns = Columns.infer([path], "y", classes=TargetClasses())
    assert columns.classes == classes
    assert not learned(Table([path], columns))[1]


@pytest.mark.parametrize("values", [[True, False, True], [1, 2, 1], [0.5, 1.5, 0.5], ["a", "b", "a"]])
def test_classes_of_any_type(tmp_path, values):
    path = written(pd.DataFrame({"y": values, "x": [1.0, 2.0, 3.0]}), tmp_path / "a.parquet")
    columns = Columns.infer([path], "y", classes=TargetClasses())
    y, bad = learned(Table([path], columns))
    assert not bad and y.tolist() == [float(value == max(values)) for value in values]


def test_the_positive_class(tmp_path):
    path = csv(tmp_path, "y,x\nspam,1\nham,2\nspam,3\n")
    assert Columns.infer([path], "y", classes=TargetClasses()).classes == ("ham", "spam")
    assert Columns.infer([path], "y", classes=TargetClasses(positive="ham")).classes == ("spam", "ham")
    assert Columns.infer([path], "y", classes=TargetClasses(positive=" Ham")).classes == ("spam", "ham")
    with pytest.raises(SourceError, match="positive must be one of the classes of column 'y'; got 'eggs' of 'ham', 's"):
        Columns.infer([path], "y", classes=TargetClasses(positive="eggs"))
    path = csv(tmp_path, "y,x\na,1\nb,2\nc,3\n")
    with pytest.raises(SourceError, match="unless there are two classes; column 'y' has 3"):
        Columns.infer([path], "y", classes=TargetClasses(positive="a"))


def test_missing_targets_are_bad_rows(tmp_path):
    path = csv(tmp_path, "y,x\nyes,1\n,2\nNA,3\nno,4\n?,5\n \t,6\nno,oops\nyes,7\n")
    columns = Columns.infer([path], "y", classes=TargetClasses())
    assert columns.classes == ("no", "yes")
    y, bad = learned(Table([path], columns))
    assert y.tolist() == [1.0, 0.0, 1.0]
    assert [(row.row, row.column, row.reason) for row in bad] == [
        *((row, "y", Reason.MISSING) for row in (2, 3, 5, 6)),
        (7, "x", Reason.NOT_NUMBER),
    ]


def test_a_listed_class_is_not_missing(tmp_path):
    path = csv(tmp_path, "y,x\n+,1\n-,2\n-,3\n+,4\n")
    with pytest.raises(SourceError, match=r"one class only, '\+'.*list the classes with classes"):
        Columns.infer([path], "y", classes=TargetClasses())
    columns = Columns.infer([path], "y", classes=TargetClasses(("-", "+")))
    y, bad = learned(Table([path], columns))
    assert y.tolist() == [1.0, 0.0, 0.0, 1.0] and not bad


def test_upper_and_lower_case(tmp_path):
    path = csv(tmp_path, "y,x\nyes,1\nYes ,2\nno,3\nNO,4\n")
    for most in (2, 100):
        with pytest.raises(SourceError, match="'NO' and 'no' of column 'y' differ only in upper and lower case"):
            Columns.infer([path], "y", classes=TargetClasses(most=most))
    columns = Columns.infer([path], "y", classes=TargetClasses(("no", "yes")))
    y, bad = learned(Table([path], columns))
    assert y.tolist() == [1.0, 1.0, 0.0, 0.0] and not bad
    columns = Columns.infer([path], "y", classes=TargetClasses(("no", "yes", "NO", "Yes")))
    assert learned(Table([path], columns))[0].argmax(axis=1).tolist() == [1, 3, 0, 2]


def test_one_class_none_and_too_many(tmp_path):
    path = csv(tmp_path, "y,x\nno,1\nno,2\n,3\n")
    with pytest.raises(SourceError, match="one class only, 'no': there is nothing to tell apart"):
        Columns.infer([path], "y", classes=TargetClasses())
    path = csv(tmp_path, "y,x\n,1\nNA,2\n")
    with pytest.raises(SourceError, match="no class: there is nothing"):
        Columns.infer([path], "y", classes=TargetClasses())
    path = csv(tmp_path, "y,x\n" + "".join(f"{i},1\n" for i in range(MOST_CLASSES)))
    assert len(Columns.infer([path], "y", classes=TargetClasses()).classes) == MOST_CLASSES
    path = csv(tmp_path, "y,x\n" + "".join(f"{i / 7},1\n" for i in range(MOST_CLASSES + 1)))
    with pytest.raises(SourceError, match=r"more than 100 classes: '0'.*Did you mean a regression"):
        Columns.infer([path], "y", classes=TargetClasses())
    path = csv(tmp_path, "y,x\na,1\nb,1\nc,1\n")
    with pytest.raises(SourceError, match=r"more than two classes: 'a', 'b', 'c'. Use likelihood='categorical'"):
        Columns.infer([path], "y", classes=TargetClasses(most=2))
    with pytest.raises(SourceError, match="'a' and ' a' are the same value"):
        Columns.infer([path], "y", classes=TargetClasses(("a", " a")))


def test_a_class_that_is_not_known_is_a_bad_row(tmp_path):
    path = csv(tmp_path, "y,x\nyes,1\nno,2\nperhaps,3\n")
    columns = Columns.infer([path], "y", classes=TargetClasses(("no", "yes")))
    y, (row,) = learned(Table([path], columns))
    assert y.tolist() == [1.0, 0.0]
    assert (row.row, row.column, row.reason, row.value) == (3, "y", Reason.UNSEEN_CLASS, "perhaps")


def test_text_without_a_likelihood_for_classes_names_it(tmp_path):
    path = csv(tmp_path, "y,x\nyes,1\nno,2\n")
    with pytest.raises(
        SourceError, match=r"'y' must hold numbers; it holds text. If these are classes, use likelihood="
    ):
        Columns.infer([path], "y")
    with pytest.raises(SourceError, match="If these are classes"):
        infer_formula([path], "y ~ x")


def test_standard_input_is_stored_unless_classes_are_listed():
    data = pd.DataFrame({"late": ["no", "yes"] * 100, "x": np.arange(200.0)})
    said = []
    replay = Replay(io.BytesIO(data.to_csv(index=False).encode()))
    columns = Columns.infer([STDIN], "late", classes=TargetClasses(), stdin=replay, watch=said.append)
    assert columns.classes == ("no", "yes") and "list the classes of the target" in said[0]
    assert len(learned(Table([STDIN], columns, stdin=replay))[0]) == 200
    said.clear()
    replay = Replay(io.BytesIO(data.to_csv(index=False).encode()))
    Columns.infer([STDIN], "late", classes=TargetClasses(("no", "yes")), stdin=replay, watch=said.append)
    assert not said


def test_formulas(tmp_path):
    frame = flights()
    path = written(frame, tmp_path / "a.csv")
    columns = infer_formula([path], "late ~ x + C(g)", classes=TargetClasses())
    of_table = infer_formula_of_table("late ~ x + C(g)", pa.Table.from_pandas(frame), classes=TargetClasses())
    assert columns.classes == of_table.classes == ("no", "yes") and columns.names == of_table.names
    y, bad = learned(Table([path], columns))
    assert np.array_equal(y, (frame.late == "yes").astype(float)) and not bad
    for again in (type(columns).from_json(columns.to_json()), pickle.loads(pickle.dumps(columns))):
        assert again == columns
    for formula in ("log(late) ~ x", "C(late) ~ x"):
        with pytest.raises(SourceError, match="must have a column of classes on its left-hand side"):
            infer_formula([path], formula, classes=TargetClasses())


def test_offset_and_exposure(tmp_path):
    text = "y,x,e,o\n1,1,2,1\n0,2,0,1\n3,3,-1,1\n2,4,,1\n2,5,4,oops\n1,6,1,-1\n"
    path = csv(tmp_path, text)
    columns = Columns.infer([path], "y", offset="o", exposure="e")
    assert columns.names == ["x"]
    (block,) = Table([path], columns).blocks()
    assert np.allclose(block.offset, [1 + np.log(2), -1])
    assert [(row.row, row.column, row.reason) for row in block.bad] == [
        *((row, "e", Reason.NO_EXPOSURE) for row in (2, 3)),
        (4, "e", Reason.MISSING),
        (5, "o", Reason.NOT_NUMBER),
    ]
    (block,) = Table([path], infer_formula([path], "y ~ x", exposure="e"), max_record=1000).blocks()
    assert np.allclose(block.offset, np.log([2, 4, 1])) and np.allclose(block.part(1, 3).offset, np.log([4, 1]))
    assert Columns.from_json(columns.to_json()) == columns
    with pytest.raises(SourceError, match="must be different columns"):
        Columns("y", numeric=("x",), offset="x")
    with pytest.raises(SourceError, match="no column 'exposed'"):
        Columns.infer([path], "y", exposure="exposed")


def test_cells_and_masks():
    column = pa.array(["b", None, "NA", "c", "B "])
    y, faults = encode_classes(column, ("a", "b"))
    assert y.tolist() == [1, 0, 0, 0, 1]
    assert faults == {1: Reason.MISSING, 2: Reason.MISSING, 3: Reason.UNSEEN_CLASS}
    assert _usable(column, classes=True).tolist() == [True, False, False, True, True]
    assert encode_classes(pa.array([True, False]), ("false", "true"))[0].tolist() == [1, 0]
