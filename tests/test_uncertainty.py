"""The page on uncertainty: its tables are those of the results, and a shortcut in measuring them changes nothing."""

import json
import warnings
from pathlib import Path

import numpy as np

from benchmarks.coverage import LEVEL, tracked
from benchmarks.streams import stream
from benchmarks.uncertainty_page import write_page
from kalprox import KalproxRegressor

ROOT = Path(__file__).parent.parent


def test_the_tables_of_the_page_are_those_of_the_results(tmp_path):
    page, result = ROOT / "docs" / "explanation" / "intervals.md", ROOT / "benchmarks" / "results" / "uncertainty.json"
    copy = tmp_path / page.name
    copy.write_text(page.read_text())
    write_page(copy, json.loads(result.read_text()))
    assert copy.read_text() == page.read_text()
    assert "<!-- end -->" in page.read_text() and "-->\n<!-- end" not in page.read_text()  # no table is empty
    assert {f.name for f in (tmp_path / "intervals").iterdir()} == {f.name for f in page.with_suffix("").iterdir()}


def test_tracked_intervals_are_those_of_an_estimator_that_learns_row_by_row():
    s = stream("Student 3", 0, 300)
    mean, std = KalproxRegressor(penalty="ridge").prequential(s.X, s.y)
    low, high = tracked((s.y - mean) / std, LEVEL)
    model, ends = KalproxRegressor(penalty="ridge"), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first rows say nothing about the noise
        for i in range(300):
            x = s.X[i : i + 1]
            ends.append([e[0] for e in model.predict_interval(x, LEVEL, method="conformal")] if i > 20 else [0.0, 0.0])
            model.partial_fit(x, s.y[i : i + 1])
    expected = np.column_stack([mean - low * std, mean + high * std])
    np.testing.assert_allclose(np.array(ends)[21:], expected[21:], rtol=1e-9)
