"""Tests of the probabilities stated in cells: their tails, their size and their power."""

import math

import numpy as np
import pytest
from scipy import special, stats

from kalprox.calibration.cells import CELLS, PROBABILITY_ALARMS, Cells, cell_of


def cells(p, y):
    places = cell_of(p)
    outcomes = np.stack([np.bincount(places, 1.0 - y, CELLS), np.bincount(places, y, CELLS)])
    return Cells.of(outcomes, np.bincount(places, p, CELLS))


@pytest.mark.parametrize(("n", "p", "k"), [(100, 0.02, 7), (100, 0.02, 0), (1000, 0.3, 340), (1000, 0.3, 250)])
def test_the_tail_of_a_constant_probability_is_binomial(n, p, k):
    law = stats.binom(n, p)
    found = cells(np.full(n, p), np.arange(n) < k).bias()[1]
    assert found == pytest.approx(2 * min(law.sf(k - 1), law.cdf(k)), rel=0.02)


def test_outcomes_that_are_all_the_same_are_unlikely_if_they_are():
    assert cells(np.full(40, 0.5), np.ones(40)).bias()[1] < 1e-5
    assert cells(np.full(3, 0.5), np.ones(3)).bias()[1] == pytest.approx(0.25, rel=0.1)
    assert cells(np.full(9, 1.0), np.ones(9)).bias() == (0.0, 1.0)
    assert cells(np.full(9, 1.0), np.zeros(9)).bias() == (-math.inf, 0.0)
    assert all(map(math.isnan, cells(np.full(1000, 0.5), np.arange(1000) % 2).slope()))  # nothing to compare
    assert all(map(math.isnan, cells(np.full(20, 0.01), np.zeros(20)).curve()))


def test_the_slope_is_that_of_logistic_regression():
    rng = np.random.default_rng(0)
    odds = rng.normal(size=20_000) * 1.5
    for factor in (0.5, 1.0, 2.0):
        y = rng.random(odds.size) < special.expit(factor * odds)
        found, p_value = cells(special.expit(odds), y).slope()
        assert found == pytest.approx(factor, abs=0.06)
        assert (p_value < 1e-6) is (factor != 1)


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 3000])
@pytest.mark.parametrize("kind", ["half", "rare", "constant", "extreme"])
def test_each_check_has_the_size_that_it_says(kind, n):
    rng, streams = np.random.default_rng(n), 2000
    size = {"half": (0.0, 1.5), "rare": (-4.6, 0.7), "constant": (-4.6, 0.0), "extreme": (0.0, 6.0)}[kind]
    found = np.zeros(3)
    for _ in range(streams):
        p = special.expit(size[0] + size[1] * rng.normal(size=n))
        one = cells(p, rng.random(n) < p)
        found += [check()[1] < PROBABILITY_ALARMS for check in (one.bias, one.slope, one.curve)]
    assert (found <= stats.binom.ppf(0.9999, streams, 1.2 * PROBABILITY_ALARMS)).all()  # saddle points are not exact
