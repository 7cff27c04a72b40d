"""Kinds of forgetting as users of the estimators meet them: times, model files, mistakes, and dead features."""

from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from drifting import least_squares, stream
from sklearn.base import clone

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.forgetting import ByRow, ByTime, RandomWalk, Window

KINDS = [ByRow(0.99), ByTime(50.0), Window(64), RandomWalk(1e-3), RandomWalk((1e-3, 0, 0), 0.1)]
NAMES = [f"{type(kind).__name__}{i}" for i, kind in enumerate(KINDS)]


def batches(kind, X, y, times, length, start=0):
    for i in range(start, len(y), length):
        some = slice(i, i + length)
        yield X[some], y[some], {"times": times[some]} if isinstance(kind, ByTime) else {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.parametrize("length", [1, 13])
def test_a_model_that_was_saved_on_the_way_continues_bit_for_bit(kind, length, tmp_path):
    X, y, times = stream(104)
    whole = KalproxRegressor(forget=kind, penalty="ridge")
    for i, (some, targets, at) in enumerate(batches(kind, X, y, times, length)):
        whole.partial_fit(some, targets, **at)
        if (i + 1) * length == 78:
            whole.save(tmp_path / "half.kalprox")
    half = KalproxRegressor.load(tmp_path / "half.kalprox")
    assert half.forget == kind
    for some, targets, at in batches(kind, X, y, times, length, 78):
        half.partial_fit(some, targets, **at)
    for name in ("coef_", "coef_std_", "noise_var_", "n_rows_seen_"):
        np.testing.assert_array_equal(getattr(half, name), getattr(whole, name))
    assert half.diagnostics_.nis == whole.diagnostics_.nis
    np.testing.assert_array_equal(half.predict(X[:4], return_std=True), whole.predict(X[:4], return_std=True))
    half.save(tmp_path / "again.kalprox")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_fit_is_partial_fit_and_says_how_it_forgets(kind):
    X, y, times = stream(120)
    at = {"times": times} if isinstance(kind, ByTime) else {}
    fitted = clone(KalproxRegressor(forget=kind, penalty="ridge")).fit(X, y, **at)
    stepwise = KalproxRegressor(forget=kind, penalty="ridge")
    for some, targets, more in batches(kind, X, y, times, 40):
        stepwise.partial_fit(some, targets, **more)
    np.testing.assert_allclose(fitted.coef_, stepwise.coef_, rtol=1e-9)
    assert kind.describe() in " ".join(str(fitted.summary()).split())
    mean, std = KalproxRegressor(forget=kind, penalty="ridge").prequential(X, y, **at)
    assert np.isfinite(mean[10:]).all() and (std[10:] > 0).all()
    with pytest.raises(ValueError, match="merge needs forget=1"):
        fitted.merge(stepwise)


def test_times_may_be_dates_and_one_for_a_batch():
    X, y, _ = stream(40)
    days = np.repeat(np.arange(4.0), 10)
    dates = np.datetime64("2026-01-01") + (days * 24).astype("timedelta64[h]")
    expected = KalproxRegressor(forget=ByTime(2.0), penalty="ridge").fit(X, y, times=days).coef_
    first = datetime(2026, 1, 1)
    for times in (dates, pd.Series(dates), pd.to_datetime(dates).tz_localize("UTC"), dates.astype(str)):
        model = KalproxRegressor(forget=ByTime(timedelta(days=2)), penalty="ridge").fit(X, y, times=times)
        np.testing.assert_allclose(model.coef_, expected, rtol=1e-12)
    model = KalproxRegressor(forget=ByTime(timedelta(days=2)), penalty="ridge")
    for day in range(4):
        some = slice(10 * day, 10 * day + 10)
        model.partial_fit(X[some], y[some], times=first + timedelta(days=day))
    np.testing.assert_allclose(model.coef_, expected, rtol=1e-12)
    stds = [model.predict(X[:1], return_std=True, time=t)[1][0] for t in (None, "2026-01-05", first + timedelta(30))]
    assert stds[0] < stds[1] < stds[2]
    low, high = model.predict_interval(X[:1], time="2026-02-01")
    assert high - low > 4 * stds[0]


def test_a_classifier_forgets_by_time():
    X, y, times = stream(300)
    model = KalproxClassifier(forget=ByTime(50.0)).fit(X, y > 2, times=times)
    streamed = KalproxClassifier(forget=ByTime(500.0))
    for i in range(0, 300, 60):
        some = slice(i, i + 60)
        streamed.partial_fit(X[some], y[some] > 2, classes=[False, True], times=times[some])
    now, later = (model.predict_proba(X[:1], return_std=True, time=times[-1] + t) for t in (0, 500))
    assert abs(later[0][0, 0] - 0.5) < abs(now[0][0, 0] - 0.5) and later[1][0, 0] > now[1][0, 0]
    assert model.predict(X[:2], time=times[-1]).shape == (2,)
    proba = streamed.prequential(X[:2], y[:2] > 2, times=times[-1] + np.array([1.0, 30.0]))
    assert proba.shape == (2, 2) and streamed.n_rows_seen_ == 302
    with pytest.raises(ValueError, match=r"forget=Window\(rows=9\) needs .*likelihood='gaussian'"):
        KalproxClassifier(forget=Window(9)).fit(X, y > 2)


def test_mistakes_with_times():
    X, y, times = stream(30)
    model = KalproxRegressor(forget=ByTime(5.0), penalty="ridge")
    with pytest.raises(ValueError, match=r"give times=\.\.\."):
        model.fit(X, y)
    with pytest.raises(ValueError, match=r"row 1: times must not go backwards"):
        model.fit(X, y, times=times[::-1])
    with pytest.raises(ValueError, match=r"have shape \(30,\), one per row of X; got shape \(29,\)"):
        model.fit(X, y, times=times[1:])
    with pytest.raises(ValueError, match="NaN or infinity in 1 row"):
        model.fit(X, y, times=np.where(times == times[3], np.nan, times))
    with pytest.raises(ValueError, match=r"got forget=0\.9"):
        KalproxRegressor(forget=0.9, penalty="ridge").fit(X, y, times=times)
    model.fit(X, y, times=times)
    with pytest.raises(ValueError, match="must not be before that of the last row"):
        model.predict(X, time=0.0)
    with pytest.raises(ValueError, match=r"needs forget=ByTime\(half_life\).*got forget=1\.0"):
        KalproxRegressor(penalty="ridge").fit(X, y).predict(X, time=3.0)
    with pytest.raises(ValueError, match="in their order, and engine=None"):
        KalproxRegressor(forget=ByTime(5.0), engine="local", penalty="ridge").fit(X, y, times=times)


def test_skipped_rows_take_their_times_along():
    X, y, times = stream(30)
    X[7, 1] = np.nan
    good = np.arange(30) != 7
    model = KalproxRegressor(forget=ByTime(5.0), missing="drop", penalty=None).fit(X, y, times=times)
    weights = 0.5 ** ((times[-1] - times[good]) / 5)
    np.testing.assert_allclose(model.coef_, least_squares(X[good], y[good], weights)[1:], rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.parametrize("odd", ["sorted", "constant", "wide", "huge", "one row"])
def test_data_that_was_not_made_for_it(kind, odd):
    rng = np.random.default_rng(0)
    n, d = (1 if odd == "one row" else 60), 40 if odd == "wide" else 3
    kind = RandomWalk(1e-3) if odd == "wide" and isinstance(kind, RandomWalk) else kind
    X = {"constant": np.ones((n, d)), "huge": 1e30 * rng.normal(size=(n, d))}.get(odd, rng.normal(size=(n, d)))
    X = np.sort(X, axis=0) if odd == "sorted" else X
    y = X[:, 0] + (0.0 if odd == "constant" else rng.normal(size=n))
    at = {"times": np.arange(float(n))} if isinstance(kind, ByTime) else {}
    for penalty in (None, "ridge"):
        model = KalproxRegressor(forget=kind, penalty=penalty).fit(X, y, **at)
        assert np.isfinite(model.coef_).all() and np.isfinite(model.predict(X)).all()


def dead(kind, rows, seed=0):
    """Rows with a feature that is zero, or that is twice another one after the first fifty rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    X[:, 1] = 0.0 if kind == "zero" else np.where(np.arange(rows) < 50, X[:, 1], 2 * X[:, 0])
    return X, X @ [1.0, 0.5, -1.0] + 0.5 * rng.normal(size=rows)


LONG = [  # 0.99^75,000 is less than any number
    (0.99, 75_000, 2500),
    (0.99, 1500, 1),
    (ByTime(69.0), 75_000, 2500),
    (ByTime(69.0), 1500, 1),
    (Window(500), 20_000, 700),
    (RandomWalk(1e-4), 20_000, 1000),
    (RandomWalk(0, intercept=1e-3), 20_000, 1000),
]


@pytest.mark.slow
@pytest.mark.parametrize(("forget", "rows", "batch"), LONG)
@pytest.mark.parametrize("penalty", [None, "ridge"])
@pytest.mark.parametrize("feature", ["zero", "rank one"])
def test_nothing_winds_up(feature, penalty, forget, rows, batch):
    """Warnings are errors: a dead direction stays finite and silent, however long nothing is learned about it."""
    X, y = dead(feature, rows)
    scored = not isinstance(forget, (RandomWalk, Window))
    model = KalproxRegressor(forget=forget, penalty=penalty, diagnose=scored)
    for i in range(0, rows, batch):
        at = {"times": np.arange(i, i + batch)[: rows - i]} if isinstance(forget, ByTime) else {}
        model.partial_fit(X[i : i + batch], y[i : i + batch], **at)
    mean, std = model.predict(X[-20:], return_std=True)
    assert np.isfinite(model.coef_).all() and np.isfinite([mean, std]).all()
    truth = X[-20:] @ [1.0, 0.5, -1.0]
    assert np.abs(mean - truth).max() < 0.5 and np.abs(std - 0.5).max() < 0.1
    if scored:
        assert model.diagnostics_.rmse == pytest.approx(0.5, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("feature", ["zero", "rank one"])
@pytest.mark.parametrize("forget", [0.99, ByTime(69.0)])
def test_a_classifier_does_not_wind_up(feature, forget):
    X, y = dead(feature, 80_000)
    model = KalproxClassifier(forget=forget, diagnose=False)
    for i in range(0, len(y), 1000):
        at = {"times": np.arange(i, i + 1000)} if isinstance(forget, ByTime) else {}
        model.partial_fit(X[i : i + 1000], y[i : i + 1000] > 0, classes=[False, True], **at)
    proba, std = model.predict_proba(X[-20:], return_std=True)
    assert np.isfinite(model.coef_).all() and np.isfinite([proba, std]).all()


@pytest.mark.parametrize("penalty", ["ridge", None])
@pytest.mark.parametrize("size", [1, 15, 30])
@pytest.mark.parametrize("gap", [50.0, 400.0, 900.0, 1e300])
def test_after_a_gap_of_any_length_the_model_is_that_of_the_rows_since(gap, size, penalty):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 3))
    y, times = X @ [1.0, 2.0, 3.0] + rng.normal(size=30), np.repeat([0.0, gap], 15)
    model = KalproxRegressor(forget=ByTime(1.0), penalty=penalty)
    for start in range(0, 30, size):
        some = slice(start, start + size)
        model.partial_fit(X[some], y[some], times=times[some])
    expected = KalproxRegressor(penalty=penalty).fit(X[15:], y[15:])
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-12)
    np.testing.assert_allclose(model.coef_std_, expected.coef_std_, rtol=1e-12)
    assert np.isfinite(model.diagnostics_.log_score)
