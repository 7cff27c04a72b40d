"""`kalprox stream` in this process: what it answers, what it learns, and what becomes of every row."""

import csv
import io
import json

import numpy as np
import pytest
from command import invoke

from kalprox import KalproxRegressor
from kalprox.jobs.model import TableModel
from kalprox.learning.saving import n_held
from kalprox.sources.quarantine import read_quarantine


def rows_of(n, d=4, seed=0, levels=("a", "b", "c")):
    rng = np.random.default_rng(seed)
    X, g = rng.standard_normal((n, d)).round(6), rng.integers(len(levels), size=n)
    y = X @ np.arange(1.0, d + 1) + 2.0 * g + rng.standard_normal(n)
    rows = [
        {"y": float(t), **{f"x{j}": v for j, v in enumerate(x)}, "g": levels[k]}
        for x, t, k in zip(X.tolist(), y.round(6), g, strict=True)
    ]
    rows[0]["g"], rows[1]["g"], rows[2]["g"] = levels  # so that the first rows have all levels
    return rows


def as_json(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_csv(rows):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def answers(text):
    """The lines of the output, as dictionaries."""
    if text.startswith("{"):
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(io.StringIO(text)))


LEVELS = ("--categorical", "g=a|b|c")  # as those of the first rows need not be all, or in the same order


def stream(tmp_path, content, *options, name="rows.jsonl", code=0, levels=LEVELS):
    file = tmp_path / name
    file.write_text(content)
    return invoke("stream", file, "--target", "y", "--quiet", *levels, *options, code=code)


def same_model(one, other, rtol):
    """Coefficients, standard errors and noise within a relative error; counts and columns exactly."""
    a, b = TableModel.load(one), TableModel.load(other)
    assert a.columns == b.columns and a.learner.n_rows == b.learner.n_rows
    assert a.learner.settings.parameters == b.learner.settings.parameters
    quality, quality_ = a.record.quality, b.record.quality
    assert (quality.low, quality.high, quality.read) == (quality_.low, quality_.high, quality_.read)
    for name in ("coef", "intercept"):
        np.testing.assert_allclose(getattr(a.belief, name), getattr(b.belief, name), rtol=rtol, atol=rtol)
    std, std_ = (one.summary().to_frame("pandas")["se"] for one in (a, b))
    np.testing.assert_allclose(std, std_, rtol=1000 * rtol)
    return a, b


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["1", "100", "0.01s"])
@pytest.mark.parametrize(
    "options",
    [[], ["--forget", 0.99], ["--penalty", "l1"], ["--weight", "x3"], ["--alpha", "auto"], ["--coef-cov", "robust"]],
    ids=lambda options: "_".join(map(str, options)) or "ridge",
)
def test_the_model_is_that_of_fit(tmp_path, flush, options):
    """A fold of n rows in another order of additions differs by at most n eps times the condition, here below 100."""
    rows = rows_of(1500)
    for row in rows:
        row["x3"] = abs(row["x3"]) + 0.5  # a weight in one of the cases
    text = as_json(rows)
    stream(tmp_path, text, "--out", tmp_path / "s.kalprox", "--flush", flush, *options)
    fitted = ["--target", "y", "--out", tmp_path / "f.kalprox", *LEVELS, *options]
    invoke("fit", tmp_path / "rows.jsonl", *fitted, "--quiet")
    rtol = 1e-6 if "l1" in options or "auto" in options else 1500 * 100 * np.finfo(float).eps
    same_model(tmp_path / "s.kalprox", tmp_path / "f.kalprox", rtol)


def test_predictions_of_numbers_are_those_of_the_estimator(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "g"} for row in rows_of(200)]
    X = np.array([[row[f"x{j}"] for j in range(4)] for row in rows])
    y = np.array([row["y"] for row in rows])
    for flush, form in ((1, "jsonl"), (8, "jsonl"), (1, "csv")):
        text = as_json(rows) if form == "jsonl" else as_csv(rows)
        found = answers(stream(tmp_path, text, "--flush", flush, name=f"rows.{form}", levels=()).stdout)
        assert [int(row["row"]) for row in found] == list(range(1, 201))
        assert list(found[0]) == ["row", "mean", "std", "lower", "upper", "status"]
        assert {row["status"] for row in found} == {"learned"} and found[0]["mean"] in (None, "")
        for begin in (16, 40, 192):
            fitted = KalproxRegressor().fit(X[:begin], y[:begin])
            some = slice(begin, begin + flush)
            mean, std = fitted.predict(X[some], return_std=True)
            low, high = fitted.predict_interval(X[some])
            given = np.array([[float(row[name]) for name in ("mean", "std", "lower", "upper")] for row in found[some]])
            np.testing.assert_allclose(given, np.column_stack([mean, std, low, high]), rtol=1e-8)


def test_rows_without_a_target_are_predicted_and_not_learned(tmp_path):
    rows = rows_of(300)
    blind = [{k: v for k, v in row.items() if k != "y" or i % 3} for i, row in enumerate(rows, start=1)]
    found = answers(stream(tmp_path, as_json(blind), "--out", tmp_path / "s.kalprox").stdout)
    assert [row["status"] for row in found[:3]] == ["learned", "learned", "predicted"]
    assert found[-1]["mean"] is not None
    known = [row for i, row in enumerate(rows, start=1) if i % 3]
    (tmp_path / "known.jsonl").write_text(as_json(known))
    invoke("fit", tmp_path / "known.jsonl", "--target", "y", *LEVELS, "--out", tmp_path / "f.kalprox", "--quiet")
    same_model(tmp_path / "s.kalprox", tmp_path / "f.kalprox", 1e-10)


@pytest.mark.slow
def test_late_targets_find_their_rows(tmp_path):
    """Targets come 20 rows late, in CSV as rows with empty cells, and in JSON as a key and a target."""
    rows = [{"id": i, **row} for i, row in enumerate(rows_of(400))]
    late, due = [], []
    for row in rows:
        late.append({name: value for name, value in row.items() if name != "y"})
        due.append({"id": str(row["id"]), "y": row["y"]})
        if len(due) > 20:
            late.append(due.pop(0))
    late += due
    for flush in ("1", "64"):
        for form in ("jsonl", "csv"):
            text = as_json(late) if form == "jsonl" else as_csv([dict.fromkeys(rows[0], "") | row for row in late])
            model = tmp_path / f"s{flush}{form}.kalprox"
            options = ["--key", "id", "--out", model, "--flush", flush]
            found = answers(stream(tmp_path, text, *options, name=f"rows.{form}").stdout)
            assert [row["status"] for row in found].count("waiting") == 400
            assert [row["status"] for row in found].count("late") == 400
            assert str(found[0]["id"]) == "0" and "mean" in found[0]
            (tmp_path / "all.jsonl").write_text(as_json(rows))
            fitted = ["--target", "y", "--exclude", "id", *LEVELS, "--out", tmp_path / "f.kalprox", "--quiet"]
            invoke("fit", tmp_path / "all.jsonl", *fitted)
            same_model(model, tmp_path / "f.kalprox", 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["1", "64"])
def test_texts_in_many_columns_are_learned_and_their_late_targets_too(tmp_path, flush):
    """80 directions keep all of the information of 64 columns. The intercept has a prior at the mean of the first rows.

    Its precision is 1e-5; a mean that differs by up to 8, the range of y, moves no coefficient by more than 8e-5.
    """
    rng = np.random.default_rng(0)
    rows = [{"id": i, "x": rng.normal(), "text": " ".join(rng.choice(list("abcdefg"), 3))} for i in range(300)]
    for row in rows:
        row["y"] = row["x"] + row["text"].count("a") - 2 * row["text"].count("b") + 0.1 * rng.normal()
    text = ["--words", "text", "--hash-bits", 6, "--structure", "low_rank,rank=80", "--exclude", "id"]
    asked = [{name: row[name] for name in ("id", "x", "text")} for row in rows]
    late = [{"id": row["id"], "y": row["y"]} for row in rows]
    mixed = rows[:50] + [row for i in range(50, 300, 10) for row in asked[i : i + 10] + late[i : i + 10]]
    options = [*text[:-2], "--key", "id", "--checkpoint", tmp_path / "c.ckpt", "--flush", flush]
    stream(tmp_path, as_json(mixed[:-5]), *options, name="one.jsonl", levels=())
    options += ["--resume", "continue", "--out", tmp_path / "l.kalprox"]
    found = answers(stream(tmp_path, as_json(mixed[-5:]), *options, name="two.jsonl", levels=()).stdout)
    assert [row["status"] for row in found] == ["late"] * 5
    stream(tmp_path, as_json(rows), *text, "--out", tmp_path / "s.kalprox", "--flush", flush, levels=())
    invoke("fit", tmp_path / "rows.jsonl", "-y", "y", *text, "--out", tmp_path / "f.kalprox", "--quiet")
    for name in ("l", "s"):
        same_model(tmp_path / f"{name}.kalprox", tmp_path / "f.kalprox", 8e-5)


@pytest.mark.slow
def test_a_stream_of_a_million_columns(tmp_path):
    rows = [{"y": i % 7, "text": f"a{i} b{i % 7}"} for i in range(30)]
    options = ["--words", "text", "--hash-bits", 20, "--structure", "diagonal", "--out", tmp_path / "m.kalprox"]
    assert len(answers(stream(tmp_path, as_json(rows), *options, "--flush", 10, levels=()).stdout)) == 30
    assert TableModel.load(tmp_path / "m.kalprox").belief.coef.shape == (2**20,)


def test_what_waits_is_bounded_and_said(tmp_path):
    rows = [{"id": i, **row} for i, row in enumerate(rows_of(50))]
    text = as_json(rows[:10]) + as_json([row | {"y": None} for row in rows[10:]]) + as_json([{"id": 11, "y": 3.0}])
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    options = ["--target", "y", "--key", "id", "--wait", 5, "--quarantine", tmp_path / "bad.csv", "--infer-rows", 10]
    result = invoke("stream", file, *options, "--out", tmp_path / "m.kalprox")
    assert "35 rows dropped while waiting for a target. Hold more with --wait." in result.stderr
    assert "5 waiting for a target" in result.stderr
    assert "does not hold the 5 rows that wait" in result.stderr
    (bad,) = read_quarantine(tmp_path / "bad.csv")
    assert bad.row == 51 and bad.reason == "no row with this key waits for its target" and bad.value == "11"


def test_a_key_that_waits_waits_once(tmp_path):
    first, *others = ({"id": i, **row} for i, row in enumerate(rows_of(10)))
    twice = [*others, first | {"y": None}, first | {"y": None, "x0": 5.0}, {"id": 0, "y": 1.0}, {"id": 0, "y": 2.0}]
    for flush in (1, 100):
        options = ["--key", "id", "--quarantine", tmp_path / "bad.csv", "--flush", flush]
        found = answers(stream(tmp_path, as_json(twice), *options).stdout)
        assert [row["status"] for row in found[-4:]] == ["waiting", "bad", "late", "bad"]
        reasons = [row.reason for row in read_quarantine(tmp_path / "bad.csv")]
        assert reasons == [
            "a row with this key waits for its target already",
            "no row with this key waits for its target",
        ]
        (tmp_path / "bad.csv").unlink()


def test_bad_rows_are_those_of_fit_and_stop_nothing(tmp_path):
    lines = as_csv(rows_of(300)).splitlines(keepends=True)
    lines[40] = lines[40].replace(",", ",x", 1)
    lines[50] = "1,2\n"
    lines[60] = lines[60].strip()[:-1] + "zz\n"  # a level that is not known
    lines[70] = "\xff" + lines[70]
    text = "".join(lines)
    found = answers(
        stream(
            tmp_path, text, "--quarantine", tmp_path / "s.csv", "--out", tmp_path / "s.kalprox", name="rows.csv"
        ).stdout
    )
    assert [int(row["row"]) for row in found if row["status"] == "bad"] == [40, 50, 60, 70]
    assert all(row["mean"] == "" for row in found if row["status"] == "bad")
    options = ["--target", "y", "--categorical", "g=a|b|c", "--quarantine", tmp_path / "f.csv", "--quiet"]
    invoke("fit", tmp_path / "rows.csv", *options, "--out", tmp_path / "f.kalprox")
    assert read_quarantine(tmp_path / "s.csv") == read_quarantine(tmp_path / "f.csv")
    assert stream(tmp_path, text, "--max-bad", 3, name="rows.csv", code=4).stdout.count("\n") > 60
    stream(tmp_path, text, "--max-bad", "2%", name="rows.csv")


@pytest.mark.slow
def test_targets_that_the_model_refuses_are_bad_rows(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(200)
    y = 1 / (1 + np.exp(-x)) + 0.05 * rng.standard_normal(200)
    y[100] = 250.0
    rows = [{"y": float(t), "x": float(v)} for v, t in zip(x, y, strict=True)]
    for flush in (1, 50):
        options = ["--link", "sigmoid", "--quarantine", tmp_path / "bad.csv", "--flush", flush]
        found = answers(stream(tmp_path, as_json(rows), *options, levels=()).stdout)
        assert [row["row"] for row in found if row["status"] == "bad"] == [101]
        (bad,) = read_quarantine(tmp_path / "bad.csv")
        assert bad.reason == "refused by the model" and bad.column == "y"
        (tmp_path / "bad.csv").unlink()


@pytest.mark.slow
def test_classes_have_probabilities(tmp_path):
    rng = np.random.default_rng(2)
    x = rng.standard_normal(300)
    rows = [{"y": bool(v + rng.standard_normal() > 0), "x": float(v)} for v in x]
    found = answers(stream(tmp_path, as_json(rows), "--likelihood", "bernoulli", "--to", "csv", levels=()).stdout)
    assert list(found[0]) == ["row", "class", "p_false", "p_true", "std_false", "std_true", "status"]
    last = found[-1]
    assert float(last["p_false"]) + float(last["p_true"]) == pytest.approx(1)
    assert last["class"] == ("true" if float(last["p_true"]) > 0.5 else "false")


def test_columns_are_kept_and_formats_chosen(tmp_path):
    rows = [{"id": f'="{i},"', "t": [i], **row} for i, row in enumerate(rows_of(5))]
    found = answers(stream(tmp_path, as_json(rows), "--keep", "id,t", "--exclude", "id,t").stdout)
    assert found[3]["id"] == '="3,"' and found[3]["t"] == [3]
    text = stream(tmp_path, as_json(rows), "--keep", "id,t", "--exclude", "id,t", "--to", "csv").stdout
    assert answers(text)[3]["id"] == '\'="3,"' and answers(text)[3]["t"] == "[3]"
    stream(tmp_path, as_json([row | {"mean": 1} for row in rows]), "--keep", "mean", "--exclude", "id,t", code=2)


def test_intervals_can_be_conformal(tmp_path):
    found = answers(stream(tmp_path, as_json(rows_of(300)), "--interval", "conformal").stdout)
    assert found[1]["lower"] is None
    assert found[-1]["lower"] < found[-1]["mean"] < found[-1]["upper"]


def test_a_model_goes_on(tmp_path):
    rows = rows_of(600)
    (tmp_path / "first.jsonl").write_text(as_json(rows[:300]))
    (tmp_path / "all.jsonl").write_text(as_json(rows))
    (tmp_path / "rest.jsonl").write_text(as_json(rows[300:]))
    model = tmp_path / "m.kalprox"
    invoke("fit", tmp_path / "first.jsonl", "--target", "y", "--out", model, "--quiet")
    like = ["--columns", model, "--out", tmp_path / "f.kalprox", "--quiet"]
    invoke("fit", tmp_path / "all.jsonl", *like)
    result = invoke("stream", tmp_path / "rest.jsonl", "--model", model, "--out", model, "--quiet")
    assert answers(result.stdout)[0]["std"] < 1.2  # the first row is predicted by the model
    same_model(model, tmp_path / "f.kalprox", 1e-10)
    for options, said in (
        (["--penalty", "l1"], "--penalty cannot be used with --model"),
        (["--target", "x0"], "--target must be 'y'"),
    ):
        assert said in invoke("stream", tmp_path / "rest.jsonl", "--model", model, *options, code=2).output


def test_a_model_of_an_array_can_be_given_its_target(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 2))
    KalproxRegressor().fit(X, X @ [1.0, 2.0]).save(tmp_path / "m.kalprox")
    (tmp_path / "rows.csv").write_text("x0,x1,price\n1,2,5\n1,1,\n")
    result = invoke("stream", tmp_path / "rows.csv", "--model", tmp_path / "m.kalprox", "--target", "price", "--quiet")
    assert [row["status"] for row in answers(result.stdout)] == ["learned", "predicted"]


def test_mistakes_are_named(tmp_path):
    rows = rows_of(5)
    (tmp_path / "rows.jsonl").write_text(as_json(rows))
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "no.csv").write_text("a,b\n1,2\n")
    for arguments, code, said in (
        ([tmp_path / "rows.jsonl"], 2, "Missing option '--target'"),
        ([tmp_path / "rows.jsonl", "--target", "z"], 3, "no column 'z'"),
        ([tmp_path / "no.csv", "--target", "z"], 3, "no column 'z'"),
        ([tmp_path / "nothing.csv", "--target", "y"], 3, "A stream has one input"),
        (
            [tmp_path / "rows.jsonl", "--target", "y", "--flush", "often"],
            2,
            "a number of rows such as 100, or a time such as 0.5s",
        ),
        ([tmp_path / "rows.jsonl", "--target", "y", "--flush", "0"], 2, "a number of rows such as 100"),
        ([tmp_path / "rows.jsonl", "--formula", "y ~ x0", "--key", "g"], 2, "--key cannot be used with --formula"),
        ([tmp_path / "rows.jsonl", "--target", "y", "--position"], 2, "--position needs --checkpoint"),
        ([tmp_path / "rows.jsonl", "--target", "y", "--out", tmp_path / "rows.jsonl"], 2, "same file"),
    ):
        result = invoke("stream", *arguments, code=code)
        assert said in result.output, result.output
    result = invoke("stream", tmp_path / "empty.csv", "--target", "y", code=3)
    assert "no row" in result.output or "empty" in result.output


@pytest.mark.slow
def test_a_formula_is_a_model_of_a_stream(tmp_path):
    rows = rows_of(200)
    stream_options = ["--formula", "y ~ x0 + x1:x2 + C(g)", "--out", tmp_path / "s.kalprox", "--quiet"]
    (tmp_path / "rows.jsonl").write_text(as_json(rows))
    invoke("stream", tmp_path / "rows.jsonl", *stream_options)
    invoke("fit", tmp_path / "rows.jsonl", *stream_options[:2], "--out", tmp_path / "f.kalprox", "--quiet")
    same_model(tmp_path / "s.kalprox", tmp_path / "f.kalprox", 1e-10)


def test_a_stream_without_samples_keeps_no_values(tmp_path):
    rows = rows_of(100)
    rows[50]["x0"] = "secret"
    options = ["--no-samples", "--quarantine", tmp_path / "bad.csv", "--out", tmp_path / "m.kalprox"]
    options += ["--checkpoint", tmp_path / "c.ckpt", "--every", 30]
    result = stream(tmp_path, as_json(rows), *options)
    for file in ("bad.csv", "m.kalprox", "c.ckpt"):
        assert b"secret" not in (tmp_path / file).read_bytes()
    assert "secret" not in result.output
    assert n_held(TableModel.load(tmp_path / "m.kalprox").learner) == 0


@pytest.mark.slow
def test_forgetting_by_time_is_that_of_fit_and_rows_fade_until_they_are_asked(tmp_path):
    rows = [{"t": 0.5 * i, **row} for i, row in enumerate(rows_of(300))]
    options = ["--time", "t", "--forget", "time,half_life=20"]
    found = answers(stream(tmp_path, as_json(rows), *options, "--out", tmp_path / "s.kalprox").stdout)
    fitted = ["--target", "y", *LEVELS, *options, "--out", tmp_path / "f.kalprox", "--quiet"]
    invoke("fit", tmp_path / "rows.jsonl", *fitted)
    same_model(tmp_path / "s.kalprox", tmp_path / "f.kalprox", 1e-9)
    much_later = rows[-1] | {"t": 1000.0}
    later = answers(stream(tmp_path, as_json([*rows[:-1], much_later]), *options).stdout)
    assert later[-2]["std"] == found[-2]["std"] and later[-1]["std"] > 1.2 * found[-1]["std"]
    back = [*rows[:200], rows[200] | {"t": 3.0}, *rows[201:]]
    quarantined = ["--quarantine", tmp_path / "bad.csv"]
    found = answers(stream(tmp_path, as_json(back), *options, *quarantined).stdout)
    assert [row["row"] for row in found if row["status"] == "bad"] == [201]
    assert read_quarantine(tmp_path / "bad.csv")[0].reason == "time before that of an earlier row"


def test_change_points_are_events_of_a_stream(tmp_path):
    rows = rows_of(600)
    for row in rows[400:]:
        row["y"] += 15.0
    stream(tmp_path, as_json(rows), "--change-points", "auto", "--events", tmp_path / "events.jsonl")
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    changes = [event for event in events if event["event"] == "change"]
    assert len(changes) == 1 and abs(changes[0]["start"] - 401) <= 2 and 401 <= changes[0]["row"] < 440
    assert events[1]["event"] == "position" and events[1]["row"] == 0
    assert events[-1]["event"] == "done" and events[-1]["learned"] == 600
