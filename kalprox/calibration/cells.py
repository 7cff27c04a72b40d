"""What the cells of a `ClassCalibration` show: rows by stated probability, and how many of them had the event.

A cell is an interval of the log odds. The number of events in it is a sum of independent events with known
probabilities, if these are right, whatever they are: no model of the rows is needed to test them.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array
from kalprox.calibration.checks import Check

CELLS = 512
WIDTH = 1 / 16  # of a cell, in log odds; 256 cells to each side of 0 reach probabilities of 1e-7
PROBABILITY_ALARMS = 0.0043  # the largest probability of each of three checks to find something in a calibrated stream
MATERIAL_ODDS = 0.1  # a smaller shift of the log odds, or relative error of their differences, is not named
MATERIAL_CURVE = 0.15  # the root mean square of the shifts of the log odds about a straight line
FEWEST_VARIANCE = 10.0  # of the number of events: of all rows to judge a slope, and of each group to compare groups
_MOST_GROUPS = 10
_STEPS = 50


def cell_of(p: Array) -> Array:
    """Return the cells of probabilities.

    >>> cell_of(np.array([0.0, 0.5, 1.0]))
    array([  0, 256, 511])
    """
    return np.clip(np.floor(special.logit(p) / WIDTH) + CELLS // 2, 0, CELLS - 1).astype(int)


class Cells(NamedTuple):
    """Cells that have rows, in the order of the stated probability.

    Attributes
    ----------
    rows, events : array of shape (c,)
        The number of rows, and of events among them.
    stated : array of shape (c,)
        The mean of the stated probabilities.
    """

    rows: np.ndarray
    events: np.ndarray
    stated: np.ndarray

    @classmethod
    def of(cls, outcomes: Array, stated: Array) -> "Cells":
        """Return the cells of rows without and with the event, shape (2, CELLS), and sums of the probabilities."""
        outcomes, stated = np.asarray(outcomes, float), np.asarray(stated, float)
        rows = outcomes.sum(axis=0)
        some = rows > 0
        return cls(rows[some], outcomes[1, some], np.clip(stated[some] / rows[some], 0.0, 1.0))

    @property
    def variance(self) -> np.ndarray:
        """The variance of the number of events of each cell, if the probabilities are right."""
        variance: np.ndarray = self.rows * self.stated * (1 - self.stated)
        return variance

    @property
    def odds(self) -> np.ndarray:
        """The log odds of the mean probability of each cell, at most 36 in size."""
        tiny = 2.0**-52
        odds: np.ndarray = special.logit(np.clip(self.stated, tiny, 1 - tiny))
        return odds

    def bias(self) -> tuple[float, float]:
        """Return by how much the log odds of the event exceed those stated, on average, and the p-value of none."""
        expected, events = float(self.rows @ self.stated), float(self.events.sum())
        variance = float(self.variance.sum())
        if not variance > 0:
            return (0.0, 1.0) if abs(events - expected) < 0.5 else (math.copysign(math.inf, events - expected), 0.0)
        shift = (events - expected) / variance
        cells = self
        if events <= expected:  # the rows that do not have the event, in place of those that have
            cells = Cells(self.rows, self.rows - self.events, 1 - self.stated)
            events = float(self.rows.sum()) - events
        tail = _tail(cells, np.ones(len(self.rows)), events)
        return shift, min(2 * tail, 1.0)

    def slope(self) -> tuple[float, float]:
        """Return the factor by which log odds differ, of those stated, and the p-value of 1; NaN if they do not vary.

        A factor below 1 says that the stated probabilities are too extreme. The test is the score test of logistic
        regression of the events on the stated log odds, at the slope 1 and the intercept that fits, with the tail of
        its statistic by a saddle point; the factor is that of the regression. As far as the intercept of the model
        that stated them was learned meanwhile, a statistic that is too small says nothing: see `_of_learning`.
        """
        cells, odds = self._shifted(), self.odds
        V = cells.variance
        if not V.sum() >= FEWEST_VARIANCE:
            return math.nan, math.nan
        w = odds - float(V @ odds / V.sum())
        if not float(V @ w**2) > 1e-6 * V.sum():
            return math.nan, math.nan
        found, expected = float(w @ cells.events), float(w @ (cells.rows * cells.stated))
        if found > expected:
            tail = _tail(cells, w, found)
        else:
            tail = _tail(cells, -w, -min(found + _of_learning(float(V.sum())), expected))
        return 1 + cells._regression(w), min(2 * tail, 1.0)

    def explained(self, pull: float) -> bool:
        """Whether a penalty explains log odds that differ more than stated.

        At the estimate of a model that learned these rows, the gradient of the loss is that of the penalty: the sum of
        the errors times the log odds is `pull`, the coefficients times the gradient of the penalty. As each row was
        predicted by the rows before it, the sum is about pull log(1 + J / pull), with the information J about the
        factor of the log odds. Twice that, and two standard deviations, are allowed for.
        """
        V, odds = self.variance, self.odds
        w = odds - float(V @ odds / V.sum())
        J = float(V @ w**2)
        excess = float(w @ (self.events - self.rows * self.stated))
        return excess <= 2 * pull * math.log1p(J / pull if pull > 0 else 0.0) + 2 * math.sqrt(J)

    def curve(self) -> tuple[float, float]:
        """Return the root mean square of the shifts of the log odds about a straight line, and the p-value of none.

        Neighbouring cells are joined to groups, up to ten. The numbers of events in the groups, less what a shift and a
        slope explain, are chi-square with two degrees of freedom less than there are groups.
        """
        V, odds = self.variance, self.odds
        total = float(V.sum())
        groups = min(int(total / FEWEST_VARIANCE), _MOST_GROUPS)
        if groups < 4:
            return math.nan, math.nan
        group = np.minimum(((np.cumsum(V) - V / 2) / total * groups).astype(int), groups - 1)
        sums = [np.bincount(group, values, groups) for values in (V, self.events - self.rows * self.stated, V * odds)]
        variance, beyond, at = (a[sums[0] >= FEWEST_VARIANCE / 2] for a in sums)
        if len(variance) < 4:
            return math.nan, math.nan
        root = np.sqrt(variance)
        line = np.linalg.qr(np.column_stack([root, at / root]))[0]
        z = beyond / root
        left, dof = float(z @ z - ((line.T @ z) ** 2).sum()), len(z) - 2
        return math.sqrt(max(left - dof, 0.0) / float(variance.sum())), float(special.chdtrc(dof, max(left, 0.0)))

    def checks(self, event: str, several: int = 1) -> tuple[Check, Check, Check]:
        """Return the checks of the slope, the shift and the curve of the log odds; `event` is what they are about."""
        level, rows = PROBABILITY_ALARMS / several, float(self.rows.sum())
        came, stated = (100 * float(a.sum()) / rows for a in (self.events, self.rows * self.stated))
        shift, p_shift = self.bias()
        factor, p_factor = self.slope()
        size, p_size = self.curve()
        biased = p_shift < level and abs(shift) >= MATERIAL_ODDS
        sloped = p_factor < level and abs(factor - 1) >= MATERIAL_ODDS
        curved = p_size < level and size >= MATERIAL_CURVE and not biased and not sloped
        confident = "over-confident" if not factor > 1 else "under-confident"
        return (
            Check(confident, f"the log odds differ {factor:.2f} times as much as stated", p_factor, sloped),
            Check("biased", f"{event} in {came:.3g}% of the rows ({stated:.3g}% were stated)", p_shift, biased),
            Check("nonlinear", f"the log odds are off by {size:.2f} about a straight line", p_size, curved),
        )

    def _regression(self, w: np.ndarray) -> float:
        """The slope of logistic regression of the events on w, with the stated log odds as the offset."""
        X, theta = np.column_stack([np.ones(len(w)), w]), np.zeros(2)
        for _ in range(_STEPS):
            p = special.expit(self.odds + X @ theta)
            V = self.rows * p * (1 - p)
            H = (X.T * V) @ X
            step = np.linalg.solve(H + 1e-6 * np.eye(2), X.T @ (self.events - self.rows * p) - 1e-6 * theta)
            step *= min(1.0, 1 / max(float(np.abs(step).max()), 1e-12))  # far from the solution the parabola misleads
            theta += step
            if np.abs(step).max() < 1e-8:
                break
        return float(theta[1])

    def _shifted(self) -> "Cells":
        """The same cells with the log odds shifted so that as many events are expected as came."""
        low, high, events = -40.0, 40.0, float(self.events.sum())
        for _ in range(60):
            shift = (low + high) / 2
            more = float(self.rows @ special.expit(self.odds + shift)) > events
            low, high = (low, shift) if more else (shift, high)
        return self._replace(stated=special.expit(self.odds + (low + high) / 2))


def _of_learning(variance: float) -> float:
    """By how much the statistic of the slope is below its mean because an intercept was learned from the same rows.

    After rows whose numbers of events have the variance v, together, the intercept is off by a random number of the
    variance 1/v. In the log odds of the next row, whose variance is p(1 - p), it says nothing, and takes p(1 - p)/v
    from the statistic in the mean: log(v) in all, if the first row is predicted with a variance of 1. Errors below half
    the width of a cell are not seen. No model that learns the share of events can avoid this, so it is no fault.
    """
    return math.log(min(max(variance, 1.0), (2 / WIDTH) ** 2))


def _tail(cells: Cells, w: np.ndarray, found: float) -> float:
    """The probability that the sum of w over the events is at least as large as found, which exceeds its mean.

    It is that of Lugannani and Rice: with the cumulant generating function K of the sum and the t at which K'(t) is
    what was found, in closed form. Where all w are 1, the sum is a whole number, and the correction of Daniels for
    lattices applies.

    References
    ----------
    R. Lugannani and S. Rice, "Saddle point approximation for the distribution of the sum of independent random
    variables", Advances in Applied Probability 12(2), 1980. H. E. Daniels, "Tail probability approximations",
    International Statistical Review 55(1), 1987.
    """
    n, odds = cells.rows, cells.odds
    lattice, most = bool((w == 1).all()), float(n @ np.maximum(w, 0))
    if found >= most - 1e-9 * float(
        n @ np.abs(w)
    ):  # every row has, or has not, the event, as w is positive or negative
        return math.exp(-float(n @ np.logaddexp(0, -np.sign(w) * odds)))
    low, high = 0.0, 1.0
    while float((n * w) @ special.expit(odds + high * w)) < found and high < 1e3:
        low, high = high, 2 * high
    for _ in range(60):  # bisection: few cells, and never outside
        t = (low + high) / 2
        low, high = (t, high) if float((n * w) @ special.expit(odds + t * w)) < found else (low, t)
    t = (low + high) / 2
    q = special.expit(odds + t * w)
    K = float(n @ (np.logaddexp(0, odds + t * w) - np.logaddexp(0, odds)))
    bent = float((n * w**2) @ (q * (1 - q)))
    r = math.sqrt(max(2 * (t * found - K), 0.0))
    u = (-math.expm1(-t) if lattice else t) * math.sqrt(bent)
    if r < 1e-4:  # the mean itself
        return 0.5
    tail = float(special.ndtr(-r) + math.exp(-r * r / 2) / math.sqrt(2 * math.pi) * (1 / u - 1 / r))
    return min(max(tail, 0.0), 1.0)
