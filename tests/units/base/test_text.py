"""Text from data, made safe: round trips through CSV cells, and no control characters on a terminal."""

import csv
import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalprox.base.text import csv_cell, from_csv_cell, printable
from kalprox.sources.quarantine import BadRow, Quarantine, Reason, read_quarantine

HOSTILE = ["\x1b[2J", "\a", "\r", "\0", "\x9b31m", "\u202e", "\u2066", "\u2028", "\x7f", "\b"]
NASTY = st.text(st.sampled_from([*"=+-@\t\r\n'\"a1,. \0", "\N{FULLWIDTH EQUALS SIGN}", "\x1b", "é"]), max_size=12)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_what_a_terminal_acts_upon_is_escaped(text):
    safe = printable(f"a{text}b")
    assert safe.isprintable() and safe.startswith("a\\") and safe.endswith("b")


def test_other_text_is_left_alone():
    text = "Größe\N{NO-BREAK SPACE}1\n日本 = 5 \N{GRINNING FACE}"
    assert printable(text) == text and printable("a\nb", keep="") == "a\\nb"


@given(NASTY)
def test_a_csv_cell_is_read_back_and_begins_no_formula(text):
    cell = csv_cell(text)
    assert from_csv_cell(cell) == text
    try:
        float(cell)
    except ValueError:
        assert not cell.startswith(tuple("=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}"))


@pytest.mark.parametrize("number", ["-5", "+3.25", "-1e5", "-.5", "-inf"])
def test_numbers_are_left_alone(number):
    assert csv_cell(number) == number


def test_the_bad_rows_of_a_file_are_read_back(tmp_path):
    values = ["=cmd|' /C calc'!A0", "@SUM(A1)", "+1+1", "-5", "'quoted", "a,b", 'c"d', "\tx", "x\ny", "x\ry", ""]
    rows = [BadRow("=f.csv", i, "-column", Reason.NOT_NUMBER, value) for i, value in enumerate(values)]
    quarantine = Quarantine(tmp_path / "bad.csv")
    quarantine.take(rows, len(rows))
    quarantine.finish()
    assert read_quarantine(tmp_path / "bad.csv") == rows
    with (tmp_path / "bad.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.startswith(tuple("=+@\t\r")) or (cell.startswith("-") and cell != "-5")]


# ---- a real terminal ---------------------------------------------------------------------------------------------


def on_terminal(folder, *arguments):
    """What the command writes to a terminal."""
    master, end = pty.openpty()
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-m", "kalprox", *map(str, arguments)], stdout=end, stderr=end, env=environment, cwd=folder
    )
    os.close(end)
    parts = []
    while True:
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        parts.append(part)
    process.wait()
    os.close(master)
    return b"".join(parts).decode()


@pytest.mark.slow
@pytest.mark.integration
def test_names_and_values_do_not_control_the_terminal(tmp_path):
    """In file names, column names, levels, refused cells, unknown options: the escape, never the character."""
    evil = "e\x1b]0;owned\a\x9b31m\u202e"
    data, new = tmp_path / f"{evil}.csv", tmp_path / f"new{evil}.csv"
    data.write_text(f"y,x{evil},c\n" + "".join(f"{i},{i % 3},v{i % 2}{evil}\n" for i in range(20)))
    new.write_text(f"y,x{evil},c\n1,2,v0{evil}\n1,2,unknown{evil}\n1,bad{evil},v0{evil}\n")
    model, page = tmp_path / f"m{evil}.kalprox", tmp_path / f"m{evil}.html"
    texts = [
        on_terminal(tmp_path, "fit", data, "-y", "y", "--penalty", "ridge", "--out", model),
        on_terminal(tmp_path, "show", model),
        on_terminal(tmp_path, "report", model, "--out", page),
        on_terminal(tmp_path, "path", model, "--out", tmp_path / f"p{evil}.csv"),
        on_terminal(tmp_path, "predict", model, new, "--out", tmp_path / f"p{evil}.csv", "--max-bad", "1"),
        on_terminal(tmp_path, "predict", model, new, "--out", tmp_path / f"p{evil}.csv"),
        on_terminal(tmp_path, "fit", data, "-y", f"no{evil}", "--out", model),
        on_terminal(tmp_path, "fit", f"none{evil}.csv", "-y", "y"),
        on_terminal(tmp_path, "show", f"none{evil}"),
        on_terminal(tmp_path, f"command{evil}"),
        on_terminal(tmp_path, f"--option{evil}"),
        on_terminal(tmp_path, "merge", model, model, "--out", tmp_path / f"merged{evil}"),
    ]
    for text in texts:
        bare = text.replace("\x1b[?25l", "").replace("\x1b[?25h", "").replace("\x1b[2K", "").replace("\x1b[1A", "")
        bare = bare.replace("\r\n", "\n").replace("\r", "")
        assert "\\x1b]0;owned" in bare, text
        assert not {c for c in bare if not c.isprintable() and c != "\n"}, ascii(text)
    html = page.read_text()
    assert not {c for c in html if not c.isprintable() and c not in "\n\t"} and "owned" in html


@pytest.mark.slow
@pytest.mark.integration
def test_a_page_escapes_names_and_levels(tmp_path):
    """In tables, titles, figures and settings; the page has no scripts."""
    script = "</title></svg><script>alert(1)</script><img src=x onerror=alert(2)>"
    data = tmp_path / "data.csv"
    with data.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["y", f"x{script}", f"c{script}"])
        writer.writerows([i, i % 3, f"{script}{i % 2}"] for i in range(20))
        writer.writerow([1, script, f"{script}0"])
    model = tmp_path / "model.kalprox"
    command = [sys.executable, "-m", "kalprox"]
    subprocess.run(
        [*command, "fit", data, "-y", "y", "--max-bad", "1", "--out", model, "-q"], check=True, capture_output=True
    )
    subprocess.run([*command, "report", model], check=True, capture_output=True)
    html = model.with_suffix(".html").read_text()
    assert "<script" not in html and "<img" not in html and "&lt;script&gt;" in html
    assert html.count("</title>") == 1 + html.count("<svg")
