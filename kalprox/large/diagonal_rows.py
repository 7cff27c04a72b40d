"""The single sparse rows of a linear model whose information is a diagonal, learned in place.

A belief is immutable, so that learning a row copies its d numbers. `DiagonalFilter` has arrays of its own, and learns
and predicts a row in a time that follows the entries of the row, however many columns there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable
from kalprox.large.block_diagonal import BlockDiagonal
from kalprox.large.information import Structured, noise_of_predictions, rss_with
from kalprox.large.low_rank import PlusLowRank
from kalprox.large.state import StructuredState
from kalprox.learning.design import Moments
from kalprox.learning.innovations import Innovations
from kalprox.learning.row_buffer import LiveRows, RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import Tracking
from kalprox.noise import Noise
from kalprox.predictive import Predictive
from kalprox.solvers.curvature import diagonal_curvature
from kalprox.sources import Block

__all__ = ["DiagonalRows"]


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
        return noise_of_predictions(self.sums[2], self.sums[0], self.first, np.asarray(self._dropped))

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


class DiagonalRows(LiveRows):
    """The single sparse rows since a state, which a `DiagonalFilter` has learned.

    The rows themselves are not held: the filter is all that is left of them.

    Parameters
    ----------
    settings : Settings
    state : StructuredState
        The state before these rows, one that `serves` allows.
    tracking : Tracking
        The score and the quantiles, which these rows do not change.
    """

    state: StructuredState
    filter: DiagonalFilter | None

    def __init__(self, settings: Settings, state: StructuredState, tracking: Tracking) -> None:
        super().__init__(settings, state, tracking, 0, RowBuffer(0, None))
        self._n = 0

    @staticmethod
    def serves(settings: Settings, state: StructuredState) -> bool:
        """Whether the model is linear and Gaussian, its information a diagonal, and its sparse rows stay sparse."""
        if settings.needs_innovations or settings.forgets:
            return False
        linear = settings.is_linear and settings.likelihood.quadratic
        data, design = state.data, state.belief.design
        if not linear or data.rank or data.precision.base.layout.groups or design.row_offsets:
            return False
        if diagonal_curvature(settings.penalty.regularizer(settings.alpha), 1) is None:
            return False
        return design.center is not None and not design.center.any() and bool(np.all(design.scale == 1))

    def __len__(self) -> int:
        return self._n

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
        if not plain or block.X.shape[1] != self.state.data.d - self.state.belief.design.first:
            return False
        return bool(block.weights is None or block.weights[0] > 0) and bool(block.X.has_canonical_format)

    def append(self, rows: Block, *, predict: bool = False) -> Sequence[Any]:
        """Learn one row that `takes` allows, and return the mean and the std of its prediction if `predict` is True."""
        check_usable(rows.X, rows.y, rows.weights)
        live, counts = self.following(), self.settings.counts(rows.weights)
        predicted = live.predict(rows.X) if predict else None
        weight, count = (1.0 if w is None else float(w[0]) for w in (rows.weights, counts))
        live.learn(rows.X, float(rows.y[0]), weight, count)
        self._n, self._scored = self._n + 1, None
        return () if predicted is None else (predicted.mean, predicted.std)

    # ---- reading ---------------------------------------------------------------------------------------

    def following(self) -> DiagonalFilter:
        """Return the filter that includes the rows, to predict one row."""
        if self.filter is None:
            self.filter = DiagonalFilter.of(self.settings, self.state.belief.design.first, self.state.data)
        return self.filter

    def followed(self) -> DiagonalFilter:
        """Return the filter, which predicts batches, too."""
        return self.following()

    def scored(self) -> tuple[StructuredState, Innovations | None]:
        """Return the state after the rows, which are not scored."""
        if self._scored is None:
            self._scored = self._learned() if self._n else self.state, None
        return self._scored

    def _learned(self) -> StructuredState:
        live, state = self.following(), self.state
        seen = live.seen() if state.seen is None else state.seen + live.seen()
        return replace(state, data=live.information(state.data), noise_found=live.current_noise(), seen=seen)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state before the rows and a copy of the filter, which is all that is left of them."""
        own = None if self.filter is None else self.filter.copy()
        return vars(self) | {"filter": own, "_scored": None}


def _rows_of(X: Any) -> Array:
    """Return the number of the row of each entry of a CSR matrix."""
    return np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
