"""The weight alpha of a penalty, chosen from the rows of a linear model as they come."""

from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, Sizes, state
from kalprox.learning.alpha_family import AlphaFamily
from kalprox.learning.exact import Exact, Visit, Weighted, next_cut
from kalprox.learning.folds import CrossValidation, Folds, piece_reaching
from kalprox.learning.linear import LinearBelief, LinearRows
from kalprox.learning.ridge_evidence import AlphaChoice
from kalprox.learning.settings import Settings
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.state import FIRST_PIECE, State
from kalprox.sources import Block

__all__ = ["ChosenAlpha"]


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

    def _together(self, *, exact: bool) -> float:
        """Return how many rows are predicted together; where no `Scorer` does, alpha serves for as many as chose it."""
        n = float(self.information.rows)
        if not self.predicts:
            return FIRST_PIECE - int(n)
        if exact:
            return 1
        return next_cut(self) - n if self.current_scorer is not None else min(n, next_cut(self) - n)

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
