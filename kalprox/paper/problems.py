"""The data of the paper's two experiments, as its section IV describes them."""

from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter

__all__ = ["Rows", "ridge", "sparse"]


class Rows(NamedTuple):
    """Inputs (n, d), targets (n,), and the theta that made them (d,)."""

    X: np.ndarray
    y: np.ndarray
    theta: np.ndarray


def ridge(n: int, d: int, seed: int) -> Rows:
    """Section IV-A: x_k and theta* Gaussian, y_k = x_k' theta* + N(0, 1). The rows are in random order."""
    rng = np.random.default_rng([seed, 1])
    theta = rng.standard_normal(d)
    X = rng.standard_normal((n, d))
    return Rows(X, X @ theta + rng.standard_normal(n), theta)


def sparse(n: int, d: int, size: float, seed: int) -> Rows:
    """Section IV-B: y_k = sigmoid(x_k' theta*) + N(0, 1), x_k = [x_{k-d+1}, ..., x_k] of an AR(0.8) input.

    Circulant boundaries; x_0 ~ N(0, 1). The paper does not say what theta* was: here a tenth of the taps,
    at random places, are `size` or -`size`, and the rest are zero.
    """
    rng = np.random.default_rng([seed, 2])
    theta = np.zeros(d)
    places = rng.choice(d, max(1, d // 10), replace=False)
    theta[places] = size * rng.choice([-1.0, 1.0], len(places))
    x = lfilter([1.0], [1.0, -0.8], rng.standard_normal(n))
    X = x[(np.arange(n)[:, None] + np.arange(d)[None] - (d - 1)) % n]
    return Rows(X, 1 / (1 + np.exp(-X @ theta)) + rng.standard_normal(n), theta)
