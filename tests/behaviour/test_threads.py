"""One estimator used by several threads: no row is lost, and every reading is that of one moment."""

import pickle
import sys
import threading

import numpy as np
import pytest

from kalprox import KalproxRegressor


@pytest.fixture(autouse=True)
def _switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*tasks):
    """Run tasks in threads that start at once; raise the first error of any."""
    errors, barrier = [], threading.Barrier(len(tasks))

    def run(task):
        barrier.wait()
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def learning(model, X, y, size=1):
    def task():
        for i in range(0, len(X), size):
            model.partial_fit(X[i : i + size], y[i : i + size])

    return task


def rows(n, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X @ np.arange(1.0, 1 + d) + rng.normal(size=n)


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("diagnose", [True, False])
def test_no_row_is_lost(size, diagnose):
    X, y = rows(20_000 if size == 1 and not diagnose else 5_000)
    model = KalproxRegressor(penalty=None, diagnose=diagnose)
    parts = np.array_split(np.arange(len(X)), 4)
    together(*(learning(model, X[part], y[part], size) for part in parts))
    whole = KalproxRegressor(penalty=None).fit(X, y)
    assert model.n_rows_seen_ == len(X)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-10)
    np.testing.assert_allclose(model.coef_std_, whole.coef_std_, rtol=1e-10)
    if diagnose:
        score = model.diagnostics_
        assert float(score.rows + score.undetermined) == len(X)


def test_a_nonlinear_model_loses_no_row():
    X, y = rows(400)
    y = np.tanh(y / 4)
    model = KalproxRegressor(link="tanh", noise=0.1, penalty="ridge")
    together(*(learning(model, X[i::4], y[i::4], 10) for i in range(4)))
    assert model.n_rows_seen_ == 400 and np.isfinite(model.coef_).all()


@pytest.mark.parametrize("rows", [700, pytest.param(3000, marks=pytest.mark.slow)])
def test_readings_are_those_of_one_moment(rows, tmp_path):
    """All rows have y = x: whatever rows have been learned, the readings must say so, and the counts must agree."""
    X = np.random.default_rng(0).normal(size=(rows, 2))
    y = X.sum(axis=1)
    model = KalproxRegressor(penalty=None, noise=1.0).fit(X[:50], y[:50])
    done = threading.Event()

    def learn():
        try:
            learning(model, X[50:], y[50:])()
        finally:
            done.set()

    def until_done(read):
        def task():
            while not done.is_set():
                read()

        return task

    def predict():
        for n in (1, 5, 300):
            mean, std = model.predict(X[:n], return_std=True)
            np.testing.assert_allclose(mean, y[:n], rtol=1e-9, atol=1e-12)
            assert ((std >= 1) & (std < 1.2)).all()
        low, high = model.predict_interval(X[:3], 0.9)
        np.testing.assert_allclose((low + high) / 2, y[:3], rtol=1e-9, atol=1e-12)

    def save():
        model.save(tmp_path / "model")
        for again in (KalproxRegressor.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
            np.testing.assert_allclose(again.coef_, 1, rtol=1e-9)
            score = again.diagnostics_
            assert float(score.rows + score.undetermined) == again.n_rows_seen_

    def read():
        np.testing.assert_allclose(model.coef_, 1, rtol=1e-9)
        assert model.diagnostics_.rows <= model.n_rows_seen_

    together(learn, until_done(predict), until_done(save), until_done(read))
    assert model.n_rows_seen_ == rows


def test_two_models_can_be_merged_into_each_other_at_once():
    X, y = rows(200)
    a, b = (KalproxRegressor(penalty="ridge").fit(X[some], y[some]) for some in (slice(0, 100), slice(100, 200)))
    together(*[lambda: a.merge(b, allow_overlap=True), lambda: b.merge(a, allow_overlap=True)])
    assert min(a.n_rows_seen_, b.n_rows_seen_) == 200
