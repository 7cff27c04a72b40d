"""The numbers that randomise scores: uniform, independent, and the same whatever the blocks."""

import numpy as np
import pytest
from scipy import stats

from kalprox.calibration.sums import uniforms


@pytest.mark.parametrize("mean", ["constant", "varies"])
def test_they_are_uniform_and_independent(mean):
    n = 100_000
    p = np.full(n, 0.01) if mean == "constant" else np.random.default_rng(0).uniform(size=n)
    v = uniforms(np.arange(n) + 0.0, p)
    assert v.min() > 0 and v.max() < 1 and stats.kstest(v, "uniform").pvalue > 1e-3
    for lag in (1, 2, 16, 256, 65_536):
        r = np.corrcoef(v[lag:], v[:-lag])[0, 1]
        assert abs(r) < 4 / (n - lag) ** 0.5, lag


def test_streams_with_other_predictions_have_other_numbers():
    rows = np.arange(20_000.0)
    one, other = (uniforms(rows, np.full(len(rows), p)) for p in (0.01, 0.010001))
    assert abs(np.corrcoef(one, other)[0, 1]) < 4 / len(rows) ** 0.5


def test_rounding_changes_no_number():
    p = np.random.default_rng(1).uniform(size=20_000)
    p[:100] = 0.5
    rows = np.arange(len(p)) + 0.0
    v = uniforms(rows, p)
    for same in (np.nextafter(p, 0), np.nextafter(p, 1), p * (1 + 1e-12)):
        np.testing.assert_array_equal(uniforms(rows, same), v)
    np.testing.assert_allclose(uniforms(rows, p.astype(np.float32)), v, atol=2.0**-24)
    np.testing.assert_array_equal(uniforms(rows, 0 * p), uniforms(rows, -0.0 * p))


def test_large_numbers_of_rows_differ():
    rows = 2.0**40 + np.arange(1000.0)
    assert len(np.unique(uniforms(rows, np.full(1000, 0.5)))) > 990
    assert not np.array_equal(uniforms(rows, np.full(1000, 0.5)), uniforms(rows - 2.0**40, np.full(1000, 0.5)))
