"""`.plot()` of models, paths, calibrations, runs, information: axes in, axes out, for every odd case."""

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest

import kalprox as kp
from kalprox import KalproxRegressor

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pd = pytest.importorskip("pandas", reason="pandas is not installed")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

RNG = np.random.default_rng(0)
N = 300
X = RNG.normal(size=(N, 4))
THETA = np.array([1.0, -2.0, 0.5, 0.0])
Y = X @ THETA + RNG.normal(size=N)


def fitted(X=X, y=Y, **settings):
    return KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X, y)


def information(X=X, y=Y):
    return kp.Information.from_rows(X, y)


def ran(d=4, record_every=50, algorithm="ipm"):
    X = np.random.default_rng(1).normal(size=(500, d))
    y = X @ np.ones(d) + np.random.default_rng(2).normal(size=500)
    linear = kp.models.Linear()
    alg = kp.ipm(linear, gamma=1.0) if algorithm == "ipm" else kp.sgd(
        linear, kp.regularizers.Zero(), alpha0=0.05, alpha1=0.01
    )  # fmt: skip
    return kp.run(alg, alg.init(np.zeros(d), 10.0), X, y, record_every=record_every)


def refined(d=2):
    return kp.refine(kp.models.Linear(), kp.regularizers.Ridge(1.0), (X[:, :d], Y), np.zeros(d))


def frame():
    names = ["<b>bold</b>", "a_very_long_name_of_a_column_that_does_not_end_soon", "C(g)[T.b]:x", "$x^2$", "日本", "\n"]
    return pd.DataFrame(np.random.default_rng(5).normal(size=(N, 6)), columns=names)


def wide(n=100, d=500):
    return np.random.default_rng(3).normal(size=(n, d))


def with_constant():
    return np.column_stack([X, np.full(N, 3.0), X[:, 0]])  # a constant column, and two that are equal


PLOTS = {
    "model": lambda ax: fitted().plot(ax),
    "model, 500 columns": lambda ax: fitted(wide(1000), wide(1000) @ np.ones(500)).plot(ax),
    "model, 500 columns of 100 rows": lambda ax: fitted(wide(), wide()[:, 0], alpha="auto").plot(ax),
    "model, several targets": lambda ax: fitted(y=np.column_stack([Y, 2 * Y, -Y])).plot(ax),
    "model, odd names": lambda ax: fitted(frame()).plot(ax),
    "model, constant and equal columns": lambda ax: fitted(with_constant(), penalty=None).plot(ax),
    "model, constant columns, scaled": lambda ax: fitted(with_constant(), penalty=None).plot(ax, scaled=True),
    "model, one column": lambda ax: fitted(X[:, :1]).plot(ax),
    "model, l1": lambda ax: fitted(penalty="l1", alpha=30.0).plot(ax),
    "model, anytime": lambda ax: fitted().plot(ax, anytime=True),
    "model, one row": lambda ax: fitted(X[:1], Y[:1]).plot(ax),
    "model, sigmoid": lambda ax: fitted(y=(Y > 0) * 1.0, link="sigmoid").plot(ax),
    "path": lambda ax: fitted().path().plot(ax),
    "path, l1": lambda ax: fitted(penalty="l1", alpha=5.0).path().plot(ax),
    "path, score": lambda ax: fitted().path().plot(ax, kind="score"),
    "path, given alphas, 0 among them": lambda ax: fitted(penalty="l1").path([0.0, 1.0, 10.0]).plot(ax),
    "path, one alpha": lambda ax: fitted().path([2.0]).plot(ax),
    "path, one alpha, score": lambda ax: fitted().path([2.0]).plot(ax, kind="score"),
    "path, several targets": lambda ax: fitted(y=np.column_stack([Y, -Y])).path().plot(ax, target=1),
    "path, 500 columns": lambda ax: fitted(wide(), wide()[:, 0]).path([1.0, 10.0, 100.0]).plot(ax, scaled=True),
    "path, odd names": lambda ax: fitted(frame()).path().plot(ax),
    "path, constant column": lambda ax: fitted(with_constant()).path().plot(ax),
    "calibration": lambda ax: fitted().diagnostics_.plot(ax),
    "calibration, pit": lambda ax: fitted().diagnostics_.plot(ax, kind="pit"),
    "calibration, stream": lambda ax: fitted().diagnostics_.plot(ax, kind="stream"),
    "calibration, three rows": lambda ax: kp.Calibration().update(np.zeros(3), np.ones(3), Y[:3]).plot(ax),
    "calibration, one row, pit": lambda ax: kp.Calibration().update(0.0, 1.0, 9.0).plot(ax, kind="pit"),
    "calibration, one row, stream": lambda ax: kp.Calibration().update(0.0, 1.0, 9.0).plot(ax, kind="stream"),
    "run": lambda ax: ran().plot(ax),
    "run, truth": lambda ax: ran().plot(ax, truth=np.ones(4), coefs=[0, 3], names=["a", "$b$", "c", "日"]),
    "run, error": lambda ax: ran().plot(ax, kind="error", truth=np.ones(4)),
    "run, error, no covariance": lambda ax: ran(algorithm="sgd").plot(ax, kind="error", truth=np.zeros(4)),
    "run, no covariance": lambda ax: ran(algorithm="sgd").plot(ax),
    "run, 60 coefficients": lambda ax: ran(60).plot(ax),
    "run, one coefficient": lambda ax: ran(1).plot(ax),
    "run, one record": lambda ax: ran(record_every=10_000).plot(ax),
    "information": lambda ax: information().plot(ax),
    "information, centred": lambda ax: information(with_constant()).centered().plot(ax, names=list("abcdef")),
    "information, 500 columns of 100 rows": lambda ax: information(wide(), wide()[:, 0]).plot(ax),
    "information, one column": lambda ax: information(X[:, :1]).plot(ax),
    "information, several targets": lambda ax: information(y=np.column_stack([Y, Y])).plot(ax),
    "information, odd names": lambda ax: information(frame().to_numpy()).plot(ax, names=list(frame())),
    "information, a prior": lambda ax: kp.Information.from_prior(np.zeros(3), np.eye(3)).plot(ax),
    "refined": lambda ax: refined().plot(ax),
    "refined, one parameter": lambda ax: refined(1).plot(ax, names=["<i>k</i>"]),
}  # fmt: skip


def texts(ax):
    labels = [*ax.get_yticklabels(), *ax.get_xticklabels(), ax.xaxis.label, ax.yaxis.label]
    return [*labels, *([] if ax.get_legend() is None else ax.get_legend().get_texts())]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLOTS)
@pytest.mark.filterwarnings("ignore:.*penalty:RuntimeWarning")
def test_given_axes_are_drawn_on_and_returned_and_no_figure_is_made(name):
    before, settings = plt.get_fignums(), dict(matplotlib.rcParams)
    fig = Figure(figsize=(6.4, 4.8), layout="constrained")
    left, right = fig.subplots(1, 2)
    assert PLOTS[name](right) is right
    fig.savefig("/dev/null", format="png")  # with the warnings of missing glyphs and of layouts as errors
    assert plt.get_fignums() == before and dict(matplotlib.rcParams) == settings
    assert not left.has_data() and right.has_data()
    assert right.get_xlabel() and all(text.get_window_extent().width < 640 for text in texts(right))
    labels = [label.get_window_extent() for label in right.get_yticklabels() if label.get_text()]
    labels.sort(key=lambda box: box.y0)
    assert all(above.y0 >= below.y0 + 0.6 * below.height for below, above in itertools.pairwise(labels))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLOTS)
@pytest.mark.filterwarnings("ignore:.*penalty:RuntimeWarning")
def test_without_axes_one_figure_is_made_in_which_nothing_is_cut_off(name):
    before = plt.get_fignums()
    ax = PLOTS[name](None)
    made = set(plt.get_fignums()) - set(before)
    assert [ax.figure.number] == list(made)
    fig = ax.figure
    fig.savefig("/dev/null", format="png")
    box = fig.get_tightbbox()
    assert box.x0 > -0.01 and box.y0 > -0.01 and box.x1 < fig.get_figwidth() + 0.01
    assert box.y1 < fig.get_figheight() + 0.01
    plt.close(fig)


def test_the_coefficients_and_ends_drawn_are_those_of_the_model():
    model = fitted(penalty=None)
    low, high = model.coef_interval(0.9)
    ax = model.plot(level=0.9)
    points = next(line for line in ax.lines if len(line.get_xdata()) == 4)
    np.testing.assert_array_equal(points.get_xdata(), model.coef_)
    bars = np.array([segment[:, 0] for segment in ax.collections[0].get_segments()])
    np.testing.assert_array_equal(bars, np.column_stack([low, high]))
    scaled = fitted(X * [1.0, 100.0, 1.0, 1.0], penalty=None).plot(scaled=True)
    np.testing.assert_allclose(scaled.lines[1].get_xdata(), model.coef_ * X.std(axis=0), rtol=1e-10)


def test_what_is_not_determined_is_a_ring_and_said():
    ax = fitted(with_constant(), penalty=None).plot()
    rings = next(line for line in ax.lines if line.get_label() == "no finite interval")
    np.testing.assert_array_equal(rings.get_ydata(), [0, 4, 5])


def test_of_many_coefficients_the_largest_effects_are_shown_as_many_as_fit():
    rows = wide(1000)
    model = fitted(rows, rows[:, 7] + rows[:, 499] + np.random.default_rng(5).normal(size=1000))
    assert len(model.plot().get_yticks()) == 30 and "of 500" in model.plot().get_xlabel()
    shown = [label.get_text() for label in model.plot(top=2).get_yticklabels()]
    assert shown == ["x7", "x499"]
    small = Figure(figsize=(3, 2)).subplots()
    assert 3 <= len(model.plot(small).get_yticks()) <= 12


def test_names_are_shown_as_they_are_or_by_number():
    labels = [label.get_text() for label in fitted(frame()).plot().get_yticklabels()]
    assert labels[0] == "<b>bold</b>" and labels[2:5] == ["C(g)[T.b]:x", "$x^2$", "coefficient 5"]
    assert "…" in labels[1] and labels[5] == "coefficient 6"


def test_the_parameters_of_a_function_are_not_called_by_columns():
    frame = pd.DataFrame({"time": X[:, 0], "dose": X[:, 1]})
    model = fitted(frame, function=lambda t, x: t[0] * x[0] + t[1] * x[1] + t[2], start=np.zeros(3))
    assert [label.get_text() for label in model.plot().get_yticklabels()] == ["theta[0]", "theta[1]", "theta[2]"]
    assert model.summary().names == ["theta[0]", "theta[1]", "theta[2]"]


def test_several_targets_have_their_own_colours_and_may_be_chosen():
    model = fitted(y=np.column_stack([Y, 2 * Y, -Y]))
    assert [text.get_text() for text in model.plot().get_legend().get_texts()] == ["y0", "y1", "y2"]
    ax = model.plot(targets=[2])
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), model.coef_[2])
    many = fitted(y=np.column_stack([Y] * 8))
    with pytest.raises(ValueError, match="At most 7 of the 8 targets can be told apart in a plot: choose with targets"):
        many.plot()
    assert many.plot(targets=range(7)).has_data()
    with pytest.raises(ValueError, match=re.escape("from 0 to 2; got [3]")):
        model.plot(targets=[3])


def test_a_path_marks_the_best_alpha_and_that_of_the_model():
    model = fitted(pd.DataFrame(X, columns=list("abcd")), penalty="l1", alpha=7.0)
    path = model.path()
    ax = path.plot()
    assert path.names == list("abcd") and path.alpha == 7.0 and path.criterion == "-BIC/2"
    marked = {line.get_label(): line.get_xdata()[0] for line in ax.lines if len(set(line.get_xdata())) == 1}
    assert marked["alpha of the model: 7"] == 7.0
    assert path.alphas[path.score.argmax()] in marked.values()
    drawn = next(line for line in ax.lines if line.get_label() == "b")
    np.testing.assert_array_equal(drawn.get_ydata(), path.coef[::-1, 1])


def test_a_path_is_still_a_tuple_of_five_and_survives_pickle_and_copies():
    import copy
    import pickle

    path = fitted().path([1.0, 2.0])
    alphas, coef, intercept, edf, score = path
    assert path._fields == ("alphas", "coef", "intercept", "edf", "score") and alphas is path.alphas
    assert coef.shape == (2, 4) and intercept.shape == edf.shape == score.shape == (2,)
    for again in (pickle.loads(pickle.dumps(path)), copy.deepcopy(path)):
        assert type(again) is type(path) and again.names == ["x0", "x1", "x2", "x3"] and again.alpha == 1.0
        np.testing.assert_array_equal(again.coef, path.coef)


def test_the_coverage_drawn_is_counted_at_every_tenth_and_the_levels():
    from scipy import stats

    y = np.random.default_rng(5).normal(size=5000)
    calibration = kp.Calibration().update(np.zeros(5000), np.ones(5000), y)
    ax = calibration.plot()
    line = next(line for line in ax.lines if line.get_label() == "observed")
    levels = np.array([*np.arange(1, 10) / 10, 0.95])
    np.testing.assert_allclose(line.get_xdata(), levels, rtol=1e-12)
    counted = [(np.abs(y) <= stats.norm.ppf((1 + level) / 2)).mean() for level in levels]
    np.testing.assert_allclose(line.get_ydata(), counted, rtol=1e-10)


def test_a_second_calibration_on_the_same_axes_has_another_colour():
    one, other = fitted().diagnostics_, fitted(noise=0.1).diagnostics_
    for kind in ("coverage", "pit", "stream"):
        ax = other.plot(one.plot(kind=kind, label="one"), kind=kind, label="other")
        handles, labels = ax.get_legend_handles_labels()
        assert sum("one" in label for label in labels) == sum("other" in label for label in labels) > 0
        colours = [
            str(handle.get_color() if hasattr(handle, "get_color") else handle[0].get_facecolor()
            if hasattr(handle, "patches") else handle.get_edgecolor())
            for handle, label in zip(handles, labels, strict=True) if label != "calibrated"
        ]  # fmt: skip
        assert len(set(colours)) == len(colours)


def test_the_stream_shows_where_the_errors_grow():
    y = np.random.default_rng(4).normal(size=4096) * np.repeat([1.0, 2.0], 2048)  # 16 segments of 256 rows
    ax = kp.Calibration().update(np.zeros(4096), np.ones(4096), y).plot(kind="stream")
    size = next(line for line in ax.lines if line.get_label() == "size of the errors").get_ydata()
    # a mean of 256 has a standard deviation of 0.047, relative to what is expected
    assert len(size) == 16 and (np.abs(size[:8] - 1) < 4 * 0.047).all() and (size[8:] > 1.94 - 8 * 0.047).all()


def test_a_run_draws_its_means_its_bands_and_its_error():
    out = ran()
    ax = out.plot(truth=np.ones(4), coefs=[2])
    line = next(line for line in ax.lines if line.get_label() == "theta[2]")
    np.testing.assert_array_equal(line.get_ydata(), out.trace.mean[:, 2])
    band = ax.collections[0].get_paths()[0].vertices
    assert np.isclose(band[:, 1].max(), (out.trace.mean + 1.959964 * out.trace.var**0.5)[:, 2].max(), rtol=1e-6)
    error = out.plot(kind="error", truth=np.ones(4)).lines[0].get_ydata()
    np.testing.assert_allclose(error, np.linalg.norm(out.trace.mean - 1, axis=1) / 2, rtol=1e-12)


def test_directions_name_what_is_collinear_one_by_one():
    columns = np.column_stack([X, X[:, 0], X[:, 1] + 1e-3 * np.random.default_rng(5).normal(size=N), np.full(N, 2.0)])
    names = ["a", "b", "c", "d", "a2", "b2", "const"]
    info = information(columns).centered()
    ax = info.plot(names=names)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert set(labels[:2]) == {"const", "a − a2"} and labels[2] == "b − b2"
    crosses = next(line for line in ax.lines if line.get_label() == "not determined by the rows")
    np.testing.assert_array_equal(crosses.get_ydata(), [0, 1])
    bars = np.array([bar.get_width() for bar in ax.patches])
    correlations = np.corrcoef(columns[:, :6].T)
    np.testing.assert_allclose(bars, np.linalg.eigvalsh(correlations)[1:], rtol=1e-6)


def test_directions_of_jax_arrays_are_those_of_numpy():
    import jax.numpy as jnp

    info = kp.Information.from_rows(jnp.asarray(X, jnp.float32), jnp.asarray(Y, jnp.float32))
    bars = [[bar.get_width() for bar in one.plot().patches] for one in (info, information())]
    np.testing.assert_allclose(*bars, rtol=1e-4)


@pytest.mark.parametrize(
    ("plot", "error", "message"),
    [
        (lambda: KalproxRegressor(penalty="ridge").plot(), Exception, "not fitted yet"),
        (lambda: fitted().plot(Figure()), TypeError, "ax must be axes of matplotlib, .* got Figure"),
        (lambda: fitted().plot(np.zeros(2)), TypeError, "ax must be axes of matplotlib, .* got ndarray"),
        (lambda: fitted().plot(level=95), ValueError, "level must"),
        (lambda: fitted().plot(top=0), ValueError, "top must be at least 1; got 0"),
        (lambda: fitted(penalty="l1").path([0.0]).plot(), ValueError, "needs an alpha above 0"),
        (lambda: fitted().path().plot(kind="edf"), ValueError, "kind must be 'coef' or 'score'; got 'edf'"),
        (lambda: fitted(y=np.column_stack([Y, Y])).path().plot(), ValueError, "which of the 2 targets"),
        (lambda: kp.Calibration().plot(), ValueError, "no scored rows to plot"),
        (lambda: fitted(diagnose=False).diagnostics_.plot(), ValueError, "no scored rows to plot: not judged, because"),
        (lambda: fitted().diagnostics_.plot(kind="qq"), ValueError, "kind must be 'coverage', 'pit' or 'stream'"),
        (lambda: ran().plot(kind="error"), ValueError, "needs the true coefficients: give truth"),
        (lambda: ran().plot(truth=np.ones(3)), ValueError, r"shape of the estimates, \(4,\); got \(3,\)"),
        (lambda: ran().plot(coefs=[4]), ValueError, "numbers from 0 to 3; got"),
        (lambda: ran(60).plot(coefs=range(8)), ValueError, "coefs must be 1 to 7 numbers"),
        (lambda: ran().plot(names=["a"]), ValueError, "each of the 4 coefficients; got 1"),
        (lambda: kp.Information.zero(3).plot(), ValueError, "information is that of no rows"),
        (lambda: information().plot(names=["a"]), ValueError, "each of the 4 coefficients; got 1"),
        (lambda: refined().plot(names=["a"]), ValueError, "each of the 2 parameters; got 1"),
    ],
)
def test_what_cannot_be_drawn_is_a_clear_error_and_leaves_no_figure(plot, error, message):
    before = plt.get_fignums()
    with pytest.raises(error, match=message):
        plot()
    assert plt.get_fignums() == before


@pytest.mark.slow
@pytest.mark.integration
def test_without_matplotlib_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import numpy as np; from kalprox import KalproxRegressor\n"
        "model = KalproxRegressor().fit(np.eye(3), np.arange(3.0))\n"
        "try: model.plot()\n"
        'except ImportError as error: assert "pip install \\"kalprox[report]\\"" in str(error), error\n'
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
