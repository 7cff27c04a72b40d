"""The single sparse rows of a linear model whose information is a diagonal, learned in place.

A belief is immutable, so that learning a row copies its d numbers. `DiagonalRows` has arrays of its own, and learns and
predicts a row in a time that follows the entries of the row, however many columns there are.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable
from kalprox.large.information import diagonal, noise_of_predictions, rss_with
from kalprox.large.state import StructuredState
from kalprox.learning.design import Moments
from kalprox.learning.innovations import Innovations
from kalprox.learning.row_buffer import LiveRows, RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import Tracking
from kalprox.noise import Noise
from kalprox.predictive import Predictive
from kalprox.solvers.terms import diagonal_curvature
from kalprox.sources import Block

_OWN = "p", "m", "sums", "moments"


class DiagonalRows(LiveRows):
    """The single sparse rows since a state, and the information diag(p) with the mean m that has learned them.

    For a row a of weight w with the target y, and e = y - a'm,

        m += diag(p)^-1 a w e / (1 + w a' diag(p)^-1 a),    p += w a^2,

    which is what `kalprox.large.information.Structured.fold` returns for a block of this row alone. The rows themselves
    are not held.

    Parameters
    ----------
    settings : Settings
    state : StructuredState
        The state before these rows, one that `serves` allows.
    tracking : Tracking
        The score and the quantiles, which these rows do not change.

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

    state: StructuredState

    def __init__(self, settings: Settings, state: StructuredState, tracking: Tracking) -> None:
        super().__init__(settings, state, tracking, 0, RowBuffer(0, None))
        data = state.data
        self.first, self.n, self.weight = state.fixed.first, 0, 0.0
        self.p, self.m, self.moments = data.precision.base.p.copy(), data.mean.copy(), np.zeros((2, data.d))
        self.unit = np.broadcast_to(np.maximum(data.prior_precision, data.least), (data.d,))
        self.sums = np.array([data.rows, data.squares, data.rss, *data.traces], float)

    @staticmethod
    def serves(settings: Settings, state: StructuredState) -> bool:
        """Whether the model is linear and Gaussian, its information a diagonal, and its sparse rows stay sparse."""
        if settings.needs_innovations or settings.forgets:
            return False
        linear = settings.is_linear and settings.likelihood.quadratic
        data, design = state.data, state.fixed
        if not linear or data.rank or data.precision.base.layout.groups or design.row_offsets:
            return False
        if diagonal_curvature(settings.penalty.regularizer(settings.alpha), 1) is None:
            return False
        return design.center is not None and not design.center.any() and bool(np.all(design.scale == 1))

    def __len__(self) -> int:
        return self.n

    @property
    def are_full(self) -> bool:
        """Whether the rows are to be folded: never, since none is held."""
        return False

    # ---- learning --------------------------------------------------------------------------------------

    def takes(self, block: Block) -> bool:
        """Whether a batch is one row of a sparse matrix, whose entries are in different columns."""
        if len(block) != 1 or not scipy.sparse.issparse(block.X) or block.X.format != "csr":
            return False
        plain = block.times is None and block.y.shape == (1,)
        if not plain or block.X.shape[1] != len(self.p) - self.first:
            return False
        return bool(block.weights is None or block.weights[0] > 0) and bool(block.X.has_canonical_format)

    def append(self, rows: Block, *, predict: bool = False) -> Sequence[Any]:
        """Learn one row that `takes` allows, and return the mean and the std of its prediction if `predict` is True."""
        check_usable(rows.X, rows.y, rows.weights)
        counts, predicted = self.settings.counts(rows.weights), self.predict(rows.X) if predict else None
        weight, count = (1.0 if w is None else float(w[0]) for w in (rows.weights, counts))
        self._learn(rows.X, float(rows.y[0]), weight, count)
        self.n, self._scored = self.n + 1, None
        return () if predicted is None else (predicted.mean, predicted.std)

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

    def following(self) -> "DiagonalRows":
        """Return the filter that includes the rows, which predicts one row or a batch: this one."""
        return self

    followed = following

    def mean(self, X: Any) -> Array:
        """Return the predictive means for rows of a sparse matrix, shape (n,)."""
        return self._summed(X, X.data * self.m[self.first + X.indices], self.m[0])

    def predict(self, X: Any) -> Predictive:
        """Return the predictive distribution for rows of a sparse matrix."""
        leverage = self._summed(X, X.data**2 / self.p[self.first + X.indices], 1 / self.p[0])
        return self.settings.likelihood.predict(self.mean(X), leverage, self._noise)

    def _summed(self, X: Any, entries: Array, first: float) -> Array:
        """Return the sum of the entries of each row of a CSR matrix, and of that of the intercept."""
        rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        added = np.bincount(rows, entries, X.shape[0])
        return added + first if self.first else added

    @property
    def _noise(self) -> Noise:
        if self.settings.gamma is not None:
            return Noise.known(self.settings.gamma)
        return noise_of_predictions(self.sums[2], self.sums[0], self.first, np.asarray(self._dropped))

    def noise(self) -> tuple[Any, Any]:
        """Return the noise variance and its degrees of freedom as a pair, as other filters do."""
        return self._noise.variance, self._noise.dof

    @property
    def _dropped(self) -> float:
        """The share of the rows' precision whose correlations were dropped; see `Structured.dropped`."""
        return float(self.sums[4] / self.sums[3]) if self.sums[3] > 0 else 0.0

    def scored(self) -> tuple[StructuredState, Innovations | None]:
        """Return the state after the rows, which are not scored. O(d)."""
        if self._scored is None:
            self._scored = self._learned() if self.n else self.state, None
        return self._scored

    def _learned(self) -> StructuredState:
        rows, squares, rss = (np.asarray(one) for one in self.sums[:3])
        sums: dict[str, Any] = {"rows": rows, "squares": squares, "rss": rss, "traces": self.sums[3:].copy()}
        data = replace(self.state.data, precision=diagonal(self.p.copy()), mean=self.m.copy(), **sums)
        total, squared = self.moments[:, self.first :]
        mean = total / (self.weight or 1.0)
        seen = Moments(self.weight, mean, np.maximum(squared - self.weight * mean**2, 0.0))
        seen = seen if self.state.seen is None else self.state.seen + seen
        return replace(self.state, data=data, noise_found=self._noise, seen=seen)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is left of the rows, which later rows do not change."""
        return vars(self) | {name: getattr(self, name).copy() for name in _OWN} | {"_scored": None}
