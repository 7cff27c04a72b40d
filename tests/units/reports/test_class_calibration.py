"""The section of a report about the calibration of classes: a figure for each curve, and a table of their scores."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from kalprox.calibration import CategoryCalibration, ClassCalibration, CountCalibration
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import Quantiles
from kalprox.predictive import Categories, Classes, Counts
from kalprox.reports.calibration import section


def report(score, *classes):
    stream = SimpleNamespace(quantiles=Quantiles.normal(None))
    learner = SimpleNamespace(score=score, settings=Settings.of(), stream=stream)
    return section(SimpleNamespace(learner=learner, columns=SimpleNamespace(classes=classes)))


@pytest.fixture
def probabilities():
    rng = np.random.default_rng(0)
    p = rng.beta(1, 3, size=2000)
    return p, rng.random(2000) < p


def test_two_classes_have_reliability_roc_and_lift(probabilities):
    p, y = probabilities
    score = ClassCalibration().add(Classes(p), y)
    found = report(score)
    assert [figure.name for figure in found.figures] == ["reliability", "roc", "lift"]
    for figure in found.figures:
        for size in (figure.size, (3.6, 3.4)):  # also on a phone
            fig = Figure(figsize=size, layout="constrained")
            figure.draw(fig)
            assert fig.axes
    row = dict(zip(found.tables[0].columns, found.tables[0].rows[0], strict=True))
    assert row["log loss"] == float(score.log_loss) and row["AUC"] == score.auc and row["rows scored"] == 2000
    assert found.text.startswith("**Calibrated**") and f"{score.auc:.4f}" in found.figures[1].caption


def test_classes_of_which_only_one_came_have_no_curves(probabilities):
    p, _ = probabilities
    found = report(ClassCalibration().add(Classes(p), np.zeros(len(p))))
    assert [figure.name for figure in found.figures] == ["reliability"] and None in found.tables[0].rows[0]


def test_several_classes_have_the_reliability_of_the_most_probable_one(probabilities):
    p, y = probabilities
    columns, came = np.column_stack([p, (1 - p) / 2, (1 - p) / 2]), np.eye(3)[np.where(y, 0, 1)]
    score = CategoryCalibration().add(Categories(columns), came)
    found = report(score)
    assert [figure.name for figure in found.figures] == ["reliability", "roc", "lift"]
    assert "most probable class" in found.figures[0].caption
    row = dict(zip(found.tables[0].columns, found.tables[0].rows[0], strict=True))
    assert row["mean AUC"] == score.auc[:2].mean() and np.isnan(score.auc[2])  # the third class never came
    roc, lift = found.figures[1:]
    assert roc.numbers["classes"] == lift.numbers["classes"] == ["0", "1"] and "most often" in roc.caption


def test_the_curves_of_classes_have_their_names_whatever_these_are(probabilities):
    p, y = probabilities
    columns, came = np.column_stack([p, (1 - p) / 2, (1 - p) / 2]), np.eye(3)[np.where(y, 0, np.arange(len(y)) % 2 + 1)]
    found = report(CategoryCalibration().add(Categories(columns), came), "_a", "$b$", "c")
    for figure in found.figures[1:]:
        fig = Figure(figsize=figure.size, layout="constrained")
        figure.draw(fig)
        texts = [text.get_text().split(" (")[0] for text in fig.axes[0].get_legend().get_texts()]
        assert texts == ["random order", "_a", "$b$", "c"]
        fig.canvas.draw()


def test_counts_have_the_figures_of_numbers():
    rng = np.random.default_rng(1)
    mean = np.full(500, 3.0)
    found = report(CountCalibration().add(Counts(mean, mean**0.5), rng.poisson(mean)))
    assert [figure.name for figure in found.figures] == ["calibration", "pit"]
    assert any("squared errors" in str(cell) for row in found.tables[1].rows for cell in row)
