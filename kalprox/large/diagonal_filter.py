"""A filter of single sparse rows for linear models whose information is a diagonal.

A belief is immutable, so that learning a row copies its d numbers. The filter has arrays of its own, and learns and
predicts a row in a time that follows the entries of the row, however many columns there are.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.large.block_diagonal import BlockDiagonal
from kalprox.large.information import Structured, informing_share, rss_with
from kalprox.large.low_rank import PlusLowRank
from kalprox.learning.design import Moments
from kalprox.learning.settings import Settings
from kalprox.noise import Noise
from kalprox.predictive import Predictive

__all__ = ["DiagonalFilter"]


@dataclass
class DiagonalFilter:
    """The information diag(p) about theta with the mean m, updated in place by rows of a sparse matrix.

    For a row a of weight w with the target y, and e = y - a'm,

        m += diag(p)^-1 a w e / (1 + w a' diag(p)^-1 a),    p += w a^2,

    which is what `kalprox.large.information.Structured.fold` returns for a block of this row alone.

    Attributes
    ----------
    settings : Settings
    first : int
        The number of inputs before the columns of X: 1 if there is an intercept.
    p, m : array of shape (d,)
    prior : array of shape (d,)
        The prior precisions, or their mean where that is larger: the units of `traces`.
    sums : array of shape (5,)
        `rows`, `squares`, `rss` and the two `traces` of the information.
    weight : float
        The weight of the rows that came since the filter was made.
    moments : array of shape (2, d)
        The sums of their columns and of the squares of these, each times the weight of its row.
    """

    settings: Settings
    first: int
    p: Array
    m: Array
    prior: Array
    sums: Array
    weight: float
    moments: Array

    @classmethod
    def of(cls, settings: Settings, first: int, data: Structured) -> "DiagonalFilter":
        """Return a filter that goes on from some information. O(d)."""
        sums = np.array([data.rows, data.squares, data.rss, *data.traces], float)
        prior = np.broadcast_to(np.maximum(data.prior_precision, data.least), (data.d,))
        p, m = data.precision.base.p.copy(), data.mean.copy()
        return cls(settings, first, p, m, prior, sums, 0.0, np.zeros((2, data.d - first)))

    def copy(self) -> "DiagonalFilter":
        """Return a filter that later rows of this one do not change. O(d)."""
        own = {name: getattr(self, name).copy() for name in ("p", "m", "sums", "moments")}
        return replace(self, **own)

    def learn(self, row: Any, y: float, weight: float, count: float) -> None:
        """Learn a row of shape (1, d), a sparse matrix, with a weight, that counts for so many rows."""
        at, a = self._inputs(row)
        p, scaled = self.p[at], weight * a**2
        shares, precisions = scaled / p, scaled / self.prior[at]
        e, leverage, trace = y - float(a @ self.m[at]), float(shares.sum()), float(precisions.sum())
        move = weight * e / (1 + leverage)
        lost = max(0.0, 1 - float(shares @ shares) / leverage**2) if leverage > 0 else 0.0
        self.m[at] += move * a / p
        self.p[at] = p + scaled
        rows, squares, rss, *traces = self.sums.tolist()
        rss = float(rss_with(rss, rows, self._dropped, move * e, count))
        self.sums[:] = rows + count, squares + count, rss, traces[0] + trace, traces[1] + lost * trace
        self.weight += weight
        self.moments[0, row.indices] += weight * row.data
        self.moments[1, row.indices] += weight * row.data**2

    def _inputs(self, row: Any) -> tuple[Array, Array]:
        """Return the positions in theta of the inputs of one row that are not 0, and the inputs."""
        at, a = np.zeros(row.nnz + self.first, np.intp), np.ones(row.nnz + self.first)
        at[self.first :], a[self.first :] = row.indices, row.data
        at[self.first :] += self.first
        return at, a

    def mean(self, X: Any) -> Array:
        """Return the predictive means for rows of a sparse matrix, shape (n,)."""
        added = np.bincount(_rows_of(X), X.data * self.m[self.first + X.indices], X.shape[0])
        return added + (self.m[0] if self.first else 0.0)

    def predict(self, X: Any) -> Predictive:
        """Return the predictive distribution for rows of a sparse matrix."""
        own = np.bincount(_rows_of(X), X.data**2 / self.p[self.first + X.indices], X.shape[0])
        leverage = own + (1 / self.p[0] if self.first else 0.0)
        return self.settings.likelihood.predict(self.mean(X), leverage, self.current_noise())

    def current_noise(self) -> Noise:
        """Return the noise variance and its degrees of freedom."""
        if self.settings.gamma is not None:
            return Noise.known(self.settings.gamma)
        found = Noise.learned(self.sums[2], self.sums[0], self.first)
        return replace(found, dof=found.dof * informing_share(self._dropped))

    @property
    def _dropped(self) -> float:
        """The share of the rows' precision whose correlations were dropped; see `Structured.dropped`."""
        return float(self.sums[4] / self.sums[3]) if self.sums[3] > 0 else 0.0

    def noise(self) -> tuple[Any, Any]:
        """Return the noise variance and its degrees of freedom as a pair, as other filters do."""
        noise = self.current_noise()
        return noise.variance, noise.dof

    def information(self, before: Structured) -> Structured:
        """Return the information from which the filter was made with the rows that came since. O(d)."""
        base = PlusLowRank.of(BlockDiagonal(self.p.copy()), np.zeros((0, len(self.p))))
        rows, squares, rss = (np.asarray(one) for one in self.sums[:3])
        sums: dict[str, Any] = {"rows": rows, "squares": squares, "rss": rss, "traces": self.sums[3:].copy()}
        return replace(before, precision=base, mean=self.m.copy(), **sums)

    def seen(self) -> Moments:
        """Return the moments of the columns of the rows that came since the filter was made. O(d)."""
        total, squared = self.moments
        mean = total / (self.weight or 1.0)
        return Moments(self.weight, mean, np.maximum(squared - self.weight * mean**2, 0.0))


def _rows_of(X: Any) -> Array:
    """Return the number of the row of each entry of a CSR matrix."""
    return np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
