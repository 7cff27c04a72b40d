"""Bandits in files: the same decisions after loading, also after a process was killed, and files that are refused."""

import subprocess
import sys

import numpy as np
import pytest

import kalprox as kp
from kalprox import model_file
from kalprox.base.tree import as_numbers, from_numbers
from kalprox.decisions import Bandit
from kalprox.forgetting import ByTime
from kalprox.model_file import ModelFileError

SETTINGS = {
    "still": {},
    "given noise": {"noise": 0.5, "fit_intercept": False},
    "by row": {"forget": 0.95},
    "by time": {"forget": ByTime(12.5), "pooling": np.inf},
    "shared": {"features": "shared"},
    "shared by time": {"features": "shared", "forget": ByTime(20.0)},
}
RULES = ("sample", "ucb", "greedy", "epsilon")


def played(bandit, rounds, late=3):
    """The decisions of some rounds whose rewards come three rounds late, or with the next `played`."""
    made = []
    for _ in range(rounds):
        t = bandit.n_decisions_
        rng = np.random.default_rng(t)
        x = rng.normal(size=(len(bandit.arms_), 3) if bandit._settings.shared else 3)
        decision = getattr(bandit, RULES[t % 4])(x)
        made.append((decision.key, decision.arm, decision.propensity, *decision.values))
        if t >= late:
            bandit.reward(t - late, float(rng.normal()))
    return made


@pytest.mark.parametrize("name", SETTINGS)
def test_a_bandit_goes_on_from_its_file_as_if_it_had_never_been_saved(tmp_path, name):
    bandit = Bandit(["a", 2, "c"], random_state=0, **SETTINGS[name])
    played(bandit, 90)
    bandit.save(tmp_path / "bandit")
    other = Bandit.load(tmp_path / "bandit")
    assert other.arms_ == ["a", 2, "c"] and other.n_pending_ == 3
    assert played(bandit, 150) == played(other, 150)  # to the last bit
    bandit.save(tmp_path / "bandit")
    other.save(tmp_path / "other")
    assert (tmp_path / "bandit").read_bytes() == (tmp_path / "other").read_bytes()


def test_a_bandit_without_rows_and_one_whose_arms_changed_are_saved(tmp_path):
    Bandit(["a"]).save(tmp_path / "empty")
    assert Bandit.load(tmp_path / "empty").arms_ == ["a"]
    bandit = Bandit(["a", "b"], random_state=0)
    played(bandit, 30)
    bandit.remove_arm("a")
    bandit.add_arm("new")
    bandit.save(tmp_path / "changed")
    other = Bandit.load(tmp_path / "changed")
    for key in range(27, 30):
        found = []
        for one in (bandit, other):
            try:
                one.reward(key, 1.0)
                found.append("learned")
            except ValueError as error:
                found.append(str(error))
        assert found[0] == found[1]
    np.testing.assert_array_equal(bandit.coef_, other.coef_)


SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[2])
from test_bandit_files import Bandit, played
from pathlib import Path
file = Path(sys.argv[1])
bandit = Bandit.load(file) if file.exists() else Bandit(["a", "b", "c"], random_state=7)
for part in range(6):
    print(*(arm for _, arm, *_ in played(bandit, 10)), flush=True)
    bandit.save(file)
    if part == 2:
        played(bandit, 4)  # lost: the file does not have them
        os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_process_that_is_killed_and_started_again_takes_the_same_decisions(tmp_path):
    (tmp_path / "run.py").write_text(SCRIPT)
    folder = str(tmp_path.__class__(__file__).parent)
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "bandit"), folder]
    first = subprocess.run(command, capture_output=True, text=True)
    again = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == -9 and again.returncode == -9 and not again.stderr
    whole = [arm for _, arm, *_ in played(Bandit(["a", "b", "c"], random_state=7), 60)]
    assert (first.stdout + again.stdout).split() == whole


# ---- files that are refused -----------------------------------------------------------------------------------


def test_files_of_other_models_are_named(tmp_path):
    kp.KalproxRegressor(penalty="ridge").fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.5]).save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"not the file of a bandit, but of a KalproxRegressor"):
        Bandit.load(tmp_path / "model")
    Bandit(["a"]).save(tmp_path / "bandit")
    with pytest.raises(ModelFileError, match="not of an estimator"):
        kp.KalproxRegressor.load(tmp_path / "bandit")


def issued_by_another_arm(header, arrays):
    pending = from_numbers(arrays["pending.rows"])
    pending[0][-1][0] = 99.0
    arrays["pending.rows"] = as_numbers(pending)


def spoilt():
    def change(name, value):
        return lambda header, arrays: header.__setitem__(name, value)

    def array(name, value):
        return lambda header, arrays: arrays.__setitem__(name, value)

    yield change("arms", ["a"])
    yield change("arms", ["a", "a", "b"])
    yield change("numbers", [0, 1, 1])
    yield change("numbers", [0, 1, 7])
    yield change("next_number", -1)
    yield change("n_decisions", 1)
    yield change("n_features", 2)
    yield change("n_features", 10**9)
    yield change("random", {"state": "zz", "inc": "1", "has_uint32": 0, "uinteger": 0})
    yield change("random", {"state": "1", "inc": "2", "has_uint32": 0, "uinteger": 0})
    yield change("random", {"state": "1", "inc": "1", "has_uint32": 0, "uinteger": 1 << 40})
    yield change("settings", {"alpha": -1.0})
    yield change("settings", {"policy": "sample"})
    yield lambda header, arrays: header["settings"].__setitem__("forget", 0.5)
    yield array("n_rows", np.array([1.5, 0.0, 0.0]))
    yield array("sums", np.array([np.nan, 0.0, 0.0]))
    yield array("fleet.T", np.zeros((3, 5, 4)))
    yield array("fleet.T", np.full((3, 5, 5), np.nan))
    yield array("fleet.rows", np.array([-1.0, 1.0, 1.0]))
    yield array("fleet.held", np.array([0.5, 1.0, 1.0]))
    yield array("pending.X", np.zeros((3, 2)))
    yield issued_by_another_arm
    yield lambda header, arrays: arrays.pop("fleet.roots")


@pytest.mark.parametrize("spoil", list(spoilt()))
def test_files_that_do_not_fit_together_are_refused(tmp_path, spoil):
    bandit = Bandit(["a", "b", "c"], random_state=0)
    played(bandit, 20)
    bandit.save(tmp_path / "bandit")
    header, arrays = model_file.read(tmp_path / "bandit")
    spoil(header, arrays)
    model_file.write(tmp_path / "spoilt", header, arrays)
    with pytest.raises(ModelFileError, match="spoilt is the file of a bandit, but not one that this version can read"):
        Bandit.load(tmp_path / "spoilt")
