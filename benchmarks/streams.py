"""Streams of rows to be diagnosed: one that is as a linear regression assumes, and the ways in which real ones are not.

`STREAMS` maps the name of each kind to a generator `(rng, n, d=5) -> Stream`. The coefficients are 1 or -1 each, the
intercept is 1, and the noise has the variance 1, if the kind does not say otherwise.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["DIAGNOSES", "STREAMS", "Stream", "autoregressive", "predictions", "stream"]

INTERCEPT = 1.0
CLUSTER = 10  # rows of a cluster
DIAGNOSES = {  # the right word of the verdict on a linear model of each kind
    "independent": "calibrated",
    "AR(.5)": "correlated",
    "AR(.9)": "correlated",
    "clusters of 10": "correlated",
    "sd = |x_0|": "unequal spread",
    "sd grows with the prediction": "unequal spread",
    "1% outliers x 20": "heavy tails",
    "Student 3": "heavy tails",
    "missing square": "nonlinear",
    "missing product": "nonlinear",
    "level shift": "drifting",
    "slow drift": "drifting",
    "sorted, nonlinear": "drifting",
    "noise given x 2": "under-confident",
    "noise given x .5": "over-confident",
}


class Stream(NamedTuple):
    """Rows in the order in which they come, and the truth behind them.

    Attributes
    ----------
    X : array
        The inputs, shape (n, d).
    y : array
        The observations, shape (n,).
    coef : array
        The true coefficients, shape (d,): where they drift, their mean over the stream.
    noise : float or None
        The noise variance to give to the model; None says that it is to be learned.
    link : str
        The link of the model that generated the rows, by its name in `kalprox.models.LINKS`.
    """

    X: np.ndarray
    y: np.ndarray
    coef: np.ndarray
    noise: float | None = None
    link: str = "identity"


Generator = Callable[..., Stream]
STREAMS: dict[str, Generator] = {}


def _kind(name: str) -> Callable[[Generator], Generator]:
    def register(generator: Generator) -> Generator:
        STREAMS[name] = generator
        return generator

    return register


def stream(name: str, seed: int, n: int, d: int = 5) -> Stream:
    """Return the stream of one kind and one seed; kinds and lengths have different random numbers."""
    return STREAMS[name](np.random.default_rng([seed, n, *name.encode()]), n, d)


def _coef(rng: np.random.Generator, d: int) -> np.ndarray:
    return rng.choice([-1.0, 1.0], size=d)


def _linear(rng: np.random.Generator, X: np.ndarray, noise: np.ndarray, given: float | None = None) -> Stream:
    coef = _coef(rng, X.shape[1])
    return Stream(X, INTERCEPT + X @ coef + noise, coef, given)


def autoregressive(rng: np.random.Generator, n: int, k: int, rho: float) -> np.ndarray:
    """Return k stationary series of variance 1, shape (n, k); values a lag apart have the correlation rho^lag."""
    series = rng.normal(size=(n, k))
    series[1:] *= (1 - rho**2) ** 0.5
    for i in range(1, n):
        series[i] += rho * series[i - 1]
    return series


def _dependent(rng: np.random.Generator, n: int, d: int, rho: float) -> Stream:
    series = autoregressive(rng, n, d + 1, rho)
    return _linear(rng, series[:, :d], series[:, d])


@_kind("independent")
def independent(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """Independent rows with equal, normal noise: what the model assumes."""
    return _linear(rng, rng.normal(size=(n, d)), rng.normal(size=n))


@_kind("AR(.5)")
def moderately_dependent(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """Inputs and noise are autoregressive: successive rows have the correlation 0.5."""
    return _dependent(rng, n, d, 0.5)


@_kind("AR(.9)")
def strongly_dependent(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """Inputs and noise are autoregressive: successive rows have the correlation 0.9."""
    return _dependent(rng, n, d, 0.9)


@_kind("clusters of 10")
def clusters(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """Ten successive rows share an effect that is half of the variance, in each input and in the noise."""
    common = np.repeat(rng.normal(size=(-(-n // CLUSTER), d + 1)), CLUSTER, axis=0)[:n]
    values = (common + rng.normal(size=(n, d + 1))) / 2**0.5
    return _linear(rng, values[:, :d], values[:, d])


@_kind("sd = |x_0|")
def spread_of_an_input(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """The standard deviation of the noise is the absolute value of the first input."""
    X = rng.normal(size=(n, d))
    return _linear(rng, X, np.abs(X[:, 0]) * rng.normal(size=n))


@_kind("sd grows with the prediction")
def spread_of_the_prediction(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """The standard deviation of the noise grows by a factor of e^0.3 with each standard deviation of the prediction."""
    X, coef = rng.normal(size=(n, d)), _coef(rng, d)
    signal = X @ coef
    return Stream(X, INTERCEPT + signal + np.exp(0.3 * signal / d**0.5) * rng.normal(size=n), coef)


@_kind("1% outliers x 20")
def outliers(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """The noise of one row in a hundred is twenty times as large."""
    return _linear(rng, rng.normal(size=(n, d)), rng.normal(size=n) * np.where(rng.random(n) < 0.01, 20, 1))


@_kind("Student 3")
def student(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """The noise has Student's t distribution with three degrees of freedom, scaled to the variance 1."""
    return _linear(rng, rng.normal(size=(n, d)), rng.standard_t(3, size=n) / 3**0.5)


@_kind("missing square")
def missing_square(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """The target depends on the square of the first input, too."""
    X = rng.normal(size=(n, d))
    return _linear(rng, X, (X[:, 0] ** 2 - 1) / 2 + rng.normal(size=n))


@_kind("missing product")
def missing_product(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """The target depends on the product of the first two inputs, too."""
    X = rng.normal(size=(n, d))
    return _linear(rng, X, X[:, 0] * X[:, 1] / 2 + rng.normal(size=n))


@_kind("level shift")
def level_shift(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """The intercept jumps by two standard deviations of the noise, somewhere in the middle third of the stream."""
    jump = np.where(np.arange(n) < rng.uniform(n / 3, 2 * n / 3), 0, 2 * rng.choice([-1, 1]))
    return _linear(rng, rng.normal(size=(n, d)), jump + rng.normal(size=n))


@_kind("slow drift")
def slow_drift(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """Each coefficient moves by 2, up or down, in a straight line from the first row to the last."""
    X, coef, way = rng.normal(size=(n, d)), _coef(rng, d), _coef(rng, d)
    along = np.linspace(-1, 1, n)[:, None] * way
    return Stream(X, INTERCEPT + np.sum(X * (coef + along), axis=1) + rng.normal(size=n), coef)


@_kind("sorted, nonlinear")
def sorted_nonlinear(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """Rows sorted by the linear predictor behind a hyperbolic tangent, with noise of standard deviation 0.2."""
    X, coef = rng.normal(size=(n, d)), _coef(rng, d)
    X = X[np.argsort(X @ coef)]
    return Stream(X, np.tanh(X @ coef) + 0.2 * rng.normal(size=n), coef, link="tanh")


@_kind("noise given x 2")
def noise_too_large(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """Independent rows, and the model is told that the standard deviation of the noise is twice the true one."""
    return _linear(rng, rng.normal(size=(n, d)), rng.normal(size=n), given=4.0)


@_kind("noise given x .5")
def noise_too_small(rng: np.random.Generator, n: int, d: int = 5) -> Stream:
    """Independent rows, and the model is told that the standard deviation of the noise is half the true one."""
    return _linear(rng, rng.normal(size=(n, d)), rng.normal(size=n), given=0.25)


def predictions(
    X: np.ndarray, y: np.ndarray, noise: float | None = None, prior: float = 1e6
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predict each row of a linear regression with intercept from all rows before it, for many streams at once.

    The covariance is updated row by row in square-root form (Potter's). With the weak prior, predictions are those of
    least squares to about 1e-7.

    Parameters
    ----------
    X : array
        The inputs, shape (streams, n, d).
    y : array
        The observations, shape (streams, n).
    noise : float, optional
        The noise variance; by default it is learned.
    prior : float
        The variance of each coefficient before the first row, in units of the noise variance.

    Returns
    -------
    mean, std, dof : arrays
        The location, scale and degrees of freedom of the predictive distributions, shape (streams, n). The scale is
        infinite where no degrees of freedom are left.
    """
    streams, n, d = X.shape
    X = np.concatenate([X, np.ones((streams, n, 1))], axis=2)
    theta, L = np.zeros((streams, d + 1)), prior**0.5 * np.tile(np.eye(d + 1), (streams, 1, 1))
    rss, mean, std = np.zeros(streams), np.empty((streams, n)), np.empty((streams, n))
    dof = np.arange(n) - d - 1.0
    for t in range(n):
        x = X[:, t]
        p = np.einsum("sij,si->sj", L, x)  # L'x
        s = 1 + np.einsum("sj,sj->s", p, p)
        mean[:, t] = np.einsum("si,si->s", theta, x)
        variance = noise if noise is not None else rss / dof[t] if dof[t] > 0 else np.inf
        std[:, t] = (variance * s) ** 0.5
        e = y[:, t] - mean[:, t]
        rss += e**2 / s
        k = np.einsum("sij,sj->si", L, p)
        theta += k * (e / s)[:, None]
        L -= k[:, :, None] * (p / (s + s**0.5)[:, None])[:, None, :]
    return mean, std, np.broadcast_to(dof if noise is None else np.inf, std.shape)
