"""What `kalprox stream` makes of its input: rows that are cut, too long or missing, however their bytes come."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

from kalprox import KalproxRegressor
from kalprox.cli import main

COMMAND = [sys.executable, "-m", "kalprox"]
ENVIRONMENT = os.environ | {"OPENBLAS_NUM_THREADS": "1"}


class Pieces(io.BytesIO):
    """Standard input whose bytes come in pieces that end at these places."""

    def __init__(self, data, cuts=()):
        super().__init__(data)
        self.cuts = [*cuts, len(data)]

    def read1(self, size=-1):
        at = self.tell()
        return self.read(next((cut - at for cut in self.cuts if cut > at), 0))


def invoke(*arguments, data=b"", cuts=(), code=0):
    """The command in this process: its answers and its messages."""
    found = CliRunner().invoke(main, [str(argument) for argument in arguments], input=Pieces(data, cuts))
    assert found.exit_code == code, (found.exit_code, found.output, found.exception)
    return found.stdout, found.stderr


def run(*arguments, data=b"", code=0, **options):
    """The command in a process of its own, which reads a pipe."""
    pipes = {} if "stdin" in options else {"input": data}
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, timeout=300, **pipes | options
    )
    assert done.returncode == code, (done.returncode, done.stderr)
    assert b"Traceback" not in done.stderr
    return done.stdout.decode(), done.stderr.decode()


def statuses(answers):
    return [line.split(",")[-1] for line in answers.splitlines()[1:]]


def lines_of(n, seed):
    """The header and the rows of a linear model, in CSV."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)).round(3)
    y = 100 * (x @ [4.0, -2.0] + rng.normal(size=n)).round(5)
    return ["a,b,y\n", *(f"{a},{b},{c:.3f}\n" for (a, b), c in zip(x.tolist(), y.tolist(), strict=True))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "rows.csv").write_text("".join(lines_of(60, 5)))
    invoke("fit", folder / "rows.csv", "-y", "y", "--out", folder / "m.kalprox", "--quiet")
    return folder / "m.kalprox"


# ---- rows that are cut --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["csv", "jsonl"])
@pytest.mark.parametrize("resume", ["skip", "continue"])
def test_a_feeder_that_dies_inside_a_row(format, resume, tmp_path):
    """Wherever the last row is cut, it is not learned; and it is learned once when it comes whole."""
    lines = lines_of(12, 11)
    if format == "jsonl":
        rows = [dict(zip("aby", map(float, line.split(",")), strict=True)) for line in lines[1:]]
        lines = ["", *(json.dumps(row) + "\n" for row in rows)]
    whole, before = "".join(lines).encode(), len("".join(lines[:-1]))
    options = ["stream", "-y", "y", "--infer-rows", 5, "--to", "jsonl"]
    invoke(*options, "--out", tmp_path / "straight.kalprox", data=whole)
    straight = KalproxRegressor.load(tmp_path / "straight.kalprox")
    for cut in (before + 1, len(whole) - 6, len(whole) - 1):
        checkpoint = ["--checkpoint", tmp_path / f"{cut}.ckpt"]
        answers, said = invoke(*options, *checkpoint, data=whole[:cut])
        assert answers.count("\n") == 11
        assert f"inside a row, whose first {cut - before} byte" in said and "takes the row when it is whole" in said
        assert json.loads(invoke("stream", *checkpoint, "--position")[0]) == {"row": 11, "offset": before}
        again = whole if resume == "skip" else lines[0].encode() + whole[before:]
        out = ["--resume", resume, "--out", tmp_path / "m.kalprox"]
        answers, said = invoke(*options, *checkpoint, *out, data=again)
        assert answers.count("\n") == 1 and "inside a row" not in said
        resumed = KalproxRegressor.load(tmp_path / "m.kalprox")
        np.testing.assert_allclose(resumed.coef_, straight.coef_, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.integration
def test_a_pipe_that_ends_inside_a_row_is_not_taken_for_a_file(tmp_path):
    """A file without a last newline is whole, unless it has a checkpoint, which is resumed when the file has grown."""
    (tmp_path / "rows.csv").write_text("".join(lines_of(20, 12)).rstrip("\n"))
    with open(tmp_path / "rows.csv", "rb") as file:
        answers, said = run("stream", "-y", "y", stdin=file)
    assert answers.count("\n") == 21 and "inside a row" not in said
    shorter, said = run("stream", "-y", "y", "--quiet", data=(tmp_path / "rows.csv").read_bytes())
    assert shorter.count("\n") == 20 and "inside a row" in said and "End the last row with a newline" in said
    options = ["stream", tmp_path / "rows.csv", "-y", "y", "--checkpoint", tmp_path / "c.ckpt", "--quiet"]
    shorter, said = invoke(*options)
    assert shorter.count("\n") == 20 and "inside a row" in said
    with open(tmp_path / "rows.csv", "a") as file:
        file.write("\n")
    longer, said = invoke(*options)
    assert longer.count("\n") == 2 and said == ""


def test_a_row_that_is_cut_inside_quotes_is_not_learned_line_by_line(tmp_path):
    data = b'a,note,y\n1,u,2\n2,"u\n7,u,8\n9,u,10\n'
    options = ["stream", "-y", "y", "--exclude", "note", "--infer-rows", 1, "--checkpoint", tmp_path / "c.ckpt"]
    answers, said = invoke(*options, data=data)
    assert statuses(answers) == ["learned"] and "inside a row, whose first 18 bytes" in said
    answers, _ = invoke(*options, data=data + b'",3\n4,u,5\n')
    assert [line.split(",")[0] for line in answers.splitlines()] == ["row", "2", "3"]


# ---- rows that are too long ---------------------------------------------------------------------------------

LONG = b'a,y,note\n1,2,u\n2,3.5,"' + b"v\n5,6,w\n" * 3 + b'x ""y"" z"\r\n3,7,u\n4,8,"v\n9,9,w"\n5,11,u\n'
OPTIONS = ["-y", "y", "--exclude", "note", "--max-record", 20, "--infer-rows", 1]
EXPECTED = ["learned", "bad", "learned", "learned", "learned"]


@pytest.mark.slow
def test_a_quoted_cell_that_is_too_long_is_one_bad_row_wherever_its_bytes_are_parted(tmp_path):
    for second in range(len(LONG)):
        answers, _ = invoke("stream", *OPTIONS, data=LONG, cuts=range(second, len(LONG), 7))
        assert statuses(answers) == EXPECTED
        answers, _ = invoke("stream", *OPTIONS, data=LONG, cuts=[second])
        assert statuses(answers) == EXPECTED


@pytest.mark.parametrize("cuts", [[], range(len(LONG)), range(0, len(LONG), 6), [26], [45], [50, 52]])
def test_a_quoted_cell_that_is_too_long_is_one_bad_row(cuts):
    """No line inside it is a row."""
    assert statuses(invoke("stream", *OPTIONS, data=LONG, cuts=cuts)[0]) == EXPECTED


@pytest.mark.slow
@pytest.mark.integration
def test_the_same_cell_in_a_file(tmp_path):
    (tmp_path / "rows.csv").write_bytes(LONG)
    assert statuses(invoke("stream", tmp_path / "rows.csv", *OPTIONS)[0]) == EXPECTED
    quarantine = ["--quarantine", tmp_path / "bad.csv", "--out", tmp_path / "m.kalprox"]
    for source, command in ((tmp_path / "rows.csv", invoke), ("-", run)):
        said = "".join(command("fit", source, *OPTIONS, *quarantine, data=LONG))
        assert "5 read, 4 learned, 1 refused" in said
        assert ",2,,record too long," in (tmp_path / "bad.csv").read_text()


def test_a_quote_that_never_closes_costs_one_row_of_a_file(tmp_path):
    """Also where more bytes follow than a record may have."""
    data = b'a,y\n1,2\n"2,3\n' + b"3,4.5\n4,6\n" * 30
    (tmp_path / "rows.csv").write_bytes(data)
    options = [tmp_path / "rows.csv", "-y", "y", "--max-record", 50, "--infer-rows", 1]
    answers, _ = invoke("stream", *options)
    assert statuses(answers) == ["learned", "bad", *["learned"] * 60]
    said = "".join(invoke("fit", *options, "--max-bad", 1, "--out", tmp_path / "m.kalprox"))
    assert "62 read, 61 learned, 1 refused" in said


@pytest.mark.slow
@pytest.mark.integration
def test_a_quote_that_may_still_close_is_said(tmp_path):
    data = b'a,y\n1,2\n"2,3\n' + b"3,4.5\n4,6\n" * 30
    answers, said = run("stream", "-y", "y", "--max-record", 50, "--infer-rows", 1, data=data)
    assert statuses(answers) == ["learned"]
    assert "has not closed within 50 bytes" in said and "inside a row, whose first 305 bytes" in said
    options = ["-y", "y", "--max-record", 50, "--infer-rows", 1, "--max-bad", 1, "--out", tmp_path / "m.kalprox"]
    _, said = run("fit", "-", *options, data=data, code=3)  # it cannot be read again
    assert "a quote that opens before byte 13 never closes" in said and "Write standard input to a file" in said


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_a_first_row_that_is_too_long_does_not_hide_those_behind_it(format):
    header, row = {"csv": (b"a,y\n", b"%d,%d\n"), "jsonl": (b"", b'{"a": %d, "y": %d}\n')}[format]
    long = b"1" * 500 + b",2\n" if format == "csv" else b'{"a": ' + b"1" * 500 + b"}\n"
    data = header + long + b"".join(row % (i, 2 * i + i % 3) for i in range(9))
    for cuts in ([], range(0, len(data), 50)):
        options = ["-y", "y", "--max-record", 200, "--to", "jsonl", "--infer-rows", 3]
        answers, _ = invoke("stream", *options, data=data, cuts=cuts)
        assert [json.loads(line)["status"] for line in answers.splitlines()] == ["bad", *["learned"] * 9]


def test_a_header_that_is_too_long_is_said():
    _, said = invoke("stream", "-y", "y", "--max-record", 20, data=b"a,b,c,d,e,f,g,h,i,j,y\n1,2\n", code=3)
    assert "header does not end within 20 bytes, the value of --max-record" in said


def test_a_million_blank_lines_cost_less_than_a_second(tmp_path):
    blank = b"\n" * 1_000_000
    data = blank + b"a,y\n1,2\n" + blank + b"2,5\n3,5\n"
    begin = time.process_time()
    answers, _ = invoke("stream", "-y", "y", data=data, cuts=range(0, len(data), 1 << 16))
    assert statuses(answers) == ["learned"] * 3
    assert time.process_time() - begin < 1.5


# ---- times ---------------------------------------------------------------------------------------------------


def timed(times, seed=4):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=len(times)).round(3)
    y = (3 * x + rng.normal(size=len(times))).round(3)
    return ("t,x,y\n" + "".join(f"{t},{a},{b}\n" for t, a, b in zip(times, x, y, strict=True))).encode()


BY_TIME = ["-y", "y", "--time", "t", "--forget", "time,half_life=8", "--infer-rows", 5]


@pytest.mark.parametrize("flush", [1, 7])
def test_one_time_in_the_far_future_is_one_bad_row(flush, tmp_path):
    times = [float(i) for i in range(40)]
    times[17] = 2e6
    quarantine = ["--quarantine", tmp_path / "bad.csv"]
    answers, said = invoke("stream", *BY_TIME, "--flush", flush, *quarantine, data=timed(times))
    assert [i for i, status in enumerate(statuses(answers)) if status == "bad"] == [17]
    assert "'t' time far after that of" in said
    assert "half-lives after the row before it, more than --max-jump 50" in (tmp_path / "bad.csv").read_text()
    answers, _ = invoke("stream", *BY_TIME, "--flush", flush, "--max-jump", 1e6, data=timed(times))
    assert statuses(answers).count("bad") == 22  # as asked for: those behind it are earlier


@pytest.mark.parametrize("flush", [1, 7])
def test_a_first_time_in_the_far_future_is_named_as_what_refuses_the_others(flush, tmp_path):
    """It was the target that the summary and the quarantine named."""
    data = timed([4e6, *range(30)], seed=8)
    answers, said = invoke("stream", *BY_TIME, "--flush", flush, "--quarantine", tmp_path / "bad.csv", data=data)
    assert statuses(answers).count("bad") == 30
    assert "'t' time before that of an earlier row (30)" in " ".join(said.split())
    bad = (tmp_path / "bad.csv").read_text().splitlines()[1]
    assert ",2,t,time before that of an earlier row," in bad and "it has the time 0, after 4000000" in bad


@pytest.mark.parametrize("flush", [1, 7])
def test_a_pause_costs_one_row(flush):
    times = [*range(20), *range(5000, 5020)]
    answers, _ = invoke("stream", *BY_TIME, "--flush", flush, data=timed(times))
    assert [i for i, status in enumerate(statuses(answers)) if status == "bad"] == [20]


def test_a_pause_across_a_checkpoint(tmp_path):
    """The row before the pause, and the one that was refused after it, are in the checkpoint."""
    data, options = timed([*range(20), *range(5000, 5020)]), [*BY_TIME, "--checkpoint", tmp_path / "c.ckpt"]
    rows = data.splitlines(keepends=True)
    first, _ = invoke("stream", *options, data=b"".join(rows[:22]))
    second, _ = invoke("stream", *options, data=data)
    assert statuses(first)[20:] == ["bad"] and statuses(second) == ["learned"] * 19


# ---- no rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\n \n"])
@pytest.mark.parametrize("format", [[], ["--format", "csv"], ["--format", "jsonl"]])
def test_an_empty_input(data, format, model, tmp_path):
    _, said = invoke("stream", "-y", "y", *format, data=data, code=3)
    assert "There are no rows" in said
    _, said = invoke("stream", "--model", model, *format, "--out", tmp_path / "m.kalprox", data=data)
    assert said.startswith("0 rows: ") and (tmp_path / "m.kalprox").exists()


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("command", ["stream -y y", "stream --model {}", "fit - -y y --out m.kalprox", "predict {} -"])
def test_standard_input_that_is_closed(command, model, tmp_path):
    arguments = [*COMMAND, *command.format(model).split()]
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *arguments], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 3 and done.stderr.startswith("Error: Standard input is closed.")


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("resumed", [False, True])
def test_a_signal_before_the_first_row(resumed, model, tmp_path):
    """The model that the stream begins with is written to --out, and the summary is that of its kind."""
    options = ["--model", model, "--checkpoint", tmp_path / "c.ckpt", "--out", tmp_path / "m.kalprox"]
    if resumed:
        invoke("stream", *options, data="".join(lines_of(30, 6)).encode())
        os.remove(tmp_path / "m.kalprox")
    command = [*COMMAND, "stream", *map(str, options), "--events", str(tmp_path / "events.jsonl")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=ENVIRONMENT, **pipes) as process:
        while not (tmp_path / "events.jsonl").exists() or "position" not in (tmp_path / "events.jsonl").read_text():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    said = said.decode()
    assert process.returncode == 143 and "Traceback" not in said
    assert KalproxRegressor.load(tmp_path / "m.kalprox").n_rows_seen_ == 60 + 30 * resumed
    assert str(tmp_path / "m.kalprox") in said and "No row has been learned" not in said
    assert (str(tmp_path / "c.ckpt") in said.splitlines()) is resumed  # what is named has been written
    assert ("RMSE" in said) is resumed and "classes" not in said


def test_no_rows_and_a_checkpoint(model, tmp_path):
    """It ended with an AssertionError."""
    _, said = invoke("stream", "--model", model, "--checkpoint", tmp_path / "c.ckpt", data=b"a,b,y\n")
    assert said.startswith("0 rows: ") and not (tmp_path / "c.ckpt").exists()


def test_an_input_without_a_column_of_the_model(model):
    _, said = invoke("stream", "--model", model, data=b"a,y\n1,2\n", code=3)
    assert "there is no column 'b'" in said


def test_an_option_that_a_stream_does_not_have():
    """Outliers of a stream are not written to the quarantine file: the option was taken, and did nothing."""
    _, said = invoke("stream", "-y", "y", "--likelihood", "huber", "--quarantine-outliers", data=b"a,y\n1,2\n", code=2)
    assert "No such option" in said
