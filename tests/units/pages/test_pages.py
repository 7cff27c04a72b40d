"""Figures and pages: the numbers as given, the same bytes each time, atomic files, a page that a browser shows well."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from browser import (
    box,
    browser,
    colours,
    console_errors,
    drawings,
    label_sizes,
    outside_requests,
    overflow,
    show,
)

from kalprox.display import plots
from kalprox.display.axes import LINES, STYLE, label_ends, line_style
from kalprox.learning.facts import Line
from kalprox.pages import Figure, Page, Section, Table, write, write_page
from kalprox.pages import page as figures

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
formatting = pytest.importorskip("kalprox.pages.rendering", reason="jinja2 is not installed", exc_type=ImportError)
MINUS, TIMES = formatting.MINUS, formatting.TIMES


ROWS = np.geomspace(10, 1e5, 40)
RNG = np.random.default_rng(0)
RUNS = {
    "one": np.exp(RNG.normal(0, 0.2, (9, 40))) / ROWS**0.5,
    "other": np.exp(RNG.normal(0, 0.2, (9, 40))) / ROWS**0.2,
    "single": 3 / ROWS**0.3,
}
TRUTH = np.array([0.0, 1.0, 0.0, -2.0, 0.0])
MEAN = TRUTH + np.array([0.1, -0.1, 0.9, 0.0, 0.1])  # the third is nine standard deviations off
STD = np.full(5, 0.1)
HOSTILE = "<script>alert(1)</script> & \"quoted\" 'too' <img src=http://example.org/x onerror=alert(2)>"


def drawing(helper, *args, **kwargs):
    def draw(fig):
        ax = fig.subplots()
        getattr(plots, helper)(ax, *args, **kwargs)
        label_ends(ax)
        ax.set(xlabel=ax.get_xlabel() or "rows", ylabel=ax.get_ylabel() or "value")

    return draw


COVARIANCE = 1e-4 * np.linalg.inv(0.8 ** np.abs(np.subtract.outer(np.arange(30), np.arange(30))))
DRAWINGS = {
    "curves": drawing("curves", ROWS, RUNS),
    "sweep": drawing("sweep", ROWS, np.outer(np.linspace(1, 2, 12), ROWS**-0.5), "12 step sizes"),
    "estimates": drawing("estimates", TRUTH, MEAN, STD),
    "matrix": drawing("matrix", COVARIANCE, "covariance"),
    "traces": drawing("traces", ROWS, 100 / (1 + np.outer(ROWS, np.arange(1, 9))), "variance of each tap"),
    "calibration": drawing("calibration", [0.5, 0.8, 0.95], [0.48, 0.83, 0.94], rows=300),
}
SIZES = {"matrix": (5.0, 4.2), "calibration": (4.6, 4.6), "sweep": (9.6, 3.6)}


def figure(name, **changes):
    about = {"title": name.title(), "caption": f"What `{name}` shows.", "numbers": {"rows": ROWS}}
    return Figure(name=name, draw=DRAWINGS[name], size=SIZES.get(name, (6.4, 4.0)), **(about | changes))


def whole_page():
    table = Table(
        ["algorithm", "error", "interval", "rows", "said", "ok"],
        [
            ["one", 0.61234, "0.94 (0.91 to 0.96)", 300000, "w" * 60, True],
            ["other", 2.5e-7, "1e-3", None, "words enough that the cell may break into lines", np.False_],
            ["none", None, "none", None, "5 of 7 is words", False],
        ],
        "How well, how fast.",
    )
    sections = [
        Section("Errors", "First paragraph, a < b.\n\nSecond, with `code` and **bold**.", [figure("curves")], [table]),
        Section("Beliefs", "", [figure("estimates"), figure("matrix"), figure("traces")]),
        Section("Sweep", "", [figure("sweep")]),
        Section("Calibration", "", [figure("calibration")]),
    ]
    settings = {"seed": 20240817, "lam": 1e-5, "gammas": [0.005, 0.1], "quick": False, "path": "x" * 200}
    return Page("A run", "What was done.", sections, settings, ["It **works**.", "So does `that`."])


# -- figures ----------------------------------------------------------------------------------------------------------


def test_the_numbers_beside_a_figure_are_those_given(tmp_path):
    numbers = {
        "runs": RUNS["one"],
        "diverged": [1.0, np.inf, float("nan")],
        "deep": {"d": np.int64(5), "w": np.float32(0.5), "words": ("a", None, True)},
    }
    paths = write(figure("curves", numbers=numbers), tmp_path)
    read = json.loads(paths["json"].read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    np.testing.assert_array_equal(np.array(read["runs"]), RUNS["one"])  # to the last bit
    assert read["diverged"] == [1.0, None, None]
    assert read["deep"] == {"d": 5, "w": 0.5, "words": ["a", None, True]}


def test_numbers_that_json_cannot_hold_are_refused_by_place():
    with pytest.raises(TypeError, match=re.escape("numbers['a'][1] must be")):
        figures.to_json({"a": [1, 2j]})


@pytest.mark.slow
@pytest.mark.parametrize("form", ["svg", "pdf", "png"])
def test_the_same_figure_gives_the_same_bytes_whatever_the_users_settings(form, tmp_path):
    one = figure("matrix")
    first = write(one, tmp_path / "a", (form,))
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": None}):
        second = write(one, tmp_path / "b", (form,))
    assert dict(matplotlib.rcParams) == before
    assert first[form].name == f"matrix.{form}"
    for kind in (form, "json"):
        assert first[kind].read_bytes() == second[kind].read_bytes()


@pytest.mark.slow
@pytest.mark.integration
def test_drawing_does_not_start_pyplot_nor_import_matplotlib_early():
    code = (
        "import sys, kalprox; assert 'kalprox.pages' not in sys.modules\n"
        "from kalprox.display import plots\n"
        "from kalprox.pages import Figure, page; assert not {'matplotlib', 'jinja2'} & set(sys.modules)\n"
        "draw = lambda fig: plots.curves(fig.subplots(), [1, 2], {'a': [1, 2]})\n"
        "page.render(Figure('a', 'a', 'a', {}, draw), 'svg')\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("name", DRAWINGS)
def test_nothing_is_cut_off_at_the_figures_edge(name):
    seen = []
    one = figure(name)
    figures.render(dataclasses.replace(one, draw=lambda fig: (one.draw(fig), seen.append(fig))), "svg")
    for ax in seen[0].axes:
        x0, y0, x1, y1 = ax.get_tightbbox().extents / seen[0].dpi
        assert min(x0, y0) >= 0 and x1 <= one.size[0] and y1 <= one.size[1]


@pytest.mark.parametrize(
    ("name", "match"), [("../up", "name must be"), ("", "name must be"), (".hidden", "name must be")]
)
def test_a_name_that_is_no_file_stem_is_refused(name, match):
    with pytest.raises(ValueError, match=match):
        Figure(name, "", "", {}, print)


def test_a_failing_draw_leaves_no_file_and_the_old_one_untouched(tmp_path):
    def fail(fig):
        fig.subplots()
        raise RuntimeError("no drawing")

    write(figure("curves"), tmp_path)
    path = write_page(Page("Old", "", []), tmp_path / "page.html")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    broken = dataclasses.replace(figure("curves", numbers={"new": 1}), draw=fail)
    with pytest.raises(RuntimeError, match="no drawing"):
        write(broken, tmp_path)
    with pytest.raises(RuntimeError, match="no drawing"):
        write_page(Page("New", "", [Section("", "", [broken])]), path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_write_that_is_interrupted_leaves_the_old_file(tmp_path, monkeypatch):
    path = write(figure("estimates"), tmp_path)["json"]
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr("kalprox.base.files.os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write(figure("estimates", numbers={"new": 1}), tmp_path)
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["estimates.json", "estimates.svg"]


def test_bands_are_quantiles_and_a_diverged_run_counts_as_infinite():
    runs = RNG.normal(size=(11, 4, 3))
    np.testing.assert_allclose(plots.quantile_bands(runs), np.quantile(runs, [0.1, 0.5, 0.9], axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        plots.quantile_bands(runs[:, 0, 0]), np.quantile(runs[:, 0, 0], [0.1, 0.5, 0.9]), rtol=1e-12
    )
    runs[:6, 0, 0] = np.nan
    runs[:5, 1, 0] = np.inf
    low, middle, high = plots.quantile_bands(runs)
    assert np.isfinite(low).all() and middle[0, 0] == high[0, 0] == high[1, 0] == np.inf
    assert middle[1, 0] == runs[:, 1, 0][np.isfinite(runs[:, 1, 0])].max()  # the sixth of eleven


def axes_after(helper, *args, **kwargs):
    import matplotlib.style
    from matplotlib.figure import Figure as Canvas

    with matplotlib.style.context(STYLE, after_reset=True):
        ax = Canvas().subplots()
        getattr(plots, helper)(ax, *args, **kwargs)
    return ax


def test_curves_draw_the_median_and_differ_in_colour_line_and_marker():
    ax = axes_after("curves", ROWS, RUNS)
    for line, (label, runs) in zip(ax.lines, RUNS.items(), strict=True):
        assert line.get_label() == label
        np.testing.assert_allclose(line.get_ydata(), np.median(np.atleast_2d(runs), axis=0), rtol=1e-12)
    assert len(ax.collections) == 2  # one run has no band
    for key in ("color", "linestyle", "marker"):
        assert len({line_style(slot)[key] for slot in range(len(LINES))}) == len(LINES)


def labels_beside(ax):
    """The labels that are written beside the axes, from below."""
    ax.figure.draw_without_rendering()
    beside = [text for text in ax.texts if text.get_window_extent().x0 >= ax.get_window_extent().x1]
    return sorted(beside, key=lambda text: text.get_window_extent().y0)


def test_labels_stand_beside_their_lines_and_do_not_overlap():
    ends = {"a line": [1.0, 5.0], "another": [1.0, 5.01], "a third one": [1.0, 5.02], "low": [1.0, 1.5]}
    ax = axes_after("curves", [1, 10], ends)
    label_ends(ax)
    assert ax.get_legend() is None
    texts = labels_beside(ax)
    assert [text.get_text() for text in texts] == ["low", "a line", "another", "a third one"]
    boxes = [text.get_window_extent() for text in texts]
    assert all(above.y0 >= below.y1 for below, above in itertools.pairwise(boxes))
    assert abs(boxes[0].y0 + boxes[0].height / 2 - ax.transData.transform((10, 1.5))[1]) < 12
    ax = axes_after("sweep", [1, 2], [[1, 2], [1, 3]], "runs")
    label_ends(ax)
    assert [text.get_text() for text in labels_beside(ax)] == ["runs"]


@pytest.mark.slow
def test_a_figure_has_a_second_drawing_for_narrow_screens_unless_it_is_narrow(page, tmp_path):
    assert page.read_text().count("<svg") == 2 * len(DRAWINGS)
    small = dataclasses.replace(figure("calibration"), size=(4.0, 4.0))
    assert small.narrow_size is None and figure("curves").narrow_size == (3.9, 3.4)
    text = write_page(Page("", "", [Section("", "", [small])]), tmp_path / "page.html").read_text()
    assert text.count("<svg") == 1


def test_the_headline_stands_first_as_one_block_and_marks_its_doubts(tmp_path):
    lines = [Line("Rows", "3 of `a<b`"), Line("Verdict", "drifting", True)]
    page = Page("T", "S", [Section("One")], headline=lines, conclusions=["So."])
    text = write_page(page, tmp_path / "page.html").read_text()
    assert '<div class="doubt"><dt>Verdict</dt><dd>drifting</dd></div>' in text
    assert "<div><dt>Rows</dt><dd>3 of <code>a&lt;b</code></dd></div>" in text
    assert text.index('class="headline"') < text.index('class="conclusions"') < text.index("<main>")


def test_a_line_stops_where_half_of_the_runs_have_diverged():
    runs = RUNS["one"].copy()
    runs[:5, 20:] = np.inf
    runs[:2, 10:] = np.nan
    ax = axes_after("curves", ROWS, {"a": runs})
    assert np.isfinite(ax.lines[0].get_ydata()).sum() == 20
    top = max(path.vertices[:, 1].max() for path in ax.collections[0].get_paths())
    shown = plots.quantile_bands(runs)
    assert top == shown[np.isfinite(shown)].max()


def test_estimates_say_which_bars_miss_the_truth():
    labels = axes_after("estimates", TRUTH, MEAN, STD).get_legend_handles_labels()[1]
    assert "estimate, truth outside: 1 of 5" in labels
    labels = axes_after("estimates", TRUTH, TRUTH, STD).get_legend_handles_labels()[1]
    assert not any("outside" in label for label in labels)


def test_a_matrix_is_white_at_zero_and_symmetric_in_colour():
    picture = axes_after("matrix", np.array([[2.0, -0.5], [np.nan, 0.0]]), "V").images[0]
    assert picture.get_clim() == (-2.0, 2.0)
    assert axes_after("matrix", np.zeros((2, 2)), "V").images[0].get_clim() == (-1.0, 1.0)


# -- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(whole_page(), tmp_path_factory.mktemp("report") / "run" / "page.html")


@pytest.mark.slow
def test_a_page_is_the_same_bytes_again_and_its_figures_lie_in_the_folder(page, tmp_path):
    again = write_page(whole_page(), tmp_path / "page.html", tmp_path / "figures", ("png",))
    assert again.read_bytes() == page.read_bytes()
    written = {file.name for file in (tmp_path / "figures").iterdir()}
    assert written == {f"{name}.{form}" for name in DRAWINGS for form in ("json", "png")}


@pytest.mark.slow
def test_a_page_refers_to_nothing_outside_and_every_inner_reference_is_met(page):
    text = page.read_text()
    assert "http" not in text.replace("http-equiv", "")
    assert not re.search(r"@import|<script|<iframe|url\((?!#)", text)
    assert all(ref.startswith(("#", "data:")) for ref in re.findall(r"(?:href|src)=\"([^\"]*)\"", text))
    ids = re.findall(r"\sid=\"([^\"]*)\"", text)
    assert len(set(ids)) == len(ids) > 100
    wanted = re.findall(r"href=\"#([^\"]*)\"|url\(#([^)]*)\)|aria-\w+by=\"([^\"]*)\"", text)
    assert {"".join(groups) for groups in wanted} <= set(ids)


@pytest.mark.slow
def test_what_comes_from_data_is_escaped(tmp_path):
    one = Figure("a", HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, DRAWINGS["estimates"])
    section = Section(HOSTILE, f"{HOSTILE} `{HOSTILE}` **{HOSTILE}**", [one], [Table([HOSTILE], [[HOSTILE]], HOSTILE)])
    page = Page(HOSTILE, HOSTILE, [section], {HOSTILE: HOSTILE, "list": [HOSTILE]}, [HOSTILE])
    text = write_page(page, tmp_path / "page.html", tmp_path).read_text()
    assert not re.search(r"<script|<img", text)
    assert text.count("&lt;script&gt;") >= 15
    assert json.loads((tmp_path / "a.json").read_text()) == {HOSTILE: HOSTILE}


def test_labels_in_a_drawing_cannot_leave_it(tmp_path):
    draw = drawing("curves", ROWS, {"--><script>alert(1)</script>": RUNS["one"]})
    text = write_page(Page("", "", [Section("", "", [Figure("a", "", "", {}, draw)])]), tmp_path / "p.html").read_text()
    assert "script" not in text and "<!--" not in text


@pytest.mark.slow
def test_settings_are_shown_exactly_and_versions_are_there(page):
    text = page.read_text()
    for shown in ("20240817", "1e-05", "0.005, 0.1"):
        assert f"<dd>{shown}</dd>" in text
    for package in ("python", "kalprox", "numpy", "scipy", "jax"):
        assert re.search(rf"<dt>{package}</dt><dd>\d[^<]*</dd>", text)
    assert text.index("What to conclude") < text.index("Errors") < text.index("Settings")


def test_columns_of_numbers_stand_right(page):
    head = re.search(r"<thead>.*?</thead>", page.read_text(), re.S)[0]
    assert re.findall(r"class=\"n\">(\w+)<", head) == ["error", "interval", "rows"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.0, "0"),
        (-3, f"{MINUS}3"),
        (999.6, "1,000"),
        (0.0009996, "0.00100"),
        (1e6, "1,000,000"),
        (-1357012.3, f"{MINUS}1,357,012"),
        (0.000272, "0.000272"),
        (2.5e11, f"2.50 {TIMES} 10<sup>11</sup>"),
        (np.float32(0.5), "0.500"),
        (float("nan"), "NaN"),
        (-np.inf, f"{MINUS}∞"),
    ],
)
def test_numbers_read_well(value, shown):
    assert formatting.number(value) == shown


def test_two_figures_of_one_name_and_ragged_rows_are_refused(tmp_path):
    twice = Page("", "", [Section("", "", [figure("curves")] * 2)])
    with pytest.raises(ValueError, match="different names; got curves, curves"):
        write_page(twice, tmp_path / "page.html")
    with pytest.raises(ValueError, match=re.escape("rows[1] has 1")):
        Table(["a", "b"], [[1, 2], [3]])
    with pytest.raises(ValueError, match="one of svg, pdf, png; got 'gif'"):
        write(figure("curves"), tmp_path, ("gif",))
    assert list(tmp_path.iterdir()) == []


def test_an_svg_file_is_whole_by_itself(tmp_path):
    text = write(figure("estimates"), tmp_path)["svg"].read_text()
    ElementTree.fromstring(text)
    assert "metadata" not in text and "matplotlib.org" not in text


# -- the page in a browser --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver():
    with browser() as driver:
        yield driver


@pytest.mark.integration
@pytest.mark.parametrize(
    ("width", "dark"),
    [(390, False), (1280, True), *(pytest.param(*one, marks=pytest.mark.slow) for one in [(390, True), (1280, False)])],
)
def test_a_browser_shows_the_page_whole(driver, page, width, dark):
    show(driver, page, width, dark=dark)
    assert console_errors(driver) == []
    assert outside_requests(driver) == []
    assert overflow(driver) <= 0
    assert min(label_sizes(driver)) >= 9
    drawn = drawings(driver)
    assert len(drawn) == len(DRAWINGS)
    for svg in drawn:
        left, _, across, down = box(driver, svg)
        assert left >= 0 and left + across <= width
        assert across >= 370 and down > 100
        assert colours(svg) > 20
    assert driver.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches") == dark


@pytest.mark.integration
def test_a_wide_table_scrolls_in_its_own_box(driver, page):
    show(driver, page, 390)
    table = driver.find_element("class name", "scroll")
    assert table.get_property("scrollWidth") > table.get_property("clientWidth")
    assert box(driver, table)[2] <= 390


@pytest.mark.slow
@pytest.mark.integration
def test_figures_have_names_for_those_who_do_not_see_them(driver, page):
    show(driver, page, 1280)
    drawn = drawings(driver)
    assert [svg.accessible_name for svg in drawn] == [
        "Curves", "Estimates", "Matrix", "Traces", "Sweep", "Calibration",
    ]  # fmt: skip
    assert {svg.aria_role for svg in drawn} <= {"img", "image"}


@pytest.mark.slow
@pytest.mark.integration
def test_hostile_words_stay_words_in_a_browser(driver, tmp_path):
    one = Figure("a", HOSTILE, HOSTILE, {}, DRAWINGS["estimates"])
    section = Section(HOSTILE, HOSTILE, [one], [Table([HOSTILE], [[HOSTILE]])])
    path = write_page(Page(HOSTILE, HOSTILE, [section], {HOSTILE: HOSTILE}, [HOSTILE]), tmp_path / "page.html")
    show(driver, path, 390)
    assert driver.title == HOSTILE
    assert driver.find_elements("css selector", "script, img") == []
    assert console_errors(driver) == [] and outside_requests(driver) == [] and overflow(driver) <= 0
