"""The warm-up of a nonlinear stream: hold the first rows in memory until they determine theta well.

A linearisation far from the solution is never corrected later. The first rows are therefore held in memory. From time
to time they are refined to convergence, and the warm-up ends when no single row has much influence on the estimate,
that is when every leverage is below 0.1.
"""

from typing import Any

import numpy as np

from kalprox._arrays import Array, pytree, static
from kalprox.algorithms.refine import Refined, refine
from kalprox.information import Information
from kalprox.information.linearized import expand
from kalprox.likelihoods import Likelihood
from kalprox.models import Model
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Regularizer
from kalprox.sources import ArraySource, Block
from kalprox.sources.forgetting import faded
from kalprox.sources.weighting import counts_of

__all__ = ["MAX_LEVERAGE", "HeldRows", "WarmupCutShort", "largest_leverage", "refine_held"]

MAX_LEVERAGE = 0.1  # the warm-up ends when all leverages are below this; see docs/proximal_filter.md
_GROWTH = 1.5  # the number of rows at the next check, relative to this one
_PASSES = 50  # passes over the held rows at a check; a fit that needs more is diverging, and needs more rows
_TOL = 1e-6  # relative; far below the relative standard errors, which are about sqrt(d / rows)


class WarmupCutShort(RuntimeWarning):
    """The memory limit of the warm-up was reached before its rows determined theta well."""


@pytree
class HeldRows:
    """The rows held in a warm-up, block by block, and the number of rows at which they are checked next."""

    X: tuple[Array, ...]
    y: tuple[Array, ...]
    weights: tuple[Array, ...]
    next_look: int = static()

    @classmethod
    def none(cls, d: int) -> "HeldRows":
        """Return no rows, to be checked at 10 d rows: fewer cannot all have a leverage below 0.1."""
        return cls((), (), (), next_look=int(d / MAX_LEVERAGE))

    @property
    def rows(self) -> int:
        return sum(map(len, self.y))

    @property
    def bytes(self) -> int:
        return sum(a.nbytes for a in (*self.X, *self.y, *self.weights))

    def plus(self, block: Block) -> "HeldRows":
        """Return the held rows with one more block."""
        return HeldRows((*self.X, block.X), (*self.y, block.y), (*self.weights, block.weights), self.next_look)

    def later(self) -> "HeldRows":
        """Return the same rows, to be checked again when there are 1.5 times as many."""
        return HeldRows(self.X, self.y, self.weights, int(_GROWTH * self.rows))

    def block(self, forget: Any, kind: str) -> Block:
        """Return all rows as one block, with their weights, of that `kind`, after forgetting."""
        X, y, weights = map(np.concatenate, (self.X, self.y, self.weights))
        weights, counts, squares, _ = faded(weights, forget, counts_of(weights, kind))
        return Block(X, y, weights, counts=counts, squares=squares)


def refine_held(
    model: Model,
    likelihood: Likelihood,
    regularizer: Regularizer,
    rows: Block,
    start: Array,
    prior: Information,
) -> Refined:
    """Refine the held rows to convergence, starting from `start`."""
    source = ArraySource(rows.X, rows.y, rows.weights, counts=rows.counts, squares=rows.squares)
    return refine(model, regularizer, source, start, prior=prior, max_passes=_PASSES, tol=_TOL, likelihood=likelihood)


def largest_leverage(model: Model, posterior: InformationPosterior, rows: Block) -> float:
    """Return the largest weight times leverage of the rows; infinite if a direction of theta is undetermined."""
    at = expand(model, posterior.likelihood, posterior.mean, rows)
    if not posterior.proper:
        return np.inf
    leverage = posterior.metric_factors[0].leverage(at.D)
    return float((leverage if at.weights is None else at.weights * leverage).max())
