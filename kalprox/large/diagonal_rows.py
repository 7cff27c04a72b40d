"""The single sparse rows of a linear model whose information is a diagonal, learned in place."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.checks import check_usable
from kalprox.large.diagonal_filter import DiagonalFilter
from kalprox.large.state import StructuredState
from kalprox.learning.innovations import Innovations
from kalprox.learning.row_buffer import LiveRows, RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import Tracking
from kalprox.solvers.curvature import diagonal_curvature
from kalprox.sources import Block

__all__ = ["DiagonalRows"]


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
