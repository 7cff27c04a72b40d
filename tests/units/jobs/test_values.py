"""What the commands say about values: unknown levels, rounded numbers; and what of the rows their files contain."""

import csv
import json
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from kalprox import KalproxRegressor, model_file
from kalprox.cli import main
from kalprox.jobs.model import TableModel
from kalprox.sources.columns import Columns
from kalprox.sources.files import Unreadable
from kalprox.sources.table import Table

RNG = np.random.default_rng(15)
N = 60
FLAGS = RNG.random(N) < 0.5
Y = 3.0 * FLAGS + RNG.normal(size=N)


def invoke(*arguments, code=0):
    """The command in this process; `exit_code`, and all that it printed."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_csv(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def fitted(tmp_path):
    """A model of flags that are spelled as Python does."""
    data = write_csv(tmp_path / "fit.csv", ["y", "flag"], zip(Y, FLAGS, strict=True))
    invoke("fit", data, "-y", "y", "--out", tmp_path / "m.kalprox")
    return tmp_path / "m.kalprox"


def means(path):
    with path.open() as file:
        return np.array([float(row["mean"]) for row in csv.DictReader(file)])


def said(done):
    """What a command said, without the breaks between lines."""
    return " ".join(done.output.split())


# ---- unknown levels ----------------------------------------------------------------------------------------------


def test_flags_of_other_formats_give_the_same_predictions(fitted, tmp_path):
    pq.write_table(pa.table({"flag": FLAGS}), tmp_path / "p.parquet")
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"flag": bool(flag)}) + "\n" for flag in FLAGS))
    write_csv(tmp_path / "p.csv", ["flag"], [[str(flag).upper() + " "] for flag in FLAGS])
    for form in ("parquet", "jsonl", "csv"):
        out = invoke("predict", fitted, tmp_path / f"p.{form}", "--out", tmp_path / f"{form}.out.csv")
        assert "nknown" not in out.output
    first = means(tmp_path / "parquet.out.csv")
    assert len({*first}) == 2
    for form in ("jsonl", "csv"):
        np.testing.assert_array_equal(means(tmp_path / f"{form}.out.csv"), first)


@pytest.mark.parametrize("out", ["out.csv", "-"])
def test_unknown_levels_are_counted_and_named(fitted, tmp_path, out):
    new = write_csv(tmp_path / "new.csv", ["flag"], [["true"], ["maybe\x1b[2J"], ["no"], ["false"], ["no"]])
    target = "-" if out == "-" else tmp_path / out
    done = invoke("predict", fitted, new, "--out", target, "--events", tmp_path / "e", code=4)
    assert "row 2, column 'flag': unseen level" in done.output and "--unseen zero" in done.output
    done = invoke("predict", fitted, new, "--out", target, "--events", tmp_path / "e", "--unseen", "zero")
    assert "Unknown levels, encoded as zeros: column 'flag', 3 of 5 ('maybe\\x1b[2J', 'no')." in said(done)
    assert "\x1b" not in done.output
    last = events(tmp_path / "e")[-1]
    assert last["unknown_levels"] == {"flag": {"count": 3, "filled": 5, "examples": ["maybe\x1b[2J", "no"]}}
    quiet = invoke("predict", fitted, new, "--out", tmp_path / "out.csv", "-q", "--unseen", "zero")
    assert quiet.output == ""


def test_a_column_without_any_known_level_is_an_error(fitted, tmp_path):
    new = write_csv(tmp_path / "new.csv", ["flag"], [["yes"], ["no"]])
    out = tmp_path / "out.csv"
    invoke("fit", tmp_path / "fit.csv", "-y", "y", "--unseen", "zero", "--out", fitted)
    done = invoke("predict", fitted, new, "--out", out, "--events", tmp_path / "e", code=3)
    assert "Column 'flag' has no level that the model knows: 2 of 2 ('yes', 'no')" in done.output
    assert re.search("'false', 'true'|'true', 'false'", done.output) and "--unseen zero" in done.output
    assert not out.exists() and events(tmp_path / "e")[-1]["event"] == "failed"
    done = invoke("predict", fitted, new, "--out", out, "--unseen", "zero")
    assert "2 of 2" in said(done) and len(means(out)) == 2
    invoke("predict", fitted, new, "--out", out, "--unseen", "reject", code=4)


def test_a_fit_with_the_columns_of_another_model_needs_its_levels(fitted, tmp_path):
    new = write_csv(tmp_path / "new.csv", ["y", "flag"], [[1, "yes"], [2, "no"], [3, "no"]])
    invoke("fit", new, "--columns", fitted, "--out", tmp_path / "n.kalprox", code=4)
    zero = ["--columns", fitted, "--unseen", "zero"]
    done = invoke("fit", new, *zero, "--out", tmp_path / "n.kalprox", code=3)
    assert "3 of 3" in done.output and not (tmp_path / "n.kalprox").exists()
    some = write_csv(tmp_path / "some.csv", ["y", "flag"], [[1, "TRUE"], [2, "no"], [3, "no"]])
    done = invoke("fit", some, *zero, "--out", tmp_path / "n.kalprox", "--events", tmp_path / "e")
    assert "2 of 3 ('no')" in said(done)
    assert events(tmp_path / "e")[-1]["unknown_levels"]["flag"]["count"] == 2
    assert TableModel.load(tmp_path / "n.kalprox").record.quality.notes.unknown["flag"].count == 2


@pytest.mark.parametrize("engine", ["local"])
def test_an_engine_says_it_too(fitted, tmp_path, engine):
    some = write_csv(tmp_path / "some.csv", ["y", "flag"], [[1, "TRUE"], [2, "no"], [3, "no"]])
    zero = ["--columns", fitted, "--unseen", "zero"]
    done = invoke("fit", some, *zero, "--out", tmp_path / "n.kalprox", "--engine", engine)
    assert "2 of 3 ('no')" in said(done)


def test_two_spellings_cannot_be_two_levels(tmp_path):
    data = write_csv(tmp_path / "a.csv", ["y", "c"], [[1, "1"], [2, "2"], [3, "1.0"]])
    done = invoke("fit", data, "-y", "y", "--categorical", "c=1|2|1.0", "--out", tmp_path / "m", code=3)
    assert "The levels '1' and '1.0' of column 'c' are the same value" in done.output


# ---- rounded numbers ---------------------------------------------------------------------------------------------

IDS = [2**53, 2**53 + 1, 5, 2**60 + 1]


@pytest.mark.parametrize("form", ["csv", "jsonl", "int64", "uint64", "decimal", "decimal with places", "null int"])
def test_numbers_with_more_digits_than_float64_are_said(tmp_path, form):
    y, ids = [1.0, 2.0, 3.0, 4.5], list(IDS)
    if form == "csv":
        data = write_csv(tmp_path / "a.csv", ["y", "id"], zip(y, ids, strict=True))
    elif form == "jsonl":
        data = tmp_path / "a.jsonl"
        data.write_text("".join(json.dumps({"y": a, "id": b}) + "\n" for a, b in zip(y, ids, strict=True)))
    else:
        kind = {"int64": pa.int64(), "uint64": pa.uint64(), "decimal": pa.decimal128(25, 0), "null int": pa.int64()}
        if form == "decimal with places":
            ids = [Decimal("0.25"), Decimal("0.12345678901234567891"), Decimal("5"), Decimal("12345678901234567.5")]
        if form == "null int":
            y, ids = [*y, 1.0], [*ids, None]
        data = tmp_path / "a.parquet"
        pq.write_table(pa.table({"y": y, "id": pa.array(ids, kind.get(form))}), data)
    more = ["--max-bad", "1"] if form == "null int" else []
    done = invoke("fit", data, "-y", "y", "--out", tmp_path / "m", "--events", tmp_path / "e", *more)
    first = "0.12345678901234567891" if form == "decimal with places" else IDS[1]
    assert re.search(rf"rounded: column 'id', 2 of 4 \('{first}', '[0-9.]+'\)", said(done)), done.output
    assert events(tmp_path / "e")[-1]["rounded_numbers"]["id"]["count"] == 2
    done = invoke("predict", tmp_path / "m", data, "--out", tmp_path / "out.csv", *more)
    assert "2 of 4" in said(done)


def test_numbers_that_float64_holds_are_not_said(tmp_path):
    values = ["1e300"[:4], "1e30", str(2**60), "0.1000000000000000055511151231257827", "9007199254740994", "-1e17"]
    data = write_csv(tmp_path / "a.csv", ["y", "x"], [[i, value] for i, value in enumerate(values)])
    assert "rounded" not in invoke("fit", data, "-y", "y", "--out", tmp_path / "m").output


# ---- what the files contain --------------------------------------------------------------------------------------

CANARY, NUMBER = "CANARY-7319", 7319.731973
LEVELS = ["red", "green"]


def secrets(folder):
    """A file with a canary in each place: a refused cell, an unknown level, the largest number, the last row."""
    rows = [[f"{RNG.normal():.6f}", f"{RNG.normal():.6f}", LEVELS[i % 2]] for i in range(40)]
    rows[7][1] = CANARY
    rows[33][2] = CANARY
    rows[21][1] = rows[39][1] = str(NUMBER)
    rows.append([CANARY, "1", "red", "too", "many"])
    rows.append(["1", str(2**60 + 7319), "red"])
    return write_csv(folder / "data.csv", ["y", "x", "c"], rows)


def traces(folder, *texts):
    """The files and texts that contain a canary, as text or as the bytes of a number."""
    forms = [CANARY.encode(), str(NUMBER).encode(), str(2**60 + 7319).encode(), np.float64(NUMBER).tobytes()]
    contents = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "data.csv"}
    contents |= {f"text {i}": text.encode() for i, text in enumerate(texts)}
    return {name for name, content in contents.items() if any(form in content for form in forms)}


@pytest.mark.slow
@pytest.mark.parametrize("engine", [[], ["--engine", "local"]], ids=["stream", "engine"])
def test_no_samples_keeps_values_of_rows_out_of_everything(tmp_path, engine):
    data = secrets(tmp_path)
    levels = ["--categorical", "c=red|green", "--unseen", "zero"]
    options = [*levels, "--quarantine", tmp_path / "bad.csv", "--events", tmp_path / "e", *engine]
    out = tmp_path / "m.kalprox"

    def all_commands(*more):
        texts = [invoke("fit", data, "-y", "y", "--out", out, *options, *more).output]
        predicting = ["--quarantine", tmp_path / "bad2.csv", "--events", tmp_path / "e2", *more]
        texts.append(invoke("predict", out, data, "--out", tmp_path / "p.csv", *predicting).output)
        texts.append(invoke("report", out).output)
        shown = invoke("show", out).output
        strict = invoke("fit", data, "-y", "y", "--out", tmp_path / "no", "--events", tmp_path / "e3", *more, code=4)
        return shown, traces(tmp_path, *texts, shown, strict.output)

    shown, found = all_commands()
    assert {"m.kalprox", "m.html", "bad.csv", "e", "bad2.csv", "e2", "e3"} <= found
    assert "refused cells: 2" in shown and "ranges of columns" in shown
    shown, found = all_commands("--no-samples")
    assert found == set()
    assert "refused cells" not in shown and "ranges" not in shown and "held rows" not in shown and "levels: 2" in shown
    assert "levels: 2" in (tmp_path / "m.html").read_text()


def test_samples_do_not_change_the_fit(tmp_path):
    data = secrets(tmp_path)
    fits = []
    for name, more in (("a", []), ("b", ["--no-samples"])):
        invoke("fit", data, "-y", "y", "--out", tmp_path / name, "--quarantine", tmp_path / "bad.csv", *more)
        fits.append(TableModel.load(tmp_path / name))
    np.testing.assert_allclose(fits[0].belief.coef, fits[1].belief.coef, rtol=1e-12)
    np.testing.assert_allclose(fits[0].learner.score.rmse, fits[1].learner.score.rmse, rtol=1e-12)


def test_a_damaged_file_is_not_quoted(tmp_path):
    path = tmp_path / "data.parquet"
    path.write_bytes(b"PAR1" + CANARY.encode())
    columns = Columns("y", numeric=("x",))
    with pytest.raises(Unreadable) as error:
        list(Table([path], columns, samples=False).blocks())
    assert str(error.value) == f"{path}: not a valid Parquet file."
    (block,) = Table([path], columns, samples=False, skip_unreadable=True).blocks()
    assert block.bad[0].value == str(error.value)[:80]


def test_the_warm_up_of_a_stream_cannot_do_without_its_rows(tmp_path):
    rows = [[f"{RNG.random():.6f}", f"{RNG.normal():.6f}"] for _ in range(5)]
    data = write_csv(tmp_path / "data.csv", ["y", "x"], [*rows, ["0.5", str(NUMBER)]])
    options = ["-y", "y", "--link", "sigmoid", "--passes", "1", "--out", tmp_path / "m.kalprox"]
    invoke("fit", data, *options)
    assert "held rows: 6" in invoke("show", tmp_path / "m.kalprox").output
    (tmp_path / "m.kalprox").unlink()
    done = invoke("fit", data, *options, "--no-samples", code=2)
    assert "would hold its 6 rows" in done.output and not (tmp_path / "m.kalprox").exists()


def test_an_estimator_folds_the_rows_that_wait_before_it_is_saved_without_samples(tmp_path):
    X, y = RNG.normal(size=(30, 2)), RNG.normal(size=30)
    model = KalproxRegressor().fit(X[:20], y[:20])
    for i in range(20, 29):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    model.partial_fit([[NUMBER, 1.0]], [2.0])
    model.save(tmp_path / "a")
    model.save(tmp_path / "b", samples=False)
    form = np.float64(NUMBER).tobytes()
    assert form in (tmp_path / "a").read_bytes() and form not in (tmp_path / "b").read_bytes()
    coef = model.coef_
    np.testing.assert_allclose(KalproxRegressor.load(tmp_path / "b").coef_, coef, rtol=1e-10)
    model.save(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()  # it goes on as if it had not been saved


SETTINGS = [
    [],
    ["--alpha", "auto"],
    pytest.param(["--noise", "inputs"], marks=pytest.mark.slow),
    ["--coef-cov", "robust"],
    ["--clusters", "g"],
    pytest.param(["--penalty", "l1", "--alpha", "auto"], marks=pytest.mark.slow),
    ["--forget", "0.99"],
    ["--standardize"],
    ["--link", "sigmoid", "--targets", "any"],
    ["--link", "sigmoid", "--targets", "any", "--passes", "1"],
    ["--engine", "local", "--coef-cov", "robust"],
]


@pytest.mark.parametrize("settings", SETTINGS, ids=" ".join)
def test_no_number_of_any_row_is_in_the_arrays_or_the_header(tmp_path, settings):
    """Neither as an origin of sums, nor as a range: and the fit is the same, to rounding."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(400, 2))
    y = 1 / (1 + np.exp(-x[:, 0])) + 0.1 * rng.normal(size=400)
    rows = [[*map(float, row), f"g{i % 5}"] for i, row in enumerate(np.column_stack([y, x]))]
    data = write_csv(tmp_path / "data.csv", ["y", "a", "b", "g"], rows)
    models = []
    for more in ([], ["--no-samples"]):
        invoke("fit", data, "-y", "y", "--features", "a,b", "--out", tmp_path / "m", "-q", *settings, *more)
        models.append(TableModel.load(tmp_path / "m"))
    header, arrays = model_file.read(tmp_path / "m")
    values = np.append(x, y)
    assert not [name for name, a in arrays.items() if a.dtype == float and np.isin(a, values).any()]
    assert not [value for value in values if repr(float(value)) in json.dumps(header)]
    np.testing.assert_allclose(models[1].belief.coef, models[0].belief.coef, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(models[1].belief.coef_std, models[0].belief.coef_std, rtol=1e-9)


def test_a_run_that_kept_values_is_not_resumed_without_samples(tmp_path):
    data = secrets(tmp_path)
    table = Table([data], Columns("y", numeric=("x",)))
    without = Table([data], Columns("y", numeric=("x",)), samples=False)
    assert table.identity() != without.identity() and table.options["samples"] and not without.options["samples"]
