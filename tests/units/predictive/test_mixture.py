"""Mixtures of predictive distributions against their definition, and against draws."""

import numpy as np
import pytest
from scipy import integrate, stats

from kalprox.predictive import Categories, Classes, Counts, Mixture, Student, mixed
from kalprox.predictive.mixture import log_mean, mixture_scores

MEANS, STDS, DOFS = np.array([[0.0, 5.0], [3.0, -2.0]]), np.array([[1.0, 0.1], [2.0, 3.0]]), (np.inf, 4.0)
WEIGHTS = np.array([0.3, 0.7])


def two(weights=WEIGHTS):
    parts = (Student(mean, std, dof) for mean, std, dof in zip(MEANS, STDS, DOFS, strict=True))
    return Mixture(tuple(parts), weights)


def density(y, row):
    return sum(
        w * stats.t.pdf(y, min(dof, 1e9), mean[row], std[row])
        for w, dof, mean, std in zip(WEIGHTS, DOFS, MEANS, STDS, strict=True)
    )


def test_moments_density_and_distribution_function():
    mixture, y = two(), np.array([1.5, 4.9])
    np.testing.assert_allclose(mixture.mean, WEIGHTS @ MEANS)
    np.testing.assert_allclose(mixture.std**2, WEIGHTS @ (STDS**2 + (MEANS - WEIGHTS @ MEANS) ** 2))
    np.testing.assert_allclose(np.exp(mixture.log_prob(y)), [density(y[row], row) for row in range(2)], rtol=1e-7)
    below = [integrate.quad(density, -np.inf, y[row], args=(row,), points=None, limit=200)[0] for row in range(2)]
    np.testing.assert_allclose(mixture.cdf(y), below, atol=1e-6)


@pytest.mark.parametrize("p", [1e-12, 0.025, 0.3, 0.5, 0.9, 0.999])
def test_quantiles_are_where_the_distribution_function_says(p):
    mixture = two()
    np.testing.assert_allclose(mixture.cdf(mixture.quantile(p)), p, rtol=1e-8)


def test_intervals_contain_what_they_say():
    low, high = two().interval(0.8)
    rng = np.random.default_rng(0)
    which = rng.random(200_000) < WEIGHTS[0]
    draws = np.where(which, rng.normal(size=200_000), 3 + 2 * rng.standard_t(4, size=200_000))
    inside = ((low[0] <= draws) & (draws <= high[0])).sum()
    assert abs(inside - 0.8 * 200_000) < 4 * np.sqrt(0.16 * 200_000)
    with pytest.raises(ValueError, match="level must be strictly between 0 and 1"):
        two().interval(1.0)


def test_scores_keep_their_digits_in_both_tails():
    parts = (Student(np.zeros(4), np.ones(4), np.inf), Student(np.zeros(4), np.full(4, 2.0), np.inf))
    y = np.array([-40.0, -1.0, 1.0, 40.0])
    u, logs = map(np.stack, zip(*(part.normal_scores(y) for part in parts), strict=True))
    w = np.full((2, 4), 0.5)
    score = mixture_scores(w, u)
    np.testing.assert_allclose(score, -score[::-1], rtol=1e-12)
    np.testing.assert_allclose(stats.norm.logcdf(score[0]), np.log(0.5) + stats.norm.logcdf(-20), rtol=1e-10)
    np.testing.assert_allclose(log_mean(w, logs), np.log((0.5 * np.exp(logs)).sum(axis=0) + 1e-300), atol=1e-9)


def test_a_part_without_a_claim_has_no_share():
    nothing = Student(np.array([np.nan]), np.array([np.inf]), np.inf)
    one = Student(np.array([1.0]), np.array([2.0]), 5.0)
    both = Mixture((nothing, one), WEIGHTS)
    y = np.array([0.3])
    for mine, theirs in ((both.mean, one.mean), (both.std, one.std), (both.log_prob(y), one.log_prob(y))):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    np.testing.assert_allclose(both.quantile(0.9), one.quantile(0.9), rtol=1e-10)
    assert np.isnan(Mixture((nothing, nothing), WEIGHTS).quantile(0.5)).all()


def test_targets_and_rows_may_have_weights_of_their_own():
    weights = np.array([[1.0, 0.0], [0.0, 1.0]])  # of two targets
    mixture = two(weights)
    parts = tuple(Student(part.mean[None], part.std[None], part.dof) for part in mixture.parts)
    np.testing.assert_allclose(Mixture(parts, weights).mean, [[0.0, -2.0]])
    np.testing.assert_allclose(two(np.array([[1.0, 0.0], [0.0, 1.0]])).mean, [0.0, -2.0])  # of two rows


def test_counts_and_classes():
    counts = Mixture((Counts(np.array([2.0]), np.array([2.0])), Counts(np.array([9.0]), np.array([4.0]))), WEIGHTS)
    q = counts.quantile(0.5)
    assert q == np.floor(q) and counts.cdf(q) >= 0.5 > counts.cdf(q - 1)
    p = mixed([Categories(np.array([[0.2, 0.8]])), Categories(np.array([[0.6, 0.4]]))], WEIGHTS)
    np.testing.assert_allclose(p.mean, [[0.48, 0.52]])
    assert mixed([Classes(np.array([0.5]))], np.ones(1)).mean == 0.5
