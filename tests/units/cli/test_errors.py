"""The exit codes are those that docs/reference/cli.md lists, whatever happens to standard output."""

import _thread
import os
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner
from command import invoke, start
from poison import HEADER, rows

from kalprox.base.text import worded
from kalprox.cli.errors import EXIT_CODES, Commands, _interrupt_after, _text

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("errors")
    source, model = folder / "rows.csv", folder / "model.kalprox"
    source.write_text(HEADER + rows(20_000))
    invoke("fit", source, "--target", "y", "--penalty", "ridge", "--out", model)
    return source, model


def ended(*arguments, **options):
    """The exit code and the messages of a command."""
    with start(*arguments, **options) as process:
        if process.stdout:
            process.stdout.close()
        return process.wait(), process.stderr.read()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "path", "predict"])
def test_a_reader_that_goes_away_is_no_error_of_kalprox(command, files):
    source, model = files
    assert ended(command, model, *([source] if command == "predict" else [])) == (141, "")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["show", "predict"])
def test_output_that_cannot_be_written_is_said(command, files):
    source, model = files
    with open("/dev/full", "w") as full:
        code, said = ended(command, model, *([source] if command == "predict" else []), stdout=full)
    assert code == 7 and said.startswith("Error: ") and "No space left" in said and "Traceback" not in said


@pytest.mark.slow
def test_closed_streams(files, tmp_path):
    source, model = files
    command = [sys.executable, "-m", "kalprox"]
    for arguments, closing, code in (
        (["show", model], ">&-", 7),
        (["show", model], "2>&-", 0),
        (["fit", source, "-y", "y", "--out", tmp_path / "m.kalprox", "--quiet"], ">&- 2>&-", 0),
    ):
        script = f'"$@" {closing}'
        assert subprocess.run(["sh", "-c", script, "sh", *command, *map(str, arguments)]).returncode == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (BrokenPipeError(), 141),
        (OSError("no"), 7),
        (EOFError(), 1),
        (FloatingPointError("diverged"), 2),
    ],
)
def test_every_error_has_a_documented_code(error, code):
    @click.group(cls=Commands)
    def main():
        pass

    @main.command()
    def fail():
        raise error

    assert CliRunner().invoke(main, ["fail"]).exit_code == code
    assert code in EXIT_CODES


def test_an_interrupt_while_the_options_are_read(monkeypatch):
    """It ended with 1 and "Aborted!"."""

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(click.Group, "make_context", interrupted)
    found = CliRunner().invoke(click.group(cls=Commands)(lambda: None), ["fit"])
    assert found.exit_code == 130 and found.output.startswith("Interrupted.")


@pytest.mark.slow
def test_a_number_of_rows_beyond_64_bits_is_all_of_them(files, tmp_path):
    invoke("fit", files[0], "--target", "y", "--infer-rows", 10**30, "--out", tmp_path / "m.kalprox")


@pytest.mark.parametrize("encoding", ["nonsense", "rot13", "undefined"])
def test_an_encoding_that_is_none_of_text(encoding, files, tmp_path):
    output = invoke("fit", files[0], "-y", "y", "--encoding", encoding, "--out", tmp_path / "m.kalprox", code=3).output
    assert f"got '{encoding}'" in output


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Use {decimal=','} {thousands='.'} to read them.", "Use --decimal , --thousands . to read them."),
        ("{thousands} must differ: give {delimiter=';'}", "--thousands must differ: give --delimiter ';'"),
        ("give {delimiter='\\t'}.", "give --delimiter '\t'."),
        ("{likelihood='huber'}, {'student'|student} or another", "--likelihood huber, student or another"),
        ("{standardize=True} needs {Call fit|kalprox fit}", "--standardize needs kalprox fit"),
        ("{penalty='ridge'} or {None|none}, {forget=1}", "--penalty ridge or none, no forgetting"),
        ("{noise='learn'}, {alpha=2}, {samples=False}", "--noise learn, --alpha 2, --no-samples"),
    ],
)
def test_parameters_are_shown_as_options(said, shown):
    assert _text(ValueError(worded(said))) == shown
    assert _text(ValueError(worded("{}", "{alpha} and alpha=1"))) == "{alpha} and alpha=1"  # text from data


def test_an_interrupt_is_repeated_when_the_hook_has_been_left():
    """On a busy machine it was repeated while the hook still ran, where Python ignores it once more."""
    passed = []

    def hook():
        _thread.start_new_thread(_interrupt_after, (sys._getframe(),))
        time.sleep(0.05)
        passed.append("hook")

    def command():
        hook()
        time.sleep(5)
        passed.append("command")

    with pytest.raises(KeyboardInterrupt):
        command()
    assert passed == ["hook"]


INTERRUPTED = """
import gc, sys
from kalprox.cli import main

came = []


def once(phase, info):
    if not came and sys.unraisablehook is not sys.__unraisablehook__:  # the command has begun
        came.append(phase)
        raise KeyboardInterrupt


gc.callbacks.append(once)
main(["fit", *sys.argv[1:]])
"""


@pytest.mark.slow
def test_an_interrupt_during_garbage_collection_is_not_lost(tmp_path):
    """JAX has a callback there, in which Python ignores exceptions: the command went on, after a traceback."""
    rows = "\n".join(f"{i},{i % 7}" for i in range(200))
    (tmp_path / "rows.csv").write_text(f"x,y\n{rows}\n")
    command = [sys.executable, "-c", INTERRUPTED, "rows.csv", "-y", "y", "--out", "model.kalprox"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 130 and "Traceback" not in ran.stderr
    assert not (tmp_path / "model.kalprox").exists()
