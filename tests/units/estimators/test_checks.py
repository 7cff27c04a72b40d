"""Batches whose every weight is zero: nothing is learned, and only a fit raises."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from kalprox import KalproxRegressor
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.sources import ArraySource, Block

MODELS = {
    "exact": {},
    "forget": {"forget": 0.9},
    "auto": {"penalty": "l1", "alpha": "auto"},
    "standardize": {"standardize": True},
    "nonlinear": {"link": "tanh"},
    "nonlinear-forget": {"link": "tanh", "forget": 0.99},
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def settings(request):
    return request.param


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    return X, np.tanh(X @ [0.5, -0.3]) + 0.1 * rng.normal(size=120)


def state(model):
    return model.coef_.tolist(), float(model.intercept_), model.coef_std_.tolist(), model.n_rows_seen_


def test_a_batch_of_weight_zero_is_no_batch(settings, rows):
    X, y = rows
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X, y)
    before = state(model)
    assert state(model.partial_fit(100 * X, -y, sample_weight=np.zeros(120))) == before
    again = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(100 * X, -y, sample_weight=[0] * 120)
    with pytest.raises(NotFittedError):
        again.predict(X)
    assert state(again.partial_fit(X, y)) == before  # the first rows fix nothing if they do not count


def test_a_fit_of_weight_zero_says_so(settings, rows):
    X, y = rows
    with pytest.raises(ValueError, match="at least one a weight above zero"):
        KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X, y, sample_weight=np.zeros(120))
    with pytest.raises(ValueError, match="weight 0"):
        KalproxRegressor(**({"penalty": "ridge"} | settings)).fit_source(ArraySource(X, y, np.zeros(120)), 2)


def test_a_source_without_an_order_says_so_too(rows):
    source = ArraySource(*rows, np.zeros(120))

    class Unordered:
        fold = source.fold

    for link in ("identity", "tanh"):
        with pytest.raises(ValueError, match="weight 0"):
            KalproxRegressor(link=link, penalty="ridge").fit_source(Unordered(), 2)


def test_the_learner_takes_a_block_of_weight_zero(settings, rows):
    X, y = rows
    learner = Learner(Settings.of(**settings))
    learner.learn(Block(X * np.nan, y, np.zeros(120)))
    assert not learner.is_fitted and learner.n_rows == 0
