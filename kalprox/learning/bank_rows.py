"""The single rows that a bank has learned since its last fold, and the filters that learned them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable_rows
from kalprox.base.pickling import PickledFields
from kalprox.kernel.followers import CompiledBank
from kalprox.learning.bank import Bank
from kalprox.learning.innovations import Innovations
from kalprox.learning.mixed import RATES, SHARE_OF_RATES, Odds
from kalprox.learning.row_buffer import LiveRows, RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import Tracking
from kalprox.noise import Noise
from kalprox.predictive import Predictive, Student, mixed
from kalprox.sources import Block

__all__ = ["BankFilter", "BankRows"]

_FEW, _MANY = 16, 1024  # the fewest and the most rows that are folded together


@dataclass
class BankFilter(PickledFields):
    """A filter for each member of a bank, and their odds, updated in place by single rows.

    Attributes
    ----------
    settings : Settings
    filters : list of SquareRootFilter or MatchedFilter
    odds : Odds
    """

    settings: Settings
    filters: list[Any]
    odds: Odds

    @cached_property
    def _compiled(self) -> CompiledBank | None:
        """What the compiled kernel sees of the filters, and of the array of the odds; None if it cannot see one."""
        seen = [one.compiled for one in self.filters]
        if any(one is None for one in seen):
            return None
        self.odds = Odds(self.odds.joint.copy())
        return CompiledBank(seen, self.odds.joint, RATES, SHARE_OF_RATES)

    @cached_property
    def keeps_digits(self) -> bool:
        """Whether predictions of the next row are accurate; see `SquareRootFilter`."""
        return all(one.keeps_digits for one in self.filters)

    def learn(self, rows: Block) -> Array:
        """Learn a row, move the odds by what the filters had said of it, and return that, shape (K, 2) or (K, 3)."""
        self.__dict__.pop("keeps_digits", None)
        x, y, weight, count = rows.X[0], float(rows.y[0]), 1.0, 1.0
        own, counts = self.settings.own_variance(rows), self.settings.counts(rows.weights)
        variance = 1.0 if own is None else float(own[0])
        if rows.weights is not None:
            weight, count = float(rows.weights[0]), 1.0 if counts is None else float(counts[0])
        compiled = self._compiled
        if compiled is not None:
            if not compiled.follow(x, y, weight, count, variance):
                self.odds.joint[:] = self._moved(compiled.log_prob, count).joint
            return compiled.said.copy()
        said = np.array([one.follow(x, y, weight, count, own=variance)[:3] for one in self.filters])
        with np.errstate(invalid="ignore", divide="ignore"):
            log_prob = self.predicted(said).log_prob(np.full(len(said), y))
        self.odds = self._moved(log_prob, count)
        return said

    def predicted(self, said: Array) -> Predictive:
        """Return the predictive distributions of what was said of a row, shape (K, 2) or (K, 3)."""
        if said.shape[1] == 2:
            with np.errstate(divide="ignore"):
                return self.settings.likelihood.predict(said[:, 0], said[:, 1], Noise.known(1.0))
        return Student(*said.T)

    def _moved(self, log_prob: Array, count: float) -> Odds:
        """Return the odds after a row, of which the filters had said this; NaN is no claim."""
        log_prob = log_prob[:, None]
        return self.odds.after(log_prob, np.isfinite(log_prob), np.array([count]))[0]

    def copy(self) -> "BankFilter":
        """Return a filter that later rows of this one do not change."""
        return replace(self, filters=[one.copy() for one in self.filters], odds=Odds(self.odds.joint.copy()))

    def predict(self, X: Array) -> Predictive:
        """Return the predictive distribution for rows of X."""
        return mixed([one.predict(X) for one in self.filters], self.odds.weights)

    def mean(self, X: Array) -> Array:
        """Return the predictive means for rows of X, shape (n,)."""
        return self.predict(X).mean

    def noise(self) -> tuple[Any, Any]:
        """Return the mean noise variance, and the harmonic mean of its degrees of freedom."""
        variance, dof = np.array([one.noise() for one in self.filters], float).T
        w = np.where(np.isfinite(variance), self.odds.weights, 0.0)
        w = w / w.sum() if w.any() else self.odds.weights
        with np.errstate(divide="ignore"):
            return np.where(w > 0, w * variance, 0.0).sum(), 1 / np.where(w > 0, w / dof, 0.0).sum()


class BankRows(LiveRows):
    """The single rows since the last fold, and the filters of the members of a bank, which learned them."""

    state: Bank
    filter: BankFilter | None

    def __init__(
        self, settings: Settings, state: Bank, tracking: Tracking, rows: int, buffer: RowBuffer | None = None
    ) -> None:
        super().__init__(
            settings, state, tracking, rows, RowBuffer(state.n_features, None) if buffer is None else buffer
        )
        self._said: list[Array] = []  # what the members said of each row, shape (K, 2) or (K, 3)
        self._serves = min(one.filter_serves for one in state.members)
        self._most = int(min(max(_FEW, min(_MANY, rows)), max(_FEW, self._serves)))

    def takes(self, block: Block) -> bool:
        low, high = self.settings.likelihood.support
        single = len(block) == 1 and block.y.ndim == 1 and self.buffer.fits(block.X, block.y)
        if not single or not low <= block.y[0] <= high or (block.weights is not None and not block.weights[0] > 0):
            return False
        return self._live() is not None

    def append(self, rows: Block, *, predict: bool = False) -> Sequence[Any]:
        check_usable_rows(rows.X, rows.y, rows.weights)
        live = self._live()
        assert live is not None
        predicted = live.predict(rows.X) if predict else None
        self._said.append(live.learn(rows))
        self.buffer.append(rows, 1)
        self._scored = None
        return () if predicted is None else (predicted.mean, predicted.std)

    # ---- the filters -----------------------------------------------------------------------------------

    def _live(self) -> BankFilter | None:
        """Return the filter that includes the rows; None if a member has none, or loses its digits."""
        if self.filter is None:
            filters = [member.row_filter() for member in self.state.members]
            if any(one is None for one in filters):
                return None
            self.filter = BankFilter(self.settings, filters, self.state.odds)
            self._said = [self.filter.learn(self.buffer.block.part(i, i + 1)) for i in range(self.buffer.n)]
        return self.filter if self.filter.keeps_digits else None

    def following(self) -> BankFilter | None:
        return self._live()

    def followed(self) -> BankFilter | None:
        return self._live() if self.buffer.n and self._serves == np.inf else None

    # ---- reading ---------------------------------------------------------------------------------------

    def scored(self) -> tuple[Bank, Innovations | None]:
        if self._scored is None:
            self._live()
            assert self.filter is not None
            block, pairs = self.rows, zip(self.state.members, self.filter.filters, strict=True)
            members = tuple(member.after_filter(one, block) for member, one in pairs)
            parts = [self.filter.predicted(of_rows) for of_rows in np.array(self._said).swapaxes(0, 1)]
            self._scored = self.state.after(members, block, parts, None)
        return self._scored

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_said": []}
