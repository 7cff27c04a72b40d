"""Streams whose link is a function, with rows in any order, and streams of exponentials with a few dominant rows."""

import pickle
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom
from sklearn.exceptions import ConvergenceWarning

from kalprox import KalproxRegressor

N, BATCH = 3000, 150


def decay(theta, x):
    return theta[0] * jnp.exp(-theta[1] * x[0]) + theta[2]


def logistic(theta, x):
    return theta[0] / (1 + jnp.exp(-theta[1] * (x[0] - theta[2])))


def gompertz(theta, x):
    return theta[0] * jnp.exp(-theta[1] * jnp.exp(-theta[2] * x[0]))


def two_rates(theta, x):
    return theta[0] * jnp.exp(-theta[1] * x[0]) + theta[2] * jnp.exp(-theta[3] * x[0])


def growth(theta, x):
    return jnp.exp(theta[0] + theta[1] * x[0] + theta[2] * x[1])


# The function, theta, the start, the largest x, and the standard deviation of the noise.
CURVES = {
    "decay": (decay, [5.0, 1.1, -1.0], [4.0, 0.8, 0.0], 4.5, 0.4),
    "logistic": (logistic, [2.5, 0.9, 5.5], [2.0, 1.2, 4.5], 12.0, 0.15),
    "gompertz": (gompertz, [7.0, 3.2, 0.9], [5.0, 2.5, 0.7], 7.0, 0.3),
    "two rates": (two_rates, [2.0, 3.0, 4.0, 0.4], [3.0, 2.5, 3.0, 0.3], 6.0, 0.08),
}


def curve(name, order, seed):
    """Rows of a curve in the given order of x, the parameters of the estimator, and theta."""
    fn, theta, start, end, noise = CURVES[name]
    rng = np.random.default_rng([seed, *map(ord, name + order)])
    x = rng.uniform(0, end, N)
    if order == "blocks":
        rng.shuffle(parts := np.array_split(np.sort(x), 6))
        x = np.concatenate([rng.permutation(part) for part in parts])
    elif order != "shuffled":
        x = np.sort(x)[:: 1 if order == "ascending" else -1]
    theta = np.array(theta)
    y = np.asarray(fn(theta[:, None], x[None])) + noise * rng.normal(size=N)
    return x[:, None], y, {"function": fn, "start": start}, theta


def streamed(model, X, y, batch=BATCH):
    for begin in range(0, len(y), batch):
        model.partial_fit(X[begin : begin + batch], y[begin : begin + batch])
    return model


def beside_fit(name, order, seed):
    """A stream, how many standard errors it is from the fit to the same rows, and theta."""
    X, y, about, theta = curve(name, order, seed)
    stream = streamed(KalproxRegressor(**about), X, y)
    fit = KalproxRegressor(**about | {"start": theta}).fit(X, y)
    return stream, float((np.abs(stream.coef_ - fit.coef_) / fit.coef_std_).max()), theta


@pytest.mark.slow
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_a_sorted_stream_of_a_function_ends_at_the_fit(order):
    stream, apart, _ = beside_fit("decay", order, 1)
    assert stream.converged_ and apart < 0.3
    assert stream.diagnostics_.rows >= N / 10


@pytest.mark.slow
@pytest.mark.parametrize("name", CURVES)
def test_streams_of_functions_cover_or_say_that_they_have_not_converged(name):
    """95% of streams are within a standard error of `fit` or warn, and 90% of the intervals cover.

    3 streams in each of 4 orders; both up to bounds of the binomial law at 0.005. A descending stream of two rates may
    not end its warm-up.
    """
    wrong, inside, ended = [], [], []
    for order in ("ascending", "descending", "blocks", "shuffled"):
        for seed in range(3):
            stream, apart, theta = beside_fit(name, order, seed)
            ended.append(stream.converged_ or order == "descending")
            wrong.append(stream.converged_ and apart > 1)
            if stream.converged_:
                low, high = stream.coef_interval(0.95)
                inside.append((low <= theta) & (theta <= high))
            else:
                with pytest.warns(ConvergenceWarning, match="has not ended"):
                    stream.coef_interval(0.95)
    assert sum(wrong) <= binom.ppf(0.995, len(wrong), 0.05)
    assert (np.sum(inside, axis=0) >= binom.ppf(0.005, len(inside), 0.9)).all()
    assert np.mean(ended) > 0.8


def test_a_stream_that_is_not_determined_says_so_where_its_intervals_are_read():
    """The fast of two rates shows in the smallest x only, which come last."""
    X, y, about, _ = curve("two rates", "descending", 1)
    stream = streamed(KalproxRegressor(**about), X[:1500], y[:1500])
    assert not stream.converged_
    for read in (lambda: stream.coef_std_, stream.coef_interval, lambda: stream.predict_interval(X[:2])):
        with pytest.warns(ConvergenceWarning, match="has not ended: the 1500 rows held so far do not determine"):
            read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert "not converged: The warm-up of the stream has not ended" in str(stream.summary())


@pytest.mark.parametrize("stop", [pytest.param(300, marks=pytest.mark.slow), 1500])  # in the warm-up, and after it
def test_a_sorted_stream_of_a_function_resumes_bit_for_bit(stop):
    X, y, about, _ = curve("decay", "ascending", 3)
    whole = streamed(KalproxRegressor(**about), X, y)
    first = streamed(KalproxRegressor(**about), X[:stop], y[:stop])
    resumed = streamed(pickle.loads(pickle.dumps(first)), X[stop:], y[stop:])
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    np.testing.assert_array_equal(resumed.coef_std_, whole.coef_std_)
    assert resumed.converged_ and whole.converged_


@pytest.mark.parametrize("kind", [pytest.param("function", marks=pytest.mark.slow), "link"])
def test_an_exponential_whose_largest_rows_dominate_leaves_its_warm_up(kind):
    """Some rows always have a large leverage: these are held, the others are learned for good and judged."""
    rng = np.random.default_rng(11)
    n = 10_000
    X = rng.normal(size=(n, 2))
    y = np.exp(0.4 + X @ [1.2, -0.9]) + 0.5 * rng.normal(size=n)
    about = {"function": growth, "start": [0.0, 0.5, -0.5]} if kind == "function" else {"link": "exp", "penalty": None}
    stream, fit = (
        streamed(KalproxRegressor(**about), X, y, 400),
        KalproxRegressor(**about).fit(X, y),
    )
    assert stream.converged_ and stream.diagnostics_.rows > 0.5 * n
    assert len(pickle.dumps(stream)) < X.nbytes / 2
    np.testing.assert_allclose(stream.coef_, fit.coef_, atol=0.05 * fit.coef_std_.min())
