"""The data of the two experiments in section IV of the paper, and how estimates are compared with the truth."""

from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter

from kalprox.base.arrays import Array

__all__ = ["Rows", "record_points", "relative_error", "ridge", "sparse"]


class Rows(NamedTuple):
    """Inputs of shape (n, d), targets of shape (n,), and the true theta of shape (d,)."""

    X: np.ndarray
    y: np.ndarray
    theta: np.ndarray


def ridge(n: int, d: int, seed: int) -> Rows:
    """Section IV-A: y_k = x_k' theta* + N(0, 1), with Gaussian x_k and theta*. The rows are in random order."""
    rng = np.random.default_rng([seed, 1])
    theta = rng.standard_normal(d)
    X = rng.standard_normal((n, d))
    return Rows(X, X @ theta + rng.standard_normal(n), theta)


def sparse(n: int, d: int, size: float, seed: int) -> Rows:
    """Section IV-B: y_k = sigmoid(x_k' theta*) + N(0, 1), with x_k = [x_{k-d+1}, ..., x_k] of an AR(0.8) input.

    The boundaries are circulant, and x_0 ~ N(0, 1). The paper does not state theta*: here a tenth of its entries, the
    taps of a filter, are `size` or -`size`, at random positions, and the others are zero.
    """
    rng = np.random.default_rng([seed, 2])
    theta = np.zeros(d)
    places = rng.choice(d, max(1, d // 10), replace=False)
    theta[places] = size * rng.choice([-1.0, 1.0], len(places))
    x = lfilter([1.0], [1.0, -0.8], rng.standard_normal(n))
    X = x[(np.arange(n)[:, None] + np.arange(d)[None] - (d - 1)) % n]
    return Rows(X, 1 / (1 + np.exp(-X @ theta)) + rng.standard_normal(n), theta)


def record_points(n: int, points: int, first: int = 1) -> np.ndarray:
    """At most `points` numbers of rows from `first` to n, logarithmically spaced.

    >>> record_points(1000, 4)
    array([   1,   10,  100, 1000])
    """
    return np.unique(np.geomspace(min(first, n), n, points).round().astype(int))


def relative_error(means: Array, theta: Array) -> Any:
    """||mean - theta|| / ||theta||, over the last axis."""
    return np.linalg.norm(np.asarray(means) - theta, axis=-1) / np.linalg.norm(theta)
