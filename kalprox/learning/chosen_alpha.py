"""The weight alpha of a penalty, chosen as rows come: by the evidence, or by cross-validation from sums."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, Sizes, expect, leaf, state
from kalprox.information import Information, merge
from kalprox.learning.exact import Exact, Visit, Weighted
from kalprox.learning.linear import AlphaChoice, AlphaFamily, LinearBelief, LinearRows, best_on_grid
from kalprox.learning.settings import Settings
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.state import FIRST_PIECE, State
from kalprox.sources import Block

FOLDS = 5
_SHARE = 8  # a block of rows that are put into the same fold has a share of those before it


@state
class CrossValidation:
    """The choice of c by cross-validation. It is made when it is first asked for.

    Attributes
    ----------
    settings : Settings
    sums : tuple of Information
        Of the rows of each fold; and of rows in no fold, which predict all of them.
    """

    settings: Settings = leaf(given=True)
    sums: tuple[Information, ...]

    def _check_restored(self, _: Sizes) -> None:
        """Raise a ValueError unless there are all folds."""
        expect(len(self.sums) == FOLDS + 1)

    @cached_property
    def choices(self) -> list[AlphaChoice] | None:
        """The c of each target, or of the only one, in place of alpha; None if there are not two parts of the rows."""
        singles = [self]
        if (k := self.sums[0].targets) is not None:
            singles = [replace(self, sums=tuple(_single(one, j) for one in self.sums)) for j in range(k)]
        found = [one._choice for one in singles]
        return None if None in found else found  # type: ignore[return-value]

    @property
    def _choice(self) -> AlphaChoice | None:
        """The c of the smallest squared errors of all folds; None if there are not two parts of the rows."""
        parts = [one for one in self.sums if float(one.rows) > 0]
        if len(parts) < 2:
            return None
        whole = AlphaFamily.of(self.settings, merge(*parts))
        rows = float(whole.rows.information.rows)
        if not whole.rows.centered.R.any():
            return None

        def losses(alphas: Array) -> list[float]:
            squares = self._squares(alphas / rows**0.5)[:, 0]
            return list(np.log(np.maximum(squares, np.finfo(float).tiny)))

        grid, found = whole.along_grid(losses, lambda loss: -rows / 2 * loss, coarse=True)
        loss = np.array(found)
        i = int(np.argmin(loss))
        return AlphaChoice(best_on_grid(grid, loss) / rows**0.5, {0: np.inf, len(grid) - 1: 0.0}.get(i))

    def _squares(self, c: Array) -> Array:
        """Return the squared errors of the rows of all folds, for each c and target, shape (m, k)."""
        total = np.zeros((len(c), self.sums[0].targets or 1))
        for i, fold in enumerate(self.sums[:FOLDS]):
            others = [one for one in (*self.sums[:i], *self.sums[i + 1 :]) if float(one.rows) > 0]
            if others and float(fold.rows) > 0:
                info = merge(*others)
                members = AlphaFamily.of(self.settings, info).for_alphas(c * float(info.rows) ** 0.5)
                found = [(one.coef, one.intercept) for one in members]
                total += _squared_errors(fold, *map(np.stack, zip(*found, strict=True)))
        return total


@state
class Folds:
    """The sums of the rows in folds, as rows come.

    Rows one after the other, an eighth of those before, are put into the same fold, so that neighbours that resemble
    each other are not in different folds; and the next ones into the next fold. The folds are as large as one another
    up to a half. They are compared as they were at the last end of such a block.

    Attributes
    ----------
    compared : CrossValidation
        Of the folds at the end of the last block.
    current : Information
        Of the fold that the next row is put into, with the rows that came since then.
    fold : int
        The number of this fold.
    left : float
        The number of rows until its block is complete.
    fade : float
        What forgetting has left of the other folds since then.
    """

    compared: CrossValidation
    current: Information
    fold: int
    left: float = leaf(sign="positive")
    fade: float = leaf(sign="positive", default=1.0)

    def _check_restored(self, _: Sizes) -> None:
        """Raise a ValueError if there is no such fold."""
        expect(self.fold < FOLDS and self.fade <= 1)

    @classmethod
    def start(cls, settings: Settings, learned: Information) -> "Folds":
        """Return empty folds; rows that were learned before are in none of them."""
        zero = Information.zero(learned.d, learned.targets)
        zero = replace(zero, T=zero.T[:1])
        return cls._of(CrossValidation(settings, (zero,) * FOLDS + (learned,)), 0)

    @classmethod
    def _of(cls, compared: CrossValidation, fold: int) -> "Folds":
        rows = float(sum(one.rows for one in compared.sums))
        return cls(compared, compared.sums[fold], fold, float(max(1, rows // _SHARE)))

    @property
    def complete(self) -> "Folds":
        """The folds with the current block at its end."""
        sums = [one if self.fade == 1 or not float(one.rows) else one.forget(self.fade) for one in self.compared.sums]
        sums[self.fold] = self.current
        return self._of(replace(self.compared, sums=tuple(sums)), (self.fold + 1) % FOLDS)

    def after(self, fold: Callable[[Information], Information], rows: float, left: Any = None) -> "Folds":
        """Return the folds after some rows, at most as many as are left of the block.

        Parameters
        ----------
        fold : function
            Returns an information with these rows added.
        rows : float
            Their number, each as often as it counts.
        left : float, optional
            What they leave of all rows before them, if these are forgotten.
        """
        current, fade = self.current, self.fade
        if left is not None:
            current = current.forget(left) if float(current.rows) else current
            fade *= float(left)
        new = replace(self, current=fold(current), left=self.left - rows, fade=fade)
        return new if new.left > 0 else new.complete

    def mapped(self, change: Callable[[Information], Information]) -> "Folds":
        """Return the folds with another information in place of each."""
        compared = replace(self.compared, sums=tuple(map(change, self.compared.sums)))
        return replace(self, compared=compared, current=change(self.current))

    def under(self, settings: Settings) -> "Folds":
        """Return the folds of the same rows, compared under other settings."""
        return replace(self, compared=CrossValidation(settings, self.compared.sums))

    @property
    def without_rows(self) -> "Folds | None":
        """The folds about the means of their rows; None if a fold is a single row."""
        if any(0 < float(one.rows) < 2 for one in (*self.compared.sums, self.current)):
            return None
        return self.mapped(lambda one: one.about_means() if float(one.rows) else one)

    def merge(self, other: "Folds") -> "Folds":
        """Return the folds of the rows of both."""
        mine, theirs = self.complete, other.complete
        sums = tuple(map(merge, mine.compared.sums, theirs.compared.sums))
        return self._of(replace(self.compared, sums=sums), mine.fold)


def piece_reaching(total: float, counts: Array | None, length: int) -> int:
    """Return how many of the next `length` rows come until their counts (1 by default) add up to `total`."""
    found = np.ceil(total) if counts is None else np.searchsorted(np.cumsum(counts), total) + 1
    return int(min(max(found, 1), length))


def _squared_errors(info: Information, coef: Array, intercept: Array) -> Array:
    """Return the squared errors of the rows of an information, shape (m, k), for m estimates of shape (m, k, d)."""
    k, d = info.targets or 1, info.d
    coef, intercept = coef.reshape(-1, k, d), intercept.reshape(-1, k)
    constant = intercept + coef @ info.shift[:d] - info.shift[d:]
    predicted = np.einsum("rd,mkd->rmk", info.T[:, 1 : 1 + d], coef) + np.multiply.outer(info.T[:, 0], constant)
    errors: Array = ((info.T[:, None, 1 + d :] - predicted) ** 2).sum(axis=0)
    return errors


def _single(info: Information, target: int) -> Information:
    """Return the information of one of several targets."""
    d, j = info.d, 1 + info.d + target
    T = np.delete(info.T, np.r_[1 + d : j, j + 1 : info.T.shape[1]], axis=1)
    if len(T) > 1 + d:
        T = np.concatenate([T[: 1 + d], np.linalg.norm(T[1 + d :], axis=0, keepdims=True)])
    return Information(T, info.shift[[*range(d), j - 1]], info.rows, info.squares)


@state
class ChosenAlpha(Exact):
    """The rows of a linear model whose alpha is the best for them, by the evidence or by cross-validation.

    What is kept of the rows does not depend on alpha. It is chosen when the belief is read, and as long as a `Scorer`
    predicts the next rows it is not.

    Attributes
    ----------
    folds : Folds or None
        The rows in folds, if alpha is chosen by cross-validation.
    """

    folds: Folds | None = None

    first_rows: ClassVar[int] = FIRST_PIECE
    chooses_alpha: ClassVar[bool] = True
    penalty_determines: ClassVar[bool] = True

    @cached_property
    def belief(self) -> LinearBelief:
        choose = partial(_choices, folds=self.folds if self._by_prediction else None)
        return LinearBelief.choosing(self.rows, choose, elapsed=self.elapsed, begin=self.begin, time=self.time)

    @property
    def _by_prediction(self) -> bool:
        return self.settings.penalty.selection == "prediction"

    # ---- learning --------------------------------------------------------------------------------------

    def learn(self, block: Block, visit: Visit | None = None) -> Self:
        if not self._by_prediction:
            return super().learn(block, visit)
        state, start, counts = self, 0, self.settings.counts(block.weights)
        while start < len(block):
            left = state._current_folds.left
            stop = start + piece_reaching(left, None if counts is None else counts[start:], len(block) - start)
            state = state._learn_in_fold(block.part(start, stop))
            start = stop
        if visit is not None:
            visit(0, len(block))
        return state

    @property
    def _current_folds(self) -> Folds:
        """The folds; empty ones if cross-validation was not asked for before."""
        return self.folds or Folds.start(self.settings, self.information)

    def _learn_in_fold(self, block: Block) -> Self:
        """Return the state after rows that are put into the same fold."""
        given, counts = Weighted.of(self.settings, block, self.time), self.settings.counts(block.weights)
        rows = block.X, block.y, given.weights, given.counts, given.squares
        n = float(len(block) if counts is None else counts.sum())
        folds = self._current_folds.after(lambda one: one.fold(*rows), n, given.left)
        return replace(super().learn(block), folds=folds)

    def _held(self, *, exact: bool) -> int:
        """Return how many rows alpha serves for: as many as chose it, unless each is predicted from all before it."""
        if exact:
            return 1 if self.rows.are_few else super()._held(exact=True)
        return int(self.information.rows)

    def row_filter(self) -> SquareRootFilter | None:
        """Return the filter that holds the alpha; None while the noise variance is that of the evidence."""
        return None if self.rows.are_few else super().row_filter()

    # ---- the folds -------------------------------------------------------------------------------------

    def with_settings(self, settings: Settings) -> Self:
        folds = self.folds and self.folds.under(settings)
        return replace(super().with_settings(settings), folds=folds)

    def with_origin(self, columns: Array, values: Array) -> Self:
        folds = self.folds and self.folds.mapped(lambda one: one.with_origin(columns, values))
        return replace(super().with_origin(columns, values), folds=folds)

    def merge(self, other: State) -> Self:
        assert isinstance(other, ChosenAlpha)
        folds = self.folds and other.folds and self.folds.merge(other.folds)
        return replace(super().merge(other), folds=folds)

    def without_rows(self) -> Self:
        return replace(super().without_rows(), folds=self.folds and self.folds.without_rows)

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, name: str, sizes: Sizes, **about: Any) -> Self:
        folds = None
        if f"{name}.folds" in saved:
            compared = saved.tree(CrossValidation, f"{name}.folds.compared", sizes, settings=settings)
            folds = saved.tree(Folds, f"{name}.folds", sizes, compared=compared)
        return super().restored(settings, saved, name, sizes, folds=folds)


def _choices(rows: LinearRows, folds: Folds | None) -> tuple[AlphaChoice, ...]:
    compared = None if folds is None else folds.compared.choices
    if compared is None:
        return AlphaFamily(rows).choices
    root = float(rows.information.rows) ** 0.5
    return tuple(AlphaChoice(c * root, limit) for c, limit in compared)
