"""Models and checkpoints of jobs: what was written can be read, and hostile files end with their exit code."""

import numpy as np
import pytest
from click.testing import CliRunner
from mutations import mutated

from kalprox import model_file
from kalprox.cli import main
from kalprox.jobs.checkpoint import CheckpointError
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import TableModel
from kalprox.likelihoods import Gaussian
from kalprox.model_file import ModelFileError
from kalprox.sources.columns import Columns
from kalprox.sources.table import Table

SETTINGS = {
    "linear": {},
    "refined": {"link": "tanh", "likelihood": Gaussian(targets="any"), "coef_cov": "robust"},
}


class Stopped(Exception):
    pass


def stop_at_a_checkpoint(progress):
    if progress.checkpoint:
        raise Stopped


@pytest.fixture
def table(tmp_path):
    """Return the name of a CSV file with numbers, levels and a bad row."""
    rng = np.random.default_rng(0)
    rows = [f"{np.tanh(a) + rng.normal()},{a},{'uvw'[i % 3]}" for i, a in enumerate(rng.normal(size=150))]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(["y,a,c", *rows, "x,1,u"]) + "\n")
    return file


def job(table, kind, **options):
    columns = Columns.infer([table], "y")
    checkpoint = table.parent / f"{kind}.checkpoint"
    how = {"max_bad": 5, "checkpoint": checkpoint, "every": 60} | options
    return FitJob(Table([table], columns, memory=1), SETTINGS[kind], **how)


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_checkpoint_is_resumed_bit_for_bit(kind, table, tmp_path):
    whole = job(table, kind, checkpoint=None).run(tmp_path / "whole")
    with pytest.raises(Stopped):
        job(table, kind, watch=stop_at_a_checkpoint).run(tmp_path / "model")
    assert (tmp_path / f"{kind}.checkpoint").exists()
    job(table, kind).run(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "whole").read_bytes()
    np.testing.assert_array_equal(TableModel.load(tmp_path / "model").belief.coef, whole.belief.coef)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_mutated_checkpoint_is_refused_or_resumed(kind, table, tmp_path):
    with pytest.raises(Stopped):
        job(table, kind, watch=stop_at_a_checkpoint).run(tmp_path / "model")
    checkpoint = tmp_path / f"{kind}.checkpoint"
    content, refused = checkpoint.read_bytes(), 0
    for seed in range(25):
        checkpoint.write_bytes(mutated(content, seed))
        try:
            with np.errstate(all="ignore"):
                job(table, kind).run(tmp_path / "model")
        except (ModelFileError, CheckpointError, FloatingPointError):  # the last: sums that overflow
            refused += 1
    assert refused > 15


def test_a_checkpoint_that_cannot_be_resumed_is_not_written(table, tmp_path, monkeypatch):
    def lossy(*args, **options):
        raise ValueError("lost")

    monkeypatch.setattr("kalprox.jobs.fit.load_totals", lossy)
    with pytest.raises(ModelFileError, match="cannot be restored"):
        job(table, "refined").run(tmp_path / "model")
    assert not (tmp_path / "refined.checkpoint").exists()


def test_a_mutated_model_ends_a_command_with_its_exit_code(table, tmp_path):
    job(table, "linear", checkpoint=None).run(tmp_path / "model")
    content, codes = (tmp_path / "model").read_bytes(), []
    for seed in range(60):
        (tmp_path / "bad").write_bytes(mutated(content, seed))
        with np.errstate(all="ignore"):  # whose warnings are no errors on the command line
            done = CliRunner().invoke(main, ["show", str(tmp_path / "bad")])
        codes.append(done.exit_code)
        assert done.exit_code in (0, 6), done.output
        assert done.exit_code != 6 or str(tmp_path / "bad") in done.output
    assert set(codes) == {0, 6}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("columns", {"target": 1}),
        ("columns", {"numeric": "a"}),
        ("columns", {"categorical": {"c": [1, 2, 3]}}),
        ("account", {"history": [], "quality": {}}),
        ("account", {"history": {"rows": [1]}, "quality": {}}),
        ("account", {"history": {"stride": 0}, "quality": {}}),
        ("account", {"history": {}, "quality": {"low": [{}], "high": [0], "total": [0]}}),
        ("account", {"history": {}, "quality": {"first": [{"file": "x"}]}}),
        (
            "account",
            {"history": {}, "quality": {"low": [0] * 4, "high": [1] * 4, "total": [0, 1e300, 0, 0], "read": 9}},
        ),
        ("sources", "rows.csv"),
    ],
)
def test_a_damaged_description_of_the_table_is_refused(name, value, table, tmp_path):
    job(table, "linear", checkpoint=None).run(tmp_path / "model")
    header, arrays = model_file.read(tmp_path / "model")
    old = header["table"][name]
    header["table"][name] = {**old, **value} if isinstance(value, dict) and name == "columns" else value
    model_file.write(tmp_path / "model", header, arrays)
    with pytest.raises(ModelFileError, match="description of the columns or of the rows is damaged"):
        TableModel.load(tmp_path / "model")
