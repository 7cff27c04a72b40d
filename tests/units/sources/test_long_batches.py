"""Forgetting over batches of any length."""

import numpy as np
import pytest

import kalprox as kp
from kalprox import KalproxRegressor
from kalprox.forgetting import ByRow
from kalprox.sources import ArraySource
from kalprox.sources.weighting import faded

LONG = 8000  # rows after which 0.9 to the power of their number underflows


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(LONG, 2))
    return X, X @ [1.0, -2.0] + rng.normal(size=LONG)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_left_never_underflows(dtype):
    weights, *_, left = faded(np.ones(LONG, dtype), 0.9)
    assert 0 < left < 1e-37 and weights[-1] == pytest.approx(1) and weights[0] == 0


@pytest.mark.slow
def test_a_batch_longer_than_its_forgetting(rows):
    X, y = rows
    whole = KalproxRegressor(penalty=None, forget=0.9).partial_fit(X, y).partial_fit(X, y)
    last = KalproxRegressor(penalty=None, forget=0.9).partial_fit(X[-1000:], y[-1000:])
    np.testing.assert_allclose(whole.coef_, last.coef_, rtol=1e-12)
    np.testing.assert_allclose(whole.coef_std_, last.coef_std_, rtol=1e-12)
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Zero(), gamma=None, forget=0.9)
    state = alg.step(alg.step(alg.init(np.zeros(2)), X, y), X, y)
    short = alg.step(alg.init(np.zeros(2)), X[-1000:], y[-1000:])
    np.testing.assert_allclose(state.mean, short.mean, rtol=1e-12)
    assert float(state.rows) == pytest.approx(10)


def test_a_faded_source_longer_than_its_forgetting(rows):
    source = ArraySource(*rows, block_rows=1000).faded(ByRow(0.9), "frequency")
    info = source.fold(kp.Information.from_block).total
    last = ArraySource(rows[0][-1000:], rows[1][-1000:]).faded(ByRow(0.9), "frequency")
    direct = last.fold(kp.Information.from_block).total
    np.testing.assert_allclose(info.solve(), direct.solve(), rtol=1e-12)
