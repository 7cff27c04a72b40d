"""Columns of text that are numbers with a unit, or names of rows; names and hints in formulas."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import kalprox as kp
from kalprox import KalproxRegressor
from kalprox.cli import main


def kalprox(*args, input=None):
    done = CliRunner().invoke(main, [str(arg) for arg in args], input=input)
    return done.exit_code, " ".join(done.output.split())


def cars(n=120, seed=51):
    rng = np.random.default_rng(seed)
    mass = rng.integers(900, 4800, n)
    return pd.DataFrame({"mpg": 50 - mass / 100 + rng.normal(size=n), "year": rng.integers(60, 90, n), "mass": mass})


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (lambda m: f"{m:,} lbs", ["--units lbs", "--thousands ,"]),
        (lambda m: f"{m}kg", ["--units kg"]),
        (lambda m: f" {m / 1000:.3f} m³", ["--units 'm³' to read them as numbers, or write them without it. If"]),
        (lambda m: f"{m / 1000:.3f}".replace(".", ",") + " t", ["--units t", "--decimal ,"]),
    ],
)
def test_numbers_with_a_unit_are_recognised_as_numbers(tmp_path, written, says):
    frame = cars()
    frame["mass"] = frame["mass"].map(written)
    frame.to_csv(tmp_path / "cars.csv", index=False)
    code, said = kalprox("fit", tmp_path / "cars.csv", "--target", "mpg", "--out", tmp_path / "m")
    assert code == 3 and "column 'mass' holds numbers with a unit, such as" in said and "--categorical mass" in said
    assert all(text in said for text in says)
    frame = frame.rename(columns={"mass": "mpg", "mpg": "other"})
    frame.to_csv(tmp_path / "cars.csv", index=False)
    code, said = kalprox("fit", tmp_path / "cars.csv", "--target", "mpg", "--out", tmp_path / "m")
    assert code == 3 and "must hold numbers; it holds numbers with a unit" in said


UNITS = [
    pytest.param(lambda m: f"{m:,} lbs", 1, ["--units", "lbs", "--thousands", ","], marks=pytest.mark.slow),
    pytest.param(lambda m: f"${m}" if m % 2 else f"-$ {m}", 1, ["--units", "kg,$"], marks=pytest.mark.slow),
    (lambda m: f"{m / 1000:.3f}".replace(".", ",") + "\u00a0m³ ", 1e-3, ["--units", "m³", "--decimal", ","]),
    pytest.param(lambda m: f"{m / 100}%" if m % 3 else f"{m / 100}", 1e-2, ["--units", "%"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("written", "size", "options"), UNITS)
def test_units_that_are_named_are_left_out(tmp_path, written, size, options):
    frame = cars().astype({"mpg": int})  # without a decimal mark
    texts, signs = frame["mass"].map(written), np.where(frame["mass"].map(written).str.startswith("-"), -1, 1)
    plain, said = tmp_path / "plain.csv", ["--target", "mpg"]
    frame.assign(mass=frame["mass"] * signs * size).to_csv(plain, index=False)
    frame.assign(mass=texts).to_csv(tmp_path / "units.csv", index=False)
    code, out = kalprox("fit", plain, *said, "--out", tmp_path / "one")
    assert code == 0, out
    code, out = kalprox("fit", tmp_path / "units.csv", *said, *options, "--out", tmp_path / "two")
    assert code == 0, out
    one, two = (kp.load(tmp_path / name) for name in ("one", "two"))
    np.testing.assert_allclose(two.coef_, one.coef_, rtol=1e-9)
    code, out = kalprox("predict", tmp_path / "two", tmp_path / "units.csv", *options, "--out", tmp_path / "p.csv")
    assert code == 0, out
    lines = (tmp_path / "units.csv").read_text()
    code, out = kalprox("stream", "-", *said, *options, "--out", tmp_path / "three", input=lines)
    assert code == 0, out
    np.testing.assert_allclose(kp.load(tmp_path / "three").coef_, one.coef_, rtol=1e-9)


def test_another_unit_is_a_bad_cell_and_a_unit_is_no_number(tmp_path):
    frame = cars()
    frame["mass"] = [f"{m} kg" if i != 7 else f"{m} g" for i, m in enumerate(frame["mass"])]
    frame.to_csv(tmp_path / "cars.csv", index=False)
    options = ["--target", "mpg", "--out", tmp_path / "m"]
    code, said = kalprox("fit", tmp_path / "cars.csv", *options, "--units", "kg", "--max-bad", 1)
    assert code == 0 and "1 refused" in said and kp.load(tmp_path / "m").n_rows_seen_ == len(frame) - 1, said
    code, said = kalprox("fit", tmp_path / "cars.csv", *options, "--units", "2kg")
    assert code != 0 and "--units must be texts without digits" in said, said


HINTS = [
    (lambda m: f"{m} lbs.", ["--units", "lbs."]),
    (lambda m: f"€{m / 100:.2f}".replace(".", ","), ["--units", "€", "--decimal", ","]),
    (lambda m: f"USD {m:,}.50", ["--units", "USD", "--thousands", ","]),
    (lambda m: f"{m / 100:.2f} %".replace(".", ","), ["--units", "%", "--decimal", ","]),
]


@pytest.mark.parametrize(("written", "options"), HINTS)
def test_what_the_message_advises_reads_the_column(tmp_path, written, options):
    """Also with the first part of it alone: the next message was the same one again."""
    frame = cars(seed=58).astype({"mpg": int})
    frame["mass"] = frame["mass"].map(written)
    frame.to_csv(tmp_path / "cars.csv", index=False)
    fit = ["fit", tmp_path / "cars.csv", "--target", "mpg", "--out", tmp_path / "m"]
    for given in ([], options[:2] if options[2:] else []):
        code, said = kalprox(*fit, *given)
        assert code == 3 and all(text in said for text in options if text != ","), said
    code, said = kalprox(*fit, *options)
    assert code == 0 and len(kp.load(tmp_path / "m").coef_) == 2, said


def test_a_number_behind_a_unit_begins_with_a_digit(tmp_path):
    """Rs.500 was read as .500 with the unit Rs."""
    frame = cars(seed=59)
    frame["mass"] = [f"Rs {m}" if i % 9 else f"Rs.{m}" for i, m in enumerate(frame["mass"])]
    frame.to_csv(tmp_path / "cars.csv", index=False)
    fit = ["fit", tmp_path / "cars.csv", "--target", "mpg", "--out", tmp_path / "m"]
    code, said = kalprox(*fit, "--units", "Rs")
    assert code == 4 and "'mass': not a number ('Rs." in said, said
    code, said = kalprox(*fit, "--units", "Rs,Rs.")
    assert code == 0 and "with Rs and Rs." in said, said


def test_a_decimal_point_where_a_comma_was_asked_for(tmp_path):
    cars(seed=60).to_csv(tmp_path / "cars.csv", index=False)
    code, said = kalprox("fit", tmp_path / "cars.csv", "--target", "mpg", "--decimal", ",", "--out", tmp_path / "m")
    assert code == 3 and "numbers with a decimal point" in said and "Use --decimal . without" in said, said


def mixed(n=90, seed=57):
    """Cars whose masses are in two units, the second one in the last third of the rows; and those lines."""
    frame = cars(n, seed)
    frame["mass"] = [f"{m} lbs" if i < 2 * n // 3 else f"{m / 2.2046:.0f} kg" for i, m in enumerate(frame["mass"])]
    return frame


SAYS = "! Cells Numbers with different units, none of which was converted: column 'mass', with"


@pytest.mark.parametrize(
    "options", [[], ["--shuffle", "3"], ["--formula", "mpg ~ mass + year"], ["--no-samples"], ["--memory", "1MB"]]
)
def test_two_units_in_one_column_are_a_doubt(tmp_path, options):
    mixed().to_csv(tmp_path / "cars.csv", index=False)
    target = [] if "--formula" in options else ["--target", "mpg"]
    arguments = [*target, "--units", "lbs,kg", "--out", tmp_path / "m", "--strict", *options]
    code, said = kalprox("fit", tmp_path / "cars.csv", *arguments)
    assert code == 8 and SAYS in said and "lbs" in said and "Give each column one unit" in said, said


def test_two_units_in_two_files_a_stream_and_a_table_of_text(tmp_path):
    frame, options = mixed(), ["--target", "mpg", "--units", "lbs,kg", "--out", tmp_path / "m"]
    frame[:60].to_csv(tmp_path / "1.csv", index=False)
    frame[60:].to_csv(tmp_path / "2.csv", index=False)
    code, said = kalprox("fit", tmp_path / "1.csv", tmp_path / "2.csv", *options)
    assert code == 0 and SAYS in said, said
    frame.to_parquet(tmp_path / "cars.parquet")
    code, said = kalprox("fit", tmp_path / "cars.parquet", *options)
    assert code == 0 and SAYS in said, said
    code, said = kalprox("stream", "-", *options, input=frame.to_csv(index=False))
    assert code == 0 and SAYS in said, said


def test_predictions_of_another_unit_than_that_of_the_fit_are_a_doubt(tmp_path):
    frame, options = mixed(), ["--units", "lbs,kg"]
    frame[:60].to_csv(tmp_path / "1.csv", index=False)
    frame[60:].to_csv(tmp_path / "2.csv", index=False)
    code, said = kalprox("fit", tmp_path / "1.csv", "--target", "mpg", *options, "--out", tmp_path / "m")
    assert code == 0 and SAYS not in said, said
    predicted = ["--out", tmp_path / "p.csv", *options]
    code, said = kalprox("predict", tmp_path / "m", tmp_path / "1.csv", *predicted)
    assert code == 0 and SAYS not in said, said
    code, said = kalprox("predict", tmp_path / "m", tmp_path / "2.csv", *predicted)
    assert code == 0 and f"{SAYS} lbs and kg" in said, said


@pytest.mark.parametrize("levels", [["4cyl", "6cyl", "8cyl"], [f"{i}{c}" for i in range(9) for c in "ABC"]])
def test_levels_that_begin_with_digits_stay_levels(tmp_path, levels):
    frame = cars(200).drop(columns="mass")
    frame["kind"] = np.random.default_rng(52).choice(levels, len(frame))
    frame.to_csv(tmp_path / "cars.csv", index=False)
    code, said = kalprox("fit", tmp_path / "cars.csv", "--target", "mpg", "--out", tmp_path / "m")
    assert code == 0 and "! Levels" not in said, said


@pytest.mark.parametrize("options", [["--target", "mpg"], ["--formula", "mpg ~ year + name"]])
def test_a_column_with_a_level_for_nearly_every_row_is_a_doubt(tmp_path, options):
    frame = cars().drop(columns="mass")
    frame["name"] = [f"car {'abcdefghij'[i % 10]}{i // 10 * 'x'}" for i in range(len(frame))]
    frame.loc[110:, "name"] = "car a"
    frame.to_csv(tmp_path / "cars.csv", index=False)
    code, said = kalprox("fit", tmp_path / "cars.csv", *options, "--out", tmp_path / "m", "--strict")
    assert code == 8 and "! Levels 'name' has 110 levels in 120 rows" in said, said
    assert "--hash" not in said or options[0] == "--target"


def test_columns_named_like_keywords_of_python(tmp_path):
    rng = np.random.default_rng(53)
    frame = pd.DataFrame(rng.normal(size=(200, 3)), columns=["class", "lambda", "while"])
    frame["from"] = rng.choice(["x", "y", "z"], 200)
    frame["return"] = (
        1 + 2 * frame["class"] - frame["lambda"] ** 2 + (frame["from"] == "y") + 0.1 * rng.normal(size=200)
    )
    other = frame.rename(columns={name: f"{name}_" for name in frame})
    keywords = "`return` ~ `class` + I(`lambda` ** 2) + C(`from`) + center(`class`):`while` + scale(`while`)"
    plain = "return_ ~ class_ + I(lambda_ ** 2) + C(from_) + center(class_):while_ + scale(while_)"
    found, wanted = (KalproxRegressor(text).fit(rows) for text, rows in ((keywords, frame), (plain, other)))
    np.testing.assert_allclose(found.coef_, wanted.coef_, rtol=1e-12)
    np.testing.assert_allclose(found.predict(frame[:9]), wanted.predict(other[:9]), rtol=1e-12)
    assert "C(`from`)[T.y]" in found.feature_names_in_ and all(name.isprintable() for name in found.feature_names_in_)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    code, said = kalprox("fit", tmp_path / "rows.csv", "--formula", keywords, "--out", tmp_path / "m")
    assert code == 0, said
    with pytest.raises(ValueError, match="If it is a column, write `class`, in backticks"):
        KalproxRegressor("`return` ~ class").fit(frame)
    np.testing.assert_allclose(KalproxRegressor.load(tmp_path / "m").coef_, found.coef_, rtol=1e-9)


def test_a_hint_for_unseen_levels_is_allowed_where_it_is_given(tmp_path):
    frame = cars().assign(kind=["a", "b", "c", "d"] * 30)
    frame.to_csv(tmp_path / "cars.csv", index=False)
    listed = ["--categorical", "kind=a|b", "--max-bad", "90%"]
    code, said = kalprox(
        "fit", tmp_path / "cars.csv", "--formula", "mpg ~ year + kind", *listed, "--out", tmp_path / "m"
    )
    assert code == 0 and "list all levels beforehand, or, without a formula, use --unseen zero" in said
    code, said = kalprox(
        "fit", tmp_path / "cars.csv", "--target", "mpg", *listed, "--unseen", "zero", "--out", tmp_path / "m"
    )
    assert code == 0


@pytest.mark.parametrize(
    ("settings", "lacks"),
    [
        ({"likelihood": "huber"}, "likelihood='gaussian'"),
        ({"link": "exp"}, "link='identity'"),
    ],
)
def test_reasons_name_only_what_is_wrong(settings, lacks):
    with pytest.raises(ValueError, match=rf"alpha='auto' needs {lacks}.*Give a number\.") as error:
        KalproxRegressor(**settings, alpha="auto").fit(np.ones((5, 1)), np.ones(5))
    others = {"link='identity'", "likelihood='gaussian'"} - {lacks}
    assert not any(other in str(error.value) for other in others)


@pytest.mark.parametrize("options", [[], ["--contrast", "full", "--no-intercept"], ["--hash-bits", "6", "--hash", "h"]])
def test_a_coefficient_has_the_name_of_its_level(tmp_path, options):
    rng = np.random.default_rng(0)
    effects = {"a": 0.0, "b": 1.0, "c": 2.0, "d": 5.0}
    frame = pd.DataFrame({"g": rng.choice(list(effects), 400, p=[0.4, 0.3, 0.2, 0.1]), "x": rng.normal(size=400)})
    frame["h"] = rng.choice(["u", "v"], 400)
    frame["y"] = frame["g"].map(effects) + frame["x"] + 0.01 * rng.normal(size=400)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    code, said = kalprox("fit", tmp_path / "rows.csv", "-y", "y", *options, "--out", tmp_path / "m")
    assert code == 0, said
    model = kp.load(tmp_path / "m")
    found = dict(zip(model.summary().to_frame()["name"], model.summary().to_frame()["coef"], strict=True))
    named = {name.removeprefix("g="): coef for name, coef in found.items() if name.startswith("g=")}
    assert len(named) == (4 if "full" in options else 3)
    for level, coef in named.items():  # of all levels, differences are determined
        assert coef - named.get("a", 0.0) == pytest.approx(effects[level], abs=0.02), level
    new = frame[:5].assign(g=list("abcda"), x=0.0)
    at = model.predict(new)
    assert at == pytest.approx([0.0, 1.0, 2.0, 5.0, 0.0], abs=0.02)


def test_coefficients_of_a_column_of_text_are_differences_from_its_most_frequent_level(tmp_path):
    carrier = np.repeat(["AA", "B6", "UA"], [20, 60, 40])
    delay = np.random.default_rng(3).normal(size=120) + np.where(
        carrier == "AA", 5.0, np.where(carrier == "UA", -2.0, 1.0)
    )
    pd.DataFrame({"delay": delay, "carrier": carrier}).to_csv(tmp_path / "flights.csv", index=False)
    code, said = kalprox(
        "fit", tmp_path / "flights.csv", "--target", "delay", "--penalty", "none", "--out", tmp_path / "m"
    )
    assert code == 0, said
    table = kp.load(tmp_path / "m").to_frame()
    means = {level: delay[carrier == level].mean() for level in ("AA", "B6", "UA")}
    found = dict(zip(table["name"], table["coef"], strict=True))
    assert list(found) == ["intercept", "carrier=AA", "carrier=UA"]
    for level in ("AA", "UA"):
        np.testing.assert_allclose(found[f"carrier={level}"], means[level] - means["B6"], rtol=1e-9)
