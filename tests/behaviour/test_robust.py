"""Robust likelihoods: their derivatives, scales and standard errors, and rows that lie."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import integrate, stats
from statsmodels.miscmodels.tmodel import TLinearModel

import kalprox as kp
from kalprox.likelihoods import Contaminated, Huber, Student

EVERY = [Huber(), Student(), Contaminated()]
LINEAR, ZERO = kp.models.Linear(), kp.regularizers.Zero()


def name(likelihood):
    return type(likelihood).__name__


def rows(n=400, seed=0, share=0.0, size=10.0, one_sided=False, errors=None):
    """Inputs, targets, and which rows lie; the coefficients are 1, 2, -1 and 0.5."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
    e = rng.normal(size=n) if errors is None else errors(rng, n)
    bad = np.zeros(n, bool)
    bad[rng.choice(n, round(share * n), replace=False)] = True
    side = np.ones(n) if one_sided else rng.choice([-1.0, 1.0], n)
    return X, X @ TRUTH + np.where(bad, size * side * (1 + 0.1 * rng.normal(size=n)), e), bad


TRUTH = np.array([1.0, 2.0, -1.0, 0.5])


def fit(X, y, likelihood, **options):
    return kp.refine(LINEAR, ZERO, (X, y), np.zeros(X.shape[1]), likelihood=likelihood, **options)


@pytest.mark.parametrize("likelihood", EVERY, ids=name)
def test_psi_and_its_derivative_are_those_of_the_loss(likelihood):
    known, h = likelihood.with_numbers([2.0, 1.0]), 1e-6
    e = np.array([-30.0, -7.0, -2.0, 0.1, 1.0, 2.5, 5.9, 11.0])
    psi = (known.loss(e + h, 0 * e) - known.loss(e - h, 0 * e)) / (2 * h)
    np.testing.assert_allclose(known.weight(e / 2) * e, psi, rtol=1e-6, atol=1e-6)

    def psi_of(r):
        return known.weight(r) * r

    np.testing.assert_allclose(known.bend(e / 2), (psi_of(e / 2 + h) - psi_of(e / 2 - h)) / (2 * h), atol=1e-6)


@pytest.mark.parametrize("likelihood", EVERY, ids=name)
def test_the_score_of_the_scale_is_zero_on_average_and_means_are_those_of_the_model(likelihood):
    law = stats.norm() if np.isinf(likelihood.error_dof) else stats.t(likelihood.error_dof)

    def mean(function):
        points = [-1.345, 1.345] if isinstance(likelihood, Huber) else None
        inside = integrate.quad(lambda r: function(r) * law.pdf(r), -40, 40, points=points, limit=400)[0]
        return inside + 2 * integrate.quad(lambda r: function(r) * law.pdf(r), 40, np.inf)[0]

    assert mean(lambda r: likelihood.scale_score(np.array(r))[0]) == pytest.approx(0, abs=1e-5)
    assert mean(lambda r: likelihood.bend(np.array(r))) == pytest.approx(likelihood.model_bend, rel=1e-5)
    square = mean(lambda r: (likelihood.weight(np.array(r)) * r) ** 2)
    assert square == pytest.approx(likelihood.model_square, rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2])
def test_huber_and_its_scale_are_those_of_statsmodels(share):
    X, y, _ = rows(300, 1, share, 50.0, one_sided=True)
    scale = sm.robust.scale.HuberScale(d=1.345, tol=1e-14, maxiter=1000)
    options = {"scale_est": scale, "tol": 1e-14, "maxiter": 2000, "conv": "coefs"}
    peer = sm.RLM(y, X, M=sm.robust.norms.HuberT(1.345)).fit(cov="H2", **options)
    found = fit(X, y, Huber())
    assert found.converged and found.likelihood.scale == pytest.approx(peer.scale, rel=1e-8)
    np.testing.assert_allclose(found.mean, peer.params, rtol=1e-8)
    std = np.sqrt(np.diag(found.cov))
    np.testing.assert_allclose(std, peer.bse, rtol=5e-4)  # rows beyond the threshold count 0.001 instead of 0
    np.testing.assert_allclose(std, sm.RLM(y, X).fit(cov="H1", **options).bse, rtol=0.1)


@pytest.mark.parametrize("likelihood", [Student(), Student(dof=1.0), Contaminated()], ids=str)
def test_a_learned_scale_solves_its_equation_together_with_theta(likelihood):
    X, y, _ = rows(400, 2, 0.1)
    found = fit(X, y, likelihood)
    r = (y - X @ found.mean) / found.likelihood.scale
    score, fall = found.likelihood.scale_score(r)
    assert found.converged
    assert (score.sum() + 4) / fall.sum() == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(X.T @ (found.likelihood.weight(r) * r), 0, atol=1e-7)


def test_the_scale_of_student_is_the_maximum_of_the_likelihood_up_to_degrees_of_freedom():
    X, y, _ = rows(4000, 3, errors=lambda rng, n: 2 * rng.standard_t(3, n))
    peer = TLinearModel(y, X, fix_df=3.0).fit(disp=0, method="bfgs", maxiter=500)
    found = fit(X, y, Student())
    np.testing.assert_allclose(found.mean, peer.params[:4], atol=1e-3)
    assert found.likelihood.scale == pytest.approx(abs(peer.params[4]), rel=2e-3)  # 4 / 4000, halved, and its tolerance


@pytest.mark.parametrize("likelihood", EVERY, ids=name)
@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_results_do_not_depend_on_the_unit_of_y(likelihood, unit):
    X, y, _ = rows(300, 4, 0.1)
    g = kp.regularizers.Ridge(5.0)
    one, other = (kp.refine(LINEAR, g, (X, y * u), np.zeros(4), likelihood=likelihood, tol=1e-8) for u in (1.0, unit))
    assert other.converged
    np.testing.assert_allclose(other.mean, one.mean * unit, rtol=1e-7)
    np.testing.assert_allclose(other.likelihood.scale, one.likelihood.scale * unit, rtol=1e-7)
    np.testing.assert_allclose(other.cov, one.cov * unit**2, rtol=1e-6)


@pytest.mark.parametrize("likelihood", EVERY, ids=name)
def test_a_row_of_weight_two_is_the_row_twice(likelihood):
    X, y, _ = rows(200, 5, 0.1)
    weights = 1.0 + (np.arange(200) < 50)
    twice = np.r_[np.arange(200), np.arange(50)]
    one = kp.refine(LINEAR, ZERO, (X, y, weights), np.zeros(4), likelihood=likelihood)
    other = fit(X[twice], y[twice], likelihood)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9)
    assert one.likelihood.scale == pytest.approx(other.likelihood.scale, rel=1e-9)
    np.testing.assert_allclose(one.cov, other.cov, rtol=1e-7)


@pytest.mark.parametrize("likelihood", EVERY, ids=name)
@pytest.mark.parametrize("y", [np.zeros(60), np.linspace(0, 1, 60)], ids=["zeros", "exact"])
def test_an_exact_fit_has_a_scale_of_rounding(likelihood, y):
    X = np.column_stack([np.ones(60), np.linspace(0, 1, 60)])
    found = fit(X, y, likelihood)
    assert found.converged and found.likelihood.scale < 1e-12 and np.isfinite(found.cov).all()
    np.testing.assert_allclose(found.mean, [0, y[-1]], atol=1e-12)


@pytest.mark.parametrize("likelihood", EVERY, ids=name)
def test_influence_is_bounded_in_units_of_the_standard_deviation_of_the_prediction(likelihood):
    known, f = likelihood.with_numbers([1.0, 1.0]), np.zeros(1)
    for variance in (0.0, 3.0, 99.0):
        std = (1 + variance) ** 0.5
        targets, weights = known.matched(np.array([0.5 * std]), f, np.array([variance]))
        pulled = known.weight(np.array([0.5])) * 0.5  # the same in units of the prediction, however wide the belief
        assert targets * weights / std == pytest.approx(pulled, rel=1e-12) and weights > 0.5
    pulls = [float((t * w)[0]) for t, w in (known.matched(np.array([y]), f, f) for y in (1e1, 1e3, 1e6))]
    assert max(pulls) < 1.5


# Two-sided: every likelihood, but Huber with its default threshold, whose errors grow by 1.55. One-sided rows move the
# intercept of Huber by a constant, which no number of rows makes smaller, and those at 10 that of Student;
# `Contaminated` leaves all of them out.
MEETS = [
    (Huber(threshold=1.0), False, 10.0),
    (Huber(threshold=1.0), False, 1e3),
    (Student(), False, 10.0),
    (Student(), False, 1e3),
    (Student(), True, 1e3),
    (Contaminated(), False, 10.0),
    (Contaminated(), True, 10.0),
    (Contaminated(), True, 1e3),
]


@pytest.mark.slow
@pytest.mark.parametrize(("likelihood", "one_sided", "size"), MEETS, ids=str)
def test_one_row_in_five_that_lies_costs_no_more_than_half_as_much_again(likelihood, one_sided, size):
    for seed in range(3):
        clean, found = (
            fit(*rows(2000, seed, share, size, one_sided)[:2], likelihood, tol=1e-6) for share in (0.0, 0.2)
        )
        assert np.trace(found.cov) < 1.5**2 * np.trace(clean.cov)
        assert (np.abs(found.mean - TRUTH) < 4.5 * np.sqrt(np.diag(found.cov))).all()  # 24 intervals: no bias


def test_huber_bears_one_sided_rows_in_its_slopes():
    for seed in range(3):
        clean, found = (fit(*rows(2000, seed, share, 1e3, one_sided=True)[:2], Huber()) for share in (0.0, 0.05))
        assert np.trace(found.cov) < 1.5**2 * np.trace(clean.cov)
        assert (np.abs(found.mean - TRUTH)[1:] < 4.5 * np.sqrt(np.diag(found.cov))[1:]).all()


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", EVERY, ids=name)
@pytest.mark.parametrize("kind", ["normal", "heavy", "lies"])
def test_intervals_of_coefficients_cover(likelihood, kind):
    def errors(rng, n):
        return rng.standard_t(3, n) if kind == "heavy" else rng.normal(size=n)

    inside = []
    for seed in range(50):
        X, y, _ = rows(150, seed, 0.1 * (kind == "lies"), 10.0, errors=errors)
        found = fit(X, y, likelihood, tol=1e-6)
        half = stats.t.ppf(0.975, found.noise_dof) * np.sqrt(np.diag(found.cov))
        inside.append(np.abs(found.mean - TRUTH) < half)
    covered = int(np.sum(inside))
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], 200, 0.95)
    assert low <= covered <= high
