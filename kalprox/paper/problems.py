"""The data of the two experiments in section IV of the paper, and what both do with them."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter

from kalprox.algorithms.base import Algorithm
from kalprox.base.arrays import Array
from kalprox.paper.run import run


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


def stretches(rows: Rows, points: int, first: int = 1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows from each of `record_points` to the next."""
    for start, stop in pairwise([0, *record_points(len(rows.y), points, first)]):
        yield rows.X[start:stop], rows.y[start:stop]


def after(alg: Algorithm, state: Any, X: Array, y: Array) -> Any:
    """The state after the rows. Nothing is recorded, so that one compiled loop serves all lengths."""
    return run(alg, state, X, y, record_every=10**9).state


def states_along(alg: Algorithm, state: Any, rows: Rows, points: int) -> Iterator[Any]:
    """The states after each of `record_points` rows."""
    for X, y in stretches(rows, points):
        state = after(alg, state, X, y)
        yield state


def closed_form(rows: Rows, lam: float) -> np.ndarray:
    """argmin over theta of 1/2 ||y - X theta||^2 + lam/2 ||theta||^2."""
    A: np.ndarray = rows.X.T @ rows.X + lam * np.eye(len(rows.theta))
    return np.linalg.solve(A, rows.X.T @ rows.y)


def covered(mean: Array, var: Array, theta: Array) -> Any:
    """The share of the entries of theta within mean +- 2 sigma, over the last axis."""
    return np.mean(np.abs(mean - theta) <= 2 * np.sqrt(var), axis=-1)


def first_at(curves: np.ndarray, level: float) -> np.ndarray:
    """The first record at which each curve is at or below the level; infinite where it never is."""
    below = curves <= level
    first: np.ndarray = np.where(below.any(axis=1), below.argmax(axis=1), np.inf)
    return first


def relative_error(means: Array, theta: Array) -> Any:
    """||mean - theta|| / ||theta||, over the last axis."""
    return np.linalg.norm(np.asarray(means) - theta, axis=-1) / np.linalg.norm(theta)
