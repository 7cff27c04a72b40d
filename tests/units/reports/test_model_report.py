"""The report of a model fitted to files: its numbers are the model's, and browsers show it whatever the model is."""

import dataclasses
import re

import numpy as np
import pytest
import scipy.stats

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("jinja2", reason="jinja2 is not installed")

from browser import box, browser, colours, console_errors, drawings, label_sizes, outside_requests, overflow, show

from kalprox import KalproxRegressor
from kalprox.base.text import shorten
from kalprox.jobs.model import TableModel
from kalprox.jobs.record import DataQuality, ErrorHistory, FitRecord, history_sums
from kalprox.pages import page as figures
from kalprox.pages import write_page
from kalprox.reports import coefficients, summary
from kalprox.reports import model as report
from kalprox.sources import Block
from kalprox.sources.columns import Columns
from kalprox.sources.quarantine import BadRow, Reason

HOSTILE = (
    "<script>alert(1)</script>",
    "$x^2$",
    r"\$a_{",
    "**b** `c`",
    "n" * 300,
    "温度",
    "Größe Ωж",
    "a\nb\x00c",
    "حجم",
)


def learned(columns, X, y, *, block=200, bad=(), sources=("flights/*.csv",), **settings):
    """The model of these rows, block by block, as a fit leaves it; `bad` rows come with the first block."""
    model, history, quality = KalproxRegressor(**settings), ErrorHistory(), DataQuality()
    for begin in range(0, len(X), block):
        B, t = X[begin : begin + block], y[begin : begin + block]
        faults = list(bad) if begin == 0 else []
        read = np.arange(len(B) + sum(row.row > 0 for row in faults))
        quality = quality.after(Block(B, t, None, len(read), faults))
        model.partial_fit(B, t)
        history = history.after(model.n_rows_seen_, history_sums(model.diagnostics_))
    return TableModel(model._learner, columns, FitRecord(history, quality), tuple(sources))


def numeric(names):
    return Columns("y", numeric=tuple(names))


def linear(d=3, n=2000, noise=0.5, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    X = scale * rng.normal(size=(n, d))
    theta = np.where(np.arange(d) % 3 == 1, 0.0, 1 / (1 + np.arange(d)))
    return X, 1 + X @ theta + noise * rng.normal(size=n)


def names(d):
    return [f"x{j}" for j in range(d)]


def flight_rows():
    """Numbers, words, dates, refused rows, a column that never varies: the columns, X, y and the bad rows."""
    rng = np.random.default_rng(1)
    carriers = ("AA", "B6", "DL", "UA", "WN", "ZZ")
    columns = Columns(
        "arrival_delay",
        numeric=("distance", "departure_delay", "wind_speed", "humidity", "constant"),
        categorical={"carrier": carriers, "origin": ("EWR", "JFK", "LGA")},
        dates=("day",),
    )
    n = 12_000
    carrier, origin = rng.integers(0, 5, n), rng.integers(-1, 3, n)
    X = np.column_stack(
        [
            rng.gamma(3, 400, n),
            rng.gamma(1, 20, n) - 10,
            rng.gamma(2, 5, n),
            rng.uniform(10, 100, n),
            np.full(n, 7.0),
            np.eye(6)[carrier],
            np.eye(4)[origin][:, :3],
            15_000 + rng.integers(0, 365, n),
        ]
    )
    effect = np.array([-0.004, 1.01, 0.35, 0.05, 0, -3, 1, -2, 0, 4, 0, 1.5, 0.5, -1, 0.004])
    bad = [BadRow("flights/2013-01.csv", i + 2, "departure_delay", Reason.MISSING, "") for i in range(40)]
    bad += [BadRow("flights/2013-01.csv", 77, "distance", Reason.NOT_NUMBER, "12OO"), FILE]
    return columns, X, X @ effect + 9 * rng.normal(size=n), bad


def flights():
    """A realistic one."""
    columns, X, y, bad = flight_rows()
    return learned(columns, X, y, block=300, bad=bad, alpha="auto")


FILE = BadRow("flights/broken.csv", 0, "", Reason.EMPTY, "")


def undetermined():
    X, y = linear(4)
    X[:, 3] = X[:, 2]
    X[:, 1] = 0.0
    return learned(numeric(names(4)), X, y, penalty=None)


def sigmoid():
    X, _ = linear(3, 1200)
    y = 1 / (1 + np.exp(-X @ [1.0, 0.0, -1.0])) + 0.1 * np.random.default_rng(2).normal(size=len(X))
    return learned(numeric(names(3)), X, y, link="sigmoid")


def hostile():
    d = len(HOSTILE)
    columns = Columns(HOSTILE[0] + "$", numeric=HOSTILE[1:], categorical={HOSTILE[0]: ("`", "<b>", "$")})
    X, y = linear(d - 1)
    level = np.eye(4)[np.random.default_rng(3).integers(0, 4, len(X))][:, :3]
    bad = [BadRow(HOSTILE[0], 3, name, Reason.NOT_NUMBER, name) for name in HOSTILE]
    return learned(columns, np.column_stack([X, level]), y, bad=bad, sources=HOSTILE)


MODELS = {
    "flights": flights,
    "one column": lambda: learned(numeric(["x"]), *linear(1)),
    "300 columns": lambda: learned(numeric(names(300)), *linear(300), penalty="l1", alpha=30.0, noise=0.25),
    "sigmoid": sigmoid,
    "noise given": lambda: learned(numeric(names(3)), *linear(3), noise=0.25),
    "undetermined": undetermined,
    "not judged": lambda: TableModel(
        KalproxRegressor(engine="local").fit(*linear(3))._learner, numeric(names(3)), FitRecord(), ("rows.csv",)
    ),
    "auto l1": lambda: learned(numeric(names(6)), *linear(6), penalty="l1", alpha="auto", forget=0.999),
    "no freedom": lambda: learned(numeric(names(5)), *linear(5, 4), penalty=None),
    "no intercept": lambda: learned(numeric(names(2)), *linear(2), fit_intercept=False, standardize=True),
    "hostile": hostile,
}


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def pages(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return {
        name: write_page(report.page(found, f"{name}.kpx"), folder / f"{i}.html")
        for i, (name, found) in enumerate(models.items())
    }


def facts(table):
    return dict(table.rows)


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_tables_hold_the_models_numbers(models):
    found = models["flights"]
    model = found.model
    about, coefficients, calibration, conformal = summary.tables(found, level=0.8)
    told = facts(about)
    assert (
        told["target"] == "arrival_delay" and told["link"] == "identity" and told["columns"] == "15, and an intercept"
    )
    assert told["penalty"] == f"ridge, alpha = auto -> {model.alpha_:.6g}"
    assert told["rows learned"] == "12,000" and told["rows rejected"] == "42"
    assert told["noise std"].startswith(f"{model.noise_var_**0.5:.4g} (learned, 11,98")
    assert told["passes"] == "1, converged" and "forget" not in told

    t = scipy.stats.t.ppf(0.9, model.noise_dof_)
    middle, std = model.intercept_, model.intercept_std_
    assert coefficients.rows[0][1] == "intercept"
    np.testing.assert_allclose(coefficients.rows[0][2:4], [middle, std])
    np.testing.assert_allclose(coefficients.rows[0][6:8], [middle - t * std, middle + t * std])
    listed = found.summary(0.8)
    assert tuple(coefficients.columns[2:8]) == listed.heads == ("coef", "se", "t", "p", "10%", "90%")
    np.testing.assert_allclose(coefficients.rows[0][4:6], [listed.t[0], listed.p[0]], rtol=5e-3)  # three digits
    assert [row[1] for row in coefficients.rows[1:]] == found.columns.names
    shown = [[0.0 if cell == "<1e-16" else cell for cell in row[2:]] for row in coefficients.rows[1:]]
    numbers = np.array([row for row in shown if row[1] != "undetermined"], float)
    keep = np.isfinite(model.coef_std_)
    coef, std = model.coef_[keep], model.coef_std_[keep]
    spread = flight_rows()[1].std(axis=0)[keep]
    tests = np.column_stack([listed.t, np.where(listed.p < 1e-16, 0, listed.p)])[1:][keep]
    expected = np.column_stack([coef, std, tests, coef - t * std, coef + t * std, np.abs(coef) * spread])
    full = [0, 1, 4, 5]  # the others are shown with three digits
    np.testing.assert_allclose(numbers[:, full], expected[:, full])
    np.testing.assert_allclose(numbers, expected, rtol=5e-3)
    assert "80% intervals" in coefficients.caption

    score = model.diagnostics_
    (row,) = calibration.rows
    assert row[0] == score.rows == 12_000 - 32 and row[-1] == "calibrated"  # the first 32 rows choose alpha
    np.testing.assert_allclose([row[1], row[5]], [score.rmse, score.nis])
    assert row[2:5] == [f"{share:.1%}" for share in score.coverage[::-1]]

    (row,) = conformal.rows
    quantiles = found.learner.stream.quantiles
    assert conformal.columns == ["rows", *(f"within {level}%" for level in (99, 95, 90, 80, 50))]
    assert row == [quantiles.rows, *(f"{share:.1%}" for share in quantiles.coverage[::-1])]


@pytest.mark.slow
def test_top_keeps_the_largest_effects_in_the_columns_order(models):
    found = models["flights"]
    table = summary.coefficients(found, top=3)
    largest = set(np.argsort(-found.belief.effects)[:3])
    kept = [name for j, name in enumerate(found.columns.names) if j in largest]
    assert [row[1] for row in table.rows] == ["intercept", *kept]
    assert "The 3 with the largest effects, of 15, are shown" in table.caption
    assert [row[0] for row in table.rows[1:]] == sorted(found.columns.names.index(name) + 1 for name in kept)


@pytest.mark.slow
def test_exact_zeros_and_undetermined_coefficients_are_told_apart(models):
    found = models["300 columns"]
    rows = summary.coefficients(found).rows[1:]
    assert sum(row[-1] == "0 (exact)" for row in rows) == (found.model.coef_ == 0).sum() > 100
    rows = summary.coefficients(models["undetermined"]).rows[1:]
    assert [row[3] == "undetermined" for row in rows] == [False, True, True, True]
    assert not any(row[-1] == "0 (exact)" for row in rows)
    assert rows[1][6:8] == [None, None]


def test_the_intervals_under_a_kink_are_said_to_be_debiased():
    X, y = linear(6)
    found = learned(numeric(names(6)), X, y, penalty="l1", alpha=100.0)
    table = summary.coefficients(found, level=0.9)
    low, high = found.model.coef_interval(0.9)
    np.testing.assert_array_equal([row[6:8] for row in table.rows[1:]], np.stack([low, high], axis=-1))
    plain = learned(numeric(names(6)), X, y, penalty=None)
    expected = [row[6:8] for row in summary.coefficients(plain, level=0.9).rows]
    np.testing.assert_allclose([row[6:8] for row in table.rows], expected, rtol=1e-9)
    assert "standard errors are conditional on those that it selected" in table.caption
    assert "90% intervals" in table.caption and "those of least squares on all columns" in table.caption
    assert "unbounded" not in table.caption
    section = coefficients.section(found, 0.9)
    assert "90% intervals" in section.figures[0].caption and "debiased" in section.figures[0].caption
    assert "conditional on the coefficients that the penalty selected" in coefficients.correlations(found).text
    assert "those of the posterior" in summary.coefficients(plain).caption

    few = learned(numeric(names(6)), X[:5], y[:5], penalty="l1", alpha=0.5)
    table = summary.coefficients(few)
    assert "where the rows alone" in table.caption and all(row[6] in ("unbounded", None) for row in table.rows)
    assert coefficients.section(few, 0.95).figures == []


@pytest.mark.slow
def test_settings_of_all_kinds_are_told_in_words(models):
    told = {name: facts(summary.overview(found)) for name, found in models.items()}
    assert told["noise given"]["noise std"] == "0.5 (given)"
    assert told["undetermined"]["penalty"] == "none"
    assert told["auto l1"]["penalty"].startswith("l1, alpha = auto -> ")
    assert told["auto l1"]["forget"] == "0.999, the weight of a row is halved after 693 more rows"
    assert told["no freedom"]["noise std"].startswith("unknown")
    assert told["sigmoid"]["link"] == "sigmoid"
    assert [row[3] for row in summary.coefficients(models["no freedom"]).rows] == ["unknown"] * 6
    assert summary.coefficients(models["no intercept"]).rows[0][1] == "x0"
    flights = models["flights"].summary()
    for name, value in (("R2", flights.r2), ("effective dof", flights.edf), ("log evidence", flights.log_evidence)):
        assert told["flights"][name] == f"{value:,.6g}"
    assert (
        "R2" not in told["sigmoid"] and "R2 is empty: with a nonlinear" in summary.overview(models["sigmoid"]).caption
    )
    assert "t and p are empty" in summary.coefficients(models["300 columns"]).caption


def test_a_model_that_judged_no_row_says_so(models):
    (row,) = summary.calibration(models["not judged"]).rows
    assert row == [0, None, None, None, None, None, "not judged"]
    assert summary.conformal(models["not judged"]) == []
    page = report.page(models["not judged"], "m")
    assert page.headline[-1].text.startswith("not judged, because the rows were learned in no order")
    assert section(page, "Calibration").text.startswith("Not judged, because the rows were learned in no order")
    assert [figure.name for section in page.sections for figure in section.figures] == [
        "coefficients", "correlation",
    ]  # fmt: skip


# -- the page ---------------------------------------------------------------------------------------------------------


def section(page, title):
    return next(section for section in page.sections if section.title == title)


def test_the_checks_are_shown_with_their_numbers(models):
    _, checks, *_ = section(report.page(models["flights"], "m"), "Calibration").tables
    words = ["drifting", "correlated", "nonlinear", "unequal spread", "heavy tails", "skewed"]
    assert [row[0] for row in checks.rows] == words
    assert {row[3] for row in checks.rows} == {"no"}


@pytest.mark.slow
def test_the_page_begins_with_the_headline_of_the_commands(models, pages):
    for name, found in models.items():
        lines = report.page(found, "m").headline
        assert [tuple(line) for line in lines] == [tuple(line) for line in found.headline().lines]
        text = pages[name].read_text()
        assert text.index('class="headline"') < text.index("<main>")
        assert text.count('class="doubt"') == len(found.headline().doubts)
    lines = report.page(models["flights"], "m").headline
    assert lines[0].text == (
        "12,041 read, 12,000 learned, 42 refused (0.349%): `departure_delay` missing (40), empty file (1), `distance` "
        "not a number (1)."
    )
    assert lines[-1].text.startswith("calibrated: The stated std is reliable. Judged on 11,968 rows")
    assert "**Calibrated**: The stated std" in section(report.page(models["flights"], "m"), "Calibration").text


def test_the_data_are_told_by_column_and_level(models):
    found = models["flights"]
    columns, levels = section(report.page(found, "m"), "Data").tables
    rows = {row[0]: row[1:] for row in columns.rows}
    quality = found.record.quality
    np.testing.assert_allclose(rows["`distance`"][:3], [quality.low[0], quality.high[0], quality.total[0] / 12_000])
    assert rows["`day`"][:2] == ["2011-01-26", "2012-01-25"]
    assert rows["`carrier=ZZ`"] == [None, None, None, 0]
    assert sum(rows[f"`carrier={c}`"][3] for c in ("AA", "B6", "DL", "UA", "WN")) == 12_000
    unseen = 12_000 - sum(rows[f"`origin={c}`"][3] for c in ("EWR", "JFK", "LGA"))
    assert levels.rows == [["`carrier`", 6, None, 0], ["`origin`", 3, None, unseen]] and unseen > 2000


def test_without_its_first_level_a_column_does_not_count_the_unknown():
    columns = Columns("y", categorical={"c": ("a", "b")}, drop_first=True)
    X = np.random.default_rng(0).integers(0, 2, (50, 1)).astype(float)
    _, levels = section(report.page(learned(columns, X, X[:, 0] + 1e-3 * np.arange(50)), "m"), "Data").tables
    assert levels.rows == [["`c`", 2, "`a`", None]] and "cannot be distinguished" in levels.caption


def test_rejected_rows_are_counted_and_the_first_are_shown(models):
    counts, first = section(report.page(models["flights"], "m"), "Rejected rows").tables
    assert counts.rows == [
        ["`departure_delay`", "missing", 40], [None, "empty file", 1], ["`distance`", "not a number", 1],
    ]  # fmt: skip
    assert len(first.rows) == 20
    assert first.rows[0] == ["`flights/2013-01.csv`", 2, "`departure_delay`", "missing", None]
    assert "No rows" in section(report.page(models["sigmoid"], "m"), "Rejected rows").text


def test_the_figures_hold_the_models_numbers(models):
    found = models["flights"]
    drawn = {f.name: f.numbers for s in report.page(found, "m", 0.9).sections for f in s.figures}
    assert set(drawn) == {"coefficients", "calibration", "pit", "running", "correlation", "path"}
    numbers = drawn["coefficients"]
    at = [found.columns.names.index(name) for name in numbers["column"]]
    np.testing.assert_array_equal(numbers["coef"], found.model.coef_[at])
    np.testing.assert_array_equal(numbers["low"], found.intervals(0.9)[0][at])
    assert (np.diff(found.belief.effects[at]) <= 0).all()
    np.testing.assert_allclose(np.sum(drawn["pit"]["bars"]), 20)
    at = [found.columns.names.index(name) for name in drawn["correlation"]["column"]]
    C = found.model.covariance_[np.ix_(at, at)]
    np.testing.assert_allclose(drawn["correlation"]["correlation"], C / np.sqrt(np.outer(np.diag(C), np.diag(C))))
    np.testing.assert_array_equal(drawn["running"]["rmse"], found.record.history.running()[1])


def test_many_columns_are_capped_and_said(models):
    found = learned(numeric(names(600)), *linear(600, 1300), block=650)
    page = report.page(found, "m")
    coefficients = section(page, "Coefficients")
    assert len(coefficients.tables[1].rows) == 501 and "The 500 with the largest" in coefficients.tables[1].caption
    assert len(coefficients.figures[0].numbers["column"]) == 40 and "shows the 40" in coefficients.text
    together = section(page, "Correlations of the coefficients")
    assert np.shape(together.figures[0].numbers["correlation"]) == (60, 60) and "the 60 with" in together.text
    assert len(section(page, "Data").tables[0].rows) == 500


def test_settings_are_those_that_differ_and_the_first_three(models):
    settings = report.page(models["auto l1"], "m").settings
    assert settings == {
        "link": "identity", "penalty": "l1", "alpha": "auto", "forget": 0.999, "target": "y",
        "sources": ["flights/*.csv"],
    }  # fmt: skip


@pytest.mark.slow
def test_a_model_that_was_saved_and_loaded_has_the_same_page(models, pages, tmp_path):
    for name in ("flights", "sigmoid", "hostile"):
        models[name].save(tmp_path / "m.kpx")
        again = write_page(report.page(TableModel.load(tmp_path / "m.kpx"), f"{name}.kpx"), tmp_path / "page.html")
        assert again.read_bytes() == pages[name].read_bytes()


@pytest.mark.slow
def test_hostile_names_stay_words_on_the_page_and_in_figures(models, pages):
    text = pages["hostile"].read_text()
    assert not re.search(r"<script|<b>[^<]*alert", text)
    for shown in ("<code>$x^2$</code>", "<code>温度</code>", "<code>حجم</code>", "<code>**b** &#39;c&#39;</code>"):
        assert shown in text
    assert "n" * 61 not in text.partition('id="settings"')[0]  # settings are shown in full

    def labels(figure):
        seen = []
        figures.render(dataclasses.replace(figure, draw=lambda fig: (figure.draw(fig), seen.append(fig))), "svg")
        ax = seen[0].axes[0]
        assert all(not label.get_parse_math() for label in ax.get_yticklabels())
        x0, y0, x1, y1 = ax.get_tightbbox().extents / seen[0].dpi
        assert min(x0, y0) >= 0 and x1 <= figure.size[0] and y1 <= figure.size[1]
        return {label.get_text() for label in ax.get_yticklabels()}

    drawn = report.page(models["hostile"], "m").sections
    for figure in (drawn[0].figures[0], drawn[3].figures[0]):
        assert {"$x^2$", r"\$a_{", "Größe Ωж", "a b c", "column 5", "column 8"} <= labels(figure)


@pytest.mark.parametrize(("name", "width", "short"), [("short", 9, "short"), ("a" * 9 + "z" * 9, 8, "aaaa…zzz")])
def test_long_names_lose_their_middle(name, width, short):
    assert shorten(name, width) == short


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver():
    with browser() as driver:
        yield driver


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("width", [390, 800, 1400])
@pytest.mark.parametrize("name", MODELS)
def test_a_browser_shows_the_report_whole(driver, pages, name, width):
    show(driver, pages[name], width)
    assert driver.title == f"{name}.kpx"
    assert console_errors(driver) == [] and outside_requests(driver) == [] and overflow(driver) <= 0
    assert driver.find_elements("css selector", "script, img:not([src^='data:'])") == []
    assert min(label_sizes(driver), default=9) >= 9
    for svg in drawings(driver):
        left, _, across, down = box(driver, svg)
        assert left >= 0 and left + across <= width and down > 60
        assert colours(svg) > 20
