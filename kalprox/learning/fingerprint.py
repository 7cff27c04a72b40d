"""Fingerprints of rows: models that have learned the same rows are recognised before they are merged.

The fingerprint of a model is computed from its information when it is needed, so that learning costs nothing more. It
does not depend on the order of the rows or on their batches, up to rounding. A model that was merged from others keeps
their fingerprints, in no order, and a model file stores them.
"""

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.text import worded
from kalprox.information import Information

__all__ = ["SIZE", "check_apart", "fingerprint", "of_moments"]

SIZE = 7  # numbers in a fingerprint
_TOL = 1e-9  # far above the rounding of sums over rows, far below the difference that another row makes
_ROUNDING = 1e-12  # of a mean, relative to its size
_CONSTANT = 1e-9  # a column with a smaller standard deviation, relative to its mean, is taken as constant


def fingerprint(info: Information) -> Array:
    """Return the fingerprint of the rows of an information, shape (7,).

    It has the number of rows and their weight, the mean and the standard deviation of the (first) target, and of the
    columns that vary a random combination of mean / std, the size of its terms, and one of log(std).
    """
    T, shift = np.asarray(info.T), np.asarray(info.shift)
    weight = float(T[0, 0]) ** 2
    mean = T[0, 1:] / T[0, 0] + shift
    return of_moments(float(info.rows), weight, mean, np.sqrt((T[1:, 1:] ** 2).sum(axis=0) / weight), info.d)


def of_moments(rows: float, weight: float, mean: Array, std: Array, d: int) -> Array:
    """Return the fingerprint of rows with these means and standard deviations of d columns and of the targets."""
    r = np.random.default_rng(0).standard_normal(len(mean)) / len(mean) ** 0.5
    varies = std > _CONSTANT * np.abs(mean)
    r, place, spread = r[varies], mean[varies] / std[varies], np.log(std[varies])
    return np.array([rows, weight, mean[d], std[d], r @ place, np.abs(r) @ np.abs(place), r @ spread])


def check_apart(mine: Array, theirs: Array) -> None:
    """Raise a ValueError if one of my fingerprints, shape (m, 7), is one of theirs, shape (n, 7), up to rounding."""
    rows, weight, mean, std, _, size, _ = mine.T
    target, place = _TOL * std + _ROUNDING * np.abs(mean), _TOL + _ROUNDING * size
    same = [_TOL * rows, _TOL * weight, target, target, place, _TOL * size + _TOL, np.full(len(mine), _TOL)]
    if (np.abs(mine[:, None] - theirs[None]) <= np.column_stack(same)[:, None]).all(axis=-1).any():
        raise ValueError(
            worded(
                "The models have rows in common: both have learned the same rows, or one of them was merged from a "
                "model of rows that the other has, too. Merge models of different rows, or set {allow_overlap=True} if "
                "these rows are to count twice."
            )
        )
