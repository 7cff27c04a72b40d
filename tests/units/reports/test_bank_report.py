"""The page and the command line of a model that mixes several ways to forget."""

import numpy as np
from click.testing import CliRunner

from kalprox.cli import main
from kalprox.jobs.model import TableModel
from kalprox.reports import model as report


def test_a_model_fitted_with_forget_auto_shows_its_weights(tmp_path):
    rng = np.random.default_rng(0)
    level = np.cumsum(rng.normal(scale=0.3, size=120))
    rows = [
        f"{x:.6f},{x + a + e:.6f}" for x, a, e in zip(rng.normal(size=120), level, rng.normal(size=120), strict=True)
    ]
    file, out = tmp_path / "rows.csv", tmp_path / "model.kpx"
    file.write_text("x,y\n" + "\n".join(rows) + "\n")
    run = CliRunner().invoke(main, ["fit", str(file), "--target", "y", "--forget", "auto", "--out", str(out)])
    assert run.exit_code == 0, run.output
    found = TableModel.load(out)
    (section,) = (one for one in report.page(found, "model").sections if one.title == "Forgetting")
    figure = section.figures[0]
    assert "at the end: " in section.text and figure.numbers["weights"].shape == (121, 8)
    for wrong in ("automatic", "1.5"):
        run = CliRunner().invoke(main, ["fit", str(file), "--target", "y", "--forget", wrong, "--out", str(out)])
        assert run.exit_code != 0 and "--forget" in run.output
