"""Tests of the predictive distributions."""

import math

import numpy as np
import pytest
from scipy import stats

from kalprox.predictive import Student


@pytest.mark.parametrize("s", [0.05, 0.2, 0.5, 1.0])
def test_an_uncertain_variance_gives_nearly_the_log_normal_mixture(s):
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    y = np.linspace(-60, 60, 24001)
    sd = np.exp((s**0.5 * nodes - s / 2) / 2)  # the mean of the variances is 1
    mixture = stats.norm.pdf(y[:, None], 0, sd) @ weights / weights.sum()
    known = Student(np.zeros(1), np.ones(1), math.inf)
    found = known.with_uncertain_variance(np.array([s]))
    loss, loss_before = (
        np.sum(mixture * (np.log(mixture) - one.log_prob(y))) * (y[1] - y[0]) for one in (found, known)
    )
    assert 0 < loss < 0.05 * loss_before
    for level, off in ((0.5, 0.02), (0.9, 0.01), (0.95, 0.008), (0.99, 0.002)):
        high = found.interval(level)[1] / sd
        covered = (2 * stats.norm.cdf(high) - 1) @ weights / weights.sum()
        assert covered == pytest.approx(level, abs=off)


@pytest.mark.parametrize("dof", [5.0, 50.0, math.inf])
def test_an_uncertain_variance_leaves_the_variance_as_it_is(dof):
    found = Student(np.zeros(1), np.full(1, 2.0), dof).with_uncertain_variance(np.array([0.3]))
    assert stats.t.var(found.dof, 0, found.std) == pytest.approx(stats.t.var(dof, 0, 2.0))
    assert Student(np.zeros(1), np.ones(1), dof).with_uncertain_variance(np.zeros(1)).dof == dof
