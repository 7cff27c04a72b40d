"""The headline: what became of the rows, and every doubt with what to change."""

import numpy as np
import pytest
from data import behind_link, linear
from sklearn.exceptions import ConvergenceWarning

from kalprox import KalproxRegressor
from kalprox.base.text import in_options
from kalprox.calibration.verdict import ADVICE
from kalprox.jobs.record import DataQuality
from kalprox.learning.facts import Headline, Line, headline
from kalprox.likelihoods import Gaussian
from kalprox.sources import Block
from kalprox.sources.quarantine import BadRow, ColumnNote, Notes, Reason


def of(X, y, quality=None, *, fit=True, predicted=None, **settings):
    model = KalproxRegressor(**({"penalty": "ridge"} | settings))
    model = model.fit(X, y) if fit else model.partial_fit(X, y)
    return headline(model._learner, [f"x{j}" for j in range(X.shape[1])], quality, predicted)


def said(found, label):
    return [line for line in found.lines if line.label == label]


def test_a_model_without_doubts_has_none():
    found = of(*linear(2000, 3))
    assert [line.label for line in found.lines] == ["Rows", "Verdict"] and not found.doubts
    assert found.lines[0].text == "2,000 learned."
    assert found.lines[1].text.startswith("calibrated: The stated std is reliable. Judged on 1,998 rows")


def test_rows_refused_are_counted_with_their_reasons_and_many_are_a_doubt():
    X, y = linear(200, 2)
    bad = [BadRow("a.csv", i, "x0", Reason.MISSING, "") for i in range(6)]
    bad += [BadRow("a.csv", 9, "x1", Reason.NOT_NUMBER, "a"), BadRow("a.csv", 10, "", Reason.TOO_FEW, "")]
    quality = DataQuality().after(Block(X, y, None, 208, bad))
    (line,) = said(of(X, y, quality), "Rows")
    assert line.text == (
        "208 read, 200 learned, 8 refused (3.85%): `x0` missing (6), too few fields (1), `x1` not a number (1)."
    )
    assert not line.doubt
    many = [BadRow("a.csv", i, f"c{i % 5}", Reason.MISSING, "") for i in range(50)]
    (line,) = said(of(X, y, DataQuality().after(Block(X, y, None, 250, many))), "Rows")
    assert line.doubt and "50 refused (20%)" in line.text and "2 more reasons" in line.text
    assert "correct these cells" in line.text
    (line,) = said(of(X, y, DataQuality().after(Block(X, y))), "Rows")
    assert line.text == "200 read, 200 learned, none refused."


def test_unknown_levels_and_rounded_numbers_are_doubts_of_fits_and_of_predictions():
    X, y = linear(200, 2)
    unknown, rounded = {"c": ColumnNote(3, 200, ("`x`", "**y**"))}, {"id": ColumnNote(2, 200, ("1e20",))}
    quality = DataQuality().after(Block(X, y, notes=Notes(unknown, rounded)))
    levels, cells = (said(of(X, y, quality), label)[0] for label in ("Levels", "Cells"))
    assert levels.doubt and "3 of 200" in levels.text and 'unseen="reject"' in levels.text
    assert "`" not in levels.text and "**" not in levels.text  # values of cells are not marked up
    assert cells.doubt and "leave it out" in cells.text
    fine = DataQuality().after(Block(X, y, notes=Notes({"c": ColumnNote(0, 200)})))
    assert said(of(X, y, fine), "Levels")[0] == Line("Levels", "all known.")
    found = of(X, y, fine, predicted=quality)
    assert said(found, "Rows")[0].text == "200 read, 200 predicted, none refused."
    assert said(found, "Model")[0].text == "200 read, 200 learned, none refused." and said(found, "Levels")[0].doubt
    assert said(of(X, y, quality, predicted=fine), "Model")[1].doubt  # the model itself was fitted to unknown levels


def test_constant_and_collinear_columns_are_named():
    X, y = linear(500, 4)
    X[:, 1], X[:, 3] = 5.0, 2 * X[:, 2]
    constant, collinear = said(of(X, y, penalty=None), "Columns")
    assert constant.doubt and constant.text.startswith("`x1` is constant, and its coefficient undetermined")
    assert collinear.doubt and collinear.text.startswith("`x2`, `x3` are collinear") and "ridge" in collinear.text
    (line,) = said(of(X[:3], y[:3], fit=False, penalty=None), "Columns")[-1:]
    assert line.doubt and "undetermined" in line.text
    (line,) = said(of(*linear(20, 30)), "Columns")
    assert line.text == "There are 30 columns and 20 rows: the penalty alone tells their effects apart."
    constant, collinear = said(of(X, y), "Columns")
    assert constant.text == "`x1` is constant: leave it out." and not constant.doubt
    assert "the penalty alone tells their effects apart" in collinear.text and not collinear.doubt
    assert "of 4 coefficients are exactly 0" in said(of(X, y, penalty="l1", alpha=300.0), "Columns")[1].text


def test_what_is_not_judged_or_not_calibrated_is_a_doubt():
    (line,) = of(*linear(500, 2), engine="local").doubts
    assert line.label == "Verdict" and line.text.startswith("not judged, because the rows were learned in no order")
    assert "without an engine" in in_options(line.text)
    X, y = linear(20, 2)
    assert said(of(X, y), "Verdict")[0].doubt and "too few rows to say" in said(of(X, y), "Verdict")[0].text
    X, y = linear(1000, 2)
    found = of(X, y, noise=0.1)
    assert "over-confident" in found.doubts[-1].text
    assert "Leave --noise out" in found.with_options().doubts[-1].text


def test_noise_intervals_and_convergence_that_are_in_doubt_are_said():
    X, y = linear(5, 8)
    assert any("no residual degrees" in line.text or "only if alpha" in line.text for line in of(X, y).doubts)
    X, y, _ = behind_link("tanh", noise=0.05)
    X = np.sort(3 * X, axis=0)
    with pytest.warns(ConvergenceWarning):
        (line,) = said(of(X, y, link="tanh", penalty=None, max_passes=2), "Fit")
    assert line.doubt and line.text.startswith("not converged")
    X = np.random.default_rng(0).normal(size=(500, 3))
    y = np.tanh(X @ [2.0, -1.5, 1.0]) + 0.02 * np.random.default_rng(1).normal(size=500)
    found = of(X, y, link="tanh", alpha=10.0)
    (line,) = said(found, "Intervals")
    assert line.doubt and "--penalty none" in said(found.with_options(), "Intervals")[0].text
    (line,) = said(of(X[:40], y[:40], fit=False, coef_cov="clustered", penalty=None), "Errors")
    assert line.doubt and "at least two clusters" in line.text


@pytest.mark.parametrize("fit", [True, False])
def test_targets_outside_the_range_of_the_link_are_counted(fit, tmp_path):
    X, y, _ = behind_link("sigmoid", n=2000, noise=0.1)
    outside = int(((y < 0) | (y > 1)).sum())
    assert outside > 0
    (line,) = said(of(X, y, fit=fit, link="sigmoid"), "Targets")
    assert line.text.startswith(f"{outside:,} lie outside 0 to 1, the range of the link 'sigmoid', as noise")
    assert not line.doubt
    (line,) = said(of(X, y, fit=fit, link="sigmoid", likelihood=Gaussian(targets="any")), "Targets")
    assert line.doubt and line.text.endswith("Scale the target, or choose another link.")
    model = KalproxRegressor(link="sigmoid", penalty="ridge").fit(X, y)
    model.save(tmp_path / "m.kalprox")
    again = KalproxRegressor.load(tmp_path / "m.kalprox")._belief
    assert again.facts.targets_outside == outside
    np.testing.assert_allclose(again.facts.column_std, X.std(axis=0), rtol=1e-10)


def test_an_alpha_without_a_best_is_said():
    X, _ = linear(400, 3)
    (line,) = said(of(X, X @ np.ones(3), alpha="auto", diagnose=False), "Penalty")
    assert "the smaller alpha, the better" in line.text and "--penalty none" in in_options(line.text)


def test_the_text_fits_80_columns_and_marks_doubts():
    X, y = linear(40, 3)
    X[:, 0] = 1.0
    found = of(X, y, penalty=None, noise=1e-4)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80 and len(found.doubts) >= 2
    assert sum(line.startswith("! ") for line in lines) == len(found.doubts)
    assert all(line[:11].strip() or line.startswith(" " * 11) for line in lines)
    long = Headline((Line("Rows", f"`{'n' * 60}` " * 3 + "\x1b[31m"),))
    assert max(map(len, str(long).splitlines())) <= 80 and "\x1b" not in str(long)
    assert long.to_json() == [{"label": "Rows", "text": long.lines[0].plain, "doubt": False}]


def test_every_advice_of_the_verdict_has_its_options():
    for advice in (advice for words in ADVICE.values() for advice in words.values()):
        assert not any(argument in in_options(advice) for argument in ('="', "='", "=None")), advice
