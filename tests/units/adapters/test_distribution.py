"""A predictive distribution with the interface of River's."""

import math

import numpy as np
import pytest
from river import proba
from scipy import stats

from kalprox.adapters.river import PredictiveDistribution
from kalprox.predictive import Student
from kalprox.predictive.discrete import Counts


def test_the_same_as_river_where_the_noise_is_known():
    mine = PredictiveDistribution(Student(np.array([1.0]), np.array([2.0]), math.inf), 5)
    theirs = proba.Gaussian._from_state(n=1, m=1.0, var=4.0, ddof=0)
    assert mine.mu == theirs.mu and mine.sigma == theirs.sigma and mine.mode == theirs.mode and mine.n_samples == 5
    for x in (-3.0, 1.0, 4.5):
        assert mine(x) == pytest.approx(theirs(x)) and mine.cdf(x) == pytest.approx(theirs.cdf(x))
        assert mine.log_pdf(x) == pytest.approx(theirs.log_pdf(x))
    assert isinstance(mine, proba.base.ContinuousDistribution)


def test_students_t():
    found, dof = PredictiveDistribution(Student(np.array([1.0]), np.array([2.0]), 5.0), 9, seed=3), 5
    exact = stats.t(dof, 1.0, 2.0)
    assert found.sigma == pytest.approx(exact.std()) and found.scale == 2.0
    np.testing.assert_allclose(found.interval(0.9), exact.interval(0.9), rtol=1e-9)
    assert found(2.0) == pytest.approx(exact.pdf(2.0)) and found.cdf(2.0) == pytest.approx(exact.cdf(2.0))
    draws = [found.sample() for _ in range(2000)]
    assert stats.kstest(draws, exact.cdf).pvalue > 1e-3
    assert repr(found) == "Student(μ=1.000, σ=2.582, dof=5)"
    with pytest.raises(NotImplementedError, match="cannot be updated"):
        found.update(1.0)
    with pytest.raises(ValueError, match="level"):
        found.interval(1.0)


def test_counts():
    found = PredictiveDistribution(Counts(np.array([2.0]), np.array([2.0])), 9)
    assert found(2.0) == pytest.approx(math.exp(-1.674), rel=1e-3) and found.quantile(0.9) == 5
    assert found.dof == math.inf and repr(found) == "Counts(μ=2.000, σ=2.000)"
