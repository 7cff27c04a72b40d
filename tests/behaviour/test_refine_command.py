"""`kalprox refine`: what the warning of a merge advises, on the command line."""

import warnings

import numpy as np
import pytest
from click.testing import CliRunner

from kalprox import KalproxRegressor
from kalprox.cli import main


def kalprox(folder, *arguments):
    """Run a command, with the files of the folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # they are printed, as they are outside of tests
        return CliRunner().invoke(main, [str(folder / a) if a.endswith(("csv", "kalprox")) else a for a in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two files of counts, whose rows differ, and the model of each, in one pass."""
    folder, rng = tmp_path_factory.mktemp("refine"), np.random.default_rng(41)
    for name, mean in (("one", -1.5), ("two", 1.0)):
        x, level = rng.normal(mean, 1.0, 400), rng.choice(["low", "high"], 400)
        y = rng.poisson(np.exp(0.7 * x - 0.3 * (level == "low")))
        rows = [f"{a:.5f},{b},{c}\n" for a, b, c in zip(x, level, y, strict=True)]
        (folder / f"{name}.csv").write_text("x,level,y\n" + "".join(rows))
    about = "--likelihood", "poisson", "--passes", "1", "--quiet"
    assert kalprox(folder, "fit", "one.csv", "--target", "y", *about, "--out", "one.kalprox").exit_code == 0
    done = kalprox(folder, "fit", "two.csv", "--columns", "one.kalprox", *about, "--out", "two.kalprox")
    assert done.exit_code == 0
    return folder


@pytest.mark.slow
def test_a_merged_model_becomes_that_of_one_fit(folder):
    merged = kalprox(folder, "merge", "one.kalprox", "two.kalprox", "--out", "merged.kalprox")
    assert merged.exit_code == 0 and "kalprox refine" in merged.stderr
    done = kalprox(folder, "refine", "merged.kalprox", "one.csv", "two.csv", "--out", "refined.kalprox")
    assert done.exit_code == 0 and "800 learned" in done.output, done.output
    fit = kalprox(
        folder,
        "fit",
        "one.csv",
        "two.csv",
        "--columns",
        "one.kalprox",
        "--likelihood",
        "poisson",
        "--out",
        "fit.kalprox",
    )
    assert fit.exit_code == 0
    refined, whole, before = (KalproxRegressor.load(folder / f"{n}.kalprox") for n in ("refined", "fit", "merged"))
    np.testing.assert_allclose(refined.coef_, whole.coef_, rtol=1e-8)
    np.testing.assert_allclose(refined.coef_std_, whole.coef_std_, rtol=1e-6)
    assert refined.n_passes_ < whole.n_passes_ and refined.n_rows_seen_ == 800
    assert np.abs(before.coef_ - whole.coef_).max() > 1e-6  # MODEL is not touched if --out is given
    assert kalprox(folder, "refine", "merged.kalprox", "one.csv", "two.csv", "--quiet").exit_code == 0
    np.testing.assert_array_equal(KalproxRegressor.load(folder / "merged.kalprox").coef_, refined.coef_)


def test_what_cannot_be_refined_is_said(folder):
    exact = kalprox(folder, "fit", "one.csv", "--target", "y", "--quiet", "--out", "exact.kalprox")
    assert exact.exit_code == 0
    done = kalprox(folder, "refine", "exact.kalprox", "one.csv")
    assert done.exit_code == 2 and "exact after one pass" in done.stderr and "Traceback" not in done.stderr
