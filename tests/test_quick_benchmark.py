"""The quick benchmark: what it marks as changed, and when it keeps what it has measured."""

import json
from itertools import cycle

import pytest

pytest.importorskip("resource")  # CPU times of commands, which Windows does not tell

from benchmarks import quick
from benchmarks.harness import Peer


def test_only_changes_beyond_noise_are_marked():
    after = {"a | Ridge": 2.0, "b | Ridge": 2.0, "c | Ridge": 2.0, "d | Ridge": 2.0}
    before = {"a | Ridge": 1.0, "b | Ridge": 4.0, "c | Ridge": 2.0 * 0.99 * quick.NOISE, "gone | Ridge": 1.0}
    marks = {line.split(" | ")[0]: line.split(" | ")[-1] for line in quick.compared(before, after).splitlines()[2:]}
    assert marks == {"| a": "**slower** |", "| b": "faster |", "| c": " |", "| d": "new |"}


@pytest.fixture
def one_job(monkeypatch):
    """One job beside a peer, and a function that says how long the two take, in turns."""

    def call() -> None: ...

    def groups():
        peer = Peer("Ridge", "numpy", lambda data, settings: call)
        yield quick.Group("fit", {}, lambda settings: {}, peer, {"of rows": lambda data, settings: call})

    def take(seconds):
        times = cycle(seconds)
        monkeypatch.setattr(quick, "_seconds", lambda call: next(times))

    monkeypatch.setattr(quick, "groups", groups)
    return take


def test_ratios_are_the_median_of_rounds_and_are_kept_on_request(one_job, tmp_path, capsys):
    file = tmp_path / "results" / "quick.json"
    one_job([1.0, 9.0, 1.0, 2.0, 3.0, 6.0, 1.0, 2.0])
    quick.main(file, False, "", 0.0)
    assert json.loads(file.read_text())["ratios"] == {"fit: of rows | Ridge": 2.0}
    one_job([1.0, 4.0])
    quick.main(file, False, "", 0.0)
    assert "| fit: of rows | Ridge | 2 | 4 | 2.00 | **slower** |" in capsys.readouterr().out
    assert json.loads(file.read_text())["ratios"] == {"fit: of rows | Ridge": 2.0}
    quick.main(file, True, "another", 0.0)
    assert json.loads(file.read_text())["ratios"] == {"fit: of rows | Ridge": 2.0}
    quick.main(file, True, "fit", 0.0)
    assert json.loads(file.read_text())["ratios"] == {"fit: of rows | Ridge": 4.0}
