"""A filter of single sparse rows of a linear model whose information is a diagonal, which learns them in place.

A belief is immutable, so that learning a row copies its d numbers. `DiagonalFilter` has arrays of its own, and learns
and predicts a row in a time that follows the entries of the row, however many columns there are.
"""

import copy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from kalprox.base.arrays import Array
from kalprox.large.information import Structured, diagonal, noise_of_predictions, rss_with
from kalprox.learning.design import Moments
from kalprox.learning.settings import Settings
from kalprox.noise import Noise
from kalprox.predictive import Predictive
from kalprox.sources import Block


class DiagonalFilter:
    """The information diag(p) with the mean m, which learns single sparse rows.

    For a row a of weight w with the target y, and e = y - a'm,

        m += diag(p)^-1 a w e / (1 + w a' diag(p)^-1 a),    p += w a^2,

    which is what `kalprox.large.information.Structured.fold` returns for a block of this row alone. The rows themselves
    are not held.

    Parameters
    ----------
    settings : Settings
    data : Structured
        The information before these rows: a diagonal.
    first : int
        1 with an intercept, 0 without one.

    Attributes
    ----------
    p, m : array of shape (d,)
    unit : array of shape (d,)
        The prior precisions, or their mean where that is larger: the units of `traces`.
    sums : array of shape (5,)
        `rows`, `squares`, `rss` and the two `traces` of the information.
    moments : array of shape (2, d)
        The sums of the inputs of the rows and of the squares of these, each times the weight of its row.
    """

    keeps_digits: ClassVar[bool] = True
    is_due: ClassVar[bool] = False

    def __init__(self, settings: Settings, data: Structured, first: int) -> None:
        self.settings, self.data, self.first, self.weight = settings, data, first, 0.0
        self.p, self.m, self.moments = data.precision.base.p.copy(), data.mean.copy(), np.zeros((2, data.d))
        self.unit = np.broadcast_to(np.maximum(data.prior_precision, data.least), (data.d,))
        self.sums = np.array([data.rows, data.squares, data.rss, *data.traces], float)

    def copy(self) -> "DiagonalFilter":
        """Return a filter that later rows of this one do not change. O(d)."""
        new = copy.copy(self)
        new.p, new.m, new.sums, new.moments = self.p.copy(), self.m.copy(), self.sums.copy(), self.moments.copy()
        return new

    # ---- learning --------------------------------------------------------------------------------------

    def learn_rows(self, rows: Block) -> list[Array]:
        """Learn one row of a sparse matrix; nothing else is to be known of it."""
        counts = self.settings.counts(rows.weights)
        weight, count = (1.0 if w is None else float(w[0]) for w in (rows.weights, counts))
        self._learn(rows.X, float(rows.y[0]), weight, count)
        return []

    def _learn(self, row: Any, y: float, weight: float, count: float) -> None:
        """Learn a row of shape (1, d), a sparse matrix, with a weight, that counts for so many rows."""
        at, a = np.zeros(row.nnz + self.first, np.intp), np.ones(row.nnz + self.first)
        at[self.first :], a[self.first :] = row.indices, row.data
        at[self.first :] += self.first
        p, scaled = self.p[at], weight * a**2
        shares, precisions = scaled / p, scaled / self.unit[at]
        e, leverage, trace = y - float(a @ self.m[at]), float(shares.sum()), float(precisions.sum())
        move = weight * e / (1 + leverage)
        lost = max(0.0, 1 - float(shares @ shares) / leverage**2) if leverage > 0 else 0.0
        self.m[at] += move * a / p
        self.p[at] = p + scaled
        rows, squares, rss, *traces = self.sums.tolist()
        rss = float(rss_with(rss, rows, self._dropped, move * e, count))
        self.sums[:] = rows + count, squares + count, rss, traces[0] + trace, traces[1] + lost * trace
        self.weight += weight
        self.moments[0, at] += weight * a
        self.moments[1, at] += scaled

    # ---- reading ---------------------------------------------------------------------------------------

    def mean(self, X: Any) -> Array:
        """Return the predictive means for rows of a sparse matrix, shape (n,)."""
        return self._summed(X, X.data * self.m[self.first + X.indices], self.m[0])

    def predict(self, X: Any, offset: Array | None = None) -> Predictive:
        """Return the predictive distribution for rows of a sparse matrix, which have no offset."""
        leverage = self._summed(X, X.data**2 / self.p[self.first + X.indices], 1 / self.p[0])
        return self.settings.likelihood.predict(self.mean(X), leverage, self.noise_found)

    def _summed(self, X: Any, entries: Array, first: float) -> Array:
        """Return the sum of the entries of each row of a CSR matrix, and of that of the intercept."""
        rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        added = np.bincount(rows, entries, X.shape[0])
        return added + first if self.first else added

    @property
    def noise_found(self) -> Noise:
        """The noise variance after the rows."""
        if self.settings.gamma is not None:
            return Noise.known(self.settings.gamma)
        return noise_of_predictions(self.sums[2], self.sums[0], self.first, np.asarray(self._dropped))

    def noise(self) -> tuple[Any, Any]:
        """Return the noise variance and its degrees of freedom as a pair, as other filters do."""
        return self.noise_found.variance, self.noise_found.dof

    @property
    def _dropped(self) -> float:
        """The share of the rows' precision whose correlations were dropped; see `Structured.dropped`."""
        return float(self.sums[4] / self.sums[3]) if self.sums[3] > 0 else 0.0

    def information(self) -> Structured:
        """Return the information after the rows. O(d)."""
        rows, squares, rss = (np.asarray(one) for one in self.sums[:3])
        sums: dict[str, Any] = {"rows": rows, "squares": squares, "rss": rss, "traces": self.sums[3:].copy()}
        return replace(self.data, precision=diagonal(self.p.copy()), mean=self.m.copy(), **sums)

    def seen(self) -> Moments:
        """Return the moments of the columns in the rows. O(d)."""
        total, squared = self.moments[:, self.first :]
        mean = total / (self.weight or 1.0)
        return Moments(self.weight, mean, np.maximum(squared - self.weight * mean**2, 0.0))
