"""A checkpoint is used by one process at a time, and cleans up after its own killed processes only."""

import os

import numpy as np
import pytest

from kalprox.jobs.checkpoint import Checkpoint, CheckpointError

ARRAYS = {"a": np.arange(3.0)}


def test_a_checkpoint_is_locked_and_leaves_nothing_else(tmp_path):
    file = tmp_path / "run"
    with Checkpoint(file) as checkpoint:
        checkpoint.save({"n": 1}, {"rows": 5}, ARRAYS)
        with pytest.raises(CheckpointError, match="Another process is using the checkpoint"), Checkpoint(file):
            pass
        assert checkpoint.load({"n": 1})[0] == {"rows": 5}
        with pytest.raises(CheckpointError, match="n: was 1, is 2"):
            checkpoint.load({"n": 2})
    assert os.listdir(tmp_path) == ["run"]
    with Checkpoint(file) as checkpoint:
        checkpoint.remove()
        assert checkpoint.load({}) is None
    assert os.listdir(tmp_path) == []


def test_a_lock_file_of_a_killed_process_does_no_harm(tmp_path):
    (tmp_path / "run.lock").touch()
    with Checkpoint(tmp_path / "run"):
        pass
    assert os.listdir(tmp_path) == []


def test_the_folder_must_exist(tmp_path):
    with pytest.raises(FileNotFoundError), Checkpoint(tmp_path / "no" / "run"):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["run", "run[1]", "run.*"])
def test_only_partial_files_of_this_checkpoint_are_removed(name, tmp_path):
    mine, others = (
        f".{name}.abcd_123.part",
        {f".{name}.2.abcd_123.part", ".other.abcd_123.part", f"{name}.2", ".run1.part"},
    )
    for file in (mine, *others):
        (tmp_path / file).touch()
    with Checkpoint(tmp_path / name):
        pass
    assert set(os.listdir(tmp_path)) == others
