"""Merged streams of classes and counts: warm-ups are learned together, and the warning says how far off the rest is."""

import re
import warnings

import numpy as np
import pytest

from kalprox import KalproxClassifier, KalproxRegressor


def classes(n, m, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    f = np.column_stack([np.zeros(n)] + [X @ rng.normal(scale=0.7, size=3) for _ in range(m - 1)])
    return X, (f + rng.gumbel(size=f.shape)).argmax(axis=1)


def distance(model, fit):
    """How many standard errors the coefficients are from those of one fit to all rows, at most."""
    return float(np.abs((model.coef_ - fit.coef_) / fit.coef_std_).max())


def said(messages):
    found = [re.search(r"about ([0-9.e+-]+) standard errors", str(one.message)) for one in messages]
    return [float(one[1]) for one in found if one]


@pytest.mark.parametrize("m", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_parts_of_one_class_each_are_learned_together(m):
    X, y = classes(800, m, 31)
    order = np.argsort(y, kind="stable")
    X, y = X[order], y[order]
    parts = [
        KalproxClassifier().partial_fit(X[i : i + 100], y[i : i + 100], classes=range(m)) for i in range(0, 800, 100)
    ]
    model = parts[0]
    for part in parts[1:]:
        model.merge(part)
    assert distance(model, KalproxClassifier().fit(X, y)) < 0.01  # it was up to 4.7, and nothing was said


def test_a_warm_up_of_one_class_that_a_stream_learns_is_said():
    X, y = classes(2600, 2, 32)
    order = np.r_[np.arange(1400), 1400 + np.argsort(y[1400:], kind="stable")][np.r_[0:1400, 2100:2600]]
    X, y = X[order], y[order]
    stream = KalproxClassifier()
    for i in range(0, 1400, 200):
        stream.partial_fit(X[i : i + 200], y[i : i + 200], classes=[0, 1])
    late = KalproxClassifier().partial_fit(X[1400:], y[1400:], classes=[0, 1])
    with pytest.warns(RuntimeWarning, match="come on top of it") as messages:
        stream.merge(late)
    true = distance(stream, KalproxClassifier().fit(X, y))
    assert true / 2 < said(messages)[-1] < 2 * true + 0.1


@pytest.mark.parametrize("penalty", [None, "ridge"])
@pytest.mark.parametrize("noise", [0.01, 0.0])
@pytest.mark.parametrize("counts", [False, True])
def test_collinear_columns_do_not_inflate_the_distance(penalty, noise, counts):
    rng = np.random.default_rng(33)
    X = rng.normal(size=(2000, 3))
    X[:, 2] = X[:, 0] - noise * X[:, 2]
    f = 0.8 * X[:, 1] - 0.4 * X[:, 0]
    y = rng.poisson(np.exp(f)).astype(float) if counts else (f + rng.logistic(size=2000) > 0.5).astype(int)
    make = KalproxRegressor if counts else KalproxClassifier
    about = {"penalty": penalty} | ({"likelihood": "poisson"} if counts else {})
    one, other = (make(**about).fit(X[part], y[part]) for part in (slice(1000), slice(1000, None)))
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        one.merge(other)
    assert not any("invalid value" in str(message.message) for message in messages)
    (found,) = said(messages)
    assert found < 0.2  # it was from 0.1 to 6e11, or nan
    if noise:
        assert abs(found - distance(one, make(**about).fit(X, y))) < 0.1
