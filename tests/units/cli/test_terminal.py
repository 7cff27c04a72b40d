"""The commands begin with one headline, and --strict makes its doubts an exit code."""

import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from command import invoke
from rich.console import Console

from kalprox.cli.terminal import _text, rows_bar, show_table
from kalprox.jobs.model import TableModel
from kalprox.jobs.run import Progress
from kalprox.pages import Table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tables: good.csv, of which nothing is doubtful, and messy.csv, with missing cells, collinear and constant
    columns, and noise that is not normal."""
    folder, rng, n = tmp_path_factory.mktemp("headline"), np.random.default_rng(0), 4000
    X = rng.normal(size=(n, 2))
    good = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": X @ [1.0, 2.0] + rng.normal(size=n)})
    good.to_csv(folder / "good.csv", index=False)
    messy = good.assign(year=2013, minutes=60 * good.a, y=X @ [1.0, 2.0] + rng.standard_t(2.5, size=n))
    messy.loc[messy.index % 50 == 0, "b"] = np.nan
    messy.to_csv(folder / "messy.csv", index=False)
    for name in ("good", "messy"):
        options = ["-y", "y", "--penalty", "none", "--max-bad", "5%", "--out", folder / f"{name}.kalprox"]
        invoke("fit", folder / f"{name}.csv", *options)
    return folder


@pytest.mark.slow
def test_the_commands_begin_with_the_same_lines(folder):
    model = folder / "messy.kalprox"
    expected = str(TableModel.load(model).headline())
    lines = expected.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "Rows        4,000 read, 3,920 learned, 80 refused (2%): 'b' missing (80)."
    assert any(line.startswith("! Columns   'year' is constant") for line in lines)
    assert any(line.startswith("! Columns   'a', 'minutes' are collinear") for line in lines)
    assert "predict --interval conformal" in " ".join(expected.split())
    options = ["-y", "y", "--penalty", "none", "--max-bad", "5%", "--out", folder / "again.kalprox"]
    assert invoke("fit", folder / "messy.csv", *options).stdout == f"{expected}\n{folder / 'again.kalprox'}\n"
    assert invoke("show", model).stdout.startswith(expected)
    reported = invoke("report", model)
    assert reported.stderr.startswith(expected) and reported.stdout == f"{model.with_suffix('.html')}\n"
    out = folder / "p.csv"
    predicted = invoke("predict", model, folder / "messy.csv", "--max-bad", "5%", "--out", out).stdout.splitlines()
    assert predicted[0] == "Rows        4,000 read, 3,920 predicted, 80 refused (2%): 'b' missing (80)."
    assert predicted[1] == "Model       4,000 read, 3,920 learned, 80 refused (2%): 'b' missing (80)."
    assert predicted[2:] == [*lines[1:], str(out)]


def test_predictions_on_standard_output_have_the_headline_on_standard_error(folder):
    done = invoke("predict", folder / "good.kalprox", folder / "good.csv")
    assert done.stdout.startswith('"mean","std","lower","upper"\n') and done.stdout.count("\n") == 4001
    assert done.stderr.startswith("Rows        4,000 read, 4,000 predicted, none refused.\n")
    assert invoke("predict", folder / "good.kalprox", folder / "good.csv", "--quiet").stderr == ""


@pytest.mark.slow
def test_strict_ends_with_a_code_of_its_own_after_everything_is_written(folder):
    messy, out = folder / "messy.kalprox", folder / "strict.csv"
    doubts = TableModel.load(messy).headline().doubts
    predicting = ["predict", messy, folder / "messy.csv", "--max-bad", "5%", "--out", out]
    fitting = ["fit", folder / "messy.csv", "-y", "y", "--penalty", "none", "--max-bad", "5%"]
    for arguments in (
        [*fitting, "--out", folder / "strict.kalprox", "--quiet"],
        ["show", messy],
        ["report", messy, "--out", folder / "strict.html"],
        predicting,
    ):
        done = invoke(*arguments, "--strict", code=8)
        assert all(f"! {line.label}" in done.stderr for line in doubts)
    assert all((folder / f"strict.{suffix}").exists() for suffix in ("csv", "html", "kalprox"))
    assert len(pd.read_csv(out)) == 4000
    good = folder / "good.kalprox"
    for arguments in (["show", good], ["report", good], ["predict", good, folder / "good.csv"]):
        assert "!" not in invoke(*arguments, "--strict").stderr


def test_the_events_contain_the_headline(folder):
    events, options = folder / "events.jsonl", ["--max-bad", "5%", "--events", folder / "events.jsonl"]
    invoke("predict", folder / "messy.kalprox", folder / "messy.csv", "--out", folder / "e.csv", *options)
    last = json.loads(events.read_text().splitlines()[-1])
    assert last["headline"][0] == {
        "label": "Rows", "text": "4,000 read, 3,920 predicted, 80 refused (2%): 'b' missing (80).", "doubt": False,
    }  # fmt: skip
    assert any(line["doubt"] for line in last["headline"])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_progress_line_keeps_its_bar_and_the_time_left(width):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    bar = rows_bar(console)
    task = bar.add_task("predict", total=1000, text="")
    clock = iter(range(100))
    bar.get_time = lambda: float(next(clock))
    for share in (0.2, 0.4, 0.5):
        text = _text(Progress(123_456_789, 9_430, share, 2, 15.34, 0.938), 146_123.0)
        bar.update(task, completed=1000 * share, text=text)
    console.print(bar.get_renderable())
    (line,) = console.file.getvalue().splitlines()
    assert len(line) <= width and "━━━━━━━━" in line and " 50% 00:" in line and "pass 3, 123,456,789" in line


def test_a_table_wider_than_the_terminal_loses_no_character(monkeypatch, capsys):
    """Names were cut to "Artik…" at 80 columns, and so were numbers."""
    table = Table(["#", "column", "coefficient"], [[1, "a name of five words", -1234.5], [2, "b", 0.25]], "A caption.")
    for width in (120, 30, 12):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        show_table(table)
        shown = capsys.readouterr().out
        assert "-1,234" in shown and "coefficient" in shown and "…" not in shown
        rows = shown[shown.index("───") : shown.index("b ")]
        assert "".join(re.findall("[a-z]+", rows)) == "anameoffivewords"


@pytest.mark.slow
def test_the_path_tells_the_best_from_its_neighbours_and_draws_it(folder):
    out, svg = folder / "path.csv", folder / "path.svg"
    invoke("fit", folder / "good.csv", "-y", "y", "--alpha", "auto", "--out", folder / "auto.kalprox")
    printed = invoke("path", folder / "auto.kalprox", "--out", out, "--figure", svg).stdout
    found = pd.read_csv(out)
    best = found.score.argmax()
    assert 0 < best < len(found) - 1
    lines = printed.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("───")) + 1
    rows = [line.split(maxsplit=3) for line in lines[first : first + len(found)]]
    assert [i for i, row in enumerate(rows) if row[3].strip() == "0 (best)"] == [best]
    for i in (best - 1, best + 1):
        assert row_score(rows[i]) == pytest.approx(found.score[i] - found.score[best], abs=0.005) and row_score(rows[i])
    assert f"{found.score[best]:,.2f}" in " ".join(printed.split()) and str(svg) in printed
    assert "<svg" in svg.read_text() and json.loads((folder / "path.json").read_text())["alpha"] == list(found.alpha)
    given = invoke("path", folder / "auto.kalprox", "--alphas", "1e6,1e5").stdout
    assert "The best is the smallest alpha that was given" in " ".join(given.split()) and "1,000,000" in given
    assert (
        "ends in .svg, .png or .pdf"
        in invoke("path", out.with_name("auto.kalprox"), "--figure", "a.gif", code=2).output
    )


def row_score(row):
    return float(row[3].replace(",", ""))


def test_a_constant_target_and_columns_that_are_far_too_small_are_said(tmp_path):
    """The first was told of coefficients that the penalty had set to 0, and no label ran into its text."""
    rng = np.random.default_rng(0)
    small = pd.DataFrame(1e-3 * rng.normal(size=(500, 2)), columns=["a", "b"])
    small["y"] = small @ [1000.0, -500.0] + 0.1 * rng.normal(size=500)
    small.to_csv(tmp_path / "small.csv", index=False)
    small.assign(y=3).to_csv(tmp_path / "constant.csv", index=False)
    said = invoke(
        "fit", tmp_path / "small.csv", "-y", "y", "--penalty", "ridge", "--out", tmp_path / "m", "--strict", code=8
    ).stdout
    assert "! Intervals The penalty moves a coefficient by 9" in said
    assert "Use --penalty none, a smaller alpha, or --standardize if" in " ".join(said.split())
    said = invoke("fit", tmp_path / "constant.csv", "-y", "y", "--out", tmp_path / "m").stdout
    assert "! Verdict   exact: Every prediction was right" in said and "by the penalty" not in said
