"""Fits of text and identifiers in a hashed space: files, engines, predictions from the model file, and messages."""

import numpy as np
import pandas as pd
import pytest
from command import invoke

from kalprox import KalproxRegressor
from kalprox.jobs.model import TableModel

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
    assert "--hash-bits must be at most 12; got 16" in said and "32 GiB" in said
    done = invoke("fit", file, "-y", "y", "--formula", "y ~ x", "--words", "text", code=2)
    assert "cannot be used with --formula" in " ".join(done.output.split())
