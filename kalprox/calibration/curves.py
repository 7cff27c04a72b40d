"""Curves of predicted classes: reliability, ROC and lift, computed from cells of the stated probability."""

from typing import NamedTuple

import numpy as np
from scipy import special

from kalprox.calibration.cells import Cells


class Reliability(NamedTuple):
    """The share of events among rows with about the same stated probability, one entry for each group of rows.

    Attributes
    ----------
    stated : array
        The mean of the stated probabilities.
    observed : array
        The share of the rows that had the event.
    low, high : array
        The ends of the 95% interval of that share (Clopper and Pearson).
    rows : array
        The number of rows.
    """

    stated: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray


class Roc(NamedTuple):
    """The receiver operating characteristic: one entry for each threshold, from the largest to 0.

    Attributes
    ----------
    false_positive_rate : array
        The share of the rows without the event whose probability is at least the threshold.
    true_positive_rate : array
        The same of the rows with the event.
    threshold : array
    """

    false_positive_rate: np.ndarray
    true_positive_rate: np.ndarray
    threshold: np.ndarray


class Lift(NamedTuple):
    """Rows in the order of their probability, the largest first: one entry for each threshold.

    Attributes
    ----------
    rows : array
        The share of all rows that come first.
    events : array
        The share of all events among them.
    lift : array
        The share of events among these rows, relative to the share among all.
    """

    rows: np.ndarray
    events: np.ndarray
    lift: np.ndarray


def reliability(cells: Cells, groups: int) -> Reliability:
    """Return the reliability of up to `groups` groups of neighbouring cells with about as many rows each."""
    total = cells.rows.sum()
    place = ((np.cumsum(cells.rows) - cells.rows / 2) / total * groups).astype(int)
    rows, events, stated = (np.bincount(place, a) for a in (cells.rows, cells.events, cells.rows * cells.stated))
    some = rows > 0
    n, k, p = rows[some], events[some], stated[some]
    low = np.where(k > 0, special.betaincinv(np.maximum(k, 1e-9), n - k + 1, 0.025), 0.0)
    high = np.where(k < n, special.betaincinv(k + 1, np.maximum(n - k, 1e-9), 0.975), 1.0)
    return Reliability(p / n, k / n, low, high, n)


def area(cells: Cells) -> float:
    """Return the area under the ROC curve; rows of one cell are ties. NaN if all rows have the same outcome."""
    without = cells.rows - cells.events
    pairs = without.sum() * cells.events.sum()
    if pairs == 0:
        return float("nan")
    return float(cells.events @ (np.cumsum(without) - without / 2) / pairs)


def roc(cells: Cells) -> Roc:
    """Return the ROC curve, with a threshold at each cell."""
    events, without = cells.events[::-1], (cells.rows - cells.events)[::-1]
    false, true = (np.concatenate([[0.0], np.cumsum(a)]) / a.sum() for a in (without, events))
    return Roc(false, true, np.concatenate([[np.inf], cells.stated[::-1]]))


def lift(cells: Cells) -> Lift:
    """Return the lift curve, with a threshold at each cell."""
    rows, events = (np.cumsum(a[::-1]) / a.sum() for a in (cells.rows, cells.events))
    return Lift(rows, events, events / rows)
