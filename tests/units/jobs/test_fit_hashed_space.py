"""Fits of text and identifiers in a hashed space: files, engines, predictions from the model file, and messages."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from command import invoke

from kalprox import KalproxRegressor
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import TableModel
from kalprox.sources.columns import Columns
from kalprox.sources.table import Table
from kalprox.structures import LowRank

EFFECTS = {"good": 2.0, "bad": -2.0, "fine": 0.5, "awful": -3.0}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Rows of 40 identifiers and of texts of four words, whose effects are known."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("hashed") / "a.csv"
    words = rng.choice(list(EFFECTS), (600, 3))
    tail, x = rng.integers(0, 40, 600), rng.normal(size=600)
    y = x + 0.1 * tail + np.vectorize(EFFECTS.get)(words).sum(axis=1) + 0.1 * rng.normal(size=600)
    text = [" ".join(row).title() + "." for row in words]
    pd.DataFrame({"y": y, "x": x, "tail": [f"N{i}" for i in tail], "text": text}).to_csv(path, index=False)
    return path


def fitted(file, *options):
    done = invoke("fit", file, "-y", "y", "--hash", "tail", "--words", "text", "--out", file.parent / "m", *options)
    return TableModel.load(file.parent / "m"), done.output


@pytest.mark.slow
def test_a_fit_and_predictions_from_its_file(file):
    model, said = fitted(file, "--hash-bits", 9)
    assert model.columns.shared == ("tail", "text") and model.columns.hash_bits == 9
    assert len(model.columns.names) == 1 + 512 and "of 44 levels share one of 512 bins" in " ".join(said.split())
    invoke("predict", file.parent / "m", file, "--out", file.parent / "p.csv")
    rows, found = pd.read_csv(file), pd.read_csv(file.parent / "p.csv")
    assert np.corrcoef(found["mean"], rows["y"])[0, 1] > 0.99
    frame = rows.drop(columns="y")
    with pytest.warns(UserWarning, match=r"4 of 44 levels share one of 512 bins"):
        predicted = KalproxRegressor.load(file.parent / "m").predict(frame)
    np.testing.assert_allclose(predicted, found["mean"], rtol=1e-12)


def test_an_engine_gives_the_same_model(file):
    alone, _ = fitted(file, "--hash-bits", 6)
    parts, _ = fitted(file, "--hash-bits", 6, "--engine", "local", "--partitions", 3)
    np.testing.assert_allclose(parts.belief.coef, alone.belief.coef, rtol=1e-9, atol=1e-12)


def test_too_many_bits_are_refused_before_a_row_is_read(file):
    done = invoke("fit", file, "-y", "y", "--hash", "tail", "--words", "text", "--hash-bits", 16, code=3)
    said = " ".join(done.output.split())
    assert "--hash-bits must be at most 12; got 16" in said and "32 GiB" in said and "--structure diagonal" in said
    done = invoke("fit", file, "-y", "y", "--formula", "y ~ x", "--words", "text", code=2)
    assert "cannot be used with --formula" in " ".join(done.output.split())


# ---- with a structure ------------------------------------------------------------------------------------


def rows_of(file, bits):
    """The rows of the file as `kalprox fit` encodes them."""
    table = Table(
        [file], Columns.infer([file], "y", hashed={"tail": None}, words=["text"], hash_bits=bits, sparse=True)
    )
    (block,) = table.blocks()
    return block.X, block.y


def test_a_structure_that_keeps_all_is_the_ridge_solution(file):
    """600 rows in 64 columns: 80 directions lose nothing."""
    model, said = fitted(file, "--hash-bits", 6, "--structure", "low_rank,rank=80")
    X, y = rows_of(file, 6)
    A = np.column_stack([np.ones(len(y)), X.toarray()])
    P = A.T @ A + np.diag([1e-5] + [1.0] * (A.shape[1] - 1))
    np.testing.assert_allclose(model.belief.coef, np.linalg.solve(P, A.T @ y)[1:], rtol=1e-4, atol=1e-4)
    sd = np.sqrt(np.linalg.inv(P).diagonal()[1:] * float(model.belief.noise.variance))
    np.testing.assert_allclose(model.belief.coef_std, sd, rtol=1e-6)
    assert "568 rows, each predicted before it was learned" in " ".join(said.split())


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["diagonal", "low_rank,rank=4"])
def test_many_columns_are_fitted_predicted_shown_and_reported(file, structure):
    model, said = fitted(file, "--hash-bits", 15, "--structure", structure)
    said = " ".join(said.split())
    assert "! Errors The standard errors of coefficients, and the std of the mean" in said and "constant" not in said
    assert (file.parent / "m").stat().st_size < 8 * 2**15 * 20
    shown = invoke("predict", file.parent / "m", file, "--out", file.parent / "p.csv").output
    assert "Warning" not in shown
    rows, found = pd.read_csv(file), pd.read_csv(file.parent / "p.csv")
    assert np.corrcoef(found["mean"], rows["y"])[0, 1] > 0.97
    assert model.belief.coef_std.shape == (2**15 + 1,)
    X, _ = rows_of(file, 15)
    np.testing.assert_allclose(found["mean"], model.learner.predict(X).mean, rtol=1e-12)
    assert "R2 is empty: with a structure" in " ".join(invoke("show", file.parent / "m").output.split())
    invoke("report", file.parent / "m", "--out", file.parent / "r.html")
    assert "correlation" in (file.parent / "r.html").read_text()


@pytest.mark.slow
def test_the_columns_of_a_model_are_used_with_and_without_a_structure(file, tmp_path):
    fitted(file, "--hash-bits", 6, "--structure", "diagonal")
    invoke("fit", file, "--columns", file.parent / "m", "--out", tmp_path / "dense")
    alone, _ = fitted(file, "--hash-bits", 6)
    np.testing.assert_array_equal(TableModel.load(tmp_path / "dense").belief.coef, alone.belief.coef)
    fitted(file, "--hash-bits", 14, "--structure", "diagonal")
    done = invoke("fit", file, "--columns", file.parent / "m", "--out", tmp_path / "dense", code=3)
    assert "--structure diagonal" in " ".join(done.output.split())


def test_a_constant_target_is_predicted_without_noise(file, tmp_path):
    pd.read_csv(file).assign(y=1.0).to_csv(tmp_path / "c.csv", index=False)
    options = (
        "--hash",
        "tail",
        "--words",
        "text",
        "--hash-bits",
        14,
        "--structure",
        "diagonal",
        "--out",
        tmp_path / "m",
    )
    invoke("fit", tmp_path / "c.csv", "-y", "y", *options)
    assert TableModel.load(tmp_path / "m").belief.intercept == 1.0


@pytest.mark.slow
def test_two_classes(file, tmp_path):
    rows = pd.read_csv(file)
    rows.assign(y=np.where(rows["y"] > 0, "yes", "no")).to_csv(tmp_path / "c.csv", index=False)
    options = (
        "--hash",
        "tail",
        "--words",
        "text",
        "--hash-bits",
        15,
        "--structure",
        "diagonal",
        "--out",
        tmp_path / "m",
    )
    said = invoke("fit", tmp_path / "c.csv", "-y", "y", "--likelihood", "bernoulli", *options).output
    assert "log loss" in said
    invoke("predict", tmp_path / "m", tmp_path / "c.csv", "--out", tmp_path / "p.csv")
    found = pd.read_csv(tmp_path / "p.csv")
    assert ((found["class"] == "yes") == (rows["y"] > 0)).mean() > 0.9


@pytest.mark.slow
def test_a_fit_with_a_structure_resumes_where_it_stopped(file, tmp_path):
    columns = Columns.infer([file], "y", hashed={"tail": None}, words=["text"], hash_bits=14, sparse=True)
    table = Table([file], columns, memory=1 << 16)
    assert table.block_rows == 64
    settings = {"structure": LowRank(4)}
    whole = FitJob(table, settings).run()

    def stop(progress):
        if progress.checkpoint:
            raise KeyboardInterrupt

    job = FitJob(table, settings, checkpoint=tmp_path / "c", every=200, watch=stop)
    with pytest.raises(KeyboardInterrupt):
        job.run()
    resumed = replace(job, watch=lambda progress: None).run()
    np.testing.assert_array_equal(resumed.belief.coef, whole.belief.coef)
    assert resumed.learner.score.rows == whole.learner.score.rows and resumed.learner.n_rows == 600


def test_what_a_structure_does_not_offer_is_said_in_options(file):
    for options, text in (
        (("--penalty", "l1"), "--penalty ridge"),
        (("--alpha", "auto"), "needs a number as --alpha, because"),
        (("--missing", "marginalize"), "or leave --structure out"),
    ):
        how = ("--hash", "tail", "--words", "text", "--hash-bits", 14, "--structure", "diagonal")
        done = invoke("fit", file, "-y", "y", *how, *options, code=2)
        assert text in " ".join(done.output.split()), done.output
    done = invoke("fit", file, "-y", "y", "--words", "text", "--hash-bits", 14, "--structure", "rank-3", code=2)
    assert "is not one of 'diagonal', 'low_rank'" in " ".join(done.output.split())
