"""The single rows that a bank has learned since its last fold, and the filters that learned them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable
from kalprox.base.pickling import PickledFields
from kalprox.kernel.followers import CompiledBank
from kalprox.learning.bank import Bank
from kalprox.learning.bank_weights import RATES, SHARE_OF_RATES, Odds
from kalprox.learning.exact import Exact
from kalprox.learning.innovations import Innovations
from kalprox.learning.live_rows import LiveRows
from kalprox.learning.moment_filter import MomentFilter
from kalprox.learning.row_buffer import RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.state import State
from kalprox.learning.tracking import Tracking
from kalprox.noise import Noise
from kalprox.predictive import Predictive, Student, mixed
from kalprox.sources import Block

if TYPE_CHECKING:
    from kalprox.learning.matching_filter import MatchedFilter

__all__ = ["BankFilter", "BankRows"]

_FEW, _MANY = 16, 1024  # the fewest and the most rows that are folded together
_MANY_DOF = 1e7  # more degrees of freedom are infinitely many


@dataclass
class BankFilter(PickledFields):
    """A filter for each member of a bank, and their odds, updated in place by single rows.

    Attributes
    ----------
    settings : Settings
    filters : list of SquareRootFilter, MomentFilter or MatchedFilter
    odds : Odds
    """

    settings: Settings
    filters: "list[SquareRootFilter | MomentFilter | MatchedFilter]"
    odds: Odds

    @cached_property
    def _compiled(self) -> CompiledBank | None:
        """What the compiled kernel sees of the filters, and of the array of the odds; None if it cannot see one."""
        followers = [one.compiled for one in self.filters if isinstance(one, SquareRootFilter)]
        seen = [one for one in followers if one is not None]
        if len(seen) < len(self.filters):
            return None
        self.odds = Odds(self.odds.joint.copy())
        return CompiledBank(seen, self.odds.joint, RATES, SHARE_OF_RATES)

    @cached_property
    def keeps_digits(self) -> bool:
        """Whether predictions of the next row are accurate; see `SquareRootFilter` and `MomentFilter`."""
        exact = (one for one in self.filters if isinstance(one, SquareRootFilter | MomentFilter))
        return all(one.keeps_digits for one in exact)

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
                self.odds.joint[:] = self.odds.after_row(compiled.log_prob, count).joint
            return compiled.said.copy()
        said = np.array([_moved(one, x, y, weight, count, variance) for one in self.filters])
        if said.shape[1] == 2:
            with np.errstate(divide="ignore"):
                predicted = self.settings.likelihood.predict(said[:, 0], said[:, 1], Noise.known(1.0))
                log_prob = predicted.log_prob(np.full(len(said), y))
        else:
            log_prob = _student_log_prob(y, *said.T)
        self.odds = self.odds.after_row(log_prob, count)
        return said

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
    """The single rows since the last fold, and the filters of the members of a bank, which learned them as they came.

    Parameters
    ----------
    settings : Settings
    state : Bank
        The state before these rows.
    tracking : Tracking
        The score and the quantiles before these rows.
    rows : int
        The number of rows learned before.
    buffer : RowBuffer, optional
        The rows, if there are any yet.
    """

    def __init__(
        self, settings: Settings, state: Bank, tracking: Tracking, rows: int, buffer: RowBuffer | None = None
    ) -> None:
        self.settings, self.state, self.tracking = settings, state, tracking
        self.buffer = RowBuffer(state.n_features, None) if buffer is None else buffer
        self.filter: BankFilter | None = None
        self._said: list[Array] = []  # what the members said of each row, shape (K, 2) or (K, 3)
        self._scored: tuple[Bank, Innovations | None] | None = None
        self._before, self._watched = rows, (0, tracking)
        self._most = max(_FEW, min(_MANY, rows))

    def takes(self, block: Block) -> bool:
        low, high = self.settings.likelihood.support
        single = len(block) == 1 and block.y.ndim == 1 and block.offset is None and self.buffer.fits(block.X, block.y)
        if not single or not low <= block.y[0] <= high or (block.weights is not None and not block.weights[0] > 0):
            return False
        return self.predicts_row

    def append(self, rows: Block, *, predict: bool = False) -> Sequence[Any]:
        check_usable(rows.X, rows.y, rows.weights)
        live = self._live()
        assert live is not None
        predicted = live.predict(rows.X) if predict else None
        self._said.append(live.learn(rows))
        self.buffer.append(rows, 1)
        self._scored = None
        return () if predicted is None else (predicted.mean, predicted.std)

    # ---- the filters -----------------------------------------------------------------------------------

    def _live(self) -> BankFilter | None:
        """Return the filter that includes the rows; None if a member has none, or its moments lose their digits."""
        if self.filter is None:
            filters = [_filter_of(member) for member in self.state.members]
            if any(one is None for one in filters):
                return None
            self.filter = BankFilter(self.settings, filters, self.state.odds)  # type: ignore[arg-type]
            self._said = [self.filter.learn(self.buffer.block.part(i, i + 1)) for i in range(self.buffer.n)]
        return self.filter if self.filter.keeps_digits else None

    def following(self) -> BankFilter | None:
        return self._live()

    def followed(self) -> BankFilter | None:
        return self._live() if self.buffer.n else None

    # ---- reading ---------------------------------------------------------------------------------------

    def scored(self) -> tuple[Bank, Innovations | None]:
        if self._scored is None:
            if self.buffer.n and len(self._said) < self.buffer.n:
                self.filter = None  # a filter that was pickled is made again
                self._live()
            block = self.buffer.block
            X, y = block.X.copy(), block.y.copy()  # the memory of the buffer is used again
            block = Block(X, y, None if block.weights is None else block.weights.copy())
            filters = self.filter.filters if self.filter is not None else []
            members = tuple(
                _learned(member, one, block) for member, one in zip(self.state.members, filters, strict=True)
            )
            parts = self._parts(y)
            self._scored = self.state.after(members, block, parts, None)
        return self._scored

    def _parts(self, y: Array) -> list[Predictive]:
        """Return what each member had predicted of the rows."""
        said = np.array(self._said)
        if said.shape[2] == 2:
            return [
                self.settings.likelihood.predict(said[:, k, 0], said[:, k, 1], Noise.known(1.0))
                for k in range(said.shape[1])
            ]
        return [Student(*said[:, k].T) for k in range(said.shape[1])]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"filter": None, "_said": [], "_scored": None, "_watched": (0, self.tracking)}


def _filter_of(member: State) -> "SquareRootFilter | MomentFilter | MatchedFilter | None":
    """Return the filter of single rows that continues from a member; None if there is none."""
    if not isinstance(member, Exact):
        from kalprox.learning.matched import Matched

        return member.filter if isinstance(member, Matched) else None
    if not (member.predicts and member.belief.posterior.proper):
        return None
    return member.row_filter()


def _learned(member: State, live: Any, block: Block) -> State:
    """Return a member after the rows that its filter has learned."""
    if isinstance(member, Exact):
        return member.learn(block)
    from kalprox.learning.matched import Matched

    assert isinstance(member, Matched)
    return member.followed_by(live, block)


def _moved(live: Any, x: Array, y: float, weight: float, count: float, own: float) -> tuple[float, ...]:
    """Update a filter by a row, and return the mean, the scale and the degrees of freedom it had predicted.

    For other likelihoods than the Gaussian these are the output of the model and its variance. `own` is the variance of
    the row's noise in units of the noise variance.
    """
    if isinstance(live, SquareRootFilter | MomentFilter):
        return tuple(live.follow(x, y, weight, count, own=own)[:3])
    return tuple(live.match(live.design.rows(x[None])[0], y, weight))


def _student_log_prob(y: float, mean: Array, std: Array, dof: Array) -> Array:
    """Return the log densities of Student's t distributions at one number; NaN where the scale is not known."""
    with np.errstate(invalid="ignore", divide="ignore"):
        nu = np.minimum(dof, _MANY_DOF)
        z = (y - mean) / std
        log = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - 0.5 * np.log(np.pi * nu) - np.log(std)
        found: Array = log - (nu + 1) / 2 * np.log1p(z * z / nu)
    return found
