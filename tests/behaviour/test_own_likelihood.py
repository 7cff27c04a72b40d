"""A likelihood of one's own is one class: fitted, judged, weighed by its own density, or refused by name."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from kalprox import KalproxRegressor
from kalprox.likelihoods import Likelihood, Poisson

pytestmark = pytest.mark.filterwarnings("ignore")


class Waiting(NamedTuple):
    """The predictive distribution of times between events, exponential with this mean."""

    mean: Any

    @classmethod
    def of_moments(cls, mean, std, dof):
        return cls(mean)

    @property
    def std(self):
        return self.mean

    def cdf(self, y):
        return -np.expm1(-y / self.mean)

    def quantile(self, p):
        return -self.mean * np.log1p(-p)

    def log_prob(self, y):
        return -np.log(self.mean) - y / self.mean


class Silent(Likelihood):
    """Times with the mean exp(f), without a word on their predictive distribution."""

    support = 0.0, np.inf

    def loss(self, y, f):
        return f + y * np.exp(-f)

    def expand(self, y, f):
        rest = y * np.exp(-f)
        return 1 - rest, np.maximum(rest, 1e-3)

    def predict(self, f, leverage, noise, sigma=1):
        return Waiting(np.exp(f + leverage / 2))


class Exponential(Silent):
    predictive = Waiting


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    return X, rng.exponential(np.exp(X @ [0.5, -0.3] + 0.2))


def test_it_is_fitted_and_its_intervals_are_those_of_its_distribution(rows):
    X, y = rows
    model = KalproxRegressor(likelihood=Exponential(), penalty="ridge").fit(X, y)
    np.testing.assert_allclose(model.coef_, [0.5, -0.3], atol=4 * model.coef_std_.max())
    low, high = model.predict_interval(X, level=0.8)
    np.testing.assert_allclose(np.log(0.1) / np.log(0.9), high / low)


class OwnCounts(Likelihood):
    """The likelihood of Poisson, written once more."""

    support, outcomes, predictive = (0.0, np.inf), "counts", Poisson.predictive

    def likely_size(self, largest):
        return Poisson().likely_size(largest)

    def loss(self, y, f):
        return np.exp(f) - y * f

    def expand(self, y, f):
        return Poisson().expand(y, f)

    def predict(self, f, leverage, noise, sigma=1):
        return Poisson().predict(f, leverage, noise, sigma)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ({"coef_cov": "robust"}, {"penalty": "l1", "alpha": 3.0})
        ),
    ],
)
def test_one_that_is_written_once_more_is_weighed_and_judged_alike(settings, rows):
    """By Student's t, as it was once weighed, the weights of ways to forget are others."""
    X, _ = rows
    y = np.random.default_rng(1).poisson(np.exp(X @ [0.5, -0.3])).astype(float)
    own, known = (
        KalproxRegressor(likelihood=one, forget="auto", **({"penalty": "ridge"} | settings)).fit(X[:300], y[:300])
        for one in (OwnCounts(), "poisson")
    )
    for model in (own, known):
        for i in range(300, 320):
            model.partial_fit(X[i : i + 1], y[i : i + 1])
    np.testing.assert_allclose(own.forget_weights_.weights, known.forget_weights_.weights, rtol=1e-6)
    np.testing.assert_allclose(own.predict_interval(X[:9]), known.predict_interval(X[:9]), rtol=1e-6)
    assert own.diagnostics_.verdict().word == known.diagnostics_.verdict().word
    assert type(own.diagnostics_) is type(known.diagnostics_)


def test_its_own_density_mixes_and_its_intervals_are_read(rows):
    X, y = rows
    model = KalproxRegressor(likelihood=Exponential(), forget="auto", penalty="ridge").fit(X, y)
    low, high = model.predict_interval(X[:5], level=0.8)
    np.testing.assert_allclose(high / low, np.log(0.1) / np.log(0.9), rtol=0.2)
    assert model.forget_weights_.weights[-1][0] > 0.2  # nothing drifts


def test_without_a_distribution_it_is_refused_by_name(rows):
    with pytest.raises(ValueError, match=r"forget='auto' needs a likelihood that says its `predictive` distribution"):
        KalproxRegressor(likelihood=Silent(), forget="auto", penalty="ridge").fit(*rows)
    assert KalproxRegressor(likelihood=Silent(), forget=0.99, penalty="ridge").fit(*rows).coef_.shape == (2,)


class OwnAmounts(Likelihood):
    """Amounts whose variance is a learned multiple of the cube of the mean exp(f): the inverse Gaussian ones."""

    support, predictive = (0.0, np.inf), Waiting
    learns_noise, expected_curvature = True, True

    def loss(self, y, f):
        return y * np.exp(-2 * f) / 2 - np.exp(-f)

    def expand(self, y, f):
        rest = np.exp(-f)
        return rest - y * rest**2, rest

    def predict(self, f, leverage, noise, sigma=1):
        return Waiting(np.exp(f))


def test_a_stream_learns_the_dispersion_of_fit_if_the_curvature_is_the_expected_one():
    """Counted by its own curvature, a row has a squared residual that is larger than Pearson's: here 2.4 times."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 2))
    y = rng.wald(np.exp(X @ [0.5, 0.3]), 3.0)
    fitted, stream = KalproxRegressor(likelihood=OwnAmounts()).fit(X, y), KalproxRegressor(likelihood=OwnAmounts())
    for rows in np.split(np.arange(1000), 50):
        stream.partial_fit(X[rows], y[rows])
    assert stream.noise_var_ == pytest.approx(fitted.noise_var_, rel=0.05)
