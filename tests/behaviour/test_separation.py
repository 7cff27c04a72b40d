"""Separated classes, and levels whose counts are all zero: without a penalty there is no estimate, and that is said."""

import warnings

import numpy as np
import pytest
from scipy.optimize import linprog
from sklearn.datasets import load_wine

from kalprox import KalproxClassifier, KalproxRegressor

SAID = "complete or quasi-complete separation"


def wine():
    """Three classes of wine by four measurements, of which one class is separated."""
    X, y = load_wine(return_X_y=True)
    return X[:, [0, 6, 9, 12]], y


def level_without_events(n, seed):
    """A column that is 1 in a tenth of the rows, another one, and which rows can have an event."""
    rng = np.random.default_rng(seed)
    level = rng.random(n) < 0.1
    return np.column_stack([level, rng.normal(size=n)]), ~level, rng


def two_classes(n=500, seed=11):
    X, other, rng = level_without_events(n, seed)
    return X, ((rng.random(n) < 0.4) & other).astype(int)


def three_classes(n=500, seed=12):
    X, other, rng = level_without_events(n, seed)
    return X, np.where(other, rng.integers(0, 3, n), 2)


def counts(n=500, seed=13):
    X, other, rng = level_without_events(n, seed)
    return X, (rng.poisson(1.5, n) * other).astype(float)


def one_class_apart(n=600, seed=14):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    X = rng.normal(size=(n, 2)) + np.column_stack([8 * (y == 1), y == 2])
    return X, y


CLASSES = [wine, two_classes, three_classes, one_class_apart]


def model_of(data, **parameters):
    return KalproxRegressor(likelihood="poisson", **parameters) if data is counts else KalproxClassifier(**parameters)


@pytest.mark.parametrize("data", [*CLASSES, counts])
def test_a_fit_without_a_minimum_has_not_converged(data):
    X, y = data()
    with pytest.warns(UserWarning, match=SAID) as said:
        model = model_of(data, penalty=None).fit(X, y)
    assert "penalty='ridge'" in str(said[0].message)
    assert not model.converged_
    assert model_of(data).fit(X, y).converged_  # the ridge of the default has a minimum


def test_a_likelihood_that_learns_its_dispersion_says_it_too():
    X, y = counts()
    with pytest.warns(UserWarning, match=SAID):
        model = KalproxRegressor(likelihood="negative-binomial", penalty=None).fit(X, y)
    assert not model.converged_


def test_without_an_intercept_columns_of_few_rows_are_not_overlooked():
    X, y = two_classes()
    with pytest.warns(UserWarning, match=SAID):
        model = KalproxClassifier(penalty=None, fit_intercept=False).fit(np.column_stack([X, 1 - X[:, 0]]), y)
    assert not model.converged_


def is_separated(X, y):
    """Whether a linear program finds a direction along which no row loses against another class, and some row gains."""
    Z, m = np.column_stack([np.ones(len(X)), X / X.std(axis=0)]), y.max() + 1
    gains = []
    for z, own in zip(Z, y, strict=True):
        for other in set(range(m)) - {own}:
            gain = np.zeros((m, Z.shape[1]))
            gain[own], gain[other] = z, -z
            gains.append(gain.ravel())
    A = np.array(gains)
    found = linprog(-A.sum(axis=0), A_ub=-A, b_ub=np.zeros(len(A)), bounds=[(-1, 1)] * A.shape[1])
    return -found.fun > 1e-7


@pytest.mark.slow
def test_a_linear_program_finds_the_same_data_separated():
    rng, found = np.random.default_rng(815), []
    for _ in range(25):
        n, d, m = rng.integers(25, 40), rng.integers(1, 3), rng.integers(2, 4)
        X = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-3, 4, d)
        X[:, 0] = X[:, 0] > 0
        size = rng.choice([0.5, 2.0, 6.0])
        y = (size * X / X.std(axis=0) @ rng.normal(size=(d, m)) + rng.gumbel(size=(n, m))).argmax(axis=1)
        y = np.unique(y, return_inverse=True)[1]
        if y.max() == 0:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            converged = KalproxClassifier(penalty=None).fit(X, y).converged_
        found.append(is_separated(X, y))
        assert converged is not found[-1]
    assert 4 < sum(found) < len(found) - 4


def streamed(model, X, y, batch):
    first = {} if isinstance(model, KalproxRegressor) else {"classes": np.unique(y)}
    for i in range(0, len(y), batch):
        model.partial_fit(X[i : i + batch], y[i : i + batch], **(first if i == 0 else {}))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("data", [two_classes, one_class_apart, counts])
def test_a_stream_says_that_its_prior_decides(data, tmp_path):
    X, y = data()
    with pytest.warns(RuntimeWarning, match=SAID):
        model = streamed(model_of(data, penalty=None), X, y, 60)
    assert not model.converged_ and SAID in " ".join(str(model.summary()).split())
    model.save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not type(model).load(tmp_path / "model").converged_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert streamed(model_of(data), X, y, 60).converged_


def test_streams_that_are_not_separated_converge():
    """Rare events, columns that are nearly collinear, a constant one, and a class that has not come yet."""
    rng = np.random.default_rng(16)
    X = rng.normal(size=(600, 3))
    X[:, 1] = X[:, 0] + 0.01 * X[:, 1]
    X[:, 2] = 3.0
    rare = np.arange(600) % 60 == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert streamed(KalproxClassifier(penalty=None), X, rare.astype(int), 60).converged_
        model = KalproxClassifier(penalty=None)
        for i in range(0, 600, 60):
            model.partial_fit(X[i : i + 60, :1], rare[i : i + 60].astype(int), classes=[0, 1, 2])
