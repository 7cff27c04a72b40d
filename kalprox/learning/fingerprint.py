"""Fingerprints of rows: models that have learned the same rows are recognised before they are merged.

The fingerprint of a model is computed from its information when it is needed, so that learning costs nothing more. It
does not depend on the order of the rows or on their batches, up to rounding. A model that was merged from others keeps
their fingerprints, in no order, and a model file stores them.
"""

import numpy as np

from kalprox._arrays import Array
from kalprox.information import Information

__all__ = ["SIZE", "fingerprint", "overlap"]

SIZE = 6  # numbers in a fingerprint
_TOL = 1e-9  # far above the rounding of sums over rows, far below the difference that another row makes


def fingerprint(info: Information) -> Array:
    """Return the fingerprint of the rows of an information, shape (6,).

    It has the number of rows, their weight, a random combination of the means and one of the spreads of all columns,
    both in units of the columns, and the mean and the standard deviation of the (first) target.
    """
    T, shift = np.asarray(info.T), np.asarray(info.shift)
    weight = float(T[0, 0]) ** 2
    mean = T[0, 1:] / T[0, 0] + shift
    variance = (T[1:, 1:] ** 2).sum(axis=0) / weight
    size = mean**2 + variance
    r = np.random.default_rng(0).standard_normal(len(mean)) / len(mean) ** 0.5
    share = np.divide(variance, size, out=np.zeros(len(mean)), where=size > 0)
    place = np.divide(mean, np.sqrt(size), out=np.zeros(len(mean)), where=size > 0)
    return np.array([float(info.rows), weight, r @ place, r @ share, mean[info.d], variance[info.d] ** 0.5])


def overlap(mine: Array, theirs: Array) -> bool:
    """Whether one of my fingerprints, shape (m, 6), is one of theirs, shape (n, 6), up to rounding."""
    difference = np.abs(mine[:, None] - theirs[None])
    target = np.abs(mine[:, 4]) + mine[:, 5]
    ones = np.ones(len(mine))
    scale = np.column_stack([mine[:, 0], mine[:, 1], ones, ones, target, target])
    return bool((difference <= _TOL * scale[:, None]).all(axis=-1).any())
