"""Targets outside the range of a link are refused, unless noise explains them or they are meant."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from kalprox import KalproxRegressor
from kalprox.likelihoods import Gaussian

RNG = np.random.default_rng(0)
X = RNG.normal(size=(100, 2))
U = X @ [1.0, -1.0]
SIGMOID = 1 / (1 + np.exp(-U))


def with_3(y):
    y = y.copy()
    y[[5, 17]] = 3.0
    return y


WRONG = {
    "two targets of 3": ("sigmoid", with_3(SIGMOID + 0.1 * RNG.normal(size=100)), r"2 of 100 .* 5, 17, by more than"),
    "not scaled": ("sigmoid", 10 * SIGMOID, r"of 100 .* and so does the mean of all, 4\."),
    "three rows": ("sigmoid", np.array([2.9, 3.1, 3.0]), "3 of 3"),
    "negative": ("exp", -np.exp(U), r"between 0 and inf, .* 100 of 100 .* 0, 1, 2, 3, 4, \.\.\."),
    "one far below": ("softplus", np.where(np.arange(100) == 7, -50.0, 1.0 + 0.1 * U), "1 of 100 .* 7, by more than"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("how", ["fit", "partial_fit"])
def test_targets_outside_the_range_are_refused_by_row(kind, how):
    link, y, message = WRONG[kind]
    model = KalproxRegressor(link=link, penalty="ridge")
    with pytest.raises(ValueError, match=message + ".*set targets='any'.*likelihoods.Gaussian"):
        getattr(model, how)(X[: len(y)], y)
    assert not hasattr(model, "coef_")
    meant = KalproxRegressor(link=link, likelihood=Gaussian(targets="any"), alpha=10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # coefficients that run to infinity, or to a plateau
        assert getattr(meant, how)(X[: len(y)], y).n_rows_seen_ == len(y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "mean", "noise"),
    [("sigmoid", SIGMOID, 0.1), ("sigmoid", SIGMOID, 1.0), ("tanh", np.tanh(U), 0.5), ("exp", np.exp(U), 0.3)],
)
def test_noise_about_the_link_is_not_refused(link, mean, noise):
    """20 samples of 100 rows in two batches: with a false alarm in 500 batches, two are as rare as 1 in 300."""
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(20):
        y = mean + noise * rng.normal(size=100)
        try:
            KalproxRegressor(link=link, penalty="ridge").partial_fit(X[:50], y[:50]).partial_fit(X[50:], y[50:])
        except ValueError:
            refused += 1
    assert refused <= 1


def test_targets_given_their_noise():
    y = SIGMOID + RNG.normal(size=100)
    KalproxRegressor(link="sigmoid", noise=1.0, penalty="ridge").partial_fit(X, y)
    with pytest.raises(ValueError, match=r"by more than noise with a standard deviation of 0\.1"):
        KalproxRegressor(link="sigmoid", noise=0.01, penalty=None).partial_fit(X, y)


def test_an_earlier_target_does_not_refuse_a_later_batch():
    """Three rows cannot tell noise from a mistake; what they were allowed is not held against later rows."""
    model = KalproxRegressor(link="sigmoid", penalty="ridge").partial_fit(X[:3], np.array([0.1, 2.0, 0.6]))
    model.partial_fit(X, np.clip(SIGMOID, 0.01, 0.99))
    assert model.n_rows_seen_ == 103


def test_rows_of_weight_zero_may_hold_anything():
    y = with_3(SIGMOID)
    weights = np.where(y == 3.0, 0.0, 1.0)
    assert KalproxRegressor(link="sigmoid", penalty="ridge").fit(X, y, sample_weight=weights).n_rows_seen_ == 98


def test_the_setting_is_checked():
    with pytest.raises(ValueError, match="targets must be one of range, any; got 'all'"):
        KalproxRegressor(link="sigmoid", likelihood=Gaussian(targets="all"), penalty="ridge").fit(X, SIGMOID)


@pytest.mark.parametrize("link", ["exp", "softplus"])
@pytest.mark.parametrize("how", ["fit", "partial_fit"])
def test_more_than_half_on_the_wrong_side_are_refused(link, how):
    """Their mean is positive, by a few large ones, and their spread is large."""
    y = np.where(np.arange(200) % 10 == 0, 30.0, -1.0)
    X = np.random.default_rng(0).normal(size=(200, 2))
    with pytest.raises(ValueError, match="as 90% of all do, more than half"):
        getattr(KalproxRegressor(link=link, penalty="ridge"), how)(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        getattr(KalproxRegressor(link=link, likelihood=Gaussian(targets="any"), penalty="ridge"), how)(X, y)


@pytest.mark.slow
def test_half_on_the_wrong_side_are_noise_about_zero():
    """None of 30 streams is refused, of which one in a thousand may be."""
    rng = np.random.default_rng(1)
    for _ in range(30):
        KalproxRegressor(link="exp", penalty="ridge").partial_fit(rng.normal(size=(50, 1)), rng.normal(size=50))
