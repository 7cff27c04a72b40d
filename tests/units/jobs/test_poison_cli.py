"""Bad files and bad model files, given to the command: a message and an exit code, or exactly the good rows learned."""

import csv
import re
import tracemalloc

import numpy as np
import pytest
from command import invoke, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from poison import CASES, HEADER, LONG, rows

from kalprox import KalproxRegressor, model_file
from kalprox.jobs.model import TableModel
from kalprox.sources.columns import Columns
from kalprox.sources.files import find
from kalprox.sources.table import Table

pytestmark = pytest.mark.integration

READING = ("format", "encoding", "delimiter", "skip_unreadable")


def options(case):
    """Of the command, for those of the case."""
    given = {"target": "y"} | case.options
    levels = given.pop("categorical", {})
    found = [f"--categorical={name}={'|'.join(levels[name])}" for name in levels]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        found += [option] if value is True else [option, ",".join(value) if isinstance(value, list) else value]
    return found


def good_rows(case, source):
    """X, y and weights of the good rows."""
    reading = {name: value for name, value in case.options.items() if name in READING}
    columns = Columns.infer(find(source), **({"target": "y"} | case.options))
    blocks = [block for block in Table(source, columns, **reading).blocks() if len(block.X)]
    weights = None if columns.weight is None else np.concatenate([block.weights for block in blocks])
    return np.concatenate([b.X for b in blocks]), np.concatenate([b.y for b in blocks]), weights


def check(case, folder, command):
    """That `command` does with the case what is expected; it returns what it says."""
    source, expected = case.write(folder), case.outcome
    out, bad = folder / "model.kalprox", folder / "bad.csv"
    arguments = ["fit", source, *options(case), "--out", out]
    if expected.error:
        said = command(*arguments, "--quarantine", bad, code=3)
        assert re.search(f"(?s){expected.error}", said) and said.startswith("Error: ")
        assert not out.exists()
        return
    if expected.bad:
        said = command(*arguments, code=4)
        for row, column, reason in expected.bad[:5]:
            where = (f", row {row}" if row else "") + (f", column {column!r}" if column else "")
            assert re.search(rf"{re.escape(str(folder))}/\S+{where}: {reason}", said), said
        assert not out.exists()
    said = command(*arguments, "--quarantine", bad)
    assert f"{expected.good:,} learned" in " ".join(said.split()) or case.options.get("weight")
    with open(bad, newline="", encoding="utf-8") as file:
        refused = [(int(row["row"]), row["column"], row["reason"]) for row in csv.DictReader(file)]
    assert tuple(refused) == expected.bad
    found = TableModel.load(out)
    assert found.record.quality.bad == len(expected.bad)
    straight = KalproxRegressor().fit(*good_rows(case, source))
    np.testing.assert_allclose(found.model.coef_, straight.coef_, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.model.covariance_, straight.covariance_, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.name == LONG else []) for case in CASES],
)
def test_poison(case, tmp_path):
    check(case, tmp_path, lambda *arguments, code=0: invoke(*arguments, code=code).output)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv: NaN", "csv: a column twice", "parquet: one of three truncated, skipped"])
def test_poison_installed(name, tmp_path):
    def command(*arguments, code=0):
        done = run(*arguments, code=code)
        return done.stderr if code else done.stdout

    check(next(case for case in CASES if case.name == name), tmp_path, command)


# model files


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model file, its bytes, and rows to predict."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "rows.csv").write_text(HEADER + rows(300))
    invoke("fit", folder / "rows.csv", "--target", "y", "--out", folder / "good.kalprox")
    (folder / "few.csv").write_text(HEADER + rows(3))
    return folder, (folder / "good.kalprox").read_bytes()


def refused(folder, data):
    """`show` and `predict` say that the file is not whole, in little memory."""
    file = folder / "bad.kalprox"
    file.write_bytes(data)
    for command in (["show", file], ["predict", file, folder / "few.csv"]):
        tracemalloc.start()
        try:
            output = invoke(*command, code=6).output
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert output.startswith("Error: ") and file.name in output and "Traceback" not in output
        assert peak < 20 * len(data) + 2**21


FUZZ = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.slow
@FUZZ
@given(change=st.data())
def test_a_model_file_with_changed_bytes(model, change):
    folder, good = model
    bad = bytearray(good)
    for _ in range(change.draw(st.integers(1, 4))):
        bad[change.draw(st.integers(0, len(good) - 1))] = change.draw(st.integers(0, 255))
    if bytes(bad) != good:
        refused(folder, bytes(bad))


@pytest.mark.slow
@FUZZ
@given(share=st.floats(0, 1, exclude_max=True), tail=st.binary(max_size=50))
def test_a_model_file_cut_short_or_gone_on_with(model, share, tail):
    folder, good = model
    data = good[: int(share * len(good))] + tail
    if data != good:
        refused(folder, data)
    refused(folder, good + tail + b"\0")


@pytest.mark.slow
@FUZZ
@given(data=st.binary(max_size=2000))
def test_random_bytes_for_a_model_file(model, data):
    refused(model[0], data)
    refused(model[0], len(data).to_bytes(8, "little") + data)


def test_a_whole_model_file_is_shown(model):
    folder, _ = model
    assert "300" in invoke("show", folder / "good.kalprox").output
    output = invoke("predict", folder / "good.kalprox", folder / "few.csv").stdout
    assert len(output.splitlines()) == 4


def test_columns_without_a_target_are_refused(model, tmp_path):
    folder, _ = model
    header, arrays = model_file.read(folder / "good.kalprox")
    header["table"]["columns"]["target"] = None
    model_file.write(tmp_path / "none.kalprox", header, arrays)
    assert "damaged" in invoke("fit", folder / "rows.csv", "--columns", tmp_path / "none.kalprox", code=6).output


def test_a_model_of_several_targets_is_said(tmp_path):
    """Others that were fitted in Python are opened by every command."""
    KalproxRegressor().fit(np.eye(3), np.eye(3)).save(tmp_path / "memory.kalprox")
    for command in ("show", "report", "path"):
        assert "The model has 3 targets" in invoke(command, tmp_path / "memory.kalprox", code=2).output
