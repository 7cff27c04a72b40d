"""Every likelihood, found by itself: its derivatives, NumPy against JAX, and its predictive distribution."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import kalprox as kp
from kalprox import likelihoods
from kalprox.likelihoods import Likelihood
from kalprox.noise import Noise
from kalprox.predictive import Counts

FOUND = [getattr(likelihoods, name) for name in likelihoods.__all__]
EVERY = [c for c in FOUND if issubclass(c, Likelihood) and not inspect.isabstract(c) and not c.interacts]
PLAIN = [c for c in EVERY if not c.majorizes]
Y, F = np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.3, -1.2, 2.0, 0.0])


def possible(likelihood):
    """Targets that a likelihood allows: those above, unless they must be positive."""
    return Y if likelihood.support[0] <= 0 else Y + 0.5


def known(cls):
    """A likelihood with the value 1 for the parameter that it would learn."""
    return cls().with_numbers(np.ones(len(cls().numbers)))


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
def test_the_expansion_is_the_slope_of_the_loss_and_a_positive_curvature(cls):
    likelihood, h = known(cls), 1e-5
    slope, curvature = likelihood.expand(Y, F)
    expected = (likelihood.loss(Y, F + h) - likelihood.loss(Y, F - h)) / (2 * h)
    np.testing.assert_allclose(slope, expected, rtol=1e-8, atol=1e-9)
    assert curvature.shape == F.shape and (curvature > 0).all()
    if likelihood.quadratic:
        second = (likelihood.loss(Y, F + 1) - 2 * likelihood.loss(Y, F) + likelihood.loss(Y, F - 1)) / 1
        np.testing.assert_allclose(curvature, second, rtol=1e-12)


@pytest.mark.parametrize("cls", [c for c in PLAIN if c.learns_noise], ids=lambda c: c.__name__)
def test_a_likelihood_that_learns_the_noise_says_whether_its_curvature_is_the_expected_one(cls):
    likelihood, h = known(cls), 1e-5
    (above, _), (below, _) = likelihood.expand(Y, F + h), likelihood.expand(Y, F - h)
    own = np.allclose(likelihood.expand(Y, F)[1], (above - below) / (2 * h), rtol=1e-6)
    assert likelihood.expected_curvature is not own


@pytest.mark.parametrize("cls", [c for c in EVERY if c.log_concave], ids=lambda c: c.__name__)
def test_a_loss_that_is_said_to_be_convex_is(cls):
    likelihood, f = known(cls), np.linspace(-10, 10, 2001)
    slopes = np.array([likelihood.expand(np.full_like(f, y), f)[0] for y in possible(likelihood)])
    assert (np.diff(slopes) >= -1e-12 * np.abs(slopes[:, 1:])).all()


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
def test_numpy_and_jax_agree(cls):
    likelihood = known(cls)
    with jax.enable_x64(True):
        more = {"matched": (np.full(4, 0.1),), "sums": (np.full(4, 0.1), np.ones(4))}
        for name, rtol in (("loss", 1e-14), ("expand", 1e-14), ("matched", 1e-10), ("sums", 1e-10)):
            args = (Y, F, *more.get(name, ()))
            ours, jaxs = (getattr(likelihood, name)(*map(xp.asarray, args)) for xp in (np, jnp))
            jax.tree.map(lambda a, b, rtol=rtol: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-15), ours, jaxs)


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
def test_a_prediction_is_a_distribution(cls):
    predicted = known(cls).predict(F, np.full(4, 0.1), Noise.known(1.0))
    assert predicted.mean.shape == predicted.std.shape == F.shape and (predicted.std > 0).all()
    for p in (0.1, 0.5, 0.9):
        assert (predicted.cdf(predicted.quantile(p)) >= p - 1e-12).all()
    assert (predicted.quantile(0.1) <= predicted.quantile(0.9)).all()
    assert np.isfinite(predicted.log_prob(possible(cls()))).all()


@pytest.mark.parametrize("events", [0.3, 1.0, 5.0, 1000.0])
def test_counts_with_one_rate_are_predicted_as_bayes_rule_does(events):
    """A rate with a gamma distribution: its log has the mean digamma(k), and the variance trigamma(k)."""
    predicted = kp.likelihoods.Poisson().predict(
        special.digamma(np.array([events])), special.polygamma(1, np.array([events])), Noise.known(1.0)
    )
    expected = stats.nbinom(events, 1 / 2)
    steep = events * special.polygamma(1, events) - 1  # by how much a shape that is off changes the mean
    np.testing.assert_allclose(predicted.mean, expected.mean(), rtol=0.015 * steep)
    y = np.arange(20.0) + np.floor(0.9 * events)
    np.testing.assert_allclose(predicted.cdf(y), expected.cdf(y), atol=0.005)


@pytest.mark.parametrize("variance", [1e-12, 0.01, 1.0, 9.0, 400.0])
@pytest.mark.parametrize("f", [0.0, 4.0])
def test_counts_whose_rate_is_hardly_known_are_predicted_without_a_claim(f, variance):
    """With the mean and the variance of a log-normal rate nearly all probability would be at 0."""
    z = np.linspace(-8, 8, 4001)
    mixed = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    y = np.unique(np.round(np.exp(np.linspace(0, 12, 100)))) - 1
    expected = stats.poisson.cdf(y[:, None], np.exp(np.minimum(f + variance**0.5 * z, 60))) @ mixed
    predicted = kp.likelihoods.Poisson().predict(np.array([f]), np.array([variance]), Noise.known(1.0))
    assert np.abs(predicted.cdf(y) - expected).max() < min(0.14, 0.002 + 0.3 * variance)


def test_counts_of_which_nothing_is_known_have_finite_moments_and_moderate_scores():
    f, variance = (a.ravel() for a in np.meshgrid([-800.0, 0.0, 800.0], [0.0, 1e3, 1e7, 1e300]))
    predicted = kp.likelihoods.Poisson().predict(f, variance, Noise.known(1.0))
    assert np.isfinite(predicted.mean).all() and np.isfinite(predicted.std).all()
    wide = (f == 0) & (variance > 0)
    for y in (0.0, 1.0, 1000.0):
        scores, log_prob = Counts(predicted.mean[wide], predicted.std[wide]).scores(np.full(3, y), np.full(3, 0.5))
        assert (np.abs(scores[:2]) < 3).all() and np.isfinite(log_prob).all()


@pytest.mark.parametrize("cls", [c for c in EVERY if c.__name__ in ("Bernoulli", "Poisson", "NegativeBinomial")])
@pytest.mark.parametrize(("f", "variance", "y"), [(0.3, 0.5, 1.0), (-2.0, 1.0, 1.0), (1.0, 0.2, 0.0), (0.5, 1e-3, 1.0)])
def test_a_belief_that_learns_the_matched_problem_has_the_moments_of_the_product(cls, f, variance, y):
    likelihood, reach = known(cls), 10 * variance**0.5
    targets, weights = (float(a[0]) for a in likelihood.matched(*(np.array([a]) for a in (y, f, variance))))

    def moment(k):
        def weighted(z):
            return (z - f) ** k * np.exp(-likelihood.loss(y, np.array(z)) - (z - f) ** 2 / (2 * variance))

        return integrate.quad(weighted, f - reach, f + reach, epsabs=0, epsrel=1e-12, limit=200)[0]

    total, first, second = map(moment, range(3))
    left = 1 / (1 / variance + weights)
    assert left * weights * targets == pytest.approx(first / total, abs=1e-6)
    assert left == pytest.approx(second / total - (first / total) ** 2, rel=1e-6)


@pytest.mark.parametrize("cls", PLAIN, ids=lambda c: c.__name__)
def test_a_narrow_belief_is_expanded(cls):
    likelihood = known(cls)
    for ours, plain in zip(likelihood.matched(Y, F, np.full(4, 1e-9)), _expanded(likelihood), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-12)


@pytest.mark.parametrize("variance", [30.0, 1e4])
@pytest.mark.parametrize("cls", PLAIN, ids=lambda c: c.__name__)
def test_a_wide_belief_has_the_moments_of_the_product_within_a_tenth(cls, variance):
    likelihood, reach = known(cls), 10 * variance**0.5
    ys = possible(likelihood)
    targets, weights = likelihood.matched(ys, F, np.full(4, variance))
    left = 1 / (1 / variance + weights)
    for f, y, mean, var in zip(F, ys, left * weights * targets, left, strict=True):
        steps = np.linspace(-reach, reach, 400_001)
        with np.errstate(over="ignore"):
            logs = -likelihood.loss(y, f + steps) - steps**2 / (2 * variance)
        powers = np.exp(logs - logs.max())
        exact = np.average(steps, weights=powers)
        exact_var = np.average((steps - exact) ** 2, weights=powers)
        assert mean == pytest.approx(exact, abs=0.1 * exact_var**0.5)
        assert var == pytest.approx(exact_var, rel=0.15)


@pytest.mark.parametrize("cls", PLAIN, ids=lambda c: c.__name__)
def test_one_observation_is_matched_as_in_an_array(cls):
    likelihood = known(cls)
    for f in (-400.0, -3.0, 0.2, 5.0, 400.0):
        for variance in (0.0, 1e-9, 1e-4, 0.05, 0.8, 3.0, 40.0, 1e6):
            for y in possible(likelihood)[:2]:
                one = likelihood.matched_row(y, f, variance)
                each = likelihood.matched(*(np.array([a]) for a in (y, f, variance)))
                # what the belief learns: a weight alone is a difference of two numbers, which may be nearly equal
                found, expected = (_moves(float(t), float(w), variance) for t, w in (one, (each[0][0], each[1][0])))
                assert found == pytest.approx(expected, rel=1e-12, abs=1e-12 * variance, nan_ok=True)


def _moves(target, weight, variance):
    """Return by how much the mean of a belief moves, and the variance that is left."""
    return target * weight * variance / (1 + weight * variance), variance / (1 + weight * variance)


def _expanded(likelihood):
    targets, weights = likelihood.least_squares(Y, F)
    return targets, np.ones(4) if weights is None else weights


@pytest.mark.parametrize(("cls", "bad"), [("Bernoulli", 2.0), ("Bernoulli", -1.0), ("Poisson", -1.0)])
def test_an_observation_that_is_not_possible_is_refused_by_name(cls, bad):
    X, y = np.ones((6, 1)), np.array([0.0, 1.0, 1.0, bad, 0.0, 1.0])
    likelihood = getattr(likelihoods, cls)()
    with pytest.raises(ValueError, match=rf"y must be .* {cls}; got {bad} in row 3 of a block"):
        kp.refine(kp.models.Linear(), kp.regularizers.Ridge(1.0), (X, y), np.zeros(1), likelihood=likelihood)
    stream = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(1.0), likelihood=likelihood)
    state = stream.step(stream.init(np.zeros(1)), X[:3], y[:3])
    with pytest.raises(ValueError, match="in row 0 of a block"):
        stream.step(state, X[3:], y[3:])
    weights = np.array([1.0, 1, 1, 0, 1, 1])  # a row of weight 0 may hold anything
    args = kp.models.Linear(), kp.regularizers.Ridge(1.0)
    found, left = (
        kp.refine(*args, source, np.zeros(1), likelihood=likelihood).mean
        for source in ((X, y, weights), (X[weights > 0], y[weights > 0]))
    )
    np.testing.assert_allclose(found, left, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "y", "f", "variance", "expected"),
    [
        ("Bernoulli", 1.0, -8.8e7, 1.8e14, 14.53113),
        ("Bernoulli", 1.0, -880.0, 1.8e4, 2.964544),
        ("Poisson", 1e6, 0.0, 4.0, 13.815507),
        ("Poisson", 0.0, 50.0, 4.0, 2.474962),
    ],
)
def test_proximal_steps_end_at_the_minimiser_however_far_it_is(name, y, f, variance, expected):
    likelihood = getattr(likelihoods, name)()
    with np.errstate(all="ignore"):
        found = likelihood._mode(*(np.array([a]) for a in (y, f, variance)))
    slope, _ = likelihood.expand(np.array([y]), found)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(slope * variance, f - found, rtol=1e-4)
    targets, weights = likelihood.matched(*(np.array([a]) for a in (y, f, variance)))
    assert np.isfinite(targets).all() and (weights > 0).all() and np.isfinite(weights).all()
