"""Model files of version 0.1.0 still load, and say what they said."""

import json
from pathlib import Path

import numpy as np
import pytest

from kalprox import KalproxRegressor
from kalprox.jobs.model import TableModel

FOLDER = Path(__file__).parents[2] / "files" / "models-0.1.0"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
RNG = np.random.default_rng(11)
X = RNG.normal(size=(120, 3)) + [0, 5, 0]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_model_of_0_1_0_says_what_it_said(name):
    model, old = KalproxRegressor.load(FOLDER / f"{name}.kalprox"), EXPECTED[name]
    if name == "stream":  # whose degrees of freedom, after forgetting, were counted wrong
        rho, n, edf = model.forget, old["rows"], float(model._belief.posterior.edf)
        rows = (1 - rho**n) / (1 - rho)
        fading = (1 - rho ** (2 * n)) / (1 - rho**2) / rows
        variance = old["noise_var"] * (rows - edf) / (rows - fading * edf)
        metric = model._belief.posterior.metric_factors[0].variances()[1:]
        np.testing.assert_allclose(np.sqrt(metric * old["noise_var"]), old["coef_std"], rtol=1e-9)
        np.testing.assert_allclose(model.coef_std_, np.sqrt(fading * metric * variance), rtol=1e-3)  # alpha is small
        old |= {"coef_std": model.coef_std_, "noise_var": variance, "noise_dof": rows / fading - edf}
    for attribute in ("coef", "intercept", "coef_std", "noise_var", "noise_dof"):
        np.testing.assert_allclose(getattr(model, f"{attribute}_"), old[attribute], rtol=1e-9, atol=1e-12)
    score = model.diagnostics_
    assert (model.n_rows_seen_, float(score.rows)) == (old["rows"], old["judged"])
    if old["nis"] is not None:
        np.testing.assert_allclose(score.nis, old["nis"], rtol=1e-9)
    if old["alpha"] is not None:
        np.testing.assert_allclose(model.alpha_, old["alpha"], rtol=1e-6)
    if name != "stream":  # whose rows are others
        mean, std = model.predict(X[:5], return_std=True)
        np.testing.assert_allclose(mean, old["mean"], rtol=1e-9)
        np.testing.assert_allclose(std, old["std"], rtol=1e-9)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_model_of_0_1_0_learns_on(name, tmp_path):
    model = KalproxRegressor.load(FOLDER / f"{name}.kalprox")
    rows = np.random.default_rng(0).normal(size=(3, model.n_features_in_))
    y = np.full((3, 2), 0.5) if name == "targets" else np.full(3, 0.5)
    seen = model.n_rows_seen_
    model.partial_fit(rows, y)
    assert model.n_rows_seen_ == seen + 3 and np.isfinite(model.coef_).all()
    model.save(tmp_path / "again.kalprox")
    np.testing.assert_array_equal(KalproxRegressor.load(tmp_path / "again.kalprox").coef_, model.coef_)


def test_a_table_model_of_0_1_0_loads_with_its_record():
    fitted = TableModel.load(FOLDER / "table.kalprox")
    assert (fitted.learner.n_rows, fitted.record.quality.bad, fitted.columns.names) == (119, 1, ["a", "b", "c"])
    assert KalproxRegressor.load(FOLDER / "table.kalprox").n_features_in_ == 3
