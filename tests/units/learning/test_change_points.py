"""Change points of the estimators: what is found, in which rows, whatever the batches, and on streams of all kinds."""

import pickle

import numpy as np
import pytest
from scipy import stats

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.forgetting import ByTime
from kalprox.learning.change_points import MOST_COLUMNS, ChangeDetector
from kalprox.learning.facts import headline
from kalprox.learning.learner import Learner
from kalprox.learning.saving import n_held
from kalprox.learning.settings import Settings
from kalprox.learning.step import Call
from kalprox.sources import Block


def stream(seed=0, n=900, d=3, jump=3.0, at=600):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = 1 + X @ rng.normal(size=d) + rng.normal(size=n)
    y[at:] += jump
    return X, y


@pytest.fixture(scope="module")
def fitted():
    return KalproxRegressor(change_points=True, penalty="ridge").fit(*stream())


def test_a_jump_is_reported_once_where_it_is(fitted):
    (point,) = fitted.change_points_
    assert 601 <= point.row <= 610
    assert abs(point.start - 601) <= 2
    assert 0.99 <= point.probability <= 1
    assert point.time is None
    changes = fitted.diagnostics_.changes
    assert (changes.found, changes.kind) == (1, "coefficients")
    assert changes.probability < 0.5
    assert f"from row {point.start} on" in str(changes)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 7, 250])
def test_batches_do_not_matter(fitted, size):
    X, y = stream()
    model = KalproxRegressor(change_points=True, penalty="ridge")
    for i in range(0, len(X), size):
        model.partial_fit(X[i : i + size], y[i : i + size])
    assert model.change_points_ == fitted.change_points_
    assert model.diagnostics_.changes == fitted.diagnostics_.changes


def test_neither_does_reading_saving_pickling_or_the_model(fitted, tmp_path):
    X, y = stream()
    model = KalproxRegressor(change_points=True, forget=0.99, penalty="l1", alpha=3.0)
    for i in range(len(X)):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
        if i % 97 == 0:
            assert model.diagnostics_.changes.found == (i > 604)
        if i in (20, 300, 601):
            model.save(tmp_path / "model.kalprox")
            model = KalproxRegressor.load(tmp_path / "model.kalprox")
        if i == 602:
            model = pickle.loads(pickle.dumps(model))
    assert model.diagnostics_.changes == fitted.diagnostics_.changes


def test_a_change_of_coefficients_that_moves_no_mean_is_found():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(800, 3))
    y = X @ [1.0, 1.0, 1.0] + rng.normal(size=800)
    y[500:] -= 2 * X[500:, 1]
    (point,) = KalproxRegressor(change_points=True, penalty="ridge").fit(X, y).change_points_
    assert 500 < point.row < 540


@pytest.mark.parametrize("factor", [3.0, 0.25])
def test_a_change_of_the_noise_is_found(factor):
    rng = np.random.default_rng(2)
    X, noise = rng.normal(size=(800, 2)), rng.normal(size=800)
    noise[500:] *= factor
    (point,) = KalproxRegressor(change_points=True, penalty="ridge").fit(X, X @ [1.0, 2.0] + noise).change_points_
    assert 500 < point.row < 550


# ---- difficult streams -----------------------------------------------------------------------------------


def _difficult(name):
    rng = np.random.default_rng(4)
    n, d = 400, 3
    X, noise = rng.normal(size=(n, d)), rng.normal(size=n)
    if name == "constant target":
        return X, np.full(n, 7.0)
    if name == "no noise":
        return X, X.sum(axis=1)
    if name == "dead column":
        X[:, 1] = 5.0
    if name == "column that wakes up":
        X[:200, 1] = 0.0
        X[200:, 1] *= 1e3
    if name == "collinear":
        X[:, 2] = X[:, 0] + X[:, 1]
    if name == "sorted":
        X = np.sort(X, axis=0)
    if name == "far from zero":
        X += 1e6
    if name == "enormous and tiny":
        return X * [1e30, 1e-30, 1.0], 1e40 * noise
    if name == "one outlier":
        noise[300] = 1e6
    if name == "outliers among the first rows":
        noise[[5, 20]] *= 50
    if name == "correlated errors":
        for i in range(1, n):
            noise[i] += 0.5 * noise[i - 1]
    return X, X @ [1.0, -1.0, 0.5] + noise


@pytest.mark.parametrize(
    "name",
    [
        "constant target",
        "no noise",
        "dead column",
        "column that wakes up",
        "collinear",
        "sorted",
        "far from zero",
        "enormous and tiny",
        "one outlier",
        "outliers among the first rows",
        "correlated errors",
    ],
)
def test_streams_without_a_change_have_none(name):
    X, y = _difficult(name)
    model = KalproxRegressor(change_points=True, penalty="ridge").partial_fit(X[:1], y[:1])  # one row first
    model.partial_fit(X[1:], y[1:])
    assert model.change_points_ == []
    assert 0 <= model.diagnostics_.changes.probability < 0.99


def test_more_columns_than_rows():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, MOST_COLUMNS)), rng.normal(size=60)
    model = KalproxRegressor(change_points=True, penalty="ridge").fit(X, y)
    assert model.change_points_ == []
    assert str(model.diagnostics_.changes) == "Too few rows were learned to look for change points."


def test_a_step_of_a_constant_target_is_found():
    y = np.repeat([5.0, 6.0], 100)
    (point,) = KalproxRegressor(change_points=True, penalty="ridge").fit(np.zeros((200, 1)), y).change_points_
    assert (point.start, point.row) == (101, 102)


@pytest.mark.parametrize("size", [20.0, 1e3])
@pytest.mark.parametrize("what", ["level", "coefficient", "noise"])
def test_a_change_however_large_is_one_change(what, size):
    """What a new run cannot know is not taken for noise, which would seem to fall again later."""
    rng = np.random.default_rng(12)
    X, changed = rng.normal(size=(600, 4)), np.arange(600) >= 400
    noise = rng.normal(size=600) * np.where(changed & (what == "noise"), size, 1.0)
    y = X.sum(axis=1) + noise + size * changed * {"level": 1.0, "coefficient": X[:, 1], "noise": 0.0}[what]
    (point,) = KalproxRegressor(change_points=True, penalty="ridge").fit(X, y).change_points_
    assert 401 <= point.start <= 403
    assert point.row <= 408


def test_false_alarms_are_within_the_promise():
    """At most once in 99 times the expected run length, on average: here 2 in 2,000 rows."""
    rng, rows, expected = np.random.default_rng(7), 2000, 10
    X = rng.normal(size=(rows, 2))
    model = KalproxRegressor(change_points=expected, penalty="ridge").fit(X, X[:, 0] + rng.normal(size=rows))
    assert model.diagnostics_.changes.found <= stats.poisson(rows / (99 * expected)).ppf(0.999)


@pytest.mark.slow
def test_hundred_thousand_still_rows():
    rng, rows = np.random.default_rng(8), 100_000
    X = rng.normal(size=(rows, 4))
    model = KalproxRegressor(change_points=True, penalty="ridge").fit(
        X, X @ [1.0, 0.0, 2.0, -1.0] + rng.normal(size=rows)
    )
    assert model.diagnostics_.changes.found <= stats.poisson(rows / (99 * 1000)).ppf(0.999)


# ---- other models ----------------------------------------------------------------------------------------


def _learned(model, X, y, size=50, **options):
    for i in range(0, len(X), size):
        model.partial_fit(X[i : i + size], y[i : i + size], **options)
    return model


@pytest.mark.parametrize(
    "settings",
    [{"likelihood": "poisson"}, pytest.param({"likelihood": "huber"}, marks=pytest.mark.slow), {"link": "sigmoid"}],
)
def test_nonlinear_models_find_a_change_of_level(settings):
    rng = np.random.default_rng(9)
    X = rng.normal(size=(1200, 2))
    f = 0.5 * X[:, 0] + (np.arange(1200) >= 700)
    if settings.get("likelihood") == "poisson":
        y = rng.poisson(np.exp(f)).astype(float)
    else:
        y = 1 / (1 + np.exp(-f)) + 0.05 * rng.normal(size=1200)
    model = _learned(KalproxRegressor(change_points=True, **({"penalty": "ridge"} | settings)), X, y)
    assert model.diagnostics_.changes.kind == "residuals"
    (point,) = model.change_points_  # though the model goes on adapting to the change
    assert 700 < point.row < 740


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 100])
def test_two_classes_find_a_change_of_their_shares(size):
    rng = np.random.default_rng(10)
    X = rng.normal(size=(1200, 2))
    y = rng.random(1200) < 1 / (1 + np.exp(-X[:, 0] + 2 * (np.arange(1200) >= 600)))
    model = _learned(KalproxClassifier(change_points=True), X, y, size, classes=[False, True])
    (point,) = model.change_points_
    assert 600 < point.row < 700


def test_many_columns_use_the_residuals(tmp_path):
    X, y = stream(d=MOST_COLUMNS + 1, n=1500, at=1000)
    model = _learned(KalproxRegressor(change_points=True, penalty="ridge"), X[:1200], y[:1200])
    model.save(tmp_path / "model.kalprox")
    again = KalproxRegressor.load(tmp_path / "model.kalprox")
    for one in (model, again):
        _learned(one, X[1200:], y[1200:])
        assert one.diagnostics_.changes.kind == "residuals"
        (point,) = one.change_points_
        assert 1000 < point.row < 1015
    assert again.diagnostics_.changes == model.diagnostics_.changes


def test_rows_of_weight_zero_are_no_rows_and_weights_count():
    X, y = stream()
    weights = np.ones(len(X))
    weights[::3] = 0.0
    model = KalproxRegressor(change_points=True, penalty="ridge").fit(X, y, sample_weight=weights)
    other = KalproxRegressor(change_points=True, penalty="ridge").fit(X[weights > 0], y[weights > 0])
    assert model.change_points_ == other.change_points_
    precise = KalproxRegressor(change_points=True, weight_kind="precision", penalty="ridge").fit(
        X, y, sample_weight=np.full(len(X), 4.0)
    )
    (point,) = precise.change_points_
    assert abs(point.start - 601) <= 2


def test_rows_with_missing_values_only_count():
    X, y = stream()
    X[[3, 100, 599], 0], y[[7, 601]] = np.nan, np.nan
    settings = Settings.of(change_points=True)
    learner = Learner(settings)
    learner.learn(Block(*stream(n=50)))
    for sizes in ([900], [10, 300, 590]):
        detector, i = ChangeDetector.start(settings, 3, 0), 0
        for size in sizes:
            detector, i = detector.after(Block(X[i : i + size], y[i : i + size]), learner.belief), i + size
        (point,) = detector.changes.points
        assert 600 <= point.start <= 603
        assert detector.rows == 900


# ---- what is kept and said -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_last_hundred_are_kept_and_all_are_counted():
    rng = np.random.default_rng(11)
    y = np.repeat(np.arange(110) % 2 * 50.0, 40) + rng.normal(size=4400)
    model = KalproxRegressor(change_points=40, penalty="ridge").fit(np.zeros((4400, 1)), y)
    changes = model.diagnostics_.changes
    assert changes.found == 109
    assert len(changes.points) == len(model.change_points_) == 100
    assert "the last 5 of them" in str(changes)
    assert changes.points[-1].start == 4361


def test_the_headline_says_what_to_do(fitted):
    lines = {line.label: line for line in headline(fitted._learner, ["a", "b", "c"]).lines}
    assert lines["Changes"].doubt
    assert "1 change point was found: from row 60" in lines["Changes"].text
    assert 'forget="auto"' in lines["Changes"].text
    assert "change points" in fitted.summary().facts
    model = KalproxRegressor(change_points=True, forget=0.99, penalty="ridge").fit(*stream())
    assert not {line.label: line for line in headline(model._learner, ["a", "b", "c"]).lines}["Changes"].doubt


def test_what_was_not_looked_for_is_said():
    X, y = stream(n=100, at=100)
    model = KalproxRegressor(penalty="ridge").fit(X, y)
    assert not hasattr(model, "change_points_")
    with pytest.raises(AttributeError, match="set change_points=True"):
        model.change_points_  # noqa: B018
    model = KalproxRegressor(change_points=True, engine="local", penalty="ridge").fit(X, y)
    with pytest.raises(AttributeError, match="in no order"):
        model.change_points_  # noqa: B018
    assert "not looked for" in str(headline(model._learner, ["a", "b", "c"]))


def test_looking_can_begin_and_end_later():
    X, y = stream()
    model = KalproxRegressor(penalty="ridge").partial_fit(X[:300], y[:300]).set_params(change_points=True)
    model.partial_fit(X[300:], y[300:])
    (point,) = model.change_points_
    assert abs(point.start - 601) <= 2
    model.set_params(change_points=False).partial_fit(X, y)
    assert not hasattr(model, "change_points_")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"change_points": 3}, "at least 10, or True or False; got 3"),
        ({"change_points": "yes"}, "got 'yes'"),
        ({"change_points": np.nan}, "got nan"),
        ({"change_points": True, "diagnose": False}, "needs diagnose=True"),
        ({"change_points": True, "function": lambda theta, x: x @ theta, "start": np.zeros(2)}, "a link by its name"),
        ({"change_points": True, "likelihood": "categorical"}, "two classes"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        Settings.of(**settings)


def test_several_targets_and_merging_are_refused():
    X, y = stream(n=100, at=100)
    with pytest.raises(ValueError, match="one model per target"):
        KalproxRegressor(change_points=True, penalty="ridge").fit(X, np.column_stack([y, y]))
    one, other = (
        KalproxRegressor(change_points=True, penalty="ridge").fit(X[rows], y[rows])
        for rows in (slice(50), slice(50, 100))
    )
    with pytest.raises(ValueError, match="merge needs change_points=False"):
        one.merge(other)


def test_rows_that_are_held_can_be_released():
    X, y = stream(n=200, at=200)
    learner = Learner(Settings.of(change_points=True))
    learner.learn(Block(X[:20], y[:20]), call=Call(in_turn=True))
    assert n_held(learner) == 20
    learner.release_rows()
    assert n_held(learner) == 0
    learner.learn(Block(X[20:], y[20:]), call=Call(in_turn=True))
    detector = learner.stream.tracking.detector
    assert detector.rows == 200
    assert detector.runs.rows == 200


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 300])
def test_times_of_rows_are_reported(size, tmp_path):
    X, y = stream()
    times = np.cumsum(np.random.default_rng(0).exponential(60.0, size=len(X)))
    model = KalproxRegressor(change_points=True, forget=ByTime(1e5), penalty="ridge")
    for i in range(0, len(X), size):
        model.partial_fit(X[i : i + size], y[i : i + size], times=times[i : i + size])
    (point,) = model.change_points_
    assert (point.time, point.start_time) == (times[point.row - 1], times[point.start - 1])
    model.save(tmp_path / "model.kalprox")
    assert KalproxRegressor.load(tmp_path / "model.kalprox").change_points_ == [point]
