"""Tests of the predictive distributions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kalprox.predictive import Classes, Counts, Student


@pytest.mark.parametrize("s", [pytest.param(0.05, marks=pytest.mark.slow), 0.2, 0.5, 1.0])
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


def law(mean, excess):
    return stats.poisson(mean) if excess == 0 else stats.nbinom(mean / excess, 1 / (1 + excess))


@pytest.mark.parametrize("mean", [0.05, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("excess", [0.0, 0.1, 3.0, 50.0])
def test_counts_against_scipy(mean, excess):
    found, exact = Counts(np.full(4, mean), np.full(4, (mean * (1 + excess)) ** 0.5)), law(mean, excess)
    y = np.array([0.0, 1.0, np.floor(mean), np.floor(2 * mean + 3)])
    np.testing.assert_allclose(found.log_prob(y), exact.logpmf(y), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.cdf(y), exact.cdf(y), rtol=1e-10, atol=1e-12)
    for p in (0.05, 0.5, 0.99):
        np.testing.assert_array_equal(found.quantile(p), exact.ppf(p))
    v = 0.3
    below, above = exact.cdf(y - 1) + v * exact.pmf(y), exact.sf(y) + (1 - v) * exact.pmf(y)
    wanted = np.where(y < mean, stats.norm.ppf(below), -stats.norm.ppf(above))
    seen = np.isfinite(wanted)
    np.testing.assert_allclose(found.scores(y, v)[0][seen], wanted[seen], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("excess", [1e-12, 1e-9, 1e-6])
def test_counts_a_little_more_dispersed_than_poisson_keep_their_digits(excess):
    """A stream that has learned for long: log gamma functions of 1e9 cancelled, and errors were 1e-3."""
    mean, y = 1000.0, np.array([900.0, 1000.0, 1100.0])
    found = Counts(np.full(3, mean), np.full(3, (mean * (1 + excess)) ** 0.5))
    # d/d excess of the log probability at 0 is ((y - mean)^2 - y) / (2 mean)
    first = excess * ((y - mean) ** 2 - y) / (2 * mean)
    np.testing.assert_allclose(found.log_prob(y), stats.poisson(mean).logpmf(y) + first, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.cdf(y), stats.poisson(mean).cdf(y), rtol=0, atol=3 * excess + 1e-12)


def test_scores_are_finite_for_what_cannot_be():
    counts = Counts(np.array([0.0, 1e-300, 5.0, 1e8]), np.array([0.0, 1e-150, 5.0**0.5, 1e4]))
    u, log_prob = counts.scores(np.array([3.0, 1e6, 1e15, 0.0]), np.full(4, 0.5))
    assert (np.abs(u) > 30).all() and np.isfinite(u).all() and (log_prob > -1e3).all()
    u, log_prob = Classes(np.array([0.0, 1.0, 0.5])).scores(np.array([1.0, 0.0, 1.0]), np.full(3, 0.5))
    assert (np.abs(u[:2]) > 30).all() and u[2] == pytest.approx(stats.norm.ppf(0.75))
    np.testing.assert_allclose(log_prob, [np.log(np.finfo(float).tiny)] * 2 + [np.log(0.5)])


@pytest.mark.slow
def test_scores_on_jax_are_those_of_numpy():
    with jax.enable_x64(True):
        mean, v = np.array([0.05, 1.0, 40.0, 1000.0, 1000.0]), np.array([0.1, 0.3, 0.5, 0.7, 0.9])
        std = np.sqrt(mean * (1 + np.array([0.0, 1e-10, 0.5, 0.0, 2.0])))
        y = np.array([1.0, 0.0, 50.0, 990.0, 1100.0])
        wanted = Counts(mean, std).scores(y, v)
        found = Counts(*map(jnp.asarray, (mean, std))).scores(jnp.asarray(y), jnp.asarray(v))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        p, y = mean / 1001, (y > 1) * 1.0
        np.testing.assert_allclose(
            Classes(jnp.asarray(p)).scores(jnp.asarray(y), jnp.asarray(v)), Classes(p).scores(y, v), rtol=1e-9
        )
