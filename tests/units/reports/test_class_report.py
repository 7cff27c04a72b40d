"""The page of a model of classes or counts: what its tables and figures say, and that browsers show it."""

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("jinja2", reason="jinja2 is not installed")

from browser import browser, console_errors, outside_requests, overflow, show

from kalprox.jobs.model import TableModel
from kalprox.jobs.record import DataQuality, FitRecord, history_sums
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.learning.step import Call
from kalprox.pages import write_page
from kalprox.reports import model as report
from kalprox.reports import summary
from kalprox.sources import Block
from kalprox.sources.columns import Columns

NAMES = {2: ("no", "<b>yes</b>"), 3: ("blue", "`green`", "red")}


def streamed(likelihood, columns, X, y, offset=None):
    """The model of these rows after a fit in one pass."""
    learner, record = Learner(Settings.of(likelihood=likelihood)), FitRecord()
    for start in range(0, len(X), 500):
        rows = slice(start, start + 500)
        block = Block(X[rows], y[rows], offset=None if offset is None else offset[rows])
        learner.learn(block, call=Call(in_turn=True))
        history = record.history.after(learner.n_rows, history_sums(learner.score))
        record = FitRecord(history, record.quality.after(block))
    return TableModel(learner, columns, record, ("a.csv",))


@pytest.fixture(scope="module", params=[2, 3])
def classes(request):
    rng, m = np.random.default_rng(4), request.param
    X = rng.standard_normal((4000, 2))
    code = (X @ rng.standard_normal((2, m)) + rng.gumbel(size=(4000, m))).argmax(axis=1)
    y = code.astype(float) if m == 2 else np.eye(3)[code]
    columns = Columns("kind", numeric=("a", "b"), classes=NAMES[m])
    return streamed("bernoulli" if m == 2 else "categorical", columns, X, y), np.bincount(code)


def section(page, title):
    return next(one for one in page.sections if one.title == title)


@pytest.mark.slow
def test_the_page_of_classes(classes):
    model, rows = classes
    page, m = report.page(model, "model"), len(rows)
    assert [figure.name for figure in section(page, "Calibration").figures] == ["reliability", "roc", "lift"]
    line = next(line for line in page.headline if line.label == "Classes")
    assert all(f"({n:,} rows)" in line.text for n in rows)
    (table,) = [table for table in section(page, "Data").tables if table.columns[0] == "class"]
    assert [row[1] for row in table.rows] == rows.tolist()
    (running,) = section(page, "Running error").figures
    assert "coverage" not in running.numbers and "coverage" not in running.caption
    assert page.settings["likelihood"] == ("bernoulli" if m == 2 else "categorical")


def test_the_coefficients_of_each_class(classes):
    model, rows = classes
    table, belief, m = summary.coefficients(model), model.belief, len(rows)
    if m == 2:
        assert table.columns[:3] == ["#", "column", "coef"] and len(table.rows) == 3
        np.testing.assert_allclose([row[2] for row in table.rows], [belief.intercept, *belief.coef])
        assert "the log odds of" in section(report.page(model, "m"), "Coefficients").text
        return
    assert table.columns[:3] == ["#", "class", "column"]
    assert [row[1:3] for row in table.rows] == [
        [name, column] for name in NAMES[3] for column in ("intercept", "a", "b")
    ]
    found = np.array([row[3] for row in table.rows]).reshape(3, 3)
    np.testing.assert_allclose(found, np.column_stack([belief.intercept, belief.coef]))
    frame = model.summary().to_frame()
    assert frame["target"].tolist() == [name for name in NAMES[3] for _ in range(3)]
    top = summary.coefficients(model, top=2)
    assert len(top.rows) == 2 + 3 and "The 2 with the largest effects, of 6" in top.caption


def test_counts(tmp_path):
    rng = np.random.default_rng(1)
    X, hours = rng.standard_normal((3000, 2)), rng.lognormal(size=3000)
    y = rng.poisson(hours * np.exp(X @ [0.5, 0.0])).astype(float)
    columns = Columns("n", numeric=("a", "b"), exposure="hours", low=0.0)
    model = streamed("poisson", columns, X, y, np.log(hours))
    page = report.page(model, "model")
    assert "the log of the expected count" in section(page, "Coefficients").text
    assert [figure.name for figure in section(page, "Calibration").figures] == ["calibration", "pit"]
    facts = dict(summary.overview(model).rows)
    assert facts["likelihood"] == "poisson" and facts["exposure"] == "hours" and "noise std" not in facts
    model.save(tmp_path / "m")
    again = TableModel.load(tmp_path / "m")
    assert again.columns == columns and np.array_equal(again.belief.coef, model.belief.coef)


@pytest.mark.slow
@pytest.mark.integration
def test_browsers_show_it(classes, tmp_path):
    path = write_page(report.page(classes[0], "model"), tmp_path / "page.html")
    with browser() as driver:
        for width in (1280, 390):
            show(driver, path, width)
            assert console_errors(driver) == [] and outside_requests(driver) == [] and overflow(driver) <= 0
    assert "<b>yes</b>" not in path.read_text()


def test_the_rows_of_each_class_add_up():
    quality = DataQuality().after(Block(np.ones((4, 1)), np.array([0.0, 1.0, 1.0, 1.0])))
    assert quality.class_rows(("a", "b")) == {"a": 1, "b": 3} and quality.class_rows(()) == {}
    assert DataQuality().class_rows(("a", "b")) == {}
    both = quality.merge(quality)
    assert both.class_rows(("a", "b")) == {"a": 2, "b": 6}
